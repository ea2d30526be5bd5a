"""Shapes in signatures are checked while the tests run; compiled kernels keep their own."""

import os

# Before torch is loaded: its threads then sleep while they wait, and workers that share the cores have one each.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("OMP_NUM_THREADS", "1")

import hypothesis

from tests.shapes import check_shapes_of

CHECKED = [
    "headtree._checks",
    "headtree.models.capture",
    "headtree.models.facts",
    "headtree.models.graph",
    "headtree.models.inputs",
    "headtree.models.register",
    "headtree.models.model_files",
    "headtree.models.view",
    "headtree.models.watching",
    "headtree.tensor",
    "headtree.bases.haar",
    "headtree.bases.paraproduct",
    "headtree.bases.pyramid",
    "headtree.bases.rotations",
    "headtree.bases.tensor_haar",
    "headtree.depth",
    "headtree.geometry.affinity",
    "headtree.geometry.grow_tree",
    "headtree.geometry.diffusion",
    "headtree.geometry.emd",
    "headtree.measures",
    "headtree.questionnaire",
    "headtree.trees.tree",
]
check_shapes_of(CHECKED)

# Times vary on shared machines; continuous integration draws the same examples every time.
hypothesis.settings.register_profile("headtree", deadline=None, derandomize=bool(os.environ.get("CI")))
hypothesis.settings.load_profile("headtree")
