"""The figures of a run: each with its name, caption and function, and `draw_all`, which writes them.

To add a figure, write its function in the module of its subject and add an entry to `FIGURES` below.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Float, Int
from matplotlib.text import Text
from matplotlib.ticker import FixedFormatter, FuncFormatter

from headtree.bases.paraproduct import decomposed
from headtree.bases.tensor_haar import TensorHaarBasis
from headtree.errors import InvalidTypeError
from headtree.measures.consensus import Consensus
from headtree.measures.head_coordinates import consensus_coordinates
from headtree.measures.orders import softmax_input
from headtree.measures.sparsity import CompressionCurve
from headtree.progress import progress
from headtree.questionnaire.organization import Organization
from headtree.report.figures.basis_figures import (
    coefficients_by_support,
    compression,
    haar_basis,
    scores_over_heads,
    tri_haar_coefficients,
)
from headtree.report.figures.head_figures import head_affinity, head_grid, head_map
from headtree.report.figures.input_figures import is_picture
from headtree.report.figures.matrix_figures import organized_head, organized_matrix, paraproduct_terms
from headtree.report.figures.style import save, with_title
from headtree.report.figures.tree_figures import head_tree
from headtree.report.words.similarity_words import similarity_title
from headtree.report.words.slice_words import NAME, said_of
from headtree.runs.run import Run
from headtree.tensor.attention_tensor import AttentionTensor, HeadId
from headtree.tensor.slice_names import DEPTH, reduction_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: Inputs whose coefficients are drawn: [OA] shows five.
_INPUTS = 5

#: What softmax is taken of in a figure of its terms, by the kind of the run.
_LOGARITHMS = {
    "probs": ", f = log p",
    "weighted": ", f = log of the weights",
    "signed": ", f = log of the absolute values",
}


@dataclass(frozen=True, eq=False)
class RunFigure:
    """A figure of a run of a network: what it shows, and the function that draws it."""

    caption: str
    draw: Callable[[RunFigureData], Figure]


@dataclass(frozen=True, eq=False)
class RunFigureData:
    """What the figures of a run of a network are drawn from, each read or computed once."""

    run: Run
    kind: str  #: the similarity whose map, affinity and tree are drawn

    @cached_property
    def att(self) -> AttentionTensor:
        """What was organized of the first input."""
        return self.run.values[0]

    @cached_property
    def org(self) -> Organization:
        """Organization of the first input."""
        return self.run.organization[0]

    @cached_property
    def consensus(self) -> Consensus:
        """The tree of heads of all inputs, by this similarity."""
        return self.run.similarities[self.kind]

    def titled(self, what: str) -> str:
        """A title that says which similarity is shown."""
        return f"{what}: {similarity_title(self.kind, self.run.values_words)}"

    @cached_property
    def heads(self) -> tuple[HeadId, ...]:
        """The heads."""
        return tuple(self.att.heads)

    @cached_property
    def coordinates(self) -> Float[np.ndarray, "head 3"]:
        """Diffusion coordinates of the heads."""
        return consensus_coordinates(self.consensus)

    @cached_property
    def order(self) -> Int[np.ndarray, " head"]:
        """The heads in tree order."""
        return self.consensus.tree.order(self.coordinates[:, 0])

    @property
    def unit(self) -> str:
        """What the entries of a matrix are."""
        reduction = reduction_of(self.att.provenance)
        if reduction is not None:
            return reduction[0]
        return {"raw scores": "raw attention score", "centred scores": "centred attention score"}.get(
            self.run.values_words, ""
        )

    @cached_property
    def structure(self) -> Float[np.ndarray, " head"]:
        """Structure score of every head, mean over inputs."""
        return np.asarray(self.run.heads["structure"], dtype=np.float64)

    @cached_property
    def structures(self) -> Float[np.ndarray, "input head"]:
        """Structure score of every head on every input."""
        columns = [f"structure_{i}" for i in range(self.run.n_inputs)]
        return np.asarray(self.run.heads[columns], dtype=np.float64).T

    def head(self, index: int) -> Figure:
        """A head on the first input, with the text or the picture of it."""
        keys, samples = self.att.keys, self.run.samples
        picture = _read_picture(samples[0]) if is_picture(keys) and len(samples) == self.run.n_inputs else None
        is_text = not is_picture(keys) and not all(key.isdigit() for key in keys)
        return organized_head(self.att, self.org, index, unit=self.unit, picture=picture, text=is_text)

    def ranked(self, share: float) -> int:
        """The head at this share of the ranking by structure score: 0 the largest, 1 the smallest."""
        falling = np.argsort(self.run.heads["structure_rank"].to_numpy(), kind="stable")
        return int(falling[min(len(falling) - 1, int(share * len(falling)))])

    @cached_property
    def extremes(self) -> list[int]:
        """The heads of largest and smallest structure score; one if they are the same."""
        return list(dict.fromkeys((self.ranked(0), self.ranked(1))))


def _read_picture(path: Path) -> Float[np.ndarray, "row column channel"]:
    from matplotlib.image import imread

    return np.asarray(imread(path))


def draw_all(run: Run, folder: str | os.PathLike[str] | None = None) -> dict[str, Path]:
    """Draw every figure of a run as SVG and PNG; the same run gives the same bytes.

    Parameters
    ----------
    run : Run
        A run whose steps capture, organize and measure are done.
    folder : path, optional
        Where to write; made if needed. By default ``figures`` in the run folder.

    Returns
    -------
    dict
        Path of each SVG by name; the PNG is beside it. Names are those of `FIGURES`; ``map_KIND``,
        ``affinity_KIND`` and ``tree_KIND`` show the other similarities of heads, such as
        ``tree_questionnaire``. For a run of an array
        ``matrix``, ``compression`` and for each axis ``map_AXIS``, ``affinity_AXIS``, ``tree_AXIS``.

    Examples
    --------
    >>> import numpy as np
    >>> import tempfile
    >>> import headtree as ht
    >>> from headtree.pipeline.make_run import make_run
    >>> from headtree.pipeline.sources import TensorSource
    >>> values = np.random.default_rng(0).standard_normal((4, 8, 8))
    >>> att = ht.AttentionTensor.from_array(values, heads_per_layer=2)
    >>> run = make_run(TensorSource([att]), tempfile.mkdtemp(), draw=False)
    >>> sorted(draw_all(run))[:3]
    ['affinity', 'coefficients', 'compression']
    """
    if not isinstance(run, Run):
        raise InvalidTypeError(f"run must be a Run, got {type(run).__name__}; pass ht.open_run(path)")
    drawings = array_figures(run) if run.kind == "array" else network_figures(run)
    target = run.path / "figures" if folder is None else Path(folder)
    paths = {}
    with progress("drawing", len(drawings)) as step:
        for name, draw in drawings.items():
            paths[name], _ = save(name_slices(draw(), run.slices), target, name)
            step(name)
    return paths


def name_slices(figure: Figure, slices: str) -> Figure:
    """Exchange the words in a figure's titles and labels, and names of slices anywhere; labels of tokens stay."""
    if slices != DEPTH:
        return figure
    both = [axis for axes in figure.axes for axis in (axes.xaxis, axes.yaxis)]
    for axis in both:
        labels = axis.get_major_formatter()
        if isinstance(labels, FuncFormatter):
            labels.func = partial(_tick, labels.func, slices)
        if isinstance(labels, FixedFormatter):
            labels.seq = [_named(slices, text) for text in labels.seq]
    ticks = {id(label) for axis in both for label in axis.get_ticklabels()}
    for text in figure.findobj(Text):
        if id(text) not in ticks:
            text.set_text(said_of(slices, text.get_text()))
    return figure


