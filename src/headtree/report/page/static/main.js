/* The entry point: unpack what the first view needs, draw it, then the rest as it scrolls into view. */
(() => {
  async function begin() {
    const net = HT.network = HT.networkOf(await HT.data.part("core"));
    const numeric = net.columns.filter(column => column.type !== "word").map(column => column.name);
    const pick = (...names) => names.find(name => numeric.includes(name)) || numeric[0];
    const hasRoles = net.column("role")?.words.some(Boolean);
    HT.state.start({nHeads: () => net.nHeads, nInputs: net.inputs.length, columns: net.columns.map(column => column.name),
      kinds: net.text.similarities.map(each => each.kind), nTokens: 1e6}, {
      basis: net.text.similarities[0].kind, x: pick("coordinate_1", "layer"), y: pick("coordinate_2", "coordinate_1", "head"),
      color: hasRoles ? "role" : net.hasFamilies ? "family" : pick("layer"), collapse: net.nHeads > 400 ? 8 : 0,
    });
    HT.toolbar.theme();
    HT.toolbar.header();
    HT.sections.answers(net);
    HT.toolbar.chips(net);
    HT.toolbar.colour(net);
    HT.views = {grid: HT.grid.start(net)};
    HT.sections.contents();
    await new Promise(resolve => requestAnimationFrame(() => setTimeout(resolve)));  // the first view is on the screen
    HT.head.start(net);
    const {grid} = HT.views;
    HT.groups.start(net);
    HT.views.grid = grid;
    HT.inputs.start(net);
    HT.scales.start(net);
    HT.table.start(net);
    HT.dendrogram.list(net);
    HT.sections.stability(net);
    HT.sections.glossary(net);
    HT.sections.settings(net);
    HT.sections.optional(net, (await HT.data.part("sections")).text.sections);
    HT.sections.contents();
    HT.sections.explain(net);
  }

  HT.sections.begun(begin());
})();
