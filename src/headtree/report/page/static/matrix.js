/* Matrices as pictures: colours, boundaries of folders, and what is under the pointer. */
HT.matrix = (() => {
  const {el, token, table} = HT.dom;
  const PIXELS = 640;  // an organized matrix is drawn at most this large
  const {ndarray} = Bokeh.require("core/util/ndarray");
  const MANY = 6;  // tokens that a hint names

  /** Pixels as the array that Bokeh draws, first row first. */
  function image(pixels, nRows, nColumns) {
    return ndarray(pixels.buffer, {dtype: "uint32", shape: [nRows, nColumns]});
  }

  /** Blue, white, red; with the square root of a code, which is itself one of a value. */
  const diverging = Array.from({length: 256}, (_, i) => {
    const t = i / 255 * 2 - 1, far = Math.sqrt(Math.abs(t));
    const end = t < 0 ? [33, 102, 172] : [178, 24, 43];
    return `#${end.map(c => Math.round(247 + (c - 247) * far).toString(16).padStart(2, "0")).join("")}`;
  });

  /** Which of the blocks (by their starts) each of n pixels lies in, pixels being spread over `length` slices. */
  function spread(starts, length, n) {
    const blocks = new Int32Array(n);
    let block = 0;
    for (let p = 0; p < n; p++) {
      const place = (p + 0.5) * length / n;
      while (block + 1 < starts.length && starts[block + 1] <= place) block++;
      blocks[p] = block;
    }
    return blocks;
  }

  /** Colours of a matrix of codes over blocks of unequal size. */
  function painted(codes, nColumns, rows, columns, lengths, palette, missing) {
    const height = Math.min(lengths[0], PIXELS), width = Math.min(lengths[1], PIXELS);
    const row = spread(rows, lengths[0], height), column = spread(columns, lengths[1], width);
    const pixels = new Uint32Array(height * width);
    for (let i = 0; i < height; i++) {
      for (let j = 0; j < width; j++) {
        const code = codes[row[i] * nColumns + column[j]];
        pixels[i * width + j] = code === 255 ? missing : palette[code];
      }
    }
    return image(pixels, height, width);
  }

  /** Places where folders of a level begin, in display order. */
  function boundaries(split, level) {
    const places = [];
    for (let p = 1; p < split.length; p++) if (split[p] <= level) places.push(p);
    return places;
  }

  /** The block that holds a place. */
  function blockOf(starts, place) {
    let low = 0, high = starts.length - 1;
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      if (starts[middle] <= place) low = middle; else high = middle - 1;
    }
    return low;
  }

  function endOf(starts, block, length) {
    return block + 1 < starts.length ? starts[block + 1] : length;
  }

  const PATCH = /^r(\d+)c(\d+)$/;

  /** The pixels of an image patch, if the token is one and the run has the image. */
  function patch(part, names, index) {
    const match = PATCH.exec(names[index]);
    if (!match || !part.text.image) return null;
    if (!part.patches) part.patches = new Map();
    if (!part.patches.has(names)) {
      const found = names.map(name => PATCH.exec(name)).filter(Boolean);
      part.patches.set(names, [Math.max(...found.map(m => Number(m[1]))) + 1,
        Math.max(...found.map(m => Number(m[2]))) + 1]);
    }
    const [nRows, nColumns] = part.patches.get(names);
    const box = el("span", {class: "patch", role: "img", "aria-label": names[index]});
    const at = (i, n) => n > 1 ? `${100 * i / (n - 1)}%` : "0%";
    box.style.backgroundImage = `url("${part.text.image}")`;
    box.style.backgroundSize = `${100 * nColumns}% ${100 * nRows}%`;
    box.style.backgroundPosition = `${at(Number(match[2]), nColumns)} ${at(Number(match[1]), nRows)}`;
    return box;
  }

  /** The token under the pointer, and the others of its block. */
  function described(part, kind, order, starts, place) {
    const names = kind === "query" ? part.text.queries : part.text.keys;
    const block = blockOf(starts, place), end = endOf(starts, block, names.length);
    const own = order ? order[place] : place;
    const others = [];
    for (let p = starts[block]; p < end && others.length <= MANY; p++) {
      if (p !== place) others.push(order ? order[p] : p);
    }
    const line = el("div", {}, `${kind} ${own} `, token(names[own]));
    const box = patch(part, names, own);
    if (box) line.append(" ", box);
    if (end - starts[block] > 1) {
      const more = end - starts[block] - 1 - Math.min(others.length, MANY);
      line.append(el("span", {class: "soft"}, ` with ${end - starts[block] - 1} more: `,
        ...others.slice(0, MANY).flatMap((i, n) => [n ? " " : "", token(names[i], 20)]), more > 0 ? " …" : ""));
    }
    return {line, n: end - starts[block], block};
  }

  /** Values over blocks as a table whose headings are tokens. */
  function asTable(caption, part, isOrganized, rows, columns, value) {
    const name = (kind, starts, block) => {
      const names = kind === "query" ? part.text.queries : part.text.keys;
      const first = isOrganized ? part.arrays[`${kind}_order`][starts[block]] : starts[block];
      const n = endOf(starts, block, names.length) - starts[block];
      return el("span", {}, token(names[first], 16), n > 1 ? ` +${n - 1}` : "");
    };
    const body = table(caption, ["", ...columns.keys()], Array.from(rows.keys(), i =>
      [name("query", rows, i), ...Array.from(columns.keys(), j => value(i, j))]));
    body.querySelectorAll("thead th").forEach((cell, j) => {
      if (j) cell.replaceChildren(name("key", columns, j - 1));
    });
    return body;
  }

  return {image, painted, boundaries, described, asTable, diverging};
})();