def _tick(label: Callable[[float, int | None], str], slices: str, x: float, position: int | None = None) -> str:
    return _named(slices, label(x, position))


def _named(slices: str, text: str) -> str:
    return said_of(slices, text) if NAME.fullmatch(text) else text


def network_figures(run: Run) -> dict[str, Callable[[], Figure]]:
    """A function for each figure of a run of a network, by name."""
    main, *others = run.similarities
    data = RunFigureData(run, main)
    found: dict[str, Callable[[], Figure]]
    found = {name: partial(figure.draw, data) for name, figure in FIGURES.items()}
    for kind in others:
        other = RunFigureData(run, kind)
        found |= {f"{name}_{kind}": partial(FIGURES[name].draw, other) for name in OF_SIMILARITIES}
    return found


def array_figures(run: Run) -> dict[str, Callable[[], Figure]]:
    """A function for each figure of a run of a plain array, by name."""
    org = run.organization[0]
    labels = {axis: _labels(run, axis) for axis in org.names}
    drawings: dict[str, Callable[[], Figure]] = {"matrix": lambda: _largest_matrix(run, labels)}
    for axis in org.names:
        drawings |= {
            f"map_{axis}": partial(head_map, org.coordinates[axis], labels[axis]),
            f"affinity_{axis}": partial(
                head_affinity, org.all_affinities(axis), org.trees[axis], labels[axis], org.order(axis)
            ),
            f"tree_{axis}": partial(head_tree, org.trees[axis], labels[axis], org.order(axis)),
        }
    drawings["compression"] = partial(run_compression, run)
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
    slices = [f"{axis} {labels[axis][i]}" for axis, i in zip(org.names, index, strict=False)]
    pair = labels[org.names[-2]], labels[org.names[-1]]
    return organized_matrix(values[index], org, title=", ".join(slices) or "array", labels=pair)


def head_paraproduct(run: Run, head: int) -> Figure:
    """Softmax of a head's scores by scales; of probabilities or weights, their logarithms are the scores."""
    att, org = run.values[0], run.organization[0]
    one = att.take(head)
    raw = ", raw scores" if run.values_words == "raw scores" else ""
    product = decomposed(softmax_input(one)[0].numpy(), org.trees.query, org.trees.key, "softmax")
    return paraproduct_terms(
        product,
        org.order("query"),
        org.order("key"),
        missing=None if one.mask is None else one.mask[0].numpy(),
        name=f"{att.heads[head]}, median structure score{_LOGARITHMS.get(att.kind, '')}{raw}",
    )


