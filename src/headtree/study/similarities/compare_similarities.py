"""`headtree reproduce --similarities`: every similarity of heads × replication, function, roles and cost."""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from headtree._files import checked_path, write_text
from headtree._version import __version__
from headtree.geometry.combined_affinity import InputMatrices
from headtree.measures.heads.roles import head_roles
from headtree.models.bundled.bundle import NAMES
from headtree.pipeline.make_run import Say
from headtree.study.cache import cached
from headtree.study.similarities import similarity_settings as settings
from headtree.study.similarities.evidence_networks import EvidenceNetwork, check_network, evidence_network
from headtree.study.similarities.functional_truth import FunctionalTruth
from headtree.study.similarities.geometries import FUNCTION, PLAIN, QUESTIONNAIRES, TREES, Geometry, geometry
from headtree.study.similarities.halved_estimates import HalvedEstimate
from headtree.study.similarities.predicted_function import family_function, function_agreement
from headtree.study.similarities.prize_choice import choose, read_scores
from headtree.study.similarities.replication import (
    FamilyReplication,
    family_agreement,
    family_replication,
    tree_replication,
)
from headtree.study.similarities.roles_agreement import role_agreement
from headtree.study.similarities.vit_effects import read_truth, write_truth

#: The candidate for the best of all that was chosen on other inputs.
CHOSEN = choose(read_scores())

#: All similarities that are compared; the last two are candidates for the best of all.
SIMILARITIES: tuple[str, ...] = tuple(dict.fromkeys((*PLAIN, FUNCTION, *QUESTIONNAIRES, TREES, CHOSEN)))


@dataclass(frozen=True, eq=False)
class SimilarityResult:
    """What one similarity scores on one network."""

    answers: Mapping[str, HalvedEstimate]  #: by question; a question that cannot be asked is left out
    plain_ari: float  #: of clusters of a plain tree, the baseline of "ari"
    support: float
    coverage: float
    family_ratio: float  #: functional similarity within families over that of heads shuffled within layers
    family_z: float
    milliseconds: float


@dataclass(frozen=True, eq=False)
class NetworkComparison:
    """All similarities on one network."""

    name: str
    about: str
    n_heads: int
    n_inputs: int
    truth: FunctionalTruth | None
    why_not: str
    results: Mapping[str, SimilarityResult]


def compare(
    networks: Sequence[str],
    folder: str | os.PathLike[str],
    *,
    pictures: Path | None = None,
    device: str = "cpu",
    say: Say | None = None,
) -> list[NetworkComparison]:
    """Compare all similarities on each network; what was measured before is read from ``measured/``."""
    target = checked_path(folder)
    names: list[str] = []
    for name in networks:
        names += NAMES if name == "bundled" else [name]
    for name in names:
        check_network(name)
    target.mkdir(parents=True, exist_ok=True)
    return [
        compare_on(evidence_network(name, pictures, device), target / "measured" / name, say)
        for name in dict.fromkeys(names)
    ]


def compare_on(
    network: EvidenceNetwork, folder: Path, say: Say | None = None, similarities: Sequence[str] = SIMILARITIES
) -> NetworkComparison:
    """Compare similarities on one network."""
    given = [dict(item) for item in network.inputs]
    atts = network.view.capture(inputs=given, kind="probs")
    layers = [head.layer for head in atts[0].heads]
    roles = head_roles(atts).leanings
    key = _key(network)
    truth = _truth(network, folder, say)
    results = {}
    for name in similarities:
        start = time.perf_counter()
        results[name] = _result(name, network, folder / _file_name(name), key, truth, layers, roles)
        if say is not None:
            say(f"{network.name} {name}", time.perf_counter() - start)
    return NetworkComparison(network.name, network.about, len(layers), len(given), truth, network.why_not, results)


def _result(
    name: str,
    network: EvidenceNetwork,
    file: Path,
    key: list[Any],
    truth: FunctionalTruth | None,
    layers: Sequence[int],
    roles: Sequence[str],
) -> SimilarityResult:
    found = _stored(file.with_suffix(".npz"), [key, name], name, network)
    families = cached(
        file.with_suffix(".json"),
        [key, name, settings.BOOTSTRAP, settings.FAMILY_HALVINGS, settings.SEED],
        FamilyReplication,
        lambda: family_replication(found.inputs),
    )
    answers = {"tbe": tree_replication(found.inputs), "ari": family_agreement(families)}
    ratio = z = float("nan")
    if truth is not None:
        answers["function"] = function_agreement(found.inputs, truth, layers, within_layers=False)
        answers["within"] = function_agreement(found.inputs, truth, layers, within_layers=True)
        of_families = family_function(families.families, truth, layers)
        ratio, z = of_families.ratio, of_families.z
    of_roles = role_agreement(families, roles)
    if of_roles is not None:
        answers["roles"] = of_roles
    return SimilarityResult(
        answers, families.plain, families.support, families.coverage, ratio, z, found.milliseconds
    )


def _truth(network: EvidenceNetwork, folder: Path, say: Say | None) -> FunctionalTruth | None:
    """The functional similarity of heads: as stored, as measured now, or None."""
    file = folder / "effects.npz"  # no similarity has this name
    if file.is_file():
        return read_truth(file)
    if network.measure_function is None:
        return None
    start = time.perf_counter()
    truth = network.measure_function()
    write_truth(file, truth)
    if say is not None:
        say(f"{network.name} ablating heads", time.perf_counter() - start)
    return truth


def _key(network: EvidenceNetwork) -> list[Any]:
    """What distinguishes the inputs of a network from all others."""
    digest = hashlib.sha256()
    for item in network.inputs:
        for name in sorted(item):
            digest.update(name.encode() + np.ascontiguousarray(item[name].numpy()).tobytes())
    return [network.name, digest.hexdigest()]


def _file_name(name: str) -> str:
    return "".join(letter if letter.isalnum() else "-" for letter in name)


def _stored(path: Path, key: list[Any], name: str, network: EvidenceNetwork) -> Geometry:
    """The matrices of a similarity, from a file if they are of the same inputs."""
    origin = json.dumps([key, __version__])
    try:
        with np.load(path) as file:
            if str(file["origin"]) == origin:
                inputs = InputMatrices(np.ascontiguousarray(file["parts"]), bool(file["is_kernel"]))
                return Geometry(inputs, float(file["milliseconds"]))
    except (OSError, ValueError, KeyError):
        pass  # missing or unreadable
    found = geometry(name, network)
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(
        path,
        origin=np.array(origin),
        parts=found.inputs.parts,
        is_kernel=np.array(found.inputs.is_kernel),
        milliseconds=np.array(found.milliseconds),
    )
    return found


def write_similarities(found: Sequence[NetworkComparison], folder: Path) -> Path:
    """Write ``similarities.md`` and ``similarities.csv``; returns the first."""
    from headtree.study.similarities.similarities_report import csv_text, markdown_text

    write_text(folder / "similarities.csv", csv_text(found))
    write_text(folder / "similarities.md", markdown_text(found))
    return folder / "similarities.md"
