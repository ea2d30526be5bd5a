/* The table of heads: search, sort, select; a page of rows at a time, so that thousands stay quick. */
HT.table = (() => {
  const {el, byId, words} = HT.dom;
  const ROWS = 25;

  /** Heads that have every comma-separated phrase: a part of a name or word, or a whole "layer 3", "family 2". */
  function matches(net, text) {
    const phrases = text.toLowerCase().split(",").map(phrase => phrase.trim()).filter(Boolean);
    const wordColumns = net.columns.filter(column => column.type === "word");
    const numbered = ["layer", "family"].map(name => net.column(name)).filter(Boolean);
    const has = (i, phrase) => numbered.some(column => `${column.name} ${column.values[i]}` === phrase) ||
      wordColumns.some(column => column.words[i].toLowerCase().includes(phrase));
    return Array.from({length: net.nHeads}, (_, i) => i).filter(i => phrases.every(phrase => has(i, phrase)));
  }

  function sorted(net, heads, sort) {
    if (!sort) return heads;
    const falling = sort.endsWith("-");
    const column = net.column(sort.replace(/-$/, ""));
    if (!column) return heads;
    const compare = column.type === "word"
      ? (a, b) => column.words[a].localeCompare(column.words[b], undefined, {numeric: true})
      : (a, b) => {
        const x = column.values[a], y = column.values[b];
        return Number.isNaN(x) ? 1 : Number.isNaN(y) ? -1 : x - y;
      };
    return [...heads].sort((a, b) => (falling ? -1 : 1) * compare(a, b) || a - b);
  }

  function start(net) {
    let page = 0, shown = [];
    const search = el("input", {type: "search", id: "search", placeholder: "L3H5; or layer 3, family 2",
      "aria-label": "Search heads"});
    search.addEventListener("input", () => { page = 0; HT.state.set({search: search.value}, {replace: true}); });
    const all = el("button", {type: "button", onclick: () => HT.state.select(shown)}, "Select all found");
    const count = el("span", {"aria-live": "polite"});
    const turn = step => { page += step; fill(); };
    const back = el("button", {type: "button", "aria-label": "Previous rows", onclick: () => turn(-1)}, "‹");
    const on = el("button", {type: "button", "aria-label": "Next rows", onclick: () => turn(1)}, "›");
    const head = el("tr"), body = el("tbody");
    const headings = new Map();
    head.append(el("th", {scope: "col"}, el("span", {class: "hidden-text"}, "selected")));
    for (const column of net.columns) {
      const button = el("button", {type: "button", class: "sort", onclick: () => {
        const now = HT.state.get().sort;
        page = 0;
        HT.state.set({sort: now === `${column.name}-` ? column.name : now === column.name ? "" : `${column.name}-`});
      }}, words(column.name), el("span", {class: "arrow", "aria-hidden": "true"}));
      const cell = el("th", {scope: "col", class: column.type === "word" ? "" : "number",
        title: net.text.glossary[column.name] || null}, button);
      headings.set(column.name, cell);
      head.append(cell);
    }
    byId("table").append(
      el("div", {class: "controls"}, search, all, el("span", {class: "pager"}, back, count, on)),
      el("div", {class: "scroll", tabindex: "0", role: "region", "aria-label": "Table of heads"},
        el("table", {class: "heads"}, el("caption", {class: "hidden-text"}, "Heads and their measures"),
          el("thead", {}, head), body)));

    function fill() {
      const {selected} = HT.state.get();
      const chosen = new Set(selected);
      const pages = Math.max(1, Math.ceil(shown.length / ROWS));
      page = Math.min(Math.max(0, page), pages - 1);
      const rows = shown.slice(page * ROWS, (page + 1) * ROWS);
      const first = page * ROWS;
      count.textContent = shown.length ? `${first + 1}–${first + rows.length} of ${shown.length}` : "none found";
      back.disabled = page === 0;
      on.disabled = page === pages - 1;
      body.replaceChildren(...rows.map(i => {
        const box = el("input", {type: "checkbox", "aria-label": `Select ${net.names[i]}`});
        box.checked = chosen.has(i);
        box.addEventListener("change", () => HT.state.select([i], true));
        const row = el("tr", {class: chosen.has(i) ? "chosen" : "", "data-head": i}, el("td", {}, box));
        for (const column of net.columns) {
          row.append(column.name === "name" ? el("th", {scope: "row"}, column.words[i])
            : column.type === "word" ? el("td", {}, column.words[i])
              : el("td", {class: "number"}, net.value(column, i)));
        }
        return row;
      }));
    }

    HT.state.subscribe(["search", "sort"], state => {
      if (search.value !== state.search) search.value = state.search;
      for (const [name, cell] of headings) {
        const order = state.sort === name ? "ascending" : state.sort === `${name}-` ? "descending" : "none";
        cell.setAttribute("aria-sort", order);
        cell.querySelector(".arrow").textContent = {ascending: " ▲", descending: " ▼", none: ""}[order];
      }
      shown = sorted(net, matches(net, state.search), state.sort);
      fill();
    });
    HT.state.subscribe(["selected"], ({selected}) => {
      const chosen = new Set(selected);
      for (const row of body.children) {
        const is = chosen.has(Number(row.dataset.head));
        row.classList.toggle("chosen", is);
        row.querySelector("input").checked = is;
      }
    });
  }

  return {start};
})();
