"""`headtree reproduce`: the figures, tables and claims of [OA] on runs of some networks."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np

from headtree._files import checked_path, write_text
from headtree.errors import InvalidValueError
from headtree.measures.invariance import SoftmaxInvariance, softmax_invariance
from headtree.models.bundled.bundle import N_WORDS, NAMES, STAGES, load_bundled
from headtree.models.capture import capture
from headtree.pipeline.demo import demo_sources, pretrained_source
from headtree.pipeline.make_run import Say, make_run, redraw
from headtree.pipeline.model_source import ModelSource
from headtree.progress import progress
from headtree.questionnaire.organize import organize
from headtree.runs.folder import rewriting_run
from headtree.runs.organization_store import questionnaire_to_dict
from headtree.runs.run import Run, open_run
from headtree.study.cache import cached, origin_of
from headtree.study.claims.along_training import training_findings
from headtree.study.claims.catalogue import findings
from headtree.study.claims.evidence import ClaimNumbers, Evidence, measure_beyond
from headtree.study.claims.pairs import pair_findings
from headtree.study.claims.single_heads import SETTINGS, MatrixRegularity, matrix_regularity
from headtree.study.claims.verdict import Finding
from headtree.study.claims_report import NetworkResult, claims_section, markdown
from headtree.study.paper_figures import draw_claims

#: Sections of a run that are shown with its claims.
_SECTIONS = ("diagnostics", "sensitivity")

#: Number of inputs on which the stages of training are compared.
_TRAINING_INPUTS = 3


@dataclass(frozen=True)
class _Network:
    name: str
    run: Run  #: of the kind that the paper shows, scores or probabilities
    scores: Run | None  #: the run of scores, if there is one


def reproduce(
    networks: Sequence[str],
    folder: str | os.PathLike[str],
    *,
    n_inputs: int = 6,
    sensitivity: bool = False,
    say: Say | None = None,
) -> Path:
    """Make the runs that are missing, test the claims on them, draw the figures and write ``claims.md``.

    Parameters
    ----------
    networks : sequence of str
        ``bundled`` (both bundled networks), ``txl``, ``vit``, ``minilm``, or folders of runs.
    folder : path
        Where ``claims.md``, ``figures/``, ``runs/`` and ``measured/`` (the cached measurements) are written.
    n_inputs : int
        Inputs of each run that is made here.
    sensitivity : bool
        Whether to measure how sensitive the new runs are to every setting.
    say : function, optional
        Called with the name and seconds of each finished step.
    """
    target = checked_path(folder)
    target.mkdir(parents=True, exist_ok=True)
    chosen = _apart([_network(name, target, n_inputs, sensitivity, say) for name in _expanded(networks)])
    results = [_result(network, target) for network in chosen]
    write_text(target / "claims.md", markdown(results, _pairs(results)))
    for network, result in zip(chosen, results, strict=True):
        _add_section(network, result)
        redraw(network.run.path, say=_of_run(network.run.path, say))
    return target / "claims.md"


# -- runs --------------------------------------------------------------------------------------------------------


def _expanded(networks: Sequence[str]) -> list[str]:
    names: list[str] = []
    for name in networks:
        names += NAMES if name == "bundled" else [name]
    return list(dict.fromkeys(names))


def _network(name: str, target: Path, n_inputs: int, sensitivity: bool, say: Say | None) -> _Network:
    if Path(name).is_dir():
        run = open_run(name)
        if run.kind == "array":
            raise InvalidValueError(
                f"networks: {name} is a run of an array, which has no heads; pass runs of networks"
            )
        return _Network(run.name, run, run if run.kind == "scores" else None)
    source = _source(name, n_inputs)
    run = _made(source, target / "runs" / name, say, sensitivity)
    if source.kind == "scores":
        return _Network(name, run, run)
    return _Network(name, run, _made(replace(source, kind="scores"), target / "runs" / f"{name}-scores", say))


def _made(source: ModelSource, path: Path, say: Say | None, sensitivity: bool = False) -> Run:
    """A run as the paper has it: of raw scores, with what softmax cannot see."""
    raw = source.kind == "scores"
    return make_run(source, path, raw=raw, sensitivity=sensitivity, draw=False, say=_of_run(path, say))


def _of_run(path: Path, say: Say | None) -> Say | None:
    """`say` with the name of the run before the name of the step."""
    return None if say is None else lambda step, seconds: say(f"{path.name} {step}", seconds)


def _apart(networks: Sequence[_Network]) -> list[_Network]:
    """Networks with unique names: runs in different folders may have the same name."""
    seen: list[str] = []
    result = []
    for network in networks:
        seen.append(network.name)
        n = seen.count(network.name)
        result.append(network if n == 1 else replace(network, name=f"{network.name}-{n}"))
    return result


def _source(name: str, n_inputs: int) -> ModelSource:
    if name in NAMES:
        return demo_sources(n_inputs, tokens=N_WORDS)[name]
    if name == "minilm":
        return pretrained_source(n_inputs)
    raise InvalidValueError(
        f"networks must be bundled, txl, vit, minilm or folders of runs, got {name!r}; for any other model, "
        "make a run with headtree run and name its folder"
    )


# -- findings ----------------------------------------------------------------------------------------------------


def _result(network: _Network, target: Path) -> NetworkResult:
    measured = target / "measured" / network.name
    evidence = _evidence(network.run, measured)
    scores: tuple[Evidence, ...] = ()
    if network.scores is not None:
        scores = evidence if network.scores is network.run else _evidence(network.scores, measured)
    matrices = cached(
        measured / "matrices.json",
        [*origin_of(network.run), questionnaire_to_dict(SETTINGS)],
        MatrixRegularity,
        lambda: matrix_regularity(network.run.values[0]),
    )
    of_scores = {finding.claim.key: finding for finding in findings(network.name, scores)} if scores else {}
    found = [
        of_scores[finding.claim.key] if finding.note and finding.claim.key in of_scores else finding
        for finding in findings(network.name, evidence)
    ]
    found += matrices.findings(network.name)
    if network.name in NAMES and _is_own(network.run):
        found += training_findings(network.name, _stages(network.name, measured))
    figures = target / "figures"
    pictures = draw_claims(network.run, network.scores, evidence, scores, matrices, figures, network.name)
    sections = tuple(network.run.sections[name] for name in _SECTIONS if name in network.run.sections)
    return NetworkResult(
        name=network.name,
        about=_about(network),
        evidence=evidence,
        scores=scores,
        matrices=matrices,
        findings=tuple(found),
        pictures=pictures,
        sections=sections,
        overlap=network.run.tables["overlap"],
    )


def _evidence(run: Run, folder: Path) -> tuple[Evidence, ...]:
    found = []
    with progress(f"measuring {run.name}", run.n_inputs) as step:
        for i, measured in enumerate(run.measured):
            file = folder / f"{run.kind}-{i:05d}.json"
            compute = partial(_beyond, run, i, measured.head_functions)
            found.append(Evidence(measured, cached(file, [*origin_of(run), i], ClaimNumbers, compute)))
            step(f"input {i + 1} of {run.n_inputs}")
    return tuple(found)


def _beyond(run: Run, i: int, head_functions: int) -> ClaimNumbers:
    return measure_beyond(run.values[i], run.organization[i], head_functions)


def _pairs(results: Sequence[NetworkResult]) -> list[Finding]:
    """Compare the first two networks as in the paper, and, if both have scores, also on scores alone."""
    if len(results) < 2:
        return []
    first, second = results[:2]
    kinds = first.evidence[0].measured.kind, second.evidence[0].measured.kind
    names = f"{first.name} ({kinds[0]})", f"{second.name} ({kinds[1]})"
    found = pair_findings(names, first.evidence, second.evidence)
    if kinds == ("scores", "scores") or not (first.scores and second.scores):
        return found
    names = f"{first.name} (scores)", f"{second.name} (scores)"
    of_all_kinds = [finding for finding in found if not finding.note]  # the others need scores
    return [*of_all_kinds, *pair_findings(names, first.scores, second.scores)]


def _is_own(run: Run) -> bool:
    return str(run.record.settings.get("source", {}).get("model")) in NAMES


def _stages(name: str, folder: Path) -> list[list[SoftmaxInvariance]]:
    """Softmax invariance at every stage of training, from the initial weights to the final ones."""
    stages = []
    with progress(f"training of {name}", len(STAGES)) as step:
        for stage in STAGES:
            key = [name, stage, _TRAINING_INPUTS]
            stages.append(
                cached(folder / f"{stage}.json", key, list[SoftmaxInvariance], partial(_at_stage, name, stage))
            )
            step(stage)
    return stages


def _at_stage(name: str, stage: str) -> list[SoftmaxInvariance]:
    network = load_bundled(name, stage)
    atts = capture(network.model, inputs=list(network.inputs[:_TRAINING_INPUTS]), kind="scores")
    return [softmax_invariance(att, organize(att)) for att in atts]


def _about(network: _Network) -> str:
    run = network.run
    settings = ", ".join(f"{key} {value}" for key, value in run.record.settings["questionnaire"].items())
    heads, queries, keys = run.attention[0].shape
    model = run.record.settings.get("source", {}).get("model", network.name)
    of_raw = "raw scores, with the constants that softmax ignores, as in the paper"
    if network.scores is None:
        claims = f"All claims concern {run.values_words}."
    elif network.scores is run:
        claims = f"All claims concern {of_raw if run.values_words == 'raw scores' else run.values_words}."
    else:
        claims = f"Claims about the input of softmax concern {of_raw}; all others concern {run.values_words}."
    return (
        f"{Path(str(model)).name}: {run.values_words} of {heads} heads, {queries} × {keys} tokens, {run.n_inputs} "
        f"inputs. {claims}{_about_mask(run)} Questionnaire: {settings}."
    )


def _about_mask(run: Run) -> str:
    mask = run.attention[0].load().mask
    if mask is None:
        return ""
    value = "the mean of the rest of their row" if run.kind == "scores" else "0"
    return (
        f" {np.asarray(mask).mean():.0%} of the entries are masked. They are missing for the questionnaire and the "
        f"diagnostics; bases and the decomposition of softmax need a full matrix, in which they are {value}."
    )


def _add_section(network: _Network, result: NetworkResult) -> None:
    """Write the claims into the run folder, without the figures, which are stored beside claims.md."""
    name = "sections/claims.json"
    with rewriting_run(network.run.path) as writer, writer.step("claims", (name,)):
        writer.write_text(name, claims_section(replace(result, pictures=())).to_json())
