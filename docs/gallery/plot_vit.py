"""
A vision transformer looks at an airplane
=========================================

The bundled ViT has 12 layers of 12 heads. It sees a picture as 14 × 14 patches and a class token. Which patches
does it treat alike? The order of patches that headtree finds knows nothing of the picture: only of which patch
attends to which.
"""

import matplotlib.pyplot as plt
import numpy as np

import headtree as ht
from headtree.report import figures

network = ht.load_bundled("vit")
att = ht.capture(network.model, inputs=network.inputs[:1], kind="probs")[0]
org = ht.organize(att)
print(org.status)
att

# %%
# Folders of patches, painted on the picture. Patches of one colour are attended to alike, by all 144 heads
# together.


def painted(tree, most):
    """The folders of patches on the finest level with at most so many, as a 14 × 14 picture."""
    level = int(np.flatnonzero(tree.n_folders <= most)[-1])
    return tree.labels[level][1:].reshape(14, 14)  # leaf 0 is the class token


figure, panels = plt.subplots(1, 3, figsize=(9, 3.2), layout="constrained")
panels[0].imshow(network.images[0].permute(1, 2, 0))
panels[0].set_title(f"what it sees: {network.classes[network.labels[0]]}")
for axes, axis in zip(panels[1:], ("query", "key"), strict=True):
    axes.imshow(painted(org.trees[axis], 12), cmap="tab20", interpolation="none")
    axes.set_title(f"folders of patches as {axis}")
for axes in panels:
    axes.set_axis_off()

# %%
# One head, in the order of the model and in the order that was found.

structure = ht.head_entropy(att, org).raw
figures.organized_head(att, org, int(structure.argmax()))

# %%
# **How to read it.** The ground is one folder, the airplane another, its outline a third, and the sky with the
# lettering falls into a few large ones, although nobody said which patches are neighbours. Queries and keys have
# different trees: what a patch looks for is not what it is looked at for. In the head above, a block of even colour
# means that all patches of one folder attend to all patches of another in the same way, so a few numbers describe
# the head.
#
# **What not to conclude.** This is one picture. Any input gives trees, noise too. Whether *groups of heads* come
# back on other pictures is another question, which :doc:`plot_families` asks; and ``org.status`` says that these
# trees had not settled after three iterations, so small folders should not be given a meaning.
