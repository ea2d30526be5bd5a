"""The work of a run on one input, as functions that workers can call: arguments and results can be sent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

from headtree.geometry.linkage import linkage_tree
from headtree.measures.consensus import Consensus, consensus, of_one_input
from headtree.measures.entropy import Entropy, network_entropy
from headtree.measures.heads.columns import Column
from headtree.measures.heads.diagnostics import (
    HeadTables,
    InputTables,
    LayerTables,
    head_tables,
    input_tables,
    layer_tables,
)
from headtree.measures.invariance import SoftmaxInvariance
from headtree.measures.per_input import (
    MeasuredHeads,
    MeasuredInput,
    measure_heads,
    measure_input,
    measure_invariance,
)
from headtree.measures.sparsity import CompressionCurve
from headtree.measures.whole_network import Scratch, curve_in_order
from headtree.pipeline.memory_limit import NO_LIMIT, Limit
from headtree.pipeline.model_capture import ModelCapture
from headtree.pipeline.sources import Capture
from headtree.questionnaire.organization import Organization
from headtree.questionnaire.organize import organize
from headtree.questionnaire.settings import Questionnaire
from headtree.runs.kept import KeptPiece
from headtree.similarity.attention_distances import attention_distance
from headtree.similarity.head_similarity import AttentionKind, HeadSimilarity
from headtree.tensor.attention_tensor import AttentionTensor, HeadId
from headtree.tensor.centred_scores import centred_by_blocks
from headtree.tensor.hidden_mask import check_future_keys


def captured(ready: Capture) -> list[AttentionTensor]:
    """The tensors of a batch."""
    return ready.tensors()


def captured_and_kept(
    ready: Capture, kept: Sequence[KeptPiece], identities: Sequence[str], like: Path
) -> list[AttentionTensor]:
    """The tensors of a batch as they are on disk, where they are written first."""
    return [
        each.attention(att, identity, like)
        for each, identity, att in zip(kept, identities, ready.tensors(), strict=True)
    ]


def organized(
    att: AttentionTensor, is_raw: bool, settings: Questionnaire, device: str, limit: Limit = NO_LIMIT
) -> Organization:
    """The organization of an input."""
    if limit.holds(att):
        return organize(organized_values(att, is_raw), settings, device=device)
    room = limit.room_to_organize(att, settings)
    with limit.apart() as own, own.regrouped(att, (1, 2), room) as lazy:
        values = centred_by_blocks(lazy) if att.kind == "scores" and not is_raw else lazy
        return organize(values, settings, device=device, memory=room)


def organized_and_kept(
    kept: KeptPiece, att: AttentionTensor, is_raw: bool, settings: Questionnaire, device: str, limit: Limit
) -> None:
    """Write the organization of an input."""
    kept.organization(organized(att, is_raw, settings, device, limit))


def organized_values(att: AttentionTensor, is_raw: bool) -> AttentionTensor:
    """What is organized and measured, in memory: of scores the centred ones, unless the run is of raw scores."""
    return att.load() if is_raw or att.kind != "scores" else att.centred()


def measured(
    att: AttentionTensor, org: Organization, is_raw: bool, settings: Mapping[str, Any], limit: Limit = NO_LIMIT
) -> MeasuredInput:
    """The measures of an input."""
    options = {
        "head_functions": settings["head_functions"],
        "network_functions": settings["network_functions"],
        "rng": settings["seed"],
    }
    if limit.holds(att):
        return measure_input(organized_values(att, is_raw), org, probs=att, **options)
    room = limit.room_to_measure(att)
    with limit.apart() as own, own.regrouped(att, (1,), room) as lazy:
        values = centred_by_blocks(lazy) if att.kind == "scores" and not is_raw else lazy
        return measure_input(values, org, probs=lazy, scratch=Scratch(own.folder, room), **options)


def measured_heads(
    att: AttentionTensor, org: Organization, is_raw: bool, settings: Mapping[str, Any]
) -> MeasuredHeads:
    """The measures of some heads of an input."""
    return measure_heads(organized_values(att, is_raw), org, settings["head_functions"], att)


def measured_network(att: AttentionTensor, org: Organization, is_raw: bool, settings: Mapping[str, Any]) -> Entropy:
    """The entropy of all heads of an input together."""
    return network_entropy(organized_values(att, is_raw), org, top=settings["network_functions"])


def measured_curve(
    att: AttentionTensor, org: Organization, is_raw: bool, settings: Mapping[str, Any], order: str
) -> CompressionCurve:
    """How few coefficients describe an input in one order."""
    return curve_in_order(organized_values(att, is_raw), org, order, settings["seed"])


def measured_invariance(att: AttentionTensor, org: Organization, is_raw: bool) -> SoftmaxInvariance | None:
    """Softmax invariance of the heads on which it is measured."""
    return measure_invariance(organized_values(att, is_raw), org)


def head_distances(
    att: AttentionTensor, kind: AttentionKind, limit: Limit = NO_LIMIT
) -> Float[np.ndarray, "head head"]:
    """How far the heads of an input are from each other."""
    with limit.in_memory_or_blocks(att) as found:
        check_future_keys(found)
        return attention_distance(found, kind)


def functional_kernels(ready: ModelCapture) -> list[Float[np.ndarray, "2 head head"]]:
    """How alike the attention and the values of heads are."""
    return ready.functional_kernels()


def agreed(similarity: HeadSimilarity, n_bootstrap: int, seed: int) -> Consensus:
    """The tree of heads that the inputs agree on."""
    if similarity.n_inputs > 1:
        return consensus(similarity, n_bootstrap=n_bootstrap, rng=seed)
    affinity = similarity.combine()
    return of_one_input(similarity.kind, linkage_tree(affinity), affinity)


def same_for_all(ready: ModelCapture, heads: tuple[HeadId, ...]) -> dict[str, Column]:
    """The diagnostics of heads that do not depend on the input."""
    return ready.to_diagnose().same_for_all(heads, rng=0)


def diagnosed(att: AttentionTensor, ready: Capture, limit: Limit = NO_LIMIT) -> InputTables:
    """The diagnostics of an input, the only one of `ready`."""
    with limit.in_memory_or_blocks(att) as found:
        return input_tables(found, ready.to_diagnose())


def diagnosed_heads(att: AttentionTensor) -> HeadTables:
    """The diagnostics of some heads of an input by themselves."""
    return head_tables(att.load())


def diagnosed_layers(att: AttentionTensor, ready: Capture) -> LayerTables:
    """The diagnostics of layers of an input, the only one of `ready`, and of heads by layer or model."""
    return layer_tables(att.load(), ready.to_diagnose())
