"""What the heads do, as a section of a run's page: roles, families, and what the tree predicts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from headtree.measures.agreement import TreeAgreement, tree_agreement
from headtree.measures.consensus import Consensus
from headtree.measures.heads.diagnostics import Diagnostics
from headtree.measures.heads.glossary import OF_HEADS, OF_LAYERS
from headtree.measures.heads.roles import WORDS
from headtree.report.words.folder_words import describe_folders, folder_words
from headtree.report.words.numbers import number_words
from headtree.report.words.similarity_words import heads_that
from headtree.section import Section, Table
from headtree.tensor.attention_tensor import HeadId

if TYPE_CHECKING:
    from pandas import DataFrame

#: Captions of two tables, by which the claims' report finds them.
OVERLAP = "How far the l1 Haar measure of heads contains each measure"
MEANINGS = "What the columns of heads and layers mean"

_N_EXAMPLES, _N_NAMES = 6, 20

#: Measures that the structure score repeats, and that are named.
_N_REPEATED = 3

_COLUMN_OF = {words: column for column, words in WORDS.items()}

#: Most folders with a role to list, and the fewest heads of a folder worth listing.
_MOST_FOLDERS, _SMALLEST_FOLDER = 8, 3


def diagnostics_section(
    found: Diagnostics,
    *,
    overlap: DataFrame | None = None,
    consensus: Consensus | None = None,
    values: str = "probabilities",
    rng: int | np.random.Generator = 0,
) -> Section:
    """Paragraphs and tables of the diagnostics.

    Parameters
    ----------
    found : Diagnostics
        What `diagnostics` returned.
    overlap : DataFrame, optional
        How far the l1 Haar measure of the same heads contains the other measures: what `headtree.overlap` returned.
    consensus : Consensus, optional
        The tree of the same heads, to describe its families and what its folders predict.
    values : str
        What the run organized, in words; of raw scores the l1 measure is the Haar entropy.
    rng : int or numpy Generator
        Seed or source of permutations and resamplings.
    """
    text, tables = [_roles_text(found), *_induction_text(found)], [_roles_table(found)]
    if consensus is not None:
        agreements = tree_agreements(found, consensus, rng=rng)
        text.append(_agreements_text(found, agreements))
        tables += [
            *_families_table(found, consensus, values),
            _folders_table(found, consensus),
            _agreement_table(agreements),
        ]
    if overlap is not None:
        text.append(_overlap_text(overlap, values))
        tables.append(_overlap_table(overlap))
    tables.append(_meanings_table(found))
    if found.missing:
        rows = sorted([name, reason] for name, reason in found.missing.items())
        tables.append(Table("Columns with missing values, and why", ["column", "why"], rows))
    return Section("Diagnostics and roles of heads", text, tables)


def tree_agreements(
    found: Diagnostics, consensus: Consensus, *, n_permutations: int = 999, rng: int | np.random.Generator = 0
) -> dict[str, TreeAgreement]:
    """How well the tree of heads predicts their layers, their roles, and their roles within layers."""
    layers, roles, leanings = [head.layer for head in found.roles.heads], found.roles.names, found.roles.leanings
    options: dict[str, Any] = {"n_permutations": n_permutations, "rng": rng}
    return {
        "layers": tree_agreement(consensus.tree, layers, **options),
        "roles": tree_agreement(consensus.tree, roles, **options),
        "roles within layers": tree_agreement(consensus.tree, roles, within=layers, **options),
        "leanings": tree_agreement(consensus.tree, leanings, **options),
        "leanings within layers": tree_agreement(consensus.tree, leanings, within=layers, **options),
    }


def _roles_text(found: Diagnostics) -> str:
    named = sum(bool(name) for name in found.roles.names)
    leaning = sum(bool(name) for name in found.roles.leanings) - named
    return (
        f"{named} of {len(found.heads)} heads have a role: at least {found.roles.least:.0%} of their attention "
        "beyond chance goes to one kind of token. Chance is the same attention shuffled among the allowed keys. "
        f"{leaning} others lean to a role: at least 10% beyond chance, and three times chance. "
        f"Means over {_inputs(found.n_inputs)}."
    )


def _induction_text(found: Diagnostics) -> list[str]:
    """Which head attends most to what followed the earlier copy, and whether it is an induction head."""
    scores = found.heads.get("prefix_matching")
    if scores is None or not scores.notna().any():
        return []  # the table of missing columns has the reason
    best = found.heads.loc[scores.idxmax()]
    copying = f", copying {best['copying']:.2f}" if "copying" in best and np.isfinite(best["copying"]) else ""
    n_clear = int((scores >= found.roles.least).sum())
    return [
        f"Induction, on repeated random tokens: {best['name']} attends most to what followed the earlier copy "
        f"({best['prefix_matching']:.2f} of its attention, the median head {scores.median():.2f}{copying}). "
        f"{n_clear or 'No'} {'head gives' if n_clear < 2 else 'heads give'} at least {found.roles.least:.0%} of "
        f"{'their' if n_clear > 1 else 'its'} attention to it, as a clear induction head does."
    ]


def _inputs(n: int) -> str:
    return "one input" if n == 1 else f"{n} inputs"


def _roles_table(found: Diagnostics) -> Table:
    """How many heads have each role, and how many more lean to it."""
    roles = found.roles
    having, leaning = Counter(filter(None, roles.names)), Counter(filter(None, roles.leanings))
    rows = []
    for role in sorted(leaning, key=lambda role: (-having[role], -leaning[role])):
        members = [head for head, name in zip(roles.heads, roles.leanings, strict=True) if name == role]
        strongest = sorted(members, key=lambda head: -_excess(found, role, head))[:_N_EXAMPLES]
        shown = ", ".join(f"{head} ({_share(found, role, head):.2f})" for head in strongest)
        more = ", …" if len(members) > _N_EXAMPLES else ""
        layers = _range([head.layer for head in members])
        rows.append([role, having[role], leaning[role] - having[role], layers, shown + more])
    columns = ["role", "heads", "leaning", "layers", "strongest, with share of attention"]
    return Table("Heads by role", columns, rows)


def _share(found: Diagnostics, role: str, head: HeadId) -> float:
    return float(found.roles.share[_COLUMN_OF[role]][found.roles.heads.index(head)])


def _excess(found: Diagnostics, role: str, head: HeadId) -> float:
    return float(found.roles.excess[_COLUMN_OF[role]][found.roles.heads.index(head)])


def _range(numbers: Sequence[int]) -> str:
    low, high = min(numbers), max(numbers)
    return str(low) if low == high else f"{low}-{high}"


def _families_table(found: Diagnostics, consensus: Consensus, values: str) -> list[Table]:
    families = consensus.families()
    if not len(families):
        return []
    rows = [
        [
            i,
            folder_words(leaves, found.roles.heads, found.roles.names),
            _leaning_words(found, leaves),
            _finite(support),
        ]
        for i, (leaves, support) in enumerate(zip(families.folders, families.support, strict=True))
    ]
    caption = f"Families in words: {heads_that(consensus.kind, values)}, on other inputs too"
    return [Table(caption, ["family", "in words", "lean to", "support"], rows)]


def _leaning_words(found: Diagnostics, leaves: Any) -> str:
    """What the heads of a folder lean to, with or without a role: "neighbours 12, same row 3"."""
    counts = Counter(name for name in (found.roles.leanings[leaf] for leaf in leaves) if name)
    return ", ".join(f"{name} {n}" for name, n in counts.most_common(3))


def _folders_table(found: Diagnostics, consensus: Consensus) -> Table:
    """Folders in which most heads have one role or lean to it, largest first, none inside another."""
    folders = describe_folders(consensus, found.roles.heads, found.roles.leanings)
    sizes = folders["n_heads"]
    is_some = (sizes >= _SMALLEST_FOLDER) & (2 * sizes <= len(found.heads))  # not nearly everything
    of_role = folders[(folders["share_of_role"] >= 0.5) & is_some]
    caption = (
        "Largest folders of the consensus tree in which at least half of the heads have one role, or lean to it"
    )
    rows: list[list[Any]] = []
    seen: set[str] = set()
    for row in of_role.sort_values("n_heads", ascending=False, kind="stable").itertuples():
        members = set(row.heads.split())
        if members & seen or len(rows) == _MOST_FOLDERS:
            continue
        seen |= members
        names = row.heads.split()
        shown = " ".join(names[:_N_NAMES]) + (" …" if len(names) > _N_NAMES else "")
        rows.append([row.words, shown, _finite(row.support)])
    if not any(row[-1] for row in rows):  # a column of zeros, or of nothing, would say nothing
        return Table(caption, ["in words", "heads"], [row[:-1] for row in rows])
    return Table(caption, ["in words", "heads", "support"], rows)


def _agreements_text(found: Diagnostics, agreements: dict[str, TreeAgreement]) -> str:
    """What groups of heads have in common; what cannot be asked is said once."""
    missing = [
        what for what, names in (("role", found.roles.names), ("leaning", found.roles.leanings)) if not any(names)
    ]
    lead = (
        [f"No head has a {' or a '.join(missing)} here, so groups cannot be compared with them."] if missing else []
    )
    asked = {name: own for name, own in agreements.items() if not any(name.startswith(what) for what in missing)}
    return " ".join([*lead, *(_agreement_text(name, agreement) for name, agreement in asked.items())])


def _agreement_text(name: str, agreement: TreeAgreement) -> str:
    if agreement.reason:
        return f"Whether the tree's folders predict {name} cannot be tested: {agreement.reason}."
    verdict = "better than chance" if agreement.p_value <= 0.05 else "no better than chance"
    return (
        f"The tree's folders predict {name} {verdict} (adjusted mutual information {agreement.information:.2f}; "
        f"95 % of permuted labels have at most {agreement.chance:.2f}; p = {number_words(agreement.p_value)})."
    )


def _agreement_table(agreements: dict[str, TreeAgreement]) -> Table:
    rows = [
        [name, _finite(a.information), _finite(a.chance), _finite(a.p_value), a.n_folders, a.n_labels]
        for name, a in agreements.items()
    ]
    columns = ["labels", "adjusted mutual information", "95 % of permutations", "p", "folders", "kinds of label"]
    return Table("What the folders of the consensus tree predict, on the best level", columns, rows)


def _overlap_text(table: DataFrame, values: str) -> str:
    measure = "Haar entropy of raw scores" if values == "raw scores" else "structure score of heads"
    largely = table[table["contained"] == "largely"]
    first = largely.loc[
        largely["correlation"].abs().sort_values(ascending=False, kind="stable").index[:_N_REPEATED]
    ]
    names = [f"{row.measure.replace('_', ' ')} (ρ = {row.correlation:.2f})" for row in first.itertuples()]
    repeats = f"mostly repeats {', '.join(names)}" if names else "repeats none of the other measures"
    return (
        f"The {measure} (l1 norm of Haar coefficients, [OA], eq. 21) {repeats}; the table below has all. There, "
        "“largely” means that the whole 95 % interval of Spearman's correlation over heads is beyond 0.7 or -0.7, "
        "and “partly” that it excludes 0. Heads of one layer are not independent, so the true intervals are wider."
    )


def _overlap_table(table: DataFrame) -> Table:
    rows = [
        [
            row.measure,
            _finite(row.correlation),
            _finite(row.low),
            _finite(row.high),
            int(row.n_heads),
            row.contained,
        ]
        for row in table.itertuples()
    ]
    columns = ["measure", "Spearman's correlation", "low", "high", "heads", "contained"]
    return Table(OVERLAP, columns, rows)


def _meanings_table(found: Diagnostics) -> Table:
    known = {**OF_HEADS, **OF_LAYERS}
    there = dict.fromkeys([*found.heads, *found.layers])
    rows = [[name, known[name].meaning, known[name].source] for name in there if name in known]
    return Table(MEANINGS, ["column", "meaning", "source"], rows)


def _finite(value: float) -> float | None:
    return round(float(value), 3) if np.isfinite(value) else None
