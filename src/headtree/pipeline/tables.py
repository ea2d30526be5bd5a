"""The numbers of a run: what is measured on each input, and the tables made of all of them."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from headtree.errors import HeadtreeWarning
from headtree.geometry.diffusion import diffusion_map
from headtree.measures.consensus import Consensus
from headtree.measures.entropy import head_entropy, network_entropy
from headtree.measures.invariance import softmax_invariance
from headtree.measures.regularity import holder_exponent
from headtree.measures.sparsity import sparsity
from headtree.measures.stability import stability
from headtree.questionnaire.organization import Organization, PerAxis
from headtree.tensor.attention_tensor import AttentionTensor, HeadId
from headtree.trees.tree import PartitionTree

#: Heads, evenly spread, on which softmax invariance is measured: it takes three paraproducts a head.
_SAMPLED_HEADS = 8


def measured(att: AttentionTensor, org: Organization, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Everything about one input as plain lists and numbers."""
    att = att.load()
    full = att.filled()
    whole = replace(att, values=full.values, mask=None)  # filled once for all
    heads = head_entropy(whole, org, top=settings["head_functions"])
    network = network_entropy(whole, org, top=settings["network_functions"])
    sparse = sparsity(whole, org, rng=settings["seed"])
    halves = [PartitionTree.halving(tree.n_leaves) for tree in list(org.trees)[1:]]
    found, given = (holder_exponent(full.values, *trees) for trees in (list(org.trees)[1:], halves))
    result = {
        "entropy": heads.raw.tolist(),
        "entropy_relative": heads.relative.tolist(),
        "norm": heads.norm.tolist(),
        "head_functions": heads.n_functions,
        "network_entropy": float(network),
        "network_entropy_relative": float(network.relative),
        "network_functions": network.n_functions,
        "sparsity": {**sparse.to_dict(), "gain": sparse.gain, "curves": curves_to_dict(sparse.by_order)},
        "exponent": {"organized": found.exponent.tolist(), "given": given.exponent.tolist()},
        "n_filled": full.n_filled,
    }
    if att.kind == "scores":
        result["invariance"] = _invariance(whole, org)
    return result


def _invariance(att: AttentionTensor, org: Organization) -> dict[str, Any]:
    """Softmax invariance of some heads of every part of the network."""
    n = len(att.heads)
    chosen = np.unique(np.linspace(0, n - 1, min(n, _SAMPLED_HEADS)).round().astype(np.int64))
    some = att.take(chosen)
    flat = PerAxis(org.names, [PartitionTree.flat(len(chosen)), *list(org.trees)[1:]])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", HeadtreeWarning)  # heads on which exp overflows are counted below
        table = softmax_invariance(some, replace(org, trees=flat))
    return {
        "heads": [str(head) for head in some.heads],
        "distance": table.distance.tolist(),
        "residual": table.share_residual.tolist(),
        "holds": table.holds.tolist(),
        "tolerance": table.tolerance,
    }


def curves_to_dict(by_order: Mapping[str, Any]) -> dict[str, Any]:
    """Compression curves of several orders as plain lists."""
    first = next(iter(by_order.values()))
    return {
        "counts": first.counts.tolist(),
        "largest": {order: curve.largest.tolist() for order, curve in by_order.items()},
        "coarsest": {order: curve.coarsest.tolist() for order, curve in by_order.items()},
    }


def head_table(
    heads: Sequence[HeadId], rows: Sequence[Mapping[str, Any]], consensus: Consensus
) -> dict[str, list[Any]]:
    """Columns of heads.csv, in their order."""
    entropies = np.array([row["entropy"] for row in rows])
    mean = entropies.mean(axis=0)
    rank = np.empty(len(heads), dtype=np.int64)
    rank[np.argsort(-mean, kind="stable")] = np.arange(1, len(heads) + 1)
    coordinates = _consensus_coordinates(consensus)
    table: dict[str, Any] = {
        "name": [str(head) for head in heads],
        "layer": [head.layer for head in heads],
        "head": [head.head for head in heads],
        **{f"entropy_{i}": row for i, row in enumerate(entropies)},
        "entropy": mean,
        "entropy_relative": _mean(rows, "entropy_relative"),
        "entropy_rank": rank,
        "family": family_of_head(consensus),
        **{f"coordinate_{i + 1}": column for i, column in enumerate(coordinates.T)},
        "place_in_tree": _places(consensus, coordinates),
        "norm": _mean(rows, "norm"),
        "exponent": np.mean([row["exponent"]["organized"] for row in rows], axis=0),
        "exponent_given": np.mean([row["exponent"]["given"] for row in rows], axis=0),
    }
    if len(rows) > 1 and len(heads) > 1:
        counts = stability(entropies, heads=heads)
        table |= {"top_count": counts.top_counts, "bottom_count": counts.bottom_counts}
    return {name: np.asarray(column).tolist() for name, column in table.items()}


