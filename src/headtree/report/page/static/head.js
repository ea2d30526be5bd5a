/* The selected head, always beside the grid: its matrix, numbers, neighbours, and where it looks; or two heads. */
HT.head = (() => {
  const {el, byId, button, headLink, labelled, why, table, words, lazily, counted} = HT.dom;

  /** Numbers, family and neighbours of one head. */
  function about(net, head, isAlone) {
    const tree = net.tree(), family = net.familyOf(head);
    const facts = net.facts(head).filter(fact => fact.name !== "family").map(fact => {
      const meaning = net.text.glossary[fact.name];
      return el("span", {class: "fact"}, `${fact.title} `, el("strong", {}, fact.value), ...(meaning ? [why(meaning)] : []));
    });
    if (family) {
      facts.splice(1, 0, el("span", {class: "fact"}, headLink(`family ${family.family}`, net.indices(family.heads)),
        ` (${counted(family.heads.length, net.unit)}) `, button("its mean", () => HT.state.set({selected: net.indices(family.heads), mean: true}), {class: "small"})));
    }
    const near = tree.nearest(head).flatMap((other, i) => [i ? " " : "", headLink(net.names[other], [other])]);
    const compare = button("compare with the nearest", () => HT.state.set({selected: [head, tree.nearest(head)[0]], mean: false}), {class: "small"});
    return [el("div", {class: "facts"}, ...facts), el("div", {class: "facts"}, "Nearest: ", ...near, ...(isAlone ? [" ", compare] : []))];
  }

  function start(net) {
    let got = null, turn = 0;
    const heading = el("h3", {id: "head-title", "aria-live": "polite"});
    const facts = el("div", {class: "about"}), note = el("p", {class: "note", hidden: true});
    const before = el("select", {id: "softmax"}), same = el("input", {type: "checkbox", id: "same-scale"});
    HT.dom.options(before, [["0", "after softmax"], ["1", "before softmax"]], "0");
    before.addEventListener("change", () => HT.state.set({before: before.value === "1"}));
    same.addEventListener("change", () => HT.state.set({same: same.checked}));
    const second = el("input", {id: "second", list: "names", size: 7, placeholder: net.names[0].slice(0, 12), autocomplete: "off"});
    second.addEventListener("change", () => {
      const wanted = second.value.trim().toLowerCase(), found = net.names.findIndex(name => name.toLowerCase() === wanted);
      const other = found < 0 ? undefined : found;
      const first = HT.state.get().selected[0] ?? net.first;
      if (other !== undefined && other !== first) HT.state.set({selected: [first, other], mean: false});
      second.value = "";
    });
    const out = button("Zoom out", () => HT.state.set({window: []}));
    const mean = button("Mean of the selected", () => HT.state.set({mean: !HT.state.get().mean}), {id: "mean"});
    const sameLabel = el("label", {}, same, " same colours"), beforeLabel = labelled("show", before);
    beforeLabel.hidden = !net.text.grains.scores;
    const controls = el("div", {class: "controls"}, beforeLabel, labelled("compare with", second), mean, sameLabel, out,
      el("datalist", {id: "names"}, ...net.names.map(name => el("option", {value: name}))));

    /** Slices of an array that is one matrix are rows or columns of it. */
    const marked = () => got.input.text.whole ? {slices: HT.state.get().selected, side: got.input.text.axis} : null;
    const source = pick => () => {
      const field = got && pick(got);
      return field ? {field, input: got.input, kind: got.kind, chosen: marked(), orders: HT.matrix.original(got.input)} : null;
    };
    const slot = s => now => now.slots[s]?.field;
    const cards = [
      HT.matrix.card({id: "as-is-a", title: "As it is", source: source(slot(0)), sentence: ""}),
      HT.matrix.card({id: "as-is-b", title: "As it is", source: source(slot(1)), sentence: ""}),
      HT.matrix.card({id: "difference", title: "Difference", sentence: "",
        source: source(now => now.slots[1]?.field && HT.fields.difference(now.slots[0].field, now.slots[1].field))}),
    ];
    const tokens = net.isArray ? null : HT.tokens.view(net);
    const levels = net.isArray ? HT.matrix.levels(net.text.sides) : null;
    const ordered = s => HT.matrix.card({id: `organized-${"ab"[s]}`, title: "Organized", zooms: false, source: () => {
      const field = got?.slots[s]?.field;
      return field ? {field, input: got.input, kind: got.kind, chosen: marked(), ...HT.matrix.organized(got.input)} : null;
    }});
    const inOrder = net.isArray ? [ordered(0), ordered(1)] : [];
    const below = [...inOrder, ...(tokens ? [tokens] : [])];
    const numbers = lazily("All numbers", () => {
      const heads = (HT.state.get().selected.length ? HT.state.get().selected : [net.first]).slice(0, 2);
      return table(`Every column of the table of ${net.unit.many}`, ["column", ...heads.map(head => net.names[head])],
        net.columns.filter(column => column.name !== "name").map(column => [words(column.name), ...heads.map(head => net.value(column, head))]));
    });
    const views = el("div", {class: net.isArray ? "views even" : "views"}, ...cards.map(card => card.element), ...below.map(card => card.element));
    byId("head-slot").append(el("div", {class: "card detail", id: "head", role: "group", "aria-labelledby": "head-title"},
      heading, facts, controls, ...(levels ? [el("div", {class: "controls"}, ...levels.controls)] : []), note, views, numbers.element));

    function titles({slots, isMean, selected, input}) {
      const {input: index} = HT.state.get(), many = selected.length - (isMean ? 0 : 2);
      heading.textContent = isMean ? `Mean of ${selected.length} ${net.unit.many}` : slots.map(own => own.name).join(" and ");
      const shown = isMean ? [el("div", {class: "facts"}, ...selected.slice(0, 40).flatMap((head, i) => [i ? " " : "", headLink(net.names[head], [head])]),
        selected.length > 40 ? ` and ${selected.length - 40} more` : "")]
        : (input.text.whole ? HT.state.get().selected.slice(0, 2).map(head => ({name: net.title(head), heads: [head]})) : slots)
          .flatMap((own, s) => [...(slots.length > 1 || input.text.whole ? [el("div", {class: `name slot-${s}`}, own.name)] : []), ...about(net, own.heads[0], slots.length < 2)]);
      if (!HT.state.get().selected.length) shown.unshift(el("div", {class: "facts"}, `No ${net.unit.one} is selected${input.text.whole ? "." : "; this one is shown as an example."}`));
      if (many > 0 && !isMean && !input.text.whole) shown.push(el("div", {class: "facts"}, `${many} more selected; the first two are shown.`));
      facts.replaceChildren(...shown);
      const cell = slots[0].field?.cell ?? 1;
      note.hidden = Boolean(slots[0].field) && cell === 1;
      note.textContent = slots[0].field ? `Each cell is the mean of ${cell} × ${cell} entries: this input is not shown whole.`
        : "The matrices of this input were left out of this page; its trees and numbers are included.";
      cards.slice(0, 2).forEach((card, s) => { card.heading.textContent = slots[s]?.name ?? ""; });
      inOrder.forEach((card, s) => { card.heading.textContent = slots[s] ? `${slots[s].name}, organized` : ""; });
      if (slots[1]) cards[2].heading.textContent = `${slots[0].name} − ${slots[1].name}`;
      views.dataset.n = slots.length;
      for (const card of [cards[1], cards[2], ...inOrder.slice(1)]) card.element.hidden = slots.length < 2;
      levels?.fill(input);
      mean.hidden = Boolean(input.text.whole) || selected.length < 2 || !HT.state.get().selected.length;
      mean.textContent = isMean ? `Show each ${net.unit.one}` : "Mean of the selected";
      sameLabel.hidden = slots.length < 2;
      out.hidden = !HT.state.get().window.length;
      for (const element of [...cards, ...below].map(card => card.element)) element.classList.toggle("absent", !slots[0].field || !input);
      same.checked = HT.state.get().same;
      before.value = HT.state.get().before ? "1" : "0";
      byId("head").dataset.input = index;
    }

    async function update() {
      const own = ++turn, kind = HT.fields.kindOf(net);
      const now = await HT.fields.chosen(net, kind);
      if (own !== turn) return;
      got = now;
      titles(now);
      if (now.slots[0].field) {
        for (const card of [...cards, ...inOrder]) if (!card.element.hidden) card.render();
        const forTokens = !tokens ? null : kind === net.main ? now : await HT.fields.chosen(net, net.main);
        if (own === turn && forTokens?.slots[0].field) tokens.render(forTokens);
      }
      numbers.refresh();
    }
    HT.state.subscribe(["selected", "input", "before", "window", "pin", "words", "mean", "same", "basis", ...(net.isArray ? ["queryLevel", "keyLevel"] : [])], () => HT.track(update()));
  }

  return {start};
})();
