"""What a run found, in sentences: the terminal's summary and the top of the page say the same.

Every number that is about some of the heads names them, so that a page can select them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from headtree.measures.heads.roles import WORDS
from headtree.report.words.folder_words import folder_words
from headtree.report.words.numbers import number_words
from headtree.report.words.similarity_words import heads_that
from headtree.report.words.slice_words import said_of
from headtree.runs.run import Run
from headtree.tensor.attention_tensor import HeadId

#: Share of attention to what followed the earlier copy from which a head is an induction head: that of a role.
_INDUCTION = 0.4

#: With fewer inputs, two halves of them hardly ever show the same families.
_ENOUGH_INPUTS = 10

#: Mean support below which more inputs help. In 18 draws of 10 or 20 inputs of txl, ViT and MiniLM, each held
#: against twice as many, support or coverage then rose by 0.05 or more in 11 of 12 draws; above, both sets had
#: nearly the same families (an adjusted Rand index of 0.92 or more in 6 of 6). The growth up to there told nothing.
#: (Support was then of families whose folders were not tested given others: up to 0.05 less than theirs on these.)
_ENOUGH_SUPPORT = 0.8

#: Reliability from which the order of heads by effect says something.
_RELIABLE = 0.4

#: With fewer heads, none is unusual.
_ENOUGH_HEADS = 12

#: A head is unusual if its nearest neighbour is farther from the median than this many interquartile ranges, as
#: estimated from the lower half.
_FAR = 3.0

_SHOWN = 3


@dataclass(frozen=True)
class Phrase:
    """A part of a sentence, and the heads it is about, if it is about some of them."""

    text: str
    heads: tuple[str, ...] = ()


@dataclass(frozen=True)
class Answer:
    """A sentence or two on one subject.

    Subjects are "roles", "induction", "families", "family" (one of them), "effects", "inputs", "ranking",
    "unusual" and "sparsity".
    """

    about: str
    phrases: tuple[Phrase, ...]

    @property
    def text(self) -> str:
        """All of it as plain text."""
        return "".join(phrase.text for phrase in self.phrases)

    def to_dict(self) -> dict[str, Any]:
        """The answer as plain data."""
        phrases = [{"text": phrase.text, "heads": list(phrase.heads)} for phrase in self.phrases]
        return {"about": self.about, "text": self.text, "phrases": phrases}


def answers(run: Run) -> list[Answer]:
    """What a run of a network found, the most useful first.

    Parameters
    ----------
    run : Run
        A run of a network whose steps up to the diagnostics are done.
    """
    found = [
        _roles(run.heads),
        _induction(run.heads),
        *_families(run),
        _effects(run),
        _growth(run),
        _ranking(run),
        _unusual(run),
        _sparsity(run),
    ]
    slices = run.slices
    return [_said_of(slices, answer) for answer in found if answer is not None]


def _said_of(slices: str, answer: Answer) -> Answer:
    return Answer(answer.about, tuple(Phrase(said_of(slices, part.text), part.heads) for part in answer.phrases))


def _answer(about: str, *phrases: str | Phrase) -> Answer:
    return Answer(about, tuple(Phrase(part) if isinstance(part, str) else part for part in phrases))


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def _one(name: str) -> Phrase:
    return Phrase(name, (name,))


def _count(heads: Sequence[str]) -> Phrase:
    return Phrase(f"{len(heads)} head{'s' * (len(heads) != 1)}", tuple(heads))


def _joined(parts: Iterable[tuple[str | Phrase, ...]], between: str = "; ") -> list[str | Phrase]:
    """Groups of phrases with something between them."""
    result: list[str | Phrase] = []
    for i, part in enumerate(parts):
        result += [between, *part] if i else [*part]
    return result


# -- roles and induction ---------------------------------------------------------------------------------


def head_roles_of(table: Any) -> list[str]:
    """The role of each head in the table of heads; "" for none."""
    if "role" not in table:
        return [""] * len(table)
    return [role if isinstance(role, str) else "" for role in table["role"]]


def roles_found(table: Any) -> list[dict[str, Any]]:
    """Each role with its heads, the strongest head and its share of attention; the most frequent role first."""
    roles, names = head_roles_of(table), [str(name) for name in table["name"]]
    column_of = {words: column for column, words in WORDS.items()}
    found = []
    for role, n in sorted(Counter(filter(None, roles)).items(), key=lambda pair: (-pair[1], pair[0])):
        own = [i for i, name in enumerate(roles) if name == role]
        column = column_of.get(role, "")
        shares = table[column].to_numpy(dtype=float) if column in table else np.full(len(table), np.nan)
        best = max(own, key=lambda i: (np.nan_to_num(shares[i], nan=-1.0), -i))
        share = float(shares[best]) if np.isfinite(shares[best]) else None
        found.append(
            {"role": role, "n_heads": n, "heads": [names[i] for i in own], "strongest": names[best], "share": share}
        )
    return found


def _roles(table: Any) -> Answer | None:
    if "role" not in table:
        return None
    found = roles_found(table)
    others = _leaning(table)
    if not found:
        text = "No head has a role: none gives most of its attention to one kind of token."
        return _answer("roles", text, *others)
    having = [name for row in found for name in row["heads"]]
    parts: list[tuple[str | Phrase, ...]] = []
    for i, row in enumerate(found):
        whole = " of its attention" if i == 0 else ""
        share = "" if row["share"] is None else f", {_percent(row['share'])}{whole}"
        many = (_count(row["heads"]), "; strongest ") if row["n_heads"] > 1 else ()
        parts.append((f"{row['role']} (", *many, _one(row["strongest"]), f"{share})"))
    verb = "has" if len(having) == 1 else "have"
    return _answer(
        "roles",
        Phrase(f"{len(having)} of {len(table)} heads", tuple(having)),
        f" {verb} a role: ",
        *_joined(parts, ", "),
        ".",
        *others,
    )


def _leaning(table: Any) -> list[str | Phrase]:
    """Heads without a role that lean to one, most frequent first."""
    roles, names = head_roles_of(table), [str(name) for name in table["name"]]
    leanings = [word if isinstance(word, str) else "" for word in table.get("leaning", [""] * len(table))]
    leaning = {name: word for name, word, role in zip(names, leanings, roles, strict=True) if word and not role}
    if not leaning:
        return []
    counts = sorted(Counter(leaning.values()).items(), key=lambda pair: (-pair[1], pair[0]))
    parts: list[tuple[str | Phrase, ...]] = [
        (f"{word} (", Phrase(str(n), tuple(name for name, own in leaning.items() if own == word)), ")")
        for word, n in counts
    ]
    n = len(leaning)
    many = f"{n} {'other' if any(roles) else 'head'}{'s lean' if n > 1 else ' leans'} to a role"
    chance = "with more than three times the share expected by chance"
    return [" ", Phrase(many, tuple(leaning)), f", {chance}: ", *_joined(parts, ", "), "."]


def induction_found(table: Any) -> dict[str, Any] | None:
    """The induction heads, strongest first, and the head that comes closest; None if it was not measured."""
    if "prefix_matching" not in table or not table["prefix_matching"].notna().any():
        return None
    falling = table.sort_values("prefix_matching", ascending=False, kind="stable")
    best = falling.iloc[0]
    copying = float(best["copying"]) if "copying" in table and np.isfinite(best["copying"]) else None
    clear = falling[falling["prefix_matching"] >= _INDUCTION]
    return {
        "heads": [str(name) for name in clear["name"]],
        "strongest": str(best["name"]),
        "prefix_matching": float(best["prefix_matching"]),
        "copying": copying,
    }


def _induction(table: Any) -> Answer | None:
    found = induction_found(table)
    if found is None:
        return None
    copying = "" if found["copying"] is None else f" (copying {found['copying']:.2f})"
    share = (
        f"where random tokens are repeated, {_percent(found['prefix_matching'])} of its attention goes to the "
        f"token after the earlier copy{copying}"
    )
    best = _one(found["strongest"])
    if not found["heads"]:
        return _answer("induction", "No head is an induction head. ", best, f" comes closest: {share}.")
    n = len(found["heads"])
    words = f"{n} induction head{'s' * (n > 1)}"
    return _answer(
        "induction",
        Phrase(words, tuple(found["heads"])),
        ", the strongest " if n > 1 else ", ",
        best,
        f": {share}.",
    )


# -- families --------------------------------------------------------------------------------------------


def families_found(run: Run) -> list[dict[str, Any]]:
    """The families of heads: size, support, medoid, layers, and in words what they do."""
    table = run.heads
    index = {str(name): i for i, name in enumerate(table["name"])}
    ids = [HeadId(int(a), int(b)) for a, b in zip(table["layer"], table["head"], strict=True)]
    roles = head_roles_of(table)
    leanings = [word if isinstance(word, str) else "" for word in table.get("leaning", [""] * len(table))]
    found = []
    for i, family in enumerate(run.measures.consensus.families):
        leaves = [index[name] for name in family.heads]
        layers = [ids[leaf].layer for leaf in leaves]
        found.append(
            {
                "family": i,
                "size": len(leaves),
                "support": family.support,
                "medoid": family.medoid,
                "layers": [min(layers), max(layers)],
                "words": folder_words(leaves, ids, roles)
                + _leaning_words([leanings[leaf] for leaf in leaves], [roles[leaf] for leaf in leaves])
                + _pattern_words(table, leaves),
                "heads": list(family.heads),
            }
        )
    return found


def _leaning_words(leanings: Sequence[str], roles: Sequence[str]) -> str:
    """What heads without a role lean to, if it is the same for most of them."""
    without = [leaning for leaning, role in zip(leanings, roles, strict=True) if not role]
    counts = Counter(filter(None, without))
    if 2 * len(without) < len(roles) or not counts:
        return ""
    word, n = min(counts.items(), key=lambda pair: (-pair[1], pair[0]))
    return f", {n} leaning to {word}" if n > 1 and 2 * n >= len(without) else ""


def _pattern_words(table: Any, leaves: Sequence[int]) -> str:
    """How sharp their attention is."""
    if "confidence" not in table:
        return ""
    return f", mean confidence {table['confidence'].to_numpy(dtype=float)[list(leaves)].mean():.2f}"


def _families(run: Run) -> list[Answer]:
    about, n_inputs = run.measures.consensus, run.n_inputs
    who = heads_that(str(about.kind), run.values_words)
    if n_inputs == 1:
        text = (
            "Whether groups of heads replicate is unknown: one input has no support. Families need several inputs."
        )
        return [_answer("families", text)]
    few = (
        f" {n_inputs} inputs are too few to trust this: {_ENOUGH_INPUTS} or more are needed."
        if n_inputs < _ENOUGH_INPUTS
        else ""
    )
    found = families_found(run)
    if about.n_folders == 0 and len(run.heads) > 2:
        return [_answer("families", "There is nothing to group: all heads are equally alike on these inputs.")]
    if not found:
        text = f"No group of heads replicates: no set of {who} is found again on other inputs beyond chance.{few}"
        return [_answer("families", text)]
    covered = tuple(name for family in found for name in family["heads"])
    replication = about.replication
    again = (
        ""
        if replication is None
        else f" The families of two halves of the inputs agree with an adjusted Rand index of "
        f"{replication.rand_index:.2f} ({replication.low:.2f} to {replication.high:.2f})."
    )
    n = len(found)
    lead = _answer(
        "families",
        f"{n} {'family' if n == 1 else 'families'} of {who} {'is' if n == 1 else 'are'} found again on other "
        f"inputs; {'it contains' if n == 1 else 'they contain'} ",
        Phrase(f"{_percent(about.coverage)} of the heads", covered),
        f".{again}{few}",
    )
    return [lead, *map(_family, found)]


def _family(found: dict[str, Any]) -> Answer:
    n_heads, _, rest = found["words"].partition(",")
    return _answer(
        "family",
        f"Family {found['family']}: ",
        Phrase(n_heads, tuple(found["heads"])),
        f",{rest}; support {found['support']:.2f}; typical ",
        _one(found["medoid"]),
        ".",
    )


def _growth(run: Run) -> Answer | None:
    """How support grew with inputs, and whether more would help; None if it was not measured."""
    growth = run.measures.consensus.get("growth")
    if not growth or len(growth) < 2:
        return None
    first, last = growth[0], growth[-1]
    text = (
        f"The mean support of the families is {last.support:.2f} with {last.n_inputs} inputs; "
        f"{first.n_inputs} of them give {first.support:.2f}"
    )
    is_enough = last.support >= _ENOUGH_SUPPORT
    more = (
        "More inputs would hardly change the families"
        if is_enough
        else "More inputs would probably make families firmer or add heads to them"
    )
    return _answer("inputs", f"{text}. {more}.")


# -- effects, ranking, sparsity --------------------------------------------------------------------------


def largest_effects(table: Any) -> list[dict[str, Any]] | None:
    """The heads without which the loss grows most; None if effects were not measured."""
    if "effect" not in table:
        return None
    rows = table.sort_values("effect", ascending=False, kind="stable").head(_SHOWN).to_dict(orient="records")
    return [
        {"name": str(row["name"]), "effect": float(row["effect"]), "error": float(row["effect_error"])}
        for row in rows
    ]


def _rounded(error: float) -> str:
    return number_words(float(f"{error:.2g}"))


def _effects(run: Run) -> Answer | None:
    table = run.heads
    largest = largest_effects(table)
    if not largest:
        return None
    parts: list[tuple[str | Phrase, ...]] = [
        (_one(head["name"]), f" ({number_words(head['effect'])} ± {_rounded(head['error'])})") for head in largest
    ]
    effect, error = (table[name].to_numpy(dtype=float) for name in ("effect", "effect_error"))
    clear = [
        str(name) for name, is_clear in zip(table["name"], np.abs(effect) > 2 * error, strict=True) if is_clear
    ]
    known: list[str | Phrase] = (
        [" ", Phrase(f"{len(clear)} of {len(table)} effects", tuple(clear)), " are beyond two standard errors."]
        if np.isfinite(error).all()
        else []
    )
    reliability = run.effects.reliability
    doubt = (
        f" Their order is not reliable on these inputs: two halves of them agree with a rank correlation of "
        f"{reliability:.2f}."
        if np.isfinite(reliability) and reliability < _RELIABLE
        else ""
    )
    what = "The loss grows most without " if run.effects.loss else "The output changes most without "
    return _answer("effects", what, *_joined(parts, ", "), ".", *known, doubt)


def _ranking(run: Run) -> Answer | None:
    """How alike inputs rank the heads by structure score, and which are first."""
    stability = run.measures.get("stability")
    if stability is None or stability.mean_correlation is None:
        return None
    correlation, (low, high) = stability.mean_correlation, stability.interval
    interval = "" if low is None else f", 95 % interval {low:.2f} to {high:.2f}"
    agree = "agree" if correlation >= 0.7 else "partly agree" if correlation >= 0.3 else "do not agree"
    first = run.heads.sort_values("structure_rank")["name"].head(_SHOWN)
    on = " (on trees of raw scores)" if run.values_words == "raw scores" else ""
    found = (
        f"Inputs {agree} on the ranking of the heads by structure score{on}: mean rank correlation "
        f"{correlation:.2f}{interval}."
    )
    if correlation < 0.3:
        return _answer("ranking", found)
    return _answer("ranking", f"{found} Highest: ", *_joined([(_one(str(name)),) for name in first], ", "), ".")


def _unusual(run: Run) -> Answer | None:
    """The heads whose nearest neighbour is farther than that of any ordinary head."""
    if len(run.heads) < _ENOUGH_HEADS:
        return None
    affinity = np.array(run.consensus.affinity)
    np.fill_diagonal(affinity, -np.inf)
    nearest = affinity.max(axis=1)
    quarter, middle = np.quantile(nearest, [0.25, 0.5])
    far = np.flatnonzero(nearest < middle - _FAR * 2 * (middle - quarter))
    if not len(far):
        return None
    names = [str(name) for name in run.heads["name"]]
    first = [names[i] for i in far[np.argsort(nearest[far], kind="stable")]]
    more = f" and {len(first) - _SHOWN} more" if len(first) > _SHOWN else ""
    lead = "Unlike all others: " if len(first) == 1 else "Unlike all others, each in its own way: "
    rest: list[str | Phrase] = [Phrase(more, tuple(first))] if more else []
    return _answer("unusual", lead, *_joined([(_one(name),) for name in first[:_SHOWN]], ", "), *rest, ".")


def _sparsity(run: Run) -> Answer:
    return _answer("sparsity", gain_words(run.measures.sparsity.median_gain, run.values_words))


def gain_words(gain: float, values: str = "values") -> str:
    """Whether organizing makes a tensor sparser."""
    if not np.isfinite(gain):
        return "Nothing to compare: the tensor is zero."
    if abs(gain - 1) < 0.005:
        return (
            "Organized and in the original order, equally many Haar coefficients hold 99 % of the energy of the "
            f"{values}."
        )
    if gain > 1:
        helps, need = "helps", f"{1 - 1 / gain:.0%} fewer Haar coefficients than".replace("%", " %")
    else:
        helps, need = "does not help here", f"{1 / gain:.2f} times as many Haar coefficients as"
    return f"Organizing {helps}: 99 % of the energy of the {values} needs {need} in the original order."
