/* The entry point: unpack what the first view needs, draw it, then the rest as it scrolls into view. */
(() => {
  const {el, byId, options} = HT.dom;

  /**
   * Run `update` after a change of the state, once its section is near the screen; it may end early when the function
   * that it is given says that something newer waits. Until then the section is `[data-due]`.
   */
  HT.later = (section, keys, update) => {
    let near = false, due = true, isRunning = false;
    const work = async () => {
      isRunning = true;
      try {
        while (near && due) {
          await new Promise(resolve => setTimeout(resolve, 20));
          due = false;
          await update(() => due);
        }
      } finally {
        isRunning = false;
        section.toggleAttribute("data-due", due);
      }
    };
    const go = () => {
      if (due) section.toggleAttribute("data-due", true);
      if (near && due && !isRunning) HT.track(work());
    };
    new IntersectionObserver(entries => {
      near = entries.at(-1).isIntersecting;
      go();
    }, {rootMargin: "300px"}).observe(section);
    HT.state.subscribe(keys, () => { due = true; go(); });
  };

  /** Map, tree and affinities: how heads group. */
  function groups(net) {
    const basis = byId("basis"), meaning = byId("basis-meaning");
    options(basis, net.choices, HT.state.get().basis);
    basis.addEventListener("change", () => HT.state.set({basis: basis.value}));
    const [tree, map, affinity] = [HT.dendrogram.start(net), HT.map.start(net), HT.affinity.start(net)];
    byId("groups-slot").append(tree.element, el("div", {class: "stack"}, map.element, affinity.element));
    HT.state.subscribe(["basis"], state => {
      basis.value = state.basis;
      const {title, meaning: text, kind} = net.similarity(), main = net.text.similarities[0];
      const others = kind === main.kind || !net.hasFamilies ? "" : ` Families are those of “${main.title}”.`;
      meaning.textContent = text + others;
      for (const [card, name] of [[tree, "Tree"], [map, "Map"], [affinity, "Affinity"]]) card.heading.textContent = `${name} of heads: ${title}`;
    });
    HT.later(byId("groups-slot"), ["basis", "input", "color", "x", "y", "collapse"], async isOutdated => {
      for (const card of [tree, map, affinity]) {
        card.render();
        await new Promise(resolve => setTimeout(resolve));
        if (isOutdated()) return;
      }
    });
    HT.views = {tree, map, affinity};
  }

  /** Draw again when the width changes, once it rests. */
  function resizing() {
    let waiting = 0, width = innerWidth;
    addEventListener("resize", () => {
      if (innerWidth === width) return;
      width = innerWidth;
      clearTimeout(waiting);
      waiting = setTimeout(HT.plot.redrawAll, 150);
    });
  }

  async function begin() {
    const net = HT.network = HT.networkOf(await HT.data.part("core"));
    const numeric = net.columns.filter(column => column.type !== "word").map(column => column.name);
    const pick = (...names) => names.find(name => numeric.includes(name)) || numeric[0];
    const hasRoles = net.column("role")?.words.some(Boolean);
    HT.state.start({nHeads: net.nHeads, nInputs: net.inputs.length, columns: net.columns.map(column => column.name),
      kinds: net.text.similarities.map(each => each.kind), nTokens: 1e6}, {
      basis: net.text.similarities[0].kind, x: pick("coordinate_1", "layer"), y: pick("coordinate_2", "coordinate_1", "head"),
      color: hasRoles ? "role" : net.hasFamilies ? "family" : pick("layer"), collapse: net.nHeads > 400 ? 8 : 0,
    });
    HT.slices.start(net);
    HT.toolbar.theme();
    HT.toolbar.header(net);
    HT.sections.answers(net);
    HT.toolbar.chips(net);
    HT.toolbar.colour(net);
    HT.views = {grid: HT.grid.start(net)};
    HT.sections.contents();
    await new Promise(resolve => requestAnimationFrame(() => setTimeout(resolve)));  // the first view is on the screen
    HT.head.start(net);
    const {grid} = HT.views;
    groups(net);
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
    for (const mark of document.querySelectorAll("[data-term]")) mark.replaceWith(HT.dom.why(net.explained(mark.dataset.term)));
    byId("skip").addEventListener("click", event => { event.preventDefault(); byId("table").scrollIntoView(); byId("table").focus(); });
    resizing();
    document.documentElement.dataset.ready = "";
  }

  HT.track(begin()).catch(error => {
    byId("summary").textContent = `This page could not be displayed: ${error.message}. It needs a browser from 2023 or later.`;
    throw error;
  });
})();
