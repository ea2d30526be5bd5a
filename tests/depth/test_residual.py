"""Residual curves against a transformer with switches, written out by hand, and against the definition."""

from __future__ import annotations

import functools
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import headtree as ht
from headtree.depth.norms import composite_norm, relative_residual, residual
from headtree.depth.residual import VARIANTS, rank_residual
from headtree.errors import HeadtreeError, HeadtreeWarning
from headtree.models.given_model import prepare
from headtree.models.graph.read_stream import locate_stream, read_stream
from tests.depth.conftest import ORDERS, Block, Heads, X, network
from tests.models import zoo
from tests.models.test_capture_modules import Attention
from tests.models.test_capture_modules import stack as plain_stack

SWITCHES = {
    "as is": (True, True),
    "without skips": (False, True),
    "without MLPs": (True, False),
    "attention alone": (False, False),
}


def literal_residual(x):
    """Plain loops over the definition."""
    n, d = len(x), len(x[0])
    mean = [sum(x[i][j] for i in range(n)) / n for j in range(d)]

    def norm(rows):
        largest_column = max(sum(abs(rows[i][j]) for i in range(n)) for j in range(d))
        largest_row = max(sum(abs(rows[i][j]) for j in range(d)) for i in range(n))
        return math.sqrt(largest_column) * math.sqrt(largest_row)  # the product may leave the range

    below = norm(x)
    return norm([[x[i][j] - mean[j] for j in range(d)] for i in range(n)]) / below if below else 0.0


@given(st.lists(st.lists(st.floats(-9, 9), min_size=3, max_size=3), min_size=2, max_size=5))
def test_relative_residual_is_its_definition(rows):
    found = float(relative_residual(torch.tensor(rows, dtype=torch.float64)))
    assert found == pytest.approx(literal_residual(rows), rel=1e-9, abs=1e-12)


def test_equal_tokens_have_no_residual_and_zeros_are_defined():
    assert float(relative_residual(torch.ones(4, 3))) == 0
    assert float(relative_residual(torch.zeros(4, 3))) == 0
    assert torch.equal(residual(torch.ones(4, 3)), torch.zeros(4, 3))
    x = torch.randn(5, 4)
    assert float(composite_norm(3 * x)) == pytest.approx(3 * float(composite_norm(x)))


@pytest.mark.parametrize("variant", list(VARIANTS))
@pytest.mark.parametrize("order", ORDERS)
def test_each_surgery_does_what_it_says(order, variant):
    net = network(order)
    skip, mlp = SWITCHES[variant]
    streams = read_stream(
        locate_stream(prepared := prepare(net, inputs=X, kind="probs")), list(prepared.items), VARIANTS[variant]
    )
    x = X
    with torch.no_grad():
        for depth, block in enumerate(net):
            torch.testing.assert_close(streams[depth], x, atol=1e-5, rtol=1e-5)
            x = block.by_hand(x, skip, mlp)
    torch.testing.assert_close(streams[-1], x, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("order", ORDERS)
def test_curves_are_the_residuals_of_the_network_with_switches(order):
    net = network(order)
    found = ht.rank_residual(net, inputs=X, fresh=network(order, seed=1))
    for which, weights in ((found.trained, net), (found.fresh, network(order, seed=1))):
        for v, (skip, mlp) in enumerate(SWITCHES.values()):
            for i in range(len(X)):
                x = X[i : i + 1]
                for depth in range(4):
                    assert which[v, i, depth] == pytest.approx(literal_residual(x[0].tolist()), rel=1e-4)
                    with torch.no_grad():
                        x = weights[depth].by_hand(x, skip, mlp) if depth < 3 else x
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in net.modules())
    with torch.no_grad():
        assert torch.equal(net(X), net(X))


@functools.cache
def zoo_model(name):
    return zoo.ALL[name].build()


PARTS = [(name, part) for name, case in zoo.ALL.items() for part in case.parts if part != "cross"]


@pytest.mark.parametrize(("name", "part"), PARTS)
def test_the_stream_is_what_the_model_returns_as_hidden_states(name, part):
    """Of every architecture; the last of the pre-norm ones is returned behind a further norm, and left out."""
    case, model = zoo.ALL[name], zoo_model(name)
    prepared = prepare(model, inputs=case.read(), part=part, kind="probs")
    streams = read_stream(locate_stream(prepared), list(prepared.items))
    options = {"use_cache": False} if hasattr(model.config, "use_cache") else {}
    with torch.no_grad():
        output = model(**case.read(), output_hidden_states=True, **options)
    hidden = output.hidden_states if part is None else output[f"{part}_hidden_states"]
    assert len(hidden) == len(streams)
    for ours, theirs in zip(streams[:-1], hidden[:-1], strict=True):
        torch.testing.assert_close(ours, theirs, atol=2e-5, rtol=1e-5)  # attention in other kernels


