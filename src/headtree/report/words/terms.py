"""Words of the page that need an explanation, each in a sentence; `docs/figures.md` has the same text."""

from __future__ import annotations

TERMS = {
    "findings": "Findings are computed from the run, and so are their numbers; an underlined one selects the "
    "heads it is about.",
    "head": "A head gives each query weights over the keys; L3H5 is head 5 of layer 3, both counted from 0.",
    "where it looks": "Tokens are shaded by the attention that the chosen query pays them, or all queries on "
    "average.",
    "family": "A family is a group of heads that are alike and that other inputs put together again.",
    "folder": "A folder is a group of heads in the tree of heads; folders lie inside larger folders.",
    "support": "Support says how much of a folder trees of other inputs show again, beyond chance: from 0 to 1.",
    "affinity": "The affinity of two heads is near 1 if they are alike and near 0 if they are not.",
    "map": "The map shows heads as points by their diffusion coordinates: heads that are alike lie close together.",
    "tree": "The tree joins heads that are alike first; further left, junctions join heads that are less alike.",
    "role": "The role of a head is what most of its attention goes to, beyond chance.",
    "leaning": "A head leans to what it attends to three times as much as by chance, without giving it most.",
    "structure score": "The structure score is the l1 norm of a head's coarse Haar coefficients, large for clear "
    "blocks; it is not the Shannon entropy.",
    "organized": "An organized matrix has its queries and keys in the order of their trees, similar ones close.",
    "scores": "Scores are what enters softmax; centred scores are each row minus its mean, which softmax ignores.",
    "Haar coefficients": "Haar coefficients compare the means of neighbouring folders; their support is the number "
    "of entries they compare.",
    "paraproduct": "The paraproduct splits softmax of a head into what each scale of the trees explains.",
    "stability": "Stability says how alike different inputs rank and group the heads.",
    "energy": "Energy is the sum of squares of Haar coefficients; its share by support says at which scales a "
    "head varies.",
    "rank correlation": "The rank correlation of two inputs is 1 if they rank the heads alike, and near 0 if at "
    "random.",
    "table": "The table has every number about every head; a heading explains its column and sorts by it.",
    "confidence": "The confidence of a head is the mean over queries of the largest attention weight.",
    "diagnostics": "Diagnostics describe each head by itself: where its attention goes, how sharp it is, and which "
    "role that is.",
    "rank collapse": "Rank collapse means that tokens become alike with depth; a path leads through some heads and "
    "past the other layers.",
    "effect": "The effect of a head is how much the loss, or else the output, changes without it.",
    "pruning": "Pruning removes heads one after another, in the order of a criterion; a good one keeps the loss "
    "low.",
    "sensitivity": "Sensitivity is how much trees and rankings change when one setting is changed.",
    "claims": "Claims are statements of the Organized Attention paper, each tested on this run.",
    "section": "This section was added to the run by a script.",
    "glossary": "The glossary explains every word that has a “?” and every column of the table.",
    "settings": "Settings and versions say how the run was made, so that it can be made again.",
}

#: The word that explains a section of a run, by the section's name; other sections are added by scripts.
SECTION_TERMS = {
    "diagnostics": "diagnostics",
    "depth": "rank collapse",
    "effects": "effect",
    "prune": "pruning",
    "sensitivity": "sensitivity",
    "claims": "claims",
}

#: The same words where slices are the depths of a token tensor.
DEPTH_TERMS = {
    **{("depth" if word == "head" else word): text for word, text in TERMS.items()},
    "depth": "A depth is the stream after a layer (L3: after layer 3): what of each query comes from each key.",
    "where it looks": "Tokens are shaded by what of the chosen query comes from them, or of all queries on "
    "average; where there are signs, red adds and blue takes away.",
    "role": "The role of a depth is where most of its weight comes from, beyond chance; signs do not count.",
    "leaning": "A depth leans to what has three times the weight it has by chance, without most of it.",
    "confidence": "The confidence of a depth is the mean over queries of the largest share of a key.",
}

#: The same on the page of a plain array.
ARRAY_TERMS = {
    "findings": "Findings are computed from the run; an underlined number selects the slices it is about.",
    "table": "The table has every number about every slice of the axis; a heading sorts by its column.",
    "slice": "A slice is the array at one place of an axis.",
    "folder": "A folder is a group of slices in the tree of an axis; folders lie inside larger folders.",
    "affinity": "The affinity of two slices is near 1 if they are alike and near 0 if they are not.",
    "map": "The map shows slices as points by their diffusion coordinates: alike ones lie close together.",
    "tree": "The tree joins slices that are alike first; further left, junctions join slices that are less alike.",
    "organized": "An organized matrix has its rows and columns in the order of their trees, similar ones close.",
    "Haar coefficients": TERMS["Haar coefficients"],
    "glossary": "The glossary explains every word that has a “?”.",
    "settings": TERMS["settings"],
}
