"""`organization.zarr` of a run: trees, affinities and coordinates of all inputs, and their consensus."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int

from headtree.errors import InvalidValueError
from headtree.measures.consensus import Consensus
from headtree.questionnaire.organization import Iteration, Organization, PerAxis, Status
from headtree.questionnaire.settings import Questionnaire
from headtree.tensor.zarr_dataset import Variable, create, finish, open_group, padded, put
from headtree.trees.tree import PartitionTree

FORMAT = "headtree.run.organization/2"


def questionnaire_to_dict(settings: Questionnaire) -> dict[str, Any]:
    """The settings as JSON."""
    if not isinstance(settings.rng, int | np.integer):
        raise InvalidValueError(
            "rng must be a seed to write an organization to a run, got a generator, whose draws cannot be "
            "repeated; pass an integer"
        )
    values = asdict(settings) | {"rng": int(settings.rng)}
    return {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}


def questionnaire_from_dict(values: Mapping[str, Any]) -> Questionnaire:
    """The settings that `questionnaire_to_dict` wrote."""
    known = {field.name for field in fields(Questionnaire)}
    chosen: dict[str, Any] = {
        name: tuple(v) if isinstance(v, list) else v for name, v in values.items() if name in known
    }
    return Questionnaire(**chosen)


def write_organizations(
    folder: Path, organizations: Sequence[Organization], consensus: Consensus | None = None
) -> None:
    """Write organizations of the same axes; levels that a tree lacks are -1, other padding is nan."""
    first = organizations[0]
    status = [
        {"settled": org.status.settled, "message": org.status.message, "notes": list(org.status.notes)}
        for org in organizations
    ]
    attributes: dict[str, Any] = {
        "format": FORMAT,
        "axes": list(first.names),
        "settings": json.dumps(questionnaire_to_dict(first.settings)),
        "status": json.dumps(status),
    }
    if consensus is not None:
        attributes |= {"consensus_inputs": consensus.n_inputs, "consensus_bootstrap": consensus.n_bootstrap}
    group = create(folder, attributes)
    for name in first.names:
        for variable_name, variable in _axis_variables(organizations, name).items():
            put(group, variable_name, variable)
    moved = np.stack([org.moved for org in organizations])
    put(group, "moved", Variable(("input", "iteration", "axis"), moved))
    put(group, "axis", Variable(("axis",), np.array(first.names, dtype=object)))
    if consensus is not None:
        for variable_name, variable in _consensus_variables(consensus, first.names[0]).items():
            put(group, variable_name, variable)
    finish(folder)


def _axis_variables(organizations: Sequence[Organization], name: str) -> dict[str, Variable]:
    n_levels = max(tree.n_levels for org in organizations for tree in _all_trees(org))
    n_components = max(points.shape[1] for org in organizations for points in org.coordinates)

    def table(tree: PartitionTree | None, n: int) -> Int[np.ndarray, "level leaf"]:
        labels = np.full((n_levels, n), -1)
        if tree is not None:
            labels[: tree.n_levels] = tree.labels
        return labels

    def coordinates(points: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        return np.pad(points, ((0, 0), (0, n_components - points.shape[1])), constant_values=np.nan)

    def stacked(values: Sequence[np.ndarray[Any, Any]], fill: float, *axes: str) -> Variable:
        return Variable(("input", *axes), padded(values, fill))

    sizes = [org.trees[name].n_leaves for org in organizations]
    pairs = list(zip(organizations, sizes, strict=True))
    history = [np.stack([table(step.trees[name], n) for step in org.history]) for org, n in pairs]
    second = f"{name}_2"
    return {
        f"n_{name}": Variable(("input",), np.array(sizes, dtype=np.int64)),
        f"tree_{name}": stacked([table(org.trees[name], n) for org, n in pairs], -1, "level", name),
        f"affinity_{name}": stacked([org.affinities[name] for org in organizations], np.nan, name, second),
        f"distance_{name}": stacked([org.distances[name] for org in organizations], np.nan, name, second),
        f"coordinate_{name}": stacked(
            [coordinates(org.coordinates[name]) for org in organizations], np.nan, name, "component"
        ),
        f"initial_tree_{name}": stacked([table(org.initial_trees[name], n) for org, n in pairs], -1, "level", name),
        f"history_tree_{name}": stacked(history, -1, "iteration", "level", name),
    }


def _all_trees(org: Organization) -> list[PartitionTree]:
    initial = [tree for tree in org.initial_trees if tree is not None]
    return [*initial, *(tree for step in org.history for tree in step.trees), *org.trees]


def _consensus_variables(consensus: Consensus, name: str) -> dict[str, Variable]:
    return {
        "consensus_tree": Variable(("consensus_level", name), consensus.tree.labels),
        "consensus_affinity": Variable((name, f"{name}_2"), consensus.affinity),
        "consensus_node": Variable(("folder",), consensus.node),
        "consensus_share": Variable(("folder",), consensus.share),
        "consensus_support": Variable(("folder",), consensus.support),
    }


def read_organization(path: Path, i: int) -> Organization:
    """The organization of one input."""
    group = open_group(path, FORMAT)
    names = tuple(map(str, group.attrs["axes"]))
    sizes = [int(group[f"n_{name}"][i]) for name in names]

    def square(kind: str, name: str, n: int) -> np.ndarray[Any, Any]:
        return np.asarray(group[f"{kind}_{name}"][i, :n, :n])

    trees = PerAxis(names, [_tree(group[f"tree_{name}"][i], n) for name, n in zip(names, sizes, strict=True)])
    status = json.loads(str(group.attrs["status"]))[i]
    return Organization(
        trees=trees,
        affinities=PerAxis(names, [square("affinity", name, n) for name, n in zip(names, sizes, strict=True)]),
        distances=PerAxis(names, [square("distance", name, n) for name, n in zip(names, sizes, strict=True)]),
        coordinates=PerAxis(
            names, [_coordinates(group[f"coordinate_{name}"][i], n) for name, n in zip(names, sizes, strict=True)]
        ),
        initial_trees=PerAxis(
            names, [_initial(group[f"initial_tree_{name}"][i], n) for name, n in zip(names, sizes, strict=True)]
        ),
        history=_history(group, i, names, sizes),
        status=Status(status["settled"], status["message"], tuple(status["notes"])),
        settings=questionnaire_from_dict(json.loads(str(group.attrs["settings"]))),
    )


def read_consensus(path: Path) -> Consensus:
    """The consensus tree of the first axis over all inputs."""
    group = open_group(path, FORMAT)
    return Consensus(
        tree=PartitionTree(group["consensus_tree"][:]),
        affinity=np.asarray(group["consensus_affinity"][:]),
        share=np.asarray(group["consensus_share"][:]),
        support=np.asarray(group["consensus_support"][:]),
        n_inputs=int(group.attrs["consensus_inputs"]),
        n_bootstrap=int(group.attrs["consensus_bootstrap"]),
    )


def _tree(table: Any, n: int) -> PartitionTree:
    labels = np.asarray(table)[:, :n]
    return PartitionTree(labels[labels[:, 0] >= 0])


def _initial(table: Any, n: int) -> PartitionTree | None:
    return _tree(table, n) if (np.asarray(table)[0, :n] >= 0).all() else None


def _coordinates(table: Any, n: int) -> np.ndarray[Any, Any]:
    values = np.asarray(table)[:n]
    return values[:, ~np.isnan(values[0])]


def _history(group: Any, i: int, names: tuple[str, ...], sizes: Sequence[int]) -> tuple[Iteration, ...]:
    moved = np.asarray(group["moved"][i])
    tables = [np.asarray(group[f"history_tree_{name}"][i]) for name in names]
    return tuple(
        Iteration(
            PerAxis(names, [_tree(table[step], n) for table, n in zip(tables, sizes, strict=True)]),
            PerAxis(names, [float(value) for value in row]),
        )
        for step, row in enumerate(moved)
    )
