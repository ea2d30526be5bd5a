"""The figures: one function each, from arrays and results to a matplotlib `Figure`.

None uses pyplot. ``figure.savefig("x.pdf")`` writes any format of matplotlib; `save` writes SVG and PNG whose bytes
depend on the figure only; `draw_all` draws the figures of a run.

`FIGURES` is the list of the figures of a run of a network: file name, caption, function. A new entry is drawn,
listed and documented with the others.
"""

from collections.abc import Mapping
from types import MappingProxyType

from headtree.report.figures.basis_figures import (
    coefficients_by_support,
    compression,
    entropy_over_heads,
    haar_basis,
    tri_haar_coefficients,
)
from headtree.report.figures.depth_figures import depth_paths, depth_residual, draw_depth
from headtree.report.figures.draw_run import (
    RunFigure,
    coarsest_coefficients,
    draw_all,
    head_paraproduct,
    run_compression,
)
from headtree.report.figures.head_figures import head_affinity, head_grid, head_map
from headtree.report.figures.matrix_figures import organized_head, organized_matrix, paraproduct_terms
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
    "entropy_over_heads",
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
    "sensitivity_intervals",
    "tri_haar_coefficients",
]

#: The figures of a run of a network by file name, in the order in which they are read.
FIGURES: Mapping[str, RunFigure] = MappingProxyType(
    {
        "map": RunFigure(
            "Diffusion map of the heads: heads near each other attend alike. Colour is the layer.",
            lambda data: head_map(data.coordinates, data.heads),
        ),
        "affinity": RunFigure(
            "Affinity of every two heads, in the order of the tree of heads; lines separate its main folders.",
            lambda data: head_affinity(data.consensus.affinity, data.consensus.tree, data.heads, data.order),
        ),
        "tree": RunFigure(
            "The consensus tree of heads over all inputs. Numbers are support: in how many of a hundred random "
            "divisions of the inputs both halves have exactly this folder, beyond chance; dark dots replicate.",
            lambda data: head_tree(data.consensus, data.heads, data.order),
        ),
        "grid": RunFigure(
            "Entropy of every head, by layer and index within the layer, mean over inputs.",
            lambda data: head_grid(data.entropy, data.heads, "ℓ1 entropy, mean over inputs"),
        ),
        "head_top": RunFigure(
            "The head of largest entropy on the first input: in the original order, and with queries and keys in "
            "tree order.",
            lambda data: organized_head(data.att, data.org, data.ranked(0)),
        ),
        "head_bottom": RunFigure(
            "The head of smallest entropy, drawn in the same way.",
            lambda data: organized_head(data.att, data.org, data.ranked(1)),
        ),
        "paraproduct": RunFigure(
            "Softmax of the head of median entropy beside its paraproduct, complete and as printed in [OA], the "
            "terms, and the residual. In a run of probabilities f is their logarithm.",
            lambda data: head_paraproduct(data.run, data.ranked(0.5)),
        ),
        "coefficients": RunFigure(
            "Query-key coefficients of the heads of largest and smallest entropy against the support of their "
            "functions, and of all heads.",
            lambda data: coefficients_by_support(data.att, data.org, data.extremes),
        ),
        "haar_basis": RunFigure(
            "Haar basis of the heads: which heads each function compares with which.",
            lambda data: haar_basis(data.consensus.tree, data.heads, data.order),
        ),
        "entropy": RunFigure(
            "Entropy of every head on every input.",
            lambda data: entropy_over_heads(data.entropies, data.heads, data.run.inputs),
        ),
        "compression": RunFigure(
            "Error against the number of coefficients used, on the learned trees and on others.",
            lambda data: run_compression(data.run),
        ),
        "tri_haar": RunFigure(
            "The coarsest head-query-key coefficients of the network on several inputs.",
            lambda data: coarsest_coefficients(data.run),
        ),
    }
)
