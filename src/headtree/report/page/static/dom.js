/* Elements, texts and numbers. All text goes through textContent: a token is never markup. */
HT.dom = (() => {
  const SVG = "http://www.w3.org/2000/svg";

  function filled(element, attributes, children) {
    for (const [name, value] of Object.entries(attributes)) {
      if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
      else if (value === true) element.setAttribute(name, "");
      else if (value !== false && value !== null && value !== undefined) element.setAttribute(name, value);
    }
    element.append(...children);
    return element;
  }

  /** An element with attributes and children; strings become text. */
  const el = (tag, attributes = {}, ...children) => filled(document.createElement(tag), attributes, children);

  /** The same for the elements of a drawing. */
  const svg = (tag, attributes = {}, ...children) => filled(document.createElementNS(SVG, tag), attributes, children);

  const byId = id => document.getElementById(id);

  /** Characters that show nothing or move others are written out; joiners within a word or an emoji stay. */
  const HIDDEN = /[\u0000-\u001f\u007f-\u009f\u00ad\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff]|(?<![\p{L}\p{M}\p{Extended_Pictographic}\ufe0f])[\u200c\u200d]|[\u200c\u200d](?![\p{L}\p{M}\p{Extended_Pictographic}])/gu;
  const NAMES = {"\n": "⏎", "\t": "⇥", "\r": "␍"};

  /** A token as text that can be shown, with spaces and controls visible. */
  function visible(text, atMost = 60) {
    const characters = Array.from(text);
    const shown = characters.slice(0, atMost).join("") + (characters.length > atMost ? "…" : "");
    return shown.replace(HIDDEN, c =>
      NAMES[c] || `⟨U+${c.codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}⟩`)
      .replace(/^ +| +$/g, s => "␣".repeat(s.length)) || "∅";
  }

  /** A token as an element, in its own direction. */
  const token = (text, atMost = 60) => el("bdi", {class: "token"}, visible(text, atMost));

  const SUPERSCRIPT = {"-": "⁻", 0: "⁰", 1: "¹", 2: "²", 3: "³", 4: "⁴", 5: "⁵", 6: "⁶", 7: "⁷", 8: "⁸", 9: "⁹"};

  /** A number as `number_words` of headtree.report.words.numbers writes it: 0.05, 12, 1,500, 2·10⁶, 10⁻⁴. */
  function number(value) {
    if (!Number.isFinite(value)) return "–";
    const size = Math.abs(value);
    if (size === 0) return "0";
    if (size >= 999.5 && size < 1e5) return Math.round(value).toLocaleString("en-US");
    if (size >= 1e-3 && size < 999.5) return String(Number(value.toPrecision(3)));
    const [mantissa, exponent] = value.toExponential(2).split("e");
    const power = "10" + Array.from(String(Number(exponent)), c => SUPERSCRIPT[c]).join("");
    return Number(mantissa) === 1 ? power : `${Number(mantissa)}·${power}`;
  }

  const percent = share => Number.isNaN(share) || share === null ? "–" : `${Math.round(100 * share)} %`;

  const TITLES = {structure: "structure score", structure_rank: "rank by structure score", effect_error: "error of effect"};

  /** A column's name in words. */
  const words = name => TITLES[name] || name.replace(/^structure_(\d+)$/, "structure score, input $1")
    .replaceAll("_", " ").replace(/^shannon/, "Shannon").replace(/^haar/, "Haar");

  /** How many there are of a unit: "1 head", "3 heads". */
  const counted = (n, unit) => `${n} ${n === 1 ? unit.one : unit.many}`;

  /** Options of a select element, with the chosen one. */
  function options(select, pairs, chosen) {
    select.replaceChildren(...pairs.map(([value, text]) => el("option", {value}, text)));
    select.value = String(chosen);
  }

  const labelled = (text, control) => el("label", {}, `${text} `, control);

  const button = (text, onclick, attributes = {}) => el("button", {type: "button", onclick, ...attributes}, text);

  /** A button that selects heads, and looks like a link. */
  const headLink = (text, heads) => button(text, event => HT.state.select(heads, event.shiftKey),
    {class: "link", title: heads.length > 1 ? `Select these ${HT.network.unit.many}` : `Select this ${HT.network.unit.one}`});

  /** A "?" that explains a word: on hover, on focus, and to screen readers. */
  function why(text) {
    const mark = el("button", {type: "button", class: "why", "aria-label": `What is this? ${text}`}, "?");
    mark.addEventListener("click", event => hint(event.clientX ? event : mark.getBoundingClientRect(), [text]));
    explains(mark, text);
    return mark;
  }

  /** Explain an element on hover and on focus. */
  function explains(element, text) {
    const show = event => hint(event.clientX ? event : element.getBoundingClientRect(), [text]);
    element.addEventListener("pointerenter", show);
    element.addEventListener("focus", () => { if (element.matches(":focus-visible")) show({}); });
    for (const leave of ["pointerleave", "blur"]) element.addEventListener(leave, () => hint(null, null));
  }

  /** A table of plain values; numbers are set right. */
  function table(caption, columns, rows) {
    const cell = value => typeof value === "number"
      ? el("td", {class: "number"}, number(value))
      : el("td", {}, value instanceof Node ? value : value === null ? "–" : String(value));
    const kind = i => rows.length && typeof rows[0][i] === "number" ? "number" : null;
    return el("div", {class: "scroll", tabindex: "0", role: "group", "aria-label": caption},
      el("table", {},
        el("caption", {}, caption),
        el("thead", {}, el("tr", {}, ...columns.map((name, i) => String(name)
          ? el("th", {scope: "col", class: kind(i)}, String(name)) : el("td")))),
        el("tbody", {}, ...rows.map(row => el("tr", {}, ...row.map(cell))))));
  }

  /** A fold that makes its content when it is first opened, and again when `refresh` is called. */
  function lazily(summary, make) {
    const content = el("div");
    const details = el("details", {class: "as-table"}, el("summary", {}, summary), content);
    const fill = () => { if (details.open) content.replaceChildren(make()); };
    details.addEventListener("toggle", fill);
    return {element: details, refresh: fill};
  }

  const tooltip = byId("tooltip");

  /** Show what is under the pointer; nothing hides it. */
  function hint(event, children) {
    if (!children) { tooltip.hidden = true; return; }
    tooltip.replaceChildren(...children);
    tooltip.hidden = false;
    const x = event.clientX ?? event.right, y = event.clientY ?? event.bottom;
    const box = tooltip.getBoundingClientRect();
    const left = x + 16 + box.width > innerWidth ? x - box.width - 12 : x + 16;
    const top = y + 16 + box.height > innerHeight ? y - box.height - 12 : y + 16;
    tooltip.style.left = `${Math.max(4, left)}px`;
    tooltip.style.top = `${Math.max(4, top)}px`;
  }

  // a finger leaves no pointer behind that could move away
  addEventListener("scroll", () => hint(null, null), {passive: true});
  addEventListener("pointerdown", event => { if (event.pointerType === "touch") hint(null, null); }, true);
  addEventListener("keydown", event => { if (event.key === "Escape") hint(null, null); });

  return {el, svg, byId, token, visible, number, percent, words, counted, options, labelled, button, headLink, why, explains, table, lazily,
    hint};
})();
