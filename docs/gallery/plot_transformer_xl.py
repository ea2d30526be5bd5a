"""
The heads of a Transformer-XL as a tree
=======================================

The bundled Transformer-XL has 16 layers of 8 heads and was trained on WikiText-2. On twenty passages of 64 words,
which of its 128 heads look at the same words, in the same way?
"""

import headtree as ht
from headtree.report import figures

network = ht.load_bundled("txl")
passages = [{"input_ids": item["input_ids"][:, :64]} for item in network.inputs[:20]]
atts = ht.capture(network.model, inputs=passages, tokenizer=network.tokenizer)
agreed = ht.consensus(ht.head_similarity(atts))

# %%
# The root is at the centre, the heads are on the rim. The number on a folder is its support in percent: how much of
# the folder other passages put together, beyond chance.

figures.head_tree(agreed, atts[0].heads)

# %%
# The same heads in the plane. Two heads are close if many short steps between similar heads connect them.

coordinates = ht.diffusion_map(agreed.affinity).coordinates
figures.head_map(coordinates, atts[0].heads, title="looks alike")

# %%
# What do the folders with support have in common? Roles say what most of a head's attention goes to.

roles = ht.head_roles(atts).names
words = ht.describe_folders(agreed, atts[0].heads, roles)
words.loc[words["support"] > 0.5, ["words", "support"]].head(10)

# %%
# Families are large folders with support that do not overlap. How many heads do they cover, and do two halves of
# the passages agree on them (0: chance, 1: the same families)?

families = agreed.families()
print(f"{len(families)} families cover {families.coverage:.0%} of the heads")
print(f"agreement of two halves: {families.replication.rand_index:.2f}")

# %%
# **How to read it.** Colour is depth. Where a folder has one colour, its heads sit in neighbouring layers; where
# colours mix, distant layers do the same thing. Dark dots are folders that other passages would show again. The
# table puts them into words.
#
# **What not to conclude.** A branch without a number is how these passages happened to fall. And heads that *look*
# alike need not *do* alike: they may write different things about the words they look at. See :doc:`which
# similarity for which question </similarities>`.
