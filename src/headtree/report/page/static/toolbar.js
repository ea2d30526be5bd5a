/* What acts on every view: input, search, chips, the colour of heads, the selection. */
HT.toolbar = (() => {
  const {el, byId, button, options, words, why, counted} = HT.dom;
  const CHIPS = 12;  // of a kind; more are in a fold

  /** Whether keys mean letters there, and not what they do elsewhere. */
  const isTyping = element => element.matches("select, textarea, input:not([type=checkbox], [type=range])");

  /** The header stays while an array's page goes from one axis to another: it asks for the network each time. */
  function header() {
    const input = byId("input"), search = byId("search"), found = byId("found");
    options(input, HT.network.inputs.map((name, i) => [i, `${i}: ${Array.from(name).slice(0, 40).join("")}`]), 0);
    input.addEventListener("change", () => HT.state.set({input: Number(input.value), window: [], pin: -1,
      ...(HT.network.isArray ? {selected: [], filter: "", sort: "", mean: false} : {})}));
    HT.state.subscribe(["input"], state => { input.value = String(state.input); });

    search.addEventListener("input", () => HT.state.set({filter: search.value}, {replace: true}));
    search.addEventListener("keydown", event => {
      const {heads, problem} = HT.filter.now(HT.network);
      if (event.key === "Enter" && search.value.trim() && heads.length && !problem) HT.state.select(heads);
      if (event.key === "Escape") { HT.state.set({filter: ""}); search.blur(); }
    });
    addEventListener("keydown", event => {
      if (event.key !== "/" || event.ctrlKey || event.metaKey || isTyping(event.target)) return;
      event.preventDefault();
      search.focus();
      search.select();
    });
    const all = byId("select-found");
    all.addEventListener("click", () => HT.state.select(HT.filter.now(HT.network).heads));
    HT.state.subscribe(["filter"], state => {
      if (search.value !== state.filter) search.value = state.filter;
      const {heads, problem} = HT.filter.now(HT.network), isEmpty = !state.filter.trim();
      found.textContent = isEmpty ? "" : problem || (heads.length ? `${heads.length} of ${HT.network.nHeads} ${HT.network.unit.many}` : `no ${HT.network.unit.one}`);
      search.setAttribute("aria-invalid", String(Boolean(problem)));
      all.disabled = isEmpty || !heads.length;
    });

    HT.state.subscribe(["selected"], ({selected}) => {
      const {names, unit} = HT.network, some = selected.slice(0, 6).map(head => names[head]).join(", ");
      byId("selection").textContent = selected.length
        ? `${counted(selected.length, unit)} selected: ${some}${selected.length > 6 ? ", …" : ""}` : `No ${unit.one} selected`;
      for (const id of ["copy", "csv", "clear"]) byId(id).disabled = !selected.length;
    });
    byId("clear").addEventListener("click", () => HT.state.select([]));
    addEventListener("keydown", event => {
      if (event.key === "Escape" && !isTyping(event.target) && HT.state.get().selected.length) HT.state.select([]);
    });
    byId("copy").addEventListener("click", event => HT.download.copy(HT.state.get().selected.map(head => HT.network.names[head]).join(", "), event.target));
    byId("link").addEventListener("click", event => HT.download.copy(location.href, event.target));
    byId("csv").addEventListener("click", () => HT.download.csv(HT.network.columns.map(column => column.name),
      HT.state.get().selected.map(head => HT.network.columns.map(column => (column.words || column.values)[head]))));
  }

  /** Chips that filter by role, family and layer; a second click takes the filter away. */
  function chips(net) {
    const target = byId("chips"), made = [];
    target.replaceChildren();
    const chip = (title, term, n) => {
      const item = button(title, () => HT.filter.toggle(term), {class: "chip", "aria-pressed": "false"});
      if (n) item.append(el("span", {class: "count"}, String(n)));
      made.push([item, term]);
      return item;
    };
    const counted = values => {
      const counts = new Map();
      for (const value of values) if (value !== "") counts.set(value, (counts.get(value) || 0) + 1);
      return [...counts];
    };
    const group = (title, items) => {
      if (!items.length) return;
      const rest = items.slice(CHIPS);
      target.append(el("span", {class: "chip-group"}, el("span", {class: "soft"}, title), ...items.slice(0, CHIPS),
        ...(rest.length ? [el("details", {class: "more"}, el("summary", {}, `${rest.length} more`), ...rest)] : [])));
    };
    const roles = net.column("role")?.words ?? [];
    group("role", counted(roles).sort((a, b) => b[1] - a[1]).map(([role, n]) => chip(role, `role = ${role}`, n)));
    group("family", net.families.map(({family, heads}) => chip(String(family), `family ${family}`, heads.length)));
    const folders = net.column("folder_1")?.values ?? [];
    group("folder 1", counted(Array.from(folders, String)).sort((a, b) => b[1] - a[1]).map(([folder, n]) => chip(folder, `folder 1 = ${folder}`, n)));
    const layers = counted(Array.from(net.column("layer")?.values ?? [], String)).map(([layer]) => layer);
    if (layers.length > 1 && layers.length < net.nHeads) group("layer", layers.map(layer => chip(layer, `layer ${layer}`)));
    HT.state.subscribe(["filter"], () => {
      for (const [item, term] of made) item.setAttribute("aria-pressed", String(HT.filter.has(term)));
    });
  }

  /** One control for the colours of heads in the grid, the map, the tree and the affinities. */
  function colour(net) {
    const select = byId("colour"), legend = byId("legend"), meaning = byId("colour-why");
    const first = ["role", "family", "layer", "leaning", "confidence", "shannon_entropy", "effect", "structure"];
    const columns = net.columns.filter(column => column.name !== "name");
    const rank = column => { const i = first.indexOf(column.name); return i < 0 ? first.length : i; };
    options(select, [...columns].sort((a, b) => rank(a) - rank(b)).map(({name}) => [name, words(name)]), HT.state.get().color);
    select.onchange = () => HT.state.set({color: select.value});
    HT.state.subscribe(["color"], state => {
      select.value = state.color;
      const shown = HT.colours.ofColumn(net, state.color), text = net.text.glossary[state.color];
      meaning.replaceChildren(...(text ? [why(text)] : []));
      if (shown.categories) {
        legend.replaceChildren(...shown.categories.slice(0, 24).map(([value, fill]) => {
          const swatch = el("i", {class: "swatch"});
          swatch.style.background = fill;
          return el("span", {class: "key"}, swatch, value);
        }), ...(shown.repeats ? [" (colours repeat)"] : []));
        return;
      }
      const bar = el("span", {class: "gradient"}), {scale} = shown;
      bar.style.background = `linear-gradient(90deg, ${[0, 0.25, 0.5, 0.75, 1].map(t => scale.palette[Math.round(255 * t)]).join(", ")})`;
      legend.replaceChildren(HT.dom.number(scale.low), bar, HT.dom.number(scale.high),
        ...(shown.isFar ? [` (a few ${net.unit.many} are beyond)`] : []));
    });
  }

  /** Light or dark: as the system says, as a notebook tells the frame, or as the button was pressed. */
  function theme() {
    const root = document.documentElement, item = byId("theme"), wish = matchMedia("(prefers-color-scheme: dark)");
    const dark = () => root.dataset.theme ? root.dataset.theme === "dark" : wish.matches;
    const redraw = () => { item.textContent = dark() ? "Light" : "Dark"; HT.plot.redrawAll(); };
    item.addEventListener("click", () => { root.dataset.theme = dark() ? "light" : "dark"; redraw(); });
    wish.addEventListener("change", redraw);
    addEventListener("message", event => {
      const said = event.data?.headtreeTheme;
      if (said === "dark" || said === "light") { root.dataset.theme = said; redraw(); }
    });
    if (parent !== window) parent.postMessage({headtreeReady: true}, "*");
    item.textContent = dark() ? "Light" : "Dark";
  }

  return {header, chips, colour, theme};
})();
