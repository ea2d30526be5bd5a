"""The figures: one function each, from arrays and results to a matplotlib `Figure`.

None uses pyplot. ``figure.savefig("x.pdf")`` writes any format of matplotlib; `save` writes SVG and PNG whose bytes
depend on the figure only; `draw_all` draws the figures of a run.

`FIGURES`, in `run_figures`, lists the figures of a run.
"""

from headtree.report.figures.basis_figures import (
    coefficients_by_support,
    compression,
    haar_basis,
    scores_over_heads,
    tri_haar_coefficients,
)
from headtree.report.figures.depth_figures import depth_paths, depth_residual, draw_depth
from headtree.report.figures.head_figures import head_affinity, head_grid, head_map
from headtree.report.figures.matrix_figures import organized_head, organized_matrix, paraproduct_terms
from headtree.report.figures.run_figures import FIGURES, draw_all
from headtree.report.figures.statistic_figures import distributions, relation, sensitivity_intervals
from headtree.report.figures.style import save
from headtree.report.figures.tree_figures import head_tree

__all__ = [
    "FIGURES",
    "coefficients_by_support",
    "compression",
    "depth_paths",
    "depth_residual",
    "distributions",
    "draw_all",
    "draw_depth",
    "haar_basis",
    "head_affinity",
    "head_grid",
    "head_map",
    "head_tree",
    "organized_head",
    "organized_matrix",
    "paraproduct_terms",
    "relation",
    "save",
    "scores_over_heads",
    "sensitivity_intervals",
    "tri_haar_coefficients",
]
