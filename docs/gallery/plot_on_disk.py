"""
A tensor that does not fit in memory
====================================

Attention of long inputs is large: 128 heads on 4,096 tokens are 8 GB in single precision. A saved tensor is read by
blocks, and ``memory=`` says how much of this machine the work may take. Here a small one, with a limit that it
exceeds.
"""

import tempfile
from pathlib import Path

import numpy as np

import headtree as ht
from headtree.report import figures

network = ht.load_bundled("txl")
att = ht.capture(network.model, inputs=network.inputs[:1], tokenizer=network.tokenizer, layers=range(8))[0]
folder = Path(tempfile.mkdtemp()) / "attention.zarr"
att.save(folder)
stored = ht.AttentionTensor.open(folder)  # nothing is read yet
print(stored.shape, f"{4 * np.prod(stored.shape) / 1e6:.0f} MB")

# %%
# Distances over sampled folders need only blocks of the tensor at a time: here at most 30 MB. Beside it, the same
# with the whole tensor in memory, and the exact distances.

sampled = ht.Questionnaire(samples=128)
by_blocks = ht.organize(stored, sampled, memory=30e6)
whole = ht.organize(att, sampled)
exact = ht.organize(att, ht.Questionnaire(samples=None))
for axis in whole.names:
    same = by_blocks.trees[axis] == whole.trees[axis]
    apart = ht.tree_distance(whole.trees[axis], exact.trees[axis])
    print(f"{axis}: {'the same tree' if same else 'another tree'} as in memory; {apart:.2f} from the exact tree")

# %%
# Only the head that is drawn is read from disk.

figures.organized_head(stored, by_blocks, "L4H0")

# %%
# **How to read it.** Reading by blocks changes when a number is read, not which numbers are added up, so the trees
# are the same to the last leaf. Sampling does change the result, a little: the distance between sampled and exact
# trees (0: the same, below 1) is that of two draws. On the command line the option is ``--memory``, and a run
# captures to disk anyway.
#
# **What not to conclude.** A limit saves memory, not time: every axis reads the tensor again in every iteration. If
# there is room for the tensor, leave the limit out. :doc:`plot_planted_order` shows how trees look when there is
# something to find; here, small folders of either tree should not be given a meaning.
