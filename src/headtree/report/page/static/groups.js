/* Map, tree and affinities, which show how heads group, once they are near the screen. */
HT.observers = [];
HT.groups = (() => {
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
    const observer = new IntersectionObserver(entries => {
      near = entries.at(-1).isIntersecting;
      go();
    }, {rootMargin: "300px"});
    observer.observe(section);
    HT.observers.push(observer);
    HT.state.subscribe(keys, () => { due = true; go(); });
  };

  /** Map, tree and affinities: how heads group. */
  function start(net) {
    const basis = byId("basis"), meaning = byId("basis-meaning");
    if (!net.isArray) {
      options(basis, net.choices, HT.state.get().basis);
      basis.addEventListener("change", () => HT.state.set({basis: basis.value}));
    }
    const [tree, map, affinity] = [HT.dendrogram.start(net), HT.map.start(net), HT.affinity.start(net)];
    byId("groups-slot").append(tree.element, el("div", {class: "stack"}, map.element, affinity.element));
    HT.state.subscribe(["basis"], state => {
      if (!net.isArray) basis.value = state.basis;
      const {title, meaning: text, kind} = net.similarity(), main = net.text.similarities[0];
      const others = kind === main.kind || !net.hasFamilies ? "" : ` Families are those of “${main.title}”.`;
      meaning.textContent = text + others;
      for (const [card, name] of [[tree, "Tree"], [map, "Map"], [affinity, "Affinity"]]) card.heading.textContent = `${name} of ${net.unit.many}: ${title}`;
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

  return {start, resizing};
})();
