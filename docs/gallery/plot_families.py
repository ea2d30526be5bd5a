"""
Families of heads and what they look at
=======================================

A family is a group of heads that look alike, and that other inputs show again. This example finds the families of
the bundled Transformer-XL and draws the mean attention of each.
"""

import matplotlib.pyplot as plt
import numpy as np
import torch

import headtree as ht

network = ht.load_bundled("txl")
passages = [{"input_ids": item["input_ids"][:, :64]} for item in network.inputs[:20]]
atts = ht.capture(network.model, inputs=passages, tokenizer=network.tokenizer, kind="probs")
agreed = ht.consensus(ht.head_similarity(atts))
families = agreed.families()
print(f"{len(families)} families with {families.coverage:.0%} of the heads")

# %%
# The mean over inputs shows what depends on the position of words; what depends on the words themselves averages
# out.

mean = torch.stack([att.values for att in atts]).nan_to_num().mean(dim=0)  # head, query, key
n = len(families)
figure, panels = plt.subplots(2, (n + 1) // 2, figsize=(9, 5.2), layout="constrained")
for axes in panels.flat:
    axes.set_axis_off()
for axes, heads, support in zip(panels.flat, families.folders, families.support, strict=False):
    pattern = mean[heads].mean(dim=0)[:32, :32]
    axes.imshow(pattern, cmap="Greys", vmax=float(np.quantile(pattern[8:], 0.98)), interpolation="none")
    axes.set_title(f"{len(heads)} heads, support {support:.2f}", fontsize=9)

# %%
# Which heads, and what are they called?

names = np.array([str(head) for head in atts[0].heads])
roles = np.array([role or "no role" for role in ht.head_roles(atts).names])
for number, heads in enumerate(families.folders):
    kinds, counts = np.unique(roles[heads], return_counts=True)
    what = ", ".join(f"{count} {kind}" for count, kind in zip(counts, kinds, strict=True))
    print(f"family {number}: {what}: {' '.join(names[heads][:8])}{' …' if len(heads) > 8 else ''}")

# %%
# How far can these families be trusted as a whole? Divide the passages into two halves, find families in each, and
# compare them. And: would more passages help?

figure, axes = plt.subplots(figsize=(5, 2.8), layout="constrained")
axes.plot(
    [step.n_inputs for step in agreed.growth], [step.support for step in agreed.growth], "o-", color="#35608d"
)
axes.set(xlabel="passages", ylabel="mean support of families", ylim=(0, 1))
again = families.replication
print(f"adjusted Rand index of two halves: {again.rand_index:.2f} ({again.low:.2f} to {again.high:.2f})")

# %%
# **How to read it.** Each panel is what one family does, keys from left to right. A narrow stripe is the previous
# word or the word itself, a broad one the words nearby; an even triangle is attention spread over everything
# before. Streaks are words that happened to be at the same position: there the family follows words and not
# positions. A support of 1 would mean that every set of passages shows exactly this group.
#
# **What not to conclude.** At most eight families are chosen here, disjoint and large; they are not *the* kinds of
# heads. Heads outside of all families are not noise, they only change company from passage to passage.
