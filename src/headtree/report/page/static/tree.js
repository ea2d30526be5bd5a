/* The tree of heads: an icicle whose folders fold, and the same tree as a list in words. */
HT.tree = (() => {
  const {el, percent, options, labelled, byId} = HT.dom;
  const {card, figure, colour, isNarrow} = HT.plots;
  const SUPPORT = ["#fee5d9", "#fcc9b1", "#fca286", "#fb7a5a", "#ef4b37", "#cc1e1c", "#99000d"];  // none to full
  const LEAST = 0.005;  // support that is shown: less rounds to none
  const LABEL_WIDTH = 34;  // pixels that a label needs
  const SLIVER = 0.002;  // what is lower than this share of the picture is not drawn
  const LABEL_HEIGHT = 0.04;  // share of the picture that it needs

  const LARGE = 0.3, OPEN = 3;  // share of all heads, and levels, that the list shows open

  /** Position of each folder and leaf; folded ones take less room than their heads. */
  function layout(tree, folded) {
    const isFolded = new Set(folded);
    const nFolders = tree.start.length;
    const hidden = new Uint8Array(nFolders);
    const outer = new Int32Array(tree.order.length).fill(-1);  // outermost folded folder at each position
    for (let f = 0; f < nFolders; f++) {  // parents come before their children
      const parent = tree.parent[f];
      if (parent >= 0 && (hidden[parent] || isFolded.has(parent))) hidden[f] = 1;
      if (isFolded.has(f) && !hidden[f]) outer.fill(f, tree.start[f], tree.start[f] + tree.size[f]);
    }
    const left = new Float64Array(tree.order.length + 1);
    for (let p = 0; p < tree.order.length; p++) {
      const f = outer[p];
      const width = f < 0 ? 1 : (1 + Math.log2(tree.size[f])) / tree.size[f];
      left[p + 1] = left[p] + width;
    }
    const height = f => f < 0 ? top(tree) : 1 + Math.log2(tree.size[f]);
    const folders = [];
    for (let f = 0; f < nFolders; f++) {
      if (hidden[f]) continue;
      folders.push({
        f, folded: isFolded.has(f), left: left[tree.start[f]], right: left[tree.start[f] + tree.size[f]],
        top: height(tree.parent[f]), bottom: isFolded.has(f) ? 0 : height(f),
      });
    }
    const leaves = [];
    for (let p = 0; p < tree.order.length; p++) {
      if (outer[p] >= 0) continue;
      leaves.push({head: tree.order[p], left: left[p], right: left[p + 1], top: height(tree.inner[p]), bottom: 0});
    }
    return {folders, leaves, width: left[tree.order.length]};
  }

  /** Upper end of the root, which has no parent to hang from. */
  const top = tree => 2 + Math.log2(tree.size[0]);

  function supportColour(tree, f) {
    const support = tree.support[f];
    if (!(support >= LEAST)) return colour("faint");
    return SUPPORT[Math.min(SUPPORT.length - 1, Math.floor(support * SUPPORT.length))];
  }

  const column = (items, key) => items.map(item => item[key]);

  function labels(tree, placed, pixels) {
    const total = top(tree);
    const wide = placed.folders.filter(({f, left, right, top, bottom, folded}) =>
      (right - left) / placed.width * pixels > LABEL_WIDTH && (top - bottom) / total > LABEL_HEIGHT &&
      tree.parent[f] >= 0 && (folded || !(tree.support[f] < LEAST)));  // a "0 %" on every folder would say nothing
    const texts = wide.map(({f, folded}) => {
      const support = Number.isNaN(tree.support[f]) ? "" : `${Math.round(100 * tree.support[f])} %`;
      return folded ? `${tree.size[f]} heads` : support || String(tree.size[f]);
    });
    const dark = wide.map(({f}) => tree.support[f] > 0.55 ? "#ffffff" : Number.isNaN(tree.support[f])
      ? colour("text") : "#222222");
    return {x: wide.map(r => (r.left + r.right) / 2), y: wide.map(r => (r.top + r.bottom) / 2), text: texts, color: dark};
  }

  function picture(net) {
    let placed, tree;
    const levels = el("select", {id: "tree-levels"});
    const click = el("select", {id: "tree-click"});
    click.addEventListener("change", () => HT.state.set({click: click.value}));
    HT.state.subscribe(["click"], state =>
      options(click, [["select", "selects its heads"], ["fold", "folds or unfolds it"]], state.click));
    levels.addEventListener("change", () => {
      const most = Number(levels.value);
      const folds = f => tree.size[f] <= most && tree.parent[f] >= 0 && tree.size[tree.parent[f]] > most;
      HT.state.set({folded: Array.from(tree.size.keys()).filter(folds)});
    });
    const draw = backend => {
      const state = HT.state.get();
      tree = net.tree();
      placed = layout(tree, state.folded);
      const drawn = placed.folders.filter(({top: upper, bottom}) => upper - bottom > SLIVER * top(tree));
      const folders = new Bokeh.ColumnDataSource({data: {
        left: column(drawn, "left"), right: column(drawn, "right"), top: column(drawn, "top"),
        bottom: column(drawn, "bottom"),
        fill: drawn.map(({f}) => supportColour(tree, f)),
      }});
      const folded = drawn.filter(folder => folder.folded);
      const shown = HT.overview.coloured(net, state.color);
      const leaves = new Bokeh.ColumnDataSource({data: {
        left: column(placed.leaves, "left"), right: column(placed.leaves, "right"),
        top: column(placed.leaves, "top"), bottom: column(placed.leaves, "bottom"),
        fill: placed.leaves.map(({head}) => shown.colours[head]),
      }});
      const marks = new Bokeh.ColumnDataSource({data: chosen(tree, placed)});
      const fig = figure({
        height: isNarrow() ? 340 : 430, tools: "pan,wheel_zoom,box_zoom,reset", x_range: [0, placed.width],
        y_range: [-0.6, top(tree) + 0.05], y_axis_label: "heads in the folder", x_axis_label: "heads in tree order",
      }, backend);
      const isMany = net.nHeads > 300;  // then lines between heads would hide them, and cost time
      const edges = {left: {field: "left"}, right: {field: "right"}, top: {field: "top"}, bottom: {field: "bottom"}};
      fig.quad({...edges, source: folders, fill_color: {field: "fill"}, line_color: isMany ? null : colour("panel")});
      fig.quad({...edges, source: leaves, fill_color: {field: "fill"}, line_color: isMany ? null : colour("panel")});
      fig.quad({left: column(folded, "left"), right: column(folded, "right"), top: column(folded, "top"),
        bottom: column(folded, "bottom"), fill_color: null, line_color: null, hatch_pattern: "right_diagonal_line",
        hatch_color: colour("text"), hatch_alpha: 0.35});
      fig.quad({...edges, source: marks, fill_color: colour("accent"), line_color: null});
      fig.text({field: "x"}, {field: "y"}, {field: "text"}, {
        source: new Bokeh.ColumnDataSource({data: labels(tree, placed, (self?.target.clientWidth || 600) - 80)}),
        text_font_size: "11px", text_font: HT.plots.FONT, text_align: "center", text_baseline: "middle",
        text_color: {field: "color"},
      });
      fig.xaxis.major_label_text_font_size = "0px";
      fig.xaxis.major_tick_line_color = null;
      fig.xgrid.grid_line_color = null;
      fig.ygrid.grid_line_color = null;
      const powers = Array.from({length: Math.floor(Math.log2(net.nHeads)) + 1}, (_, i) => i);
      fig.yaxis.ticker = new Bokeh.FixedTicker({ticks: powers.map(i => i + 1)});
      fig.yaxis.major_label_overrides = new Map(powers.map(i => [i + 1, String(2 ** i)]));
      if (backend === "canvas") self.marks = marks;
      return fig;
    };
    const found = (x, y) => {
      const inside = r => r.left <= x && x < r.right && r.bottom <= y && y < r.top;
      return {folder: placed.folders.find(inside), leaf: placed.leaves.find(inside)};
    };
    const over = (x, y) => {
      const {folder, leaf} = found(x, y);
      if (leaf) return net.about(leaf.head);
      return folder ? aboutFolder(net, tree, folder.f) : null;
    };
    const tapped = (x, y, add) => {
      const {folder, leaf} = found(x, y);
      if (leaf) HT.state.select([leaf.head], add);
      else if (folder && HT.state.get().click === "fold") toggle(folder.f);
      else if (folder) HT.state.select(members(tree, folder.f), add);
    };
    const key = el("div", {class: "legends"});
    const self = card({
      id: "tree", title: "Tree of heads", draw, over, tapped,
      sentence: "",
      controls: [labelled("Click on a folder", click), labelled("fold folders of", levels)], after: [key],
    });
    HT.state.subscribe(["basis", "input"], () => {
      const t = net.tree();
      const sizes = Array.from({length: Math.max(0, Math.ceil(Math.log2(net.nHeads)) - 1)}, (_, i) => 2 ** (i + 1));
      options(levels, [[0, "no size"], ...sizes.map(n => [n, `up to ${n} heads`])], 0);
      const known = Array.from(t.support).filter(v => !Number.isNaN(v));
      const plain = !known.length ? "The tree of one input has no support; labels are numbers of heads."
        : known.every(v => v < LEAST) ? "No folder has support: other inputs show other folders." : "";
      key.replaceChildren(...(plain
        ? [el("span", {class: "legend"}, plain)]
        : [el("span", {class: "legend"}, "support: ", ...SUPPORT.map((fill, i) => {
            const swatch = el("i", {class: "swatch"});
            swatch.style.background = fill;
            return el("span", {class: "key"}, swatch, i === 0 ? "0 %" : i === SUPPORT.length - 1 ? "100 %" : "");
          }))]));
    });
    HT.overview.told(net, self, "Tree of heads", "From all heads (top) to single heads (bottom, in the colours of the " +
      "grid). ", " Colour and label of a folder are its support: how much of it other inputs put together, beyond " +
      "chance. Grey folders without a label hold no better than noise.");
    HT.state.subscribe(["basis", "input", "folded", "color"], () => self.redraw());
    HT.state.subscribe(["selected"], () => { if (self.marks) self.marks.data = chosen(tree, placed); }, {late: true});
    return self;
  }

  const members = (tree, f) => Array.from(tree.order.subarray(tree.start[f], tree.start[f] + tree.size[f]));

  function toggle(f) {
    const {folded} = HT.state.get();
    HT.state.set({folded: folded.includes(f) ? folded.filter(g => g !== f) : [...folded, f].sort((a, b) => a - b)});
  }

  /** A bar under every selected head, and under every folded folder that holds one. */
  function chosen(tree, placed) {
    const selected = new Set(HT.state.get().selected);
    const spans = placed.leaves.filter(({head}) => selected.has(head));
    for (const folder of placed.folders) {
      if (folder.folded && members(tree, folder.f).some(head => selected.has(head))) spans.push(folder);
    }
    const least = placed.width / 300;  // what can be seen
    return {left: column(spans, "left"), right: spans.map(({left, right}) => Math.max(right, left + least)),
      top: spans.map(() => -0.12), bottom: spans.map(() => -0.5)};
  }

  function headline(tree, f) {
    const support = tree.support[f];
    return `${tree.size[f]} heads${support >= LEAST ? `, support ${percent(support)}` : ""}`;
  }

  function aboutFolder(net, tree, f) {
    return [el("strong", {}, `Folder of ${headline(tree, f)}`), el("div", {}, tree.words[f])];
  }

  // -- the tree as a list ----------------------------------------------------------------------------------

  /** A folder of the list; the large ones near the root are open, so that the main folders are seen at once. */
  function item(net, tree, children, f, depth = 0) {
    const open = depth < OPEN && tree.size[f] >= LARGE * tree.size[0];
    const content = el("div", {class: "inside"});
    const details = el("details", {open}, el("summary", {},
      el("span", {}, tree.words[f]), " ", ...(!(tree.support[f] >= LEAST) ? []
        : [el("strong", {}, `Support ${percent(tree.support[f])}.`), " "]),
      el("button", {type: "button", onclick: event => { event.preventDefault(); HT.state.select(members(tree, f)); },
        "aria-label": `Select these ${tree.size[f]} heads`}, "Select")), content);
    const fill = () => {
      if (!details.open || content.hasChildNodes()) return;
      const inner = children[f].map(child => item(net, tree, children, child, depth + 1));
      const inside = new Set(children[f].flatMap(child => members(tree, child)));
      const single = members(tree, f).filter(head => !inside.has(head));
      content.append(...inner);
      if (single.length) {
        content.append(el("p", {class: "single"}, "Single heads: ", ...single.flatMap((head, i) => [
          i ? ", " : "", el("button", {type: "button", class: "link", onclick: () => HT.state.select([head])},
            net.names[head])])));
      }
    };
    details.addEventListener("toggle", fill);
    if (open) fill();
    return details;
  }

  function list(net) {
    const target = el("div", {class: "folder-list"});
    byId("folders").append(target);
    HT.state.subscribe(["basis", "input"], () => {
      const tree = net.tree();
      const children = Array.from(tree.start, () => []);
      tree.parent.forEach((parent, f) => { if (parent >= 0) children[parent].push(f); });
      for (const own of children) own.sort((a, b) => tree.start[a] - tree.start[b]);
      target.replaceChildren(item(net, tree, children, 0));
    });
  }

  return {picture, list, layout};
})();
