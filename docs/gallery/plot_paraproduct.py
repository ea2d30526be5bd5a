"""
Softmax of a head, scale by scale
=================================

The paraproduct writes softmax(f) as a sum over scales of the query and key trees: terms of first and second order,
a boundary, and a residual that is twice as smooth if f is smooth (theorems 1 and 2 of the Organized Attention
paper). The sum is exact. Whether the residual is *small* is another matter.
"""

import warnings

import matplotlib.pyplot as plt
import numpy as np

import headtree as ht
from headtree.report import figures

network = ht.load_bundled("vit")
att = ht.capture(network.model, inputs=network.inputs[:1], kind="scores")[0].centred()
org = ht.organize(att)
warnings.simplefilter("ignore", ht.HeadtreeWarning)  # it warns of large residuals, which are the point here
scores = att.values.double().numpy()


def terms(head):
    """The decomposition of one head on the trees that all heads share."""
    return ht.paraproduct(scores[head], org.trees.query, org.trees.key, "softmax")


some = np.arange(0, 144, 6)  # every sixth head
residual = ht.paraproduct(scores[some], org.trees.query, org.trees.key, "softmax").relative_error
least, most = some[residual.argmin()], some[residual.argmax()]

# %%
# Of every sixth head, the one with the smallest residual. Most of it is in the boundary, which eq. (12) leaves out.

order = org.order("query"), org.order("key")
figures.paraproduct_terms(terms(least), *order, name=str(att.heads[least]))

# %%
# The one with the largest: nearly everything is in the residual.

figures.paraproduct_terms(terms(most), *order, name=str(att.heads[most]))

# %%
# Which heads are which? The residual grows with the size of the scores.

size = scores[some].std(axis=(1, 2))
figure, axes = plt.subplots(figsize=(5, 3.2), layout="constrained")
axes.scatter(size, residual, color="#35608d")
axes.axhline(0.25, color="grey", lw=0.8, ls="--")
axes.set(xlabel="standard deviation of scores", ylabel="residual / softmax(f)", ylim=(0, 1))

# %%
# **How to read it.** Percentages are norms relative to softmax(f); the terms are not orthogonal and do not add up
# to 100. “eq. (12) as printed” leaves the boundary out, “with boundary” is the whole approximation. Above the
# dashed line headtree warns: the terms do not describe such a head.
#
# **What not to conclude.** The theorem says that the residual is *smoother* than softmax(f), and that holds on all
# networks tried. It does not say that the residual is small, and for heads that decide sharply it is not. See
# :doc:`the findings </findings>`.
