"""The page's data on a network apart from matrices: answers, table of heads, trees, affinities, stability."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float, Int, UInt8

from headtree.measures.head_coordinates import consensus_coordinates
from headtree.measures.heads.glossary import explained
from headtree.questionnaire.organization import Organization
from headtree.report.words.answers import answers, families_found, roles_found
from headtree.report.words.folder_sentences import folder_sentences
from headtree.report.words.similarity_words import similarity_meaning, similarity_title
from headtree.report.words.slice_words import UNITS, all_said_of, said_of
from headtree.report.words.terms import DEPTH_TERMS, TERMS
from headtree.tensor.slice_names import DEPTH
from headtree.trees.compare import tree_distance
from headtree.trees.tree import PartitionTree

if TYPE_CHECKING:
    from headtree.runs.run import Run

#: Cells on a side of the picture of affinities; more heads than this share cells.
_N_AFFINITY_CELLS = 512

#: Columns of words, also if no head has one.
_WORDS = ("name", "role", "leaning")

#: Nearest heads that are named for each head.
_N_NEIGHBOURS = 5


def core(run: Run) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Text and arrays that the first view needs."""
    given: dict[str, Any] = {
        "name": run.name,
        "kind": run.kind,
        "unit": asdict(UNITS[run.slices]),
        "inputs": list(run.inputs),
        "n_heads": len(run.heads),
        "layers": int(run.heads["layer"].nunique()),
        "settings": settings_rows(run),
    }
    said: dict[str, Any] = {
        "values": run.values_words,
        "answers": [answer.to_dict() for answer in answers(run)],
        "notes": [shortened(note, 500) for note in run.record.notes],
        "similarities": _similarities(run),
        "glossary": {name: words for name in map(str, run.heads) if (words := explained(name, run.values_words))},
        "families": families_found(run),
        "terms_explained": DEPTH_TERMS if run.slices == DEPTH else TERMS,
        "stability": _stability(run),
    }
    table = run.heads.assign(name=[said_of(run.slices, str(name)) for name in run.heads["name"]])
    if run.slices == DEPTH:
        table = table.drop(columns="head")  # of a depth it says nothing
    given["columns"], arrays = columns_data(table)
    for name, tree_text, tree_arrays in _trees(run):
        said[name] = tree_text
        arrays |= {f"{name}_{part}": array for part, array in tree_arrays.items()}
    return given | all_said_of(run.slices, said), arrays


def columns_data(table: Any) -> tuple[list[dict[str, Any]], dict[str, np.ndarray]]:
    """Columns of heads.csv: numbers as arrays, everything else as text."""
    described: list[dict[str, Any]] = []
    arrays: dict[str, np.ndarray] = {}
    for number, name in enumerate(table.columns):
        values = table[name]
        if name not in _WORDS and values.dtype.kind in "fiub":
            is_whole = values.dtype.kind != "f"
            described.append({"name": str(name), "type": "whole" if is_whole else "number"})
            arrays[f"column_{number}"] = values.to_numpy(dtype=np.float64)
        else:
            words = [shortened(value) if isinstance(value, str) else "" for value in values]
            described.append({"name": str(name), "type": "word", "words": words})
    return described, arrays


def _trees(run: Run) -> list[tuple[str, dict[str, Any], dict[str, np.ndarray]]]:
    """The tree of heads of all inputs by each similarity, and of each input, with their folders in words."""
    trees = []
    words = partial(folder_sentences, run.heads)
    for kind, joint in run.similarities.items():
        points = consensus_coordinates(joint)
        support = dict(zip(joint.node.tolist(), joint.support.tolist(), strict=True))
        order = joint.tree.order(points[:, 0])
        trees.append(tree_data(f"all_{kind}", joint.tree, order, joint.affinity, words, support))
        trees[-1][2]["coordinates"] = points.astype(np.float32)
    for i in range(run.n_inputs):
        org = run.organization[i]
        trees.append(tree_data(f"input_{i}", org.trees[0], org.order(0), org.all_affinities(0), words))
        trees[-1][2]["coordinates"] = _coordinates(org)
    return trees


def _similarities(run: Run) -> list[dict[str, str]]:
    """The similarities of heads that the page can switch between, the one that families are made of first."""
    values = run.values_words
    return [
        {
            "kind": kind,
            "title": similarity_title(kind, values),
            "meaning": similarity_meaning(kind, values),
        }
        for kind in run.similarities
    ]


def _coordinates(org: Organization) -> Float[np.ndarray, "head component"]:
    return np.asarray(org.coordinates[0][:, :3], dtype=np.float32)


def tree_data(
    name: str,
    tree: PartitionTree,
    order: Int[np.ndarray, " head"],
    affinity: Float[np.ndarray, "head head"],
    words: Callable[[list[Int[np.ndarray, " head_of_folder"]]], list[str]],
    support: Mapping[int, float] = MappingProxyType({}),
) -> tuple[str, dict[str, Any], dict[str, np.ndarray]]:
    """A tree for drawing: its distinct folders as ranges of the display order, and in words."""
    folders = tree.distinct
    inner = np.flatnonzero(~folders.is_leaf) if tree.n_leaves > 1 else np.array([0])
    place = np.argsort(order)
    members = [np.flatnonzero(tree.nodes[folders.level[i]] == folders.node[i]) for i in inner]
    number = {int(folder): i for i, folder in enumerate(inner)}
    codes, low, high = _affinity_codes(affinity, order)
    text = {"words": words(members), "affinity": [low, high]}
    arrays = {
        "order": order.astype(np.int32),
        "start": np.array([place[heads].min() for heads in members], dtype=np.int32),
        "size": folders.size[inner].astype(np.int32),
        "parent": np.array([number.get(int(folders.parent[i]), -1) for i in inner], dtype=np.int32),
        "support": np.array([support.get(int(folders.node[i]), np.nan) for i in inner], dtype=np.float32),
        "height": _heights(members, folders.parent[inner], number, affinity),
        "neighbours": _neighbours(affinity),
        "affinity": codes,
    }
    return name, text, arrays


