"""The meaning of every column of the diagnostics, how to read it, and who proposed it."""

from __future__ import annotations

import re
from dataclasses import dataclass

from headtree.measures.heads.ranking_evidence import good_for


@dataclass(frozen=True)
class Definition:
    """The meaning of one column in a sentence, and its source."""

    meaning: str
    source: str


_OF_QUERIES = "mean over queries that have a choice"

#: Columns of the table of heads, in order.
OF_HEADS = {
    "strongest_column_mass": Definition(
        "fraction of the head's attention that goes to its most attended key; near 1 for an attention sink",
        "Xiao et al. 2023, arXiv 2309.17453",
    ),
    "sink_logit_mass": Definition(
        "fraction of attention that a learned sink logit absorbs, so that it goes to no key",
        "gpt-oss; Xiao et al. 2023, arXiv 2309.17453",
    ),
    "shannon_entropy": Definition(
        "mean over queries of -Σ p log p, in nats; 0 if every query attends to a single key",
        "Clark et al. 2019, arXiv 1906.04341",
    ),
    "shannon_entropy_relative": Definition(
        "the same divided by the logarithm of the number of allowed keys; 1 if attention is uniform",
        "Clark et al. 2019, arXiv 1906.04341",
    ),
    "confidence": Definition(
        "mean over queries of the largest attention weight", "Voita et al. 2019, arXiv 1905.09418"
    ),
    "spectral_gap": Definition(
        "σ₁ - σ₂ of the attention matrix; large if one direction dominates, which leads to rank collapse",
        "Nait Saada et al. 2024, arXiv 2410.07799",
    ),
    "stable_rank": Definition(
        "‖A‖_F² / σ₁²; 1 if all queries attend to the same keys, the number of tokens for a permutation",
        "Nait Saada et al. 2024, arXiv 2410.07799",
    ),
    "doubly_stochastic_distance": Definition(
        "total variation between the attention that keys receive and 1/n each; 0 if all keys receive the same",
        "Ding et al. 2020, arXiv 2009.14308",
    ),
    "explained_away": Definition(
        "fraction of keys whose column sum is below 1/n, which is impossible in doubly normalised attention",
        "Ding et al. 2020, arXiv 2009.14308",
    ),
    "polynomial_error_1": Definition(
        "mean total variation between softmax and the same with exp(x) replaced by 1 + x; weights can be negative",
        "FAST, Gerami et al. 2024, arXiv 2402.07901",
    ),
    "polynomial_error_2": Definition(
        "the same with 1 + x + x²/2; small if the head can be factorized",
        "FAST, Gerami et al. 2024, arXiv 2402.07901",
    ),
    "distance_to_layer": Definition(
        "mean total variation to the other heads of its layer; near 0 for a copy, near 1 for an outlier",
        "after Clark et al. 2019, arXiv 1906.04341",
    ),
    "qk_eigenvalue_mean": Definition(
        "tr W / d, W = W_Q W_Kᵀ; a large mean favours attention to similar tokens",
        "Bao et al. 2024, arXiv 2402.02098",
    ),
    "qk_eigenvalue_variance": Definition(
        "tr W² / d - (tr W / d)²; attention localizes if the variance is small", "Bao et al. 2024, arXiv 2402.02098"
    ),
    "qk_rank": Definition(
        "number of singular values of W_Q W_Kᵀ above the rounding error of float32",
        "Amsel et al. 2024, arXiv 2407.16153",
    ),
    "qk_stable_rank": Definition("‖W_Q W_Kᵀ‖_F² / σ₁²", "Amsel et al. 2024, arXiv 2407.16153"),
    "ov_rank": Definition(
        "number of singular values of W_V W_O above the rounding error of float32",
        "Amsel et al. 2024, arXiv 2407.16153",
    ),
    "ov_stable_rank": Definition("‖W_V W_O‖_F² / σ₁²", "Amsel et al. 2024, arXiv 2407.16153"),
    "prefix_matching": Definition(
        "attention to the token after the earlier copy, on repeated random tokens; near 1 for an induction head",
        "Olsson et al. 2022, arXiv 2209.11895",
    ),
    "copying": Definition(
        "how much attending to a token raises its own logit among the tokens present; 1 for copying, 0 for chance",
        "after Olsson et al. 2022, arXiv 2209.11895",
    ),
    "relevance": Definition(
        "fraction of the network's gradient-weighted attention, Σ (∇A ⊙ A)⁺, for the chosen output",
        "Chefer et al. 2021, arXiv 2103.15679",
    ),
    "previous_token": Definition(
        f"share of attention to the previous token, {_OF_QUERIES}", "Clark et al. 2019; Voita et al. 2019"
    ),
    "same_token": Definition(f"share of attention to the token itself, {_OF_QUERIES}", "Clark et al. 2019"),
    "next_token": Definition(f"share of attention to the next token, {_OF_QUERIES}", "Clark et al. 2019"),
    "earlier_copies": Definition(
        f"share of attention to earlier copies of the same token, {_OF_QUERIES}", "Olsson et al. 2022"
    ),
    "first_token": Definition(
        f"share of attention to the first token, the usual sink, {_OF_QUERIES}",
        "Xiao et al. 2023, arXiv 2309.17453",
    ),
    "delimiters": Definition(
        f"share of attention to punctuation, line ends and special tokens, {_OF_QUERIES}", "Clark et al. 2019"
    ),
    "nearby_tokens": Definition(
        f"share of attention to tokens at most four positions away, {_OF_QUERIES}", "Clark et al. 2019"
    ),
    "class_token": Definition(
        f"share of attention to the class token of an image, {_OF_QUERIES}",
        "Dosovitskiy et al. 2020, arXiv 2010.11929",
    ),
    "same_row": Definition(
        f"share of attention to other patches in the same row, {_OF_QUERIES}",
        "Cordonnier et al. 2019, arXiv 1911.03584",
    ),
    "same_column": Definition(
        f"share of attention to other patches in the same column, {_OF_QUERIES}",
        "Cordonnier et al. 2019, arXiv 1911.03584",
    ),
    "neighbours": Definition(
        f"share of attention to the eight surrounding patches, {_OF_QUERIES}",
        "Cordonnier et al. 2019, arXiv 1911.03584",
    ),
}

