/* Small pictures of every head's attention: of the first input they come with the page, of others they are made here. */
HT.thumbnails = (() => {
  const {el} = HT.dom;
  const SIZE = 32, MANY = 400, BRIGHT = 0.995;
  const made = new Map();

  /** Pixels of one small picture of codes 0 to 14, 15 missing. */
  function pixelsOf(codes, signed = false) {
    const {table} = HT.colours.scale({low: signed ? -1 : 0, high: 1, signed});
    return Uint32Array.from(codes, c => c > 14 ? 0 : table[Math.round(c / 14 * 255)]);
  }

  function sheet([n, nRows, nColumns], codesOf, signed) {
    const perRow = Math.ceil(Math.sqrt(n));
    const canvas = el("canvas", {width: perRow * nColumns, height: Math.ceil(n / perRow) * nRows});
    const context = canvas.getContext("2d");
    for (let i = 0; i < n; i++) {
      const pixels = pixelsOf(codesOf(i), signed);
      context.putImageData(new ImageData(new Uint8ClampedArray(pixels.buffer), nColumns, nRows),
        (i % perRow) * nColumns, Math.floor(i / perRow) * nRows);
    }
    return {codesOf, nRows, nColumns, signed, draw: (target, i, x, y, side) =>
      target.drawImage(canvas, (i % perRow) * nColumns, Math.floor(i / perRow) * nRows, nColumns, nRows, x, y, side, side)};
  }

  /** From a value to its place 0 to 1 on a picture's scale, which shows square roots, and back. */
  const shareOf = (v, signed) => {
    const root = Math.sqrt(Math.min(1, Math.abs(v)));
    return signed ? (1 + Math.sign(v) * root) / 2 : v > 0 ? root : 0;
  };
  const valueOf = (share, signed) => signed ? Math.sign(share - 0.5) * (2 * share - 1) ** 2 : share ** 2;

  /** Codes of a field on a scale of its own. */
  function shrunk(field, n) {
    const step = Math.max(1, Math.ceil(Math.max(field.nRows, field.nColumns) / n));
    const rows = Math.ceil(field.nRows / step), columns = Math.ceil(field.nColumns / step);
    const sums = new Float32Array(rows * columns), counts = new Uint16Array(rows * columns);
    for (let i = 0; i < field.nRows; i++) {
      for (let j = 0; j < field.nColumns; j++) {
        const v = field.values[i * field.nColumns + j];
        if (v === v) { const p = Math.floor(i / step) * columns + Math.floor(j / step); sums[p] += v; counts[p] += 1; }
      }
    }
    const means = sums.map((v, i) => counts[i] ? v / counts[i] : NaN);
    const sorted = means.filter(v => v === v).map(Math.abs).sort(), high = sorted[Math.floor(BRIGHT * (sorted.length - 1))] || 1;
    return {codes: Uint8Array.from(means, v => v !== v ? 15 : Math.round(14 * shareOf(v / high, field.signed))), rows, columns};
  }

  /** The pictures of an input; null if its matrices were left out. */
  async function of(net, input) {
    if (made.has(input)) return made.get(input);
    if (input === 0 || net.isArray) {
      const {shape, signed} = net.text.thumbnails, array = net.core.arrays.thumbnails;
      made.set(input, sheet(shape, i => HT.data.codes(array, shape, 4, i), signed));
      return made.get(input);
    }
    const part = await HT.data.part(`${net.main}_${input}`);
    if (!part) return null;
    const small = Array.from({length: net.nHeads}, (_, i) => shrunk(HT.fields.ofHead(part, i), net.nHeads > MANY ? SIZE / 2 : SIZE));
    made.set(input, sheet([net.nHeads, small[0].rows, small[0].columns], i => small[i].codes, part.text.signed));
    return made.get(input);
  }

  /** The mean picture of some heads, as a canvas. */
  function mean(pictures, heads) {
    const {nRows, nColumns, signed} = pictures, total = new Float32Array(nRows * nColumns);
    for (const head of heads) pictures.codesOf(head).forEach((c, i) => { total[i] += c > 14 ? NaN : valueOf(c / 14, signed); });
    const high = total.reduce((a, v) => Math.abs(v) > a ? Math.abs(v) : a, 0) || 1;
    const pixels = pixelsOf(total.map(v => v !== v ? 15 : 14 * shareOf(v / high, signed)), signed);
    const canvas = el("canvas", {width: nColumns, height: nRows});
    canvas.getContext("2d").putImageData(new ImageData(new Uint8ClampedArray(pixels.buffer), nColumns, nRows), 0, 0);
    return canvas;
  }

  return {of, mean, shrunk, pixelsOf};
})();
