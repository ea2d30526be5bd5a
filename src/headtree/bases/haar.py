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
    r"""Orthonormal functions on the leaves of a tree: a constant, and contrasts between children of each folder.

    A folder with children :math:`c_1 \ldots c_m`, ordered by decreasing size, then smallest leaf, has m - 1
    functions. The i-th is positive on :math:`c_i`, negative on the children after it and zero elsewhere, with mean
    zero and norm one. Function 0 is the constant :math:`1/\sqrt n`; the others are ordered by node (level, then
    smallest leaf), then by i.

    Parameters
    ----------
    tree : PartitionTree
        Any tree. A folder that spans several levels has its functions once, at the node where it splits, which is
        the lowest.

    Notes
    -----
    ``synthesize(analyze(x))`` equals `x` and ``sum(analyze(x)**2)`` equals ``sum(x**2)``, up to rounding. No n × n
    matrix is formed: a transform is n - 1 plane rotations of each fibre. If leaves are relabelled, the functions of
    a folder whose children differ in size are relabelled with them. Functions of children of equal size may mix;
    only their span, and the energy in it, is preserved.

    Examples
    --------
    >>> import headtree as ht
    >>> import numpy as np
    >>> basis = ht.HaarBasis(ht.PartitionTree.halving(4))
    >>> basis.matrix().round(2)
    array([[ 0.5 ,  0.5 ,  0.71,  0.  ],
           [ 0.5 ,  0.5 , -0.71,  0.  ],
           [ 0.5 , -0.5 ,  0.  ,  0.71],
           [ 0.5 , -0.5 ,  0.  , -0.71]])
    >>> basis.support
    array([4, 4, 2, 2])
    """

    tree: PartitionTree
    level: Int[np.ndarray, " function"] = field(init=False)  #: level of the node; -1 for the constant
    node: Int[np.ndarray, " function"] = field(init=False)  #: the node that splits; -1 for the constant
    index: Int[np.ndarray, " function"] = field(init=False)  #: which function of its node, from 0
    support: Int[np.ndarray, " function"] = field(init=False)  #: number of leaves where the function is nonzero
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
        """Compute the coefficients of every fibre of `x` along `axis`.

        Parameters
        ----------
        x : array or tensor
            Its length along `axis` is the number of leaves. Other axes are batch axes.
        axis : int
            The axis of the leaves; in the result, the axis of the functions.

        Returns
        -------
        array, or tensor if `x` is one, with the shape, device and dtype of `x` (half precision becomes float32,
        integers become float64).

        Examples
        --------
        >>> import headtree as ht
        >>> basis = ht.HaarBasis(ht.PartitionTree.halving(4))
        >>> basis.analyze([1.0, 3.0, 5.0, 7.0]).round(3)
        array([ 8.   , -4.   , -1.414, -1.414])
        """
        return self._transformed(x, "x", axis, self._analysis)

    def synthesize(self, c: Any, axis: int = -1) -> Any:
        """Compute the array whose coefficients along `axis` are `c`: the inverse of `analyze`.

        Examples
        --------
        >>> import headtree as ht
        >>> basis = ht.HaarBasis(ht.PartitionTree.halving(4))
        >>> basis.synthesize([8.0, -4.0, 0.0, 0.0]).round(3)
        array([2., 2., 6., 6.])
        """
        return self._transformed(c, "c", axis, self._synthesis)

    def matrix(self) -> Float[np.ndarray, "leaf function"]:
        """Return the functions as columns, for figures and tests; the transforms do not need it.

        Examples
        --------
        >>> import headtree as ht
        >>> ht.HaarBasis(ht.PartitionTree.flat(3)).matrix().round(2)
        array([[ 0.58,  0.82,  0.  ],
               [ 0.58, -0.41,  0.71],
               [ 0.58, -0.41, -0.71]])
        """
        return np.asarray(self.analyze(np.eye(len(self))))

    def function(self, level: int, node: int, index: int = 0) -> int:
        """Find the number of the function with this level, node and index; (-1, -1, 0) is the constant.

        Examples
        --------
        >>> import headtree as ht
        >>> ht.HaarBasis(ht.PartitionTree.halving(4)).function(level=1, node=2)
        3
        """
        found = np.flatnonzero((self.level == level) & (self.node == node) & (self.index == index))
        if len(found) == 0:
            raise InvalidValueError(
                f"(level, node, index) must name a function of the basis, got ({level}, {node}, {index}); "
                "nodes are numbered as in tree.nodes, and only nodes that split have functions: see .level, .node "
                "and .index"
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
        """`analyze` a checked tensor, with all functions or only those in `wanted`.

        Examples
        --------
        >>> import headtree as ht
        >>> import numpy as np
        >>> import torch
        >>> basis = ht.HaarBasis(ht.PartitionTree.halving(4))
        >>> basis.analyzed(torch.ones(3, 4), 1, wanted=np.array([0, 1])).shape
        torch.Size([3, 2])
        """
        return rotated(values, axis, self._analysis if wanted is None else self._analysis.only(wanted))

    def synthesized(self, values: Float[Tensor, " ..."], axis: int) -> Float[Tensor, " ..."]:
        """`synthesize` a checked tensor.

        Examples
        --------
        >>> import headtree as ht
        >>> import torch
        >>> basis = ht.HaarBasis(ht.PartitionTree.halving(4))
        >>> basis.synthesized(torch.tensor([2.0, 0.0, 0.0, 0.0]), 0).numpy().round(3)
        array([1., 1., 1., 1.], dtype=float32)
        """
        return rotated(values, axis, self._synthesis)


def check_leaves(tree: PartitionTree, n: int, name: str, axis: int) -> None:
    """Raise unless the tree has n leaves, one for each index along an axis of length n."""
    if tree.n_leaves != n:
        raise InvalidValueError(
            f"{name} must have one entry per leaf along axis {axis}: the tree has {tree.n_leaves} leaves, the axis "
            f"{n} entries; pass the tree of this axis, or move the axis"
        )


def rotated(values: Float[Tensor, " ..."], axis: int, chain: Rotations) -> Float[Tensor, " ..."]:
    """Apply a chain of rotations along one axis: compiled code on the CPU, torch round by round elsewhere."""
    shape = values.shape
    fibres = values.reshape(int(np.prod(shape[:axis])), shape[axis], -1)
    rotate = rotate_on_cpu if values.device.type == "cpu" else rotate_by_rounds
    return rotate(fibres, chain).reshape(*shape[:axis], -1, *shape[axis + 1 :])


def _functions(tree: PartitionTree) -> dict[str, Any]:
    """Compute all attributes of a `HaarBasis` except its tree.

    In the working array of the rotations, the value of a folder is in the row of its last child. The coefficient
    that contrasts child i with the children after it is in the row of child i.
    """
    folders = tree.distinct
    children, pointers = folders.children
    split_level = folders.level + folders.stands_on - 1
    row = folders.first_leaf.copy()
    time = np.zeros(tree.n_leaves, dtype=np.int64)  # round in which each row was last written
    steps: list[tuple[int, int, int, int, int]] = []  # first, second, size of child, of child and all after, round
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
    first, second, size_of_child, size_of_rest, rounds = table.T
    chain = Rotations(
        first=first.copy(),
        second=second.copy(),
        cos=np.sqrt(size_of_child / size_of_rest),
        sin=np.sqrt((size_of_rest - size_of_child) / size_of_rest),
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
