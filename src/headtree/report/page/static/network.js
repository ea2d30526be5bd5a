/* The network as the views ask for it: table of heads, trees, families, words. */
HT.networkOf = core => {
  const {el, number, words} = HT.dom;
  const {text} = core;

  /** A tree of heads as arrays, with what is derived from them. */
  function treeOf(name) {
    const take = key => core.arrays[`${name}_${key}`];
    const tree = {
      order: take("order"), start: take("start"), size: take("size"), parent: take("parent"), support: take("support"),
      height: take("height"), codes: take("affinity"), words: text[name].words, affinity: text[name].affinity,
    };
    const n = tree.order.length, near = core.shapes[`${name}_neighbours`][1];
    tree.place = new Int32Array(n);
    tree.order.forEach((head, place) => { tree.place[head] = place; });
    tree.inner = new Int32Array(n);  // smallest folder at each position
    tree.start.forEach((start, f) => tree.inner.fill(f, start, start + tree.size[f]));
    tree.members = f => Array.from(tree.order.subarray(tree.start[f], tree.start[f] + tree.size[f]));
    tree.nearest = head => Array.from(take("neighbours").subarray(head * near, (head + 1) * near));
    return tree;
  }

  const columns = text.columns.map((column, i) => ({...column, values: core.arrays[`column_${i}`]}));
  const byName = new Map(columns.map(column => [column.name, column]));
  const trees = {}, kinds = text.similarities;
  const named = name => trees[name] ||= treeOf(name);
  const net = {
    core, text, columns, kind: text.kind, isArray: text.kind === "array", unit: text.unit, nHeads: text.n_heads, inputs: text.inputs, terms: text.terms,
    names: byName.get("name").words, column: name => byName.get(name), families: text.families,
    explained: word => text.terms_explained[word],
  };
  net.main = Object.keys(text.grains)[0];  // the kind of matrices that is shown first: after softmax, signed, or an array's values
  const index = new Map(net.names.map((name, i) => [name, i]));
  net.title = i => net.isArray ? `${text.axis_name} ${net.names[i]}` : net.names[i];
  net.indices = names => names.map(name => index.get(name)).filter(i => i !== undefined);
  const key = ({basis, input}) => basis === "input" ? `input_${input}` : `all_${basis}`;
  net.tree = () => named(key(HT.state.get()));
  net.joint = named(`all_${kinds[0].kind}`);  // families are made of this one
  const single = {kind: "input", title: `questionnaire of ${text.values}, this input alone`, meaning: `${text.unit.many[0].toUpperCase()}${text.unit.many.slice(1)} are close if ` +
    `their ${text.values} agree on the trees of queries and keys of this input.`};
  net.similarity = () => kinds.find(each => each.kind === HT.state.get().basis) || single;
  net.choices = [...kinds, single].map(each => [each.kind, each.title]);

  /** Values on an axis of the map: a column, or a diffusion coordinate by the chosen similarity. */
  net.axis = name => {
    const match = /^coordinate_(\d)$/.exec(name), state = HT.state.get();
    if (match && state.basis !== kinds[0].kind) {
      const array = `${key(state)}_coordinates`, [, n] = core.shapes[array], k = Number(match[1]) - 1;
      if (k < n) return Float64Array.from({length: net.nHeads}, (_, i) => core.arrays[array][i * n + k]);
    }
    return byName.get(name).values;
  };

  const family = byName.get("family")?.values;
  net.familyOf = i => family ? net.families.find(each => each.family === family[i]) : undefined;
  net.hasFamilies = net.families.length > 0;
  const strongest = net.isArray ? null : text.answers.find(answer => answer.about === "roles")?.phrases.filter(part => part.heads.length === 1);
  const rank = byName.get("structure_rank")?.values;
  net.first = net.indices([strongest?.at(0)?.heads[0]])[0] ?? Math.max(0, rank ? rank.indexOf(1) : 0);  // the example

  net.value = (column, i) => column.type === "word" ? column.words[i] || "none"
    : column.name === "family" && column.values[i] < 0 ? "none" : number(column.values[i]);
  const told = ["role", "leaning", "family", "confidence", "shannon_entropy", "effect", "structure_rank"]
    .map(name => byName.get(name)).filter(Boolean);
  /** What is worth saying about a head: nothing that it lacks, nothing twice. */
  net.facts = i => told.filter(column => net.value(column, i) !== "none" &&
    !(column.name === "leaning" && column.words[i] === byName.get("role")?.words[i]))
    .map(column => ({name: column.name, title: words(column.name), value: net.value(column, i)}));
  net.about = i => [el("strong", {}, net.names[i]), ...net.facts(i).map(fact => el("div", {}, `${fact.title} ${fact.value}`))];
  net.label = i => [net.names[i], ...net.facts(i).filter(fact => ["role", "leaning", "family"].includes(fact.name))
    .map(fact => `${fact.title} ${fact.value}`)].join(", ");
  return net;
};
