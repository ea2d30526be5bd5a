"""Paths against products of matrices written out by hand, and sums against every architecture's own numbers."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch

import headtree as ht
from headtree import _memory
from headtree.depth.frozen_network import count_paths, random_path
from headtree.depth.norms import relative_residual
from headtree.errors import HeadtreeError
from headtree.models.bundled.transformer_xl import TransformerXL, TransformerXLConfig
from tests.depth.conftest import ORDERS, X, network
from tests.depth.test_residual import PARTS, zoo_model
from tests.models import zoo


def terms_by_hand(net, x, order):
    """Every path's term of a network of two layers with two heads, by plain products of matrices.

    Norms are a matrix that takes the mean away, times the gain, times what the token's scale is on this input.
    """
    n, width = x.shape
    centre = torch.eye(width, dtype=x.dtype) - 1 / width

    def frozen(norm, entering):
        """Acts on rows: scale of each token · x · (centre · gain)."""
        scale = 1 / torch.sqrt(entering.var(dim=1, correction=0, keepdim=True) + norm.eps)
        return lambda y: scale * (y @ centre) * norm.weight

    layers = []
    for block in net:
        entering = x if order == "post" else block.first(x)
        qkv = (entering @ block.heads.attention.qkv.weight.T + block.heads.attention.qkv.bias).view(n, 3, 2, 8)
        before = (lambda y: y) if order == "post" else frozen(block.first, x)
        heads = []
        for h in range(2):
            q, k = qkv[:, 0, h], qkv[:, 1, h]
            scores = q @ k.T / math.sqrt(8)
            if order == "parallel":
                scores = scores.masked_fill(torch.ones(n, n).triu(1).bool(), -torch.inf)
            p = scores.softmax(-1)
            w_v = block.heads.attention.qkv.weight.view(3, 2, 8, width)[2, h].T
            w_o = block.heads.out.weight[:, h * 8 : (h + 1) * 8].T
            heads.append(lambda y, p=p, w_v=w_v, w_o=w_o, before=before: p @ before(y) @ w_v @ w_o)
        middle = x + block.heads(entering[None])[0]
        if order == "post":
            first = frozen(block.first, middle)
            x = block.first(middle)
            second = frozen(block.second, x)
            x = block.second(x)
            after = lambda y, first=first, second=second: second(first(y))  # noqa: E731
        else:
            after, x = (lambda y: y), middle
        layers.append(([*heads, lambda y: y], after))
    terms = {}
    for choice in itertools.product((0, 1, 2), repeat=len(layers)):
        y = X[0].double()
        for (steps, after), chosen in zip(layers, choice, strict=True):
            y = after(steps[chosen](y))
        terms[tuple(None if chosen == 2 else chosen for chosen in choice)] = y
    return terms, x


@pytest.mark.parametrize("order", ORDERS)
def test_every_path_is_its_product_of_matrices(order):
    net = network(order, 2).double()
    with torch.no_grad():
        terms, output = terms_by_hand(net, X[0].double(), order)
        (frozen,) = ht.frozen_networks(net, inputs=X[:1].double())
        sums, biases = frozen.by_length()
        for path, term in terms.items():
            torch.testing.assert_close(frozen.path(path)[0], term, atol=1e-9, rtol=1e-9)
        for length in range(3):
            expected = sum(term for path, term in terms.items() if 2 - path.count(None) == length)
            torch.testing.assert_close(sums[length][0], expected, atol=1e-9, rtol=1e-9)
    total = torch.stack(sums).sum(0) + biases
    # in double precision the sum of all paths is the network's own output to rounding
    torch.testing.assert_close(total[0], output, atol=1e-11, rtol=1e-11)
    torch.testing.assert_close(frozen.output[0], output, atol=1e-11, rtol=1e-11)


@pytest.mark.parametrize(("name", "part"), PARTS)
def test_paths_add_up_for_every_architecture(name, part):
    case = zoo.ALL[name]
    found = ht.path_lengths(zoo_model(name), inputs=case.read(), part=part)
    assert found.difference.max() < 1e-6  # the model's own single precision
    np.testing.assert_allclose(found.share.sum(axis=1) + found.bias_share, 1, atol=1e-9)
    np.testing.assert_allclose(found.head_share.sum(axis=(1, 2)), found.share[:, 1], atol=1e-5)
    assert found.n_paths == tuple(math.comb(len(found.layers), k) * 4**k for k in range(len(found.layers) + 1))
    assert np.isfinite(found.residual).all()


def test_the_rows_of_a_stream_that_ends_without_a_batch_axis_are_tokens():
    read = {"input_ids": zoo.ALL["opt"].read()["input_ids"][:1]}
    found = ht.path_lengths(zoo_model("opt"), inputs=read)
    (frozen,) = ht.frozen_networks(zoo_model("opt"), inputs=read)
    expected = [float(relative_residual(term.reshape(12, 32))) for term in frozen.by_length()[0]]
    np.testing.assert_allclose(found.residual[0], expected, rtol=1e-9)


@pytest.mark.parametrize("pre_norm", [True, False])
def test_transformer_xl(pre_norm):
    config = TransformerXLConfig(
        20, n_layers=3, n_heads=2, width=16, head_size=6, inner=8, embedding=8, pre_norm=pre_norm
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = TransformerXL(config).eval()
    read = {"input_ids": torch.arange(9)[None]}
    assert ht.path_lengths(model, inputs=read).difference.max() < 1e-6
    assert ht.rank_residual(model, inputs=read).trained.shape == (4, 1, 4)
    read["memory"] = torch.randn(1, 3, 4, 16)
    assert ht.rank_residual(model, inputs=read).trained.shape == (4, 1, 4)


def test_numbers_of_paths():
    assert count_paths([12] * 3) == (1, 36, 432, 1728)
    assert count_paths([2, 3]) == (1, 5, 6)
    assert sum(count_paths([12] * 12)) == 13**12


def test_random_paths_are_drawn_with_equal_chance():
    rng = np.random.default_rng(0)
    drawn = [tuple(random_path([2, 3, 1], 2, rng)) for _ in range(4000)]
    assert all(3 - path.count(None) == 2 for path in drawn)
    every = [
        path for path in itertools.product((None, 0, 1), (None, 0, 1, 2), (None, 0)) if 3 - path.count(None) == 2
    ]
    assert len(every) == count_paths([2, 3, 1])[2]
    counts = np.array([drawn.count(path) for path in every])
    expected = 4000 / len(every)
    assert ((counts - expected) ** 2 / expected).sum() < 30  # chi-squared, 10 degrees: 1 in 1000


def test_random_paths_sum_and_repeat():
    (frozen,) = ht.frozen_networks(network("pre"), inputs=X[:1])
    one = frozen.random_paths(2, n=3, rng=5)
    assert torch.equal(one, frozen.random_paths(2, n=3, rng=5))
    rng = np.random.default_rng(5)
    by_hand = sum(frozen.path(random_path([2, 2, 2], 2, rng)) for _ in range(3))
    torch.testing.assert_close(one, by_hand)
    zero, _ = frozen.by_length()
    torch.testing.assert_close(frozen.random_paths(0), zero[0])


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda f: f.path([0]), "must have 3 entries"),
        (lambda f: f.path([0, 2, None]), r"heads\[1\] must be None or 0 to 1, got 2"),
        (lambda f: f.path("abc"), "must be a list"),
        (lambda f: f.random_paths(4), "length must be 0 to 3"),
        (lambda f: f.random_paths(1.5), "length must be a whole number"),
        (lambda f: f.random_paths(1, n=0), "n must be at least 1"),
    ],
)
def test_bad_requests(call, said):
    (frozen,) = ht.frozen_networks(network("pre"), inputs=X[:1])
    with pytest.raises(HeadtreeError, match=said):
        call(frozen)


def test_layer_applications_grow_with_the_square_of_depth(monkeypatch):
    from headtree.models.graph.linearize import LinearMap

    calls = []
    original = LinearMap.__call__

    def counted(*args, **kwargs):
        calls.append(args)
        return original(*args, **kwargs)

    monkeypatch.setattr(LinearMap, "__call__", counted)
    counts = {}
    for n_layers in (2, 4, 8):
        (frozen,) = ht.frozen_networks(network("pre", n_layers), inputs=X[:1])
        calls.clear()
        frozen.by_length()
        counts[n_layers] = len(calls) - (n_layers + 2)  # the end of the stream, for every length and the biases
    assert counts == {n: n * (n + 1) // 2 + n for n in (2, 4, 8)}


def test_heads_that_carry_short_paths_are_found():
    """A network in which one head writes and the others do not."""
    net = network("pre", 2)
    with torch.no_grad():
        for block in net:
            block.heads.out.weight.zero_()
        net[1].heads.out.weight[:, 8:] = torch.randn(16, 8)
    found = ht.path_lengths(net, inputs=X)
    assert found.top_heads(1)[0][0] == "L1H1"
    assert np.abs(np.delete(found.head_share.reshape(2, 4), 3, axis=1)).max() < 1e-9
    np.testing.assert_allclose(found.size[:, 2], 0, atol=1e-12)
    table = found.table()
    assert list(table["length"]) == [0, 1, 2]
    assert list(table["paths"]) == ["1", "4", "4"]


def test_too_long_for_the_memory_is_refused(monkeypatch):

    monkeypatch.setattr(_memory, "available_memory", lambda: 1000)
    with pytest.raises(HeadtreeError, match=r"need about .* pass shorter inputs"):
        ht.path_lengths(network("pre"), inputs=X)


def test_a_layer_that_is_not_linear_in_the_stream_is_refused():
    net = network("pre", 2)
    net[1].heads.register_forward_hook(lambda module, args, output: output.tanh())
    with pytest.raises(HeadtreeError, match=r"layer of '1.heads.attention' is not linear in the stream"):
        ht.path_lengths(net, inputs=X)


def test_all_zeros_have_no_shares():
    net = network("pre", 1)
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.zero_()
    with pytest.raises(HeadtreeError, match="all zeros"):
        ht.path_lengths(net, inputs=0 * X)
