"""Weighted folder means of slices that may have missing entries, and the weight of the folders two slices share."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from headtree import _checks
from headtree._threads import product_by_rows
from headtree.geometry.first_rows import mirrored_lower
from headtree.geometry.folder_sums import FolderSums, Products


class MeansOfRun(NamedTuple):
    """Weighted means over a run of folders; the next run overwrites them."""

    steps: slice
    features: Float[np.ndarray, "slice feature"]  #: padded with zeros
    is_present: Bool[np.ndarray, "slice_or_1 step_or_1 inner"]  #: whether a slice has entries in a folder

    @property
    def has_gaps(self) -> bool:
        """Whether folders are missing from some slices only; their features are NaN there."""
        return len(self.is_present) > 1


def weighted_means(
    values: Float[Tensor, "..."], missing: Bool[Tensor, "..."] | None, axis: int, products: Products
) -> Iterator[MeansOfRun]:
    """Mean over the entries that a slice has in each product of folders, times the weight, run by run.

    `values` are 0 where missing. Every slice goes through the same operations in the same order, wherever it is in
    the array: slices with equal entries have equal means, to the last bit.
    """
    runs = products.runs(values.shape[axis])
    sums = FolderSums(values, axis, products, runs[0].stop)
    if missing is None:
        outer_mean = products.outer_weight / products.outer_size
        inner_mean = (products.inner_weight / products.inner_size)[None, None]
        for steps in runs:
            yield MeansOfRun(steps, sums.make(steps, outer_mean[steps], inner_mean), inner_mean > 0)
        return
    counts = _Counts(missing, axis, products, runs[0].stop, values.dtype)
    for steps in runs:
        n_present, outer = counts.make(steps)
        is_present = n_present > 0
        # nobody has a folder that is missing from slices with a common mask: it adds nothing
        scale = np.full_like(n_present, 0.0 if len(n_present) == 1 else np.nan)
        np.divide(products.inner_weight, n_present, out=scale, where=is_present)
        yield MeansOfRun(steps, sums.make(steps, outer, scale), is_present)


class _Counts:
    """Number of present entries in every folder, run by run; counted once where slices or outer leaves agree."""

    def __init__(
        self,
        missing: Bool[Tensor, "..."],
        axis: int,
        products: Products,
        longest_run: int,
        dtype: torch.dtype,
    ) -> None:
        outer_axis = 1 if axis == 0 else 0
        self._products = products
        self._share_outer = False  # whether one step serves all outer folders
        if _checks.is_shared(missing, axis):
            missing = missing.narrow(axis, 0, 1)
        elif _checks.is_shared(missing, outer_axis):
            self._share_outer = True
            missing, products = missing.narrow(outer_axis, 0, 1), products.with_one_outer_leaf()
        self._sums = FolderSums(missing.logical_not().to(dtype), axis, products, longest_run)
        if self._share_outer:
            self._of_outer_leaf = self._run(slice(0, 1))

    def make(
        self, steps: slice
    ) -> tuple[Float[np.ndarray, "slice_or_1 step_or_1 inner"], Float[np.ndarray, " step"]]:
        """Counts, and weights of the outer folders divided by whatever factor of the size the counts omit."""
        weight, size = self._products.outer_weight[steps], self._products.outer_size[steps]
        if self._share_outer:
            return self._of_outer_leaf, weight / size
        return self._run(steps), weight

    def _run(self, steps: slice) -> Float[np.ndarray, "slice_or_1 step inner"]:
        n_steps, n_inner = steps.stop - steps.start, len(self._products.inner_size)
        counts = self._sums.make(steps, np.ones(n_steps), np.ones((1, 1, n_inner)))
        return counts[:, : n_steps * n_inner].reshape(len(counts), n_steps, n_inner)


class CommonWeight:
    """Weight of the folders in which both slices of a pair have entries, summed over runs in float64.

    Of all pairs, or those of one of the first slices and any.
    """

    def __init__(self, n_first: int, n: int, products: Products) -> None:
        self._products = products
        self._common = torch.zeros(n_first, n, dtype=torch.float64)
        self._of_all_outer: Bool[np.ndarray, "slice inner"] | None = None

    def add(self, run: MeansOfRun) -> None:
        """Add the folders of a run; presence may be common to all slices or to all outer folders."""
        outer, inner = self._products.outer_weight[run.steps], self._products.inner_weight
        if not run.has_gaps:
            present = np.broadcast_to(run.is_present[0], (len(outer), len(inner)))
            self._common += float(outer @ present @ inner)
        elif run.is_present.shape[1] < len(outer) or self._of_all_outer is not None:  # the last run may have one
            self._of_all_outer = run.is_present[:, 0]
        else:
            self._add_products(run.is_present.reshape(len(run.is_present), -1), np.outer(outer, inner).ravel())

    def result(self) -> Float[Tensor, "first slice"]:
        """Common weight of the pairs: symmetric, and exactly 0 for slices that share no folder."""
        if self._of_all_outer is not None:
            self._add_products(self._of_all_outer, self._products.outer_weight.sum() * self._products.inner_weight)
        return mirrored_lower(self._common)

    def _add_products(
        self, is_present: Bool[np.ndarray, "slice folder"], weights: Float[np.ndarray, " folder"]
    ) -> None:
        some_lack = ~is_present.all(axis=0)
        self._common += float(weights[~some_lack].sum())
        present = torch.from_numpy(is_present[:, some_lack]).double()
        weighted = present[: len(self._common)] * torch.from_numpy(weights[some_lack])
        self._common += product_by_rows(weighted, present)
