"""The tree earth mover's distance between slices with missing entries."""

from __future__ import annotations

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from headtree import _checks
from headtree._threads import product_by_rows
from headtree.geometry.folder_sums import FolderSums, Products
from headtree.geometry.kernels_cpu import add_magnitudes, add_pairwise_l1


def masked_emd(
    values: Float[Tensor, "..."], missing: Bool[Tensor, "..."], axis: int, products: Products
) -> Float[Tensor, "slice slice"]:
    """L1 distance between the folder averages that both slices have, from the plain L1 kernel and two products.

    `values` are 0 where missing. Let p be 1 where a slice has entries in a folder and 0 elsewhere, and a' = w a p.
    The sum over folders present in both slices is ``L1(a', b') - |a'| (1 - p_b) - (1 - p_a) |b'|`` and their weight
    ``(w p_a) p_b``; the sum is rescaled by total weight / that weight.
    """
    n = values.shape[axis]
    runs = products.runs(n)
    sums = FolderSums(values, axis, products, runs[0].stop)
    counts = _Counts(missing, axis, products, runs[0].stop, values.dtype)
    total, lack = np.zeros((n, n)), _Lack(n, products, counts.share_outer)
    for steps in runs:
        n_present, outer_mean = counts.make(steps)
        is_present = n_present > 0
        inner_mean = np.divide(products.inner_weight, n_present, out=np.zeros_like(n_present), where=is_present)
        features = sums.make(steps, outer_mean, inner_mean)
        add_pairwise_l1(features, total)
        lack.add(steps, features, is_present)
    everything = torch.from_numpy(total + total.T)
    lacking, kept = lack.result()
    sums_of_both = everything - lacking - lacking.T
    # terms are rounded in their own dtype: the remainder of a sum that cancels is set to zero
    sums_of_both[sums_of_both <= 16 * torch.finfo(values.dtype).eps * everything] = 0
    distances = sums_of_both * float(products.outer_weight.sum() * products.inner_weight.sum()) / kept
    distances[kept == 0] = torch.inf
    return distances.fill_diagonal_(0)


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
        self.share_outer = False  #: whether one step serves all outer folders
        if _checks.is_shared(missing, axis):
            missing = missing.narrow(axis, 0, 1)
        elif _checks.is_shared(missing, outer_axis):
            self.share_outer = True
            missing, products = missing.narrow(outer_axis, 0, 1), products.with_one_outer_leaf()
        self._sums = FolderSums(missing.logical_not().to(dtype), axis, products, longest_run)
        if self.share_outer:
            self._of_outer_leaf = self._run(slice(0, 1))

    def make(
        self, steps: slice
    ) -> tuple[Float[np.ndarray, "slice_or_1 step_or_1 inner"], Float[np.ndarray, " step"]]:
        """Counts, and weights of the outer folders divided by whatever factor of the size the counts omit."""
        weight, size = self._products.outer_weight[steps], self._products.outer_size[steps]
        if self.share_outer:
            return self._of_outer_leaf, weight / size
        return self._run(steps), weight

    def _run(self, steps: slice) -> Float[np.ndarray, "slice_or_1 step inner"]:
        n_steps, n_inner = steps.stop - steps.start, len(self._products.inner_size)
        counts = self._sums.make(steps, np.ones(n_steps), np.ones((1, 1, n_inner)))
        return counts[:, : n_steps * n_inner].reshape(len(counts), n_steps, n_inner)


class _Lack:
    """Correction for folders that only one slice of a pair has, summed over runs."""

    def __init__(self, n: int, products: Products, share_outer: bool) -> None:
        self._products = products
        self._share_outer = share_outer
        self._lacking = torch.zeros(n, n, dtype=torch.float64)
        self._kept = torch.zeros(n, n, dtype=torch.float64)
        self._magnitudes = np.zeros((n, len(products.inner_weight)))  # sums over outer folders
        self._present: Bool[np.ndarray, "slice inner"] | None = None

    def add(
        self,
        steps: slice,
        features: Float[np.ndarray, "slice feature"],
        is_present: Bool[np.ndarray, "slice_or_1 step_or_1 inner"],
    ) -> None:
        """Add the folders of a run; presence may be common to all slices or to all outer folders."""
        outer, inner = self._products.outer_weight[steps], self._products.inner_weight
        if len(is_present) == 1:
            self._kept += float(outer @ np.broadcast_to(is_present[0], (len(outer), len(inner))) @ inner)
        elif self._share_outer:
            add_magnitudes(features, len(outer), self._magnitudes)
            self._present = is_present[:, 0]
        else:
            magnitudes = np.abs(features[:, : len(outer) * len(inner)])
            self._add_products(magnitudes, is_present.reshape(len(features), -1), np.outer(outer, inner).ravel())

    def result(self) -> tuple[Float[Tensor, "slice slice"], Float[Tensor, "slice slice"]]:
        """|a'| (1 - p_b) and (w p_a) p_b for all pairs."""
        if self._present is not None:
            weights = self._products.outer_weight.sum() * self._products.inner_weight
            self._add_products(self._magnitudes, self._present, weights)
        return self._lacking, self._kept

    def _add_products(
        self,
        magnitudes: Float[np.ndarray, "slice folder"],
        is_present: Bool[np.ndarray, "slice folder"],
        weights: Float[np.ndarray, " folder"],
    ) -> None:
        some_lack = ~is_present.all(axis=0)
        self._kept += float(weights[~some_lack].sum())
        sizes = torch.from_numpy(magnitudes[:, some_lack])
        present = torch.from_numpy(is_present[:, some_lack]).to(sizes.dtype)
        self._lacking += product_by_rows(sizes, 1 - present)
        self._kept += product_by_rows(present * torch.from_numpy(weights[some_lack]).to(sizes.dtype), present)
