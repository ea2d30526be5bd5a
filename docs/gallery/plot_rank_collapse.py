"""
Rank collapse, with and without skip connections
================================================

Without skip connections and MLPs, the tokens of a transformer become alike very quickly: pure attention loses rank
doubly exponentially with depth (Dong, Cordonnier and Loukas 2021). headtree removes skips and MLPs from any model's
own code and measures what is left.
"""

import matplotlib.pyplot as plt

import headtree as ht
from headtree.report import figures

vit = ht.load_bundled("vit")
txl = ht.load_bundled("txl")
passages = [{"input_ids": item["input_ids"][:, :128]} for item in txl.inputs[:3]]
residuals = {
    "ViT": ht.rank_residual(vit.model, inputs=vit.inputs[:3]),
    "Transformer-XL": ht.rank_residual(txl.model, inputs=passages),
}

# %%
# The ViT: what is left of the differences between tokens after each layer, relative to the size of the tokens.
# Below 1e-7 is rounding error.

figures.depth_residual(residuals["ViT"])

# %%
# Attention alone, in both networks.

figure, axes = plt.subplots(figsize=(5.5, 3.4), layout="constrained")
for name, found in residuals.items():
    axes.semilogy(found.curve("attention alone").mean(axis=0), "o-", ms=3, label=name)
axes.set(xlabel="depth", ylabel="relative residual", title="attention alone", ylim=(1e-8, 2))
axes.legend()

# %%
# **How to read it.** With attention alone, the ViT's tokens are equal to the last digit after four layers, and each
# layer takes away more than the one before. Skip connections stop that; MLPs by themselves do not. The
# Transformer-XL falls far more slowly. It may only look back, and uniform attention to all earlier words is a
# running mean, which leaves half of the differences per layer.
#
# **What not to conclude.** Tokens that grow alike do not show that a model fails; real networks have skips, and
# then lose little. And the bound of the paper, though true, exceeds 1 from the first layer on for these networks:
# the curves are measured, not predicted. See :doc:`/depth`.
