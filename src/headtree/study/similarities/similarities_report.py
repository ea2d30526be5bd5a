"""The comparison of similarities in words and tables: ``similarities.md`` and ``similarities.csv``."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Sequence

from headtree.study.similarities import similarity_settings as settings
from headtree.study.similarities.compare_similarities import CHOSEN, NetworkComparison, SimilarityResult
from headtree.study.similarities.geometries import PLAIN, WORDS
from headtree.study.similarities.halved_estimates import HalvedEstimate, MeanDifference
from headtree.study.similarities.prize_choice import prize_words, read_scores

#: Each question, by its key: what is asked, and the column of the tables.
QUESTIONS = {
    "tbe": ("Which tree do other inputs show again?", "TBE"),
    "ari": ("Which families do other inputs show again?", "ARI"),
    "function": ("Which knows what heads do, over all pairs of heads?", "function"),
    "within": ("Which knows what heads do, within layers?", "within layers"),
    "roles": ("Which agrees with roles?", "roles"),
}

_METHOD = (
    "*TBE*: how much of the folders of the tree of one half of the inputs the tree of the other half has (1: "
    f"all of it; {settings.HALVINGS} random divisions). *ARI*: adjusted Rand index of the families of two "
    f"disjoint halves, each found by `consensus(…).families()` alone ({settings.FAMILY_HALVINGS} divisions); "
    "*support* and *covered* are means over these halves. *Plain cut*: the same index if the average-linkage "
    f"tree of each half's mean affinity is cut into {settings.PLAIN_CLUSTERS} clusters, whatever they are. "
    "*Function*: rank correlation over pairs of heads "
    "with functional similarity, the correlation of what two heads change when each is ablated alone, on "
    "inputs apart from those on which heads are compared; over all pairs, and over pairs within a layer. "
    "*Families × function*: mean functional similarity within families over that of heads shuffled within "
    f"their layers, and z over {settings.SHUFFLES} shuffles. *Roles*: adjusted mutual information of families "
    "with roles and leanings (`head_roles`, on the same inputs). *ms*: processor time per input, without the "
    "capture of attention; where values are needed it includes tracing the model.\n\n"
    f"Intervals are 95 %, over inputs (random halves) and heads ({settings.HEAD_SAMPLES} random halves) "
    "together; `similarities.csv` has both standard errors. They do not include other texts for the "
    f"ablations. A difference is called clear from {settings.CLEAR:g} standard errors of the difference on; "
    "both similarities see the same halves."
)


def markdown_text(found: Sequence[NetworkComparison]) -> str:
    """The whole report."""
    lines = ["# Similarities of heads compared", "", _METHOD, "", "## Which is best for which question", ""]
    for question, (asked, _) in QUESTIONS.items():
        known = [network for network in found if _asked(network, question)]
        if known:
            lines += [f"**{asked}** " + " ".join(_sentences(known, question)), ""]
    for network in found:
        lines += [f"## {network.name}", "", *_about(network), "", *_table(network), ""]
    lines += ["## One similarity that is best in everything", "", *prize_lines(found)]
    return "\n".join(lines).rstrip() + "\n"


def words_of(name: str) -> str:
    """A similarity as people read it."""
    return f"{name} (candidate)" if name == CHOSEN else WORDS.get(name, name)


def _asked(network: NetworkComparison, question: str) -> bool:
    return all(question in result.answers for result in network.results.values())


def _sentences(networks: Sequence[NetworkComparison], question: str) -> list[str]:
    """The best on each network and in the mean over networks, each with its lead over the second."""
    said = []
    for network in networks:
        first, second = ranked(network, question)[:2]
        answers = {name: result.answers[question] for name, result in network.results.items()}
        lead = answers[first].minus(answers[second])
        said.append(
            f"{network.name}: {words_of(first)} ({_two(answers[first].value)}), "
            f"{_lead_words(lead.value, lead.error, lead.is_clear)} {words_of(second)}."
        )
    if len(networks) > 1:
        means = {
            name: sum(network.results[name].answers[question].value for network in networks) / len(networks)
            for name in networks[0].results
        }
        first, second = sorted(means, key=lambda name: -means[name])[:2]
        lead_of_mean = MeanDifference.of(
            [
                network.results[first].answers[question].minus(network.results[second].answers[question])
                for network in networks
            ]
        )
        said.append(
            f"Mean of {len(networks)} networks: {words_of(first)} ({_two(means[first])}), "
            f"{_lead_words(lead_of_mean.value, lead_of_mean.error, lead_of_mean.is_clear)} {words_of(second)}."
        )
    return said


def ranked(network: NetworkComparison, question: str, among: Sequence[str] | None = None) -> list[str]:
    """Similarities from the best to the worst in a question."""
    names = list(network.results) if among is None else list(among)
    return sorted(names, key=lambda name: -network.results[name].answers[question].value)


def _lead_words(value: float, error: float, is_clear: bool) -> str:
    size = f"{_two(value)} ± {_two(error)}"
    return f"clearly ahead, by {size}, of" if is_clear else f"not clearly ahead ({size}) of"


def _about(network: NetworkComparison) -> list[str]:
    text = f"{network.n_heads} heads, {network.n_inputs} inputs: {network.about}."
    if network.truth is None:
        return [f"{text} Function was not measured: {network.why_not}."]
    truth = network.truth
    return [
        f"{text} Function: {truth.what}. Its reliability between halves of these is {_two(truth.reliability)}, so "
        f"no similarity can be expected above {_two(truth.ceiling)}."
    ]


def _table(network: NetworkComparison) -> list[str]:
    columns = [column for question, (_, column) in QUESTIONS.items() if _asked(network, question)]
    questions = [question for question in QUESTIONS if _asked(network, question)]
    has_function = network.truth is not None
    extra = ["plain cut", "support", "covered", *(["families × function (z)"] if has_function else []), "ms"]
    lines = [
        "| similarity | " + " | ".join([*columns, *extra]) + " |",
        "|---" * (1 + len(columns) + len(extra)) + "|",
    ]
    for name, result in network.results.items():
        best = {question for question in questions if ranked(network, question)[0] == name}
        cells = [_cell(result.answers[question], question in best) for question in questions]
        lines.append("| " + " | ".join([words_of(name), *cells, *_extra(result, has_function)]) + " |")
    return lines


def _cell(answer: HalvedEstimate, is_best: bool) -> str:
    low, high = answer.interval
    value = f"**{_two(answer.value)}**" if is_best else _two(answer.value)
    return f"{value} [{_two(low)}, {_two(high)}]"


def _extra(result: SimilarityResult, has_function: bool) -> list[str]:
    ratio = f"{result.family_ratio:.1f} ({result.family_z:.1f})" if math.isfinite(result.family_ratio) else "–"
    return [
        _two(result.plain_ari),
        _two(result.support),
        f"{result.coverage:.0%}",
        *([ratio] if has_function else []),
        f"{result.milliseconds:.0f}",
    ]


def _two(value: float) -> str:
    """Two decimals, without the zero before the point."""
    if not math.isfinite(value):
        return "–"
    text = f"{value:.2f}"
    return "0" if text in ("0.00", "-0.00") else text.replace("0.", ".", 1) if abs(value) < 1 else text


# -- the candidate -------------------------------------------------------------------------------------------------


def prize_lines(found: Sequence[NetworkComparison]) -> list[str]:
    """What was tried and chosen on other inputs, and what these inputs confirm."""
    lines = [*prize_words(read_scores()), ""]
    rows, wins = [], []
    for network in found:
        for question in ("tbe", "function", "roles"):
            if not _asked(network, question):
                continue
            best = ranked(network, question, PLAIN)[0]
            answers = {name: result.answers[question] for name, result in network.results.items()}
            lead = answers[CHOSEN].minus(answers[best])
            wins.append(lead.value > 0)
            verdict = "clear" if lead.is_clear else "not clear"
            rows.append(
                f"| {network.name} | {QUESTIONS[question][1]} | {_two(answers[CHOSEN].value)} | {words_of(best)} "
                f"{_two(answers[best].value)} | {_two(lead.value)} ± {_two(lead.error)}, {verdict} |"
            )
    said = (
        "it is ahead of the best plain similarity in all of them."
        if wins and all(wins)
        else f"it is ahead of the best plain similarity in {sum(wins)} of {len(wins)}. No similarity that was "
        "tried is best in everything."
    )
    return [
        *lines,
        f"On the inputs reported here, which had no part in the choice, {said}",
        "",
        "| network | question | candidate | best plain | difference |",
        "|---|---|---|---|---|",
        *rows,
    ]


# -- csv -----------------------------------------------------------------------------------------------------------


def csv_text(found: Sequence[NetworkComparison]) -> str:
    """One row per network, similarity and number."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(["network", "similarity", "question", "value", "error_inputs", "error_heads", "low", "high"])
    for network in found:
        for name, result in network.results.items():
            for question, answer in result.answers.items():
                numbers = (answer.value, answer.error_inputs, answer.error_heads, *answer.interval)
                writer.writerow([network.name, name, question, *(f"{x:.6g}" for x in numbers)])
            for what in ("plain_ari", "support", "coverage", "family_ratio", "family_z", "milliseconds"):
                writer.writerow([network.name, name, what, f"{getattr(result, what):.6g}", "", "", "", ""])
        if network.truth is not None:
            writer.writerow([network.name, "", "reliability", f"{network.truth.reliability:.6g}", "", "", "", ""])
    return file.getvalue()