def _heights(
    members: list[Int[np.ndarray, " head"]],
    parents: Int[np.ndarray, " folder"],
    number: Mapping[int, int],
    affinity: Float[np.ndarray, "head head"],
) -> Float[np.ndarray, " folder"]:
    """How far apart the heads of each folder are: 1 - mean affinity of two of them, at least that of inner ones."""
    heights = np.zeros(len(members), dtype=np.float32)
    for i, own in enumerate(members):
        n = len(own)
        total = float(affinity[np.ix_(own, own)].sum() - affinity[own, own].sum())
        heights[i] = 1 - total / max(1, n * (n - 1))
    for i in range(len(members) - 1, 0, -1):  # inner folders come after outer ones
        outer = number.get(int(parents[i]), 0)
        heights[outer] = max(heights[outer], heights[i])
    return heights


def _neighbours(affinity: Float[np.ndarray, "head head"]) -> Int[np.ndarray, "head neighbour"]:
    """The nearest other heads of each head, nearest first."""
    others = affinity.copy()
    np.fill_diagonal(others, -np.inf)
    n = min(_N_NEIGHBOURS, len(others) - 1)
    return np.argsort(-others, axis=1, kind="stable")[:, :n].astype(np.int32)


def _affinity_codes(
    affinity: Float[np.ndarray, "head head"], order: Int[np.ndarray, " head"]
) -> tuple[UInt8[np.ndarray, " pair"], float, float]:
    """The affinities in tree order, averaged to a picture's size, as codes 0 to 254 of its upper triangle."""
    n = len(order)
    n_cells = min(n, _N_AFFINITY_CELLS)
    starts = np.arange(n_cells) * n // n_cells
    sizes = np.diff(starts, append=n)
    sums = np.add.reduceat(np.add.reduceat(affinity[np.ix_(order, order)], starts, axis=1), starts, axis=0)
    cells = (sums / np.multiply.outer(sizes, sizes))[np.triu_indices(n_cells)]
    low, high = float(cells.min()), float(cells.max())
    return np.rint(254 * (cells - low) / ((high - low) or 1)).astype(np.uint8), low, high


def _stability(run: Run) -> dict[str, Any] | None:
    """How well the inputs agree: rankings of heads, trees, and heads that recur at the top and bottom."""
    found = run.measures.get("stability")
    if found is None:
        return None
    joint = run.similarities["questionnaire"]  # the trees of single inputs are the questionnaire's
    agreed = [(tree_distance(org.trees[0], joint.tree), str(org.status)) for org in run.organization]
    return {
        "correlations": found.correlations,
        "mean": found.mean_correlation,
        "interval": found.interval,
        "confidence": found.confidence,
        "n_selected": found.n_selected,
        "recurring": [[row.rank, row.top, row.top_count, row.bottom, row.bottom_count] for row in found.table],
        "tree_distances": [distance for distance, _ in agreed],
        "n_bootstrap": joint.n_bootstrap,
        "status": [status for _, status in agreed],
    }


#: Contents of run.json that are shown elsewhere, or differ from one making of the same run to the next, and hashes.
_NOT_SHOWN = ("settings", "notes", "inputs", "format", "created", "steps", "files", "sha256")


def settings_rows(run: Run) -> list[tuple[str, str]]:
    """Settings, versions and the like that have a value, each once."""
    about = {name: value for name, value in dict(run.info).items() if name not in _NOT_SHOWN}
    rows = flattened({**dict(run.settings), **about})
    return [(name, value) for name, value in rows if value not in ("None", "{}", "")]


def flattened(settings: Mapping[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    """Nested settings as rows of a table."""
    rows: list[tuple[str, str]] = []
    for key, value in settings.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping) and value:
            rows += flattened(value, f"{name}.")
        else:
            rows.append((shortened(name), shortened(str(value), 500)))
    return rows


def shortened(text: str, at_most: int = 200) -> str:
    """`text`, or its beginning and how long it was."""
    return text if len(text) <= at_most else f"{text[:at_most]}… ({len(text):,} characters)"


def representatives(run: Run) -> Int[np.ndarray, " family"]:
    """The head of each family that is nearest to the others, and the head that the page shows first.

    Without families, the head that is nearest to all others is in place of theirs.
    """
    medoids = run.consensus.families().medoid
    typical = medoids if len(medoids) else [int(run.consensus.affinity.sum(axis=1).argmax())]
    return np.unique([*typical, _first_head(run.heads)])


def _first_head(table: Any) -> int:
    """What the page shows before a head is chosen: the strongest of the most frequent role, else of all."""
    roles = roles_found(table)
    names = [str(name) for name in table["name"]]
    return names.index(roles[0]["strongest"]) if roles else int(table["structure_rank"].to_numpy().argmin())
