"""Planted tensors on which each claim is true, and on which it is not."""

import numpy as np
import pytest

import headtree as ht
from headtree.measures.per_input import measure_input
from headtree.study.claims.along_training import training_findings
from headtree.study.claims.catalogue import TESTS, findings
from headtree.study.claims.evidence import Evidence, measure_beyond
from headtree.study.claims.pairs import PAIR_TESTS, pair_findings
from headtree.study.claims.single_heads import matrix_regularity


def tensor(seed, n=24, n_heads=20, noise=0.05, kind="scores", scale=1.0, shuffled=True):
    """Heads of rising size, constant on blocks of tokens; the same heads and tokens for all seeds."""
    fixed, rng = np.random.default_rng(1), np.random.default_rng([seed, 2])
    rows, columns = (fixed.permutation(n) if shuffled else np.arange(n) for _ in range(2))
    base = fixed.standard_normal((n_heads, 4, 4))[:, rows * 4 // n][:, :, columns * 4 // n]
    size = np.linspace(0.5, 2, n_heads)[:, None, None]
    return ht.AttentionTensor.from_array(scale * size * (base + noise * rng.standard_normal(base.shape)), kind=kind)


def noise_tensor(seed, kind="scores", shape=(20, 24, 24)):
    return ht.AttentionTensor.from_array(np.random.default_rng([seed, 3]).standard_normal(shape), kind=kind)


def measured(make, n_inputs=4, **settings):
    atts = [make(seed, **settings) for seed in range(n_inputs)]
    pairs = [(att, ht.organize(att)) for att in atts]
    return [Evidence(measure_input(*pair), measure_beyond(*pair, 400)) for pair in pairs]


@pytest.fixture(scope="module")
def blocks():
    return measured(tensor, n=32, noise=0.02)


@pytest.fixture(scope="module")
def noise():
    return measured(noise_tensor, n_inputs=6)


def verdicts(found):
    return {finding.claim.key: finding.verdict for finding in found}


def test_claims_hold_where_they_are_planted(blocks):
    found = verdicts(findings("blocks", blocks))
    for key in (
        "regular",
        "regularity-given",
        "regularity-random",
        "sparsity-given",
        "sparsity-random",
        "spread",
        "same-top",
        "same-bottom",
        "network-coefficients",
    ):
        assert found[key] == "agrees", key


def test_noise_has_no_regularity_and_no_lasting_order(noise):
    found = verdicts(findings("noise", noise))
    for key in ("regular", "spread", "same-top", "same-bottom"):
        assert found[key] == "differs", key
    assert found["clusters"] == "differs"
    of_txl = verdicts(findings("txl", noise))  # of which the paper says the opposite: a continuum
    assert of_txl["continuum"] == "agrees"
    assert "clusters" not in of_txl
    assert "agrees" not in (found["sparsity-given"], found["sparsity-random"])


def test_an_order_that_is_there_already_is_not_an_achievement():
    """Blocks of neighbouring tokens: halving the given order fits them, the found trees can hardly be better."""
    ordered = measured(tensor, shuffled=False, noise=0.3)
    found = {finding.claim.key: finding for finding in findings("ordered", ordered)}
    assert found["sparsity-given"].measured.number < found["sparsity-random"].measured.number
    assert found["regularity-given"].verdict != "agrees"


def test_small_scores_are_invariant_and_large_ones_are_not():
    small, large = (measured(tensor, scale=scale, n_inputs=3) for scale in (0.02, 3.0))
    of_small, of_large = (verdicts(findings("net", inputs)) for inputs in (small, large))
    assert of_small["invariance"] == "agrees"
    assert of_large["invariance"] == "differs"
    assert of_small["approximation-complete"] == "agrees"
    assert of_large["approximation-complete"] == "differs"
    assert of_small["approximation-printed"] == "differs"  # softmax of nearly nothing is all boundary


def test_entropy_follows_size(blocks):
    """Heads differ in size only: raw entropies and variations rise with it."""
    found = {finding.claim.key: finding for finding in findings("net", blocks)}
    assert found["sharp-transitions"].verdict == "agrees"
    assert found["sharp-transitions"].measured.number > 0.5


def test_probs_leave_out_what_needs_scores():
    inputs = measured(noise_tensor, kind="probs", shape=(6, 8, 8), n_inputs=3)
    for test, finding in zip(TESTS, findings("net", inputs), strict=True):
        if test.needs_scores:
            assert finding.verdict == "cannot be decided"
            assert "needs scores" in finding.note
        else:
            assert finding.note == ""


def test_every_claim_is_named_once():
    keys = [test.claim.key for test in (*TESTS, *PAIR_TESTS)]
    assert len(set(keys)) == len(keys)


def test_pairs_compare_normalised_networks(blocks, noise):
    found = {f.claim.key: f for f in pair_findings(("noise", "blocks"), noise, blocks)}
    assert found["high-frequency"].verdict == "agrees"
    turned = {f.claim.key: f for f in pair_findings(("blocks", "noise"), blocks, noise)}
    assert turned["high-frequency"].verdict == "differs"
    assert turned["more-clustered"].measured.number == pytest.approx(-found["more-clustered"].measured.number)
    large = measured(noise_tensor, n_inputs=3, shape=(20, 24, 24))
    same = {f.claim.key: f for f in pair_findings(("noise", "noise"), noise, large)}
    assert same["entropy-raw"].verdict == "cannot be decided"


def test_size_alone_moves_raw_entropies_only():
    a, b = measured(tensor, n_inputs=3), measured(tensor, n_inputs=3, scale=10.0)
    found = {f.claim.key: f for f in pair_findings(("large", "small"), b, a)}
    assert found["entropy-raw"].measured.number == pytest.approx(1)
    assert found["entropy-raw"].verdict == "agrees"
    assert found["entropy-relative"].measured.number == pytest.approx(0, abs=1e-9)
    assert found["high-frequency"].measured.number == pytest.approx(0, abs=1e-9)


def test_along_training():
    """Scores that only grow: mixed differences grow, and the two equations part."""
    stages = []
    for scale in (0.05, 0.2, 0.8, 2.0):
        atts = [tensor(seed, scale=scale) for seed in range(3)]
        stages.append([ht.softmax_invariance(att, ht.organize(att)) for att in atts])
    found = verdicts(training_findings("net", stages))
    assert found == {"training-mixed": "agrees", "training-closer": "differs"}
    found = verdicts(training_findings("net", stages[::-1]))
    assert found == {"training-mixed": "differs", "training-closer": "differs"}


def test_heads_by_themselves_become_regular():
    att = tensor(0, n_heads=5)
    found = matrix_regularity(att)
    assert [finding.verdict for finding in found.findings("net")] == ["agrees", "agrees"]
    assert set(found.exponent) == set(found.constant) == {"given", "organized", "shuffled"}
    single = ht.holder_exponent(att.values[2], *(ht.PartitionTree.halving(24) for _ in range(2)))
    assert found.exponent["given"][2] == pytest.approx(float(single.exponent))
    assert found.constant["given"][2] == pytest.approx(float(single.constant))
