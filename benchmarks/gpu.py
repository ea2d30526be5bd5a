"""Organizing on a GPU: a small network, large matrices, and attention held as factors; and its L1 kernel."""

from __future__ import annotations

import time
import warnings

import numpy as np
import torch

import headtree as ht
from headtree.tensor.factored_array import FactoredArray, LayerFactors


def main(check: bool = False) -> None:
    """Print seconds, warm, and GPU memory; with `check`, organize tiny arrays wherever torch runs."""
    warnings.simplefilter("ignore")
    if check:
        for landmarks in (None, (None, 12, 12)):
            settings = ht.Questionnaire(samples=8, landmarks=landmarks)
            ht.organize(network(2, 4, 2, 32, 8, "cpu"), settings, memory=50_000)
        print("runs")
        return
    if not torch.cuda.is_available():
        print("needs a GPU of CUDA: nothing measured")
        return
    _differences()
    x = torch.softmax(2 * torch.randn(144, 197, 197, device="cuda"), dim=-1)
    _organized("144 × 197 × 197", lambda: ht.organize_array(x), repeats=6)
    for n_tokens in (1024, 4096):
        att = network(80, 64, 8, n_tokens, 128, "cuda").centred()
        _organized(
            f"80 layers × 64 heads (8 of keys), {n_tokens} tokens, causal, factors in bfloat16",
            lambda att=att: ht.organize(att, device="cuda", memory=4e9),
            repeats=2 if n_tokens < 4096 else 1,
        )
    del att
    long = network(80, 64, 8, 32768, 128, "cuda").centred()
    by_landmarks = ht.Questionnaire(landmarks=(None, 4096, 4096))
    _organized(
        "the same with 32768 tokens, 4096 of them landmarks",
        lambda: ht.organize(long, by_landmarks, device="cuda", memory=2e10),
        repeats=1,
    )
    del long
    for n in (4096, 32768):
        matrix = _smooth_matrix(n)
        _organized(
            f"{n} × {n} matrix", lambda matrix=matrix: ht.organize_array(matrix), repeats=3 if n < 32768 else 1
        )


def network(
    n_layers: int, n_heads: int, n_groups: int, n_tokens: int, n_features: int, device: str
) -> ht.AttentionTensor:
    """Causal attention as factors: random, but heads of a family and neighbouring tokens are alike."""
    rng = torch.Generator(device=device).manual_seed(0)

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=rng, device=device)

    dtype = torch.bfloat16
    positions = torch.arange(n_tokens, device=device)[:, None] * 2.0 ** -torch.arange(
        n_features // 2, device=device
    )
    waves = torch.cat([positions.sin(), positions.cos()], dim=1)
    families = draw(8, n_features)
    query = torch.empty(n_layers * n_heads, n_tokens, n_features, dtype=dtype, device=device)
    key = torch.empty(n_layers * n_groups, n_tokens, n_features, dtype=dtype, device=device)
    for factor in (query, key):
        for i in range(len(factor)):
            factor[i] = (waves * families[i % 8] + draw(n_tokens, n_features) / 2).to(dtype)
    groups = torch.arange(n_layers * n_heads) // (n_heads // n_groups)
    factors = FactoredArray((LayerFactors(query, key, groups, n_features**-0.5),))
    heads = [ht.HeadId(layer, head) for layer in range(n_layers) for head in range(n_heads)]
    tokens = tuple(str(i) for i in range(n_tokens))
    mask = torch.ones(1, n_tokens, n_tokens, dtype=torch.bool).triu(1).expand(len(heads), -1, -1)
    return ht.AttentionTensor(values=factors, heads=heads, queries=tokens, keys=tokens, kind="scores", mask=mask)


def _smooth_matrix(n: int) -> torch.Tensor:
    """A matrix with hidden order: smooth rows and columns, shuffled, and noise."""
    rng = torch.Generator(device="cuda").manual_seed(0)
    at = [torch.rand(n, generator=rng, device="cuda") for _ in range(2)]
    x = torch.sin(9 * at[0][:, None] + 5 * at[1][None, :])
    return x.add_(torch.randn(n, n, generator=rng, device="cuda"), alpha=0.3)


def _organized(what: str, organize, repeats: int = 3) -> None:
    if repeats > 1:
        organize()  # compiles kernels and fills caches
    times = []
    for _ in range(max(1, repeats - 1)):
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        start = time.perf_counter()
        found = organize()
        torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    peak = torch.cuda.max_memory_allocated() / 1e9
    print(f"{what}: {min(times):.2f} s, {peak:.1f} GB of GPU memory; {found.status.distances}", flush=True)


def _differences() -> None:
    """Unique differences per second of the L1 kernel, beside `torch.cdist`, for 2^25 and 2^27 entries."""
    from headtree.geometry.kernels_gpu import features_side_by_side, pairwise_l1

    for n in (256, 512, 1024, 2048, 4096, 8192):
        for n_features in (2**25 // n, 2**27 // n):
            x = torch.rand(n, n_features, device="cuda")
            ready = features_side_by_side(n, n_features, x.dtype, x.device).copy_(x)
            n_differences = n * (n - 1) / 2 * n_features
            rates = [
                n_differences / _seconds(pairwise_l1, ready, 5) / 1e12,
                n_differences / _seconds(pairwise_l1, x, 5) / 1e12,
                n_differences / _seconds(lambda x: torch.cdist(x, x, p=1), x, 2) / 1e12,
            ]
            print(
                f"pairwise L1 of {n} × {n_features}: {rates[0]:.1f} T differences/s from features in the order of "
                f"the kernel, {rates[1]:.1f} from rows, torch.cdist {rates[2]:.2f}",
                flush=True,
            )
    np.testing.assert_allclose(
        pairwise_l1(x[:64]).cpu(), torch.cdist(x[:64].double(), x[:64].double(), p=1).cpu(), rtol=1e-5
    )


def _seconds(function, x: torch.Tensor, repeats: int) -> float:
    """The fastest of some calls, after one that compiles kernels."""
    times = []
    for _ in range(1 + repeats):
        torch.cuda.synchronize()
        start = time.perf_counter()
        function(x)
        torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    return min(times[1:])
