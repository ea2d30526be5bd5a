/* Files that the page hands over: figures, tables, lists. */
HT.download = (() => {
  const {el} = HT.dom;

  function save(name, blob) {
    const address = URL.createObjectURL(blob);
    const link = el("a", {href: address, download: name});
    document.body.append(link);
    link.click();
    link.remove();
    setTimeout(() => URL.revokeObjectURL(address), 60_000);
  }

  /** A card's figure as it is seen; SVG is drawn anew by Bokeh's own SVG canvas. */
  async function plot(card, format) {
    const name = `${card.id}.${format}`;
    if (format === "png") {
      save(name, await card.view.export("png", true).to_blob());
      return;
    }
    const host = el("div", {class: "offstage", style: `width:${card.target.clientWidth}px`});
    document.body.append(host);
    try {
      const view = await Bokeh.Plotting.show(card.draw("svg"), host);
      await HT.plots.still(view);
      save(name, await view.export("svg").to_blob());
      view.remove();
    } finally {
      host.remove();
    }
  }

  /** A picture of the run, from its address. */
  function picture(source) {
    const [head, content] = source.split(",");
    const media = /^data:([^;]+)/.exec(head)[1];
    const bytes = Uint8Array.from(atob(content), c => c.charCodeAt(0));
    save(`figure.${media === "image/svg+xml" ? "svg" : media.split("/")[1]}`, new Blob([bytes], {type: media}));
  }

  const quoted = value => {
    const text = value === null || Number.isNaN(value) ? "" : String(value);
    return /[",\n\r]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
  };

  function csv(name, columns, rows) {
    const lines = [columns, ...rows].map(row => row.map(quoted).join(","));
    save(name, new Blob([`${lines.join("\n")}\n`], {type: "text/csv;charset=utf-8"}));
  }

  async function copy(text) {
    try {
      await navigator.clipboard.writeText(text);
    } catch {  // no permission: the old way
      const area = el("textarea", {class: "offstage"});
      area.value = text;
      document.body.append(area);
      area.select();
      document.execCommand("copy");
      area.remove();
    }
  }

  return {plot, picture, csv, copy};
})();
