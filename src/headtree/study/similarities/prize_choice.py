"""The candidate that was chosen as one similarity for everything, and what all of them scored on other inputs.

The rule was fixed before any candidate was measured: in each network and each question (TBE, function, roles) a
candidate's margin is its score minus that of the best plain similarity; the candidate whose smallest margin is
largest is chosen. `headtree.study.similarities.prize` measures the scores and stores them in ``candidates.csv``.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping
from pathlib import Path

from headtree._files import write_text
from headtree.study.similarities.geometries import PLAIN, WORDS
from headtree.study.similarities.variants import VARIANTS

#: The scores of all candidates and plain similarities.
FILE = Path(__file__).with_name("candidates.csv")

Scores = Mapping[tuple[str, str], float]  #: by network and question


def write_scores(path: Path, scores: Mapping[str, Scores]) -> None:
    """Store what every similarity scored, a row for each."""
    keys = list(next(iter(scores.values())))
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(["similarity", *(" ".join(key) for key in keys)])
    for name, found in scores.items():
        writer.writerow([name, *(f"{found[key]:.4f}" for key in keys)])
    write_text(path, file.getvalue())


def read_scores(path: Path = FILE) -> dict[str, dict[tuple[str, str], float]]:
    """Read what `write_scores` stored."""
    rows = list(csv.reader(io.StringIO(path.read_text(encoding="utf-8"))))
    keys = [(network, question) for network, question in (title.split(" ", 1) for title in rows[0][1:])]
    return {name: dict(zip(keys, map(float, values), strict=True)) for name, *values in rows[1:]}


def best_plain(scores: Mapping[str, Scores], key: tuple[str, str]) -> str:
    """The plain similarity that is best in a question on a network."""
    return max(PLAIN, key=lambda plain: scores[plain][key])


def margins(scores: Mapping[str, Scores]) -> dict[str, float]:
    """The smallest margin of each candidate over the best plain similarity."""
    best = {key: scores[best_plain(scores, key)][key] for key in scores[PLAIN[0]]}
    return {name: min(scores[name][key] - best[key] for key in best) for name in VARIANTS}


def choose(scores: Mapping[str, Scores]) -> str:
    """The candidate whose smallest margin is largest; of equals, the first listed."""
    found = margins(scores)
    return max(found, key=lambda name: found[name])


def prize_words(scores: Mapping[str, Scores]) -> list[str]:
    """What was tried and chosen, on what, and what everything scored there."""
    chosen, smallest = choose(scores), margins(scores)
    found = ", ".join(
        f"{network} {question} {scores[chosen][network, question] - scores[best][network, question]:+.2f} ({best})"
        for (network, question), best in ((key, best_plain(scores, key)) for key in scores[chosen])
    )
    n_ahead = sum(margin > 0 for margin in smallest.values())
    ahead = "none was" if n_ahead == 0 else f"{n_ahead} {'was' if n_ahead == 1 else 'were'}"
    words = (
        f"{len(VARIANTS)} candidates were tried: weighted sums of kernels of attention (P, cosines; S, roots), of "
        "values (V), of outputs (O), of attention times values (J), and of tree distances (T, of probabilities; U, "
        "of values, on the questionnaire's own trees), alone or mixed with the Hellinger affinity. They were "
        "compared on WikiText-2's validation text and on CIFAR-10 test pictures that are no samples; "
        f"{ahead} ahead of the best plain similarity in every question and network there. The rule was fixed "
        f"before: the candidate whose smallest margin is largest. It is **{chosen}**, with the margins {found}. "
        "The function of vit had no part in the choice. All scores on those inputs, candidates by their smallest "
        "margin; roles are held against the best level of the tree here:"
    )
    keys = list(scores[chosen])
    rows = [
        "| similarity | " + " | ".join(" ".join(key) for key in keys) + " | smallest margin |",
        "|---" * (len(keys) + 2) + "|",
    ]
    for name in (*PLAIN, *sorted(smallest, key=lambda name: -smallest[name])):
        cells = [f"{scores[name][key]:.3f}" for key in keys]
        margin = f"{smallest[name]:+.3f}" if name in smallest else "–"
        rows.append("| " + " | ".join([WORDS.get(name, name), *cells, margin]) + " |")
    return [words, "", *rows]
