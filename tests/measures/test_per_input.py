"""The record of one input holds what the measures say one by one, and comes back from its file bit for bit."""

from dataclasses import replace

import numpy as np
import pytest

import headtree as ht
from headtree.errors import HeadtreeError
from headtree.measures.per_input import MeasuredInput, measure_input
from headtree.tensor.probabilities import as_probabilities
from tests.runs.examples import small_run, tensors
from tests.test_json import same


@pytest.fixture(scope="module", params=["scores", "probs"])
def example(request):
    att = tensors(1, kind=request.param, n_tokens=(15,))[0]
    org = ht.organize(att)
    return att, org, measure_input(att, org, head_functions=50, network_functions=20, rng=3)


def test_it_holds_what_each_measure_says(example):
    att, org, found = example
    of_heads = ht.head_entropy(att, org, 50)
    of_network = ht.network_entropy(att, org, 20)
    np.testing.assert_array_equal(found.entropy, of_heads.raw)
    np.testing.assert_array_equal(found.entropy_relative, of_heads.relative)
    np.testing.assert_array_equal(found.norm, of_heads.norm)
    assert (found.network_entropy, found.network_functions) == (float(of_network), of_network.n_functions)
    assert np.abs(found.network_coefficients).sum() == pytest.approx(found.network_entropy)
    expected = ht.sparsity(att, org, rng=3)
    assert same(found.sparsity, expected)
    assert found.n_filled == expected.n_filled > 0
    fits = ht.regularity(att, org, rng=3).by_order
    assert list(found.exponent) == ["organized", "given"]
    for order, exponent in found.exponent.items():
        np.testing.assert_array_equal(exponent, fits[order].exponent)
    alone = ht.holder_exponent(att.filled().values, *list(org.trees)[1:])
    np.testing.assert_array_equal(found.exponent["organized"], alone.exponent)


def test_the_structure_is_the_same_measure_of_probabilities(example):
    att, org, found = example
    probs = as_probabilities(att)
    np.testing.assert_array_equal(found.structure, ht.head_entropy(probs, org, 50).raw)
    assert probs.kind == "probs"
    if att.kind == "scores":  # constants of rows do not count
        moved = replace(att, values=np.asarray(att.values, np.float64) + 8 * np.arange(15)[:, None])
        shifted = measure_input(moved, org, head_functions=50, network_functions=20, rng=3)
        np.testing.assert_allclose(shifted.structure, found.structure, rtol=1e-5)


def test_the_fine_share_is_the_energy_outside_the_coarsest_functions(example):
    att, org, found = example
    n = max(1, int(0.01 * np.prod(att.shape)))
    curve = ht.sparsity(att, org, counts=[n]).by_order["organized"]
    assert found.fine_share == float(curve.coarsest[0] ** 2)


def test_invariance_is_of_some_heads_and_says_of_which(example):
    att, org, found = example
    if att.kind == "probs":
        assert found.invariance is None
        return
    names = [str(head) for head in found.invariance.heads]
    assert len(names) == 8
    assert (names[0], names[-1]) == (str(att.heads[0]), str(att.heads[-1]))
    every = ht.softmax_invariance(att, org)
    chosen = [every.heads.index(head) for head in found.invariance.heads]
    np.testing.assert_array_equal(found.invariance.distance, every.distance[chosen])


def test_it_comes_back_from_its_file(example):
    _, _, found = example
    again = MeasuredInput.from_json(found.to_json())
    assert same(found, again)
    assert again.sparsity.gain == found.sparsity.gain


def test_a_run_stores_it(tmp_path):
    run = small_run(tmp_path / "run")
    files = [f"measured/input_{i:05d}.json" for i in range(3)]
    assert run.record.steps["measure"].files == (*files, "measures.json")
    for i, stored in enumerate(run.measured):
        att = run.attention[i]
        again = measure_input(
            att.centred(), run.organization[i], head_functions=60, network_functions=30, probs=att
        )
        assert same(stored, again)
    assert list(run.heads["structure_1"]) == pytest.approx(list(run.measured[1].structure))
    with pytest.raises(HeadtreeError, match="org must be the organization of att"):
        measure_input(run.attention[0], run.organization[1])
