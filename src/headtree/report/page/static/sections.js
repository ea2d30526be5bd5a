/* Answers at the top, stability across inputs, the sections of a run, glossary, settings. */
HT.sections = (() => {
  const {el, byId, number, table, token, lazily, headLink, why, words, counted} = HT.dom;

  const VALUES = {"centred scores": "before softmax, each row minus its mean", "raw scores": "before softmax",
    probabilities: "after softmax", "value-weighted attention": "probability times the norm of what each key contributes"};

  /** A percentage is not torn at the end of a line. */
  const together = text => text.replaceAll(" %", "\u00a0%");

  /** Phrases of a sentence, some of them links; what stands at a link without a space stays on its line. */
  function flowing(phrases, link) {
    const nodes = [];
    phrases.forEach((part, i) => {
      if (part.heads.length) {
        const [, before, near] = /^([^]*?)(\S*)$/.exec(i && typeof nodes.at(-1) === "string" ? nodes.pop() : "");
        nodes.push(before, near ? el("span", {class: "unbroken"}, near, link(part)) : link(part));
      } else nodes.push(together(part.text));
    });
    return nodes;
  }

  function answers(net) {
    const {text} = net, n = net.inputs.length, perLayer = net.nHeads / text.layers;
    const many = counted(net.nHeads, net.unit), layers = `${text.layers} layer${text.layers > 1 ? "s" : ""}`;
    const heads = perLayer === 1 ? many : Number.isInteger(perLayer) ? `${layers} × ${counted(perLayer, net.unit)}` : `${many} in ${layers}`;
    const meaning = VALUES[text.values] ? ` (${VALUES[text.values]})` : "";
    byId("summary").textContent = `${heads}, ${n} input${n > 1 ? "s" : ""}; organized: ${text.values}${meaning}.`;
    const link = part => headLink(together(part.text), net.indices(part.heads));
    let inner = null;
    for (const {about, phrases} of text.answers) {
      const line = el("li", {"data-about": about}, ...flowing(phrases, link));
      if (about !== "family") { byId("answers").append(line); continue; }
      if (!inner) {
        inner = el("ul");
        byId("answers").lastElementChild.append(el("details", {class: "more"}, el("summary", {}, "What they are"), inner));
      }
      inner.append(line);
    }
    notes(net);
    const moving = text.stability?.status.filter(status => !status.startsWith("settled")).length;
    if (moving) {
      byId("notes").append(el("p", {class: "note"}, `On ${moving} of ${n} inputs the trees of the questionnaire had not settled after the last iteration: details below, under “How stable this is”.`));
    }
  }

  /** What one should know about a run, and what its page lacks. */
  function notes({text}) {
    for (const note of text.notes) byId("notes").append(el("p", {class: "note"}, note));
    if (text.left_out.length) {
      byId("notes").append(el("details", {class: "note"}, el("summary", {}, "What this page leaves out to stay small"),
        el("ul", {}, ...text.left_out.map(line => el("li", {}, line)))));
    }
  }

  /** A head's name within other text as a link to it. */
  function linked(net, value) {
    if (typeof value !== "string") return value;
    const found = new RegExp(`\\b${net.unit.name}\\b`).exec(value), [head] = found ? net.indices([found[0]]) : [];
    if (head === undefined) return value;
    return el("span", {}, value.slice(0, found.index), headLink(found[0], [head]), value.slice(found.index + found[0].length));
  }

  function stability(net) {
    const found = net.text.stability, slot = byId("stability-slot");
    if (!found) { byId("stability").hidden = true; return; }
    const [low, high] = found.interval, n = found.correlations.length;
    const firm = Array.from(net.joint.support).filter(v => v >= 0.5).length, all = Array.from(net.joint.support).filter(v => !Number.isNaN(v)).length;
    slot.append(el("p", {}, `Inputs agree on the ranking of ${net.unit.many} by structure score with a mean rank correlation of ${number(found.mean)}` +
      `${low === null ? "" : ` (${number(low)} to ${number(high)})`}. ` + (firm ? `${firm} of ${all} folders of the tree of ${net.unit.many} have a support of at least 50 %, `
      : `No folder of the tree of ${net.unit.many} has a support of 50 %, `) + `by trees of halves of the inputs in ${found.n_bootstrap} random divisions.`));
    let plot = null;
    const card = HT.plot.card({
      id: "agreement", title: "Agreement of inputs", term: net.explained("rank correlation"), sentence: "Rank correlation of structure scores between every two inputs: 1 means the same ranking.",
      draw: width => {
        const side = Math.min(width - 60, 420);
        plot = HT.plot.frame({width: side + 60, height: side + 46, x: {range: [-0.5, n - 0.5], label: "input", ticks: HT.plot.ticks(0, n - 1, 10).filter(Number.isInteger)},
          y: {range: [n - 0.5, -0.5], label: "input", ticks: HT.plot.ticks(0, n - 1, 10).filter(Number.isInteger)}, margin: {right: 50}});
        const values = found.correlations.flat().map(v => v ?? 0), scale = HT.colours.scale({low: Math.min(...values), high: 1});
        const each = plot.inner.width / n;
        found.correlations.forEach((row, i) => row.forEach((v, j) => {
          plot.group.append(HT.plot.rect(plot.sx(j - 0.48), plot.sy(i - 0.48), each * 0.96, plot.inner.height / n * 0.96, {fill: scale.css(v ?? 0)}));
          if (each > 30) {
            plot.group.append(HT.plot.text(plot.sx(j), plot.sy(i) + 4, (v ?? 0).toFixed(2), {"text-anchor": "middle", "font-size": 11,
              fill: scale.place(v ?? 0) > 0.6 ? "#111" : "#fff"}));
          }
        }));
        plot.element.append(HT.plot.bar(plot.margin.left + plot.inner.width + 8, plot.margin.top, plot.inner.height, scale));
        return plot.element;
      },
      tables: [lazily("Correlations as a table", () => table("Rank correlation of structure scores between inputs",
        ["input", ...found.correlations.keys()], found.correlations.map((row, i) => [i, ...row])))],
    });
    slot.append(el("div", {class: "two"}, card.element, el("div", {class: "card"}, table(
      `Highest and lowest structure scores, and on how many of ${n} inputs these ${net.unit.many} are among the ${found.n_selected} first or last`,
      ["rank", "highest", "on inputs", "lowest", "on inputs"], found.recurring.map(row => row.map(value => linked(net, value)))))),
    table(`Each input's tree of ${net.unit.many} (questionnaire of ${net.text.values})`, ["input", "distance to the tree of all inputs", "questionnaire"],
      net.inputs.map((name, i) => [token(name), found.tree_distances[i], found.status[i].split(";")[0]])));
    HT.later(slot, [], async () => card.render());
  }

  function optional(net, described) {
    for (const part of described) {
      const title = `section-${part.id}`, id = `part-of-run-${part.id}`;
      const spelled = columns => columns.map(name => /^[a-z0-9_]+$/.test(name) ? words(name) : name);
      byId("sections").append(el("section", {id, "aria-labelledby": title, "data-contents": part.title},
        el("h2", {id: title}, part.title, " ", why(net.explained(part.term))), ...part.text.slice(0, 1).map(text => el("p", {}, text)),
        ...part.figures.map(({source, caption}) => el("figure", {class: "card"},
          el("img", {src: source, alt: caption, loading: "lazy"}), el("figcaption", {}, caption),
          el("button", {type: "button", class: "download", onclick: () => HT.download.picture(source)}, "Download"))),
        el("details", {class: "fold"}, el("summary", {}, "More, with tables"), ...part.text.slice(1).map(text => el("p", {}, text)),
          ...part.tables.map(({caption, columns, rows}) => table(caption, spelled(columns), rows.map(row => row.map((value, i) =>
            i === 0 && typeof value === "string" && net.column(value) ? words(value) : linked(net, value))))))));
    }
  }

  function glossary(net) {
    const rows = [...Object.entries(net.text.terms_explained), ...Object.entries(net.text.glossary).map(([name, text]) => [words(name), text])];
    byId("glossary-slot").append(el("dl", {}, ...rows.flatMap(([name, text]) => [el("dt", {}, name), el("dd", {}, text)])));
  }

  function settings(net) {
    byId("settings-slot").append(table("Settings, versions and inputs of the run", ["name", "value"],
      net.text.settings.map(([name, value]) => [name, el("bdi", {}, value)])),
    el("p", {}, `Matrices are stored in 8 or 4 bits for each cell: 255 or 15 steps of each ${net.unit.one}'s own scale` +
      `${net.isArray ? "" : "; after softmax the steps are even in the square root, and rows keep their sums"}. The table of ${net.unit.many} has full precision.`));
  }

  /** A table of contents, from the sections that are there. */
  function contents() {
    const shown = [...document.querySelectorAll("main section")].filter(section => !section.hidden && section.dataset.contents);
    byId("contents").replaceChildren(...shown.map(section => el("a", {href: `#${section.id}`, onclick: event => {
      event.preventDefault();  // the address keeps what is selected
      section.scrollIntoView();
      section.setAttribute("tabindex", "-1");
      section.focus({preventScroll: true});
    }}, section.dataset.contents)));
  }

  /** Put an explanation wherever the page's text asks for one. */
  function explain({text}) {
    for (const mark of document.querySelectorAll("[data-term]")) mark.replaceWith(why(text.terms_explained[mark.dataset.term]));
  }

  /** What a page does once its entry point has made all of it. */
  function begun(made) {
    byId("skip").addEventListener("click", event => { event.preventDefault(); byId("table").scrollIntoView(); byId("table").focus(); });
    HT.track(made.then(() => { HT.groups.resizing(); document.documentElement.dataset.ready = ""; })).catch(error => {
      byId("summary").textContent = `This page could not be displayed: ${error.message}. It needs a browser from 2023 or later.`;
      throw error;
    });
  }

  return {answers, notes, stability, optional, glossary, settings, contents, explain, begun, flowing};
})();