def test_fresh_weights_are_the_models_own_and_repeat():
    model = zoo_model("bert")
    read = zoo.ALL["bert"].read()
    first, again, other = (rank_residual(model, inputs=read, rng=seed) for seed in (0, 0, 1))
    assert np.array_equal(first.fresh, again.fresh)
    assert not np.array_equal(first.fresh, other.fresh)
    assert np.array_equal(first.trained, other.trained)
    without = rank_residual(model, inputs=read, fresh=False)
    assert without.fresh is None
    with pytest.raises(HeadtreeError, match="was not measured"):
        without.curve("as is", fresh=True)
    assert list(without.table())[:2] == ["depth", "trained as is"]
    assert without.curve("as is").shape == (2, 4)
    with pytest.raises(HeadtreeError, match="variant must be one of"):
        without.curve("no skips")


def test_padding_does_not_count():
    model, ids = zoo_model("bert"), zoo.ALL["bert"].read()["input_ids"]
    mask = torch.ones_like(ids)
    mask[1, 8:] = 0
    both = rank_residual(model, inputs={"input_ids": ids, "attention_mask": mask}, fresh=False)
    alone = rank_residual(model, inputs={"input_ids": ids[1:, :8]}, fresh=False)
    np.testing.assert_allclose(both.trained[:, 1], alone.trained[:, 0], rtol=1e-4, atol=1e-6)


def test_one_token_is_refused():
    with pytest.raises(HeadtreeError, match="input 0 must have at least 2 tokens"):
        rank_residual(network("pre"), inputs=X[:, :1], fresh=False)


def test_one_token_is_refused_where_nothing_can_be_followed():
    """XLNet's code squeezes axes of one token away, so that no product could be told from another."""
    for measure in (ht.rank_residual, ht.path_lengths):
        with pytest.raises(HeadtreeError, match="input 0 must have at least 2 tokens"):
            measure(zoo_model("xlnet"), inputs={"input_ids": torch.tensor([[3]])})


@pytest.mark.parametrize("option", [{"layers": [0, 1]}, {"heads": [0]}, {"window": (0, 4)}])
def test_parts_of_a_network_are_refused(option):
    """What leaves the last chosen layer would be taken from the end of the stream."""
    for measure in (ht.rank_residual, ht.path_lengths, ht.frozen_networks):
        with pytest.raises(HeadtreeError, match=f"{next(iter(option))} selects what capture returns"):
            measure(network("pre"), inputs=X, **option)


def test_identical_tokens_stay_identical():
    found = rank_residual(network("pre"), inputs=X[:, :1].expand(-1, 5, -1), fresh=False)
    np.testing.assert_allclose(found.trained, 0, atol=1e-6)


def test_nan_activations_are_named():
    net = network("pre")
    with torch.no_grad():
        net[1].mlp[2].bias[0] = torch.nan
    with pytest.raises(HeadtreeError, match="input 0 has NaN or infinite values after layer 1"):
        rank_residual(net, inputs=X, fresh=False)


def test_nan_where_something_is_removed_warns():
    class Shifted(Heads):
        def forward(self, x):
            return super().forward(x) / (x.abs().sum() > 1e-3).float()

    net = network("pre", 2)
    net[1].heads.out.weight.data.zero_()
    net[0].heads.out.weight.data.zero_()
    net[0].heads.out.bias.data.zero_()
    net[1].first.weight.data.zero_()
    net[1].first.bias.data.zero_()
    net[1].heads.__class__ = Shifted
    with pytest.raises(HeadtreeError, match="NaN or infinite"):
        rank_residual(net, inputs=X, fresh=False)
    net[1].heads.__class__ = Heads
    net[1].heads.out.bias.data.zero_()
    found = rank_residual(net, inputs=X, fresh=False)
    assert found.curve("attention alone")[0, -1] == 0  # all zeros: defined


def test_past_the_context_is_refused():
    with pytest.raises(HeadtreeError, match="the model's context"):
        rank_residual(zoo.ALL["bert"].build(), inputs={"input_ids": torch.zeros(1, 65, dtype=torch.long)})


def test_blocks_that_are_not_recognised_are_named():
    with pytest.raises(HeadtreeError, match=r"no residual stream was found around the attention module '0'"):
        rank_residual(plain_stack(Attention, Attention), inputs=X, fresh=False)


class Mixer(nn.Module):
    def forward(self, x):
        return (x @ x.mT).sigmoid() @ x / 6


class MixerBlock(nn.Module):
    def __init__(self):
        super().__init__()
        self.mixer = Mixer()

    def forward(self, x):
        return x + self.mixer(x)


