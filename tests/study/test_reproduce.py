import re

import numpy as np
import pytest

import headtree as ht
from headtree.pipeline.make_run import make_run
from headtree.pipeline.sources import TensorSource
from headtree.study import reproduce as module
from headtree.study.claims.catalogue import TESTS
from headtree.study.claims.pairs import PAIR_TESTS
from headtree.study.claims_report import claim_parts
from headtree.study.marked_parts import marks, write_parts
from headtree.study.reproduce import reproduce
from tests.runs.examples import QUICK, small_run, tensors


@pytest.fixture(scope="module")
def claims(tmp_path_factory):
    """Claims on two small runs, one of scores under a causal mask and one of probs; pages are not drawn again."""
    folder = tmp_path_factory.mktemp("reproduce")
    runs = [small_run(folder / "first"), small_run(folder / "second", kind="probs", seed=1, causal=False)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "redraw", lambda path, say=None: None)
        written = reproduce([str(run.path) for run in runs], folder / "out")
    return folder, written.read_text(encoding="utf-8")


def test_every_claim_stands_with_number_interval_and_verdict(claims):
    _, text = claims
    for test in TESTS:
        lines = [line.replace("\\|", "") for line in text.splitlines()]
        rows = [line for line in lines if test.claim.says in line and line.count("|") == 7]
        assert len(rows) == 2, test.claim.key
        for row in rows:
            assert re.search(r"\| (agrees|differs|cannot be decided)( \(needs scores.*\))? \|$", row)
            assert (
                re.search(r"\[[\d.,·⁻⁰¹²³⁴⁵⁶⁷⁸⁹-]+, [\d.,·⁻⁰¹²³⁴⁵⁶⁷⁸⁹-]+\] \|", row) or "cannot be decided" in row
            )
    for test in PAIR_TESTS:
        assert test.claim.says in text
    assert "1200.20" in text  # table 2 as printed


def test_what_needs_scores_is_left_open_for_probs(claims):
    folder, _ = claims
    by_run = {name: ht.open_run(folder / name).sections["claims"] for name in ("first", "second")}
    open_ = {name: sum("needs scores" in str(row[-1]) for row in s.tables[0].rows) for name, s in by_run.items()}
    assert open_ == {"first": 0, "second": sum(test.needs_scores for test in TESTS)}


def test_what_a_mask_forbids_is_said(claims):
    _, text = claims
    of_first, of_second = text.split("\n## ")[1:3]
    said = r"4\d% of the entries are masked\. They are missing for .* they are the mean of the rest of their row\."
    assert re.search(said, of_first)
    assert "Lines separate folders. Grey: masked." in of_first
    assert "masked" not in of_second


def test_what_heads_do_stands_beside_the_claims(claims):
    folder, text = claims
    assert "### first: Diagnostics and roles of heads" in text
    assert "What the folders of the consensus tree predict" in text
    table = text.split("## What the l1 entropy of heads already contains")[1]
    assert "| measure | first | second |" in table
    rows = dict(re.findall(r"^\| `(\w+)` \| ([^|]*) \|", table, re.MULTILINE))
    overlap = ht.open_run(folder / "first").tables["overlap"].dropna(subset="correlation")
    assert set(overlap["measure"]) == {name for name, cell in rows.items() if cell != "–"}
    for row in overlap.itertuples():
        correlation, low, high = (f"{round(number, 3):.2f}" for number in (row.correlation, row.low, row.high))
        assert rows[row.measure] == f"{correlation} [{low}, {high}] {row.contained}"


def test_nothing_is_measured_twice(claims, monkeypatch):
    folder, text = claims
    for name in ("measure_beyond", "matrix_regularity"):
        monkeypatch.setattr(module, name, lambda *given: pytest.fail("measured again"))
    monkeypatch.setattr(module, "draw_claims", lambda *given: ())
    monkeypatch.setattr(module, "redraw", lambda path, say=None: None)
    again = reproduce([str(folder / "first"), str(folder / "second")], folder / "out")
    assert re.sub(r"!\[.*\n\n.*\n\n", "", text) == again.read_text(encoding="utf-8")
    again.write_text(text, encoding="utf-8")


