"""Diagnostics and roles from attention alone, compared with just the singular values in the same run."""

from __future__ import annotations

import numpy as np
import torch

import headtree as ht
from benchmarks._measure import peak_megabytes, seconds


def main(check: bool = False) -> None:
    """Print the table; with `check`, use tiny sizes only to see that everything runs."""
    n_heads, n = (4, 16) if check else (128, 256)
    x = np.random.default_rng(0).standard_normal((n_heads, n, n)).astype(np.float32)
    words = [f"w{i % 90}" for i in range(n)]
    later = np.triu(np.ones((n, n), bool), 1)
    repeats = 1 if check else 3
    ht.diagnostics(ht.AttentionTensor.from_array(x[:, :4, :4]))  # imports
    by_svd = seconds(lambda: torch.linalg.svdvals(torch.from_numpy(x).double()), repeats)
    print(f"singular values of all heads alone: {by_svd:.2f} s")
    for name, mask in (("full", None), ("causal", later)):
        att = ht.AttentionTensor.from_array(x, heads_per_layer=n_heads // 4, mask=mask, queries=words, keys=words)
        memory = peak_megabytes(lambda att=att: ht.diagnostics(att))
        time = seconds(lambda att=att: ht.diagnostics(att), repeats)
        print(f"{name}: everything {time:.2f} s, {time / by_svd:.1f} times that; extra memory {memory:.0f} MB")
