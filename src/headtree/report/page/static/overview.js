/* The network at a glance: map, grid and affinity. The tree is in tree.js. */
HT.overview = (() => {
  const {el, number, words, options, labelled} = HT.dom;
  const {card, figure, colour, isNarrow} = HT.plots;
  const CATEGORIES = ["#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#8c6bb1", "#a6761d",
    "#f0e442", "#b2df8a", "#fb9a99"];
  const MISSING = "#9a9a9a";
  const TAIL = 0.03, FAR = 1.5;  // colours end at these shares of the heads if the rest would take so much of them

  const viridis = Array.from(Bokeh.Palettes.Viridis256, value => `#${(value >>> 8).toString(16).padStart(6, "0")}`);

  /** Columns that can be an axis. */
  const numeric = net => net.columns.filter(column => column.type !== "word");

  const isCategory = column => column.type === "word" || column.name === "family";

  /** Colour of every head by a column, with what a legend needs. */
  function coloured(net, name) {
    const column = net.column(name);
    if (isCategory(column)) {
      const values = column.type === "word" ? column.words : Array.from(column.values, v => v < 0 ? "" : String(v));
      const found = [...new Set(values)].filter(Boolean)
        .sort((a, b) => a.localeCompare(b, undefined, {numeric: true}));
      const fill = value => value ? CATEGORIES[found.indexOf(value) % CATEGORIES.length] : MISSING;
      const named = values.includes("") ? [...found, ""] : found;
      return {colours: values.map(fill), categories: named.map(value => [value, fill(value)])};
    }
    const finite = column.values.filter(Number.isFinite).sort();
    const at = share => finite[Math.round(share * (finite.length - 1))];
    const isFar = at(1) - at(0) > FAR * (at(1 - TAIL) - at(TAIL));  // a few heads far from all others
    const low = isFar ? at(TAIL) : at(0), high = isFar ? at(1 - TAIL) : at(1);
    const share = value => high > low ? Math.min(1, Math.max(0, (value - low) / (high - low))) : 0;
    const colours = Array.from(column.values,
      value => Number.isFinite(value) ? viridis[Math.round(255 * share(value))] : MISSING);
    return {colours, low, high, isFar};
  }

  /** A figure whose glyphs are heads, tied to the selection both ways. */
  function tie(self, source) {
    self.source = source;
    source.selected.properties.indices.change.connect(() => {
      const now = [...source.selected.indices];
      const before = HT.state.get().selected;
      if (now.length === before.length && now.every(head => before.includes(head))) return;
      HT.state.set({selected: [...before.filter(head => now.includes(head)),
        ...now.filter(head => !before.includes(head))]});
    });
  }

  function follow(self) {
    HT.state.subscribe(["selected"], ({selected}) => {
      if (self.source) self.source.selected.indices = [...selected];
    });
  }

  function legendOf(shown, name) {
    if (shown.isFar) return [el("span", {class: "legend"}, "A few heads are outside the colour range.")];
    if (!shown.categories) return [];
    const many = shown.categories.length > CATEGORIES.length;
    return [el("span", {class: "legend"}, `${words(name)}: `,
      ...shown.categories.slice(0, 24).map(([value, fill]) => {
        const swatch = el("i", {class: "swatch"});
        swatch.style.background = fill;
        return el("span", {class: "key"}, swatch, value || "none");
      }), ...(many ? [" (colours repeat)"] : []))];
  }

  function addBar(fig, shown) {
    if (!shown.categories) HT.plots.bar(fig, viridis, shown.low, shown.high);
  }

  const HIGHLIGHT = () => ({
    selection_line_color: colour("accent"), selection_line_width: 2.5, selection_fill_alpha: 1,
    selection_line_alpha: 1, nonselection_fill_alpha: 0.5, nonselection_line_alpha: 0.2,
  });

  /** Title and sentence of a card that shows one of the similarities: which, and what it means. */
  function told(net, self, title, before, after) {
    HT.state.subscribe(["basis"], () => {
      const {title: which, meaning} = net.similarity();
      self.heading.textContent = `${title}: ${which}`;
      const main = net.text.similarities[0];
      const others = HT.state.get().basis === main.kind || !net.hasFamilies ? "" : ` Families are those of “${main.title}”.`;
      self.sentence.textContent = before + meaning + after + others;
    });
  }

  // -- map -----------------------------------------------------------------------------------------------

  const coordinate = (net, name) => net.coordinate(name) || net.column(name).values;

  const axisTitle = (net, name) => name.startsWith("coordinate_") ? `diffusion ${words(name)}` : words(name);

  function map(net) {
    const legend = el("div", {class: "legends"});
    const x = el("select", {id: "map-x"}), y = el("select", {id: "map-y"});
    const axes = numeric(net).map(column => [column.name, words(column.name)]);
    for (const [key, select] of [["x", x], ["y", y]]) {
      select.addEventListener("change", () => HT.state.set({[key]: select.value}));
      HT.state.subscribe([key], state => options(select, axes, state[key]));
    }
    let xs, ys;
    const draw = backend => {
      const state = HT.state.get();
      xs = coordinate(net, state.x);
      ys = coordinate(net, state.y);
      const shown = coloured(net, state.color);
      legend.replaceChildren(...legendOf(shown, state.color));
      const fig = figure({
        height: isNarrow() ? 340 : 430, tools: "box_select,lasso_select,pan,wheel_zoom,box_zoom,reset",
        x_axis_label: axisTitle(net, state.x), y_axis_label: axisTitle(net, state.y),
      }, backend);
      const source = new Bokeh.ColumnDataSource({data: {x: xs, y: ys, color: shown.colours}});
      source.selected.indices = [...state.selected];
      const points = fig.scatter({field: "x"}, {field: "y"}, {
        source, size: net.nHeads > 400 ? 7 : 11, fill_color: {field: "color"},
        line_color: net.nHeads > 400 ? null : colour("panel"), line_width: 0.5, nonselection_line_color: null,
        fill_alpha: 0.95, ...HIGHLIGHT(), nonselection_fill_color: {field: "color"},
        selection_fill_color: {field: "color"}, selection_line_color: null,
      });
      const rings = new Bokeh.ColumnDataSource({data: ringed(state.selected)});
      fig.scatter({field: "x"}, {field: "y"}, {source: rings, size: net.nHeads > 400 ? 13 : 16, fill_color: null,
        line_color: colour("accent"), line_width: 2.5, nonselection_line_alpha: 1});
      fig.x_range.renderers = fig.y_range.renderers = [points];
      addBar(fig, shown);
      if (backend === "canvas") { tie(self, source); self.rings = rings; }
      return fig;
    };
    const ringed = selected => ({x: selected.map(i => xs[i]), y: selected.map(i => ys[i])});  // seen in any crowd
    const nearest = (px, py) => {
      const xr = self.figure.x_range, yr = self.figure.y_range;
      const sx = self.figure.inner_width / (xr.end - xr.start), sy = self.figure.inner_height / (yr.end - yr.start);
      let best = -1, least = 15 * 15;
      for (let i = 0; i < net.nHeads; i++) {
        const d = ((xs[i] - px) * sx) ** 2 + ((ys[i] - py) * sy) ** 2;
        if (d < least) { least = d; best = i; }
      }
      return best;
    };
    const places = HT.dom.lazily("Positions as a table", () => HT.dom.table("Where each head lies on the map",
      ["head", words(HT.state.get().x), words(HT.state.get().y)], net.names.map((name, i) => [name, xs[i], ys[i]])));
    const over = (px, py) => nearest(px, py) < 0 ? null : net.about(nearest(px, py));
    const tapped = (px, py, add) => { if (nearest(px, py) >= 0) HT.state.select([nearest(px, py)], add); };
    const self = card({
      id: "map", title: "Map of heads", draw, over, tapped,
      sentence: "",
      controls: [labelled("across", x), labelled("up", y)], after: [legend], tables: [places],
    });
    follow(self);
    told(net, self, "Map of heads", "Each point is a head. ", " Colours are those of the grid. Drag a box or a lasso to " +
      "select several.");
    HT.state.subscribe(["selected"], ({selected}) => { if (self.rings) self.rings.data = ringed(selected); });
    HT.state.subscribe(["x", "y", "color", "basis", "input"], () => self.redraw());
    return self;
  }

  // -- grid ----------------------------------------------------------------------------------------------

  function grid(net) {
    const select = el("select", {id: "grid-color"});
    select.addEventListener("change", () => HT.state.set({color: select.value}));
    const columns = net.columns.filter(column => column.name !== "name").map(({name}) => [name, words(name)]);
    HT.state.subscribe(["color"], state => options(select, columns, state.color));
    const legend = el("div", {class: "legends"}), meaning = el("p", {class: "sentence"});
    HT.state.subscribe(["color"], state => { meaning.textContent = net.text.glossary[state.color] || ""; });
    const layers = net.column("layer").values, places = net.column("head").values;
    const at = new Map(Array.from(layers, (layer, i) => [`${layer},${places[i]}`, i]));
    const draw = backend => {
      const state = HT.state.get();
      const shown = coloured(net, state.color);
      legend.replaceChildren(...legendOf(shown, state.color));
      const nLayers = Math.max(...layers) + 1, nPlaces = Math.max(...places) + 1;
      const fig = figure({
        height: isNarrow() ? 340 : 430, tools: "box_select,pan,wheel_zoom,reset",
        x_axis_label: "head", y_axis_label: "layer", x_range: [-0.6, nPlaces - 0.4], y_range: [nLayers - 0.4, -0.6],
      }, backend);
      const source = new Bokeh.ColumnDataSource({
        data: {x: Array.from(places), y: Array.from(layers), color: shown.colours}});
      source.selected.indices = [...state.selected];
      fig.rect({field: "x"}, {field: "y"}, 0.92, 0.92, {
        source, fill_color: {field: "color"}, line_color: null, ...HIGHLIGHT(),
        nonselection_fill_color: {field: "color"}, selection_fill_color: {field: "color"},
        nonselection_line_color: null,
      });
      for (const [axis, n] of [[fig.xaxis, nPlaces], [fig.yaxis, nLayers]]) {
        const step = Math.ceil(n / (isNarrow() ? 8 : 16));
        axis.ticker = new Bokeh.FixedTicker({ticks: Array.from({length: Math.ceil(n / step)}, (_, i) => i * step)});
      }
      fig.xgrid.grid_line_color = null;
      fig.ygrid.grid_line_color = null;
      addBar(fig, shown);
      if (backend === "canvas") tie(self, source);
      return fig;
    };
    const under = (x, y) => at.get(`${Math.round(y)},${Math.round(x)}`);
    const over = (x, y) => under(x, y) === undefined ? null : net.about(under(x, y));
    const tapped = (x, y, add) => { if (under(x, y) !== undefined) HT.state.select([under(x, y)], add); };
    const self = card({
      id: "grid", title: "Layer × head", draw, over, tapped,
      sentence: "One row per layer, the first layer at the top; colour is a column of the table.",
      controls: [labelled("colour", select)], after: [legend, meaning],
    });
    follow(self);
    HT.state.subscribe(["color"], () => self.redraw());
    return self;
  }

  // -- affinity ------------------------------------------------------------------------------------------

  /** The codes of an upper triangle as a function of a pair of cells. */
  function triangle(codes, n) {
    return (i, j) => {
      if (i > j) [i, j] = [j, i];
      return codes[i * n - i * (i - 1) / 2 + j - i];
    };
  }

  function affinity(net) {
    let code, nCells, tree;
    const value = (i, j) => {
      const [low, high] = tree.affinity;
      return low + (high - low) * code(i, j) / 254;
    };
    const cellOf = place => Math.min(nCells - 1, Math.floor((place + 0.5) * nCells / net.nHeads));
    const draw = backend => {
      tree = net.tree();
      const codes = tree.codes;
      nCells = Math.round((Math.sqrt(8 * codes.length + 1) - 1) / 2);
      code = triangle(codes, nCells);
      const offDiagonal = Float32Array.from(codes).sort();
      const top = offDiagonal[Math.floor(0.98 * (offDiagonal.length - 1))] || 254;
      const bottom = offDiagonal[Math.floor(0.01 * offDiagonal.length)];
      const pixels = new Uint32Array(nCells * nCells);
      const table = rgba(viridis);
      for (let i = 0; i < nCells; i++) {
        for (let j = 0; j < nCells; j++) {
          const share = (code(i, j) - bottom) / Math.max(1, top - bottom);
          pixels[i * nCells + j] = table[Math.round(255 * Math.min(1, Math.max(0, share)))];
        }
      }
      const n = net.nHeads, strip = 0.035 * n;
      const fig = figure({
        height: isNarrow() ? 340 : 430, tools: "pan,wheel_zoom,box_zoom,reset",
        x_range: [-strip, n], y_range: [n, -strip], x_axis_label: "heads in tree order",
        y_axis_label: "heads in tree order",
      }, backend);
      fig.image_rgba({image: [HT.matrix.image(pixels, nCells, nCells)], x: 0, y: 0, dw: n, dh: n});
      const marks = new Bokeh.ColumnDataSource({data: stripes(net, tree, strip)});
      fig.quad({left: {field: "left"}, right: {field: "right"}, top: {field: "top"}, bottom: {field: "bottom"},
        source: marks, fill_color: colour("accent"), line_color: null});
      const lines = new Bokeh.ColumnDataSource({data: cross(net, tree)});
      fig.segment({x0: {field: "x0"}, y0: {field: "y0"}, x1: {field: "x1"}, y1: {field: "y1"}, source: lines,
        line_color: colour("accent"), line_width: 1.5});
      fig.xgrid.grid_line_color = null;
      fig.ygrid.grid_line_color = null;
      const to = value => tree.affinity[0] + (tree.affinity[1] - tree.affinity[0]) * value / 254;
      addBar(fig, {low: to(bottom), high: to(top)});
      if (backend === "canvas") Object.assign(self, {marks, lines, strip});
      return fig;
    };
    const inside = (x, y) => x >= 0 && y >= 0 && x < net.nHeads && y < net.nHeads;
    const over = (x, y) => {
      if (!inside(x, y)) return null;
      const a = tree.order[Math.floor(y)], b = tree.order[Math.floor(x)];
      return [el("strong", {}, `${net.names[a]} and ${net.names[b]}`),
        el("div", {}, `affinity ${number(value(cellOf(Math.floor(y)), cellOf(Math.floor(x))))}`)];
    };
    const tapped = (x, y, add) => {
      if (!inside(x, y)) return;
      HT.state.select([...new Set([tree.order[Math.floor(y)], tree.order[Math.floor(x)]])], add);
    };
    const nearest = HT.dom.lazily("Affinities of the first selected head as a table", () => {
      const head = HT.state.get().selected[0] ?? tree.order[0];
      const row = cellOf(tree.place[head]);
      const others = Array.from({length: net.nHeads}, (_, i) => i).filter(i => i !== head)
        .map(i => [i, value(row, cellOf(tree.place[i]))]).sort((a, b) => b[1] - a[1]);
      return HT.dom.table(`All heads, nearest to ${net.names[head]} first`, ["head", "affinity"],
        others.map(([i, v]) => [net.names[i], v]));
    });
    const self = card({
      id: "affinity", title: "Affinity of heads", draw, over, tapped,
      sentence: "",
      tables: [nearest],
    });
    told(net, self, "Affinity of heads", "Every two heads in tree order; bright blocks on the diagonal are folders. ",
      " Click a cell to select its two heads.");
    HT.state.subscribe(["selected"], () => {
      if (!self.marks) return;
      self.marks.data = stripes(net, tree, self.strip);
      self.lines.data = cross(net, tree);
      nearest.refresh();
    }, {late: true});
    HT.state.subscribe(["basis", "input"], () => self.redraw());
    return self;
  }

  /** A mark for each selected head at the left and at the top. */
  function stripes(net, tree, strip) {
    const places = HT.state.get().selected.map(head => tree.place[head]);
    const ends = places.map(p => p + 1), least = Math.max(1, net.nHeads / 300);
    const wide = places.map((p, i) => Math.max(ends[i], p + least));
    const zero = places.map(() => -0.15 * strip), out = places.map(() => -strip);
    return {left: [...places, ...out], right: [...wide, ...zero], top: [...out, ...places], bottom: [...zero, ...wide]};
  }

  /** Lines through the rows and columns of the first selected heads. */
  function cross(net, tree) {
    const places = HT.state.get().selected.slice(0, 4).map(head => tree.place[head] + 0.5);
    const zero = places.map(() => 0), all = places.map(() => net.nHeads);
    return {x0: [...places, ...zero], y0: [...zero, ...places], x1: [...places, ...all], y1: [...all, ...places]};
  }

  /** Colours as 32-bit pixels, in the byte order of a canvas. */
  function rgba(palette) {
    return Uint32Array.from(palette, text => {
      const v = parseInt(text.slice(1), 16);
      return (0xff000000 | (v & 0xff) << 16 | (v & 0xff00) | v >> 16) >>> 0;
    });
  }

  return {map, grid, affinity, told, coloured, rgba, viridis, legendOf, CATEGORIES};
})();
