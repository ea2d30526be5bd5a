"""All figures of a run, written into its folder."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Float, Int

from headtree.bases.paraproduct import decomposed
from headtree.bases.tensor_haar import TensorHaarBasis
from headtree.errors import InvalidTypeError, InvalidValueError
from headtree.measures.orders import softmax_input
from headtree.measures.sparsity import CompressionCurve
from headtree.progress import progress
from headtree.report.figures import basis_figures as figures_bases
from headtree.report.figures import head_figures as figures_heads
from headtree.report.figures import matrix_figures as figures_matrix
from headtree.report.figures import tree_figures as figures_tree
from headtree.report.figures.style import save
from headtree.runs.run import Run

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: Inputs whose coefficients are drawn: [OA] shows five.
_INPUTS = 5

#: What each figure of a network shows, by file name, in the order in which they are read.
CAPTIONS: Mapping[str, str] = MappingProxyType(
    {
        "map": "Diffusion map of the heads: near heads attend alike. Colour is the layer.",
        "affinity": "Affinity of every two heads, in the order of the tree of heads; lines part its main folders.",
        "tree": "The tree of heads, on average over all inputs. Numbers are support: in how many of a hundred "
        "divisions of the inputs both halves have exactly this folder, beyond chance; dark dots recur.",
        "grid": "Entropy of every head, by layer and place in the layer, mean over inputs.",
        "head_top": "The head of largest entropy, on the first input: as the model has it, and with queries and "
        "keys in tree order.",
        "head_bottom": "The head of smallest entropy, in the same way.",
        "paraproduct": "Softmax of the head of middle entropy beside the paraproduct, complete and as printed in "
        "[OA], its terms and what is left. In a run of probabilities f is their logarithm.",
        "coefficients": "Query-key coefficients of the heads of largest and smallest entropy against the "
        "support of their functions, and of all heads.",
        "haar_basis": "Haar basis of the heads: which heads each function compares with which.",
        "entropy": "Entropy of every head on every input.",
        "compression": "Error against the number of coefficients kept, on the found trees and on others.",
        "tri_haar": "The coarsest head-query-key coefficients of the network on several inputs.",
    }
)


def draw_all(run: Run, folder: str | os.PathLike[str] | None = None) -> dict[str, Path]:
    """Draw every figure of a run as SVG and PNG; the same run gives the same bytes.

    Parameters
    ----------
    run : Run
        With its steps capture, organize and measure done.
    folder : path, optional
        Where to write; made if it is not there. By default ``figures`` in the run folder.

    Returns
    -------
    dict
        Path of each SVG by name; the PNG stands beside it. Names are those of `CAPTIONS`, or for a run of an array
        ``matrix``, ``compression`` and for each axis ``map_AXIS``, ``affinity_AXIS``, ``tree_AXIS``.
    """
    if not isinstance(run, Run):
        raise InvalidTypeError(f"run must be a Run, got {type(run).__name__}; pass ht.open_run(path)")
    drawings = array_figures(run) if run.kind == "array" else network_figures(run)
    target = run.path / "figures" if folder is None else Path(folder)
    try:
        target.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidValueError(f"the folder {target} for figures cannot be made: {error.strerror}") from error
    paths = {}
    with progress("drawing", len(drawings)) as step:
        for name, draw in drawings.items():
            paths[name], _ = save(draw(), target, name)
            step(name)
    return paths


def network_figures(run: Run) -> dict[str, Callable[[], Figure]]:
    """A function for each figure of a run of a network, by name."""
    att, org, agreed = run.attention[0], run.organization[0], run.consensus
    table = run.heads
    heads = att.heads
    points = table[[f"coordinate_{i}" for i in (1, 2, 3)]].to_numpy(dtype=np.float64)
    order = agreed.tree.order(points[:, 0])
    falling = np.argsort(table["entropy_rank"].to_numpy(), kind="stable")
    top, middle, bottom = (int(falling[place]) for place in (0, len(falling) // 2, -1))
    pair = [top] if top == bottom else [top, bottom]
    entropies = table[[f"entropy_{i}" for i in range(run.n_inputs)]].to_numpy(dtype=np.float64).T
    return {
        "map": lambda: figures_heads.head_map(points, heads),
        "affinity": lambda: figures_heads.head_affinity(agreed.affinity, agreed.tree, heads, order),
        "tree": lambda: figures_tree.head_tree(agreed, heads, order),
        "grid": lambda: figures_heads.head_grid(table["entropy"].to_numpy(), heads, "ℓ1 entropy, mean over inputs"),
        "head_top": lambda: figures_matrix.organized_head(att, org, top),
        "head_bottom": lambda: figures_matrix.organized_head(att, org, bottom),
        "paraproduct": lambda: _paraproduct(run, middle),
        "coefficients": lambda: figures_bases.coefficients_by_support(att, org, pair),
        "haar_basis": lambda: figures_bases.haar_basis(agreed.tree, heads, order),
        "entropy": lambda: figures_bases.entropy_over_heads(entropies, heads, run.inputs),
        "compression": lambda: figures_bases.compression(_curves(run)),
        "tri_haar": lambda: _tri_haar(run),
    }


def array_figures(run: Run) -> dict[str, Callable[[], Figure]]:
    """A function for each figure of a run of a plain array, by name."""
    org = run.organization[0]
    labels = {axis: _labels(run, axis) for axis in org.names}
    drawings: dict[str, Callable[[], Figure]] = {"matrix": lambda: _largest_matrix(run, labels)}
    for axis in org.names:
        drawings |= {
            f"map_{axis}": partial(figures_heads.head_map, org.coordinates[axis], labels[axis]),
            f"affinity_{axis}": partial(
                figures_heads.head_affinity, org.affinities[axis], org.trees[axis], labels[axis], org.order(axis)
            ),
            f"tree_{axis}": partial(figures_tree.head_tree, org.trees[axis], labels[axis], org.order(axis)),
        }
    drawings["compression"] = lambda: figures_bases.compression(_curves(run))
    return drawings


def _labels(run: Run, axis: str) -> list[str]:
    table = run.tables[axis]
    return [str(label) for label in table["label" if "label" in table else "slice"]]


def _largest_matrix(run: Run, labels: Mapping[str, list[str]]) -> Figure:
    """The array's matrix along its last two axes; of more axes, the one of largest norm."""
    org = run.organization[0]
    values = np.asarray(run.array, dtype=np.float64)
    norms = np.sqrt(np.nansum(np.square(values), axis=(-2, -1)))
    index = np.unravel_index(int(np.argmax(norms)), norms.shape) if norms.ndim else ()
    places = [f"{axis} {labels[axis][place]}" for axis, place in zip(org.names, index, strict=False)]
    pair = labels[org.names[-2]], labels[org.names[-1]]
    return figures_matrix.organized_matrix(values[index], org, title=", ".join(places) or "array", labels=pair)


