/* Colours and scales: one colour map for attention and affinity, one for signs, one for numbers of heads, one list for categories; the figures have the same. */
HT.colours = (() => {
  const {viridis: VIRIDIS, signed: SIGNED, heads: HEADS} = HT.palettes;
  const CATEGORIES = ["#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#8c6bb1", "#a6761d",
    "#f0e442", "#b2df8a", "#fb9a99"];
  const NONE = "#9a9a9a";
  const TAIL = 0.03, FAR = 1.5;  // colours end at these shares of the heads if the rest would take so much of them

  const theme = name => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();

  /** Bytes of colours as a canvas has them. */
  const pixels = palette => Uint32Array.from(palette, text => {
    const v = parseInt(text.slice(1), 16);
    return (0xff000000 | (v & 0xff) << 16 | (v & 0xff00) | v >> 16) >>> 0;
  });
  const tables = new Map([[VIRIDIS, pixels(VIRIDIS)], [SIGNED, pixels(SIGNED)], [HEADS, pixels(HEADS)]]);

  /**
   * From values to places 0 to 1 on a colour bar and back. `power` 2 spaces values by their square root, which shows
   * small ones; a signed scale does so on both sides of 0.
   */
  function scale({low, high, power = 1, signed = false, ofHeads = false}) {
    const extent = high > low ? high - low : 1, palette = signed ? SIGNED : ofHeads ? HEADS : VIRIDIS;
    const most = Math.max(Math.abs(low), Math.abs(high)) || 1;
    const place = signed
      ? v => 0.5 + 0.5 * Math.sign(v) * Math.min(1, Math.abs(v) / most) ** (1 / power)
      : v => Math.min(1, Math.max(0, (v - low) / extent)) ** (1 / power);
    const value = signed
      ? t => Math.sign(t - 0.5) * most * Math.abs(2 * t - 1) ** power
      : t => low + extent * t ** power;
    const index = v => Math.round(255 * place(v));
    return {low: signed ? -most : low, high: signed ? most : low + extent, power, signed, palette, place, value,
      css: v => palette[index(v)], table: tables.get(palette), index};
  }

  /** Colour of every head by a column, with what a legend needs. */
  function ofColumn(net, name) {
    const column = net.column(name);
    const isFolder = name.startsWith("folder_");  // of an array's axis
    if (column.type === "word" || name === "family" || isFolder) {
      const values = column.type === "word" ? column.words : Array.from(column.values, v => v < 0 ? "" : String(v));
      const found = [...new Set(values)].filter(Boolean)
        .sort((a, b) => a.localeCompare(b, undefined, {numeric: true}));
      const fill = value => value ? CATEGORIES[found.indexOf(value) % CATEGORIES.length] : NONE;
      const named = values.includes("") ? [...found, ""] : found;
      return {colours: values.map(fill), categories: named.map(value => [value ? (isFolder ? `folder ${value}`
        : name === "family" ? `family ${value}` : value) : "none", fill(value)]), repeats: found.length > CATEGORIES.length};
    }
    const finite = Float64Array.from(column.values).filter(Number.isFinite).sort();
    const at = share => finite[Math.round(share * (finite.length - 1))] ?? 0;
    const isFar = at(1) - at(0) > FAR * (at(1 - TAIL) - at(TAIL));  // a few heads far from all others
    const own = scale({ofHeads: true, low: isFar ? at(TAIL) : at(0), high: isFar ? at(1 - TAIL) : at(1)});
    return {colours: Array.from(column.values, v => Number.isFinite(v) ? own.css(v) : NONE), scale: own, isFar};
  }

  return {theme, scale, ofColumn};
})();
