/* One head, or two side by side: matrices, coefficients, paraproduct terms, structure scores. */
HT.compare = (() => {
  const {el, byId, number, percent, options, labelled, table, lazily, token} = HT.dom;
  const {card, figure, colour, isNarrow} = HT.plots;
  const SLOTS = ["a", "b"];
  let palettes;

  /** Heads that the slots show; without a selection the one of highest structure score. */
  function heads(net) {
    const {selected} = HT.state.get();
    return selected.length ? selected.slice(0, 2) : [net.first];
  }

  function ready() {
    const {rgba, viridis} = HT.overview;
    const grey = rgba(["#8a8a8a"])[0];
    palettes = {viridis: resampled(rgba(viridis)), diverging: resampled(rgba(HT.matrix.diverging)), grey};
  }

  const resampled = palette => Uint32Array.from({length: 255}, (_, i) => palette[Math.round(i / 254 * 255)]);

  // -- one matrix ------------------------------------------------------------------------------------------

  /** A card for the matrix of a slot, as it is or organized. */
  function matrixCard(net, slot, kind, title, sentence) {
    let shown = null;
    const draw = backend => {
      shown = prepared(net, slot, kind);
      if (!shown) return null;
      const {nQueries, nKeys, part} = shown;
      const fig = figure({
        height: isNarrow() ? 320 : 380, tools: "pan,wheel_zoom,box_zoom,reset", x_axis_label: "key",
        y_axis_label: "query", x_range: [0, nKeys], y_range: [nQueries, 0],
      }, backend);
      const picture = HT.matrix.painted(shown.codes, shown.nColumns, shown.rows, shown.columns, [nQueries, nKeys],
        shown.palette, palettes.grey);
      fig.image_rgba({image: [picture], x: 0, y: 0, dw: nKeys, dh: nQueries});
      if (kind === "organized") lines(fig, part, nQueries, nKeys);
      fig.xgrid.grid_line_color = null;
      fig.ygrid.grid_line_color = null;
      HT.plots.bar(fig, HT.overview.viridis, shown.low, shown.high);
      return fig;
    };
    const over = (x, y) => {
      if (!shown || x < 0 || y < 0 || x >= shown.nKeys || y >= shown.nQueries) return null;
      const order = kind === "organized" ? shown.part.arrays : {};
      const q = HT.matrix.described(shown.part, "query", order.query_order, shown.rows, Math.floor(y));
      const k = HT.matrix.described(shown.part, "key", order.key_order, shown.columns, Math.floor(x));
      const value = shown.value(q.block, k.block);
      const what = Number.isNaN(value) ? "missing: the model's mask forbids it"
        : q.n * k.n > 1 ? `mean of ${q.n} × ${k.n} entries: ${number(value)}` : number(value);
      return [el("strong", {}, what), q.line, k.line];
    };
    const values = lazily("Values as a table", () => {
      if (!shown) return el("p", {}, "Nothing is shown.");
      return HT.matrix.asTable("Rows are queries, columns are keys; +n means n more in the same block", shown.part,
        kind === "organized", shown.rows, shown.columns, shown.value);
    });
    return card({id: `${kind === "as_is" ? "as-is" : "organized"}-${slot.name}`, title, sentence, draw, over,
      tables: [values], level: "h4"});
  }

  /** Codes of a slot's matrix with the scale on which they are coloured. */
  function prepared(net, slot, kind) {
    const {head, part} = slot;
    if (head === undefined || !part) return null;
    const {codes, nColumns} = HT.data.matrix(part, kind, head);
    const decode = HT.data.decoder(part, head);
    let low = part.arrays.low[head], high = part.arrays.high[head];
    let palette = palettes.viridis;
    if (HT.state.get().same && slot.other !== undefined) {
      low = Math.min(low, part.arrays.low[slot.other]);
      high = Math.max(high, part.arrays.high[slot.other]);
      const extent = high > low ? high - low : 1;
      palette = Uint32Array.from({length: 255}, (_, code) =>
        palettes.viridis[Math.round(254 * Math.pow((decode(code) - low) / extent, 1 / part.text.power))]);
    }
    return {
      part, codes, nColumns, palette, low, high, nQueries: part.text.queries.length, nKeys: part.text.keys.length,
      rows: part.arrays[`${kind}_rows`], columns: part.arrays[`${kind}_columns`],
      value: (i, j) => decode(codes[i * nColumns + j]),
    };
  }

  /** Boundaries of the folders of the chosen levels. */
  function lines(fig, part, nQueries, nKeys) {
    const {queryLevel, keyLevel} = HT.state.get();
    const rows = HT.matrix.boundaries(part.arrays.query_split, queryLevel);
    const columns = HT.matrix.boundaries(part.arrays.key_split, keyLevel);
    fig.segment({
      x0: [...rows.map(() => 0), ...columns], x1: [...rows.map(() => nKeys), ...columns],
      y0: [...rows, ...columns.map(() => 0)], y1: [...rows, ...columns.map(() => nQueries)],
      line_color: "#ffffff", line_alpha: 0.75, line_width: 1,
    });
  }

  // -- coefficients and terms ------------------------------------------------------------------------------

  const row = slot => slot.part ? slot.part.arrays.detail_heads.indexOf(slot.head) : -1;

  function coefficients(slot) {
    const i = row(slot), {support, moduli, largest} = slot.part.arrays, n = support.length;
    const values = Array.from({length: n}, (_, f) => largest[i] * 10 ** (6 * (moduli[i * n + f] / 254 - 1)));
    return {support: Array.from(support), values};
  }

  function coefficientCard(net, slot) {
    const draw = backend => {
      if (row(slot) < 0) return null;
      const {support, values} = coefficients(slot);
      const positive = values.map(value => Math.max(value, 1e-30));
      const fig = figure({height: 280, x_axis_type: "log", y_axis_type: "log", tools: "pan,wheel_zoom,box_zoom,reset",
        x_axis_label: "support (entries)", y_axis_label: "|coefficient|"}, backend);
      const ticks = HT.plots.logTicks(Math.min(...support), Math.max(...support));
      fig.xaxis.ticker = new Bokeh.FixedTicker({ticks});
      fig.xaxis.major_label_overrides = new Map(ticks.map(n => [n, n.toLocaleString("en")]));
      fig.scatter(support, positive, {size: 5, fill_color: colour("accent"), line_color: null, fill_alpha: 0.5});
      return fig;
    };
    const values = lazily("Coefficients as a table", () => {
      if (row(slot) < 0) return el("p", {}, "Not stored for this head.");
      const found = coefficients(slot);
      return table("Coarsest functions first", ["support", "|coefficient|"],
        found.support.map((s, f) => [s, found.values[f]]));
    });
    return card({id: `coefficients-${slot.name}`, title: "Haar coefficients by support", draw, level: "h4",
      sentence: `Of ${net.text.values}. ` + "Each dot is one of the coarsest functions on the trees. Large values at large support mean that " +
        "coarse folders describe most of the head.", tables: [values]});
  }

  function energyCard(net, slot) {
    const shares = () => {
      const n = slot.part.arrays.octaves.length;
      return Array.from(slot.part.arrays.energy.subarray(row(slot) * n, (row(slot) + 1) * n));
    };
    const draw = backend => {
      if (row(slot) < 0) return null;
      const energy = shares();
      const fig = figure({height: 280, tools: "", x_axis_label: "support, from 2ⁿ entries",
        y_axis_label: "share of energy", y_range: [0, 1.05 * Math.max(...energy)]}, backend);
      fig.vbar({x: energy.map((_, i) => i), top: energy, width: 0.85, fill_color: colour("accent"), line_color: null});
      fig.xaxis.ticker = new Bokeh.FixedTicker({ticks: energy.map((_, i) => i).filter(i => i % 2 === 0)});
      fig.xgrid.grid_line_color = null;
      return fig;
    };
    const values = lazily("Energies as a table", () => {
      if (row(slot) < 0) return el("p", {}, "Not stored for this head.");
      const start = slot.part.arrays.octaves;
      return table("Share of the sum of squares", ["support from", "share"],
        shares().map((share, i) => [start[i], share]));
    });
    return card({id: `energy-${slot.name}`, title: "Energy by support", draw, level: "h4",
      sentence: `Of ${net.text.values}. ` + "Sum of squares of all coefficients by size of support; coarse functions are on the right.",
      tables: [values]});
  }

  function termCard(net, slot) {
    const titles = {softmax: "softmax", boundary: "boundary", first: "first order", second: "second order",
      residual: "residual"};
    let shown = null;
    const share = t => slot.part.arrays.shares[row(slot) * net.terms.length + t];
    const draw = backend => {
      shown = null;
      if (row(slot) < 0) return null;
      const {arrays, shapes, text} = slot.part;
      const [, nTerms, nRows, nColumns] = shapes.terms;
      const lengths = [text.queries.length, text.keys.length];
      const size = nRows * nColumns, scale = arrays.term_scale[row(slot)];
      const narrow = isNarrow(), perRow = narrow ? 2 : nTerms;
      const at = t => [(t % perRow) * 1.08, Math.floor(t / perRow) * 1.25];
      const nLines = Math.ceil(nTerms / perRow);
      const fig = figure({height: narrow ? 560 : 210, x_range: [-0.02, perRow * 1.08 - 0.06],
        y_range: [nLines * 1.25 - 0.05, -0.2], tools: ""}, backend);
      for (let t = 0; t < nTerms; t++) {
        const offset = (row(slot) * nTerms + t) * size;
        const picture = HT.matrix.painted(arrays.terms.subarray(offset, offset + size), nColumns, arrays.terms_rows,
          arrays.terms_columns, lengths, palettes.diverging, palettes.grey);
        const [x, y] = at(t);
        fig.image_rgba({image: [picture], x, y, dw: 1, dh: 1});
        const title = titles[net.terms[t]];
        fig.text({x: [x + 0.5], y: [y - 0.03], text: [t ? `${title} ${percent(share(t))}` : title],
          text_align: "center", text_baseline: "bottom", text_font: HT.plots.FONT, text_font_size: "12px",
          text_color: colour("text")});
      }
      fig.outline_line_color = null;
      fig.xaxis.visible = fig.yaxis.visible = false;
      fig.xgrid.grid_line_color = fig.ygrid.grid_line_color = null;
      shown = {arrays, nTerms, nRows, nColumns, size, scale, at, lengths};
      return fig;
    };
    const value = (t, i, j) => {
      const code = shown.arrays.terms[(row(slot) * shown.nTerms + t) * shown.size + i * shown.nColumns + j];
      return shown.scale * Math.sign(code - 127) * (code / 127 - 1) ** 2;
    };
    const over = (x, y) => {
      if (!shown) return null;
      for (let t = 0; t < shown.nTerms; t++) {
        const [x0, y0] = shown.at(t);
        if (x < x0 || y < y0 || x >= x0 + 1 || y >= y0 + 1) continue;
        const {query_order, key_order, terms_rows, terms_columns} = shown.arrays;
        const [i, j] = [(y - y0) * shown.lengths[0], (x - x0) * shown.lengths[1]].map(Math.floor);
        const q = HT.matrix.described(slot.part, "query", query_order, terms_rows, i);
        const k = HT.matrix.described(slot.part, "key", key_order, terms_columns, j);
        return [el("strong", {}, `${titles[net.terms[t]]}: ${number(value(t, q.block, k.block))}`), q.line, k.line];
      }
      return null;
    };
    const values = lazily("Shares as a table", () => row(slot) < 0 ? el("p", {}, "Not stored for this head.")
      : table("Norm of each term relative to softmax; the terms are not orthogonal", ["term", "share"],
        net.terms.map((name, t) => [titles[name], share(t)])));
    const cells = lazily("Values as tables", () => !shown ? el("p", {}, "Not stored for this head.")
      : el("div", {}, ...net.terms.map((name, t) => HT.matrix.asTable(`${titles[name]}: rows are folders of queries, ` +
        "columns folders of keys; +n means n more in the same folder", slot.part, true, shown.arrays.terms_rows,
      shown.arrays.terms_columns, (i, j) => value(t, i, j)))));
    return card({id: `terms-${slot.name}`, title: "Softmax and its paraproduct terms", draw, over, level: "h4",
      sentence: "softmax = boundary + first + second order + residual, on the trees, averaged over folders; blue is " +
        "negative, red positive, on one scale (fourth root, to show small values). Percentages are norms " +
        "relative to that of softmax." + (net.kind === "scores" ? "" : ` This run has ${net.kind === "probs" ? "probabilities" :
        "weights"}: what softmax is taken of is their logarithm, a zero counting as the head's smallest value above it.`), tables: [values, cells]});
  }

  // -- structure score over inputs ---------------------------------------------------------------------------------

  function structureCard(net, slots) {
    const columns = net.inputs.map((_, i) => net.column(`structure_${i}`)?.values).filter(Boolean);
    const quantile = (values, q) => Float64Array.from(values).sort()[Math.round(q * (values.length - 1))];
    const draw = backend => {
      if (!columns.length) return null;
      const xs = columns.map((_, i) => i);
      const band = [0.1, 0.9].map(q => columns.map(values => quantile(values, q)));
      const shown = [...band.flat(), ...slots.filter(slot => slot.head !== undefined)
        .flatMap(slot => columns.map(values => values[slot.head]))];
      const low = Math.min(...shown), extent = Math.max(...shown) - low || 1;
      const fig = figure({height: 260, tools: "", x_axis_label: "input", y_axis_label: "structure score",
        x_range: [-0.5, columns.length - 0.5], y_range: [low - 0.05 * extent, low + 1.25 * extent]}, backend);
      fig.vbar({x: xs, bottom: band[0], top: band[1], width: 0.5, fill_color: colour("faint"), line_color: null});
      fig.rect(xs, columns.map(values => quantile(values, 0.5)), 0.5, {value: 2, units: "screen"},
        {fill_color: colour("soft"), line_color: null});
      slots.forEach((slot, s) => {
        if (slot.head === undefined) return;
        const ys = columns.map(values => values[slot.head]);
        const ink = s ? colour("second") : colour("accent");
        fig.line(xs, ys, {line_color: ink, line_width: 2, line_dash: s ? "dashed" : "solid"});
        fig.scatter(xs, ys, {size: 9, marker: s ? "square" : "circle", fill_color: ink, line_color: null,
          legend_label: net.names[slot.head]});
      });
      fig.xaxis.ticker = new Bokeh.FixedTicker({ticks: xs});
      fig.legend.label_text_color = colour("text");
      fig.legend.background_fill_color = colour("panel");
      fig.legend.label_text_font = HT.plots.FONT;
      fig.legend.orientation = "horizontal";
      fig.legend.border_line_color = null;
      fig.xgrid.grid_line_color = null;
      return fig;
    };
    const over = x => {
      const i = Math.round(x);
      if (i < 0 || i >= columns.length) return null;
      return [el("strong", {}, token(net.inputs[i])), ...slots.filter(slot => slot.head !== undefined)
        .map(slot => el("div", {}, `${net.names[slot.head]}: ${number(columns[i][slot.head])}`))];
    };
    const values = lazily("Structure scores as a table", () => table("Structure score on each input",
      ["input", ...slots.filter(slot => slot.head !== undefined).map(slot => net.names[slot.head])],
      columns.map((column, i) => [token(net.inputs[i]),
        ...slots.filter(slot => slot.head !== undefined).map(slot => column[slot.head])])));
    const self = card({id: "structures", title: "Structure score over all inputs", draw, over, level: "h4",
      sentence: "Grey boxes span the middle 80 % of all heads; the line is the median.", tables: [values]});
    return self;
  }

  // -- all of it -------------------------------------------------------------------------------------------

  function controls(net) {
    const pickers = SLOTS.map((name, s) => {
      const select = el("select", {id: `head-${name}`});
      const pairs = net.names.map((text, i) => [i, text]);
      options(select, s ? [["", "none"], ...pairs] : pairs, "");
      select.addEventListener("change", () => {
        const now = heads(net).slice(0, 2);
        const rest = HT.state.get().selected.slice(2);
        if (select.value === "") now.length = 1; else now[s] = Number(select.value);
        HT.state.set({selected: [...new Set([...now, ...rest])]});
      });
      return select;
    });
    const levels = ["query", "key"].map(kind => {
      const select = el("select", {id: `level-${kind}`});
      select.addEventListener("change", () => HT.state.set({[`${kind}Level`]: Number(select.value)}));
      return select;
    });
    const same = el("input", {type: "checkbox", id: "same-scale"});
    same.addEventListener("change", () => HT.state.set({same: same.checked}));
    byId("compare").querySelector(".controls").append(labelled("First head", pickers[0]),
      labelled("second head", pickers[1]), labelled("query folders of", levels[0]),
      labelled("key folders of", levels[1]), el("label", {}, same, " same colours for both"));
    return {pickers, levels, same};
  }

  function slotOf(net, name) {
    const slot = {name, head: undefined, part: null, other: undefined};
    slot.heading = el("h3");
    slot.about = el("p", {class: "facts"});
    slot.note = el("p", {class: "note", hidden: true});
    const said = net.text.values[0].toUpperCase() + net.text.values.slice(1);
    slot.cards = [
      matrixCard(net, slot, "as_is", "Original order",
        `${said}: queries down, keys across, in their original order; each cell averages a box of entries.`),
      matrixCard(net, slot, "organized", "Organized", "The same matrix in the order of its trees; each cell averages " +
        "a folder of queries × a folder of keys. White lines separate the folders of the chosen level."),
      coefficientCard(net, slot), energyCard(net, slot), termCard(net, slot),
    ];
    slot.element = el("div", {class: "slot", id: `slot-${name}`}, slot.heading, slot.about,
      el("div", {class: "matrices"}, ...slot.cards.slice(0, 2).map(c => c.element)), slot.note,
      el("div", {class: "matrices"}, ...slot.cards.slice(2, 4).map(c => c.element)), slot.cards[4].element);
    return slot;
  }

  /** Say which head has coefficients where this one has none. */
  function explain(net, slot) {
    const lacks = slot.part && row(slot) < 0;
    slot.note.hidden = !lacks && Boolean(slot.part);
    for (const item of slot.cards.slice(2)) item.element.hidden = lacks || !slot.part;
    for (const item of slot.cards.slice(0, 2)) item.element.hidden = !slot.part;
    if (!slot.part) {
      slot.note.replaceChildren("The matrices of this input were left out of this page; its trees and scores are included.");
    }
    if (!lacks) return;
    const kept = Array.from(slot.part.arrays.detail_heads);
    const family = net.column("family")?.values;
    const near = kept.filter(head => family && family[head] >= 0 && family[head] === family[slot.head]);
    const link = head => el("button", {type: "button", class: "link", onclick: () => HT.state.select([head])},
      net.names[head]);
    slot.note.replaceChildren("Haar coefficients and paraproduct terms of this head were left out to keep the page ",
      near.length ? "small. They are included for the head that represents its family, "
        : "small. They are included for the heads that represent the main families: ",
      ...(near.length ? near : kept).slice(0, 12).flatMap((head, i) => [i ? ", " : "", link(head)]), ".");
  }

  function start(net) {
    ready();
    const {pickers, levels, same} = controls(net);
    const slots = SLOTS.map(name => slotOf(net, name));
    const structures = structureCard(net, slots);
    const pair = byId("compare").querySelector(".pair");
    pair.append(...slots.map(slot => slot.element));
    pair.after(structures.element);

    async function update(isOutdated) {
      const state = HT.state.get();
      const part = state.input < net.nShown ? await HT.data.part(`input_${state.input}`) : null;
      if (isOutdated()) return;
      const chosen = heads(net);
      pair.classList.toggle("one", chosen.length < 2);
      levels.forEach((select, axis) => {
        const kind = ["query", "key"][axis];
        const counts = part ? Array.from(part.arrays[`${kind}_levels`]) : [];
        const level = Math.min(state[`${kind}Level`], counts.length - 1);
        options(select, counts.map((n, l) => [l, `level ${l}: ${n}`]), level);
      });
      same.checked = state.same;
      for (const [s, slot] of slots.entries()) {
        Object.assign(slot, {head: chosen[s], other: chosen[1 - s], part: chosen[s] === undefined ? null : part});
        slot.element.hidden = chosen[s] === undefined;
        pickers[s].value = chosen[s] === undefined ? "" : String(chosen[s]);
        if (chosen[s] === undefined) continue;
        slot.heading.textContent = net.names[chosen[s]];
        const reason = state.selected.length ? "" : "No head is selected; this one has the highest structure score. ";
        slot.about.textContent = reason + net.facts(chosen[s]);
        explain(net, slot);
        for (const item of slot.cards) {
          await item.redraw();
          if (isOutdated()) return;
        }
      }
      await structures.redraw();
    }
    HT.later(byId("compare"), ["selected", "input", "queryLevel", "keyLevel", "same"], update);
  }

  return {start};
})();
