"""
Induction heads and previous-token heads
========================================

An induction head looks for the earlier copy of the current token and attends to what came after it. It works
together with a previous-token head in an earlier layer (Olsson et al. 2022). Does the bundled Transformer-XL have
them?
"""

import matplotlib.pyplot as plt
import numpy as np
import torch

import headtree as ht

network = ht.load_bundled("txl")
found = ht.induction(network.model)
names = [str(head) for head in found.heads]

passages = [{"input_ids": item["input_ids"][:, :64]} for item in network.inputs[:6]]
atts = ht.capture(network.model, inputs=passages, tokenizer=network.tokenizer, kind="probs")
previous = ht.head_roles(atts).share["previous_token"]

# %%
# Two properties make an induction head: it attends to what followed the earlier copy (prefix matching), and it
# raises the logit of the token that it reads (copying). Colour: share of attention on the previous token in real
# text.

figure, axes = plt.subplots(figsize=(6, 4), layout="constrained")
dots = axes.scatter(found.prefix_matching, found.copying, c=previous, cmap="viridis", s=24, vmin=0, vmax=1)
best = int(np.argmax(found.prefix_matching))
axes.annotate(
    names[best], (found.prefix_matching[best], found.copying[best]), xytext=(-10, -14), textcoords="offset points"
)
axes.set(xlabel="prefix matching", ylabel="copying", xlim=(-0.02, 1), ylim=(-0.1, 1))
figure.colorbar(dots, label="previous token")

# %%
# The best of each kind, on a random sequence of 24 words that occurs twice.

rng = np.random.default_rng(0)
words = rng.choice(np.arange(100, 5000), 24, replace=False)
twice = {"input_ids": torch.from_numpy(np.concatenate([words, words]))[None]}
att = ht.capture(network.model, inputs=[twice], kind="probs")[0]
figure, panels = plt.subplots(1, 2, figsize=(9, 4.4), layout="constrained")
for axes, i, what in zip(
    panels,
    (int(np.argmax(previous)), best),
    ("previous token", "closest to induction"),
    strict=True,
):
    axes.imshow(att.values[i], cmap="Greys", vmax=0.5, interpolation="none")
    axes.set(title=f"{names[i]}: {what}", xlabel="key", ylabel="query")

# %%
# **How to read it.** An induction head would be in the upper right corner of the first picture, and none is near
# it. On the left below, a stripe right under the diagonal: each word attends to the word before it. On the right,
# the head that comes closest. Induction would be a second stripe 23 words below the diagonal, in the second copy
# only; there is hardly a trace of it, and the head gives the right word 15 % of its attention. So this network has
# previous-token heads, and nothing that deserves to be called an induction head.
#
# **What not to conclude.** This is a small network that was trained on little text; larger language models do have
# induction heads, and the same two lines find them: ``ht.induction(model)``. A head that passes this test has a
# skill with random tokens. On real text it may do something else most of the time.
