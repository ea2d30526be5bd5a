"""Settings of the questionnaire."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from headtree import _checks
from headtree.errors import InvalidTypeError, InvalidValueError
from headtree.geometry.affinity import InitialAffinity
from headtree.geometry.emd import Weights

Tree = Literal["flexible", "binary"]
HeadFrom = Literal["latest", "initial"]

#: With ``samples="auto"``: the most differences of folder means in a distance matrix that is computed exactly (some
#: seconds on two cores), and the folder tuples drawn of each tuple of levels in larger ones: as many as it takes
#: for the relative error, within these bounds.
EXACT_DIFFERENCES = 2 * 10**10
SAMPLES, MOST_SAMPLES = 256, 4096
LARGEST_ERROR = 0.02

#: With ``samples="auto"``: the most entries of an array whose distances are computed exactly. A larger one may have
#: to be read in blocks, for which distances are sampled, and the result must not depend on the memory that is free.
EXACT_ENTRIES = 1 << 27

#: Unless `samples` is None: the most products of entries in first affinities that are computed from all entries.
EXACT_PRODUCTS = 2 * 10**9


@dataclass(frozen=True, kw_only=True)
class Questionnaire:
    """Settings of `organize` and `organize_array`; the defaults are those of [OA] for whole networks.

    For a single head as a matrix, [OA] uses ``Questionnaire(alpha=1, beta=0, n_iter=10, tree="binary")``.

    Parameters
    ----------
    alpha, beta : float
        Weight of a folder in the tree earth mover's distance: (fraction of the leaves)**beta · 2**(-alpha · levels
        below the root).
    n_iter : int
        Number of times every axis is organized.
    tree : {"flexible", "binary"}
        Bottom up with as many folders as the data suggest, or top down by halving.
    tree_constant : float
        For flexible trees: larger values give smaller folders.
    balance : float
        For binary trees: 1 halves every folder; with a larger value, split positions are drawn from `rng`.
    initial : {"cosine", "correlation", "gaussian"}
        Affinity of the slices before there are trees.
    initial_axes : tuple of int, optional
        Axes that get a tree from `initial`: all of them, or all but one. The default is axis 0 of a matrix, and all
        axes except 0 otherwise. The axis left out is organized first, then the others in order.
    head_from : {"latest", "initial"}
        Which trees of the other axes are used to organize the first axis (the heads): the newest, or always the
        initial ones, as algorithm 1 of [OA] is printed.
    weights : {"levels", "distinct"}
        Whether a folder that spans several levels of a tree counts on each of them or once.
    samples : int, "auto" or None
        Tree distances are computed from this many folder tuples of each tuple of levels, at least two, drawn by
        weight; of levels with fewer, all are taken. None takes all of all levels, so distances are exact. "auto" is
        None up to 2·10¹⁰ differences of folder means in a distance matrix and 134 million entries of the array;
        beyond, 256, and four times as many, up to 4,096, as long as the relative error is above 2 %. Except with
        None, first affinities that need more than 2·10⁹ products come from part of the array. The status of the
        result says which, with the errors.
    landmarks : int, tuple or None
        The most slices of an axis that are compared with each other, or a tuple of such numbers or None, one for
        each axis. Of an axis with more slices, that many are landmarks, at equal steps of the slices' sums of
        squares; the array of landmarks is organized. Each other slice then joins the landmark that is nearest in
        tree distance, and its coordinates follow from its affinities to all landmarks. None compares all slices.
    rng : int or numpy Generator
        Used by sampled distances, and by binary trees with ``balance > 1``.

    Examples
    --------
    >>> import headtree as ht
    >>> import numpy as np
    >>> x = np.random.default_rng(0).normal(size=(5, 7))
    >>> settings = ht.Questionnaire(alpha=1, beta=0, n_iter=10, tree="binary")
    >>> ht.organize_array(x, settings).trees[1]
    PartitionTree(7 leaves; folders by level: 1 2 4 7)

    At most six slices of each axis are compared with each other; the others join the nearest:

    >>> x = np.random.default_rng(0).normal(size=(40, 5))
    >>> org = ht.organize_array(x, ht.Questionnaire(landmarks=6))
    >>> [len(affinity) for affinity in org.affinities], org.trees[0].n_leaves
    ([6, 5], 40)
    """

    alpha: float = 0.0
    beta: float = 1.0
    n_iter: int = 3
    tree: Tree = "flexible"
    tree_constant: float = 1.0
    balance: float = 1.0
    initial: InitialAffinity = "cosine"
    initial_axes: tuple[int, ...] | None = None
    head_from: HeadFrom = "latest"
    weights: Weights = "levels"
    samples: int | Literal["auto"] | None = "auto"
    landmarks: int | tuple[int | None, ...] | None = None
    rng: int | np.random.Generator = 0

    def __post_init__(self) -> None:
        for name in ("alpha", "beta"):
            _checks.finite_number(getattr(self, name), name)
        _checks.positive(self.tree_constant, "tree_constant")
        if _checks.positive(self.balance, "balance") < 1:
            raise InvalidValueError(f"balance must be at least 1, got {self.balance}; 1 halves every folder")
        _checks.at_least_one(self.n_iter, "n_iter")
        _checks.generator(self.rng)
        if not (self.samples is None or (isinstance(self.samples, str) and self.samples == "auto")):
            _check_samples(self.samples)
        _check_landmarks(self.landmarks)
        for name, choices in (
            ("tree", Tree),
            ("initial", InitialAffinity),
            ("head_from", HeadFrom),
            ("weights", Weights),
        ):
            _checks.one_of(getattr(self, name), name, choices)

    def samples_for(self, n_differences: int, n_entries: int = 0) -> int | None:
        """Folder tuples to draw at first for so many differences in a distance matrix, and entries; None: all.

        Examples
        --------
        >>> import headtree as ht
        >>> settings = ht.Questionnaire()
        >>> settings.samples_for(10**10), settings.samples_for(10**11)
        (None, 256)
        """
        if self.samples == "auto":
            return SAMPLES if n_differences > EXACT_DIFFERENCES or n_entries > EXACT_ENTRIES else None
        return self.samples

    def landmarks_for(self, shape: tuple[int, ...]) -> tuple[int | None, ...]:
        """Number of landmarks of each axis of an array; None for one whose slices are all compared.

        Examples
        --------
        >>> import headtree as ht
        >>> ht.Questionnaire(landmarks=100).landmarks_for((64, 512, 512))
        (None, 100, 100)
        """
        given = self.landmarks if isinstance(self.landmarks, tuple) else (self.landmarks,) * len(shape)
        if len(given) != len(shape):
            raise InvalidValueError(
                f"landmarks must have a number or None for each of the {len(shape)} axes, got {self.landmarks}"
            )
        return tuple(m if m is not None and m < n else None for m, n in zip(given, shape, strict=True))

    def axis_order(self, n_axes: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return the axes that get an initial tree, and the order in which each iteration organizes the axes.

        Examples
        --------
        >>> import headtree as ht
        >>> ht.Questionnaire().axis_order(3)
        ((1, 2), (0, 1, 2))
        """
        if self.initial_axes is None:
            initial = (0,) if n_axes == 2 else tuple(range(1, n_axes))
        else:
            axes = _checks.as_list(self.initial_axes, "initial_axes", "integers")
            initial = tuple(sorted({_checks.axis_index(axis, n_axes) for axis in axes}))
        left_out = [axis for axis in range(n_axes) if axis not in initial]
        if len(left_out) > 1:
            raise InvalidValueError(
                f"initial_axes must name all axes or all but one, because organizing an axis needs trees on all "
                f"others, got {self.initial_axes} for {n_axes} axes"
            )
        return initial, (*left_out, *initial)


def _check_samples(samples: Any) -> None:
    if isinstance(samples, bool) or not isinstance(samples, int | np.integer):
        raise InvalidTypeError(f"samples must be an integer, 'auto' or None, got {samples!r}")
    if samples < 2:
        raise InvalidValueError(
            f"samples must be at least 2, since errors come from two halves of them, got {samples}; "
            "pass None for exact distances"
        )


def _check_landmarks(landmarks: Any) -> None:
    each = landmarks if isinstance(landmarks, tuple) else (landmarks,)
    for number in each:
        if number is None:
            continue
        if isinstance(number, bool) or not isinstance(number, int | np.integer):
            raise InvalidTypeError(
                f"landmarks must be an integer, None, or a tuple of them for each axis, got {landmarks!r}"
            )
        if number < 2:
            raise InvalidValueError(
                f"landmarks must be at least 2, since a tree comes from distances between them, got {landmarks!r}; "
                "pass None to compare all slices"
            )