def _paraproduct(run: Run, head: int) -> Figure:
    """Softmax of a head's scores by scales; of a run of probabilities, their logarithms are the scores."""
    att, org = run.attention[0], run.organization[0]
    one = att.take(head)
    product = decomposed(softmax_input(one)[0].numpy(), org.trees.query, org.trees.key, "softmax")
    return figures_matrix.paraproduct_terms(
        product,
        org.order("query"),
        org.order("key"),
        missing=None if one.mask is None else one.mask[0].numpy(),
        name=f"{att.heads[head]}, f = log p" if att.kind == "probs" else str(att.heads[head]),
    )


def _curves(run: Run) -> dict[str, CompressionCurve]:
    """Compression curves of the first input, as they were measured."""
    found = run.measures["sparsity"]
    curves = found["curves"] if run.kind == "array" else found["curves"][0]

    def of_first(name: str) -> tuple[int, ...]:
        return tuple(found[name]) if run.kind == "array" else tuple(found[name][0])

    total = found["n_coefficients"] if run.kind == "array" else found["n_coefficients"][0]
    return {
        order: CompressionCurve(
            counts=np.array(curves["counts"]),
            largest=np.array(curves["largest"][order]),
            coarsest=np.array(curves["coarsest"][order]),
            n_for_90=n_for_90,
            n_for_99=n_for_99,
            n_coefficients=int(total),
        )
        for order, n_for_90, n_for_99 in zip(
            found["orders"], of_first("n_for_90"), of_first("n_for_99"), strict=True
        )
    }


def _tri_haar(run: Run) -> Figure:
    """The coarsest coefficients of the first inputs, as many as the network's entropy sums."""
    n_functions = int(run.measures["network_entropy"]["n_functions"])
    n_inputs = min(_INPUTS, run.n_inputs)
    coefficients: list[Float[np.ndarray, " function"]] = []
    supports: list[Int[np.ndarray, " function"]] = []
    for att, org in zip(run.attention[:n_inputs], run.organization[:n_inputs], strict=True):
        basis = TensorHaarBasis(tuple(org.trees))
        top = basis.top(min(n_functions, len(basis)))
        coefficients.append(basis.coefficients_of(att.filled().values, top).double().numpy())
        supports.append(basis.support(top))
    shortest = min(map(len, coefficients))
    return figures_bases.tri_haar_coefficients(
        [row[:shortest] for row in coefficients], [row[:shortest] for row in supports], run.inputs[:n_inputs]
    )
