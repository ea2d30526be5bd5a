"""What the shape of a head's attention says by itself: sinks, spread, spectrum, columns, factors, company."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from headtree.measures.heads.columns import Column
from headtree.measures.heads.probabilities import HeadBlock, by_queries, head_block, head_blocks
from headtree.tensor.attention_tensor import AttentionTensor, HeadId
from headtree.tensor.filling import logarithms

_ONE_KEY = "no query may choose between two keys"
#: Tokens up to which all singular values cost less than iterating for two of them.
_EXACT_UP_TO = 512
_N_VECTORS, _MOST_ITERATIONS = 8, 100

_NO_ROWS = "some heads have no query that may choose between two keys"


def pattern_columns(att: AttentionTensor) -> dict[str, Column]:
    """Every measure of single heads that needs nothing but their attention, a value for each head."""
    parts: dict[str, list[Float[Tensor, " _head"]]] = {}
    for block in head_blocks(att):
        for name, values in _of_block(block).items():
            parts.setdefault(name, []).append(values.double())
    columns = {name: Column(torch.cat(values).numpy(), _NO_ROWS) for name, values in parts.items()}
    columns["distance_to_layer"] = distance_to_layer(att)
    if att.shape[2] < 2:
        return {name: Column.missing(len(att.heads), _ONE_KEY) for name in columns}
    if att.kind == "probs":
        reason = "some attention is exactly 0 where it is allowed, and 0 has no logarithm"
        columns |= {name: Column(columns[name].values, reason) for name in columns if name.startswith("poly")}
    if att.sinks is None:
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
    """Share of a head's attention that each key gets; nan for a head without any."""
    return block.column_sums / block.column_sums.sum(dim=1, keepdim=True)


def strongest_column_mass(block: HeadBlock) -> Float[Tensor, " head"]:
    """Share of the head's attention that its most attended key gets (attention sinks, Xiao et al. 2023)."""
    return received(block).amax(dim=1)


def sink_logit_mass(block: HeadBlock) -> Float[Tensor, " head"]:
    """Share that a sink logit takes and that goes nowhere: 1 - mean row sum."""
    return 1 - block.mean_over_rows(block.row_sums)


def row_entropies(block: HeadBlock) -> tuple[Float[Tensor, "head query"], Bool[Tensor, "head query"]]:
    """Shannon entropy -Σ p log p in nats of each row scaled to sum to one, and which rows have one."""
    rows = block.present & (block.row_sums > 0)  # a sink may take all of a row
    sums = torch.where(rows, block.row_sums, 1)
    # of p / sum: -Σ (p / sum) (log p - log sum)
    return sums.log() - torch.xlogy(block.probs, block.probs).sum(dim=2) / sums, rows


def relative_entropy(
    block: HeadBlock, entropies: Float[Tensor, "head query"], rows: Bool[Tensor, "head query"]
) -> Float[Tensor, " head"]:
    """Mean entropy over the logarithm of the number of allowed keys, of rows with two or more: 1 is even."""
    return block.mean_over_rows(entropies / block.n_allowed.clamp(min=2).log(), rows & (block.n_allowed >= 2))


def confidence(block: HeadBlock) -> Float[Tensor, " head"]:
    """Mean over queries of the largest weight (Voita et al. 2019)."""
    return block.mean_over_rows(block.probs.amax(dim=2))


def gap_and_stable_rank(block: HeadBlock) -> tuple[Float[Tensor, " head"], Float[Tensor, " head"]]:
    """Spectral gap σ₁-σ₂ and stable rank ‖A‖_F² / σ₁² of the attention matrix (Nait Saada et al. 2024).

    Missing entries are 0. A large gap and a stable rank near 1 mean that the head averages its values away.
    """
    is_small = min(block.probs.shape[1:]) <= _EXACT_UP_TO
    two = _two_largest(block.probs) if is_small else _two_largest_iterated(block.probs)
    squares = block.probs.double().square().sum(dim=(1, 2))
    first = torch.where(two[:, 0] > 0, two[:, 0], torch.nan)
    return first - two[:, 1], squares / first.square()


def _two_largest(a: Float[Tensor, "head query key"]) -> Float[Tensor, "head 2"]:
    """σ₁ and σ₂ from the eigenvalues of the smaller Gram matrix in float64: exact to 1e-8 of σ₁."""
    a = a.double()
    gram = a @ a.mT if a.shape[1] <= a.shape[2] else a.mT @ a
    squares = torch.linalg.eigvalsh(gram).clamp(min=0).flip(1)
    return torch.nn.functional.pad(squares, (0, 1))[:, :2].sqrt()


