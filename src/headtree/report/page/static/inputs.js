/* One head on all inputs, side by side. */
HT.inputs = (() => {
  const {svg, byId, visible} = HT.dom;
  const {theme} = HT.colours;
  const {text, rect} = HT.plot;
  const SIDE = 132, GAP = 14, MOST = 24;

  function start(net) {
    let pictures = [], perRow = 1;
    const self = HT.plot.card({
      id: "all-inputs", title: `This ${net.unit.one} on all inputs`, level: "h3", term: net.explained("stability"),
      sentence: `The first selected ${net.unit.one} on each input, each on a scale of its own. Click one to look at that input.`,
      draw: width => {
        perRow = Math.max(1, Math.floor(width / (SIDE + GAP)));
        const rows = Math.ceil(pictures.length / perRow), height = rows * (SIDE + 34);
        const element = svg("svg", {width, height, viewBox: `0 0 ${width} ${height}`, xmlns: "http://www.w3.org/2000/svg"});
        pictures.forEach((own, i) => {
          const x = (i % perRow) * (SIDE + GAP), y = Math.floor(i / perRow) * (SIDE + 34);
          const name = visible(net.inputs[own.input], 16);
          element.append(text(x, y + 13, `${own.input}: ${name}`, {"font-size": 11}), rect(x, y + 18, SIDE, SIDE, {fill: theme("faint")}));
          if (own.pixels) element.append(HT.plot.image(own.pixels, own.rows, own.columns, x, y + 18, SIDE, SIDE));
          else element.append(text(x + SIDE / 2, y + 18 + SIDE / 2, "left out", {"text-anchor": "middle", fill: theme("soft")}));
          if (own.input === HT.state.get().input) {
            element.append(rect(x - 1, y + 17, SIDE + 2, SIDE + 2, {fill: "none", stroke: theme("accent"), "stroke-width": 2}));
          }
        });
        return element;
      },
      tapped: (x, y) => {
        const own = pictures[Math.floor(y / (SIDE + 34)) * perRow + Math.floor(x / (SIDE + GAP))];
        if (own && own.pixels) HT.state.set({input: own.input});
      },
    });
    byId("inputs-slot").append(self.element);

    HT.later(byId("inputs-slot"), ["selected", "input"], async isOutdated => {
      const head = HT.state.get().selected[0] ?? net.first;
      self.heading.textContent = `${net.names[head]} on all inputs`;
      const found = [];
      for (let input = 0; input < Math.min(net.inputs.length, MOST); input++) {
        const part = await HT.data.part(`${net.main}_${input}`);
        if (isOutdated()) return;
        if (!part) { found.push({input}); continue; }
        const small = HT.thumbnails.shrunk(HT.fields.ofHead(part, head), 96);
        found.push({input, pixels: HT.thumbnails.pixelsOf(small.codes, part.text.signed), rows: small.rows, columns: small.columns});
      }
      pictures = found;
      self.render();
    });
  }

  return {start};
})();
