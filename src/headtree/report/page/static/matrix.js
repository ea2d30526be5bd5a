/* A matrix of attention as a drawing: zoom by dragging, a crosshair that all matrices share, tokens on the axes. */
HT.matrix = (() => {
  const {el, svg, number, token, visible, table} = HT.dom;
  const {theme} = HT.colours;
  const {text, line, rect} = HT.plot;
  const LABEL = 9.5;  // pixels that a token needs on an axis
  const MARGIN = {left: 58, right: 58, top: 6, bottom: 34};
  const PATCH = /^r(\d+)c(\d+)$/;
  const followers = new Set();
  let crossed = null;

  /** Tell all matrices and the text which query and key the pointer is at. */
  function cross(place) {
    if (crossed === place || (crossed && place && crossed.q === place.q && crossed.k === place.k)) return;
    crossed = place;
    for (const follow of followers) follow(place);
  }

  /** The pixels of an image patch, if the token is one and the run has the image. */
  function patch(input, names, index) {
    const match = PATCH.exec(names[index]);
    if (!match || !input.text.image) return null;
    const [nRows, nColumns] = grid(names);
    const box = el("span", {class: "patch", role: "img", "aria-label": names[index]});
    const at = (i, n) => n > 1 ? `${100 * i / (n - 1)}%` : "0%";
    box.style.backgroundImage = `url("${input.text.image}")`;
    box.style.backgroundSize = `${100 * nColumns}% ${100 * nRows}%`;
    box.style.backgroundPosition = `${at(Number(match[2]), nColumns)} ${at(Number(match[1]), nRows)}`;
    return box;
  }

  const grids = new Map();

  /** Rows and columns of patches. */
  function grid(names) {
    if (!grids.has(names)) {
      const found = names.map(name => PATCH.exec(name)).filter(Boolean);
      grids.set(names, [Math.max(...found.map(m => Number(m[1]))) + 1, Math.max(...found.map(m => Number(m[2]))) + 1]);
    }
    return grids.get(names);
  }

  /** What rows and columns are. */
  const sides = input => input.text.sides ?? ["query", "key"];

  /** A token with its number, and its patch. */
  function described(input, kind, index) {
    const names = kind === "query" ? input.text.queries : input.text.keys, side = sides(input)[kind === "query" ? 0 : 1];
    const own = el("div", {}, names[index] === String(index) ? `${side} ${index}` : `${side} ${index} `,
      ...(names[index] === String(index) ? [] : [token(names[index])])), box = patch(input, names, index);
    if (box) own.append(" ", box);
    return own;
  }

  const range = (low, high) => Int32Array.from({length: high - low}, (_, i) => low + i);

  /** Tokens along one side, where there is room for them; `base` is where those of columns end. */
  function axis(group, names, shown, length, at, base = null) {
    if (length / shown.length < LABEL) return false;
    shown.forEach((index, i) => {
      const p = at(i + 0.5), label = visible(names[index], 7);
      group.append(base === null ? text(MARGIN.left - 4, p + 3.5, label, {"text-anchor": "end", "font-size": 10, class: "row-label"})
        : text(0, 0, label, {"font-size": 10, "text-anchor": "end", class: "column-label",
          transform: `translate(${p + 3.5} ${base}) rotate(-90)`}));
    });
    return true;
  }

  /**
   * Draw a field. `orders` are the queries and keys in the order in which they are shown; `splits` are the positions
   * of white lines between folders.
   */
  function draw({field, input, width, orders, splits, pinned, chosen}) {
    const [queries, keys] = orders;
    const side = Math.max(60, width - MARGIN.left - MARGIN.right);
    const aspect = Math.min(2, Math.max(0.25, queries.length / keys.length));
    const inner = {width: side, height: Math.round(side * aspect)};
    const zoomed = inner.width / keys.length >= LABEL, bottom = zoomed ? 66 : MARGIN.bottom;
    const height = inner.height + MARGIN.top + bottom;
    const element = svg("svg", {width, height, viewBox: `0 0 ${width} ${height}`, xmlns: "http://www.w3.org/2000/svg"});
    const scale = HT.colours.scale(field), paint = HT.fields.painted(field, scale, queries, keys);
    const sx = p => MARGIN.left + inner.width * p / keys.length, sy = p => MARGIN.top + inner.height * p / queries.length;
    element.append(rect(MARGIN.left, MARGIN.top, inner.width, inner.height, {fill: theme("faint")}),
      HT.plot.image(paint.pixels, paint.height, paint.width, MARGIN.left, MARGIN.top, inner.width, inner.height));
    const lines = {stroke: field.signed ? "#000" : "#fff", "stroke-opacity": field.signed ? 0.5 : 0.7};  // 0 is white, or dark
    for (const [places, vertical] of splits ? [[splits[0], false], [splits[1], true]] : []) {
      for (const p of places) {
        element.append(vertical ? line(sx(p), MARGIN.top, sx(p), MARGIN.top + inner.height, lines)
          : line(MARGIN.left, sy(p), MARGIN.left + inner.width, sy(p), lines));
      }
    }
    const labels = svg("g");
    const base = MARGIN.top + inner.height;
    const isOrdered = order => order.every((v, i) => !i || v === order[i - 1] + 1);
    if (!axis(labels, input.text.queries, queries, inner.height, sy) && isOrdered(queries)) {
      for (const q of HT.plot.ticks(queries[0], queries.at(-1), 5)) {
        labels.append(text(MARGIN.left - 5, sy(q - queries[0] + 0.5) + 4, String(q), {"text-anchor": "end", "font-size": 11, fill: theme("soft")}));
      }
    }
    if (!axis(labels, input.text.keys, keys, inner.width, sx, base + 4) && isOrdered(keys)) {
      for (const k of HT.plot.ticks(keys[0], keys.at(-1), 5)) {
        labels.append(text(sx(k - keys[0] + 0.5), base + 14, String(k), {"text-anchor": "middle", "font-size": 11, fill: theme("soft")}));
      }
    }
    labels.append(text(MARGIN.left + inner.width / 2, base + bottom - 6, sides(input)[1], {"text-anchor": "middle"}));
    labels.append(text(0, 0, sides(input)[0], {"text-anchor": "middle", transform: `translate(10 ${MARGIN.top + inner.height / 2}) rotate(-90)`}));
    element.append(labels, HT.plot.bar(MARGIN.left + inner.width + 8, MARGIN.top, inner.height, scale));
    for (const index of chosen?.slices ?? []) {  // slices of an array that is one matrix
      const p = orders[chosen.side].indexOf(index), look = {fill: "none", stroke: theme("accent"), "stroke-width": 1.4, class: "chosen-line"};
      if (p < 0) continue;
      element.append(chosen.side ? rect(sx(p), MARGIN.top, Math.max(2, sx(p + 1) - sx(p)), inner.height, look)
        : rect(MARGIN.left, sy(p), inner.width, Math.max(2, sy(p + 1) - sy(p)), look));
    }
    const marks = svg("g", {class: "on-screen"});
    element.append(marks);
    const placeOf = (order, p, length) => p >= 0 && p < length ? order[Math.floor(p * order.length / length)] : -1;
    return {
      element, marks, scale, sx, sy, inner, orders, valueAt: (i, j) => HT.fields.at(field, queries[i], keys[j]),
      /** The query and key at a place of the drawing; null outside. */
      at: (x, y) => {
        const q = placeOf(queries, y - MARGIN.top, inner.height), k = placeOf(keys, x - MARGIN.left, inner.width);
        return q < 0 || k < 0 ? null : {q, k};
      },
      mark: place => {
        marks.replaceChildren();
        const rows = [[pinned, theme("accent"), "4 2"], ...(place ? [[place.q, theme("text"), "none"]] : [])];
        for (const [q, stroke, dash] of rows) {
          const i = q >= 0 ? queries.indexOf(q) : -1;
          if (i >= 0) {
            const each = inner.height / queries.length;
            marks.append(rect(MARGIN.left, sy(i) - (each < 3 ? 1.5 : 0), inner.width, Math.max(3, each),
              {fill: "none", stroke, "stroke-dasharray": dash, "stroke-width": 1.2}));
          }
        }
        const j = place ? keys.indexOf(place.k) : -1;
        if (j >= 0) {
          const each = inner.width / keys.length;
          marks.append(rect(sx(j) - (each < 3 ? 1.5 : 0), MARGIN.top, Math.max(3, each), inner.height,
            {fill: "none", stroke: theme("text"), "stroke-width": 1.2}));
        }
      },
    };
  }

  const KINDS = {scores: "score "};

  /** What is at a place of a field, in words. */
  function said(field, input, kind, place) {
    const value = HT.fields.at(field, place.q, place.k);
    const box = field.cell > 1 ? `mean of ${field.cell} × ${field.cell} entries: ` : "";
    const what = Number.isNaN(value) ? HT.network.isArray ? "missing" : "missing: the model's mask forbids it" : `${box}${KINDS[kind] || ""}${field.coarse ? "≈ " : ""}${number(value)}`;
    return [el("strong", {}, what), described(input, "query", place.q), described(input, "key", place.k)];
  }

  /**
   * A card of a matrix. `source()` returns what `draw` needs, and `kind`, or null. Dragging zooms into all matrices in
   * original order, a click pins a query.
   */
  function card({id, title, source, zooms = true, level = "h4", ...rest}) {
    let shown = null, about = null;
    const values = HT.dom.lazily("Values as a table", () => about ? asTable(about) : el("p", {}, "Nothing is shown."));
    const self = HT.plot.card({
      id, title, level, tables: [values], ...rest,
      draw: width => {
        about = source();
        shown = about ? draw({...about, width, pinned: HT.state.get().pin}) : null;
        if (shown) shown.mark(crossed);
        return shown?.element ?? null;
      },
      over: (x, y) => {
        const place = shown?.at(x, y) ?? null;
        cross(place);
        return place && said(about.field, about.input, about.kind, place);
      },
      tapped: (x, y) => {
        const place = shown?.at(x, y);
        if (place) HT.state.set({pin: HT.state.get().pin === place.q ? -1 : place.q});
      },
      dragged: zooms ? box => {
        const a = shown?.at(Math.max(box[0], MARGIN.left), Math.max(box[1], MARGIN.top));
        const b = shown?.at(Math.min(box[2], MARGIN.left + shown.inner.width - 1), Math.min(box[3], MARGIN.top + shown.inner.height - 1));
        if (a && b && b.q > a.q && b.k > a.k) HT.state.set({window: [a.q, b.q + 1, a.k, b.k + 1]});
      } : undefined,
    });
    followers.add(place => shown?.mark(place));
    self.shown = () => shown;
    return self;
  }

  const MANY = 96;  // rows and columns of a table

  function asTable({field, input, orders}) {
    const [rows, columns] = orders.map(order => Array.from(order).slice(0, MANY));
    const names = (kind, index) => token((kind === "query" ? input.text.queries : input.text.keys)[index], 16);
    const cut = orders.some(order => order.length > MANY) ? `; the first ${MANY} of each: zoom in for others` : "";
    const body = table(`Rows are ${sides(input)[0]}, columns are ${sides(input)[1]}${cut}`, [sides(input)[0], ...columns.map(String)],
      rows.map(q => [names("query", q), ...columns.map(k => HT.fields.at(field, q, k))]));
    body.querySelectorAll("thead th").forEach((cell, j) => { if (j) cell.replaceChildren(names("key", columns[j - 1])); });
    return body;
  }

  /** Queries and keys in original order within the window that is zoomed into. */
  function original(input) {
    const {window} = HT.state.get(), n = [input.text.queries.length, input.text.keys.length];
    const fits = window.length && window[1] <= n[0] && window[3] <= n[1];
    return fits ? [range(window[0], window[1]), range(window[2], window[3])] : [range(0, n[0]), range(0, n[1])];
  }

  /** Positions where folders of a level begin, in display order. */
  function boundaries(split, level) {
    const places = [];
    for (let p = 1; p < split.length; p++) if (split[p] <= level) places.push(p);
    return places;
  }

  /** What is organized by its trees: the place of every row and column, and lines between folders of the chosen levels. */
  function organized(input) {
    const {arrays} = input, {queryLevel, keyLevel} = HT.state.get();
    return {orders: [arrays.query_order, arrays.key_order],
      splits: [boundaries(arrays.query_split, queryLevel), boundaries(arrays.key_split, keyLevel)]};
  }

  /** Two selects for the levels of folders between which lines are drawn; `fill` offers those of an input. */
  function levels(names = ["query", "key"]) {
    const selects = ["query", "key"].map(kind => {
      const select = el("select", {id: `level-${kind}`});
      select.addEventListener("change", () => HT.state.set({[`${kind}Level`]: Number(select.value)}));
      return select;
    });
    const fill = input => selects.forEach((select, axis) => {
      const kind = ["query", "key"][axis], counts = Array.from(input.arrays[`${kind}_levels`]);
      HT.dom.options(select, counts.map((n, l) => [l, `level ${l} (${n} folders)`]), Math.min(HT.state.get()[`${kind}Level`], counts.length - 1));
    });
    const controls = [HT.dom.labelled(`lines between ${names[0]} folders of`, selects[0]), HT.dom.labelled(`${names[1]} folders of`, selects[1])];
    return {controls, fill};
  }

  return {card, organized, levels, followers, original, grid, described, PATCH};
})();
