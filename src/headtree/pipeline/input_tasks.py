"""The work of a run on one input, as functions that workers can call: arguments and results can be sent."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from jaxtyping import Float

from headtree._lazy_array import LazyArray
from headtree.geometry.linkage import linkage_tree
from headtree.measures.consensus import Consensus, consensus, of_one_input
from headtree.measures.heads.columns import Column
from headtree.measures.heads.diagnostics import InputTables, input_tables
from headtree.measures.per_input import MeasuredInput, measure_input
from headtree.pipeline.memory_limit import needed_as_a_whole, room_for_blocks
from headtree.pipeline.model_capture import ModelCapture
from headtree.pipeline.sources import Capture
from headtree.questionnaire.organization import Organization
from headtree.questionnaire.organize import organize
from headtree.questionnaire.settings import Questionnaire
from headtree.similarity.attention_distances import attention_distance
from headtree.similarity.head_similarity import AttentionKind, HeadSimilarity
from headtree.tensor.attention_tensor import AttentionTensor, HeadId
from headtree.tensor.centred_scores import centred_by_blocks
from headtree.tensor.hidden_mask import check_future_keys


def captured(ready: Capture) -> list[AttentionTensor]:
    """The tensors of a batch."""
    return ready.tensors()


def organized(
    att: AttentionTensor, is_raw: bool, settings: Questionnaire, device: str, memory: int | None = None
) -> Organization:
    """The organization of an input; within a limit of memory, in bytes, if there is one."""
    if memory is None or needed_as_a_whole(att) <= memory or not isinstance(att.values, LazyArray):
        return organize(organized_values(att, is_raw), settings, device=device)
    import zarr

    room = room_for_blocks(att, settings, memory)
    with zarr.config.set({"async.concurrency": 1}):  # else many whole chunks are in memory
        values = centred_by_blocks(att) if att.kind == "scores" and not is_raw else att
        return organize(values, settings, device=device, memory=room)


def organized_values(att: AttentionTensor, is_raw: bool) -> AttentionTensor:
    """What is organized and measured, in memory: of scores the centred ones, unless the run is of raw scores."""
    return att.load() if is_raw or att.kind != "scores" else att.centred()


def measured(att: AttentionTensor, org: Organization, is_raw: bool, settings: Mapping[str, Any]) -> MeasuredInput:
    """The measures of an input."""
    return measure_input(
        organized_values(att, is_raw),
        org,
        head_functions=settings["head_functions"],
        network_functions=settings["network_functions"],
        rng=settings["seed"],
        probs=att,
    )


def head_distances(
    att: AttentionTensor, kind: AttentionKind, memory: int | None = None
) -> Float[np.ndarray, "head head"]:
    """How far the heads of an input are from each other; a tensor that does not fit in memory is read by blocks."""
    if memory is None or needed_as_a_whole(att) <= memory:
        att = att.load()
    check_future_keys(att)
    return attention_distance(att, kind)


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


def diagnosed(att: AttentionTensor, ready: Capture) -> InputTables:
    """The diagnostics of an input, the only one of `ready`."""
    return input_tables(att, ready.to_diagnose())
