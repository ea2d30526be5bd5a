/* The table of heads: sort, select; a page of rows at a time, so thousands stay quick. The filter is that of the header. */
HT.table = (() => {
  const {el, byId, words, button, headLink} = HT.dom;
  const ROWS = 25;

  function sorted(net, heads, sort) {
    const falling = sort.endsWith("-"), column = net.column(sort.replace(/-$/, ""));
    if (!sort || !column) return heads;
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
    const count = el("span", {"aria-live": "polite"});
    const turn = step => { page += step; fill(); };
    const back = button("‹", () => turn(-1), {"aria-label": "Previous rows"});
    const on = button("›", () => turn(1), {"aria-label": "Next rows"});
    const head = el("tr"), body = el("tbody"), headings = new Map();
    head.append(el("th", {scope: "col"}, el("span", {class: "hidden-text"}, "selected")));
    for (const column of net.columns) {
      const meaning = net.text.glossary[column.name];
      const sort = el("button", {type: "button", class: "sort", onclick: () => {
        const now = HT.state.get().sort;
        page = 0;
        HT.state.set({sort: now === `${column.name}-` ? column.name : now === column.name ? "" : `${column.name}-`});
      }}, words(column.name), ...(meaning ? [el("span", {class: "asks", "aria-hidden": "true"}, "?")] : []), el("span", {class: "arrow", "aria-hidden": "true"}));
      const cell = el("th", {scope: "col", class: column.type === "word" ? "" : "number"}, sort);
      if (meaning) HT.dom.explains(sort, meaning);
      headings.set(column.name, cell);
      head.append(cell);
    }
    byId("table-slot").append(
      el("div", {class: "controls"}, el("span", {class: "pager"}, back, count, on)),
      el("div", {class: "scroll", tabindex: "0", role: "group", "aria-label": `Table of ${net.unit.many}`},
        el("table", {class: "heads"}, el("caption", {class: "hidden-text"}, `All ${net.unit.many} and their numbers`), el("thead", {}, head), body)));

    function fill() {
      const chosen = new Set(HT.state.get().selected), pages = Math.max(1, Math.ceil(shown.length / ROWS));
      page = Math.min(Math.max(0, page), pages - 1);
      const first = page * ROWS, rows = shown.slice(first, first + ROWS);
      count.textContent = shown.length ? `${first + 1}–${first + rows.length} of ${shown.length}` : "none found";
      back.disabled = page === 0;
      on.disabled = page === pages - 1;
      body.replaceChildren(...rows.map(i => {
        const box = el("input", {type: "checkbox", "aria-label": `Select ${net.names[i]}`});
        box.checked = chosen.has(i);
        box.addEventListener("change", () => HT.state.select([i], true));
        const row = el("tr", {class: chosen.has(i) ? "chosen" : "", "data-head": i}, el("td", {class: "tick"}, box));
        for (const column of net.columns) {
          row.append(column.name === "name" ? el("th", {scope: "row"}, headLink(column.words[i], [i]))
            : column.type === "word" ? el("td", {}, column.words[i]) : el("td", {class: "number"}, net.value(column, i)));
        }
        return row;
      }));
    }
    body.addEventListener("click", event => {  // anywhere in a row selects its head
      const row = event.target.closest("tr");
      if (row && !event.target.closest("button, input")) HT.state.select([Number(row.dataset.head)], event.shiftKey);
    });

    HT.later(byId("table-slot"), ["filter", "sort"], async () => {
      const {sort} = HT.state.get();
      for (const [name, cell] of headings) {
        const order = sort === name ? "ascending" : sort === `${name}-` ? "descending" : "none";
        cell.setAttribute("aria-sort", order);
        cell.querySelector(".arrow").textContent = {ascending: " ▲", descending: " ▼", none: ""}[order];
      }
      shown = sorted(net, HT.filter.now(net).heads, sort);
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
