/* The entry point of an array's page: one axis at a time, whose slices are shown as the heads of a network are. */
(() => {
  const {el, byId, button, table, number} = HT.dom;
  const ORDERS = {organized: "the trees that were found", given: "halves of the axes as given", random: "halves of the axes in random order",
    shuffled: "the trees that were found, leaves shuffled"};
  let core = null, kept = [], turn = 0;

  function findings({text}) {
    const shape = text.counts.map((n, k) => `${n} ${text.inputs[k]}`).join(" × ");
    byId("summary").textContent = `${shape}${text.missing ? `, ${text.missing} entries missing` : ""}; ${text.status}.`;
    const link = axis => part => button(part.text, () => HT.state.set({input: axis, selected: part.heads.map(Number), filter: "", mean: false}), {class: "link", title: "Select these slices"});
    for (const {about, phrases} of text.answers) byId("answers").append(el("li", {"data-about": about}, ...HT.sections.flowing(phrases, link(text.inputs.indexOf(about)))));
    byId("compression-slot").append(table(`Haar coefficients that hold 90 % and 99 % of the energy, of ${number(text.n_coefficients)}`,
      ["on", "90 %", "99 %"], text.compression.map(([order, ...counts]) => [ORDERS[order] || order, ...counts])));
  }

  /** Show an axis: everything but the header and the findings is made anew. */
  async function show(axis) {
    HT.state.forget(kept);  // what is shown of the last axis knows nothing of this one's slices
    const own = ++turn, part = await HT.data.part(`axis_${axis}`);
    if (own !== turn) return;
    for (const observer of HT.observers.splice(0)) observer.disconnect();
    HT.plot.cards.length = 0;
    HT.matrix.followers.clear();
    for (const id of ["grid-slot", "head-slot", "groups-slot", "table-slot"]) byId(id).replaceChildren();
    const net = HT.network = HT.networkOf({text: {...core.text, ...part.text}, arrays: part.arrays, shapes: part.shapes});
    HT.state.tell();
    const {whole, axis_name: name} = net.text;
    byId("heads-title").textContent = `Slices of ${name}`;
    byId("groups-title").textContent = core.text.like_noise ? `Tree, map and affinities of ${name}` : `How slices of ${name} group`;
    byId("table-title").textContent = `Table of ${name}`;
    document.querySelector(".hero").classList.toggle("alone", Boolean(whole));
    if (!core.text.like_noise) HT.toolbar.chips(net);
    HT.toolbar.colour(net);
    HT.views = {};
    const grid = whole ? null : HT.grid.start(net);
    HT.head.start(net);
    HT.groups.start(net);
    HT.views.grid = grid;
    HT.table.start(net);
    HT.sections.contents();
  }

  async function begin() {
    core = await HT.data.part("core");
    const {text} = core, columns = text.all_columns, pick = (...names) => names.find(name => columns.includes(name)) || columns[1];
    HT.network = {isArray: true, unit: text.unit, inputs: text.inputs, names: [], columns: [], nHeads: 0, text};
    HT.state.start({nHeads: axis => text.counts[axis], nInputs: text.inputs.length, columns, kinds: ["axis"], nTokens: 1e6},
      {basis: "axis", view: "given", x: pick("coordinate_1", "place_in_tree"), y: pick("coordinate_2", "place_in_tree"), color: pick(...(text.like_noise ? [] : ["folder_1"]), "place_in_tree")});
    if (text.like_noise) {
      byId("groups-note").textContent = "Noise has trees like these too: their groups mean nothing.";
      byId("groups").dataset.contents = "Tree, map and affinities";
    }
    HT.toolbar.theme();
    HT.toolbar.header();
    findings(core);
    HT.sections.notes(core);
    HT.sections.settings({text, unit: text.unit, isArray: true});
    HT.sections.glossary({text});
    HT.sections.explain({text});
    let axis = HT.state.get().input;
    HT.state.subscribe(["input"], state => { if (state.input !== axis) { axis = state.input; HT.track(show(axis)); } });
    kept = HT.state.kept();
    await show(axis);
  }

  HT.sections.begun(begin());
})();
