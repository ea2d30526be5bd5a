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
    const trees = {}, kinds = text.similarities;
    const named = name => trees[name] ||= treeOf(core, name);
    const net = {
      core, text, columns, trees, kind: text.kind, nHeads: text.n_heads, inputs: text.inputs, nShown: text.n_shown,
      terms: text.terms, names: byName.get("name").words, column: name => byName.get(name),
    };
    net.tree = () => {
      const {basis, input} = HT.state.get();
      return named(basis === "input" ? `input_${input}` : `all_${basis}`);
    };
    net.joint = named(`all_${kinds[0].kind}`);  // families are made of this one
    const single = {title: `questionnaire of ${text.values}, this input alone`, meaning: "Heads are close if their " +
      `${text.values} agree on the trees of queries and keys of this input.`};
    net.similarity = () => kinds.find(each => each.kind === HT.state.get().basis) || single;
    net.choices = [...kinds.map(each => [each.kind, each.title]), ["input", single.title]];
    /** Values of a diffusion coordinate by the chosen similarity; null for another column. */
    net.coordinate = name => {
      const match = /^coordinate_(\d)$/.exec(name), {basis, input} = HT.state.get();
      if (!match || basis === kinds[0].kind) return null;
      const key = `${basis === "input" ? `input_${input}` : `all_${basis}`}_coordinates`;
      const [, n] = core.shapes[key], values = core.arrays[key], k = Number(match[1]) - 1;
      return k < n ? Float64Array.from({length: net.nHeads}, (_, i) => values[i * n + k]) : null;
    };
    net.hasFamilies = Boolean(byName.get("family")?.values?.some(family => family >= 0));
    const rank = byName.get("structure_rank")?.values;
    net.first = rank ? Math.max(0, rank.indexOf(1)) : 0;
    const more = columns.filter(column => !["name", "layer", "head", "place_in_tree"].includes(column.name) &&
      !/^(coordinate_|structure_\d)/.test(column.name));
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
    options(basis, net.choices, HT.state.get().basis);
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
    const what = {"centred scores": "centred scores: before softmax, each row without its mean", "raw scores":
      "raw scores, before softmax, with the constants that softmax ignores", probabilities: "probabilities, after softmax",
      "value-weighted attention": "value-weighted attention: probability times the norm of the value after the output " +
      "projection"}[net.text.values];
    byId("summary").textContent = `${net.nHeads} heads in ${net.text.layers} layers on ${net.inputs.length} ` +
      `input${net.inputs.length > 1 ? "s" : ""} (${what}).`;
    const index = new Map(net.names.map((name, i) => [name, i]));
    const phrase = ({text, heads}) => !heads.length ? text : el("button", {type: "button", class: "link",
      title: heads.length > 1 ? "Select these heads" : "Select this head",
      onclick: () => HT.state.select(heads.map(name => index.get(name)).filter(i => i !== undefined))}, text);
    let inner = null;
    for (const {about, phrases} of net.text.answers) {
      const line = el("li", {"data-about": about}, ...phrases.map(phrase));
      if (about !== "family") byId("answers").append(line);
      else {
        if (!inner) byId("answers").lastElementChild.append(inner = el("ul"));
        inner.append(line);
      }
    }
    for (const note of net.text.notes) byId("notes").append(el("p", {class: "note"}, note));
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
      kinds: net.text.similarities.map(each => each.kind), nFolders: net.nHeads}, {
      basis: net.text.similarities[0].kind,
      x: pick("coordinate_1", "layer"), y: pick("coordinate_2", "coordinate_1", "head"), color: net.hasFamilies ? "family" : pick("structure", "layer"),
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
