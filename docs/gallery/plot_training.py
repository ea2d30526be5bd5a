"""
A network through its training
==============================

The bundled networks come in five stages: before training, after 2, 10 and 40 % of it, and trained. When do the
heads of the Transformer-XL get their roles?
"""

import matplotlib.pyplot as plt
import numpy as np

import headtree as ht

STAGES = ("initial", "early", "middle", "late", "trained")


def looked_at(stage):
    """Attention of the network at one stage, on the same six passages."""
    network = ht.load_bundled("txl", stage)
    passages = [{"input_ids": item["input_ids"][:, :64]} for item in network.inputs[:6]]
    return ht.capture(network.model, inputs=passages, tokenizer=network.tokenizer, kind="probs")


atts = {stage: looked_at(stage) for stage in STAGES}
tables = {stage: ht.diagnostics(atts[stage]) for stage in STAGES}

# %%
# How many heads have a role at each stage?

roles = {stage: table.heads["role"] for stage, table in tables.items()}
kinds = sorted({role for names in roles.values() for role in names if role})
figure, axes = plt.subplots(figsize=(6.5, 3.2), layout="constrained")
bottom = np.zeros(len(STAGES))
for kind, colour in zip(kinds, plt.colormaps["tab10"].colors, strict=False):
    counts = np.array([(names == kind).sum() for names in roles.values()])
    axes.bar(STAGES, counts, bottom=bottom, label=kind, color=colour)
    bottom += counts
axes.set(ylabel="heads, of 128")
axes.legend(fontsize=8)

# %%
# One head through all stages: the one that ends as the sharpest previous-token head.

head = int(tables["trained"].heads["previous_token"].argmax())
figure, panels = plt.subplots(1, 5, figsize=(10, 2.4), layout="constrained")
for axes, stage in zip(panels, STAGES, strict=True):
    axes.imshow(atts[stage][0].values[head][:24, :24], cmap="Greys", vmin=0, vmax=1, interpolation="none")
    axes.set(title=stage, xticks=[], yticks=[])
panels[0].set_ylabel(str(atts["trained"][0].heads[head]))

# %%
# And all heads: confidence, the mean of the largest weight of each row.

figure, axes = plt.subplots(figsize=(6.5, 2.8), layout="constrained")
axes.violinplot([table.heads["confidence"] for table in tables.values()], showmedians=True)
axes.set_xticks(range(1, 6), STAGES)
axes.set(ylabel="confidence", ylim=(0, 1))

# %%
# **How to read it.** Before training, and after 2 % of it, attention is spread evenly, so no head has a role and
# all are alike. Between 2 and 10 % of training nearly everything happens: heads become sharp and take up roles.
# After that they change little, although the loss keeps falling.
#
# **What not to conclude.** Head 5 of layer 3 is not the same head before and after: nothing ties a role to a
# number, and a second training would give it to another head. :doc:`plot_comparison` matches heads by how they
# relate to others instead.
