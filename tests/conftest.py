"""Shapes in signatures are checked while the tests run; compiled kernels keep their own."""

from jaxtyping import install_import_hook

import tests.shapes  # noqa: F401  (found by name below)

CHECKED = [
    "headtree._checks",
    "headtree.attention",
    "headtree.bases",
    "headtree.geometry.affinity",
    "headtree.geometry.build",
    "headtree.geometry.diffusion",
    "headtree.geometry.emd",
    "headtree.measures",
    "headtree.questionnaire",
    "headtree.trees",
]
install_import_hook(CHECKED, "tests.shapes.check_shapes")
