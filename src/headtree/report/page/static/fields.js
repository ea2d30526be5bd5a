/* The attention of heads as fields: values over queries and keys, with the scale on which they are painted. */
HT.fields = (() => {
  /** A matrix of an input's part; its cells are entries, or averages over boxes of them. */
  function ofHead(part, head) {
    const {text, arrays} = part, {shape, bits, power, cell} = text;
    const codes = HT.data.codes(arrays.codes, shape, bits, head), top = (1 << bits) - 2;
    const low = arrays.low[head], high = arrays.high[head];
    const signed = v => high * Math.sign(v) * Math.abs(v) ** power, rising = v => low + (high - low) * v ** power;
    const at = c => text.signed ? signed(2 * c / top - 1) : rising(c / top);
    const tableOf = place => Float32Array.from({length: top + 2}, (_, c) => c > top ? NaN : at(Math.min(top, Math.max(0, place(c)))));
    const table = tableOf(c => c), values = new Float32Array(codes.length), [, nRows, nColumns] = shape;
    for (let i = 0; i < codes.length; i++) values[i] = table[codes[i]];
    if (text.kind === "probs") {
      const sums = arrays.sums?.subarray(head * nRows, (head + 1) * nRows) ?? new Float32Array(nRows).fill(1);
      keepSums(values, codes, sums, table, tableOf(c => c - 0.5), tableOf(c => c + 0.5));
    }
    return {values, nRows, nColumns, cell, low, high, power, signed: text.signed, coarse: bits < 8};
  }

  /** Move the values of each row within the steps of their codes, so that the row adds up to its sum. */
  function keepSums(values, codes, sums, table, lower, upper) {
    const n = codes.length / sums.length;
    sums.forEach((sum, row) => {
      let lacking = sum, room = 0;
      for (let i = row * n; i < (row + 1) * n; i++) lacking -= values[i] || 0;  // what is missing counts nothing
      const edge = lacking > 0 ? upper : lower;
      for (let i = row * n; i < (row + 1) * n; i++) room += edge[codes[i]] - table[codes[i]] || 0;
      const share = room ? Math.min(1, lacking / room) : 0;
      for (let i = row * n; i < (row + 1) * n; i++) values[i] += share * (edge[codes[i]] - table[codes[i]]);
    });
  }

  /** The mean of several heads. */
  function mean(part, heads) {
    const first = ofHead(part, heads[0]), total = Float64Array.from(first.values);
    for (const head of heads.slice(1)) ofHead(part, head).values.forEach((v, i) => { total[i] += v; });
    const values = Float32Array.from(total, v => v / heads.length);
    let high = 0;
    for (const v of values) if (Math.abs(v) > high) high = Math.abs(v);
    return {...first, values, high, low: first.signed ? -high : 0};
  }

  /** One field minus another. */
  function difference(a, b) {
    const values = a.values.map((v, i) => v - b.values[i]);
    let most = 0;
    for (const v of values) if (Math.abs(v) > most) most = Math.abs(v);
    return {...a, values, low: -most, high: most, signed: true};
  }

  const at = (field, q, k) => field.values[Math.floor(q / field.cell) * field.nColumns + Math.floor(k / field.cell)];

  /** The same scale for several fields. */
  function together(fields) {
    const low = Math.min(...fields.map(f => f.low)), high = Math.max(...fields.map(f => f.high));
    return fields.map(field => ({...field, low, high}));
  }

  /** Colours of a window of a field, its rows and columns in some order. */
  function painted(field, own, rows, columns, most = 1024) {
    const height = Math.min(rows.length, most), width = Math.min(columns.length, most);
    const pixels = new Uint32Array(height * width), missing = 0;  // what is missing shows the panel
    const column = Int32Array.from({length: width}, (_, j) => Math.floor(columns[Math.floor((j + 0.5) * columns.length / width)] / field.cell));
    const {table, index} = own;
    for (let i = 0; i < height; i++) {
      const start = Math.floor(rows[Math.floor((i + 0.5) * rows.length / height)] / field.cell) * field.nColumns;
      for (let j = 0; j < width; j++) {
        const v = field.values[start + column[j]];
        pixels[i * width + j] = v !== v ? missing : table[index(v)];
      }
    }
    return {pixels, height, width};
  }

  /** What the first selected heads show on the chosen input: slots of {name, heads, field}; no field if it was left out. */
  async function chosen(net, kind) {
    const state = HT.state.get();
    const [part, input] = await Promise.all([HT.data.part(`${kind}_${state.input}`), HT.data.part(`${net.isArray ? "axis" : "input"}_${state.input}`)]);
    const selected = state.selected.length ? state.selected : [net.first];
    const isMean = state.mean && selected.length > 1;
    if (part && input.text.whole) return {slots: [{name: "The array", heads: selected, field: ofHead(part, 0)}], input, part, kind, isMean: false, selected};
    const slots = isMean ? [{name: `mean of ${selected.length} ${net.unit.many}`, heads: selected}]
      : selected.slice(0, 2).map(head => ({name: net.title(head), heads: [head]}));
    if (part) for (const slot of slots) slot.field = slot.heads.length > 1 ? mean(part, slot.heads) : ofHead(part, slot.heads[0]);
    if (part && state.same && slots.length > 1) {
      together(slots.map(slot => slot.field)).forEach((field, i) => { slots[i].field = field; });
    }
    return {slots, input, part, kind, isMean, selected};
  }

  /** Before or after softmax, as chosen; what no softmax is taken of, as it is. */
  const kindOf = net => HT.state.get().before && net.text.grains.scores ? "scores" : net.main;

  return {kindOf, ofHead, difference, at, painted, chosen};
})();
