/* What is chosen, in one place: views subscribe to it, and the address' fragment follows it. */
HT.state = (() => {
  const DEFAULTS = {
    input: 0, basis: "", selected: [], color: "layer", before: false, view: "layer", x: "coordinate_1", y: "coordinate_2",
    window: [], pin: -1, words: false, mean: false, same: false, queryLevel: 2, keyLevel: 2, collapse: 0, filter: "",
    sort: "",
  };
  const SHORT = {
    input: "i", basis: "b", selected: "s", color: "c", before: "u", view: "v", x: "x", y: "y", window: "z", pin: "p",
    words: "w", mean: "e", same: "m", queryLevel: "q", keyLevel: "k", collapse: "g", filter: "f", sort: "o",
  };
  let state = {...DEFAULTS};
  const listeners = new Set();
  let limits = {nHeads: () => 0, nInputs: 1, columns: [], kinds: [], nTokens: 0};

  const equal = (a, b) => Array.isArray(a) ? a.length === b.length && a.every((v, i) => v === b[i]) : a === b;

  /** Call `listener(state)` now and whenever one of the keys changes. */
  function subscribe(keys, listener) {
    listeners.add({keys, listener});
    listener(state);
  }

  /** Those who subscribed until now; `forget` keeps only them, `tell` tells all the state again. */
  const kept = () => [...listeners];
  function forget(first) {
    listeners.clear();
    for (const own of first) listeners.add(own);
  }
  const tell = () => { for (const own of [...listeners]) own.listener(state); };

  function apply(next) {
    const changed = Object.keys(DEFAULTS).filter(key => !equal(state[key], next[key]));
    if (!changed.length) return false;
    state = next;
    for (const own of [...listeners]) {
      if (listeners.has(own) && own.keys.some(key => changed.includes(key))) own.listener(state);
    }
    return true;
  }

  /** Change some keys; `replace` leaves no step in the history, for what changes while one types or moves. */
  function set(patch, {replace = false} = {}) {
    if (!apply({...state, ...patch})) return;
    const fragment = written();
    try {
      if (replace) history.replaceState(null, "", fragment || "#");
      else history.pushState(null, "", fragment || "#");
    } catch { /* a sandboxed frame has no history of its own */ }
  }

  /** 4, 5, 6, 9 as "4-6.9"; the order is kept. */
  function ranges(numbers) {
    const runs = [];
    for (const n of numbers) {
      const last = runs.at(-1);
      if (last && n === last[1] + 1) last[1] = n; else runs.push([n, n]);
    }
    return runs.map(([a, b]) => a === b ? `${a}` : `${a}-${b}`).join(".");
  }

  function numbers(text, n) {
    const found = new Set();
    for (const run of text.split(".").filter(Boolean)) {
      const [a, b = a] = run.split("-").map(Number);
      if (!Number.isInteger(a) || !Number.isInteger(b)) continue;
      for (let v = Math.max(0, a); v <= Math.min(b, n - 1); v++) found.add(v);
    }
    return [...found];
  }

  function written() {
    const parts = [];
    for (const [key, value] of Object.entries(state)) {
      if (equal(value, DEFAULTS[key])) continue;
      const text = key === "window" ? value.join(".") : Array.isArray(value) ? ranges(value) : value === true ? "1"
        : value === false ? "0" : value;
      parts.push(`${SHORT[key]}=${encodeURIComponent(text)}`);
    }
    return parts.length ? `#${parts.join("&")}` : "";
  }

  /** What a fragment says, as far as it makes sense for this run. */
  function read(fragment) {
    const next = {...DEFAULTS};
    const given = new URLSearchParams(fragment.replace(/^#/, ""));
    const number = (key, least, most) => {
      const value = Number(given.get(SHORT[key]));
      if (given.has(SHORT[key]) && Number.isInteger(value) && value >= least && value <= most) next[key] = value;
    };
    const oneOf = (key, values) => { if (values.includes(given.get(SHORT[key]))) next[key] = given.get(SHORT[key]); };
    number("input", 0, limits.nInputs - 1);
    number("queryLevel", 0, 255);
    number("keyLevel", 0, 255);
    number("collapse", 0, limits.nHeads(next.input));
    number("pin", 0, limits.nTokens - 1);
    oneOf("basis", [...limits.kinds, "input"]);
    oneOf("view", ["layer", "family", "given", "tree"]);
    for (const key of ["x", "y", "color"]) oneOf(key, limits.columns);
    for (const key of ["before", "words", "mean", "same"]) {
      if (given.has(SHORT[key])) next[key] = given.get(SHORT[key]) === "1";
    }
    for (const key of ["filter", "sort"]) next[key] = (given.get(SHORT[key]) || "").slice(0, 500);
    next.selected = numbers(given.get(SHORT.selected) || "", limits.nHeads(next.input));
    const window = (given.get(SHORT.window) || "").split(".").map(Number);
    if (window.length === 4 && window.every(v => Number.isInteger(v) && v >= 0 && v <= limits.nTokens) &&
        window[0] < window[1] && window[2] < window[3]) next.window = window;
    return next;
  }

  /** Begin with what the address says; `known` bounds what it may say. */
  function start(known, defaults) {
    limits = known;
    Object.assign(DEFAULTS, defaults);
    state = read(location.hash);
    const restore = () => apply(read(location.hash));
    addEventListener("popstate", restore);
    addEventListener("hashchange", restore);
  }

  /** Select exactly these heads, or add them (or take them away, if all are there) with `add`. */
  function select(heads, add = false) {
    if (!add) return set({selected: [...heads], mean: false});
    const had = new Set(state.selected);
    const all = heads.every(head => had.has(head));
    const rest = state.selected.filter(head => !heads.includes(head));
    return set({selected: all ? rest : [...state.selected, ...heads.filter(head => !had.has(head))]});
  }

  return {subscribe, kept, forget, tell, set, select, start, get: () => state};
})();
