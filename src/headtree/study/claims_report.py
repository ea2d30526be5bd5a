"""The claims of [OA] in words and tables: `claims.md`, and the section of a run's page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from headtree.measures.comparisons import finite
from headtree.measures.stability import Stability, stability
from headtree.report.words.diagnostics_section import MEANINGS, OVERLAP
from headtree.report.words.numbers import interval_words, number_words
from headtree.section import Picture, Section, Table
from headtree.study.claims.evidence import Evidence
from headtree.study.claims.pairs import PRINTED_ENTROPIES
from headtree.study.claims.single_heads import MatrixRegularity
from headtree.study.claims.verdict import RULE, Finding

if TYPE_CHECKING:
    from pandas import DataFrame

_COLUMNS = (
    "in the paper",
    "claim",
    "printed there",
    "statistic and its limit",
    "measured",
    "verdict",
)

#: Table 1 of [OA]: the three heads that recur most at the top and at the bottom, all in 6 of 6 batches.
PRINTED_HEADS = {
    "txl": ("L13H3, L1H0, L7H7", "L6H0, L7H5, L3H5"),
    "vit": ("L2H5, L3H6, L2H10", "L2H4, L3H10, L1H11"),
}


@dataclass(frozen=True, eq=False)
class NetworkResult:
    """The findings for one network."""

    name: str
    about: str  #: model, inputs, settings
    evidence: tuple[Evidence, ...]  #: of each input, in the kind that the paper shows
    scores: tuple[Evidence, ...]  #: the same from scores; empty without scores
    matrices: MatrixRegularity | None  #: every head by itself, on the first input
    findings: tuple[Finding, ...]
    pictures: tuple[Picture, ...]
    sections: tuple[Section, ...] = ()  #: of the run: what its heads do, how sensitive it is
    overlap: DataFrame | None = None  #: of the run: how far the l1 entropy contains each measure


def claims_section(result: NetworkResult) -> Section:
    """The claims about one network, for its page."""
    return Section(
        title="What the Organized Attention paper says, tested here",
        text=(result.about, RULE, _counted(result.findings)),
        tables=tuple(_tables(result)),
        figures=result.pictures,
    )


def markdown(results: Sequence[NetworkResult], pairs: Sequence[Finding]) -> str:
    """One Markdown document on all networks.

    Parameters
    ----------
    results : sequence of NetworkResult
        One for each network.
    pairs : sequence of Finding
        Findings on claims that compare networks.
    """
    everything = [finding for result in results for finding in result.findings] + list(pairs)
    lines = [
        "# The claims of the Organized Attention paper, tested",
        "",
        RULE,
        "",
        _counted(everything),
        "",
        "| in the paper | claim | " + " | ".join([result.name for result in results]) + " |",
        "|---" * (2 + len(results)) + "|",
        *_overview(results),
        "",
    ]
    for result in results:
        lines += [f"## {result.name}", "", result.about, ""]
        for table in _tables(result):
            lines += [*_markdown_table(table), ""]
        for picture in result.pictures:
            lines += [f"![{_escaped(picture.caption)}]({picture.file})", "", picture.caption, ""]
        for section in result.sections:
            lines += _section_lines(section, f"### {result.name}: {section.title}")
    if pairs:
        rows = [(finding.network, *_row(finding)) for finding in pairs]
        table = Table("Claims that compare two networks.", ("networks", *_COLUMNS), tuple(rows))
        lines += ["## Two networks", "", *_markdown_table(table), ""]
    contained = _contained_table(results)
    if contained is not None:
        lines += ["## What the l1 entropy of heads already contains", "", *_markdown_table(contained), ""]
    return "\n".join(lines).rstrip() + "\n"


def claim_parts(text: str) -> dict[str, str]:
    """The document in two parts: the verdicts, and the tables behind them."""
    verdicts, heading, tables = text.partition("\n## ")
    return {"claims": verdicts, "tables of claims": heading + tables}


def _counted(findings: Sequence[Finding]) -> str:
    verdicts = [finding.verdict for finding in findings]
    agree, differ, open_ = (verdicts.count(verdict) for verdict in ("agrees", "differs", "cannot be decided"))
    return (
        f"Of {len(verdicts)} tests, {agree} {'agrees' if agree == 1 else 'agree'}, "
        f"{differ} {'differs' if differ == 1 else 'differ'} and {open_} cannot be decided."
    )


def _overview(results: Sequence[NetworkResult]) -> list[str]:
    """A row for each claim with a verdict for each network."""
    claims = {finding.claim.key: finding.claim for result in results for finding in result.findings}
    rows = []
    for key, claim in claims.items():
        cells = []
        for result in results:
            found = [finding.verdict for finding in result.findings if finding.claim.key == key]
            cells.append(found[0] if found else "–")
        rows.append("| " + " | ".join([_escaped(claim.part), _escaped(claim.says), *cells]) + " |")
    return rows


def _row(finding: Finding) -> tuple[str, ...]:
    claim = finding.claim
    limit = f"{claim.statistic}; limit {number_words(claim.limit)}"
    verdict = finding.verdict + (f" ({finding.note})" if finding.note else "")
    return claim.part, claim.says, claim.printed, limit, interval_words(finding.measured), verdict


def _tables(result: NetworkResult) -> list[Table]:
    rows = tuple(_row(finding) for finding in result.findings)
    tables = [Table(f"Claims about {result.name}.", _COLUMNS, rows), *_regularity_tables(result)]
    if result.scores:
        tables.append(_softmax_table(result))
    if len(result.evidence) > 1:
        tables.append(_recurrence_table(result))
    tables.append(_entropy_table(result))
    return tables


def _section_lines(section: Section, heading: str) -> list[str]:
    """A section of a run, without its figures and the tables that are shown for all networks together."""
    lines = [heading, ""]
    for paragraph in section.text:
        lines += [_escaped(paragraph), ""]
    for table in section.tables:
        if table.caption not in (OVERLAP, MEANINGS) and table.rows:
            lines += [*_markdown_table(table), ""]
    return lines


def _contained_table(results: Sequence[NetworkResult]) -> Table | None:
    """Correlations of every measure with the l1 entropy, a column for each network, strongest first."""
    by_network: dict[str, dict[str, tuple[float, float, float, str]]] = {}
    for result in results:
        if result.overlap is not None:
            known = result.overlap.dropna(subset="correlation")
            by_network[result.name] = {row.measure: _rounded(row) for row in known.itertuples()}
    if not by_network:
        return None
    measures = dict.fromkeys(measure for rows in by_network.values() for measure in rows)
    strength = {
        measure: float(np.mean([abs(rows[measure][0]) for rows in by_network.values() if measure in rows]))
        for measure in measures
    }
    rows = [
        (f"`{measure}`", *(_contained_cell(by_network[name].get(measure)) for name in by_network))
        for measure in sorted(measures, key=lambda measure: -strength[measure])
    ]
    caption = (
        "Spearman's correlation over heads of each measure with the l1 entropy ([OA], eq. 21; mean over inputs), "
        "its 95 % bootstrap interval over heads, and whether the entropy contains the measure. Largely: the whole "
        "interval is beyond 0.7 or -0.7; partly: it excludes 0. Heads of one layer are not independent, so the "
        "true intervals are wider. A dash: not defined for this network, or the same for all heads."
    )
    return Table(caption, ("measure", *by_network), tuple(rows))


def _rounded(row: Any) -> tuple[float, float, float, str]:
    """Correlation, interval and verdict of a measure, rounded as the page of its run shows them."""
    return round(row.correlation, 3), round(row.low, 3), round(row.high, 3), str(row.contained)


def _contained_cell(row: tuple[float, float, float, str] | None) -> str:
    if row is None:
        return "–"
    correlation, low, high, contained = row
    return f"{correlation:.2f} [{low:.2f}, {high:.2f}] {contained}"


def _quartiles(values: Any) -> tuple[str, str, str]:
    known = finite(values)
    if len(known) == 0:
        return ("–", "–", "–")
    low, middle, high = np.quantile(known, (0.25, 0.5, 0.75))
    return number_words(low), number_words(middle), number_words(high)


def _regularity_tables(result: NetworkResult) -> list[Table]:
    """Fig. 1 in numbers: exponents and constants before and after organizing, over all heads."""
    columns = ("order", "exponent: lower quartile", "median", "upper quartile", "median constant")
    tables = []
    if result.matrices is not None:
        exponent, constant = result.matrices.exponent, result.matrices.constant
        rows = [(order, *_quartiles(exponent[order]), _quartiles(constant[order])[1]) for order in exponent]
        caption = "Fig. 1 in numbers: mixed Hölder exponents and constants of all heads, each organized by itself."
        tables.append(Table(caption, columns, tuple(rows)))
    rows = []
    for order in result.evidence[0].beyond.exponent:
        exponents = np.concatenate([item.beyond.exponent[order] for item in result.evidence])
        constants = np.concatenate([item.beyond.constant[order] for item in result.evidence])
        rows.append((order, *_quartiles(exponents), _quartiles(constants)[1]))
    caption = "The same on the trees of queries and keys that all heads share, all heads and inputs."
    return [*tables, Table(caption, columns, tuple(rows))]


def _softmax_table(result: NetworkResult) -> Table:
    """Fig. 2 in numbers."""
    names = {
        "error_printed": "relative error of eq. (12) as printed",
        "share_residual": "relative error with the boundary terms",
        "share_boundary": "share of the boundary terms in softmax(f)",
        "exponent": "exponent of f",
        "exponent_softmax": "exponent of softmax(f)",
        "exponent_residual": "exponent of the residual",
        "squashed": "share of entries that softmax squashes",
        "kept": "share of those that the decomposition separates",
        "distance": "distance between eq. (17) and eq. (18)",
        "mean": "mean of f",
        "mixed": "root mean square of mixed differences",
    }
    rows = [
        (words, *_quartiles(np.concatenate([getattr(item.beyond.softmax, name) for item in result.scores])))
        for name, words in names.items()
    ]
    caption = "Fig. 2 and corollary 1 in numbers, from scores, all heads and inputs."
    return Table(caption, ("", "lower quartile", "median", "upper quartile"), tuple(rows))


def recurrence(result: NetworkResult) -> Stability:
    """Table 1 of [OA] for a network."""
    inputs = [item.measured for item in result.evidence]
    return stability([item.entropy for item in inputs], heads=inputs[0].heads)


def _recurrence_table(result: NetworkResult) -> Table:
    found = recurrence(result)
    n, k = found.n_inputs, found.n_selected
    rows = [
        (row["rank"], str(row["top"]), f"{row['top_count']}/{n}", str(row["bottom"]), f"{row['bottom_count']}/{n}")
        for row in found.table(3)
    ]
    printed = PRINTED_HEADS.get(result.name)
    if printed is not None:
        rows.append(("paper", printed[0], "6/6 each", printed[1], "6/6 each"))
    chance = len(found.heads) * (k / len(found.heads)) ** n
    caption = (
        f"Table 1: heads most often among the {k} largest and the {k} smallest entropies of {n} inputs. By chance, "
        f"{number_words(chance)} heads would be among the largest on all inputs; here "
        f"{int((found.top_counts == n).sum())} are, and {int((found.bottom_counts == n).sum())} among the smallest."
    )
    return Table(caption, ("rank", "top", "count", "bottom", "count "), tuple(rows))


def _entropy_table(result: NetworkResult) -> Table:
    printed = PRINTED_ENTROPIES.get(result.name)
    rows = []
    inputs = [item.measured for item in result.evidence]
    for i, item in enumerate(inputs):
        paper = f"{printed[i]:.2f}" if printed is not None and i < len(printed) else "–"
        relative = number_words(item.network_entropy_relative)
        rows.append((i + 1, number_words(item.network_entropy), relative, f"{item.fine_share:.1%}", paper))
    caption = (
        f"Table 2: network entropy of the {inputs[0].network_functions} coarsest functions, raw and divided by the "
        "tensor's norm, and the share of the energy outside the coarsest 1 % of functions. Raw values depend on "
        "kind and size; the paper's come from other weights and inputs."
    )
    return Table(caption, ("input", "raw", "over norm", "fine share", "printed in the paper"), tuple(rows))


def _markdown_table(table: Table) -> list[str]:
    return [
        table.caption,
        "",
        "| " + " | ".join(_escaped(column) for column in table.columns) + " |",
        "|---" * len(table.columns) + "|",
        *("| " + " | ".join(_escaped(_cell(cell)) for cell in row) + " |" for row in table.rows),
    ]


def _cell(value: object) -> object:
    if isinstance(value, float):
        return number_words(value)
    return "–" if value is None else value


def _escaped(text: object) -> str:
    return str(text).replace("\\", "\\\\").replace("|", "\\|").replace("\n", " ").replace("<", "&lt;")
