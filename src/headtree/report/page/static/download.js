/* Files that the page hands over: drawings, tables, lists; and the address of what is seen. */
HT.download = (() => {
  const {el, svg} = HT.dom;
  const {theme} = HT.colours;
  const TWICE = 2;  // pixels of a PNG for each of the page

  function save(name, blob) {
    const address = URL.createObjectURL(blob);
    const link = el("a", {href: address, download: name});
    document.body.append(link);
    link.click();
    link.remove();
    setTimeout(() => URL.revokeObjectURL(address), 60_000);
  }

  /** A part of a file's name: letters and digits of any script. */
  const plain = text => text.replace(/[^\p{L}\p{N}]+/gu, "-").replace(/^-+|-+$/g, "").slice(0, 60) || "run";

  /** A card's drawing as a document of its own: title, the run's name, the drawing, a legend. */
  function sheet(card) {
    const {text, rect} = HT.plot, own = card.drawing, view = own.viewBox.baseVal;
    const top = 44, key = card.legends ? card.legends(12, top + view.height + 8, view.width - 24) : null;
    const width = view.width, height = top + view.height + (key ? key.height + 12 : 6);
    const inner = own.cloneNode(true);
    for (const [name, value] of [["x", 0], ["y", top], ["width", width], ["height", view.height]]) inner.setAttribute(name, value);
    for (const item of inner.querySelectorAll(".on-screen")) item.remove();
    return svg("svg", {xmlns: "http://www.w3.org/2000/svg", width, height, viewBox: `0 0 ${width} ${height}`},
      svg("title", {}, `${card.name()}, ${HT.network.text.name}`),
      rect(0, 0, width, height, {fill: theme("panel")}),
      text(12, 18, card.name(), {"font-size": 14, "font-weight": 600}),
      text(12, 35, HT.network.text.name, {"font-size": 11, fill: theme("soft")}), inner, ...(key ? [key.group] : []));
  }

  async function drawing(card, format) {
    const name = `${plain(HT.network.text.name)}-${card.id}.${format}`;
    const page = sheet(card), content = new XMLSerializer().serializeToString(page);
    if (format === "svg") { save(name, new Blob([content], {type: "image/svg+xml"})); return; }
    const picture = new Image();
    picture.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(content)}`;
    await picture.decode();
    const [width, height] = ["width", "height"].map(side => Math.round(TWICE * Number(page.getAttribute(side))));
    const canvas = el("canvas", {width, height});
    canvas.getContext("2d").drawImage(picture, 0, 0, width, height);
    save(name, await new Promise(resolve => canvas.toBlob(resolve)));
  }

  /** A picture of the run, from its address. */
  function picture(source) {
    const [head, content] = source.split(",");
    const media = /^data:([^;]+)/.exec(head)[1];
    const bytes = Uint8Array.from(atob(content), c => c.charCodeAt(0));
    const kind = media === "image/svg+xml" ? "svg" : media.split("/")[1];
    save(`${plain(HT.network.text.name)}-figure.${kind}`, new Blob([bytes], {type: media}));
  }

  const quoted = value => {
    const text = value === null || Number.isNaN(value) ? "" : String(value);
    return /[",\n\r]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
  };

  function csv(columns, rows) {
    const lines = [columns, ...rows].map(row => row.map(quoted).join(","));
    save(`${plain(HT.network.text.name)}-${HT.network.unit.many}.csv`, new Blob([`${lines.join("\n")}\n`], {type: "text/csv;charset=utf-8"}));
  }

  /** Copy a text, and say so on the button for a moment. */
  async function copy(text, button) {
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
    const before = button.dataset.name ||= button.textContent;
    button.textContent = "Copied";
    setTimeout(() => { button.textContent = before; }, 1500);
  }

  return {drawing, picture, csv, copy};
})();