def run_compression(run: Run) -> Figure:
    """Compression curves of the first input."""
    return compression(_array_curves(run) if run.kind == "array" else run.measured[0].sparsity.by_order)


def _array_curves(run: Run) -> dict[str, CompressionCurve]:
    """Compression curves of an array, as they were measured."""
    found = run.measures.sparsity
    return {
        order: CompressionCurve(
            counts=np.array(found.curves.counts),
            largest=np.array(found.curves.largest[order]),
            coarsest=np.array(found.curves.coarsest[order]),
            n_for_90=n_for_90,
            n_for_99=n_for_99,
            n_coefficients=found.n_coefficients,
        )
        for order, n_for_90, n_for_99 in zip(found.orders, found.n_for_90, found.n_for_99, strict=True)
    }


def coarsest_coefficients(run: Run) -> Figure:
    """The coarsest coefficients of the first inputs, as many as the network's Haar entropy sums."""
    n_inputs = min(_INPUTS, run.n_inputs)
    coefficients = [item.network_coefficients for item in run.measured[:n_inputs]]
    supports: list[Int[np.ndarray, " function"]] = []
    for i, row in enumerate(coefficients):
        basis = TensorHaarBasis(tuple(run.organization[i].trees))
        supports.append(basis.support(basis.top(len(row))))
    shortest = min(map(len, coefficients))
    return tri_haar_coefficients(
        [row[:shortest] for row in coefficients], [row[:shortest] for row in supports], run.inputs[:n_inputs]
    )


def _first(run: Run) -> str:
    """Which inputs are shown, if not all are."""
    return f", first {_INPUTS} of {run.n_inputs} inputs" if run.n_inputs > _INPUTS else ""


#: The figures of a run of a network by file name, in the order in which they are read.
FIGURES: Mapping[str, RunFigure] = MappingProxyType(
    {
        "map": RunFigure(
            "Diffusion map of the heads by the similarity that the title names: heads near each other are alike. "
            "Colour is the layer.",
            lambda data: head_map(data.coordinates, data.heads, title=data.titled("Map of heads")),
        ),
        "affinity": RunFigure(
            "Affinity of every two heads by the similarity that the title names, in the order of the tree of "
            "heads; bright squares on the diagonal are groups.",
            lambda data: head_affinity(
                data.consensus.affinity,
                data.consensus.tree,
                data.heads,
                data.order,
                title=data.titled("Affinity of heads"),
            ),
        ),
        "tree": RunFigure(
            "The tree of heads that all inputs agree on, by the similarity that the title names. Numbers are "
            "support in percent: how much of a folder trees of halves of the inputs put together, beyond chance; "
            "dark dots hold on other inputs.",
            lambda data: head_tree(data.consensus, data.heads, data.order, title=data.titled("Tree of heads")),
        ),
        "grid": RunFigure(
            "Structure score of every head, by layer and index within the layer, mean over inputs.",
            lambda data: head_grid(data.structure, data.heads, "structure score, mean over inputs"),
        ),
        "head_top": RunFigure(
            "The head of largest structure score on the first input: in the original order, and with queries and "
            "keys in tree order.",
            lambda data: data.head(data.ranked(0)),
        ),
        "head_bottom": RunFigure(
            "The head of smallest structure score, drawn in the same way.",
            lambda data: data.head(data.ranked(1)),
        ),
        "paraproduct": RunFigure(
            "Softmax of the head of median structure score beside its paraproduct, complete and as printed in "
            "[OA], the terms, and the residual. In a run of probabilities or weights f is their logarithm.",
            lambda data: head_paraproduct(data.run, data.ranked(0.5)),
        ),
        "coefficients": RunFigure(
            "Query-key coefficients of the heads of largest and smallest structure score against the support of "
            "their functions, and of all heads.",
            lambda data: with_title(
                coefficients_by_support(data.att, data.org, data.extremes),
                f"Haar coefficients of {data.run.values_words}",
            ),
        ),
        "haar_basis": RunFigure(
            "Haar basis of the heads: each row is a function, the mean of the red heads minus the mean of the blue "
            "ones. Those with the largest smaller sides are drawn.",
            lambda data: with_title(
                haar_basis(data.consensus.tree, data.heads, data.order), data.titled("Haar basis of the tree")
            ),
        ),
        "structure": RunFigure(
            "Structure score of every head on every input.",
            lambda data: scores_over_heads(data.structures, data.heads, data.run.inputs),
        ),
        "compression": RunFigure(
            "Error against the number of coefficients used, on the learned trees and on others.",
            lambda data: with_title(run_compression(data.run), f"Compression of {data.run.values_words}"),
        ),
        "tri_haar": RunFigure(
            "The coarsest head-query-key coefficients of the network on several inputs.",
            lambda data: with_title(
                coarsest_coefficients(data.run),
                f"Coarsest coefficients of {data.run.values_words}" + _first(data.run),
            ),
        ),
    }
)

#: The figures that are drawn again for each further similarity of heads.
OF_SIMILARITIES = ("map", "affinity", "tree")
