"""Heads that do alike: attention and values, once more from captured probabilities and written values."""

import numpy as np
import pytest
import torch

import headtree as ht
from headtree.models import functional_similarity as module
from tests.geometry.test_combined_affinity import literal_affinity, literal_similarity
from tests.models.test_activation_cache import built


def cosines(x):
    """Cosines of all pairs of rows, one pair at a time."""
    n = len(x)
    found = np.zeros((n, n))
    for a, b in np.ndindex(n, n):
        u, v = (x[i].astype(np.float64).ravel() for i in (a, b))
        found[a, b] = u @ v / np.sqrt((u @ u) * (v @ v))
    return found


def literal_kernels(view, **given):
    """(attention or values, input, head, head)."""
    probs = [att.filled().values.numpy() for att in view.capture(kind="probs", **given)]
    written = [np.asarray(cache["ov"].values) for cache in view.cache(**given)]
    return np.array([[cosines(x) for x in probs], [cosines(x) for x in written]])


def check(view, **given):
    found = view.head_similarity(**given)
    parts = literal_kernels(view, **given)
    n = parts.shape[1]
    np.testing.assert_allclose(found.inputs.parts, parts, atol=2e-5)
    total, pairs = literal_similarity(parts, np.full(n, 1 / n))
    largest = max(total[pair] for pair in pairs)
    distance = np.array([largest - total[pair] for pair in pairs])
    np.testing.assert_allclose([found.distance[0][pair] for pair in pairs], distance, atol=2e-3)
    np.testing.assert_allclose(found.combine(), literal_affinity(parts, np.full(n, 1 / n)), atol=1e-3)
    np.testing.assert_array_equal(found.affinity[0], found.combine())
    weights = np.arange(1.0, n + 1)
    np.testing.assert_allclose(found.combine(weights), literal_affinity(parts, weights / weights.sum()), atol=1e-3)
    assert (found.kind, found.n_inputs, found.notes) == ("function", n, ())
    assert found.distance.shape == found.affinity.shape == (1, *parts.shape[2:])
    np.testing.assert_array_equal(np.diag(found.distance[0]), 0)
    return found


@pytest.mark.parametrize("name", ["gpt2", "bert", "llama", "vit"])
def test_kernels_are_cosines_of_attention_and_of_what_heads_write(name):
    model, read = built(name)
    view = ht.ModelView(model)
    found = check(view, inputs=read)
    assert found.heads == view.capture(inputs=read)[0].heads


@pytest.mark.parametrize(("name", "part"), [("t5", "cross"), ("bart", "decoder")])
def test_parts_and_selected_heads(name, part):
    model, read = built(name)
    check(ht.ModelView(model), inputs=read, part=part)
    check(ht.ModelView(model), inputs=read, part=part, heads=[(0, 1), (0, 3), (1, 0), (1, 2), (1, 3)])


@pytest.mark.parametrize("name", ["txl", "vit"])
def test_the_bundled_networks(name):
    network = ht.load_bundled(name)
    found = check(ht.ModelView(network.model), inputs=network.inputs[:2], layers=[1, 4])
    agreed = ht.consensus(found, n_bootstrap=5)
    assert agreed.kind == "function"
    np.testing.assert_array_equal(agreed.affinity, found.combine())


def test_blocks_of_keys_give_what_one_block_gives(monkeypatch):
    model, read = built("llama")
    whole = ht.ModelView(model).head_similarity(inputs=read)
    monkeypatch.setattr(module, "_ENTRIES", 5 * 12 * 32)  # five keys of twelve heads
    blocks = ht.ModelView(model).head_similarity(inputs=read)
    np.testing.assert_allclose(blocks.inputs.parts, whole.inputs.parts, atol=1e-12)


def test_a_head_that_equals_the_mean_has_a_note_and_is_like_no_other():
    """All heads of a layer with the same values: their mean is each of them."""
    model, read = built("bert")
    attention = model.encoder.layer[0].attention
    with torch.no_grad():
        size = 8
        for head in range(1, 4):
            attention.self.value.weight[head * size : (head + 1) * size] = attention.self.value.weight[:size]
            attention.self.value.bias[head * size : (head + 1) * size] = attention.self.value.bias[:size]
            columns = slice(head * size, (head + 1) * size)
            attention.output.dense.weight[:, columns] = attention.output.dense.weight[:, :size]
    found = ht.ModelView(model).head_similarity(inputs=read, layers=[0])
    assert found.notes == (
        "the values of L0H0, L0H1, L0H2, L0H3 equal their mean over all heads, so they are not compared",
    )
    assert np.isfinite(found.affinity).all()


def test_heads_that_cannot_be_told_apart_are_named():
    model, read = built("bert")
    layer = model.encoder.layer[0].attention
    with torch.no_grad():
        for part in (layer.self.query, layer.self.key, layer.self.value):
            part.weight[8:16], part.bias[8:16] = part.weight[:8], part.bias[:8]
        layer.output.dense.weight[:, 8:16] = 2 * layer.output.dense.weight[:, :8]
    found = ht.ModelView(model).head_similarity(inputs=read, layers=[0, 1])
    assert found.notes == ("some heads look and write alike, but for a factor, on every input: L0H0, L0H1",)


def test_other_kinds_are_for_tensors():
    view = ht.ModelView(built("bert")[0])
    with pytest.raises(ht.HeadtreeError, match=r"pass captured tensors: ht\.head_similarity\(view\.capture"):
        view.head_similarity(inputs=built("bert")[1], kind="attention")
    with pytest.raises(ht.HeadtreeError, match=r"kind must be one of \('attention'"):
        view.head_similarity(inputs=built("bert")[1], kind="values")


def test_kernels_do_not_depend_on_the_number_of_threads():
    network = ht.load_bundled("txl")
    view = ht.ModelView(network.model, tokenizer=network.tokenizer)
    inputs = [{"input_ids": item["input_ids"][:, :16]} for item in network.inputs[:1]]
    before = torch.get_num_threads()
    found = []
    try:
        for n_threads in (1, 2):
            torch.set_num_threads(n_threads)
            found.append(view.head_similarity(inputs=inputs).inputs.parts)
    finally:
        torch.set_num_threads(before)
    np.testing.assert_array_equal(*found)
