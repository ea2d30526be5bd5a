"""The tables of a run, computed from the measures of its inputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from headtree.measures.comparisons import median_of
from headtree.measures.consensus import Consensus
from headtree.measures.head_coordinates import consensus_coordinates
from headtree.measures.invariance import SoftmaxInvariance
from headtree.measures.per_input import MeasuredInput
from headtree.measures.sparsity import CompressionCurve, Sparsity
from headtree.measures.stability import stability
from headtree.tensor.attention_tensor import HeadId

#: Number of recurring heads in the table of measures.json; the page shows as many.
_RECURRING = 5


def curves_to_dict(by_order: Mapping[str, CompressionCurve]) -> dict[str, Any]:
    """Compression curves of several orders as plain lists."""
    first = next(iter(by_order.values()))
    return {
        "counts": first.counts.tolist(),
        "largest": {order: curve.largest.tolist() for order, curve in by_order.items()},
        "coarsest": {order: curve.coarsest.tolist() for order, curve in by_order.items()},
    }


#: Columns that heads.csv begins with, of those that the run has; what each is good for is in the glossary.
LEADING = (
    "name",
    "layer",
    "head",
    "role",
    "family",
    "family_support",
    "confidence",
    "shannon_entropy",
    "effect",
    "effect_error",
    "structure",
    "structure_rank",
)


def head_table(
    inputs: Sequence[MeasuredInput], consensus: Consensus, agreement: Mapping[str, Any] | None
) -> dict[str, list[Any]]:
    """Columns of heads.csv besides the diagnostics; `agreement` is the stability in measures.json."""
    heads = inputs[0].heads
    structure = np.array([item.structure for item in inputs])
    mean = structure.mean(axis=0)
    rank = np.empty(len(heads), dtype=np.int64)
    rank[np.argsort(-mean, kind="stable")] = np.arange(1, len(heads) + 1)
    coordinates = consensus_coordinates(consensus)
    families = consensus.families()
    table: dict[str, Any] = {
        "name": [str(head) for head in heads],
        "layer": [head.layer for head in heads],
        "head": [head.head for head in heads],
        "family": families.of_leaf,
        "family_support": np.append(families.support, np.nan)[families.of_leaf],  # the last for -1, no family
        "structure": mean,
        "structure_rank": rank,
        **{f"structure_{i}": row for i, row in enumerate(structure)},
        **_haar_entropies(inputs),
        **{f"coordinate_{i + 1}": column for i, column in enumerate(coordinates.T)},
        "place_in_tree": _ranks_in_tree(consensus, coordinates),
        "norm": np.mean([item.norm for item in inputs], axis=0),
        "exponent": np.mean([item.exponent["organized"] for item in inputs], axis=0),
        "exponent_given": np.mean([item.exponent["given"] for item in inputs], axis=0),
    }
    if agreement is not None:
        table |= {name: agreement[name] for name in ("top_count", "bottom_count")}
    return {name: np.asarray(column).tolist() for name, column in table.items()}


def _haar_entropies(inputs: Sequence[MeasuredInput]) -> dict[str, Any]:
    """The paper's measure of what was organized; of probabilities, it is the structure score already."""
    if inputs[0].kind == "probs":
        return {}
    return {
        "haar_entropy": np.mean([item.entropy for item in inputs], axis=0),
        "haar_entropy_relative": np.mean([item.entropy_relative for item in inputs], axis=0),
    }


def with_leading(table: Mapping[str, Any]) -> dict[str, Any]:
    """The table with the plain columns first."""
    return {name: table[name] for name in dict.fromkeys([*(n for n in LEADING if n in table), *table])}


def layer_table(table: Mapping[str, Sequence[Any]]) -> dict[str, list[Any]]:
    """Columns of layers.csv: means over each layer's heads."""
    layer = np.asarray(table["layer"])
    layers = np.unique(layer)
    skipped = {"name", "layer", "head", "family", "family_support", "place_in_tree"}
    result: dict[str, list[Any]] = {
        "layer": layers.tolist(),
        "n_heads": [int((layer == i).sum()) for i in layers],
    }
    for name, column in table.items():
        values = np.asarray(column)
        if name not in skipped and values.dtype.kind in "fiu":
            result[name] = [float(values[layer == i].mean()) for i in layers]
    return result


def with_model_layers(table: Mapping[str, Any], provenance: Mapping[str, Any]) -> dict[str, Any]:
    """A table of heads or layers, with the place in the model of each layer if that is not its number.

    Hybrid models attend in some of their layers only. `model_layer` counts all layers, `module` is the one that
    attends.
    """
    known = {entry["layer"]: entry for entry in provenance.get("layers", ())}
    layers = np.asarray(table["layer"]).tolist()
    places = [known.get(layer, {"depth": None, "module": None}) for layer in layers]
    depths = [place["depth"] for place in places]
    if None in depths or depths == layers:
        return dict(table)
    return {**table, "model_layer": depths, "module": [place["module"] for place in places]}


