/* The map: heads as points, by diffusion coordinates or any two numbers. */
HT.map = (() => {
  const {el, svg, words, options, labelled, lazily, table} = HT.dom;
  const {theme} = HT.colours;
  const TAIL = 0.02, FAR = 1.6;  // the crowd is what lies between these shares, if the rest takes so much more room

  /** From the least to the largest value, or of the crowd. */
  function rangeOf(values, ofCrowd) {
    const sorted = Float64Array.from(values).filter(Number.isFinite).sort();
    const at = share => sorted[Math.round(share * (sorted.length - 1))] ?? 0;
    const [low, high] = ofCrowd ? [at(TAIL), at(1 - TAIL)] : [at(0), at(1)], extent = (high - low) || 1;
    return {range: [low - 0.05 * extent, high + 0.05 * extent], isFar: at(1) - at(0) > FAR * (at(1 - TAIL) - at(TAIL))};
  }

  function start(net) {
    const x = el("select", {id: "map-x"}), y = el("select", {id: "map-y"});
    const axes = net.columns.filter(column => column.type !== "word").map(column => [column.name, words(column.name)]);
    for (const [key, select] of [["x", x], ["y", y]]) {
      options(select, axes, HT.state.get()[key]);
      select.addEventListener("change", () => HT.state.set({[key]: select.value}));
    }
    const crowd = el("input", {type: "checkbox", id: "map-crowd"});
    crowd.checked = true;
    const crowdLabel = el("label", {}, crowd, " zoom to the crowd");
    crowd.addEventListener("change", () => self.render());
    let xs, ys, plot = null, marks = null;

    const place = i => [Math.min(plot.margin.left + plot.inner.width, Math.max(plot.margin.left, plot.sx(xs[i]))),
      Math.min(plot.margin.top + plot.inner.height, Math.max(plot.margin.top, plot.sy(ys[i])))];
    const title = name => name.startsWith("coordinate_") ? `diffusion ${words(name)}` : words(name);
    const places = lazily("Positions as a table", () => table(`Where each ${net.unit.one} lies on the map`,
      [net.unit.one, words(HT.state.get().x), words(HT.state.get().y)], net.names.map((name, i) => [name, xs[i], ys[i]])));
    const nearest = (px, py) => {
      let best = -1, least = 15 * 15;
      for (let i = 0; plot && i < net.nHeads; i++) {
        const [cx, cy] = place(i), d = (cx - px) ** 2 + (cy - py) ** 2;
        if (d < least) { least = d; best = i; }
      }
      return best;
    };
    const self = HT.plot.card({
      id: "map", title: `Map of ${net.unit.many}`, term: net.explained("map"), controls: [labelled("across", x), labelled("up", y), crowdLabel], tables: [places],
      legends: (left, top, width) => HT.plot.legend(HT.colours.ofColumn(net, HT.state.get().color), left, top, width),
      draw: width => {
        const state = HT.state.get();
        xs = net.axis(state.x);
        ys = net.axis(state.y);
        const full = [rangeOf(xs, false), rangeOf(ys, false)], isFar = full.some(own => own.isFar);
        crowdLabel.hidden = !isFar;
        const [a, b] = isFar && crowd.checked ? [rangeOf(xs, true), rangeOf(ys, true)] : full;
        plot = HT.plot.frame({width, height: Math.max(300, Math.min(Math.max(460, 0.5 * innerHeight), width * 0.8)), x: {range: a.range, label: title(state.x)},
          y: {range: b.range, label: title(state.y)}});
        marks = svg("g");
        plot.group.append(marks);
        mark();
        return plot.element;
      },
      over: (px, py) => nearest(px, py) < 0 ? null : net.about(nearest(px, py)),
      tapped: (px, py, add) => { if (nearest(px, py) >= 0) HT.state.select([nearest(px, py)], add); },
      dragged: ([x0, y0, x1, y1], add) => {
        const found = net.names.map((_, i) => i).filter(i => {
          const [cx, cy] = place(i);
          return cx >= x0 && cx <= x1 && cy >= y0 && cy <= y1;
        });
        if (found.length) HT.state.select(found, add);
      },
    });

    /** The name of a point, towards the middle where it would not fit. */
    const named = (i, cx, cy, r) => {
      const isRight = cx + r + 5 + 7 * net.names[i].length > plot.margin.left + plot.inner.width + plot.margin.right;
      return HT.plot.text(isRight ? cx - r - 5 : cx + r + 5, Math.max(11, cy - r), net.names[i], {"font-size": 11, "text-anchor": isRight ? "end" : "start"});
    };

    /** Points: those far outside at the edge, as triangles; selected ones with a ring and a name. */
    function mark() {
      if (!marks) return;
      const {selected, color} = HT.state.get(), chosen = new Set(selected), {isIn} = HT.filter.now(net);
      const {colours} = HT.colours.ofColumn(net, color), r = net.nHeads > 400 ? 3.2 : 5;
      const order = net.names.map((_, i) => i).sort((a, b) => (chosen.has(a) - chosen.has(b)) || (isIn[a] - isIn[b]));
      marks.replaceChildren(...order.flatMap(i => {
        const [cx, cy] = place(i), isOut = Math.abs(cx - plot.sx(xs[i])) > 1 || Math.abs(cy - plot.sy(ys[i])) > 1;
        const look = {fill: isIn[i] ? colours[i] : "none", stroke: isIn[i] ? theme("panel") : theme("line"), "stroke-width": 0.7, "fill-opacity": 0.92};
        const point = isOut ? svg("path", {d: `M${cx - r} ${cy + r}h${2 * r}l${-r} ${-2 * r}z`, ...look}) : svg("circle", {cx, cy, r, ...look});
        if (!chosen.has(i)) return [point];
        const ring = svg("circle", {cx, cy, r: r + 3, fill: "none", stroke: theme("accent"), "stroke-width": 2.2, class: "chosen", "data-head": i});
        return selected.length > 12 ? [point, ring] : [point, ring, named(i, cx, cy, r)];
      }));
    }
    HT.state.subscribe(["x", "y"], state => { x.value = state.x; y.value = state.y; });
    HT.state.subscribe(["selected", "filter", "color"], mark);
    self.place = i => place(i);
    return self;
  }

  return {start};
})();
