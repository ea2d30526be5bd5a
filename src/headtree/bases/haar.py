"""The Haar basis of one partition tree, [OA] 2.4."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from jaxtyping import Float, Int
from torch import Tensor

from headtree import _checks
from headtree.bases.rotations import Rotations, rotate_by_rounds, rotate_on_cpu
from headtree.errors import InvalidTypeError, InvalidValueError
from headtree.trees.tree import PartitionTree


@dataclass(frozen=True, eq=False, repr=False)
class HaarBasis:
    r"""Orthonormal functions on the leaves of a tree: a constant, and how each folder's children differ.

    A folder with children :math:`c_1 \ldots c_m`, by falling size, then smallest leaf, gives m - 1 functions.
    The i-th is positive on :math:`c_i`, negative on the children after it, zero elsewhere, of mean zero and
    norm one. Function 0 is the constant :math:`1/\sqrt n`; the others stand in the order of their nodes
    (level, then smallest leaf), then of i.

    Parameters
    ----------
    tree : PartitionTree
        Any tree. A folder that stands on several levels gives its functions once, at the node where it
        splits: the lowest on which it stands.

    Notes
    -----
    ``synthesize(analyze(x))`` is `x` and ``sum(analyze(x)**2)`` is ``sum(x**2)``, to rounding. No n × n
    matrix is made: a transform is n - 1 plane rotations for each fibre. When leaves are relabelled, the
    functions of a folder whose children differ in size move along with them; those of equal children may mix
    among each other, and only their span, and the energy in it, moves along.
    """

    tree: PartitionTree
    level: Int[np.ndarray, " function"] = field(init=False)  #: level of the node; the constant has -1
    node: Int[np.ndarray, " function"] = field(init=False)  #: node of the tree that splits; the constant has -1
    index: Int[np.ndarray, " function"] = field(init=False)  #: which of its node's functions, from 0
    support: Int[np.ndarray, " function"] = field(init=False)  #: number of leaves where it is not zero
    _analysis: Rotations = field(init=False)
    _synthesis: Rotations = field(init=False)

    def __post_init__(self) -> None:
        if not isinstance(self.tree, PartitionTree):
            raise InvalidTypeError(f"tree must be a PartitionTree, got {type(self.tree).__name__}")
        for name, value in _functions(self.tree).items():
            object.__setattr__(self, name, value)
        object.__setattr__(self, "_synthesis", self._analysis.inverse())

    def __len__(self) -> int:
        """Number of functions, which is the number of leaves."""
        return self.tree.n_leaves

    def __repr__(self) -> str:
        return f"HaarBasis({len(self)} functions on {self.tree!r})"

    def analyze(self, x: Any, axis: int = -1) -> Any:
        """Coefficients of every fibre of `x` along `axis`.

        Parameters
        ----------
        x : array or tensor
            With as many entries along `axis` as the tree has leaves. Other axes are batch axes.
        axis : int
            The axis of the leaves; in the result, of the functions.

        Returns
        -------
        array or tensor, as `x` is: same shape, device and dtype (half precision raised to float32, integers
        to float64).
        """
        return self._transformed(x, "x", axis, self._analysis)

    def synthesize(self, c: Any, axis: int = -1) -> Any:
        """The array with coefficients `c` along `axis`: the inverse of `analyze`."""
        return self._transformed(c, "c", axis, self._synthesis)

    def matrix(self) -> Float[np.ndarray, "leaf function"]:
        """The functions as columns, for figures and tests; no transform needs it."""
        return np.asarray(self.analyze(np.eye(len(self))))

    def function(self, level: int, node: int, index: int = 0) -> int:
        """Number of the function with this level, node and index; (-1, -1, 0) is the constant."""
        found = np.flatnonzero((self.level == level) & (self.node == node) & (self.index == index))
        if len(found) == 0:
            raise InvalidValueError(
                f"(level, node, index) must name a function of the basis, got ({level}, {node}, {index}); "
                "nodes are numbered as in tree.nodes, and only those that split have functions: see .level, "
                ".node and .index"
            )
        return int(found[0])

    def _transformed(self, x: Any, name: str, axis: int, chain: Rotations) -> Any:
        tensor = _checks.full_tensor(x, name)
        if tensor.ndim == 0:
            raise InvalidValueError(f"{name} must have at least one axis, got a single number")
        axis = _checks.axis_index(axis, tensor.ndim)
        check_leaves(self.tree, tensor.shape[axis], name, axis)
        result = _checks.in_range(rotated(tensor, axis, chain), tensor, name)
        return result if isinstance(x, Tensor) else result.numpy()

    def analyzed(
        self, values: Float[Tensor, " ..."], axis: int, wanted: Int[np.ndarray, " wanted"] | None = None
    ) -> Float[Tensor, " ..."]:
        """`analyze` of a checked tensor, with all functions or only the wanted ones."""
        return rotated(values, axis, self._analysis if wanted is None else self._analysis.only(wanted))

    def synthesized(self, values: Float[Tensor, " ..."], axis: int) -> Float[Tensor, " ..."]:
        """`synthesize` of a checked tensor."""
        return rotated(values, axis, self._synthesis)


def check_leaves(tree: PartitionTree, n: int, name: str, axis: int) -> None:
    """Raise unless the tree has one leaf for each of the n indices of an axis."""
    if tree.n_leaves != n:
        raise InvalidValueError(
            f"{name} must have one entry for each leaf along its axis {axis}: the tree has {tree.n_leaves} "
            f"leaves, the axis {n} entries; pass the tree of this axis, or move the axis"
        )


def rotated(values: Float[Tensor, " ..."], axis: int, chain: Rotations) -> Float[Tensor, " ..."]:
    """Apply a chain along one axis: compiled on the CPU, by rounds in torch on every other device."""
    shape = values.shape
    fibres = values.reshape(int(np.prod(shape[:axis])), shape[axis], -1)
    rotate = rotate_on_cpu if values.device.type == "cpu" else rotate_by_rounds
    return rotate(fibres, chain).reshape(*shape[:axis], -1, *shape[axis + 1 :])


def _functions(tree: PartitionTree) -> dict[str, Any]:
    """Everything a `HaarBasis` holds beside its tree.

    In the working array of the rotations a folder's value stands in the row of its last child, and the
    coefficient that sets child i apart from those after it in the row of child i.
    """
    folders = tree.distinct
    children, pointers = folders.children
    split_level = folders.level + folders.stands_on - 1
    row = folders.first_leaf.copy()
    time = np.zeros(tree.n_leaves, dtype=np.int64)  # round after which a row was last written
    steps: list[tuple[int, int, int, int, int]] = []  # first, second, size of the child, of all from it on, round
    names: list[tuple[int, int, int, int, int]] = []  # node, index, level, support, row
    for folder in np.flatnonzero(~folders.is_leaf)[::-1]:  # children before parents
        own = children[pointers[folder] : pointers[folder + 1]]
        own = own[np.lexsort((folders.first_leaf[own], -folders.size[own]))]
        level = int(split_level[folder])
        node = int(tree.nodes[level, folders.first_leaf[folder]])
        last, size = int(row[own[-1]]), int(folders.size[own[-1]])
        for index in range(len(own) - 2, -1, -1):
            child = int(row[own[index]])
            size += int(folders.size[own[index]])
            time[last] = max(time[last], time[child]) + 1
            steps.append((last, child, int(folders.size[own[index]]), size, int(time[last])))
            names.append((node, index, level, size, child))
        row[folder] = last
    names.append((-1, 0, -1, tree.n_leaves, int(row[0])))
    node_, index_, level_, support, row_out = np.array(sorted(names)).T
    table = np.array(sorted(steps, key=lambda step: step[-1]), dtype=np.int64).reshape(-1, 5)
    first, second, part, whole, rounds = table.T
    chain = Rotations(
        first=first.copy(),
        second=second.copy(),
        cos=np.sqrt(part / whole),
        sin=np.sqrt((whole - part) / whole),
        round=rounds.copy(),
        row_in=np.arange(tree.n_leaves),
        row_out=row_out.copy(),
    )
    named = {"level": level_, "node": node_, "index": index_, "support": support}
    return {name: _frozen(values) for name, values in named.items()} | {"_analysis": chain}


def _frozen(array: np.ndarray) -> np.ndarray:
    array = array.copy()
    array.flags.writeable = False
    return array
