"""The tree earth mover's distance between slices that lack entries."""

from __future__ import annotations

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from headtree import _checks
from headtree.geometry.averages import FolderSums, Products
from headtree.geometry.kernels_cpu import add_pairwise_l1


def masked_emd(
    values: Float[Tensor, "..."], missing: Bool[Tensor, "..."], axis: int, products: Products
) -> Float[Tensor, "slice slice"]:
    """L1 between the folder averages that both slices have, from the plain L1 kernel and two products.

    `values` are 0 where missing. With p = 1 where a slice has entries in a folder and a' = w a p, the sum over
    folders present in both is ``L1(a', b') - |a'| (1 - p_b) - (1 - p_a) |b'|``, the kept weight ``(w p_a) p_b``; it
    is rescaled by all weight / kept weight.
    """
    n = values.shape[axis]
    runs = products.runs(n)
    sums = FolderSums(values, axis, products, runs[0].stop)
    counts = _Counts(missing, axis, products, runs[0].stop, values.dtype)
    total, lack = np.zeros((n, n)), _Lack(n, products)
    for steps in runs:
        n_present, outer_mean = counts.make(steps)
        is_present = n_present > 0
        inner_mean = np.divide(products.inner_weight, n_present, out=np.zeros_like(n_present), where=is_present)
        features = sums.make(steps, outer_mean, inner_mean)
        add_pairwise_l1(features, total)
        lack.add(steps, features, is_present)
    everything = torch.from_numpy(total + total.T)
    sums_of_both = everything - lack.lacking - lack.lacking.T
    # the terms round in their own dtype: what is left of a sum that cancels is zero
    sums_of_both[sums_of_both <= 16 * torch.finfo(values.dtype).eps * everything] = 0
    distances = sums_of_both * float(products.outer_weight.sum() * products.inner_weight.sum()) / lack.kept
    distances[lack.kept == 0] = torch.inf
    return distances.fill_diagonal_(0)


class _Counts:
    """Present entries in every folder, run by run; counted once for all slices or outer leaves that share them."""

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
        self._of_outer_leaf: np.ndarray | None = None
        present = missing.logical_not()
        if _checks.is_shared(missing, axis):
            present = present.narrow(axis, 0, 1)
        elif _checks.is_shared(missing, outer_axis):
            one_leaf = FolderSums(
                present.narrow(outer_axis, 0, 1).to(dtype), axis, products.with_one_outer_leaf(), 1
            )
            self._of_outer_leaf = self._run(one_leaf, slice(0, 1))
            return
        self._sums = FolderSums(present.to(dtype), axis, products, longest_run)

    def make(
        self, steps: slice
    ) -> tuple[Float[np.ndarray, "slice_or_1 step_or_1 inner"], Float[np.ndarray, " step"]]:
        """Counts, and weights of the outer folders, divided by what the counts leave out."""
        weight, size = self._products.outer_weight[steps], self._products.outer_size[steps]
        if self._of_outer_leaf is not None:
            return self._of_outer_leaf, weight / size
        return self._run(self._sums, steps), weight

    def _run(self, sums: FolderSums, steps: slice) -> Float[np.ndarray, "slice_or_1 step inner"]:
        n_steps, n_inner = steps.stop - steps.start, len(self._products.inner_size)
        counts = sums.make(steps, np.ones(n_steps), np.ones((1, 1, n_inner)))
        return counts[:, : n_steps * n_inner].reshape(len(counts), n_steps, n_inner)


class _Lack:
    """What a pair of slices does not share, summed over runs."""

    def __init__(self, n: int, products: Products) -> None:
        self._products = products
        self.lacking = torch.zeros(n, n, dtype=torch.float64)  #: |a'| (1 - p_b)
        self.kept = torch.zeros(n, n, dtype=torch.float64)  #: (w p_a) p_b

    def add(
        self,
        steps: slice,
        features: Float[np.ndarray, "slice feature"],
        is_present: Bool[np.ndarray, "slice_or_1 step_or_1 inner"],
    ) -> None:
        """Add the folders of a run; presence may be the same for all slices, or for all outer folders."""
        outer, inner = self._products.outer_weight[steps], self._products.inner_weight
        n_steps, n_inner = len(outer), len(inner)
        if len(is_present) == 1:
            self.kept += float((outer @ is_present[0] * inner).sum())
            return
        magnitudes = torch.from_numpy(features)[:, : n_steps * n_inner].abs()
        if is_present.shape[1] == 1:
            magnitudes = magnitudes.view(-1, n_steps, n_inner).sum(dim=1)
            weights = outer.sum() * inner
        else:
            weights = np.outer(outer, inner).ravel()
        present = torch.from_numpy(is_present).flatten(1).to(magnitudes.dtype)
        weights = torch.from_numpy(weights).to(magnitudes.dtype)
        by_all = present.amin(dim=0) > 0  # folders that no slice lacks
        self.kept += weights[by_all].sum().double()
        present, weights = present[:, ~by_all], weights[~by_all]
        self.lacking += magnitudes[:, ~by_all] @ (1 - present).T
        self.kept += (present * weights) @ present.T
