"""Every figure: one function each, from arrays and our results to a matplotlib `Figure`.

None touches pyplot. ``figure.savefig("x.pdf")`` writes whatever matplotlib can write; `save` writes SVG and PNG
whose bytes depend on the figure only; `draw_all` draws all figures of a run.
"""

from headtree.report.figures.basis_figures import (
    coefficients_by_support,
    compression,
    entropy_over_heads,
    haar_basis,
    tri_haar_coefficients,
)
from headtree.report.figures.draw_run import CAPTIONS, draw_all
from headtree.report.figures.head_figures import head_affinity, head_grid, head_map
from headtree.report.figures.matrix_figures import organized_head, organized_matrix, paraproduct_terms
from headtree.report.figures.statistic_figures import correlations, distributions, estimates, relation, sensitivity
from headtree.report.figures.style import save
from headtree.report.figures.tree_figures import head_tree

__all__ = [
    "CAPTIONS",
    "coefficients_by_support",
    "compression",
    "correlations",
    "distributions",
    "draw_all",
    "entropy_over_heads",
    "estimates",
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
    "sensitivity",
    "tri_haar_coefficients",
]
