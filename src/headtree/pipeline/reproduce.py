"""`headtree reproduce`: the figures, tables and claims of [OA] on runs of some networks."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from headtree.attention.capture import capture
from headtree.attention.paths import checked_path
from headtree.claims.catalogue import findings
from headtree.claims.evidence import Evidence, evidence_of
from headtree.claims.matrices import matrix_regularity
from headtree.claims.pairs import pair_findings
from headtree.claims.training import training_findings
from headtree.claims.verdict import Finding
from headtree.errors import InvalidValueError
from headtree.measures.invariance import SoftmaxInvariance, softmax_invariance
from headtree.networks.load import STAGES, load_bundled
from headtree.pipeline.demo import demo_sources, pretrained_source
from headtree.pipeline.make import Say, make_run, redraw
from headtree.pipeline.models import BUNDLED, ModelSource
from headtree.pipeline.workplace import reopened
from headtree.progress import progress
from headtree.questionnaire.organize import organize
from headtree.report.claims import NetworkResult, markdown, section_of
from headtree.report.claims_figures import draw_claims
from headtree.runs.run import Run, open_run

#: Lines between which `into` replaces the text of a document.
BEGIN, END = "<!-- claims: begin -->", "<!-- claims: end -->"

#: Inputs on which the stages of training are compared.
_TRAINING_INPUTS = 3


@dataclass(frozen=True)
class _Network:
    name: str
    run: Run  #: of the kind that the paper shows
    scores: Run | None  #: of scores


def reproduce(
    networks: Sequence[str], folder: str | os.PathLike[str], *, n_inputs: int = 6, say: Say | None = None
) -> Path:
    """Make the runs that are missing, test the claims on them, draw the figures and write ``claims.md``.

    Parameters
    ----------
    networks : sequence of str
        ``bundled`` (both that come with headtree), ``txl``, ``vit``, ``minilm``, or folders of runs.
    folder : path
        Gets ``claims.md``, ``figures/`` and ``runs/``.
    n_inputs : int
        Inputs of each run that is made here.
    say : function, optional
        Told each step's name and seconds.
    """
    target = checked_path(folder)
    target.mkdir(parents=True, exist_ok=True)
    chosen = [_network(name, target, n_inputs, say) for name in _expanded(networks)]
    results = [_result(network, target / "figures") for network in chosen]
    text = markdown(results, _pairs(results))
    (target / "claims.md").write_text(text, encoding="utf-8")
    for network, result in zip(chosen, results, strict=True):
        _add_section(network, result)
        redraw(network.run.path, say=say)
    return target / "claims.md"


def into(document: Path, claims: Path) -> None:
    """Replace the part of a Markdown document between two marks by the claims, without figures.

    Headings come one level down.
    """
    text = document.read_text(encoding="utf-8")
    if BEGIN not in text or END not in text:
        raise InvalidValueError(f"{document} must have the lines {BEGIN!r} and {END!r}, between which claims go")
    paragraphs = claims.read_text(encoding="utf-8").strip().split("\n\n")
    after_figure = {i + 1 for i, paragraph in enumerate(paragraphs) if paragraph.startswith("![")}
    kept = [
        f"#{paragraph}" if paragraph.startswith("#") else paragraph
        for i, paragraph in enumerate(paragraphs)
        if not paragraph.startswith("![") and i not in after_figure
    ]
    body = "\n\n".join(kept)
    before, after = text.split(BEGIN)[0], text.split(END)[1]
    document.write_text(f"{before}{BEGIN}\n\n{body}\n\n{END}{after}", encoding="utf-8")


# -- runs --------------------------------------------------------------------------------------------------------


def _expanded(networks: Sequence[str]) -> list[str]:
    names: list[str] = []
    for name in networks:
        names += BUNDLED if name == "bundled" else [name]
    return list(dict.fromkeys(names))


def _network(name: str, target: Path, n_inputs: int, say: Say | None) -> _Network:
    if Path(name).is_dir():
        run = open_run(name)
        if run.kind == "array":
            raise InvalidValueError(
                f"networks: {name} is a run of an array, which has no heads; pass runs of networks"
            )
        return _Network(run.name, run, run if run.kind == "scores" else None)
    source = _source(name, n_inputs)
    run = make_run(source, target / "runs" / name, draw=False, say=say)
    if source.kind == "scores":
        return _Network(name, run, run)
    scores = make_run(replace(source, kind="scores"), target / "runs" / f"{name}-scores", draw=False, say=say)
    return _Network(name, run, scores)


def _source(name: str, n_inputs: int) -> ModelSource:
    if name in BUNDLED:
        return demo_sources(n_inputs)[name]
    if name == "minilm":
        return pretrained_source(n_inputs)
    raise InvalidValueError(
        f"networks must be bundled, txl, vit, minilm or folders of runs, got {name!r}; make a run of any other "
        "model "
        "with headtree run and name its folder"
    )


# -- findings ----------------------------------------------------------------------------------------------------


def _result(network: _Network, figures: Path) -> NetworkResult:
    evidence = _evidence(network.run)
    scores = (
        evidence if network.scores is network.run else () if network.scores is None else _evidence(network.scores)
    )
    matrices = matrix_regularity(network.run.attention[0])
    of_scores = {finding.claim.key: finding for finding in findings(network.name, scores)} if scores else {}
    found = [
        of_scores[finding.claim.key] if finding.note and finding.claim.key in of_scores else finding
        for finding in findings(network.name, evidence)
    ]
    found += matrices.findings(network.name)
    if network.name in BUNDLED and _is_own(network.run):
        found += training_findings(network.name, _stages(network.name))
    pictures = draw_claims(network.run, network.scores, evidence, scores, matrices, figures, network.name)
    return NetworkResult(network.name, _about(network), evidence, scores, matrices, tuple(found), pictures)


def _evidence(run: Run) -> tuple[Evidence, ...]:
    found = []
    with progress(f"measuring {run.name}", run.n_inputs) as step:
        for i in range(run.n_inputs):
            found.append(evidence_of(run.attention[i].load(), run.organization[i]))
            step(f"input {i + 1} of {run.n_inputs}")
    return tuple(found)


def _pairs(results: Sequence[NetworkResult]) -> list[Finding]:
    """The first two networks; also in scores alone, where both have them and the paper compares other kinds."""
    if len(results) < 2:
        return []
    first, second = results[:2]
    kinds = first.evidence[0].kind, second.evidence[0].kind
    names = f"{first.name} ({kinds[0]})", f"{second.name} ({kinds[1]})"
    found = pair_findings(names, first.evidence, second.evidence)
    if kinds == ("scores", "scores") or not (first.scores and second.scores):
        return found
    names = f"{first.name} (scores)", f"{second.name} (scores)"
    return [*found, *pair_findings(names, first.scores, second.scores)]


def _is_own(run: Run) -> bool:
    return str(run.record.settings.get("source", {}).get("model")) in BUNDLED


def _stages(name: str) -> list[list[SoftmaxInvariance]]:
    """Softmax invariance at every stage of training, from the first weights to the last."""
    stages = []
    with progress(f"training of {name}", len(STAGES)) as step:
        for stage in STAGES:
            network = load_bundled(name, stage)
            atts = capture(network.model, inputs=list(network.inputs[:_TRAINING_INPUTS]), kind="scores")
            stages.append([softmax_invariance(att, organize(att)) for att in atts])
            step(stage)
    return stages


def _about(network: _Network) -> str:
    run = network.run
    settings = ", ".join(f"{key} {value}" for key, value in run.record.settings["questionnaire"].items())
    heads, queries, keys = run.attention[0].shape
    model = run.record.settings.get("source", {}).get("model", network.name)
    also = "" if network.scores is run else "; scores for what is inside softmax" if network.scores else ""
    return (
        f"{Path(str(model)).name}: {run.kind} of {heads} heads, {queries} × {keys} tokens, {run.n_inputs} "
        f"inputs{also}. "
        f"Questionnaire: {settings}."
    )


def _add_section(network: _Network, result: NetworkResult) -> None:
    """Write the claims into the run's folder, without the figures, which stand beside claims.md."""
    with reopened(network.run.path) as place:
        place.write_text("sections/claims.json", section_of(replace(result, pictures=())).to_json())