def test_registered_attention_is_followed():
    net = nn.Sequential(MixerBlock(), MixerBlock()).eval()
    with pytest.raises(HeadtreeError, match="register_attention"):
        rank_residual(net, inputs=X, fresh=False)
    ht.register_attention(Mixer, lambda module, arguments, output: (arguments["x"] @ arguments["x"].mT)[:, None])
    try:
        found = rank_residual(net, inputs=X, fresh=False)
        with pytest.raises(HeadtreeError, match="not a softmax between products"):
            ht.path_lengths(net, inputs=X)
    finally:
        ht.unregister_attention(Mixer)
    assert found.bound is None
    alone = net[0].mixer(X[0])
    assert found.curve("attention alone")[0, 1] == pytest.approx(literal_residual(alone.tolist()), rel=1e-4)


def test_fresh_copies_of_modules_without_configuration():
    from headtree.depth.untrained import fresh_copy

    net = network("pre")
    new = fresh_copy(net, 3)
    assert not torch.equal(new[0].mlp[0].weight, net[0].mlp[0].weight)
    assert torch.equal(new[0].first.weight, torch.ones(16))
    net[0].extra = nn.Parameter(torch.zeros(3))
    with pytest.raises(HeadtreeError, match=r"'0\.extra' belongs to a module without reset_parameters"):
        fresh_copy(net, 0)


@pytest.mark.parametrize(("options", "said"), [({"fresh": "yes"}, "fresh must be"), ({"rng": -1}, "rng must be")])
def test_bad_options(options, said):
    with pytest.raises(HeadtreeError, match=said):
        rank_residual(network("pre"), inputs=X, **options)


class Pure(nn.Module):
    """Attention alone: what the theorem is about, with skips that are cancelled."""

    def __init__(self, scale):
        super().__init__()
        self.layers = nn.ModuleList(Heads() for _ in range(2))
        for layer in self.layers:
            for part in (layer.attention.qkv, layer.out):
                nn.init.normal_(part.weight, std=scale)
                nn.init.zeros_(part.bias)

    def forward(self, x):
        for layer in self.layers:
            x = x + layer(x)
        return x


@pytest.mark.parametrize("scale", [0.02, 0.03])
def test_attention_alone_stays_below_the_bound(scale):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        net = Pure(scale).eval().double()  # the bound soon is below the rounding of single precision
    found = rank_residual(net, inputs=0.1 * X.double(), fresh=False)
    rounding = 1e-15
    assert (found.curve("attention alone") <= np.exp(found.log_bound) * (1 + 1e-9) + rounding).all()
    assert (np.exp(found.log_bound[:, -1]) < 0.5).all()  # so that the comparison says something
    beta = max(
        float(np.abs(qk).sum(0).max() * np.sqrt(np.abs(ov).sum(0).max() * np.abs(ov).sum(1).max()))
        for layer in ht.head_weights(net, inputs=X.double())
        for qk, ov in zip(layer.qk.double().numpy(), layer.ov.double().numpy(), strict=True)
    )
    assert found.bound.beta == pytest.approx(beta, rel=1e-5)
    assert found.bound.lipschitz == (1.0, 1.0)
    factor = 4 * beta * 2 / math.sqrt(8)
    x = literal_norm(residual(0.1 * X[0]))
    by_hand = 4 * math.log(factor) + 9 * math.log(x)
    assert found.bound.log_residual(math.log(x), 2) == pytest.approx(by_hand, rel=1e-6)


def literal_norm(x):
    return float(np.sqrt(np.abs(x.numpy()).sum(0).max() * np.abs(x.numpy()).sum(1).max()))


def test_lipschitz_constant_of_an_mlp_holds_and_a_gate_has_none():
    net = network("pre", 1)
    found = rank_residual(net, inputs=X, fresh=False)
    (constant,) = found.bound.lipschitz
    first, second = net[0].mlp[0].weight.detach(), net[0].mlp[2].weight.detach()
    assert constant == pytest.approx(1.1289 * literal_norm(first.T) * literal_norm(second.T), rel=1e-3)
    generator = torch.Generator().manual_seed(0)
    for _ in range(50):
        a, b = torch.randn(2, 6, 16, generator=generator)
        with torch.no_grad():
            change = net[0].mlp(a) - net[0].mlp(b)
        assert literal_norm(change) <= constant * literal_norm(a - b)
    assert found.log_bound_with_mlps is not None
    gated = rank_residual(zoo.ALL["llama"].build(), inputs=zoo.ALL["llama"].read(), fresh=False)
    assert gated.bound.lipschitz == (None, None, None)
    assert gated.log_bound_with_mlps is None
    assert gated.bound.log_residual(0.0, 2, with_mlps=True) == math.inf


def test_block_by_hand_is_the_block():
    for order in ORDERS:
        block = Block(order).eval()
        with torch.no_grad():
            torch.testing.assert_close(block(X.clone()), block.by_hand(X, True, True), atol=1e-5, rtol=1e-5)


def test_warning_class_is_used_for_curves_without_values():
    from headtree.depth.residual import _check_finite

    with pytest.warns(HeadtreeWarning, match="without skips, the stream of input 3 has NaN"):
        _check_finite(np.array([[1.0, np.nan]]), "without skips", [3])