def csv_text(columns: Mapping[str, Any]) -> str:
    """A table as CSV with twelve digits, so equal numbers give equal bytes on every system.

    Text that a spreadsheet would run as a formula begins with an apostrophe.
    """
    import pandas as pd

    table = pd.DataFrame(dict(columns)).map(_harmless).rename(columns=_harmless)
    return str(table.to_csv(index=False, float_format="%.12g", lineterminator="\n"))


def _harmless(cell: Any) -> Any:
    """Anything but a string as it is; a string that is no formula in a spreadsheet."""
    if not isinstance(cell, str):
        return cell
    cell = cell.replace("\r", "\\r")  # which would begin a row for some readers
    if not cell.startswith(("=", "+", "-", "@", "\t")):
        return cell
    try:
        float(cell)
    except ValueError:
        return f"'{cell}"
    return cell


def joined(table: Mapping[str, Any], more: Mapping[str, Any]) -> dict[str, Any]:
    """All columns of one table, then the columns of another that the first lacks."""
    return {name: (table if name in table else more)[name] for name in dict.fromkeys([*table, *more])}


def network_measures(inputs: Sequence[MeasuredInput], consensus: Consensus, seed: int) -> dict[str, Any]:
    """Contents of measures.json."""
    first = inputs[0]
    measures: dict[str, Any] = {
        "network_entropy": {
            "raw": [item.network_entropy for item in inputs],
            "relative": [item.network_entropy_relative for item in inputs],
            "n_functions": first.network_functions,
        },
        "structure": {"n_functions": first.head_functions},
        "sparsity": _sparsity([item.sparsity for item in inputs]),
        "regularity": {
            f"median_exponent_{order}": [_finite(median_of(item.exponent[order])) for item in inputs]
            for order in first.exponent
        },
        "filled": [item.n_filled for item in inputs],
        "consensus": {
            "kind": consensus.kind,
            "n_inputs": consensus.n_inputs,
            "n_bootstrap": consensus.n_bootstrap,
            "n_folders": len(consensus.folders),
            "mean_support": _finite(np.mean(consensus.support)) if len(consensus.folders) else None,
            **_families(first.heads, consensus),
        },
    }
    if len(inputs) > 1 and len(first.heads) > 1:
        measures["stability"] = _stability(inputs, seed)
    known = [item.invariance for item in inputs if item.invariance is not None]
    if known:
        measures["invariance"] = _invariance(known)
    return measures


def _sparsity(inputs: Sequence[Sparsity]) -> dict[str, Any]:
    gains, curves = [item.gain for item in inputs], [list(item.by_order.values()) for item in inputs]
    return {
        "gain": gains,
        "median_gain": float(np.median(gains)),
        "n_for_90": [[curve.n_for_90 for curve in own] for own in curves],
        "n_for_99": [[curve.n_for_99 for curve in own] for own in curves],
        "orders": list(inputs[0].by_order),
        "n_coefficients": [own[0].n_coefficients for own in curves],
        "curves": [curves_to_dict(item.by_order) for item in inputs],
    }


def _invariance(inputs: Sequence[SoftmaxInvariance]) -> dict[str, Any]:
    """Summary of softmax invariance over the sampled heads of each input."""
    return {
        "heads": [str(head) for head in inputs[0].heads],
        "tolerance": inputs[0].tolerance,
        "n_overflow": [int(np.isnan(item.distance).sum()) for item in inputs],
        "share_holds": [float(np.mean(item.holds)) for item in inputs],
        "median_distance": [_finite(median_of(item.distance)) for item in inputs],
        "median_residual": [_finite(median_of(item.share_residual)) for item in inputs],
    }


def _stability(inputs: Sequence[MeasuredInput], seed: int) -> dict[str, Any]:
    found = stability([item.structure for item in inputs], heads=inputs[0].heads, rng=seed)
    table = [
        {key: str(value) if isinstance(value, HeadId) else value for key, value in line.items()}
        for line in found.table(_RECURRING)
    ]
    return {
        "mean_correlation": _finite(found.mean_correlation),
        "interval": [_finite(value) for value in found.interval],
        "confidence": found.confidence,
        "n_selected": found.n_selected,
        "correlations": [[_finite(value) for value in row] for row in found.correlations],
        "table": table,
        "top_count": found.top_counts.tolist(),
        "bottom_count": found.bottom_counts.tolist(),
    }


def _families(heads: Sequence[HeadId], consensus: Consensus) -> dict[str, Any]:
    """The families of heads, the share of heads they cover, and how well halves of the inputs agree on them."""
    main = consensus.families()
    return {
        "families": [
            {"heads": [str(heads[i]) for i in leaves], "support": _finite(support), "medoid": str(heads[medoid])}
            for leaves, support, medoid in zip(main.folders, main.support, main.medoid, strict=True)
        ],
        "coverage": main.coverage,
        "replication": None if main.replication is None else main.replication._asdict(),
        "growth": [step._asdict() for step in consensus.growth],
    }


def _ranks_in_tree(consensus: Consensus, coordinates: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Rank of each head in tree order."""
    order = consensus.tree.order(coordinates[:, 0])
    rank = np.empty(len(order), dtype=np.int64)
    rank[order] = np.arange(len(order))
    return rank


def _finite(value: Any) -> float | None:
    return float(value) if np.isfinite(value) else None
