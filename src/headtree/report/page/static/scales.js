/* Scales of one or two heads: the matrix organized by its trees, Haar coefficients, paraproduct terms, structure scores. */
HT.scales = (() => {
  const {el, svg, byId, number, percent, table, lazily, token, headLink} = HT.dom;
  const {theme} = HT.colours;
  const {card, frame, text, line, rect} = HT.plot;
  const TITLES = {softmax: "softmax", boundary: "boundary", first: "first order", second: "second order", residual: "residual"};
  const INKS = ["first", "second"];
  let got = null;

  const headOf = s => got?.slots[s]?.heads.length === 1 ? got.slots[s].heads[0] : -1;
  const row = s => got ? got.input.arrays.detail_heads.indexOf(headOf(s)) : -1;

  function organized(net, s) {
    return HT.matrix.card({
      id: `organized-${"ab"[s]}`, title: "Organized", term: net.explained("organized"), zooms: false,
      source: () => {
        const field = got?.slots[s]?.field;
        if (!field) return null;
        return {field, input: got.input, kind: got.kind, ...HT.matrix.organized(got.input)};
      },
    });
  }

  function coefficientsOf(s) {
    const i = row(s), {support, moduli, largest} = got.input.arrays, n = support.length;
    return {support: Array.from(support), values: Array.from({length: n}, (_, f) => largest[i] * 10 ** (6 * (moduli[i * n + f] / 254 - 1)))};
  }

  function coefficients(net, s) {
    const values = lazily("Coefficients as a table", () => {
      if (row(s) < 0) return el("p", {}, `Not stored for this ${net.unit.one}.`);
      const found = coefficientsOf(s);
      return table("Coarsest functions first", ["support", "|coefficient|"], found.support.map((size, f) => [size, found.values[f]]));
    });
    return card({id: `coefficients-${"ab"[s]}`, title: "Haar coefficients by support", level: "h4", term: net.explained("Haar coefficients"),
      sentence: `Of ${net.text.values}. Large values on the right: coarse folders describe most of the ${net.unit.one}.`, tables: [values],
      draw: width => {
        if (row(s) < 0) return null;
        const {support, values: found} = coefficientsOf(s), positive = found.map(v => Math.max(v, 1e-30));
        const [low, high] = [Math.min(...positive), Math.max(...positive)];
        const plot = frame({width, height: 240, x: {range: [Math.min(...support) / 1.3, Math.max(...support) * 1.3], log: true, label: "support (entries)"},
          y: {range: [low / 1.5, high * 1.5], log: true, label: "|coefficient|"}});
        plot.group.append(...support.map((size, f) => svg("circle", {cx: plot.sx(size), cy: plot.sy(positive[f]), r: 2.4, fill: theme(INKS[s]), "fill-opacity": 0.5})));
        return plot.element;
      }});
  }

  function energy(net, s) {
    const shares = () => {
      const n = got.input.arrays.octaves.length;
      return Array.from(got.input.arrays.energy.subarray(row(s) * n, (row(s) + 1) * n));
    };
    const values = lazily("Energy as a table", () => row(s) < 0 ? el("p", {}, `Not stored for this ${net.unit.one}.`)
      : table("Share of the sum of squares by support", ["support from", "share"], shares().map((share, i) => [got.input.arrays.octaves[i], share])));
    return card({id: `energy-${"ab"[s]}`, title: "Energy by support", level: "h4", term: net.explained("energy"), tables: [values],
      sentence: `Of ${net.text.values}. Sum of squares of all coefficients; coarse functions are on the right.`,
      draw: width => {
        if (row(s) < 0) return null;
        const found = shares(), most = Math.max(...found) || 1;
        const plot = frame({width, height: 240, x: {range: [-0.6, found.length - 0.4], label: "support, from 2ⁿ entries", ticks: found.map((_, i) => i).filter(i => i % 2 === 0)},
          y: {range: [0, most * 1.05], label: "share", format: percent}});
        plot.group.append(...found.map((share, i) => rect(plot.sx(i - 0.4), plot.sy(share), plot.sx(i + 0.4) - plot.sx(i - 0.4),
          plot.sy(0) - plot.sy(share), {fill: theme(INKS[s])})));
        return plot.element;
      }});
  }

  function terms(net, s) {
    let shown = null;
    const share = t => got.input.arrays.shares[row(s) * net.terms.length + t];
    const value = (t, i, j) => {
      const code = shown.arrays.terms[(row(s) * shown.nTerms + t) * shown.nRows * shown.nColumns + i * shown.nColumns + j];
      return shown.scale * Math.sign(code - 127) * (code / 127 - 1) ** 2;
    };
    const blocks = (starts, n) => { let b = 0; return Int32Array.from({length: n}, (_, p) => { while (b + 1 < starts.length && starts[b + 1] <= p) b++; return b; }); };
    const list = lazily("Shares as a table", () => row(s) < 0 ? el("p", {}, `Not stored for this ${net.unit.one}.`)
      : table("Norm of each term relative to softmax; the terms are not orthogonal", ["term", "share"], net.terms.map((name, t) => [TITLES[name], share(t)])));
    return card({id: `terms-${"ab"[s]}`, title: "Softmax and its paraproduct terms", level: "h4", term: net.explained("paraproduct"), tables: [list],
      sentence: "How much of softmax each scale explains. Blue −, red +; fourth-root scale. Percentages are norms relative to that of softmax." +
        (net.kind === "scores" ? "" : ` Softmax is taken of the logarithms of ${net.kind === "signed" ? "absolute values" : "what the run has"}.`),
      draw: width => {
        if (row(s) < 0) { shown = null; return null; }
        const {arrays, shapes, text: words} = got.input, [, nTerms, nRows, nColumns] = shapes.terms;
        shown = {arrays, nTerms, nRows, nColumns, scale: arrays.term_scale[row(s)]};
        const perRow = width < 500 ? 2 : nTerms, gap = 10, side = Math.min(200, Math.floor((width - gap * perRow) / perRow));
        const height = Math.ceil(nTerms / perRow) * (side + 24);
        const element = svg("svg", {width, height, viewBox: `0 0 ${width} ${height}`, xmlns: "http://www.w3.org/2000/svg"});
        const scale = HT.colours.scale({low: -shown.scale, high: shown.scale, power: 4, signed: true});
        const queryBlock = blocks(arrays.terms_rows, words.queries.length), keyBlock = blocks(arrays.terms_columns, words.keys.length);
        shown.at = (x, y) => {
          const t = Math.floor(y / (side + 24)) * perRow + Math.floor(x / (side + gap));
          const [px, py] = [x % (side + gap), y % (side + 24) - 18];
          if (x < 0 || y < 0 || t < 0 || t >= nTerms || px >= side || py < 0 || py >= side) return null;
          return {t, q: Math.floor(py / side * queryBlock.length), k: Math.floor(px / side * keyBlock.length)};
        };
        Object.assign(shown, {queryBlock, keyBlock});
        for (let t = 0; t < nTerms; t++) {
          const pixels = new Uint32Array(queryBlock.length * keyBlock.length);
          queryBlock.forEach((i, q) => keyBlock.forEach((j, k) => { pixels[q * keyBlock.length + k] = scale.table[scale.index(value(t, i, j))]; }));
          const x = (t % perRow) * (side + gap), y = Math.floor(t / perRow) * (side + 24), name = TITLES[net.terms[t]];
          element.append(text(x, y + 13, t ? `${name} ${percent(share(t))}` : name), HT.plot.image(pixels, queryBlock.length, keyBlock.length, x, y + 18, side, side));
        }
        return element;
      },
      over: (x, y) => {
        const own = shown?.at?.(x, y);
        if (!own) return null;
        const {arrays} = got.input;
        return [el("strong", {}, `${TITLES[net.terms[own.t]]}: ${number(value(own.t, shown.queryBlock[own.q], shown.keyBlock[own.k]))}`),
          HT.matrix.described(got.input, "query", arrays.query_order[own.q]), HT.matrix.described(got.input, "key", arrays.key_order[own.k])];
      }});
  }

  function structures(net) {
    const columns = net.inputs.map((_, i) => net.column(`structure_${i}`)?.values).filter(Boolean);
    const quantile = (values, q) => Float64Array.from(values).sort()[Math.round(q * (values.length - 1))];
    const heads = () => got ? got.slots.filter(slot => slot.heads.length === 1).map(slot => slot.heads[0]) : [];
    const values = lazily("Structure scores as a table", () => table("Structure score on each input",
      ["input", ...heads().map(head => net.names[head])], columns.map((column, i) => [token(net.inputs[i]), ...heads().map(head => column[head])])));
    let plot = null;
    return card({id: "structures", title: "Structure score on each input", level: "h4", term: net.explained("structure score"),
      sentence: `Grey boxes span the middle 80 % of all ${net.unit.many}; their line is the median.`, tables: [values],
      draw: width => {
        if (!columns.length) return null;
        const band = [0.1, 0.5, 0.9].map(q => columns.map(own => quantile(own, q)));
        const seen = [...band.flat(), ...heads().flatMap(head => columns.map(own => own[head]))], low = Math.min(...seen), extent = (Math.max(...seen) - low) || 1;
        plot = frame({width, height: 240, x: {range: [-0.5, columns.length - 0.5], label: "input", ticks: HT.plot.ticks(0, columns.length - 1, 10).filter(Number.isInteger)},
          y: {range: [low - 0.05 * extent, low + 1.1 * extent], label: "structure score"}});
        columns.forEach((_, i) => plot.group.append(rect(plot.sx(i - 0.25), plot.sy(band[2][i]), plot.sx(i + 0.25) - plot.sx(i - 0.25), plot.sy(band[0][i]) - plot.sy(band[2][i]), {fill: theme("faint")}),
          line(plot.sx(i - 0.25), plot.sy(band[1][i]), plot.sx(i + 0.25), plot.sy(band[1][i]), {stroke: theme("soft"), "stroke-width": 2})));
        heads().forEach((head, s) => {
          const points = columns.map((own, i) => [plot.sx(i), plot.sy(own[head])]), ink = theme(INKS[s]);
          plot.group.append(svg("path", {d: `M${points.map(p => p.join(" ")).join("L")}`, fill: "none", stroke: ink, "stroke-width": 2, "stroke-dasharray": s ? "6 3" : "none"}),
            ...points.map(([cx, cy]) => svg("circle", {cx, cy, r: 4, fill: ink})), text(points.at(-1)[0] - 4, points.at(-1)[1] - 8, net.names[head], {"text-anchor": "end", fill: ink}));
        });
        return plot.element;
      },
      over: x => {
        const i = plot ? Math.round(plot.backX(x)) : -1;
        return i < 0 || i >= columns.length ? null : [el("strong", {}, token(net.inputs[i])), ...heads().map(head => el("div", {}, `${net.names[head]}: ${number(columns[i][head])}`))];
      }});
  }

  /** Say which head has coefficients where this one has none. */
  function explain(net, s, note) {
    const lacks = headOf(s) >= 0 && row(s) < 0;
    note.hidden = !lacks;
    if (!lacks) return;
    const kept = Array.from(got.input.arrays.detail_heads), family = net.familyOf(headOf(s));
    const near = kept.filter(head => family && net.familyOf(head) === family);
    note.replaceChildren(`Haar coefficients and paraproduct terms of this ${net.unit.one} were left out to keep the page small. They are included for `,
      near.length ? `the typical ${net.unit.one} of its family, ` : `the typical ${net.unit.many} of the families: `,
      ...(near.length ? near : kept).slice(0, 12).flatMap((head, i) => [i ? ", " : "", headLink(net.names[head], [head])]), ".");
  }

  function start(net) {
    const levels = HT.matrix.levels();
    const slots = [0, 1].map(s => {
      const cards = [organized(net, s), coefficients(net, s), energy(net, s), terms(net, s)], heading = el("h3"), note = el("p", {class: "note", hidden: true});
      const element = el("div", {class: "slot", id: `slot-${"ab"[s]}`}, heading, cards[0].element, note, el("div", {class: "two"}, cards[1].element, cards[2].element), cards[3].element);
      return {cards, heading, note, element};
    });
    const over = structures(net);
    byId("scales-slot").append(el("div", {class: "controls"}, ...levels.controls),
      el("div", {class: "pair"}, ...slots.map(slot => slot.element)), over.element);
    HT.later(byId("scales-slot"), ["selected", "input", "before", "queryLevel", "keyLevel", "same", "mean"], async isOutdated => {
      const now = await HT.fields.chosen(net, HT.fields.kindOf(net));
      if (isOutdated()) return;
      got = now;
      levels.fill(got.input);
      byId("scales-slot").querySelector(".pair").classList.toggle("one", !got.slots[1]);  // before anything is drawn as wide as its place
      slots.forEach((slot, s) => {
        slot.element.hidden = !got.slots[s];
        if (!got.slots[s]) return;
        slot.heading.textContent = got.slots[s].name;
        explain(net, s, slot.note);
        slot.cards[0].element.hidden = !got.slots[s].field;
        for (const item of slot.cards.slice(1)) item.element.hidden = row(s) < 0;
        for (const item of slot.cards) if (!item.element.hidden) item.render();
      });
      over.render();
    });
  }

  return {start};
})();
