"""What is compared of a run: the geometry, measures and roles of its heads, on each of its inputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float

from headtree._threads import for_each_task, sleeping_threads
from headtree.errors import InvalidValueError
from headtree.measures.heads import patterns
from headtree.measures.heads.roles import WORDS, role_tables, roles_from
from headtree.progress import progress
from headtree.runs.run import Run
from headtree.similarity.attention_distances import attention_distance
from headtree.tensor.attention_tensor import AttentionTensor, HeadId
from headtree.tensor.probabilities import HeadBlock, head_blocks

#: The name of heads that have no role.
NO_ROLE = "no role"
ROLES = (*WORDS.values(), NO_ROLE)

#: Excess from which a head has a role, as `headtree.head_roles` has it.
_LEAST = 0.4
#: Tensors with at most this number of entries are read once, into memory.
_IN_MEMORY = 2**25

#: Measures of heads whose distributions are compared, in words; the second group only for as many tokens.
MEASURES = {
    "confidence": "confidence",
    "shannon_entropy_relative": "relative entropy",
    "strongest_column_mass": "mass on one key",
    "doubly_stochastic_distance": "unevenness over keys",
    "distance_to_layer": "distance to own layer",
    "exponent": "Hölder exponent",
}
MEASURES_OF_SIZE = {"structure": "structure score", "haar_entropy_relative": "relative Haar entropy"}


@dataclass(frozen=True, eq=False)
class RunProfile:
    """A network on several inputs, as far as it can be compared with another."""

    name: str
    values: str  #: what was organized, in words: "centred scores", "probabilities", …
    heads: tuple[HeadId, ...]
    attention: tuple[AttentionTensor, ...]  #: of each input; those on disk stay there
    inputs: tuple[str, ...]  #: hash of each input
    distance: Float[np.ndarray, "input head head"]  #: Hellinger distances, as in `headtree.head_similarity`
    measures: Mapping[str, Float[np.ndarray, "input head"]]
    roles: Float[np.ndarray, "input role"]  #: share of the heads with each of `ROLES`
    role: tuple[str, ...]  #: of each head, on all inputs together; "" for none
    family: tuple[int, ...]  #: of each head; -1 for none

    @property
    def shapes(self) -> tuple[tuple[int, int], ...]:
        """Number of queries and keys of each input."""
        return tuple((att.shape[1], att.shape[2]) for att in self.attention)

    @property
    def n_inputs(self) -> int:
        """Number of inputs."""
        return len(self.inputs)

    def has_inputs_of(self, other: RunProfile) -> bool:
        """Whether both networks read the same inputs, token by token."""
        return self.inputs == other.inputs and self.shapes == other.shapes


def run_profile(run: Run, name: str | None = None) -> RunProfile:
    """Read a run: every tensor of attention once, and what was measured."""
    measured = list(run.measured)
    return tensors_profile(
        list(run.attention),
        name or run.name,
        values=run.values_words,
        inputs=[str(item.get("sha256", item["name"])) for item in run.record.inputs],
        family=run.consensus.families().of_leaf.tolist(),
        measured={
            "exponent": np.stack([item.exponent["organized"] for item in measured]),
            "structure": np.stack([item.structure for item in measured]),
            "haar_entropy_relative": np.stack([item.entropy_relative for item in measured]),
        },
    )


def tensors_profile(
    tensors: Sequence[AttentionTensor],
    name: str,
    *,
    values: str,
    inputs: Sequence[str],
    family: Sequence[int],
    measured: Mapping[str, Float[np.ndarray, "input head"]],
) -> RunProfile:
    """A profile of tensors, one for each input, and of what else is known about them.

    Parameters
    ----------
    tensors : sequence of AttentionTensor
        The same heads on each input, in memory or on disk.
    name, values, inputs, family
        As in `RunProfile`.
    measured : mapping
        Measures that do not follow from attention alone.
    """
    found: list[Any] = [None] * len(tensors)
    with progress(f"reading {name}", len(tensors)) as step, sleeping_threads():

        def read(i: int) -> None:
            found[i] = _of_input(tensors[i])
            step(f"input {i + 1} of {len(tensors)}")

        for_each_task(read, len(tensors))
    heads = tensors[0].heads
    return RunProfile(
        name=name,
        values=values,
        heads=heads,
        attention=tuple(tensors),
        inputs=tuple(inputs),
        distance=np.stack([item.distance for item in found]),
        measures={key: np.stack([item.measures[key] for item in found]) for key in found[0].measures}
        | {**measured},
        roles=np.stack([_role_shares(roles_from(heads, [item.roles], _LEAST).names) for item in found]),
        role=roles_from(heads, [item.roles for item in found], _LEAST).names,
        family=tuple(family),
    )


@dataclass(frozen=True, eq=False)
class _ProfiledInput:
    distance: Float[np.ndarray, "head head"]
    measures: dict[str, Float[np.ndarray, " head"]]
    roles: Any


def in_memory(att: AttentionTensor) -> AttentionTensor:
    """The tensor, read from disk unless it is large."""
    return att.load() if int(np.prod(att.shape)) <= _IN_MEMORY else att


def _of_input(att: AttentionTensor) -> _ProfiledInput:
    att = in_memory(att)
    try:
        distance = attention_distance(att, "attention")
    except InvalidValueError as error:
        raise InvalidValueError(f"a run cannot be compared: {error}") from error
    blocks = [_measures(block) for block in head_blocks(att)]
    measures = {key: torch.cat([block[key] for block in blocks]).double().numpy() for key in blocks[0]}
    measures["distance_to_layer"] = _distance_to_layer(distance, att.heads)
    return _ProfiledInput(distance, measures, role_tables(att, None, 4))


def _measures(block: HeadBlock) -> dict[str, Float[torch.Tensor, " head"]]:
    entropies, rows = patterns.row_entropies(block)
    return {
        "confidence": patterns.confidence(block),
        "shannon_entropy_relative": patterns.relative_entropy(block, entropies, rows),
        "strongest_column_mass": patterns.strongest_column_mass(block),
        "doubly_stochastic_distance": patterns.doubly_stochastic_distance(block),
    }


def _distance_to_layer(
    distance: Float[np.ndarray, "head head"], heads: tuple[HeadId, ...]
) -> Float[np.ndarray, " head"]:
    """Mean distance to the other heads of its layer; nan for a head that is alone."""
    result = np.full(len(heads), np.nan)
    for indices in patterns.layers_of(heads).values():
        if len(indices) > 1:
            result[indices] = distance[np.ix_(indices, indices)].sum(axis=1) / (len(indices) - 1)
    return result


def _role_shares(names: tuple[str, ...]) -> Float[np.ndarray, " role"]:
    return np.array([names.count("" if role == NO_ROLE else role) for role in ROLES]) / len(names)
