"""Removing tokens in the order of their relevance: curves against the model itself, and who wins."""

import itertools

import numpy as np
import pytest
import torch
from torch import nn

import headtree as ht
from headtree.measures import perturbation
from headtree.study import perturbation_study
from headtree.study.marked_parts import marks, write_parts
from tests.depth.conftest import network


class Reader(nn.Module):
    """Classifies by the mean over tokens after some blocks."""

    def __init__(self):
        super().__init__()
        self.blocks = network("pre", n_layers=2)
        self.head = nn.Linear(16, 5)

    def forward(self, x):
        return self.head(self.blocks(x).mean(dim=1))


@pytest.fixture(scope="module")
def reader():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return Reader().eval(), torch.randn(3, 8, 16)


@pytest.fixture(scope="module")
def found(reader):
    return ht.perturbation_test(reader[0], inputs=reader[1], steps=4)


def test_curves_are_changes_of_the_models_own_output(reader, found):
    model, x = reader
    (relevances, *_) = ht.token_relevance(model, inputs=x)
    for method in ("rollout", "token tensor (norm)"):
        order = np.argsort(-relevances.sel(by=method).mean("query").values, kind="stable")
        with torch.no_grad():
            before = model(x[:1]).softmax(-1)
            for step, n in enumerate((0, 2, 4, 6, 8)):
                changed = x[:1].clone()
                changed[:, order[:n].copy()] = x[0].mean(dim=0)
                expected = float((model(changed).softmax(-1) - before).abs().sum() / 2)
                assert found.curves[found.methods.index(method), 0, step] == pytest.approx(expected, abs=1e-5)


def test_all_curves_start_at_no_change_and_end_with_no_token(found):
    assert found.curves.shape == (8, 3, 5)
    assert np.allclose(found.curves[:, :, 0], 0)
    assert np.allclose(found.curves[:, :, -1], found.curves[:1, :, -1], atol=1e-6)
    assert found.output.startswith("total variation")


def test_areas_and_intervals(found):
    expected = [[sum((a + b) / 8 for a, b in itertools.pairwise(c)) for c in m] for m in found.curves]
    np.testing.assert_allclose(found.areas, expected)
    mean, low, high = found.interval("rollout")
    assert mean == pytest.approx(found.areas[found.methods.index("rollout")].mean())
    assert low < mean < high
    gap = found.difference("rollout", "random")[0]
    assert gap == pytest.approx(mean - found.interval("random")[0])
    assert found.table().area.is_monotonic_decreasing


def test_a_method_that_knows_beats_one_that_does_not(reader, monkeypatch):
    """The token whose removal changes most, first, against last."""

    def single_changes(explained):
        mean = explained.tensor.residual[0].mean(dim=0)
        with explained.prepared.view.ready(), torch.no_grad():
            before = explained.without([], mean)
            each = [explained.change(before, explained.without([i], mean)) for i in range(8)]
        return torch.tensor(each).expand(8, 8)

    monkeypatch.setattr(
        perturbation,
        "_MATRICES",
        {"attention": single_changes, "rollout": lambda explained: -single_changes(explained)},
    )
    found = ht.perturbation_test(reader[0], inputs=reader[1], methods=["attention", "rollout"])
    assert found.difference("attention", "rollout")[0] > 0.01


def test_tokens_that_are_the_same_everywhere_stay():
    starts = [torch.randn(4, 3), torch.randn(4, 3)]
    starts[1][0] = starts[0][0]
    assert [each.tolist() for each in perturbation._removable(starts)] == [[False, True, True, True]] * 2
    assert perturbation._removable(starts[:1])[0].all()


def test_without_logits_the_mean_state_is_explained(reader):
    found = ht.perturbation_test(reader[0].blocks, inputs=reader[1], steps=2)
    assert "token tensor (logit)" not in found.methods
    assert found.output == "1 - cosine of the mean state"


def test_bad_requests(reader):
    with pytest.raises(ht.HeadtreeError, match=r"methods must be some of .* got 'magic'"):
        ht.perturbation_test(reader[0], inputs=reader[1], methods=["magic"])
    with pytest.raises(ht.HeadtreeError, match="methods must be some of"):
        ht.token_relevance(reader[0], inputs=reader[1], methods=["random"])
    with pytest.raises(ht.HeadtreeError, match="steps must be at least 1"):
        ht.perturbation_test(reader[0], inputs=reader[1], steps=0)


def result(areas):
    """A network with one area per method and input."""
    curves = np.zeros((len(areas), len(next(iter(areas.values()))), 2))
    curves[:, :, 1] = 2 * np.array(list(areas.values()))
    return perturbation_study.NetworkPerturbation(
        "txl", "3 inputs", tuple(areas), [0.0, 1.0], curves.tolist(), "total variation"
    )


def test_the_sentence_names_the_winner_whoever_it_is():
    areas = {
        "token tensor (norm)": [0.5, 0.52, 0.51],
        "rollout": [0.3, 0.31, 0.29],
        "relevance": [0.7, 0.71, 0.7],
        "random": [0.3, 0.3, 0.31],
    }
    said = perturbation_study.sentence(result(areas))
    assert said.startswith("**txl**: *relevance* finds the tokens that matter best, area 0.703")
    assert "clearly better than all others" in said
    assert "*token tensor (norm)*, differs from it by -0.193" in said
    assert "(clear)" in said
    areas["token tensor (norm)"] = [0.9, 0.2, 0.8]
    assert "not clearly better than *token tensor (norm)*" in perturbation_study.sentence(result(areas))


def test_the_study_is_written_and_read_again(tmp_path, monkeypatch):
    areas = {"token tensor (norm)": [0.5, 0.52], "random": [0.3, 0.31]}
    calls = []

    def measure(name, n_inputs, say):
        calls.append(name)
        return result(areas)

    monkeypatch.setattr(perturbation_study, "_measure", measure)
    for _ in range(2):
        found = perturbation_study.perturb(["txl"], tmp_path)
    assert calls == ["txl"]
    written = perturbation_study.write_perturbation(found, tmp_path).read_text(encoding="utf-8")
    assert "| token tensor (norm) | 0.510 |" in written
    document = tmp_path / "document.md"
    for part, says_all in (("perturbation", True), ("which tokens", False)):
        document.write_text("before\n\n{}\n\n{}\n\nafter\n".format(*marks(part)))
        write_parts(perturbation_study.perturbation_parts(found), [document])
        text = document.read_text(encoding="utf-8")
        assert "**txl**: *token tensor (norm)* finds" in text
        assert ("| 0.510 |" in text) is says_all
    assert (tmp_path / "perturbation.csv").read_text().startswith("network,method,area,low,high\ntxl,token tensor")
    with pytest.raises(ht.HeadtreeError, match="networks must be some of txl, vit, minilm"):
        perturbation_study.perturb(["bert"], tmp_path)
