"""Shapes in signatures are checked while the tests run; compiled kernels keep their own."""

from hypothesis import settings
from jaxtyping import install_import_hook

import tests.shapes  # noqa: F401  (found by name below)

CHECKED = [
    "headtree._checks",
    "headtree.attention",
    "headtree.bases.haar",
    "headtree.bases.paraproduct",
    "headtree.bases.pyramid",
    "headtree.bases.rotations",
    "headtree.bases.tensor_haar",
    "headtree.geometry.affinity",
    "headtree.geometry.build",
    "headtree.geometry.diffusion",
    "headtree.geometry.emd",
    "headtree.measures",
    "headtree.questionnaire",
    "headtree.trees",
]
install_import_hook(CHECKED, "tests.shapes.check_shapes")

# the first call of a compiled kernel takes longer than any deadline, and so does a busy machine
settings.register_profile("headtree", deadline=None)
settings.load_profile("headtree")
