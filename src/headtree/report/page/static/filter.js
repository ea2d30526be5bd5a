/* Filters as people type them: "L3H5, L4H2", "role = previous token", "layer 3-5 and confidence > 0.5". */
HT.filter = (() => {
  const {words} = HT.dom;
  const LAYER = /^(?:l|layer)s? ?=? ?(\d+)(?:\s*[-–]\s*(\d+))?$/;
  const FAMILY = /^famil(?:y|ies) ?=? ?(\d+|none)$/, COMPARE = /^(.+?)\s*(<=|>=|!=|=|<|>|≤|≥|:)\s*(.+)$/;
  const OPERATORS = {"<": (a, b) => a < b, ">": (a, b) => a > b, "<=": (a, b) => a <= b, ">=": (a, b) => a >= b,
    "≤": (a, b) => a <= b, "≥": (a, b) => a >= b, "=": (a, b) => a === b, ":": (a, b) => a === b, "!=": (a, b) => a !== b};

  const simple = text => text.toLowerCase().replaceAll("_", " ").replace(/\s+/g, " ").trim();

  /** The column that a person means: by its name, its name in words, or the beginning of one. */
  function columnOf(net, text) {
    const name = simple(text), is = test => net.columns.find(column => test(simple(column.name)) || test(simple(words(column.name))));
    return is(own => own === name) || is(own => own.startsWith(name)) || null;
  }

  /**
   * One term as {group, test}: tests of the same group are alternatives ("L3H5, L4H2"), different groups all have to
   * hold. A string says what is wrong.
   */
  function term(net, text) {
    const isName = net.unit.name && new RegExp(`^${net.unit.name}$`, "i").test(text);
    if (isName || net.names.some(name => simple(name) === text)) return {group: "name", test: i => simple(net.names[i]) === text};
    let match = LAYER.exec(text);
    if (match && net.column("layer")) {
      const low = Number(match[1]), high = Number(match[2] ?? match[1]), layers = net.column("layer").values;
      return {group: "layer", test: i => layers[i] >= low && layers[i] <= high};
    }
    match = FAMILY.exec(text);
    if (match && net.column("family")) {
      const family = match[1] === "none" ? -1 : Number(match[1]), values = net.column("family").values;
      return {group: "family", test: i => values[i] === family};
    }
    match = COMPARE.exec(text);
    if (match) return comparison(net, ...match.slice(1));
    const texts = net.columns.filter(column => column.type === "word" && column.name !== "leaning");
    const isKnown = texts.some(column => column.words.some(word => simple(word).includes(text)));
    if (!isKnown) {
      return `Nothing is called “${text}”. Try ${net.unit.examples}.`;
    }
    return {group: "word", test: i => texts.some(column => simple(column.words[i]).includes(text))};
  }

  function comparison(net, name, operator, wanted) {
    const column = columnOf(net, name);
    if (!column) return `There is no column “${name}”. Columns: ${net.columns.slice(1, 9).map(c => words(c.name)).join(", ")}, …`;
    const same = operator === "=" || operator === ":" || operator === "!=";
    if (column.type === "word") {
      if (!same) return `“${words(column.name)}” is a word: use =.`;
      const value = wanted === "none" ? "" : wanted, is = i => simple(column.words[i]) === value;
      return {group: operator === "!=" ? null : column.name, test: operator === "!=" ? i => !is(i) : is};
    }
    const value = Number(wanted.replace(/\s*%$/, "")) / (wanted.endsWith("%") ? 100 : 1);
    if (Number.isNaN(value)) return `“${words(column.name)}” is a number, not “${wanted}”.`;
    return {group: operator === "=" || operator === ":" ? column.name : null, test: i => OPERATORS[operator](column.values[i], value)};
  }

  const terms = text => text.split(/[,;&]|\band\b/i).map(simple).filter(Boolean);

  /** Which heads a text is about: {heads, problem}; all of them if it is empty. */
  function found(net, text) {
    const groups = new Map(), rest = [];
    for (const part of terms(text)) {
      const own = term(net, part);
      if (typeof own === "string") return {heads: [], problem: own};
      if (own.group === null) rest.push(own.test);
      else groups.set(own.group, [...(groups.get(own.group) || []), own.test]);
    }
    const all = Array.from({length: net.nHeads}, (_, i) => i);
    return {problem: "", heads: all.filter(i => rest.every(test => test(i)) &&
      [...groups.values()].every(tests => tests.some(test => test(i))))};
  }

  let memory = {text: null};

  /** The same for what is typed now, worked out once. */
  function now(net) {
    const {filter} = HT.state.get();
    if (memory.text !== filter || memory.net !== net) {
      const result = found(net, filter), isIn = new Uint8Array(net.nHeads);
      for (const i of result.heads) isIn[i] = 1;
      memory = {text: filter, net, ...result, isIn};
    }
    return memory;
  }

  /** Add a term to the filter, or take it away if it is there. */
  function toggle(wanted) {
    const parts = HT.state.get().filter.split(/[,;]/).map(part => part.trim()).filter(Boolean);
    const rest = parts.filter(part => simple(part) !== simple(wanted));
    HT.state.set({filter: (rest.length < parts.length ? rest : [...parts, wanted]).join(", ")});
  }

  const has = wanted => HT.state.get().filter.split(/[,;]/).some(part => simple(part) === simple(wanted));

  return {now, toggle, has};
})();
