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


def _comparisons(found: PruneCurve, step: int) -> list[str]:
    """For each criterion, which others it is better than at the step, beyond two paired standard errors."""
    if found.n_test < 2:
        return ["A single test input gives no standard errors, so criteria are not compared."]
    names = sorted(found.losses, key=lambda name: float(found.loss(name)[step]))
    sentences = []
    for i, name in enumerate(names[:-1]):
        pairs = [found.compare(name, other, step) for other in names[i + 1 :]]
        clear = [f"{CALLED[p.worse]} ({_signed(p.difference, p.error)})" for p in pairs if p.is_clear]
        unclear = [CALLED[other] for p, other in zip(pairs, names[i + 1 :], strict=True) if not p.is_clear]
        beats = f"is better than {', '.join(clear)}" if clear else "is not clearly better than any other"
        open_ = f"; not clearly different from {', '.join(unclear)}" if clear and unclear else ""
        sentences.append(f"{CALLED[name].capitalize()} {beats}{open_}.")
    return [f"At {found.counts[step] / found.n_heads:.0%} of heads removed: " + " ".join(sentences)]


def _signed(difference: float, error: float) -> str:
    return f"by {number_words(difference)} ± {number_words(error)}"


def _skipped(found: PruneCurve) -> list[str]:
    return [f"Not measured: {CALLED[name]}, because {why}" for name, why in found.skipped.items()]


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