#: Columns of the table of layers that are not means over heads.
OF_LAYERS = {
    "head_diversity": Definition(
        "mean distance between two heads of the layer, as total variation over queries",
        "after Clark et al. 2019, arXiv 1906.04341",
    ),
    "rollout_own_token": Definition(
        "share of its own input token in a position, by attention rollout",
        "Abnar and Zuidema 2020, arXiv 2005.00928",
    ),
    "rollout_first_token": Definition(
        "share of the first input token in a position, by attention rollout",
        "Abnar and Zuidema 2020, arXiv 2005.00928",
    ),
    "massive_activation_ratio": Definition(
        "largest divided by median absolute value of the residual stream; above 1000 for a massive activation",
        "Sun et al. 2024, arXiv 2402.17762",
    ),
    "token_similarity": Definition(
        "mean cosine between tokens in the residual stream; close to 1 for over-smoothing",
        "Shi et al. 2022, arXiv 2202.08625",
    ),
    "dirichlet_energy": Definition(
        "½ Σ W_ij ‖x_i - x_j‖² / Σ ‖x_i‖², W the layer's symmetrized mean attention; near 0 for over-smoothing",
        "Shi et al. 2022, arXiv 2202.08625; Cai and Wang 2020, arXiv 2006.13318",
    ),
}

_STRUCTURE = (
    "l1 norm of the 400 coarsest Haar coefficients of the head's probabilities on the trees of queries and keys"
)

#: Columns that a run adds to the table of heads, in order.
OF_RUNS = {
    "role": Definition(
        "what most of the head's attention beyond chance goes to; empty if no kind of token has that much",
        "Clark et al. 2019; Voita et al. 2019",
    ),
    "leaning": Definition("the role, or the one that the head clearly prefers without giving it most", "headtree"),
    "family": Definition(
        "number of the family of heads that are alike on other inputs too; -1 for a head in none", "headtree"
    ),
    "family_support": Definition(
        "how much of the family other inputs put together, beyond chance; 1 if they show it exactly",
        "after Lemoine et al. 2018; Cohen 1960",
    ),
    "effect": Definition(
        "change of the loss per prediction if the head is ablated; positive if the head helps",
        "Michel et al. 2019, arXiv 1905.10650",
    ),
    "effect_error": Definition("standard error of the effect over inputs", "headtree"),
    "structure": Definition(
        f"structure score: {_STRUCTURE}, mean over inputs; in the paper, l1 entropy of Haar coefficients",
        "[OA], eq. 21",
    ),
    "structure_rank": Definition("rank of the structure score; 1 for the largest", "[OA], table 1"),
    "structure_N": Definition("structure score on input N", "[OA], eq. 21"),
    "haar_entropy": Definition(
        "the paper's measure of what was organized: the same norm of centred scores, or with --raw of raw ones",
        "[OA], eq. 21",
    ),
    "haar_entropy_relative": Definition(
        "Haar entropy divided by the norm; it can be compared between networks", "after [OA], eq. 21"
    ),
    "coordinate_N": Definition(
        "diffusion coordinates of the head, by the similarity that families are made of", "Coifman and Lafon 2006"
    ),
    "place_in_tree": Definition("place of the head in the order of the tree of heads", "headtree"),
    "norm": Definition("root of the sum of squares of what was organized, mean over inputs", "headtree"),
    "exponent": Definition(
        "mixed Hölder exponent on the learned trees; larger if the head is smoother on them", "[OA], section 2"
    ),
    "exponent_given": Definition("the same on dyadic trees over the original order", "headtree"),
    "organized": Definition(
        "only with --raw: what the Haar entropies, norm and exponents were computed from, and the trees under the "
        "structure score",
        "headtree",
    ),
    "top_count": Definition(
        "on how many inputs the head is among those of highest structure score", "[OA], table 1"
    ),
    "bottom_count": Definition(
        "on how many inputs the head is among those of lowest structure score", "[OA], table 1"
    ),
}


def explained(column: str, values: str = "centred scores") -> str:
    """What a column of the table of heads means, and what it is good for; "" for one that needs no words.

    `values` says what was organized, in words.
    """
    name = re.sub(r"^(structure|coordinate)_\d+$", r"\1_N", column)
    known = {**OF_HEADS, **OF_RUNS}.get(name)
    if known is None:
        return ""
    meaning = f"{known.meaning[:1].upper()}{known.meaning[1:]}."
    return " ".join(filter(None, (meaning, good_for(column, values))))
