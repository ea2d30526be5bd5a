"""What a run found, in sentences."""

from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

import headtree as ht
from headtree.measures.heads.glossary import explained
from headtree.pipeline.tables import LEADING
from headtree.report.words.answers import answers, families_found, roles_found
from headtree.report.words.summary import in_words, summarized
from headtree.runs.containers import attr_tree
from tests.measures.examples import noise
from tests.runs.examples import QUICK, small_run


def table(n=8, **columns):
    layer, head = np.divmod(np.arange(n), 4)
    names = [f"L{a}H{b}" for a, b in zip(layer, head, strict=True)]
    plain = {"name": names, "layer": layer, "head": head, "structure_rank": np.arange(1, n + 1)}
    return pd.DataFrame({**plain, **columns})


def run_of(heads, consensus=None, n_inputs=12, **more):
    about = {"kind": "attention", "n_folders": len(heads) - 2, "families": [], "coverage": 0.0, "replication": None}
    about |= consensus or {}
    measures = {"consensus": about, "sparsity": {"median_gain": 2.0}, **more}
    return SimpleNamespace(
        heads=heads,
        measures=attr_tree(measures, "measure"),
        n_inputs=n_inputs,
        values_words="centred scores",
        slices="head",
    )


def said(run):
    return {answer.about: answer for answer in answers(run)}


ROLES = ["previous token", "previous token", "first token", np.nan, np.nan, np.nan, np.nan, np.nan]
SHARES = {"previous_token": [0.5, 0.8, 0.9, 0, 0, 0, 0, 0], "first_token": [0, 0, 0.7, 0, 0, 0, 0, 0]}


def test_roles_come_first_with_their_strongest_head():
    run = run_of(table(role=ROLES, **SHARES))
    found = answers(run)[0]
    assert found.text == (
        "3 of 8 heads have a role: previous token (2 heads; strongest L0H1, 80 % of its attention), first token "
        "(L0H2, 70 %)."
    )
    linked = {phrase.text: phrase.heads for phrase in found.phrases if phrase.heads}
    assert linked["2 heads"] == ("L0H0", "L0H1")
    assert linked["3 of 8 heads"] == ("L0H0", "L0H1", "L0H2")
    assert linked["L0H1"] == ("L0H1",)
    assert roles_found(run.heads)[0]["share"] == 0.8
    assert said(run_of(table(role=[np.nan] * 8)))["roles"].text.startswith("No head has a role")


def test_induction_heads_are_named_if_they_were_measured():
    assert "induction" not in said(run_of(table()))
    assert "induction" not in said(run_of(table(prefix_matching=[np.nan] * 8)))
    weak = said(run_of(table(prefix_matching=np.linspace(0, 0.2, 8))))["induction"].text
    assert (
        weak == "No head is an induction head. L1H3 comes closest: where random tokens are repeated, 20 % of its "
        "attention goes to the token after the earlier copy."
    )
    strong = said(run_of(table(prefix_matching=[0, 0.5, 0, 0, 0.9, 0, 0, 0], copying=np.linspace(0, 0.7, 8))))
    assert strong["induction"].text.startswith("2 induction heads, the strongest L1H0: where random tokens")
    assert strong["induction"].phrases[0].heads == ("L1H0", "L0H1")
    assert "copying 0.40" in strong["induction"].text


def test_families_have_size_support_medoid_and_words():
    families = [{"heads": ["L0H0", "L0H1", "L1H0"], "support": 0.8, "medoid": "L0H1"}]
    replication = {"rand_index": 0.7, "low": 0.6, "high": 0.8}
    about = {"families": families, "coverage": 3 / 8, "replication": replication}
    run = run_of(table(role=ROLES, confidence=np.full(8, 0.25), **SHARES), about)
    lead, family = (answer.text for answer in answers(run) if answer.about.startswith("famil"))
    assert lead == (
        "1 family of heads that look alike is found again on other inputs; it contains 38 % of the heads. The "
        "families of two halves of the inputs agree with an adjusted Rand index of 0.70 (0.60 to 0.80)."
    )
    assert family == (
        "Family 0: 3 heads, layers 0-1, mostly previous token, mean confidence 0.25; support 0.80; typical L0H1."
    )
    assert families_found(run)[0]["layers"] == [0, 1]
    few = said(run_of(run.heads, about, n_inputs=6))["families"].text
    assert few.endswith("6 inputs are too few to trust this: 10 or more are needed.")


def test_no_family_is_said_plainly():
    assert said(run_of(table()))["families"].text.startswith("No group of heads replicates")
    one = said(run_of(table(), n_inputs=1))["families"].text
    assert "one input has no support" in one


@pytest.mark.parametrize(
    ("last", "verdict"),
    [
        ((0.61, 0.71), "More inputs would probably make families firmer or add heads to them"),
        ((0.85, 0.9), "More inputs would hardly change the families"),
    ],
)
def test_growth_with_inputs_is_said_if_it_was_measured(last, verdict):
    steps = [(5, 0.3, 0.5), (10, 0.6, 0.7), (20, *last)]
    growth = [dict(zip(("n_inputs", "support", "coverage"), step, strict=True)) for step in steps]
    text = said(run_of(table(), {"growth": growth}))["inputs"].text
    assert text == f"The mean support of the families is {last[0]} with 20 inputs; 5 of them give 0.30. {verdict}."
    assert "inputs" not in said(run_of(table()))


def test_the_terminal_and_the_data_say_the_same(tmp_path):
    run = small_run(tmp_path / "run", 4)
    found = summarized(run)
    words = in_words(found)
    for answer in answers(run):
        assert " ".join(answer.text.split()) in " ".join(words.split())
    assert "most active" not in words
    assert words.splitlines()[0].endswith("20 heads in 4 layers, centred scores on 4 inputs")
    assert found["similarities"] == ["attention", "questionnaire"]
    assert len(found["families"]) == 4


def test_noise_has_nothing_to_say(tmp_path):
    from headtree.pipeline.make_run import make_run
    from headtree.pipeline.sources import TensorSource

    run = make_run(
        TensorSource([noise(seed) for seed in range(10)]), tmp_path / "noise", measures=QUICK, draw=False
    )
    words = " ".join(in_words(summarized(run)).split())
    assert "No group of heads replicates" in words
    assert "support 0" not in words.lower()


def test_equal_heads_are_said_to_be_equal(tmp_path):
    from headtree.pipeline.make_run import make_run
    from headtree.pipeline.sources import TensorSource

    equal = [np.repeat(noise(seed).block(heads=slice(1)).numpy(), 6, axis=0) for seed in range(10)]
    tensors = [ht.AttentionTensor.from_array(x) for x in equal]
    with pytest.warns(ht.HeadtreeWarning):
        run = make_run(TensorSource(tensors), tmp_path / "equal", measures=QUICK, draw=False)
    words = " ".join(in_words(summarized(run)).split())
    assert "note all 6 heads are equal on every input" in words
    assert "There is nothing to group: all heads are equally alike on these inputs." in words
    assert "No group of heads replicates" not in words


def test_every_leading_column_is_explained(tmp_path):
    for column in LEADING:
        assert explained(column) or column in ("name", "layer", "head")
    run = small_run(tmp_path / "run", 2)
    unexplained = [name for name in run.heads if not explained(name)]
    assert unexplained == ["name", "layer", "head"]
    assert "entropy" not in {name.split("_")[0] for name in run.heads}
