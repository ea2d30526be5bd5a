"""What happens when heads are removed, in words: which criterion is better than which."""

from __future__ import annotations

import math

import numpy as np

from headtree.prune.curve import PruneCurve
from headtree.report.words.numbers import number_words
from headtree.section import Picture, Section, Table

#: The share of removed heads that the sentences are about.
_SHARE = 0.5

CALLED = {
    "effect": "effect",
    "gradient": "gradient E|g|",
    "compensated": "compensated cost",
    "confidence": "confidence",
    "shannon": "Shannon entropy",
    "haar_probs": "Haar entropy of probabilities",
    "haar_scores": "Haar entropy of scores",
    "output_norm": "output norm",
    "family": "families",
    "pairs": "matched pairs",
    "random": "random order",
}


def prune_section(found: PruneCurve, figures: tuple[str, ...] = ()) -> Section:
    """The measured curves in sentences and tables."""
    step = found.step_at(_SHARE)
    return Section(
        "What happens without the least important heads",
        [_setting(found), _at_half(found, step), *_comparisons(found, step), *_skipped(found)],
        [_table(found, step)],
        [
            Picture(file, "Increase of the loss, or accuracy, against the share of heads removed.")
            for file in figures
        ],
    )


def _setting(found: PruneCurve) -> str:
    again = "Heads were ranked again after every step." if found.iterative else "Heads were ranked once."
    fitted = (
        f" After each removal the output projections were fitted again on {found.n_calibration} other inputs."
        if found.n_calibration
        else ""
    )
    return (
        f"Heads were ranked on {found.n_ranking} inputs and removed in {len(found.counts) - 1} steps; the loss "
        f"({found.objective}) was measured on {found.n_test} other inputs. {again}{fitted}"
    )


def _loss_words(found: PruneCurve, loss: float) -> str:
    if "cross entropy of the next token" in found.objective:
        return f"{number_words(loss)} (perplexity {math.exp(loss):.1f})"
    return number_words(loss)


def _at_half(found: PruneCurve, step: int) -> str:
    names = sorted(found.losses, key=lambda name: float(found.loss(name)[step]))
    whole = float(found.loss(names[0])[0])
    listing = ", ".join(f"{CALLED[name]} {_loss_words(found, float(found.loss(name)[step]))}" for name in names)
    return (
        f"With all heads the loss is {_loss_words(found, whole)}. Without {found.counts[step]} of {found.n_heads} "
        f"heads it is, by criterion: {listing}."
    )


_OF_THE_BEST = {"ahead": "clearly ahead of", "behind": "clearly behind", "unclear": "not clearly different from"}
_OF_RANDOM = {"behind": "clearly better:", "ahead": "clearly worse:", "unclear": "not clearly different:"}


def _comparisons(found: PruneCurve, step: int) -> list[str]:
    """The best criterion against all others, and every criterion against a random order."""
    if found.n_test < 2:
        return ["A single test input gives no standard errors, so criteria are not compared."]
    names = sorted(found.losses, key=lambda name: float(found.loss(name)[step]))
    where = f"Without {100 * found.counts[step] / found.n_heads:.0f} % of the heads"
    said = []
    if len(names) > 1:
        ahead = _against(found, names[0], names[1:], step, _OF_THE_BEST)
        said.append(f"{where}, the best criterion is {CALLED[names[0]]}: {ahead}.")
    if "random" in names and len(names) > 2:
        others = [name for name in names if name != "random"]
        said.append(
            f"{where}, compared with a random order, {_against(found, 'random', others, step, _OF_RANDOM)}."
        )
    return said


def _against(found: PruneCurve, name: str, others: list[str], step: int, words: dict[str, str]) -> str:
    """Other criteria, by whether one is clearly ahead of them, clearly behind, or neither."""
    sides: dict[str, list[str]] = {side: [] for side in words}
    for other in others:
        pair = found.compare(name, other, step)
        by = f"{CALLED[other]} (by {_with_error(pair.difference, pair.error)})"
        side = "unclear" if not pair.is_clear else "ahead" if pair.better == name else "behind"
        sides[side].append(CALLED[other] if side == "unclear" else by)
    return "; ".join(f"{words[side]} {', '.join(listed)}" for side, listed in sides.items() if listed)


def _with_error(value: float, error: float) -> str:
    """A number and its standard error, both to the second digit of the error."""
    if not 1e-6 < error < 1:
        return f"{number_words(value)} ± {number_words(error)}"
    digits = 1 - math.floor(math.log10(error))
    return f"{value:.{digits}f} ± {error:.{digits}f}"


def _skipped(found: PruneCurve) -> list[str]:
    return [f"Not measured: {CALLED[name]}, because {why}." for name, why in found.skipped.items()]


def _table(found: PruneCurve, step: int) -> Table:
    has_accuracy = bool(found.correct)
    rows = []
    for name in found.losses:
        loss, error = found.loss(name)[step], found.error(name)[step]
        mean = float(np.average(found.loss(name)[1:]))
        row = [CALLED[name], loss, error, mean]
        rows.append([*row, float(found.correct[name][:, step].mean())] if has_accuracy else row)
    columns = [
        "criterion",
        "loss",
        "standard error",
        "mean over all steps",
        *(["accuracy"] if has_accuracy else []),
    ]
    caption = f"Loss without {found.counts[step]} of {found.n_heads} heads"
    return Table(caption, columns, sorted(rows, key=lambda row: row[1]))
