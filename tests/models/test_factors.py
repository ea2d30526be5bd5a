"""Tensors that hold queries and keys, against those that hold all values."""

import copy
import functools
import warnings

import numpy as np
import pytest
import torch

import headtree as ht
from headtree.models.given_model import prepare
from headtree.questionnaire import settings as limits
from headtree.tensor import probabilities
from headtree.tensor.factored_array import FactoredArray, LayerFactors
from tests.models import zoo

CASES = [(name, part) for name, case in zoo.ALL.items() for part in case.parts]


@functools.cache
def model(name):
    return zoo.ALL[name].build()


@functools.cache
def both(name, part, kind):
    prepared = prepare(model(name), inputs=zoo.ALL[name].read(), kind=kind, part=part)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ht.HeadtreeWarning)
        return prepared.run(), prepared.stored_as("factors").run()


@pytest.mark.parametrize("kind", ["scores", "probs"])
@pytest.mark.parametrize(("name", "part"), CASES)
def test_factors_multiply_out_to_the_dense_values(name, part, kind):
    for dense, factored in zip(*both(name, part, kind), strict=True):
        theirs, ours = dense.block(), factored.block()
        if dense.mask is not None:
            assert torch.equal(dense.mask, factored.mask)
            theirs, ours = theirs.masked_fill(dense.mask, 0), ours.masked_fill(dense.mask, 0)
        torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-4)
        assert (dense.heads, dense.queries, dense.keys) == (factored.heads, factored.queries, factored.keys)
        assert (dense.sinks is None) == (factored.sinks is None)


def test_most_models_show_factors():
    shown = {name for name, part in CASES for att in both(name, part, "scores")[1] if is_factored(att)}
    assert len(shown) > len(zoo.ALL) / 2, sorted(set(zoo.ALL) - shown)


def is_factored(att):
    return isinstance(att.values, FactoredArray)


def test_capture_stores_factors():
    (att,) = ht.capture(
        model("gpt2"), inputs={"input_ids": zoo.ALL["gpt2"].read()["input_ids"][:1]}, store="factors"
    )
    assert is_factored(att)
    assert "as factors" in repr(att)


@pytest.mark.parametrize("kind", ["scores", "probs"])
@pytest.mark.parametrize(("name", "part"), [("gpt2", None), ("t5", "encoder")])
def test_double_precision_stays_double(name, part, kind):
    """By default the values of a model in double precision are double, as those of a dense tensor are."""
    own = copy.deepcopy(model(name)).double()
    given = {key: x.double() if x.is_floating_point() else x for key, x in zoo.ALL[name].read().items()}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ht.HeadtreeWarning)
        pairs = [ht.capture(own, inputs=given, part=part, kind=kind, store=store) for store in ("dense", "factors")]
    for dense, factored in zip(*pairs, strict=True):
        assert is_factored(factored)
        theirs, ours = dense.block(), factored.block()
        assert theirs.dtype == ours.dtype == torch.float64
        hidden = torch.zeros((1, 1, 1), dtype=torch.bool) if dense.mask is None else dense.mask
        torch.testing.assert_close(
            ours.masked_fill(hidden, 0), theirs.masked_fill(hidden, 0), atol=1e-12, rtol=1e-12
        )


@pytest.mark.parametrize(("dtype", "expected"), [("float64", torch.float64), ("float32", torch.float32)])
def test_the_type_of_factored_values_is_that_asked_for(dtype, expected):
    given = zoo.ALL["gpt2"].read()
    (att, *_) = ht.capture(copy.deepcopy(model("gpt2")).double(), inputs=given, store="factors", dtype=dtype)
    assert att.block().dtype == att.centred().block().dtype == expected


def test_grouped_keys_are_held_once():
    (_, (factored, *_)) = both("llama", None, "scores")
    layer = factored.values.layers[0]
    assert len(layer.key) < len(layer.query)


def random_factors(n_heads=6, n_queries=24, n_keys=20, n_layers=2, seed=0):
    rng = np.random.default_rng(seed)
    draw = lambda *shape: torch.from_numpy(rng.standard_normal(shape).astype(np.float32))  # noqa: E731
    per_layer = n_heads // n_layers
    return FactoredArray(
        tuple(
            LayerFactors(
                draw(per_layer, n_queries, 4),
                draw(1, n_keys, 4),
                torch.zeros(per_layer, dtype=torch.int64),
                scaling=0.5,
                softcap=3.0 if i else None,
                biases=(draw(per_layer, 1, n_keys),) if i else (),
            )
            for i in range(n_layers)
        )
    )


@pytest.mark.parametrize(
    "index",
    [
        (slice(1, 5), slice(None, None, 3), slice(2, 9)),
        (3, slice(None), -1),
        (Ellipsis, 4),
        2,
        (np.array([4, 0, 5, 0]), slice(None), slice(None)),
        (slice(None, None, -1), slice(0, 2), slice(0, 2)),
        (slice(0, 2), np.array([3, 1]), slice(None)),
    ],
)
def test_any_index_is_that_of_the_whole(index):
    factors = random_factors()
    np.testing.assert_allclose(factors[index], np.asarray(factors)[index], atol=1e-6)


