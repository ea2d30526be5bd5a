/* All heads as small pictures: a row for each layer, or a row for each family with its mean. */
HT.grid = (() => {
  const {el, svg, byId, labelled, options, counted} = HT.dom;
  const {theme} = HT.colours;
  const {text, rect} = HT.plot;
  const LEFT = 34, TOP = 18, GAP = 2, MOST = 96, LEAST = 13, NAMED = 18;
  const MOST_WIDE = 0.4;  // of the window's width, where the head has its place beside
  const SHARE = 0.68;  // of the window's height that layers may take

  /** Where every head is, by layer: {items, labels, width, height, side}. */
  function byLayer(net, room) {
    const layers = net.column("layer").values, places = net.column("head").values;
    const rows = [...new Set(layers)].sort((a, b) => a - b), nColumns = Math.max(...places) + 1;
    const high = Math.max(420, innerHeight * SHARE) / rows.length;
    const side = Math.max(LEAST, Math.min(MOST, Math.floor((Math.max(room, MOST_WIDE * innerWidth) - LEFT) / nColumns), Math.max(24, Math.floor(high))));
    const items = Array.from(layers, (layer, head) => ({head, x: LEFT + places[head] * side, y: TOP + rows.indexOf(layer) * side}));
    const step = Math.ceil(28 / side);
    const labels = [
      ...rows.map((layer, i) => [LEFT - 5, TOP + (i + 0.5) * side + 4, `L${layer}`, "end"]).filter((_, i) => i % Math.ceil(13 / side) === 0),
      ...Array.from({length: nColumns}, (_, j) => [LEFT + (j + 0.5) * side, TOP - 5, `H${j}`, "middle"]).filter((_, j) => j % step === 0),
    ];
    document.querySelector(".hero").style.setProperty("--left", `${Math.max(320, LEFT + nColumns * side + 32)}px`);
    return {items, labels, means: [], side, width: LEFT + nColumns * side, height: TOP + rows.length * side + 2};
  }

  /** Where every head is, by family; each row begins with the mean of its heads. */
  function byFamily(net, room) {
    const side = net.nHeads > 400 ? 18 : 30, big = 2 * side, perRow = Math.max(4, Math.floor((room - big - 12) / side));
    const items = [], labels = [], means = [];
    let y = 0;
    const inNone = Array.from({length: net.nHeads}, (_, i) => i).filter(i => !net.familyOf(i));
    const groups = [...net.families.map(family => ({title: `Family ${family.family}: ${family.words}`, heads: net.indices(family.heads)})),
      ...(inNone.length ? [{title: `In no family: ${counted(inNone.length, net.unit)}`, heads: inNone, none: true}] : [])];
    for (const group of groups) {
      labels.push([0, y + 13, group.title, "start", room]);
      y += 18;
      if (!group.none) means.push({heads: group.heads, x: 0, y, side: big});
      const order = [...group.heads].sort((a, b) => net.joint.place[a] - net.joint.place[b]);
      order.forEach((head, i) => items.push({head, x: big + 12 + (i % perRow) * side, y: y + Math.floor(i / perRow) * side}));
      y += Math.max(group.none ? 0 : big, Math.ceil(order.length / perRow) * side) + 8;
    }
    return {items, labels, means, side, width: room, height: y};
  }

  /** Where every slice of an array is, as given or in the order of the tree; or every depth, with its name. */
  function inRows(net, room) {
    const side = Math.max(18, Math.min(MOST, Math.floor(Math.sqrt(room * innerHeight * SHARE / net.nHeads)))), perRow = Math.max(1, Math.floor(room / side));
    const order = HT.state.get().view === "tree" ? Array.from(net.joint.order) : net.names.map((_, i) => i);
    const above = net.isArray ? 0 : NAMED, pitch = side + above;
    const items = order.map((head, i) => ({head, x: (i % perRow) * side, y: Math.floor(i / perRow) * pitch + above}));
    const labels = above ? items.map(({head, x, y}) => [x + side / 2, y - 4, net.names[head], "middle"]) : [];
    return {items, labels, means: [], side, width: Math.min(room, perRow * side), height: Math.ceil(order.length / perRow) * pitch + 2};
  }

  function start(net) {
    let layout = null, marks = null, pictures = null, buttons = [];
    const view = el("select", {id: "grid-view"});
    view.addEventListener("change", () => HT.state.set({view: view.value}));
    const overlay = el("div", {class: "stops"});
    const note = el("p", {class: "note", hidden: true}, "The pictures are of another input: those of this one were left out.");
    const at = (x, y) => layout?.items.find(item => x >= item.x && x < item.x + layout.side && y >= item.y && y < item.y + layout.side);
    const meanAt = (x, y) => layout?.means.find(item => x >= item.x && x < item.x + item.side && y >= item.y && y < item.y + item.side);

    const self = HT.plot.card({
      id: "grid", title: `All ${net.unit.many}`, term: net.explained(net.unit.one), role: "group", sentence: "", after: [note],
      controls: net.hasFamilies || net.isArray ? [labelled("arranged by", view)] : [],
      legends: (x, y, width) => HT.plot.legend(HT.colours.ofColumn(net, HT.state.get().color), x, y, width),
      draw: width => {
        layout = (HT.state.get().view === "family" && net.hasFamilies ? byFamily : net.isArray || net.nHeads === net.text.layers ? inRows : byLayer)(net, width);
        const {side, height} = layout, wide = Math.max(width, layout.width);
        const element = svg("svg", {width: wide, height, viewBox: `0 0 ${wide} ${height}`, xmlns: "http://www.w3.org/2000/svg"});
        if (pictures) element.append(picture(wide, height));
        for (const [x, y, words, anchor, room] of layout.labels) {
          const most = room ? Math.floor(room / 6.3) : 99;
          element.append(text(x, y, words.length > most ? `${words.slice(0, most - 1)}…` : words,
            {"text-anchor": anchor, "font-size": 11, fill: theme(room ? "text" : "soft")}));
        }
        marks = svg("g");
        element.append(marks);
        mark();
        stops(side);
        return element;
      },
      over: (x, y) => {
        const item = at(x, y), mean = meanAt(x, y);
        return item ? net.about(item.head) : mean ? [`Mean of the ${counted(mean.heads.length, net.unit)} of this family: click to see it large`] : null;
      },
      tapped: (x, y, add) => {
        const item = at(x, y), mean = meanAt(x, y);
        if (item) HT.state.select([item.head], add);
        else if (mean) HT.state.set({selected: mean.heads, mean: true});
      },
      dragged: ([x0, y0, x1, y1], add) => {
        const inside = layout.items.filter(({x, y}) => x + layout.side > x0 && x < x1 && y + layout.side > y0 && y < y1)
          .map(item => item.head).sort((a, b) => a - b);
        if (inside.length) HT.state.select(inside, add);
      },
    });
    self.target.prepend(overlay);

    /** All thumbnails as one image. */
    function picture(width, height) {
      const sharp = Math.min(2, devicePixelRatio > 1 ? 2 : 1.5);
      const canvas = el("canvas", {width: Math.ceil(width * sharp), height: Math.ceil(height * sharp)});
      const context = canvas.getContext("2d");
      context.scale(sharp, sharp);
      context.imageSmoothingEnabled = layout.side < pictures.nColumns * sharp;
      for (const {head, x, y} of layout.items) pictures.draw(context, head, x, y, layout.side - GAP);
      context.imageSmoothingEnabled = false;
      for (const {heads, x, y, side} of layout.means) context.drawImage(HT.thumbnails.mean(pictures, heads), x, y, side - GAP, side - GAP);
      return svg("image", {x: 0, y: 0, width, height, href: canvas.toDataURL()});
    }

    /** Colours, filter and selection, over the pictures. */
    function mark() {
      if (!marks) return;
      const {selected, color} = HT.state.get(), chosen = new Set(selected), {isIn} = HT.filter.now(net);
      const {colours} = HT.colours.ofColumn(net, color), side = layout.side - GAP, strip = Math.max(2.5, side / 12);
      marks.replaceChildren(...layout.items.flatMap(({head, x, y}) => [
        rect(x, y + side - strip, side, strip, {fill: colours[head]}),
        ...(isIn[head] ? [] : [rect(x, y, side, side, {fill: theme("panel"), "fill-opacity": 0.82})]),
        ...(chosen.has(head) ? [rect(x - 0.5, y - 0.5, side + 1, side + 1, {fill: "none", stroke: theme("accent"), "stroke-width": 2.5,
          class: "chosen", "data-head": head})] : []),
      ]));
    }

    /** A stop for the keyboard on every head: arrows move, Enter selects, Shift-Enter adds. */
    function stops(side) {
      const focused = buttons.findIndex(item => item === document.activeElement);
      const {selected} = HT.state.get(), first = selected[0] ?? net.first;
      buttons = [];
      overlay.replaceChildren(...layout.items.map(({head, x, y}) => {
        const stop = el("button", {type: "button", class: "stop", "aria-label": net.label(head), "data-head": head,
          "aria-pressed": String(selected.includes(head)), tabindex: head === first ? 0 : -1});
        Object.assign(stop.style, {left: `${x}px`, top: `${y}px`, width: `${side - GAP}px`, height: `${side - GAP}px`});
        buttons[head] = stop;
        return stop;
      }));
      if (focused >= 0) buttons[focused]?.focus();
    }
    overlay.addEventListener("click", event => {
      const head = event.target.dataset.head;
      if (head !== undefined) HT.state.select([Number(head)], event.shiftKey);
    });
    overlay.addEventListener("keydown", event => {
      const step = {ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1]}[event.key];
      const head = Number(event.target.dataset.head);
      if (event.key === "Enter" && event.shiftKey) { event.preventDefault(); HT.state.select([head], true); }
      if (!step) return;
      event.preventDefault();
      const own = layout.items.find(item => item.head === head);
      const ahead = layout.items.map(item => ({item, along: (item.x - own.x) * step[0] + (item.y - own.y) * step[1],
        aside: Math.abs((item.x - own.x) * step[1]) + Math.abs((item.y - own.y) * step[0])})).filter(({along}) => along > 0);
      const next = ahead.sort((a, b) => (a.along + 4 * a.aside) - (b.along + 4 * b.aside))[0]?.item;
      if (next) {
        buttons[head].tabIndex = -1;
        buttons[next.head].tabIndex = 0;
        buttons[next.head].focus();
      }
    });

    const load = async () => {
      const {input} = HT.state.get(), found = await HT.thumbnails.of(net, input);
      if (input !== HT.state.get().input) return;
      note.hidden = Boolean(found);
      if (found) pictures = found;
      self.render();
    };
    byId("grid-slot").append(self.element);
    options(view, net.isArray ? [["given", "place in the array"], ["tree", "place in the tree"]]
      : [["layer", "layer"], ["family", "family, with means"]], HT.state.get().view);
    HT.state.subscribe(["input", "view"], state => { view.value = state.view; HT.track(load()); });
    HT.state.subscribe(["selected", "filter", "color"], state => {
      mark();
      const chosen = new Set(state.selected);
      const first = state.selected[0] ?? net.first;
      buttons.forEach((stop, head) => {
        stop.setAttribute("aria-pressed", String(chosen.has(head)));
        stop.tabIndex = head === first ? 0 : -1;
      });
    });
    const [down, across] = net.isArray ? net.text.sides : ["queries", "keys"];
    self.sentence.append(`Each picture is a ${net.unit.one}: ${down} down, ${across} across${net.text.over?.length ? `, the mean over ${net.text.over.join(" and ")}` : ""}. Click one, Shift-click or drag for several.`);
    return self;
  }

  return {start};
})();
