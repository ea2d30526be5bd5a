"""First weights of a ViT, some of its tokens, names that outlast releases of transformers."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch

import headtree as ht
from headtree.models.bundled import vit
from headtree.models.bundled.initial_weights import draw_vit_weights, draw_weights

SIZES = {
    **vit.SMALL,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 48,
    "image_size": 64,
}


@pytest.fixture(scope="module")
def model():
    made = vit.make_vit(SIZES, 10).eval()
    draw_vit_weights(made, 0)
    return made


def test_the_first_heads_look_at_their_like_and_subtract_it(model):
    for block in model.vit.layers:
        named = {vit.lasting_name(name): value for name, value in block.attention.named_parameters()}
        assert torch.equal(named["q_proj.weight"], named["k_proj.weight"])
        brought = named["o_proj.weight"] @ named["v_proj.weight"]
        assert (torch.diagonal(brought) < 0).all()


def test_first_weights_follow_from_the_seed(model):
    again, other = (vit.make_vit(SIZES, 10) for _ in range(2))
    draw_vit_weights(again, 0)
    draw_vit_weights(other, 1)
    weights = [list(network.parameters()) for network in (model, again, other)]
    assert all(torch.equal(a, b) for a, b in zip(weights[0], weights[1], strict=True))
    assert not all(torch.equal(a, b) for a, b in zip(weights[0], weights[2], strict=True))


def test_first_positions_are_like_their_neighbours(model):
    places = model.vit.embeddings.position_embeddings[0, 1:].detach()
    likeness = (places @ places.T).reshape(4, 4, 4, 4)
    assert torch.allclose(places.norm(dim=1), places[0].norm().expand(16))  # sines and cosines of equal angles
    for row in range(4):
        for column in range(4):
            here = likeness[row, column]
            assert here.argmax() == row * 4 + column
            gaps = [here[row, other] for other in range(column, 4)]
            assert all(a > b for a, b in pairwise(gaps))
    assert torch.allclose(likeness, likeness.permute(1, 0, 3, 2))  # rows and columns are treated alike


def test_drawn_tokens_are_the_class_and_different_patches():
    tokens = vit.drawn_tokens(50, 16, 0.5, torch.device("cpu"))
    assert tokens.shape == (50, 9)
    assert (tokens[:, 0] == 0).all()
    assert all(len(set(row)) == 9 for row in tokens.tolist())
    assert set(tokens[:, 1:].flatten().tolist()) == set(range(1, 17))


@torch.no_grad()
def test_tokens_that_are_not_shown_are_not_there(model):
    show = vit.show_some_tokens(model)
    images = torch.from_numpy(np.random.default_rng(0).normal(size=(3, 3, 64, 64)).astype(np.float32))
    tokens = vit.drawn_tokens(3, 16, 0.5, torch.device("cpu"))
    changed = images.clone()
    for i in range(3):
        for place in sorted(set(range(1, 17)) - set(tokens[i].tolist())):
            row, column = divmod(place - 1, 4)
            changed[i, :, 16 * row : 16 * (row + 1), 16 * column : 16 * (column + 1)] = 9.0
    with show(tokens):
        some, others = model(images).logits, model(changed).logits
    assert torch.equal(some, others)
    plain = model(images).logits
    assert not torch.allclose(plain, some)
    every = torch.arange(17).flip(0)[None].roll(1, dims=1).expand(3, -1)  # class token first, patches backwards
    with show(every):
        assert torch.allclose(model(images).logits, plain, atol=1e-5)  # sums in another order


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("vit.encoder.layer.3.attention.attention.query.weight", "vit.layers.3.attention.q_proj.weight"),
        ("vit.encoder.layer.3.attention.attention.value.bias", "vit.layers.3.attention.v_proj.bias"),
        ("vit.encoder.layer.3.attention.output.dense.weight", "vit.layers.3.attention.o_proj.weight"),
        ("vit.encoder.layer.3.intermediate.dense.weight", "vit.layers.3.mlp.fc1.weight"),
        ("vit.encoder.layer.3.output.dense.weight:scale", "vit.layers.3.mlp.fc2.weight:scale"),
        ("vit.layers.3.mlp.fc2.weight", "vit.layers.3.mlp.fc2.weight"),
        ("blocks.3.attention.output.weight", "blocks.3.attention.output.weight"),
    ],
)
def test_weights_have_one_name_whatever_the_release(old, new):
    assert vit.lasting_name(old) == new


def test_untrained_heads_are_near_uniform_attention(model):
    plain = vit.make_vit(SIZES, 10).eval()
    draw_weights(plain, 0)
    images = torch.from_numpy(np.random.default_rng(0).normal(size=(1, 3, 64, 64)).astype(np.float32))
    for network in (model, plain):
        (att,) = ht.capture(network, inputs=[{"pixel_values": images}], kind="probs")
        assert (att.block() - 1 / 17).abs().sum(dim=-1).mean() / 2 < 0.2
