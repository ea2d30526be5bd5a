"""Measures of a head's attention matrix alone: sinks, entropy, spectrum, column sums, distance to its layer."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from headtree._threads import one_thread
from headtree.measures.heads.columns import Column
from headtree.tensor.attention_tensor import AttentionTensor, HeadId
from headtree.tensor.filling import logarithms
from headtree.tensor.probabilities import HeadBlock, by_queries, head_block, head_blocks

_ONE_KEY = "no query may choose between two keys"
#: Up to this number of tokens, computing all singular values is faster than iterating for two of them.
_EXACT_UP_TO = 512
_N_VECTORS, _MOST_ITERATIONS = 8, 100

_SCALED = "rows of these values are scaled to sum to one"
_NO_ROWS = "some heads have no query that may choose between two keys"


def own_columns(att: AttentionTensor) -> dict[str, Column]:
    """Every measure that needs only the attention of a head, with one value per head."""
    blocks: dict[str, list[Float[Tensor, " _head"]]] = {}
    for block in head_blocks(att):
        for name, values in _of_block(block).items():
            blocks.setdefault(name, []).append(values.double())
    columns = {name: Column(torch.cat(values).numpy(), _NO_ROWS) for name, values in blocks.items()}
    if att.shape[2] < 2:
        return {name: Column.missing(len(att.heads), _ONE_KEY) for name in columns}
    if att.kind != "scores":
        reason = "some attention is exactly 0 where it is allowed, and 0 has no logarithm"
        columns |= {name: Column(columns[name].values, reason) for name in columns if name.startswith("poly")}
    if att.kind in ("weighted", "signed"):
        columns["sink_logit_mass"] = Column.missing(len(att.heads), _SCALED)
    elif att.sinks is None:
        columns["sink_logit_mass"] = Column.missing(len(att.heads), "the model has no sink logits")
    return columns


def _of_block(block: HeadBlock) -> dict[str, Float[Tensor, " head"]]:
    gap, stable_rank = gap_and_stable_rank(block)
    entropies, rows = row_entropies(block)
    first, second = polynomial_errors(block)
    return {
        "strongest_column_mass": strongest_column_mass(block),
        "sink_logit_mass": sink_logit_mass(block),
        "shannon_entropy": block.mean_over_rows(entropies, rows),
        "shannon_entropy_relative": relative_entropy(block, entropies, rows),
        "confidence": confidence(block),
        "spectral_gap": gap,
        "stable_rank": stable_rank,
        "doubly_stochastic_distance": doubly_stochastic_distance(block),
        "explained_away": explained_away(block),
        "polynomial_error_1": first,
        "polynomial_error_2": second,
    }


def received(block: HeadBlock) -> Float[Tensor, "head key"]:
    """Fraction of a head's attention that each key receives; nan for a head without attention."""
    return block.column_sums / block.column_sums.sum(dim=1, keepdim=True)


def strongest_column_mass(block: HeadBlock) -> Float[Tensor, " head"]:
    """Fraction of a head's attention that goes to its most attended key (attention sinks, Xiao et al. 2023)."""
    return received(block).amax(dim=1)


def sink_logit_mass(block: HeadBlock) -> Float[Tensor, " head"]:
    """Fraction that a sink logit absorbs, so that it goes to no key: 1 - mean row sum."""
    return 1 - block.mean_over_rows(block.row_sums)


def row_entropies(block: HeadBlock) -> tuple[Float[Tensor, "head query"], Bool[Tensor, "head query"]]:
    """Shannon entropy -Σ p log p, in nats, of each row scaled to sum to one, and which rows have one."""
    rows = block.present & (block.row_sums > 0)  # a sink may absorb a whole row
    sums = torch.where(rows, block.row_sums, 1)
    # the entropy of p / sum is -Σ (p / sum) (log p - log sum)
    return sums.log() - torch.xlogy(block.probs, block.probs).sum(dim=2) / sums, rows


def relative_entropy(
    block: HeadBlock, entropies: Float[Tensor, "head query"], rows: Bool[Tensor, "head query"]
) -> Float[Tensor, " head"]:
    """Mean entropy divided by the log of the number of allowed keys, over rows with two or more; 1 if uniform."""
    return block.mean_over_rows(entropies / block.n_allowed.clamp(min=2).log(), rows & (block.n_allowed >= 2))


def confidence(block: HeadBlock) -> Float[Tensor, " head"]:
    """Mean over queries of the largest weight (Voita et al. 2019)."""
    return block.mean_over_rows(block.probs.amax(dim=2))


def gap_and_stable_rank(block: HeadBlock) -> tuple[Float[Tensor, " head"], Float[Tensor, " head"]]:
    """Spectral gap σ₁ - σ₂ and stable rank ‖A‖_F² / σ₁² of the attention matrix (Nait Saada et al. 2024).

    Missing entries are 0. A large gap and a stable rank near 1 mean that the head averages away differences between
    values.
    """
    is_small = min(block.probs.shape[1:]) <= _EXACT_UP_TO
    two = _two_largest(block.probs) if is_small else _two_largest_iterated(block.probs)
    squares = block.probs.double().square().sum(dim=(1, 2))
    first = torch.where(two[:, 0] > 0, two[:, 0], torch.nan)
    return first - two[:, 1], squares / first.square()


def _two_largest(a: Float[Tensor, "head query key"]) -> Float[Tensor, "head 2"]:
    """σ₁ and σ₂ from the eigenvalues of the smaller Gram matrix in float64: accurate to 1e-8 of σ₁."""
    a = a.double()
    gram = a @ a.mT if a.shape[1] <= a.shape[2] else a.mT @ a
    with one_thread():
        squares = torch.linalg.eigvalsh(gram).clamp(min=0).flip(1)
    return torch.nn.functional.pad(squares, (0, 1))[:, :2].sqrt()


