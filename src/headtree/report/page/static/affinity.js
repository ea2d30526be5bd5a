/* How alike every two heads are, in the order of the tree. */
HT.affinity = (() => {
  const {el, svg, number, lazily, table} = HT.dom;
  const {theme} = HT.colours;
  const {rect, line} = HT.plot;
  const LEFT = 14, TOP = 14, RIGHT = 52, HIGH = 0.98, LOW = 0.01;

  /** The codes of an upper triangle as a function of a pair of cells. */
  function triangle(codes, n) {
    return (i, j) => {
      if (i > j) [i, j] = [j, i];
      return codes[i * n - i * (i - 1) / 2 + j - i];
    };
  }

  function start(net) {
    let tree, code, nCells, side, marks = null;
    const value = (i, j) => tree.affinity[0] + (tree.affinity[1] - tree.affinity[0]) * code(i, j) / 254;
    const cellOf = place => Math.min(nCells - 1, Math.floor((place + 0.5) * nCells / net.nHeads));
    const nearest = lazily(`Affinities of the first selected ${net.unit.one} as a table`, () => {
      const head = HT.state.get().selected[0] ?? net.first, row = cellOf(tree.place[head]);
      const others = net.names.map((_, i) => i).filter(i => i !== head)
        .map(i => [i, value(row, cellOf(tree.place[i]))]).sort((a, b) => b[1] - a[1]);
      return table(`All ${net.unit.many}, nearest to ${net.names[head]} first`, [net.unit.one, "affinity"], others.map(([i, v]) => [net.names[i], v]));
    });
    const place = (x, y) => {
      const [p, q] = [(x - LEFT) / side, (y - TOP) / side].map(share => Math.floor(share * net.nHeads));
      return tree && p >= 0 && q >= 0 && p < net.nHeads && q < net.nHeads ? [q, p] : null;
    };
    const self = HT.plot.card({
      id: "affinity", title: `Affinity of ${net.unit.many}`, term: net.explained("affinity"), tables: [nearest],
      sentence: `Every two ${net.unit.many}, in the order of the tree: bright blocks on the diagonal are groups. Click a cell to select its two ${net.unit.many}.`,
      legends: (x, y, width) => HT.plot.legend(HT.colours.ofColumn(net, HT.state.get().color), x, y, width),
      draw: width => {
        tree = net.tree();
        nCells = Math.round((Math.sqrt(8 * tree.codes.length + 1) - 1) / 2);
        code = triangle(tree.codes, nCells);
        side = Math.max(100, Math.min(Math.max(560, 0.5 * innerHeight), width - LEFT - RIGHT));
        const apart = [];  // the diagonal, where each head meets itself, does not set the scale
        for (let i = 0; i < nCells; i++) for (let j = i + 1; j < nCells; j++) apart.push(value(i, j));
        const sorted = Float64Array.from(apart).sort(), at = share => sorted[Math.floor(share * (sorted.length - 1))] ?? 0;
        const scale = HT.colours.scale({low: at(LOW), high: at(HIGH)}), pixels = new Uint32Array(nCells * nCells);
        for (let i = 0; i < nCells; i++) for (let j = 0; j < nCells; j++) pixels[i * nCells + j] = scale.table[scale.index(value(i, j))];
        const height = side + TOP + 8;
        const element = svg("svg", {width, height, viewBox: `0 0 ${width} ${height}`, xmlns: "http://www.w3.org/2000/svg"});
        element.append(HT.plot.image(pixels, nCells, nCells, LEFT, TOP, side, side), HT.plot.bar(LEFT + side + 8, TOP, side, scale));
        const {colours} = HT.colours.ofColumn(net, HT.state.get().color), each = side / net.nHeads;
        tree.order.forEach((head, p) => element.append(rect(2, TOP + p * each, 9, each + 0.3, {fill: colours[head]}),
          rect(LEFT + p * each, 2, each + 0.3, 9, {fill: colours[head]})));
        marks = svg("g");
        element.append(marks);
        mark();
        return element;
      },
      over: (x, y) => {
        const own = place(x, y);
        if (!own) return null;
        return [el("strong", {}, `${net.names[tree.order[own[0]]]} and ${net.names[tree.order[own[1]]]}`),
          el("div", {}, `affinity ${number(value(cellOf(own[0]), cellOf(own[1])))}`)];
      },
      tapped: (x, y, add) => {
        const own = place(x, y);
        if (own) HT.state.select([...new Set(own.map(p => tree.order[p]))], add);
      },
    });

    /** A bracket at the edge for each selected head; lines through one or two of them. */
    function mark() {
      if (!marks || !tree) return;
      const {selected} = HT.state.get(), each = side / net.nHeads, thick = Math.max(1.6, each), look = {fill: theme("accent"), stroke: "none"};
      marks.replaceChildren(...selected.flatMap(head => {
        const p = tree.place[head] * each - Math.max(0, (1.6 - each) / 2);
        return [rect(0, TOP + p, 12, thick, {...look, class: "chosen", "data-head": head}), rect(LEFT + p, 0, thick, 12, look)];
      }), ...(selected.length <= 2 ? selected : []).flatMap(head => {
        const p = (tree.place[head] + 0.5) * each, thin = {stroke: theme("accent"), "stroke-opacity": 0.8};
        return [line(LEFT, TOP + p, LEFT + side, TOP + p, thin), line(LEFT + p, TOP, LEFT + p, TOP + side, thin)];
      }));
      nearest.refresh();
    }
    HT.state.subscribe(["selected"], mark);
    self.place = (a, b) => [LEFT + side * (tree.place[b] + 0.5) / net.nHeads, TOP + side * (tree.place[a] + 0.5) / net.nHeads];
    return self;
  }

  return {start};
})();
