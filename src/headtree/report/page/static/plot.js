/* Drawings: axes, ticks, colour bars, and the cards that hold them. Every drawing is one SVG element. */
HT.plot = (() => {
  const {el, svg, hint, number, button, why} = HT.dom;
  const {theme} = HT.colours;
  const FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', sans-serif";
  const DRAG = 5;  // pixels between press and release from which they are a drag
  const cards = [];

  const text = (x, y, words, attributes = {}) => svg("text", {x, y, "font-family": FONT, "font-size": 12,
    fill: theme("text"), ...attributes}, words);

  const line = (x1, y1, x2, y2, attributes = {}) => svg("line", {x1, y1, x2, y2, stroke: theme("line"), ...attributes});

  const rect = (x, y, width, height, attributes = {}) => svg("rect", {x, y, width: Math.max(0, width),
    height: Math.max(0, height), ...attributes});

  /** Round numbers between two ends, about n of them. */
  function ticks(low, high, n = 5) {
    if (!(high > low)) return [low];
    const rough = (high - low) / n, power = 10 ** Math.floor(Math.log10(rough));
    const step = power * ([1, 2, 5, 10].find(s => s * power >= rough) || 10);
    const found = [];
    for (let i = Math.ceil(low / step - 1e-9); i * step <= high + 1e-9 * step; i++) found.push(Number((i * step).toPrecision(12)));
    return found;
  }

  /** Few round numbers for an axis of logarithms. */
  function logTicks(low, high) {
    const first = Math.floor(Math.log10(low)), last = Math.ceil(Math.log10(high));
    const decades = Array.from({length: last - first + 1}, (_, i) => 10 ** (first + i)).filter(v => v >= low && v <= high);
    const step = Math.ceil(decades.length / 6);
    if (decades.length > 2) return decades.filter((_, i) => i % step === 0);
    const finer = Array.from({length: last - first + 1}, (_, i) => [1, 2, 5].map(digit => digit * 10 ** (first + i))).flat()
      .filter(v => v >= low && v <= high);
    return finer.length > 1 ? finer : [low, high];
  }

  /**
   * An empty drawing with axes. `x` and `y` are {range, label, ticks, log, format}; a range may fall.
   * Returns the element, the group to draw in, and functions from values to pixels and back.
   */
  function frame({width, height, x, y, margin = {}}) {
    const m = {left: 60, right: 12, top: 8, bottom: 40, ...margin};
    const inner = {width: Math.max(10, width - m.left - m.right), height: Math.max(10, height - m.top - m.bottom)};
    const to = (axis, start, length) => {
      const [a, b] = axis.log ? axis.range.map(Math.log10) : axis.range;
      return v => start + length * ((axis.log ? Math.log10(v) : v) - a) / ((b - a) || 1);
    };
    const back = (axis, start, length) => {
      const [a, b] = axis.log ? axis.range.map(Math.log10) : axis.range;
      return p => { const v = a + (b - a) * (p - start) / length; return axis.log ? 10 ** v : v; };
    };
    const sx = to(x, m.left, inner.width), sy = to(y, m.top + inner.height, -inner.height);
    const element = svg("svg", {width, height, viewBox: `0 0 ${width} ${height}`, xmlns: "http://www.w3.org/2000/svg"});
    element.append(rect(m.left, m.top, inner.width, inner.height, {fill: "none", stroke: theme("line")}));
    const sorted = range => [Math.min(...range), Math.max(...range)];
    const marks = axis => axis.ticks || (axis.log ? logTicks(...sorted(axis.range)) : ticks(...sorted(axis.range)));
    for (const v of marks(x)) {
      element.append(line(sx(v), m.top + inner.height, sx(v), m.top + inner.height + 4),
        text(sx(v), m.top + inner.height + 16, (x.format || number)(v), {"text-anchor": "middle", fill: theme("soft"), "font-size": 11}));
    }
    for (const v of marks(y)) {
      element.append(line(m.left - 4, sy(v), m.left, sy(v)),
        text(m.left - 7, sy(v) + 4, (y.format || number)(v), {"text-anchor": "end", fill: theme("soft"), "font-size": 11}));
    }
    if (x.label) element.append(text(m.left + inner.width / 2, m.top + inner.height + 33, x.label, {"text-anchor": "middle"}));
    if (y.label) {
      element.append(text(0, 0, y.label, {"text-anchor": "middle",
        transform: `translate(13 ${m.top + inner.height / 2}) rotate(-90)`}));
    }
    const group = svg("g");
    element.append(group);
    return {element, group, sx, sy, margin: m, inner, backX: back(x, m.left, inner.width),
      backY: back(y, m.top + inner.height, -inner.height)};
  }

  /** 5, 2 and 1 times powers of ten up to a value, largest first. */
  function rounded(most) {
    const power = Math.floor(Math.log10(most || 1));
    return [0, 1, 2, 3].flatMap(down => [5, 2, 1].map(digit => Number((digit * 10 ** (power - down)).toPrecision(3)))).filter(v => v <= most);
  }

  /** Places with a round value on a colour bar, at least this share of it apart. */
  function barTicks(scale, apart = 0.14) {
    const wanted = scale.power === 1 ? ticks(scale.low, scale.high, 4) : [0, ...rounded(scale.high),
      ...(scale.signed ? rounded(-scale.low).map(v => -v) : [])];
    const kept = [];
    for (const v of wanted) {
      if (kept.every(other => Math.abs(scale.place(v) - scale.place(other)) >= apart)) kept.push(v);
    }
    return kept;
  }

  /** A colour bar: what is painted at a place is the colour of the value that stands there. */
  function bar(x, y, height, scale, width = 10) {
    const group = svg("g", {class: "bar"}), n = 64;
    for (let i = 0; i < n; i++) {
      const t = (i + 0.5) / n;
      group.append(rect(x, y + height * (1 - (i + 1) / n), width, height / n + 0.5,
        {fill: scale.palette[Math.round(255 * t)], stroke: "none"}));
    }
    for (const v of barTicks(scale, Math.max(0.05, 14 / height))) {
      const py = y + height * (1 - scale.place(v));
      group.append(line(x + width, py, x + width + 3, py),
        text(x + width + 5, py + 4, number(v), {"font-size": 11, fill: theme("soft")}));
    }
    return group;
  }

  /** What explains the colours of heads: rows of swatches, or a bar. Returns a group and its height. */
  function legend(shown, x, y, width) {
    const group = svg("g");
    if (!shown.categories) {
      const {scale} = shown, n = 64, length = Math.min(240, width - 40);
      for (let i = 0; i < n; i++) {
        group.append(rect(x + length * i / n, y, length / n + 0.5, 10, {fill: scale.palette[Math.round(255 * (i + 0.5) / n)]}));
      }
      for (const v of barTicks(scale, 0.18)) {
        group.append(text(x + length * scale.place(v), y + 23, number(v), {"text-anchor": "middle", "font-size": 11, fill: theme("soft")}));
      }
      return {group, height: 30};
    }
    let left = x, top = y;
    for (const [name, fill] of shown.categories.slice(0, 24)) {
      const wide = 22 + 6.6 * name.length;
      if (left + wide > x + width && left > x) { left = x; top += 17; }
      group.append(rect(left, top, 10, 10, {fill}), text(left + 14, top + 9, name, {"font-size": 11, fill: theme("soft")}));
      left += wide;
    }
    return {group, height: top - y + 20};
  }

  /** Pixels as an image of a drawing; `rows` × `columns` cells over a box. Few cells stay sharp, many are averaged. */
  function image(pixels, rows, columns, x, y, width, height) {
    const canvas = el("canvas", {width: columns, height: rows});
    canvas.getContext("2d").putImageData(new ImageData(new Uint8ClampedArray(pixels.buffer), columns, rows), 0, 0);
    const isSharp = columns <= width * devicePixelRatio * 1.01;
    return svg("image", {x, y, width, height, preserveAspectRatio: "none", href: canvas.toDataURL(),
      ...(isSharp ? {"image-rendering": "pixelated"} : {})});
  }

  /** Where an event is in a drawing, in its own pixels. */
  function placeOf(event, element) {
    const box = element.getBoundingClientRect(), view = element.viewBox.baseVal;
    return [(event.clientX - box.x) * view.width / box.width, (event.clientY - box.y) * view.height / box.height];
  }

  /**
   * Pointer on a drawing: `over(x, y)` returns what to say, `tapped(x, y, add)` takes a click,
   * `dragged([x0, y0, x1, y1], add)` a box, which is drawn while it is dragged.
   */
  function listen(target, {over, tapped, dragged}) {
    const find = () => target.querySelector("svg");
    let down = null, box = null;
    const isFar = (a, b) => Math.hypot(a.clientX - b.clientX, a.clientY - b.clientY) > DRAG;
    target.addEventListener("pointerdown", event => {
      if (event.button || event.pointerType === "touch") { down = event.button ? null : event; return; }
      down = event;
      if (dragged && find()) { target.setPointerCapture(event.pointerId); event.preventDefault(); }
    });
    target.addEventListener("pointermove", event => {
      const drawing = find();
      if (!drawing) return;
      if (down && dragged && event.pointerType !== "touch" && isFar(event, down)) {
        const [a, b] = [placeOf(down, drawing), placeOf(event, drawing)];
        if (!box) drawing.append(box = rect(0, 0, 0, 0, {fill: theme("accent"), "fill-opacity": 0.15, stroke: theme("accent")}));
        for (const [name, v] of [["x", Math.min(a[0], b[0])], ["y", Math.min(a[1], b[1])],
          ["width", Math.abs(a[0] - b[0])], ["height", Math.abs(a[1] - b[1])]]) box.setAttribute(name, v);
        hint(null, null);
      } else if (!event.buttons) hint(event, over ? over(...placeOf(event, drawing)) : null);
    });
    target.addEventListener("pointerup", event => {
      const drawing = find(), first = down;
      down = null;
      box?.remove();
      box = null;
      if (!first || !drawing) return;
      const [a, b] = [placeOf(first, drawing), placeOf(event, drawing)];
      if (isFar(event, first)) {
        if (dragged && event.pointerType !== "touch") {
          dragged([Math.min(a[0], b[0]), Math.min(a[1], b[1]), Math.max(a[0], b[0]), Math.max(a[1], b[1])], event.shiftKey);
        }
        return;
      }
      if (tapped) tapped(...b, event.shiftKey);
      const said = over ? over(...b) : null;
      if (said) hint(event, said);
    });
    target.addEventListener("pointercancel", () => { down = null; box?.remove(); box = null; });
    target.addEventListener("pointerleave", event => {
      if (event.pointerType !== "touch") { hint(null, null); if (over) over(-1e6, -1e6); }
    });
  }

  /**
   * A card with a heading, a sentence, controls, a drawing and its downloads.
   * `draw(width)` returns an SVG element or null; `legends()` what explains its colours, for files.
   * `tables` are folds (HT.dom.lazily) with what the drawing shows, filled again whenever it is drawn.
   */
  function card({id, title, term, sentence = "", controls = [], draw, legends, after = [], tables = [], level = "h3", role = "img",
    ...events}) {
    const target = el("div", {class: "plot", id: `${id}-plot`, role, "aria-label": title});
    const downloads = ["SVG", "PNG"].map(format => button(format, () => HT.download.drawing(self, format.toLowerCase()),
      {class: "download", "aria-label": `Download ${title} as ${format}`}));
    const self = {id, title, target, legends, drawing: null};
    self.heading = el(level, {id: `${id}-title`}, title);
    self.sentence = el("p", {class: "sentence"}, sentence);
    self.element = el("article", {class: "card", id, "aria-labelledby": `${id}-title`},
      el("div", {class: "card-head"}, self.heading, ...(term ? [why(term)] : []), el("div", {class: "downloads"}, ...downloads)),
      self.sentence, ...(controls.length ? [el("div", {class: "controls"}, ...controls)] : []), target, ...after,
      ...tables.map(table => table.element));
    listen(target, events);
    self.name = () => self.heading.textContent;
    self.render = () => {
      if (!self.element.isConnected) return;
      const width = Math.floor(target.clientWidth) || 320;
      self.drawing = draw(width);
      target.hidden = !self.drawing;
      for (const item of downloads) item.hidden = !self.drawing;
      target.querySelector(":scope > svg")?.remove();
      if (self.drawing) target.append(self.drawing);
      for (const table of tables) table.refresh();
    };
    cards.push(self);
    return self;
  }

  /** Draw again whatever is there: another theme, another width. */
  const redrawAll = () => { for (const item of cards) if (item.drawing && item.element.isConnected) item.render(); };

  return {cards, card, frame, text, line, rect, ticks, bar, legend, image, redrawAll};
})();