def test_runs_of_one_name_are_kept_apart(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "redraw", lambda path, say=None: None)
    monkeypatch.setattr(module, "draw_claims", lambda *given: ())
    runs = [small_run(tmp_path / side / "run", n_inputs=1, seed=seed) for seed, side in enumerate("ab")]
    text = reproduce([str(run.path) for run in runs], tmp_path / "out").read_text(encoding="utf-8")
    assert "| in the paper | claim | run | run-2 |" in text
    assert text.count("All claims concern centred scores.") == 2
    assert len(list((tmp_path / "out" / "measured").iterdir())) == 2


def test_figures_are_there_and_named_in_the_text(claims):
    folder, text = claims
    named = re.findall(r"\]\((figures/[^)]+)\)", text)
    assert len(named) == len(set(named)) == 12 + 10  # without those about softmax for probs
    for name in named:
        assert (folder / "out" / name).stat().st_size > 1000


def test_only_the_marked_parts_of_documents_are_replaced(claims, tmp_path):
    parts = claim_parts(claims[1])
    documents = {name: tmp_path / f"{name}.md" for name in parts}
    for name, document in documents.items():
        document.write_text("# Title\n\nbefore\n\n{}\nolder text\n{}\n\nafter\n".format(*marks(name)))
    written = []
    for _ in range(2):
        write_parts(parts, list(documents.values()))
        written.append([document.read_text(encoding="utf-8") for document in documents.values()])
    assert written[0] == written[1]
    for text, name, heading in zip(written[0], parts, ("The claims", "first"), strict=True):
        begin, end = marks(name)
        assert text.startswith(f"# Title\n\nbefore\n\n{begin}\n\n## {heading}")
        assert text.endswith(f"{end}\n\nafter\n")
        assert "older text" not in text
        assert "Fig. 1:" not in text
        assert "![" not in text
    verdicts, tables = written[0]
    assert "| in the paper | claim | first | second |" in verdicts
    assert "Claims about" not in verdicts
    assert "\n## second\n" in tables
    assert "\n### second: Diagnostics" in tables


def test_a_document_may_have_both_parts_but_not_none(claims, tmp_path):
    parts = claim_parts(claims[1])
    document = tmp_path / "both.md"
    document.write_text("\n".join(mark for name in parts for mark in marks(name)))
    write_parts(parts, [document])
    assert "\n## The claims" in document.read_text(encoding="utf-8")
    assert "\n## second\n" in document.read_text(encoding="utf-8")
    document.write_text("# no marks\n")
    with pytest.raises(ValueError, match="must have the lines '<!-- claims: begin -->' and"):
        write_parts(parts, [document])


def test_networks_that_are_not_known_are_named(tmp_path):
    with pytest.raises(ValueError, match="folders of runs, got 'gpt9'"):
        reproduce(["gpt9"], tmp_path)


def test_sensitivity_is_a_section_of_the_run_with_its_figure(tmp_path, monkeypatch):
    some = [("alpha", "1.0", ht.Questionnaire(alpha=1.0)), ("n_iter", "1", ht.Questionnaire(n_iter=1))]
    monkeypatch.setattr("headtree.measures.sensitivity.variants", lambda settings: some)
    source = TensorSource(tensors(3, n_tokens=(14,)))
    run = make_run(source, tmp_path / "run", measures=QUICK, draw=False, sensitivity=True)
    section = run.sections["sensitivity"]
    assert [row[:2] for row in section.tables[0].rows] == [
        ("alpha", "1.0"), ("n_iter", "1"), ("precision", "float64"), ("inputs", "resampled"),
    ]  # fmt: skip
    assert (run.path / section.figures[0].file).exists()
    assert "moves the tree of heads" in section.text[-2]
    assert "moves the ranking of heads" in section.text[-1]
    assert np.isfinite([float(str(row[6]).split()[0]) for row in section.tables[0].rows]).all()
    with pytest.raises(ValueError, match="two or more inputs"):
        make_run(TensorSource(tensors(1)), tmp_path / "one", measures=QUICK, draw=False, sensitivity=True)
