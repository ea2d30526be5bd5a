/* The tree of heads: a dendrogram with every head's name, its layer, and the support of folders; and as a list in words. */
HT.dendrogram = (() => {
  const {el, svg, byId, percent, options, labelled, button, headLink} = HT.dom;
  const {theme} = HT.colours;
  const {text, rect} = HT.plot;
  const LEAST = 0.005;  // support that is shown: less rounds to none
  const LEFT = 36, NAMES = 58, STRIP = 9, TOP = 16;
  const LARGE = 0.3, OPEN = 3;  // share of all heads, and levels, that the list shows open

  /** Rows from top to bottom: heads, or folders that are collapsed; and the middle of every folder that is shown. */
  function layout(tree, collapse, each) {
    const n = tree.order.length, rows = [], rowOf = new Int32Array(n), hidden = new Uint8Array(tree.start.length);
    const outer = new Int32Array(n).fill(-1);
    for (let f = 1; f < tree.start.length; f++) {
      const parent = tree.parent[f];
      if (hidden[parent] || (parent > 0 && tree.size[parent] <= collapse)) hidden[f] = 1;
      else if (tree.size[f] <= collapse) outer.fill(f, tree.start[f], tree.start[f] + tree.size[f]);
    }
    for (let p = 0; p < n; p++) {
      if (outer[p] < 0 || p === tree.start[outer[p]]) rows.push(outer[p] < 0 ? {head: tree.order[p]} : {folder: outer[p]});
      rowOf[p] = rows.length - 1;
    }
    const y = row => TOP + (row + 0.5) * each;
    const first = new Float64Array(tree.start.length).fill(Infinity), last = new Float64Array(tree.start.length).fill(-Infinity);
    const reach = (f, at) => { first[f] = Math.min(first[f], at); last[f] = Math.max(last[f], at); };
    for (let p = 0; p < n; p++) reach(outer[p] < 0 ? tree.inner[p] : outer[p], y(rowOf[p]));
    for (let f = tree.start.length - 1; f > 0; f--) {  // inner folders come after outer ones
      if (!hidden[f]) reach(tree.parent[f], (first[f] + last[f]) / 2);
    }
    return {rows, rowOf, hidden, outer, y, span: f => [first[f], last[f]], height: TOP + rows.length * each + 6};
  }

  function start(net) {
    const collapse = el("select", {id: "tree-collapse"});
    options(collapse, [[0, "none"], ...[2, 4, 8, 16, 32].filter(n => 4 * n <= net.nHeads).map(n => [n, `up to ${n} ${net.unit.many}`])], 0);
    collapse.addEventListener("change", () => HT.state.set({collapse: Number(collapse.value)}));
    const zoom = el("input", {type: "range", id: "tree-zoom", min: 2, max: 18, value: net.nHeads > 400 ? 9 : 12, "aria-label": "Height of a row"});
    zoom.addEventListener("input", () => self.render());
    let tree, placed, at, width = 0, marks = null;

    /** Where a folder's junction is: the further left, the less alike its heads are. */
    function across(right) {
      const heights = tree.height, high = Math.max(...heights), low = 0.9 * Math.min(...heights);
      return f => LEFT + (right - LEFT) * (1 - Math.max(0.02, (heights[f] - low) / ((high - low) || 1)));
    }

    const self = HT.plot.card({
      id: "tree", title: `Tree of ${net.unit.many}`, term: net.explained("tree"),
      controls: [labelled("collapse groups of", collapse), labelled("row height", zoom)],
      legends: (x, y, room) => HT.plot.legend(HT.colours.ofColumn(net, HT.state.get().color), x, y, room),
      draw: room => {
        tree = net.tree();
        width = room;
        const each = Number(zoom.value), {color} = HT.state.get();
        placed = layout(tree, HT.state.get().collapse, each);
        const right = width - NAMES - 2 * STRIP - 10;
        at = across(right);
        const element = svg("svg", {width, height: placed.height, viewBox: `0 0 ${width} ${placed.height}`, xmlns: "http://www.w3.org/2000/svg"});
        marks = svg("g");
        element.append(marks);
        const lines = [], labels = [];
        const grey = theme("dim"), dark = theme("text");
        const middle = f => { const [a, b] = placed.span(f); return (a + b) / 2; };
        for (let f = 0; f < tree.start.length; f++) {
          if (placed.hidden[f]) continue;
          const isClosed = placed.outer[tree.start[f]] === f, [a, b] = placed.span(f), x = at(f);
          const support = tree.support[f], isFirm = support >= LEAST, parent = tree.parent[f];
          const look = {fill: "none", stroke: isFirm ? dark : grey, "stroke-width": isFirm ? 1 + 2 * support : 1,
            "stroke-opacity": isFirm ? 0.35 + 0.65 * support : 1};
          const from = parent >= 0 ? at(parent) : LEFT - 8;
          lines.push(svg("path", {d: isClosed ? `M${from} ${a}H${right}` : `M${from} ${middle(f)}H${x}M${x} ${a}V${b}`, ...look}));
          if (isFirm && !isClosed && f && tree.size[f] * each >= 16) {
            const y = middle(f) - 3;
            if (labels.every(other => Math.abs(other.y - y) > 10 || Math.abs(other.x - x) > 32)) labels.push({x, y, words: percent(support)});
          }
        }
        for (let p = 0; p < tree.order.length; p++) {
          if (placed.outer[p] >= 0) continue;
          const y = placed.y(placed.rowOf[p]);
          lines.push(svg("path", {d: `M${at(tree.inner[p])} ${y}H${right}`, fill: "none", stroke: grey}));
        }
        element.append(...lines, ...labels.map(({x, y, words}) => text(x - 3, y, words, {"text-anchor": "end", "font-size": 10})));
        strips(element, right, each, color);
        mark();
        return element;
      },
      over: (x, y) => {
        const found = under(x, y);
        if (!found) return null;
        if (found.head !== undefined) return net.about(found.head);
        const support = tree.support[found.folder];
        return [el("strong", {}, `${tree.size[found.folder]} ${net.unit.many}${support >= LEAST ? `, support ${percent(support)}` : ""}`),
          el("div", {}, tree.words[found.folder])];
      },
      tapped: (x, y, add) => {
        const found = under(x, y);
        if (found) HT.state.select(found.head !== undefined ? [found.head] : tree.members(found.folder), add);
      },
    });
    self.target.classList.add("tall");
    self.target.tabIndex = 0;

    /** The layer and the chosen colour of each head, and its name. */
    function strips(element, right, each, color) {
      const own = HT.colours.ofColumn(net, color).colours, layer = net.isArray ? null : HT.colours.ofColumn(net, "layer").colours;
      const size = Math.min(11, each - 0.5), shortened = name => name.length > 10 ? `${name.slice(0, 9)}…` : name;
      if (layer) element.append(text(right + 4, 11, "layer", {"font-size": 9, fill: theme("soft")}));
      placed.rows.forEach(({head, folder}, row) => {
        const y = placed.y(row) - each / 2, name = right + 2 * STRIP + 8;
        if (folder !== undefined) {
          element.append(text(right + 4, y + each / 2 + 4, `▸ ${tree.size[folder]} ${net.unit.many}`, {"font-size": Math.max(8, size)}));
          return;
        }
        if (layer) element.append(rect(right + 3, y + 0.5, STRIP, each - 1, {fill: layer[head]}));
        element.append(rect(right + 4 + STRIP, y + 0.5, STRIP, each - 1, {fill: own[head]}));
        if (size >= 7) element.append(text(name, y + each / 2 + size / 3, shortened(net.names[head]), {"font-size": size, "data-name": head}));
      });
    }

    /** The head, or the innermost folder, at a place. */
    function under(x, y) {
      const each = Number(zoom.value), row = Math.floor((y - TOP) / each), own = placed?.rows[row];
      if (!own || x < 0 || x > width) return null;
      const p = own.head !== undefined ? tree.place[own.head] : tree.start[own.folder];
      if (own.head !== undefined && x > at(tree.inner[p])) return {head: own.head};
      let f = own.folder ?? tree.inner[p];
      while (f > 0 && x < at(f) - 3) f = tree.parent[f];
      return {folder: f};
    }

    function mark() {
      if (!marks || !placed) return;
      const {selected} = HT.state.get(), {isIn} = HT.filter.now(net), each = Number(zoom.value);
      marks.replaceChildren(...selected.map(head => {
        const y = placed.y(placed.rowOf[tree.place[head]]) - each / 2;
        return rect(width - NAMES - 2 * STRIP - 10, y, NAMES + 2 * STRIP + 10, each, {fill: theme("chosen"), stroke: "none", class: "chosen", "data-head": head});
      }));
      const chosen = new Set(selected);
      for (const name of self.drawing?.querySelectorAll("[data-name]") ?? []) {
        const head = Number(name.dataset.name);
        name.setAttribute("fill", isIn[head] ? theme(chosen.has(head) ? "accent" : "text") : theme("dim"));
        name.setAttribute("font-weight", chosen.has(head) ? 700 : 400);
      }
    }
    HT.state.subscribe(["collapse"], state => { collapse.value = String(state.collapse); });
    HT.state.subscribe(["selected", "filter"], mark);
    const draw = self.render;
    self.render = () => { draw(); mark(); };
    /** Where a folder of exactly these heads can be clicked. */
    self.placeOf = heads => {
      const first = Math.min(...heads.map(head => tree.place[head]));
      const f = tree.start.findIndex((start, i) => start === first && tree.size[i] === heads.length);
      const [a, b] = placed.span(f);
      return [at(f) + 1, (a + b) / 2];
    };
    self.placeOfHead = head => [width - 40, placed.y(placed.rowOf[tree.place[head]])];
    return self;
  }

  // -- the tree as a list ----------------------------------------------------------------------------------

  /** A folder of the list; the large ones near the root are open, which shows the main folders at once. */
  function item(net, tree, children, f, depth = 0) {
    const open = depth < OPEN && tree.size[f] >= LARGE * tree.size[0];
    const content = el("div", {class: "inside"});
    const firm = tree.support[f] >= LEAST ? [el("strong", {}, `Support ${percent(tree.support[f])}.`), " "] : [];
    const details = el("details", {open}, el("summary", {}, el("span", {}, tree.words[f]), " ", ...firm),
      button("Select", () => { HT.state.select(tree.members(f)); byId("heads").scrollIntoView(); }, {class: "small",
        "aria-label": `Select these ${tree.size[f]} ${net.unit.many}`}), content);
    const fill = () => {
      if (!details.open || content.hasChildNodes()) return;
      const inside = new Set(children[f].flatMap(child => tree.members(child)));
      const single = tree.members(f).filter(head => !inside.has(head));
      content.append(...children[f].map(child => item(net, tree, children, child, depth + 1)));
      if (single.length) {
        content.append(el("p", {class: "single"}, `Single ${net.unit.many}: `,
          ...single.flatMap((head, i) => [i ? ", " : "", headLink(net.names[head], [head])])));
      }
    };
    details.addEventListener("toggle", fill);
    if (open) fill();
    return details;
  }

  function list(net) {
    const target = el("div", {class: "folder-list"});
    byId("folders-slot").append(target);
    HT.later(byId("folders-slot"), ["basis", "input"], async () => {
      const tree = net.tree();
      const children = Array.from(tree.start, () => []);
      tree.parent.forEach((parent, f) => { if (parent >= 0) children[parent].push(f); });
      for (const own of children) own.sort((a, b) => tree.start[a] - tree.start[b]);
      target.replaceChildren(item(net, tree, children, 0));
    });
  }

  return {start, list};
})();
