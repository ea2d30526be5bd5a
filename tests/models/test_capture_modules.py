"""Models that are not transformers' own: torch.nn.MultiheadAttention, plain softmax, registered modules."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import headtree as ht
from headtree.errors import HeadtreeError
from tests.models import zoo

X = torch.randn(2, 6, 16, generator=torch.Generator().manual_seed(0))


class Attention(nn.Module):
    """Written the way people write it."""

    def __init__(self, n_heads=2, causal=False, fused=False):
        super().__init__()
        self.qkv, self.n_heads, self.causal, self.fused = nn.Linear(16, 48), n_heads, causal, fused

    def forward(self, x):
        n_batch, n_tokens, _ = x.shape
        q, k, v = self.qkv(x).view(n_batch, n_tokens, 3, self.n_heads, -1).permute(2, 0, 3, 1, 4)
        if self.fused:
            y = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        else:
            scores = q @ k.mT / q.shape[-1] ** 0.5
            if self.causal:
                scores = scores.masked_fill(torch.ones(n_tokens, n_tokens).triu(1).bool(), -torch.inf)
            y = scores.softmax(-1) @ v
        return y.transpose(1, 2).reshape(x.shape)


def stack(*modules):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(*[module() for module in modules]).eval()


@pytest.mark.parametrize("causal", [False, True])
def test_plain_and_fused_attention_are_found_and_agree(causal):
    plain = stack(*[lambda: Attention(causal=causal)] * 3)
    fused = stack(*[lambda: Attention(causal=causal, fused=True)] * 3)
    for kind in ("scores", "probs"):
        a, b = ht.capture(plain, inputs=X, kind=kind)[1], ht.capture(fused, inputs=X, kind=kind)[1]
        assert a.heads == b.heads == tuple((layer, head) for layer in range(3) for head in range(2))
        hidden = torch.zeros(a.shape, dtype=torch.bool) if a.mask is None else a.mask
        assert bool(hidden.any()) == causal
        assert (a.mask is None) == (b.mask is None)
        assert not causal or torch.equal(a.mask, b.mask)
        torch.testing.assert_close(a.values[~hidden], b.values[~hidden], atol=1e-5, rtol=0)


@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("bias_kv", [False, True])
def test_multihead_attention_inside_any_module(batch_first, bias_kv):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.mix = nn.MultiheadAttention(16, 4, batch_first=batch_first, add_bias_kv=bias_kv)

        def forward(self, x):
            x = x if batch_first else x.transpose(0, 1)
            return self.mix(x, x, x, need_weights=False)[0]

    net = stack(Net)
    y = X if batch_first else X.transpose(0, 1)
    expected = net[0].mix(y, y, y, need_weights=True, average_attn_weights=False)[1].detach()
    for i, att in enumerate(ht.capture(net, inputs=X, kind="probs")):
        torch.testing.assert_close(att.values, expected[i], atol=1e-6, rtol=0)
    scores = ht.capture(net, inputs=X)[1]
    torch.testing.assert_close(scores.values.softmax(-1), expected[1], atol=1e-6, rtol=0)


def test_the_fast_path_of_torch_does_not_hide_attention():
    def encoder():
        layer = nn.TransformerEncoderLayer(16, 4, 32, batch_first=True)
        return nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)

    net = stack(encoder)
    with torch.no_grad():
        plain = net(X)
    outputs = []
    handle = net.register_forward_hook(lambda module, args, output: outputs.append(output))
    att = ht.capture(net, inputs=X, kind="probs")[0]
    handle.remove()
    assert att.shape == (12, 6, 6)
    torch.testing.assert_close(outputs[-1], plain, atol=1e-6, rtol=0)  # the fused kernel rounds otherwise
    with torch.no_grad():
        assert torch.equal(net(X), plain)


def test_torch_transformer_has_three_parts():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = nn.Transformer(16, 4, 2, 3, 32, batch_first=True)

        def forward(self, x):
            return self.net(
                x, x[:, :4], tgt_mask=nn.Transformer.generate_square_subsequent_mask(4), tgt_is_causal=True
            )

    net = stack(Net)
    assert ht.capture(net, inputs=X, part="encoder")[0].shape == (8, 6, 6)
    decoder = ht.capture(net, inputs=X, part="decoder")[0]
    assert decoder.shape == (12, 4, 4)
    assert torch.equal(decoder.mask[0], torch.ones(4, 4).triu(1).bool())
    assert ht.capture(net, inputs=X, part="cross")[0].shape == (12, 4, 6)
    with pytest.raises(HeadtreeError, match="'cross', 'decoder', 'encoder'"):
        ht.capture(net, inputs=X)


class Mixer(nn.Module):
    """Attention that is no softmax."""

    def forward(self, x):
        return (x @ x.mT).sigmoid() @ x


def test_a_module_of_ones_own_is_registered_in_a_few_lines():
    net = stack(Mixer, Mixer)
    with pytest.raises(HeadtreeError, match=r"no attention was found in Sequential.*register_attention"):
        ht.capture(net, inputs=X)

    def mixer_scores(module, arguments, output):
        x = arguments["x"]
        return (x @ x.mT)[:, None], torch.ones(6, 6).triu(1).bool()

    ht.register_attention(Mixer, mixer_scores)
    try:
        att = ht.capture(net, inputs=X)[1]
    finally:
        ht.unregister_attention(Mixer)
    assert att.heads == ((0, 0), (1, 0))
    torch.testing.assert_close(att.values[0].tril(), (X[1] @ X[1].T).tril(), atol=1e-6, rtol=0)
    assert torch.equal(att.mask[0], torch.ones(6, 6).triu(1).bool())


def test_a_registered_module_speaks_for_what_is_inside_it():
    ht.register_attention(Attention, lambda module, arguments, output: torch.zeros(len(output), 1, 6, 6))
    try:
        assert ht.capture(stack(Attention), inputs=X)[0].shape == (1, 6, 6)
    finally:
        ht.unregister_attention(Attention)


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (torch.zeros(2, 6, 6), "must return float scores"),
        ((torch.zeros(1, 1, 6, 6), torch.zeros(6, 6)), "boolean mask"),
    ],
)
def test_wrong_registrations_are_named(answer, said):
    ht.register_attention(Mixer, lambda module, arguments, output: answer)
    try:
        with pytest.raises(HeadtreeError, match=said):
            ht.capture(stack(Mixer), inputs=X)
    finally:
        ht.unregister_attention(Mixer)
    with pytest.raises(HeadtreeError, match="kind must be a subclass"):
        ht.register_attention(stack(Mixer), lambda module, arguments, output: answer)
    with pytest.raises(HeadtreeError, match="describe must be a function"):
        ht.register_attention(Mixer, None)


class Renormalised(nn.Module):
    """Returns attention that is not softmax of anything it computes."""

    def forward(self, x, output_attentions=False):
        weights = (x @ x.mT)[:, None].exp()
        weights = weights.tril()
        weights = weights / weights.sum(-1, keepdim=True)
        return {"out": weights[:, 0] @ x, "attentions": (weights,) if output_attentions else None}


def test_what_is_obtainable_is_said_where_scores_are_not():
    net = Renormalised().eval()
    with pytest.raises(HeadtreeError, match=r"scores of Renormalised are not available.*use kind='probs'"):
        ht.capture(net, inputs=0.1 * X)
    att = ht.capture(net, inputs=0.1 * X, kind="probs")[1]
    torch.testing.assert_close(att.values, net(0.1 * X, True)["attentions"][0][1])
    assert torch.equal(att.mask[0], torch.ones(6, 6).triu(1).bool())


def test_softmax_that_is_not_attention_is_left_out():
    class Gated(nn.Module):
        def __init__(self):
            super().__init__()
            self.attn, self.gate = Attention(), nn.Linear(16, 16)

        def forward(self, x):
            return self.attn(x) * self.gate(x).softmax(-1)

    assert ht.capture(stack(Gated), inputs=X)[0].shape == (2, 6, 6)


def test_heads_of_unequal_shapes_are_an_error_that_says_so():
    from transformers import SwinConfig, SwinModel

    settings = {
        "image_size": 16,
        "patch_size": 1,
        "window_size": 4,
        "embed_dim": 8,
        "depths": [1, 1],
        "num_heads": [2, 4],
    }
    swin = SwinModel(SwinConfig(**settings)).eval()
    image = [torch.zeros(3, 16, 16)]
    with pytest.raises(
        HeadtreeError, match=r"unequal shapes.*layer 0 16 windows of 16×16, layer 1 4 windows of 16×16"
    ):
        ht.capture(swin, images=image)
    with pytest.raises(HeadtreeError, match="attends within 16 windows of 16×16 of each input"):
        ht.capture(swin, images=image, layers=[0])
    pools = stack(Attention, lambda: nn.Unflatten(1, (3, 2)), lambda: Mean(), Attention)
    with pytest.raises(HeadtreeError, match=r"unequal shapes.*layer 0 6×6, layer 1 3×3.*layers="):
        ht.capture(pools, inputs=X)
    assert ht.capture(pools, inputs=X, layers=[1])[0].shape == (2, 3, 3)


class Mean(nn.Module):
    def forward(self, x):
        return x.mean(dim=2)


def test_layers_with_different_numbers_of_heads_are_joined():
    att = ht.capture(stack(Attention, lambda: Attention(n_heads=4)), inputs=X)[0]
    assert att.heads == ((0, 0), (0, 1), (1, 0), (1, 1), (1, 2), (1, 3))


def test_one_module_called_again_and_again_gives_a_layer_each_time():
    att = ht.capture(zoo.ALL["albert"].build(), inputs=zoo.ALL["albert"].read())[0]
    assert {head.layer for head in att.heads} == {0, 1, 2}
