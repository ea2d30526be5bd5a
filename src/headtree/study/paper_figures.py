"""The paper's figures, drawn from the runs at hand."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Bool, Float

from headtree.bases.paraproduct import decomposed
from headtree.bases.tensor_haar import TensorHaarBasis
from headtree.measures.comparisons import rank_correlation
from headtree.questionnaire.organization import Organization
from headtree.questionnaire.organize import organize_array
from headtree.report.figures import (
    coefficients_by_support,
    distributions,
    haar_basis,
    head_affinity,
    head_map,
    head_tree,
    organized_matrix,
    paraproduct_terms,
    relation,
    save,
    scores_over_heads,
    tri_haar_coefficients,
)
from headtree.runs.run import Run
from headtree.section import Picture
from headtree.study.claims.evidence import Evidence
from headtree.study.claims.single_heads import SETTINGS, MatrixRegularity
from headtree.tensor.attention_tensor import AttentionTensor

if TYPE_CHECKING:
    from matplotlib.figure import Figure


#: Added to captions of tensors with a mask.
_MISSING = " Grey: masked."
_FILLED = (
    " The decomposition needs a full matrix: masked entries hold the mean of their row, and softmax gives them "
    "weight, unlike the model."
)


def draw_claims(
    run: Run,
    scores: Run | None,
    evidence: Sequence[Evidence],
    of_scores: Sequence[Evidence],
    matrices: MatrixRegularity | None,
    folder: Path,
    prefix: str,
) -> tuple[Picture, ...]:
    """Draw figures 1 to 6 of [OA] for one network as ``PREFIX_fig….svg`` and ``.png``.

    Parameters
    ----------
    run : Run
        Of the kind that the paper shows.
    scores : Run, optional
        Of scores; without it the figures about softmax are left out.
    evidence, of_scores : sequences of Evidence
        Of every input of these runs.
    matrices : MatrixRegularity, optional
        Of the first input.
    folder, prefix
        Where, and the beginning of the names. Pictures name files in ``figures/``.
    """
    pictures = []
    for name, (draw, caption) in _figures(run, scores, evidence, of_scores, matrices).items():
        save(draw(), folder, f"{prefix}_{name}")
        pictures.append(Picture(f"figures/{prefix}_{name}.svg", caption))
    return tuple(pictures)


def _figures(
    run: Run,
    scores: Run | None,
    evidence: Sequence[Evidence],
    of_scores: Sequence[Evidence],
    matrices: MatrixRegularity | None,
) -> dict[str, tuple[Callable[[], Figure], str]]:
    att, org = run.values[0], run.organization[0]
    first = evidence[0]
    middle, top, bottom = _chosen_heads(first)
    names = [str(att.heads[i]) for i in (middle, top, bottom)]
    settings = "2-D questionnaire, binary trees, alpha 1, beta 0, 10 iterations"
    found: dict[str, tuple[Callable[[], Figure], str]] = {
        "fig1_head": (
            lambda: _organized(att, middle),
            f"Fig. 1: {run.values_words} of head {names[0]}, of median entropy, in the original order and "
            f"organized by itself ({settings}; not cropped). Lines separate folders."
            f"{_MISSING if att.mask is not None else ''}",
        )
    }
    if matrices is not None:
        found["fig1_exponents"] = (
            lambda: distributions(matrices.exponent, "mixed Hölder exponent", reference=0),
            "Fig. 1 in numbers: mixed Hölder exponents of all heads of one input, each organized by itself: "
            "original order, organized, and the same trees with shuffled leaves. At 0 or below there is no "
            "regularity.",
        )
    if scores is not None and of_scores and of_scores[0].beyond.softmax is not None:
        found |= _softmax_figures(scores.values[0], of_scores, middle)
    entropies = np.array([item.measured.entropy for item in evidence[:3]])
    correlation = rank_correlation(first.beyond.variation, first.measured.entropy)
    found |= {
        "fig3_map": (
            lambda: head_map(org.coordinates[0], att.heads),
            "Fig. 3: diffusion map of the heads, one input; colour is the layer.",
        ),
        "fig3_affinity": (
            lambda: head_affinity(org.affinities[0], org.trees[0], att.heads, org.order(0)),
            "Fig. 3: affinity of every two heads in the order of their tree, the same input.",
        ),
        "fig3_tree": (
            lambda: head_tree(org.trees[0], att.heads, org.order(0)),
            "Fig. 3: flexible tree of the heads, the same input.",
        ),
        "fig4_coefficients": (
            lambda: coefficients_by_support(att, org, [top, bottom]),
            f"Fig. 4: query-key coefficients of heads {names[1]} and {names[2]}, of largest and smallest entropy, "
            f"by decreasing support, and of all heads; the entropy sums the first {first.measured.head_functions}.",
        ),
        "fig4_basis": (
            lambda: haar_basis(org.trees[0], att.heads, org.order(0)),
            "Fig. 4: Haar basis of the heads.",
        ),
        "fig5_entropies": (
            lambda: scores_over_heads(entropies, att.heads, run.inputs[:3], label="ℓ1 entropy"),
            f"Fig. 5: l1 entropy of every head on three inputs, top {first.measured.head_functions} functions.",
        ),
        "fig5_variation": (
            lambda: relation(
                first.beyond.variation,
                first.measured.entropy,
                "mean absolute step, organized order",
                "l1 entropy",
                att.heads,
                note=f"Spearman {correlation:.2f}",
            ),
            "Fig. 5: does high entropy mean sharp transitions? Every head of one input.",
        ),
        "fig6_coefficients": (
            lambda: _tri_haar(run, evidence),
            f"Fig. 6: the {first.measured.network_functions} coarsest head-query-key coefficients for up to five "
            "inputs.",
        ),
    }
    return found


def _softmax_figures(
    att: AttentionTensor, evidence: Sequence[Evidence], head: int
) -> dict[str, tuple[Callable[[], Figure], str]]:
    def errors() -> dict[str, Float[np.ndarray, " head"]]:
        tables = [item.beyond.softmax for item in evidence if item.beyond.softmax is not None]
        return {
            "as printed": np.concatenate([table.error_printed for table in tables]),
            "with boundary": np.concatenate([table.share_residual for table in tables]),
        }

    name = str(att.heads[head])
    return {
        "fig2_head": (
            lambda: _paraproduct(att, head),
            f"Fig. 2: softmax of head {name}, organized by itself with the settings of fig. 1, beside eq. (12) "
            "with its boundary terms and as printed, the residual, and the terms. All in the same order of tokens."
            f"{_MISSING + _FILLED if att.mask is not None else ''}",
        ),
        "fig2_errors": (
            lambda: distributions(errors(), "relative error of softmax(f)", reference=0.25),
            "Fig. 2 in numbers: relative errors of the decomposition over all heads and inputs, on the network's "
            "trees; above 0.25 (dashed) it does not describe softmax(f)."
            f"{_FILLED if att.mask is not None else ''}",
        ),
    }


def _chosen_heads(item: Evidence) -> tuple[int, int, int]:
    """Heads of median, largest and smallest entropy."""
    falling = np.argsort(-item.measured.entropy, kind="stable")
    return int(falling[len(falling) // 2]), int(falling[0]), int(falling[-1])


def _by_itself(one: AttentionTensor) -> tuple[Float[np.ndarray, "query key"], Organization]:
    """The matrix of a single head with missing entries filled, and its organization with them missing."""
    values = one.filled().values[0].double().numpy()
    return values, organize_array(values, SETTINGS, mask=_missing(one), names=("query", "key"))


def _missing(one: AttentionTensor) -> Bool[np.ndarray, "query key"] | None:
    return None if one.mask is None else one.mask[0].numpy()


def _organized(att: AttentionTensor, head: int) -> Figure:
    one = att.take(head)
    values, org = _by_itself(one)
    missing = _missing(one)
    return organized_matrix(
        values if missing is None else np.where(missing, np.nan, values),
        org,
        title=str(one.heads[0]),
        unit=att.kind,
        labels=(att.queries, att.keys),
    )


def _paraproduct(att: AttentionTensor, head: int) -> Figure:
    one = att.take(head)
    values, org = _by_itself(one)
    product = decomposed(values, org.trees[0], org.trees[1], "softmax")
    return paraproduct_terms(product, org.order(0), org.order(1), missing=_missing(one), name=str(one.heads[0]))


def _tri_haar(run: Run, evidence: Sequence[Evidence]) -> Figure:
    chosen = range(min(5, len(evidence)))
    coefficients = [evidence[i].measured.network_coefficients for i in chosen]
    bases = [TensorHaarBasis(tuple(run.organization[i].trees)) for i in chosen]
    supports = [basis.support(basis.top(len(row))) for basis, row in zip(bases, coefficients, strict=True)]
    return tri_haar_coefficients(coefficients, supports, [run.inputs[i] for i in chosen])