def layer_table(table: Mapping[str, Sequence[Any]]) -> dict[str, list[Any]]:
    """Columns of layers.csv: means over each layer's heads."""
    layer = np.asarray(table["layer"])
    layers = np.unique(layer)
    skipped = {"name", "layer", "head", "family", "place_in_tree"}
    result: dict[str, list[Any]] = {
        "layer": layers.tolist(),
        "n_heads": [int((layer == i).sum()) for i in layers],
    }
    for name, column in table.items():
        values = np.asarray(column)
        if name not in skipped and values.dtype.kind in "fiu":
            result[name] = [float(values[layer == i].mean()) for i in layers]
    return result


def network_measures(
    heads: Sequence[HeadId], rows: Sequence[Mapping[str, Any]], consensus: Consensus, seed: int
) -> dict[str, Any]:
    """Contents of measures.json."""
    gains = [row["sparsity"]["gain"] for row in rows]
    measures: dict[str, Any] = {
        "network_entropy": {
            "raw": [row["network_entropy"] for row in rows],
            "relative": [row["network_entropy_relative"] for row in rows],
            "n_functions": rows[0]["network_functions"],
        },
        "head_entropy": {"n_functions": rows[0]["head_functions"]},
        "sparsity": {
            "gain": gains,
            "median_gain": float(np.median(gains)),
            **{name: [row["sparsity"][name] for row in rows] for name in ("n_for_90", "n_for_99")},
            "orders": rows[0]["sparsity"]["order"],
            "n_coefficients": [row["sparsity"]["n_coefficients"][0] for row in rows],
            "curves": [row["sparsity"]["curves"] for row in rows],
        },
        "regularity": {
            f"median_exponent_{order}": [_median(row["exponent"][order]) for row in rows]
            for order in rows[0]["exponent"]
        },
        "filled": [row["n_filled"] for row in rows],
        "consensus": {
            "n_inputs": consensus.n_inputs,
            "n_bootstrap": consensus.n_bootstrap,
            "n_folders": len(consensus.folders),
            "mean_support": _finite(np.mean(consensus.support)) if len(consensus.folders) else None,
            "families": _families(heads, consensus),
        },
    }
    if len(rows) > 1 and len(heads) > 1:
        measures["stability"] = _stability(heads, rows, seed)
    if "invariance" in rows[0]:
        measures["invariance"] = {
            "heads": rows[0]["invariance"]["heads"],
            "tolerance": rows[0]["invariance"]["tolerance"],
            "n_overflow": [int(np.isnan(row["invariance"]["distance"]).sum()) for row in rows],
            "share_holds": [float(np.mean(row["invariance"]["holds"])) for row in rows],
            "median_distance": [_median(row["invariance"]["distance"]) for row in rows],
            "median_residual": [_median(row["invariance"]["residual"]) for row in rows],
        }
    return measures


def _stability(heads: Sequence[HeadId], rows: Sequence[Mapping[str, Any]], seed: int) -> dict[str, Any]:
    found = stability([row["entropy"] for row in rows], heads=heads, rng=seed)
    table = [
        {key: str(value) if isinstance(value, HeadId) else value for key, value in line.items()}
        for line in found.table()
    ]
    return {
        "mean_correlation": _finite(found.mean_correlation),
        "interval": [_finite(value) for value in found.interval],
        "confidence": found.confidence,
        "n_selected": found.n_selected,
        "correlations": [[_finite(value) for value in row] for row in found.correlations],
        "table": table,
    }


def _families(heads: Sequence[HeadId], consensus: Consensus) -> list[dict[str, Any]]:
    """Heads and support of each main folder of the consensus tree."""
    main = consensus.families()
    return [
        {"heads": [str(heads[i]) for i in leaves], "support": _finite(support)}
        for leaves, support in zip(main.folders, main.support, strict=True)
    ]


def family_of_head(consensus: Consensus) -> list[int]:
    """Main folder of each head in the consensus tree, the largest being 0; -1 for heads in none."""
    return [int(family) for family in consensus.families().of_leaf]


def _consensus_coordinates(consensus: Consensus) -> np.ndarray[Any, Any]:
    """Three diffusion coordinates of the averaged affinity; 0 where there are fewer."""
    n = len(consensus.affinity)
    found = np.zeros((n, 3))
    if n > 1:
        points = np.asarray(diffusion_map(consensus.affinity, min(3, n - 1)).coordinates)
        found[:, : points.shape[1]] = points
    return found


def _places(consensus: Consensus, coordinates: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Where each head stands when the heads are drawn in tree order."""
    order = consensus.tree.order(coordinates[:, 0])
    places = np.empty(len(order), dtype=np.int64)
    places[order] = np.arange(len(order))
    return places


def _mean(rows: Sequence[Mapping[str, Any]], name: str) -> np.ndarray[Any, Any]:
    return np.asarray(np.mean([row[name] for row in rows], axis=0))


def _median(values: Any) -> float | None:
    finite = np.asarray(values, dtype=np.float64)
    finite = finite[np.isfinite(finite)]
    return float(np.median(finite)) if len(finite) else None


def _finite(value: Any) -> float | None:
    return float(value) if np.isfinite(value) else None
