/* In the run of a token tensor, whose slices are depths, no word of the page calls them heads. */
HT.slices = (() => {
  const KEPT = "bdi, .token, .t, option, th, h1, script, style";  // tokens, names that users gave, columns
  const ATTRIBUTES = ["aria-label", "title", "placeholder", "alt"];
  const named = text => text.replace(/\bL(\d+)H0\b/g, "L$1");

  /** A sentence about heads as one about depths, as `said_of` of headtree.report.words.slice_words. */
  const said = text => named(text.replace(/\b([Hh])ead(s?)\b/g, (_, first, many) => `${first === "H" ? "D" : "d"}epth${many}`));

  function change(node) {
    if (node.nodeType === Node.TEXT_NODE) {
      const parent = node.parentElement;
      if (!parent || parent.closest(KEPT)) return;
      const text = parent.closest("svg") ? (/^L\d+H0$/.test(node.data) ? named(node.data) : node.data) : said(node.data);
      if (text !== node.data) node.data = text;
      return;
    }
    if (node.nodeType !== Node.ELEMENT_NODE) return;
    for (const name of ATTRIBUTES) {
      const text = node.getAttribute(name);
      if (text !== null && said(text) !== text) node.setAttribute(name, said(text));
    }
    for (const child of node.childNodes) change(child);
  }

  function start(net) {
    if (net.text.unit.one !== "depth") return;
    change(document.body);
    new MutationObserver(records => {
      for (const {type, target, addedNodes} of records) {
        if (type === "childList") addedNodes.forEach(change); else change(target);
      }
    }).observe(document.body, {subtree: true, childList: true, characterData: true, attributes: true, attributeFilter: ATTRIBUTES});
  }

  return {start};
})();