def _two_largest_iterated(a: Float[Tensor, "head query key"]) -> Float[Tensor, "head 2"]:
    """σ₁ and σ₂ by subspace iteration, until both change by less than 1e-5 of σ₁.

    The estimates increase towards the true values. If many singular values are nearly equal, they are slightly low:
    by 1e-3 of σ₁ for heads of noise.
    """
    generator = torch.Generator().manual_seed(0)
    start = torch.randn(a.shape[2], _N_VECTORS, generator=generator, dtype=a.dtype)
    start[:, 0] = 1  # close to the first singular vector of most heads
    vectors, before = start.expand(len(a), -1, -1), torch.zeros(len(a), 2, dtype=a.dtype)
    for _ in range(_MOST_ITERATIONS):
        images = a @ torch.linalg.qr(vectors).Q
        now = torch.linalg.svdvals(images)[:, :2]
        if ((now - before).abs() <= 1e-5 * now[:, :1]).all():
            break
        vectors, before = a.mT @ images, now
    return torch.as_tensor(now).double()


def doubly_stochastic_distance(block: HeadBlock) -> Float[Tensor, " head"]:
    """Total variation between the attention that keys receive and a uniform share: ½ Σ_k |received_k - 1/n|.

    0 for doubly stochastic attention, close to 1 if a few keys receive everything (Ding et al. 2020).
    """
    shares = received(block)
    return (shares - 1 / shares.shape[1]).abs().sum(dim=1) / 2


def explained_away(block: HeadBlock) -> Float[Tensor, " head"]:
    """Fraction of the n keys whose column sum is below 1/n, which is impossible in doubly normalised attention.

    In the words of Ding et al. (2020), such keys are explained away by others. Keys that no query may attend to do
    not count.
    """
    can = block.allowed.any(dim=1)
    is_away = (block.column_sums < (1 - 1e-5) / block.probs.shape[2]) & can  # float32 rows sum to one within 1e-6
    return is_away.sum(dim=1).double() / can.sum(dim=1)


def polynomial_errors(block: HeadBlock) -> tuple[Float[Tensor, " head"], Float[Tensor, " head"]]:
    """Mean total variation over queries between softmax and its factorizable approximations of order 1 and 2.

    exp is replaced by ``1 + x`` and ``1 + x + x²/2``, polynomials in queries times keys that need no n × n matrix
    (FAST, Gerami et al. 2024). x is the score minus the mean of the allowed scores in its row, a shift that does
    not change softmax. Weights of order 1 can be negative. Attention sinks are ignored on both sides.
    """
    scores = _logits_or_nan(block) if block.scores is None else block.scores
    n = block.n_allowed.clamp(min=1)[..., None]
    x = scores / n  # divide first: the sum of very large scores would overflow
    x = (scores - x.sum(dim=2, keepdim=True)).masked_fill(~block.allowed, 0)
    softmax = block.probs / block.row_sums[..., None]
    rows = (block.n_allowed >= 2) & (block.row_sums > 0)
    # x = scale · u with |u| <= 1; the sums over a row, n and n + Σx²/2, are known because x sums to 0
    scale = x.abs().amax(dim=2, keepdim=True).clamp(min=1)
    u, one = x.div_(scale), block.allowed / scale
    linear = (one + u).div_(n).sub_(softmax / scale).abs_().sum(dim=2).double() * scale[..., 0]
    squares = u.square().mul_(0.5)
    sums = n / scale**2 + squares.sum(dim=2, keepdim=True)
    quadratic = (one + u).div_(scale).add_(squares).div_(sums).sub_(softmax).abs_().sum(dim=2)
    return block.mean_over_rows(linear / 2, rows), block.mean_over_rows(quadratic / 2, rows)


def _logits_or_nan(block: HeadBlock) -> Float[Tensor, "head query key"]:
    """Scores up to a constant per row; nan for a head with a zero where attention is allowed."""
    logs = logarithms(block.probs, block.allowed)
    return torch.where((logs == -torch.inf).any(dim=(1, 2), keepdim=True), torch.nan, logs)


def distance_to_layer(att: AttentionTensor) -> Column:
    """Mean distance of each head to the other heads of its layer, between 0 and 1.

    The distance between two heads is the mean over queries of the total variation ½ Σ_k |A_qk - B_qk| (after Clark
    et al. 2019, who use the Jensen-Shannon divergence; absolute differences need no logarithms).
    """
    result = np.full(len(att.heads), np.nan)
    if att.shape[2] < 2:
        return Column(result, _ONE_KEY)
    for indices in layers_of(att.heads).values():
        if len(indices) < 2:
            continue
        span = slice(min(indices), max(indices) + 1)
        sums, n_rows = torch.zeros(len(indices), len(indices), dtype=torch.float64), 0
        for queries in by_queries(att, span):
            block = head_block(att, span, queries)
            flat = block.probs[[index - span.start for index in indices]].flatten(1)
            sums += torch.cdist(flat, flat, p=1)
            n_rows += int(block.present.any(dim=0).sum())
        result[indices] = (sums.sum(dim=1) / (2 * n_rows * (len(indices) - 1))).numpy() if n_rows else np.nan
    return Column(result, "some heads are alone in their layer")


def layers_of(heads: Sequence[HeadId]) -> dict[int, list[int]]:
    """Indices of the heads of each layer."""
    indices: dict[int, list[int]] = {}
    for index, head in enumerate(heads):
        indices.setdefault(head.layer, []).append(index)
    return dict(sorted(indices.items()))
