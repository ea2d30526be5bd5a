/* Stability across inputs, the sections of a run, settings. */
HT.sections = (() => {
  const {el, byId, number, percent, table, token, lazily} = HT.dom;

  function stability(net) {
    const found = net.text.stability;
    if (!found) return;
    const section = byId("stability");
    section.hidden = false;
    const [low, high] = found.interval;
    const support = Array.from(net.joint.support).filter(v => !Number.isNaN(v));
    const firm = support.filter(v => v >= 0.5).length, some = support.filter(v => v > 0).length;
    section.append(
      el("p", {}, `Two inputs rank the heads by structure score with a mean rank correlation of ${number(found.mean)}` +
        `${low === null ? "" : ` (${percent(found.confidence)} interval ${number(low)} to ${number(high)})`}. ` +
        (some ? `${some} of ${support.length} folders of the tree of heads (${net.text.similarities[0].title}) have ` +
          `support, ${firm} of at least 50 %: trees of halves of the inputs, in ${found.n_bootstrap} random divisions, ` +
          "put that much of them together, beyond chance."
          : `No folder of the tree of heads (${net.text.similarities[0].title}) has support: trees of halves of the ` +
          `inputs, in ${found.n_bootstrap} random divisions, show other folders.`)));
    const card = HT.plots.card({
      id: "agreement", title: "Agreement of inputs",
      sentence: "Rank correlation of structure scores between every two inputs: 1 means the same ranking.",
      draw: backend => {
        const n = found.correlations.length;
        const cells = found.correlations.flatMap((row, i) => row.map((value, j) => ({x: j, y: i, value: value ?? 0})));
        const least = Math.min(0, ...cells.map(c => c.value));
        const fig = HT.plots.figure({height: 320, x_axis_label: "input", y_axis_label: "input",
          x_range: [-0.5, n - 0.5], y_range: [n - 0.5, -0.5]}, backend);
        const shade = v => HT.overview.viridis[Math.round(255 * (v - least) / (1 - least))];
        fig.rect(cells.map(c => c.x), cells.map(c => c.y), 0.96, 0.96,
          {fill_color: cells.map(c => shade(c.value)), line_color: null});
        if (n <= 12) {
          fig.text(cells.map(c => c.x), cells.map(c => c.y), cells.map(c => c.value.toFixed(2)), {text_align: "center",
            text_baseline: "middle", text_font: HT.plots.FONT, text_font_size: "12px",
            text_color: cells.map(c => (c.value - least) / (1 - least) > 0.6 ? "#111111" : "#ffffff")});
        }
        const ticks = Array.from({length: n}, (_, i) => i);
        for (const axis of [fig.xaxis, fig.yaxis]) axis.ticker = new Bokeh.FixedTicker({ticks});
        fig.xgrid.grid_line_color = fig.ygrid.grid_line_color = null;
        return fig;
      },
      tables: [lazily("Correlations as a table", () => table("Rank correlation of structure scores between inputs",
        ["input", ...found.correlations.keys()], found.correlations.map((row, i) => [i, ...row])))],
    });
    const side = el("div", {class: "card"},
      table(`Heads most often among the ${found.n_selected} of highest and of lowest structure score`,
        ["", "highest", "inputs", "lowest", "inputs"], found.recurring));
    section.append(el("div", {class: "grid"}, card.element, side),
      table(`Each input's tree of heads (questionnaire of ${net.text.values})`, ["input", "distance to the tree of all inputs", "questionnaire"],
        net.inputs.map((name, i) => [token(name), found.tree_distances[i], found.status[i]])));
    card.redraw();
  }

  function optional(net, described) {
    for (const part of described) {
      const title = `section-${part.id}`;
      byId("sections").append(el("section", {id: `part-of-run-${part.id}`, "aria-labelledby": title},
        el("h2", {id: title}, part.title), ...part.text.map(text => el("p", {}, text)),
        ...part.figures.map(({source, caption}) => el("figure", {class: "card"},
          el("img", {src: source, alt: caption, loading: "lazy"}), el("figcaption", {}, caption),
          el("button", {type: "button", class: "download", onclick: () => HT.download.picture(source)}, "Download"))),
        ...part.tables.map(({caption, columns, rows}) => table(caption, columns, rows))));
    }
  }

  function settings(net) {
    const power = net.kind === "scores" ? "linearly" : "with the square root of the value";
    byId("settings").append(
      el("p", {}, `Matrices are averaged to at most ${net.text.tile_size} × ${net.text.tile_size} cells and stored in 8 ` +
        `bits: 255 steps between the smallest and the largest value of each head, spaced ${power}. ` +
        "The table of heads has full precision."),
      table("Settings, versions and inputs of the run", ["name", "value"],
        net.text.settings.map(([name, value]) => [name, el("bdi", {}, value)])));
  }

  return {stability, optional, settings};
})();