def test_blocks_in_any_order():
    factors, rng = random_factors(), np.random.default_rng(1)
    index = [rng.permutation(n) for n in factors.shape]
    ours = factors.read(tuple(index)).numpy()
    np.testing.assert_allclose(ours, np.asarray(factors)[np.ix_(*index)], atol=1e-6)


@pytest.mark.parametrize("masked", [False, True])
def test_organizing_factors_gives_the_trees_of_the_dense_tensor(masked, monkeypatch):
    monkeypatch.setattr(limits, "EXACT_ENTRIES", 1000)
    factors = random_factors()
    mask = np.triu(np.ones((24, 20), bool), 1) if masked else None
    lazy = ht.AttentionTensor.from_array(factors, mask=mask)
    dense = ht.AttentionTensor.from_array(np.asarray(factors), mask=mask)
    assert list(ht.organize(lazy, memory=3e4).trees) == list(ht.organize(dense).trees)
    assert list(ht.organize(lazy.centred(), memory=3e4).trees) == list(ht.organize(dense.centred()).trees)


def test_centred_factors_are_centred_scores():
    factors = random_factors()
    mask = np.triu(np.ones((24, 20), bool), 1)
    lazy = ht.AttentionTensor.from_array(factors, mask=mask).centred()
    dense = ht.AttentionTensor.from_array(np.asarray(factors), mask=mask).centred()
    assert is_factored(lazy)
    torch.testing.assert_close(
        lazy.block().masked_fill(lazy.mask, 0), dense.block().masked_fill(dense.mask, 0), atol=1e-5, rtol=0
    )


def factored_and_dense(masked):
    """Six heads in two layers, of the same 24 tokens."""
    factors = random_factors(n_keys=24)
    mask = np.triu(np.ones((24, 24), bool), 1) if masked else None
    given = {"mask": mask, "heads_per_layer": 3}
    return (ht.AttentionTensor.from_array(x, **given) for x in (factors, np.asarray(factors)))


@pytest.fixture
def largest(monkeypatch):
    """The most entries that were multiplied out at a time; blocks have those of two heads."""
    found = [0]
    read = FactoredArray.read

    def watched(array, index, device="cpu"):
        block = read(array, index, device)
        found[0] = max(found[0], block.numel())
        return block

    monkeypatch.setattr(FactoredArray, "read", watched)
    monkeypatch.setattr(probabilities, "_ENTRIES", 2 * 24 * 24)
    return found


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("measure", ["head_entropy", "network_entropy", "similarity", "diagnostics"])
def test_measures_read_factors_by_blocks(masked, measure, largest):
    lazy, dense = factored_and_dense(masked)
    org, largest[0] = ht.organize(dense), 0
    found = []
    for att in (dense, lazy):
        if measure == "similarity":
            found.append(ht.head_similarity(att).distance)
        elif measure == "diagnostics":
            tables = ht.diagnostics(att)
            found.append(np.column_stack([tables.heads.select_dtypes("number"), tables.spread.iloc[:, 3:]]))
            found[-1] = np.nan_to_num(np.append(found[-1], tables.layers.select_dtypes("number")))
        else:
            entropy = getattr(ht, measure)(att, org, top=30)
            found.append(np.append(entropy.raw, entropy.norm))
            assert entropy.n_filled == (6 * 23 * 12 if masked else 0)
    np.testing.assert_allclose(found[1], found[0], rtol=1e-4, atol=1e-5)
    assert 0 < largest[0] <= 2 * 24 * 24


def test_a_captured_model_is_measured_alike():
    (dense, *_), (factored, *_) = both("gpt2", None, "scores")
    similar = [ht.head_similarity([att]).distance for att in (dense, factored)]
    np.testing.assert_allclose(similar[0], similar[1], atol=1e-3)
    entropies = [np.asarray(ht.head_entropy(att, ht.organize(dense))) for att in (dense, factored)]
    np.testing.assert_allclose(entropies[0], entropies[1], rtol=1e-4)
    assert "as factors" in repr(factored)


def test_a_model_without_factors_says_so():
    name = next(name for name, part in CASES if part is None and not is_factored(both(name, None, "scores")[1][0]))
    prepared = prepare(model(name), inputs=zoo.ALL[name].read())
    with pytest.warns(ht.HeadtreeWarning, match="not seen as products of queries and keys"):
        assert not prepared.stored_as("factors").as_factors


def test_wrong_ways_to_store():
    prepared = prepare(model("gpt2"), inputs=zoo.ALL["gpt2"].read(), window=(0, 4))
    with pytest.raises(ht.HeadtreeError, match="store='factors' needs kind='scores' or 'probs' and no window"):
        prepared.stored_as("factors")
    with pytest.raises(ht.HeadtreeError, match="float32 or float64, got dtype='float16'"):
        ht.capture(model("gpt2"), inputs=zoo.ALL["gpt2"].read(), store="factors", dtype="float16")
    with pytest.raises(ht.HeadtreeError, match="store must be one of"):
        prepared.stored_as("sparse")