def _two_largest_iterated(a: Float[Tensor, "head query key"]) -> Float[Tensor, "head 2"]:
    """The same from a few vectors multiplied again and again, until σ₁ and σ₂ move by less than 1e-5 of σ₁.

    They rise towards the true ones. Where many singular values are nearly equal they are a little low, by 1e-3 of
    σ₁ on heads of noise.
    """
    generator = torch.Generator().manual_seed(0)
    start = torch.randn(a.shape[2], _N_VECTORS, generator=generator, dtype=a.dtype)
    start[:, 0] = 1  # the first singular vector of most heads is near that
    vectors, before = start.expand(len(a), -1, -1), torch.zeros(len(a), 2, dtype=a.dtype)
    for _ in range(_MOST_ITERATIONS):
        images = a @ torch.linalg.qr(vectors).Q
        now = torch.linalg.svdvals(images)[:, :2]
        if ((now - before).abs() <= 1e-5 * now[:, :1]).all():
            break
        vectors, before = a.mT @ images, now
    return torch.as_tensor(now).double()


def doubly_stochastic_distance(block: HeadBlock) -> Float[Tensor, " head"]:
    """Total variation between the attention that keys receive and an even share: ½ Σ_k |received_k - 1/n|.

    0 for doubly stochastic attention, towards 1 when few keys get all (Ding et al. 2020).
    """
    shares = received(block)
    return (shares - 1 / shares.shape[1]).abs().sum(dim=1) / 2


def explained_away(block: HeadBlock) -> Float[Tensor, " head"]:
    """Share of the n keys whose column sum is under 1/n, which doubly normalised attention makes impossible.

    That is the sense of Ding et al. (2020): such keys are explained away by others. Keys that no query may attend
    to do not count.
    """
    can = block.allowed.any(dim=1)
    is_away = (block.column_sums < (1 - 1e-5) / block.probs.shape[2]) & can  # float32 rows sum to one to 1e-6
    return is_away.sum(dim=1).double() / can.sum(dim=1)


def polynomial_errors(block: HeadBlock) -> tuple[Float[Tensor, " head"], Float[Tensor, " head"]]:
    """How far softmax is from its factorizable forms of order 1 and 2: mean total variation over queries.

    exp is replaced by ``1 + x`` and ``1 + x + x²/2``, polynomials in queries times keys that need no n×n matrix
    (FAST, Gerami et al. 2024); x is the score minus the mean of its row's allowed scores, which softmax does not
    see. Weights of order 1 can be negative. Attention sinks are left out on both sides.
    """
    scores = _log_probs(block) if block.scores is None else block.scores
    n = block.n_allowed.clamp(min=1)[..., None]
    x = scores / n  # first, so that the sum of scores near the end of their range stays in it
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


def _log_probs(block: HeadBlock) -> Float[Tensor, "head query key"]:
    """Scores up to a constant per row; nan for a head with a zero where attention is allowed."""
    logs = logarithms(block.probs, block.allowed)
    return torch.where((logs == -torch.inf).any(dim=(1, 2), keepdim=True), torch.nan, logs)


def distance_to_layer(att: AttentionTensor) -> Column:
    """Mean distance of each head to the others of its layer, between 0 and 1.

    The distance of two heads is the mean over queries of the total variation ½ Σ_k |A_qk - B_qk| (after Clark et
    al. 2019, who use Jensen-Shannon; a sum of absolute differences costs no logarithms).
    """
    result = np.full(len(att.heads), np.nan)
    for places in layers_of(att.heads).values():
        if len(places) < 2:
            continue
        span = slice(min(places), max(places) + 1)
        sums, n_rows = torch.zeros(len(places), len(places), dtype=torch.float64), 0
        for queries in by_queries(att, span):
            block = head_block(att, span, queries)
            flat = block.probs[[place - span.start for place in places]].flatten(1)
            sums += torch.cdist(flat, flat, p=1)
            n_rows += int(block.present.any(dim=0).sum())
        result[places] = (sums.sum(dim=1) / (2 * n_rows * (len(places) - 1))).numpy() if n_rows else np.nan
    return Column(result, "some heads are alone in their layer")


def layers_of(heads: Sequence[HeadId]) -> dict[int, list[int]]:
    """Places of the heads of each layer."""
    places: dict[int, list[int]] = {}
    for place, head in enumerate(heads):
        places.setdefault(head.layer, []).append(place)
    return dict(sorted(places.items()))
