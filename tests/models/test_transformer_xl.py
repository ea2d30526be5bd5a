"""Relative attention and memory against literal loops; what capture sees of them."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

import headtree as ht
from headtree.models.bundled.initial_weights import draw_weights
from headtree.models.bundled.transformer_xl import (
    RelativeAttention,
    TransformerXL,
    TransformerXLConfig,
    relative_shift,
    sinusoids,
)

SIZES = TransformerXLConfig(
    vocabulary=11, n_layers=3, n_heads=2, width=8, head_size=5, inner=12, embedding=6, memory=4
)


def network(**changes) -> TransformerXL:
    model = TransformerXL(TransformerXLConfig(**{**vars(SIZES), **changes})).double().eval()
    draw_weights(model, seed=3, scale=0.4)
    return model


@pytest.mark.parametrize(("n_queries", "n_keys"), [(1, 1), (4, 4), (3, 7), (5, 6)])
def test_relative_shift_puts_distances_under_their_keys(n_queries, n_keys):
    x = torch.randn(2, n_queries, n_keys)
    shifted = relative_shift(x)
    for i in range(n_queries):
        for j in range(n_keys):
            distance = i + n_keys - n_queries - j
            if distance >= 0:
                assert torch.equal(shifted[:, i, j], x[:, i, n_keys - 1 - distance])


def test_relative_shift_fills_later_keys_from_the_next_row():
    shifted = relative_shift(torch.arange(1.0, 10).reshape(3, 3))
    assert shifted[0].tolist() == [3, 0, 4]  # own distance 0, the padding, then what belongs to query 1


def literal_scores(attention: RelativeAttention, hidden, past):
    """The formula of the docstring, entry by entry."""
    known = torch.cat([past, hidden])
    n_past, n_heads = len(past), attention.n_heads
    size = attention.query.out_features // n_heads
    width = hidden.shape[1]
    scores = torch.full((n_heads, len(hidden), len(known)), -math.inf, dtype=hidden.dtype)
    for h in range(n_heads):
        rows = slice(h * size, (h + 1) * size)
        for i in range(len(hidden)):
            query = attention.query.weight[rows] @ hidden[i]
            for j in range(i + n_past + 1):
                distance = i + n_past - j
                angles = [distance / 10000 ** (2 * f / width) for f in range(width // 2)]
                wave = torch.tensor([*map(math.sin, angles), *map(math.cos, angles)], dtype=hidden.dtype)
                key = attention.key.weight[rows] @ known[j]
                position = attention.position.weight[rows] @ wave
                by_content = (query + attention.content_bias[h, 0]) @ key
                by_distance = (query + attention.position_bias[h, 0]) @ position
                scores[h, i, j] = (by_content + by_distance) / math.sqrt(size)
    return scores


def literal_attention(attention, hidden, past):
    probs = torch.softmax(literal_scores(attention, hidden, past), dim=-1)
    known = torch.cat([past, hidden])
    size = attention.query.out_features // attention.n_heads
    rows = []
    for i in range(len(hidden)):
        heads = []
        for h in range(attention.n_heads):
            value = attention.value.weight[h * size : (h + 1) * size]
            heads.append(sum(probs[h, i, j] * (value @ known[j]) for j in range(len(known))))
        rows.append(attention.output.weight @ torch.cat(heads))
    return torch.stack(rows)


def literal_network(model, ids, memory):
    """One text through the whole network; memory is a list of states for each layer."""
    scale = math.sqrt(model.config.width)
    hidden = [scale * (model.widen.weight @ model.embedding.weight[token]) for token in ids]
    seen = []
    for block, past in zip(model.blocks, memory, strict=True):
        seen.append([*past, *hidden][-model.config.memory :])
        norm, norm2 = block.attention_norm, block.feed_forward_norm
        empty = torch.zeros(0, model.config.width, dtype=hidden[0].dtype)
        if model.config.pre_norm:
            past = torch.stack([norm(state) for state in past]) if past else empty
            brought = literal_attention(block.attention, torch.stack([norm(state) for state in hidden]), past)
            hidden = [state + more for state, more in zip(hidden, brought, strict=True)]
            hidden = [state + block.feed_forward(norm2(state)) for state in hidden]
        else:
            past = torch.stack(past) if past else empty
            brought = literal_attention(block.attention, torch.stack(hidden), past)
            hidden = [norm(state + more) for state, more in zip(hidden, brought, strict=True)]
            hidden = [norm2(state + block.feed_forward(state)) for state in hidden]
    words = [model.embedding.weight @ (model.narrow.weight @ model.norm(state)) for state in hidden]
    return torch.stack(words) + model.word_bias, seen


@pytest.mark.parametrize("pre_norm", [True, False])
def test_segments_with_memory_are_the_literal_double_loop(pre_norm):
    model = network(pre_norm=pre_norm)
    texts = torch.randint(11, (2, 15), generator=torch.Generator().manual_seed(0))
    memory, literal = None, [[[] for _ in range(3)] for _ in range(2)]
    with torch.no_grad():
        for start, stop in ((0, 3), (3, 10), (10, 15)):  # shorter and longer than the memory
            output = model(texts[:, start:stop], memory)
            memory = output.memory
            for i in range(2):
                logits, literal[i] = literal_network(model, texts[i, start:stop], literal[i])
                assert torch.allclose(output.logits[i], logits, atol=1e-10)
                assert torch.allclose(memory[i], torch.stack([torch.stack(states) for states in literal[i]]))


def test_a_word_does_not_see_later_ones():
    model, ids = network(), torch.arange(8)[None]
    changed = ids.clone()
    changed[0, 5:] = 9
    assert torch.equal(model(ids).logits[:, :5], model(changed).logits[:, :5])


def test_sinusoids_run_from_the_farthest_distance_to_none():
    table = sinusoids(4, 6, torch.device("cpu"))
    assert table[-1].tolist() == [0, 0, 0, 1, 1, 1]
    assert table[0, 0] == pytest.approx(math.sin(3))


@pytest.mark.parametrize("kind", ["scores", "probs"])
def test_captured_heads_are_the_literal_ones_and_later_keys_are_missing(kind):
    model, ids = network(), torch.tensor([[1, 4, 2, 8, 5]])
    (att,) = ht.capture(model, inputs=[{"input_ids": ids}], kind=kind)
    assert att.shape == (6, 5, 5)  # empty memory
    assert [tuple(head) for head in att.heads] == [(layer, head) for layer in range(3) for head in range(2)]
    assert np.array_equal(np.asarray(att.mask)[0], np.triu(np.ones((5, 5), dtype=bool), 1))
    block = model.blocks[0]
    hidden = block.attention_norm(math.sqrt(8) * model.widen(model.embedding(ids[0])))
    literal = literal_scores(block.attention, hidden, hidden[:0])
    expected = literal if kind == "scores" else torch.softmax(literal, dim=-1)
    present = ~torch.as_tensor(np.asarray(att.mask)[0])
    assert torch.allclose(att.block()[:2][:, present].double(), expected[:, present], atol=1e-6)


def test_capture_with_a_memory_has_keys_for_it():
    model = network()
    memory = model(torch.tensor([[1, 2, 3, 4, 5, 6]])).memory.detach()
    (att,) = ht.capture(model, inputs=[{"input_ids": torch.tensor([[7, 8, 9]]), "memory": memory}])
    assert att.shape == (6, 3, 7)
    assert not np.asarray(att.mask)[0, :, :5].any()


@pytest.mark.parametrize(
    ("change", "word"), [({"width": 7}, "even"), ({"n_heads": 0}, "n_heads"), ({"dropout": 1.0}, "dropout")]
)
def test_impossible_sizes_are_refused(change, word):
    with pytest.raises(ht.HeadtreeError, match=word):
        TransformerXLConfig(**{**vars(SIZES), **change})
