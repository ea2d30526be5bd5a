/* The entry point: unpack what the first view needs, draw it, then the rest as it scrolls into view. */
(() => {
  const {el, byId, number, words, options, token} = HT.dom;

  /** A tree of heads as arrays, with what is derived from them. */
  function treeOf(core, name) {
    const take = key => core.arrays[`${name}_${key}`];
    const tree = {
      order: take("order"), start: take("start"), size: take("size"), parent: take("parent"),
      support: take("support"), codes: take("affinity"),
      words: core.text[name].words, affinity: core.text[name].affinity,
    };
    tree.place = new Int32Array(tree.order.length);
    tree.order.forEach((head, place) => { tree.place[head] = place; });
    tree.inner = new Int32Array(tree.order.length);  // smallest folder at each position
    tree.start.forEach((start, f) => tree.inner.fill(f, start, start + tree.size[f]));
    return tree;
  }

  /** The network: table, trees and words, as the views ask for them. */
  function network(core) {
    const {text} = core;
    const columns = text.columns.map((column, i) => ({...column, values: core.arrays[`column_${i}`]}));
    const byName = new Map(columns.map(column => [column.name, column]));
    const trees = {consensus: treeOf(core, "consensus")};
    const net = {
      core, text, columns, trees, kind: text.kind, nHeads: text.n_heads, inputs: text.inputs, nShown: text.n_shown,
      terms: text.terms, names: byName.get("name").words, column: name => byName.get(name),
    };
    net.tree = () => {
      const {basis, input} = HT.state.get();
      const name = basis === "consensus" ? "consensus" : `input_${input}`;
      return trees[name] ||= treeOf(core, name);
    };
    const rank = byName.get("entropy_rank")?.values;
    net.first = rank ? Math.max(0, rank.indexOf(1)) : 0;
    const more = columns.filter(column => !["name", "layer", "head", "place_in_tree"].includes(column.name) &&
      !/^(coordinate_|entropy_\d)/.test(column.name));
    const told = [...more.filter(column => column.type === "word"), ...more.filter(column => column.type !== "word")]
      .slice(0, 8);
    const value = (column, i) => column.type === "word" ? column.words[i] || "none"
      : column.name === "family" && column.values[i] < 0 ? "none" : number(column.values[i]);
    net.value = value;
    net.facts = i => [`Layer ${byName.get("layer").values[i]}, head ${byName.get("head").values[i]}`,
      ...told.map(column => `${words(column.name)} ${value(column, i)}`)].join("; ") + ".";
    net.about = i => [el("strong", {}, net.names[i]),
      el("div", {}, `layer ${byName.get("layer").values[i]}, head ${byName.get("head").values[i]}`),
      ...told.map(column => el("div", {}, `${words(column.name)} ${value(column, i)}`))];
    return net;
  }

  /**
   * Run `update` after a change of the state, once its section is near the screen and the selection is drawn; it may
   * end early when the function that it is given says that something newer waits. Until then the section is
   * `[data-due]`.
   */
  HT.later = (section, keys, update) => {
    let near = false, due = true, isRunning = false;
    const work = async () => {
      isRunning = true;
      try {
        while (near && due) {
          await new Promise(resolve => setTimeout(resolve, 30));
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

  function header(net) {
    const input = byId("input"), basis = byId("basis");
    const short = text => Array.from(text).slice(0, 40).join("");
    options(input, net.inputs.map((name, i) => [i, `${i}: ${short(name)}`]), 0);
    input.addEventListener("change", () => HT.state.set({input: Number(input.value), folded: []}));
    basis.addEventListener("change", () => HT.state.set({basis: basis.value, folded: []}));
    HT.state.subscribe(["input", "basis"], state => {
      input.value = String(state.input);
      basis.value = state.basis;
    });
    HT.state.subscribe(["selected"], ({selected}) => {
      const some = selected.slice(0, 6).map(head => net.names[head]).join(", ");
      byId("selection").textContent = selected.length
        ? `${selected.length} head${selected.length > 1 ? "s" : ""} selected: ${some}${selected.length > 6 ? ", …" : ""}`
        : "No head selected";
      for (const id of ["copy", "csv", "clear"]) byId(id).disabled = !selected.length;
    });
    byId("clear").addEventListener("click", () => HT.state.select([]));
    byId("copy").addEventListener("click", async () => {
      await HT.download.copy(HT.state.get().selected.map(head => net.names[head]).join(", "));
      byId("copy").textContent = "Copied";
      setTimeout(() => { byId("copy").textContent = "Copy list"; }, 1500);
    });
    byId("csv").addEventListener("click", () => HT.download.csv("heads.csv", net.columns.map(column => column.name),
      HT.state.get().selected.map(head => net.columns.map(column => (column.words || column.values)[head]))));
    theme();
  }

  function theme() {
    const root = document.documentElement, button = byId("theme");
    const wish = matchMedia("(prefers-color-scheme: dark)");
    const dark = () => root.dataset.theme ? root.dataset.theme === "dark" : wish.matches;
    const name = () => { button.textContent = dark() ? "Light" : "Dark"; };
    const redraw = () => { name(); HT.plots.redrawAll(); };
    button.addEventListener("click", () => { root.dataset.theme = dark() ? "light" : "dark"; redraw(); });
    wish.addEventListener("change", redraw);
    name();
  }

  function summary(net) {
    const what = {scores: "scores, before softmax", probs: "probabilities, after softmax",
      weighted: "value-weighted attention, probability times the norm of the value after the output projection"}[net.kind];
    byId("summary").textContent = `${net.nHeads} heads in ${net.text.layers} layers on ${net.inputs.length} ` +
      `input${net.inputs.length > 1 ? "s" : ""} (${what}), in ${net.text.families} main families.`;
    if (net.text.left_out.length) {
      byId("notes").append(el("details", {class: "note"},
        el("summary", {}, "What this page leaves out to stay small"),
        el("ul", {}, ...net.text.left_out.map(text => el("li", {}, text)))));
    }
  }

  async function begin() {
    const core = await HT.data.part("core");
    const net = network(core);
    const numeric = net.columns.filter(column => column.type !== "word").map(column => column.name);
    const pick = (...names) => names.find(name => numeric.includes(name)) || numeric[0];
    HT.state.start({nHeads: net.nHeads, nInputs: net.inputs.length, columns: net.columns.map(column => column.name),
      nFolders: net.trees.consensus.start.length}, {
      x: pick("coordinate_1", "layer"), y: pick("coordinate_2", "coordinate_1", "head"), color: pick("entropy", "layer"),
    });
    header(net);
    summary(net);
    const cards = [HT.overview.map(net), HT.overview.grid(net), HT.tree.picture(net), HT.overview.affinity(net)];
    byId("overview").querySelector(".grid").append(...cards.map(card => card.element));
    await cards[1].redraw();  // the first view: map and grid
    HT.compare.start(net);
    HT.table.start(net);
    HT.tree.list(net);
    HT.sections.stability(net);
    HT.sections.settings(net);
    HT.sections.optional(net, (await HT.data.part("sections")).text.sections);
    document.querySelectorAll("[data-scroll]").forEach(link => link.addEventListener("click", event => {
      event.preventDefault();
      byId(link.dataset.scroll).scrollIntoView();
    }));
    HT.network = net;
    document.documentElement.dataset.ready = "";
  }

  HT.track(begin()).catch(error => {
    byId("summary").textContent = `This page could not be displayed: ${error.message}. It needs a browser from 2023 or later.`;
    throw error;
  });
})();
