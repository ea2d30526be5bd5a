"""The measures of one input of a 16 × 8-head network, and the consensus of ten."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

import headtree as ht
from benchmarks._measure import peak_megabytes, seconds
from benchmarks.bases import _organization, _trees


def main(check: bool = False) -> None:
    """Print the table; with `check`, use tiny sizes only to see that everything runs."""
    n_heads, n, n_inputs = (6, 16, 3) if check else (128, 256, 10)
    rng = np.random.default_rng(0)
    x = torch.from_numpy(rng.standard_normal((n_heads, n, n))).float()
    att, org = ht.AttentionTensor.from_array(x), _organization(x, _trees([n_heads, n, n], rng))
    organizations = [ht.organize_array(rng.standard_normal((n_heads, 6, 6))) for _ in range(n_inputs)]
    jobs: dict[str, Callable[[], Any]] = {
        "head entropies": lambda: ht.head_entropy(att, org),
        "network entropy": lambda: ht.network_entropy(att, org),
        "regularity, four orders": lambda: ht.regularity(att, org),
        "sparsity, four orders": lambda: ht.sparsity(att, org),
        "softmax invariance": lambda: ht.softmax_invariance(att, org),
        f"consensus of {n_inputs} inputs": lambda: ht.consensus(organizations).families(),
    }
    print(f"{f'{n_heads} x {n} x {n}, float32':>28}  {'time':>10}  {'extra memory':>14}")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ht.HeadtreeWarning)
        for name, job in jobs.items():
            memory = peak_megabytes(job)
            cells = ("-", "-") if check else (f"{seconds(job, 3):.3f} s", f"{memory:.0f} MB")
            print(f"{name:>28}  {cells[0]:>10}  {cells[1]:>14}")
