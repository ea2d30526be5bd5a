"""What every column of the diagnostics means, how to read it, and who proposed it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Definition:
    """One column in a sentence, with its source."""

    meaning: str
    source: str


_ROLE = "mean share over the queries that can choose"

#: Columns of the heads' table, in its order.
OF_HEADS = {
    "strongest_column_mass": Definition(
        "share of the head's attention that its most attended key gets; near 1 is an attention sink",
        "Xiao et al. 2023, arXiv 2309.17453",
    ),
    "sink_logit_mass": Definition(
        "share that a learned sink logit takes and that goes nowhere", "gpt-oss; Xiao et al. 2023, arXiv 2309.17453"
    ),
    "shannon_entropy": Definition(
        "mean over queries of -Σ p log p, in nats; 0 if every query looks at one key",
        "Clark et al. 2019, arXiv 1906.04341",
    ),
    "shannon_entropy_relative": Definition(
        "the same over the logarithm of the number of allowed keys; 1 if attention is even",
        "Clark et al. 2019, arXiv 1906.04341",
    ),
    "confidence": Definition("mean over queries of the largest weight", "Voita et al. 2019, arXiv 1905.09418"),
    "spectral_gap": Definition(
        "σ₁ - σ₂ of the attention matrix; large where one direction outweighs all others, which collapses rank",
        "Nait Saada et al. 2024, arXiv 2410.07799",
    ),
    "stable_rank": Definition(
        "‖A‖_F² / σ₁²; 1 if all queries attend alike, the number of tokens for a permutation",
        "Nait Saada et al. 2024, arXiv 2410.07799",
    ),
    "doubly_stochastic_distance": Definition(
        "half the sum of the distances of the keys' shares from 1/n; 0 if all keys are attended to equally",
        "Ding et al. 2020, arXiv 2009.14308",
    ),
    "explained_away": Definition(
        "share of keys whose column sum is under 1/n, which doubly normalised attention makes impossible",
        "Ding et al. 2020, arXiv 2009.14308",
    ),
    "polynomial_error_1": Definition(
        "mean total variation between softmax and its form with 1 + x for exp, whose weights can be negative",
        "FAST, Gerami et al. 2024, arXiv 2402.07901",
    ),
    "polynomial_error_2": Definition(
        "the same with 1 + x + x²/2: small where a head could be factorized",
        "FAST, Gerami et al. 2024, arXiv 2402.07901",
    ),
    "distance_to_layer": Definition(
        "mean total variation to the other heads of its layer; near 0 is a copy, near 1 the odd one",
        "after Clark et al. 2019, arXiv 1906.04341",
    ),
    "qk_eigenvalue_mean": Definition(
        "tr W / d, W = W_Q W_Kᵀ; a large mean favours a token's own kind", "Bao et al. 2024, arXiv 2402.02098"
    ),
    "qk_eigenvalue_variance": Definition(
        "tr W² / d - (tr W / d)²; a small variance makes attention localize", "Bao et al. 2024, arXiv 2402.02098"
    ),
    "qk_rank": Definition(
        "singular values of W_Q W_Kᵀ above rounding of float32", "Amsel et al. 2024, arXiv 2407.16153"
    ),
    "qk_stable_rank": Definition("‖W_Q W_Kᵀ‖_F² / σ₁²", "Amsel et al. 2024, arXiv 2407.16153"),
    "ov_rank": Definition(
        "singular values of W_V W_O above rounding of float32", "Amsel et al. 2024, arXiv 2407.16153"
    ),
    "ov_stable_rank": Definition("‖W_V W_O‖_F² / σ₁²", "Amsel et al. 2024, arXiv 2407.16153"),
    "prefix_matching": Definition(
        "attention to the token after the earlier copy, on repeated random tokens; near 1 is an induction head",
        "Olsson et al. 2022, arXiv 2209.11895",
    ),
    "copying": Definition(
        "how far reading a token raises that token's own logit among those read; 1 copies, 0 is chance",
        "after Olsson et al. 2022, arXiv 2209.11895",
    ),
    "relevance": Definition(
        "share of the network's gradient-weighted attention, Σ (∇A ⊙ A)⁺ for the chosen output",
        "Chefer et al. 2021, arXiv 2103.15679",
    ),
    "previous_token": Definition(f"to the previous token: {_ROLE}", "Clark et al. 2019; Voita et al. 2019"),
    "same_token": Definition(f"to the token itself: {_ROLE}", "Clark et al. 2019"),
    "next_token": Definition(f"to the next token: {_ROLE}", "Clark et al. 2019"),
    "earlier_copies": Definition(f"to earlier copies of the same token: {_ROLE}", "Olsson et al. 2022"),
    "first_token": Definition(f"to the first token, the usual sink: {_ROLE}", "Xiao et al. 2023, arXiv 2309.17453"),
    "delimiters": Definition(f"to punctuation, line ends and special tokens: {_ROLE}", "Clark et al. 2019"),
    "nearby_tokens": Definition(f"to tokens at most four places away: {_ROLE}", "Clark et al. 2019"),
    "class_token": Definition(
        f"to the class token of an image: {_ROLE}", "Dosovitskiy et al. 2020, arXiv 2010.11929"
    ),
    "same_row": Definition(
        f"to other patches of the same row: {_ROLE}", "Cordonnier et al. 2019, arXiv 1911.03584"
    ),
    "same_column": Definition(
        f"to other patches of the column: {_ROLE}", "Cordonnier et al. 2019, arXiv 1911.03584"
    ),
    "neighbours": Definition(f"to the eight patches around: {_ROLE}", "Cordonnier et al. 2019, arXiv 1911.03584"),
}

#: Columns of the layers' table that are not means over heads.
OF_LAYERS = {
    "head_diversity": Definition(
        "mean over pairs of the layer's heads of their distance, total variation over queries",
        "after Clark et al. 2019, arXiv 1906.04341",
    ),
    "rollout_own_token": Definition(
        "share of its own input token that a position still holds, by attention rollout",
        "Abnar and Zuidema 2020, arXiv 2005.00928",
    ),
    "rollout_first_token": Definition(
        "share of the first input token that a position holds, by attention rollout",
        "Abnar and Zuidema 2020, arXiv 2005.00928",
    ),
    "massive_activation_ratio": Definition(
        "largest over median modulus of the residual stream; over 1000 is a massive activation",
        "Sun et al. 2024, arXiv 2402.17762",
    ),
    "token_similarity": Definition(
        "mean cosine between the tokens of the residual stream; towards 1 is over-smoothing",
        "Shi et al. 2022, arXiv 2202.08625",
    ),
    "dirichlet_energy": Definition(
        "½ Σ W_ij ‖x_i - x_j‖² / Σ ‖x_i‖², W the layer's mean attention, symmetric; towards 0 is over-smoothing",
        "Shi et al. 2022, arXiv 2202.08625; Cai and Wang 2020, arXiv 2006.13318",
    ),
}
