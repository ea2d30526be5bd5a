"""
Pruning, with evidence
======================

Which heads can go? Rank them on some passages by several criteria, remove them step by step, and measure the loss
on other passages. A criterion is worth something if it does better than removing heads at random.
"""

import headtree as ht
from headtree.report.figures.prune_figures import prune_curves

network = ht.load_bundled("txl")
passages = [{"input_ids": item["input_ids"][:, :48]} for item in network.inputs[:24]]
criteria = ["confidence", "compensated", "random"]
found = ht.prune_curve(network.model, criteria, inputs=passages, steps=4, n_random=3)
prune_curves(found)

# %%
# Is the difference between two criteria more than chance, when half of the heads are gone?

half = found.step_at(0.5)
for other in ("confidence", "random"):
    gap = found.compare("compensated", other, half)
    print(f"{gap.better} loses {gap.difference:.3f} less than {gap.worse}, standard error {gap.error:.3f}")

# %%
# Remove a quarter of the heads for good: a copy with smaller matrices, whose output projections are fitted again so
# the remaining heads fill some of the gap.

order = found.orders["compensated"][0]
small = ht.prune_heads(network.model, order[: len(order) // 4], refit=passages[8:16])
whole, cut = ht.model_cost(network.model, small, inputs=passages[0], n_runs=3)
print(f"{whole.n_parameters:,} parameters before, {cut.n_parameters:,} after")

# %%
# **How to read it.** The band is two standard errors over passages. A curve below “random” is a criterion that
# knows something, if the bands are apart. Here they overlap: at half of the heads no difference exceeds its
# standard error. Heads are ranked on eight passages, and the loss is that of the sixteen others.
#
# **What not to conclude.** Not that criteria are useless: sixteen short passages cannot tell them apart. On more
# text they differ clearly, see :doc:`/pruning`. And a head that can be removed *with others refitted* is not a head
# that did nothing.
