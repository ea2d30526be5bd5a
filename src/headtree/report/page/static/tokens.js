/* The input itself: a passage whose keys are shaded for a query, or a picture whose patches are lit. */
HT.tokens = (() => {
  const {el, visible, percent, number} = HT.dom;
  const TOP = 3;  // keys that are named

  /** How a tokenizer writes pieces of words: "##ing", or a mark before what begins a word; null for whole words. */
  function piecesOf(names) {
    if (names.some(name => /^##./.test(name))) return "##";
    return ["Ġ", "▁", " "].find(mark => names.some(name => name.startsWith(mark) && name.length > 1)) ?? null;
  }

  /** Tokens as words: lists of the indices that belong together. */
  function grouped(names) {
    const mark = piecesOf(names), groups = [];
    names.forEach((name, i) => {
      const isSpecial = /^[<[].*[>\]]$/.test(name) || /^[<[].*[>\]]$/.test(names[i - 1] ?? "");
      const begins = mark === "##" ? !/^##./.test(name) : mark === null || name.startsWith(mark) || isSpecial;
      if (begins || !groups.length) groups.push([i]); else groups.at(-1).push(i);
    });
    return groups;
  }

  /** A token without the tokenizer's mark. */
  function bare(name, mark) {
    return mark && name.startsWith(mark) && name.length > mark.length ? name.slice(mark.length) : name;
  }

  /**
   * Attention of some queries to each group of keys, the mean over the queries; over all of them if there are none.
   * Shares of a query are at most 1 in all: the mean of a box also stands for entries that a mask forbids.
   */
  function weights(field, queries, groups, nQueries, areShares) {
    const rows = queries ?? Array.from({length: nQueries}, (_, q) => q);
    const total = new Float64Array(groups.length);
    for (const q of rows) {
      const own = groups.map(keys => keys.reduce((sum, k) => sum + (HT.fields.at(field, q, k) || 0), 0));
      const most = areShares ? Math.max(1, own.reduce((a, v) => a + v, 0)) : 1;
      own.forEach((v, g) => { total[g] += v / most; });
    }
    return total.map(v => v / rows.length);
  }

  function view(net) {
    let got = null, shown = -1, parts = null;
    const areShares = net.kind !== "weighted" && net.kind !== "signed";
    const say = el("div", {class: "said", "aria-live": "polite"});
    const words = el("input", {type: "checkbox", id: "whole-words"});
    words.addEventListener("change", () => HT.state.set({words: words.checked}));
    const wordsLabel = el("label", {}, words, " whole words");
    const unpin = HT.dom.button("Unpin", () => HT.state.set({pin: -1}), {class: "small"});
    const body = el("div", {class: "token-body"});
    const heading = el("h4", {id: "tokens-title"}, "Where it looks");
    const element = el("article", {class: "tokens", id: "tokens", "aria-labelledby": "tokens-title"},
      el("div", {class: "card-head"}, heading, HT.dom.why(net.explained("where it looks")), el("span", {class: "controls"}, wordsLabel, unpin)), body, say);

    const queryAt = event => {
      const own = event.target.closest?.("[data-q]");
      return own ? Number(own.dataset.q) : -1;
    };
    body.addEventListener("pointerover", event => { if (event.pointerType !== "touch") show(queryAt(event)); });
    body.addEventListener("pointerleave", () => show(-1));
    body.addEventListener("click", event => {
      const q = queryAt(event);
      if (q >= 0) HT.state.set({pin: HT.state.get().pin === q ? -1 : q});
    });
    body.addEventListener("keydown", event => {
      const step = {ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1}[event.key];
      if (event.key === "Escape") HT.state.set({pin: -1});
      if (!step || !parts) return;
      event.preventDefault();
      const now = parts.queryGroups.findIndex(group => group.includes(HT.state.get().pin));
      const next = Math.min(parts.queryGroups.length - 1, Math.max(0, now < 0 ? 0 : now + step));
      HT.state.set({pin: parts.queryGroups[next][0]}, {replace: true});
      parts.queryCells[next]?.scrollIntoView({block: "nearest"});
    });

    /** Shade the keys of a query that the pointer is at; else of the pinned one; else the mean of all. */
    function show(q) {
      if (q === shown && q >= 0) return;
      shown = q;
      if (!parts || !got.slots[0].field) return;
      const {pin} = HT.state.get(), query = q >= 0 ? q : pin < parts.nQueries ? pin : -1;
      const group = query < 0 ? -1 : parts.queryGroups.findIndex(own => own.includes(query));
      const queries = group < 0 ? null : parts.queryGroups[group];
      const found = got.slots.map(slot => weights(slot.field, queries, parts.keyGroups, parts.nQueries, areShares));
      parts.paint(found, group);
      parts.queryCells.forEach((cell, g) => cell?.classList.toggle("query", g === group));
      const sentences = found.map((own, s) => {
        const order = Array.from(own.keys()).sort((a, b) => Math.abs(own[b]) - Math.abs(own[a])).slice(0, TOP).filter(g => own[g]);
        const about = got.slots[s].field.coarse ? " ≈ " : " ";
        const listed = order.flatMap((g, i) => [i ? ", " : "", el("bdi", {class: "token"}, parts.label(g)),
          about + (areShares ? percent : number)(own[g])]);
        return el("div", {class: `slot-${s}`}, el("strong", {}, got.slots[s].name), ": ", ...(listed.length ? listed : ["nothing"]));
      });
      const lead = group < 0 ? "Mean over all queries. Hover or click a query." : [el("bdi", {class: "token query"}, parts.queryLabel(group)),
        query === pin && q < 0 ? ` (query ${query}, pinned) ${net.unit.does}` : ` (query ${query}) ${net.unit.does}`];
      say.replaceChildren(...[lead].flat(), ...sentences);
      unpin.hidden = pin < 0;
    }

    function render(now) {
      got = now;
      const {input} = now, isPicture = input.text.image && input.text.keys.some(name => HT.matrix.PATCH.test(name));
      heading.textContent = isPicture ? "On the picture" : "In the text";
      words.checked = HT.state.get().words;
      wordsLabel.hidden = isPicture || !(piecesOf(input.text.keys) || piecesOf(input.text.queries));
      parts = isPicture ? picture(now) : passage(now);
      body.replaceChildren(...parts.elements);
      shown = -2;
      show(-1);
    }
    HT.matrix.followers.add(place => show(place ? place.q : -1));
    return {element, render};
  }

  // -- text ------------------------------------------------------------------------------------------------

  function passage({input, slots}) {
    const {queries, keys} = input.text, given = keys.length - queries.length;  // queries may be the last tokens: all, or what was written
    const isTail = given >= 0 && queries.every((name, i) => name === keys[given + i]);
    const whole = HT.state.get().words;
    const groupsOf = names => whole ? grouped(names) : names.map((_, i) => [i]);
    const keyGroups = groupsOf(keys);
    const asQueries = group => isTail ? group.filter(k => k >= given).map(k => k - given) : [];
    const label = (names, mark) => group => group.map((i, n) => n || mark !== "##" ? bare(names[i], mark) : names[i]).join("");
    const build = (names, groups, mark, queriesOf) => {
      const begins = new Set(grouped(names).map(group => group[0])), cells = [], flow = [];
      groups.forEach((group, g) => {
        const [query] = queriesOf(group);
        const cell = el("span", {class: "t", "data-q": query}, visible(label(names, mark)(group), 40));
        if (g && begins.has(group[0])) flow.push(" ");
        flow.push(cell);
        cells.push(cell);
        if (/^(\n|<eos>|⏎)$/.test(names[group.at(-1)])) flow.push(el("br"));
      });
      return {cells, flow};
    };
    const marks = [piecesOf(queries), piecesOf(keys)];
    const keyPart = build(keys, keyGroups, marks[1], asQueries);
    const box = (name, flow, kind = "") => el("div", {class: `passage${kind}`, tabindex: "0", role: "group", "aria-label": name}, ...flow);
    const common = {keyGroups, nQueries: queries.length, label: g => visible(label(keys, marks[1])(keyGroups[g]), 30),
      paint: found => shade(keyPart.cells, found, slots[0].field?.signed)};
    if (isTail) {
      const own = keyGroups.map((group, g) => [g, asQueries(group)]).filter(([, group]) => group.length);
      return {
        ...common, queryGroups: own.map(([, group]) => group), queryCells: own.map(([g]) => keyPart.cells[g]), queryLabel: q => common.label(own[q][0]),
        elements: [...(given ? [el("p", {class: "soft"}, `Queries are the last ${queries.length} of ${keys.length} tokens, in bold: hover or click one.`)] : []),
          box("The passage: arrow keys move the query", keyPart.flow, given ? " written" : "")],
      };
    }
    const queryGroups = groupsOf(queries), queryPart = build(queries, queryGroups, marks[0], group => group);
    return {
      ...common, queryGroups, queryCells: queryPart.cells, queryLabel: g => visible(label(queries, marks[0])(queryGroups[g]), 30),
      elements: [el("p", {class: "soft"}, "Queries"), box("Queries: arrow keys move", queryPart.flow), el("p", {class: "soft"}, "Keys"), box("Keys", keyPart.flow)],
    };
  }

  /** The largest size of some weights. */
  const mostOf = own => own.reduce((a, v) => Math.max(a, Math.abs(v)), 0) || 1;

  /** The shade of a share of the largest weight: in a head's own colour, or in those of signs if weights have both. */
  const ink = (share, s, signed) => `rgb(var(--${!signed ? `slot-${s}` : share < 0 ? "minus" : "plus"}) / ${(0.75 * Math.abs(share) ** 0.6).toFixed(3)})`;

  /** Colours of cells by one head, or by two: the upper half by the first, the lower by the second. */
  function shade(cells, found, signed) {
    const most = found.map(mostOf);
    cells.forEach((cell, g) => {
      const [a, b] = found.map((own, s) => ink(own[g] / most[s], s, signed));
      cell.style.background = b ? `linear-gradient(${a} 0 50%, ${b} 50% 100%)` : a;
    });
  }

  // -- pictures --------------------------------------------------------------------------------------------

  function picture({input, slots}) {
    const {keys, queries, image} = input.text, [nRows, nColumns] = HT.matrix.grid(keys);
    const other = keys.map((name, i) => [name, i]).filter(([name]) => !HT.matrix.PATCH.test(name));
    const cellsOf = [], elements = [];
    slots.forEach((slot, s) => {
      const cells = new Array(keys.length);
      const box = el("div", {class: "patches", role: "group", tabindex: s ? null : "0",
        "aria-label": `The picture, by ${slot.name}: arrow keys move the query`});
      box.style.backgroundImage = `url("${image}")`;
      box.style.gridTemplateColumns = `repeat(${nColumns}, 1fr)`;
      box.style.aspectRatio = `${nColumns} / ${nRows}`;
      keys.forEach((name, i) => {
        const match = HT.matrix.PATCH.exec(name);
        if (!match) return;
        cells[i] = el("span", {class: "cell", "data-q": i});
        cells[i].style.gridRow = Number(match[1]) + 1;
        cells[i].style.gridColumn = Number(match[2]) + 1;
        box.append(cells[i]);
      });
      const tokens = other.map(([name, i]) => cells[i] = el("span", {class: "t wide", "data-q": i}, visible(name, 20)));
      elements.push(el("div", {class: "seen"}, ...(slots.length > 1 ? [el("div", {class: `name slot-${s}`}, slot.name)] : []), box,
        el("div", {class: "others"}, ...tokens)));
      cellsOf.push(cells);
    });
    const single = names => names.map((_, i) => [i]);
    return {
      elements: [el("div", {class: "pictures"}, ...elements)], queryGroups: single(queries), keyGroups: single(keys), nQueries: queries.length,
      queryCells: cellsOf[0], label: g => keys[g], queryLabel: g => queries[g],
      paint: (found, group) => found.forEach((own, s) => {
        const most = mostOf(own), signed = slots[s].field?.signed;
        cellsOf[s].forEach((cell, k) => {
          const share = own[k] / most;
          cell.style.background = signed || cell.classList.contains("t") ? ink(share, s, signed)
            : `rgb(0 0 0 / ${(0.78 * (1 - share ** 0.6)).toFixed(3)})`;
          if (s) cell.classList.toggle("query", k === group);
        });
      }),
    };
  }

  return {view, grouped, weights};
})();
