"""The matrices of heads against the slices of each model's own parameters, written out by hand."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import headtree as ht
from headtree.errors import HeadtreeError
from headtree.models.bundled.transformer_xl import TransformerXL, TransformerXLConfig
from headtree.models.capture import head_weights
from tests.models import zoo
from tests.models.test_capture_modules import Attention, X, stack

D = 8  # features of a head in the zoo


def rows(weight, head, size=D):
    """A head's part of a linear layer's weight, acting on rows."""
    return weight[head * size : (head + 1) * size].T


def columns(weight, head, size=D):
    return weight[:, head * size : (head + 1) * size].T


def bert(model, layer, head):
    self, out = model.encoder.layer[layer].attention.self, model.encoder.layer[layer].attention.output.dense
    return (
        rows(self.query.weight, head),
        rows(self.key.weight, head),
        rows(self.value.weight, head),
        columns(out.weight, head),
    )


def albert(model, layer, head):
    own = model.encoder.albert_layer_groups[0].albert_layers[0].attention
    return (
        rows(own.query.weight, head),
        rows(own.key.weight, head),
        rows(own.value.weight, head),
        columns(own.dense.weight, head),
    )


def gpt2(model, layer, head):
    joint, out = model.h[layer].attn.c_attn.weight, model.h[layer].attn.c_proj.weight  # Conv1D: in × out
    parts = [joint[:, i * 32 :][:, head * D : (head + 1) * D] for i in range(3)]
    return (*parts, out[head * D : (head + 1) * D])


def llama(model, layer, head):
    own = model.layers[layer].self_attn
    group = head // 2  # 4 heads share 2 groups of keys and values
    return (
        rows(own.q_proj.weight, head),
        rows(own.k_proj.weight, group),
        rows(own.v_proj.weight, group),
        columns(own.o_proj.weight, head),
    )


def gptj(model, layer, head):
    own = model.h[layer].attn
    return (
        *[rows(part.weight, head) for part in (own.q_proj, own.k_proj, own.v_proj)],
        columns(own.out_proj.weight, head),
    )


def bloom(model, layer, head):
    own = model.h[layer].self_attention
    joint = own.query_key_value.weight.view(4, 3, D, 32)  # each head's queries, keys and values side by side
    return (*[joint[head, i].T for i in range(3)], columns(own.dense.weight, head))


def gpt_neox(model, layer, head):
    own = model.layers[layer].attention
    joint = own.query_key_value.weight.view(4, 3, D, 32)
    return (*[joint[head, i].T for i in range(3)], columns(own.dense.weight, head))


def falcon(model, layer, head):
    own = model.h[layer].self_attention
    joint = own.query_key_value.weight.view(6, D, 32)  # four heads, then the one key and the one value of all
    return joint[head].T, joint[4].T, joint[5].T, columns(own.dense.weight, head)


def xlnet(model, layer, head):
    own = model.layer[layer].rel_attn
    return own.q[:, head], own.k[:, head], own.v[:, head], own.o[:, head].T


def t5(model, layer, head):
    own = model.decoder.block[layer].layer[1].EncDecAttention
    return (*[rows(part.weight, head) for part in (own.q, own.k, own.v)], columns(own.o.weight, head))


def vit(model, layer, head):
    own = model.layers[layer].attention
    return (
        *[rows(part.weight, head) for part in (own.q_proj, own.k_proj, own.v_proj)],
        columns(own.o_proj.weight, head),
    )


BY_HAND = {
    "bert": bert, "albert": albert, "gpt2": gpt2, "llama": llama, "qwen3": llama, "gemma2": llama, "gpt_oss": llama,
    "gptj": gptj, "bloom": bloom, "gpt_neox": gpt_neox, "falcon": falcon, "xlnet": xlnet, "t5": t5, "vit": vit,
}  # fmt: skip


def check(found, expected):
    for ours, theirs in zip((found.query, found.key, found.value, found.output), expected, strict=True):
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize("name", list(BY_HAND))
def test_matrices_are_the_models_own(name):
    model = zoo.ALL[name].build()
    part = "cross" if name == "t5" else None
    found = head_weights(model, inputs=zoo.ALL[name].read(), part=part)
    assert [layer.layer for layer in found] == list(range(len(found)))
    for layer in found:
        assert layer.is_cross == (name == "t5")
        with torch.no_grad():
            by_hand = [BY_HAND[name](model, layer.layer, head) for head in range(4)]
        check(layer, [torch.stack(part) for part in zip(*by_hand, strict=True)])
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


def test_transformer_xl_with_heads_wider_than_the_stream():
    config = TransformerXLConfig(20, n_layers=2, n_heads=3, width=16, head_size=6, inner=8, embedding=8)
    model = TransformerXL(config).eval()
    for layer in head_weights(model, inputs={"input_ids": torch.arange(7)[None]}):
        own = model.blocks[layer.layer].attention
        expected = [
            torch.stack([rows(part.weight, head, 6) for head in range(3)])
            for part in (own.query, own.key, own.value)
        ]
        check(layer, [*expected, torch.stack([columns(own.output.weight, head, 6) for head in range(3)])])
        assert layer.qk.shape == layer.ov.shape == (3, 16, 16)
        torch.testing.assert_close(layer.ov[1], layer.value[1] @ layer.output[1])


def test_torch_multihead_attention():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.mix = nn.MultiheadAttention(16, 4, batch_first=True)

        def forward(self, x):
            return self.mix(x, x, x, need_weights=False)[0]

    net = Net().eval()
    (layer,) = head_weights(net, inputs=X)
    joint = net.mix.in_proj_weight.detach().view(3, 4, 4, 16)
    check(layer, [*joint.mT, net.mix.out_proj.weight.detach().T.reshape(4, 4, 16)])


def test_without_output_projection_the_heads_write_side_by_side():
    """The next layer's projection is not taken for one."""
    net = stack(Attention, Attention)
    found = head_weights(net, inputs=X)
    assert torch.equal(found[0].output, torch.eye(16).reshape(2, 8, 16))
    assert torch.equal(found[0].value, net[0].qkv.weight.detach().view(3, 2, 8, 16)[2].mT)


def test_a_capture_put_together_from_the_matrices_is_the_models_attention():
    """Scores of a model without positions in its attention, up to what biases add."""
    model, read = zoo.ALL["bert"].build(), zoo.ALL["bert"].read()
    with torch.no_grad():
        for layer in model.encoder.layer:
            for part in (layer.attention.self.query, layer.attention.self.key):
                part.bias.zero_()
        hidden = model(**read, output_hidden_states=True).hidden_states
    atts = ht.capture(model, inputs=read)
    for layer in head_weights(model, inputs=read):
        x = hidden[layer.layer][1]
        scores = x @ layer.qk @ x.T / D**0.5
        torch.testing.assert_close(scores, atts[1].values[layer.layer * 4 :][:4], atol=1e-4, rtol=1e-4)


class Adapted(nn.Module):
    """A linear layer with a low-rank adapter beside it."""

    def __init__(self, inner):
        super().__init__()
        self.inner, self.down, self.up = inner, nn.Linear(16, 2), nn.Linear(2, 48)

    def forward(self, x):
        return self.inner(x) + self.up(self.down(x))


def test_projections_that_are_no_single_matrix_are_refused():
    net = stack(Attention)
    net[0].qkv = Adapted(net[0].qkv)
    with pytest.raises(HeadtreeError, match=r"queries of 0 come from 2 projections.*merge adapters"):
        head_weights(net, inputs=X)


def test_attention_that_is_no_softmax_is_refused():
    from tests.models.test_capture_modules import Mixer

    ht.register_attention(Mixer, lambda module, arguments, output: output[:, None] @ output[:, None].mT)
    try:
        with pytest.raises(HeadtreeError, match="weights of 0 are unknown, because its attention was described"):
            head_weights(stack(Mixer), inputs=X)
    finally:
        ht.unregister_attention(Mixer)


class PerHeadAttention(nn.Module):
    """Queries, keys and values by one matrix per head, in one batched product."""

    def __init__(self) -> None:
        super().__init__()
        self.weights = nn.Parameter(torch.randn(3, 2, 8, 4, generator=torch.Generator().manual_seed(0)))

    def forward(self, x):
        q, k, v = ((x[:, None] @ w[None]) for w in self.weights)
        return (q @ k.mT / 2).softmax(dim=-1) @ v


def test_a_stack_of_matrices_is_refused_not_guessed():
    with pytest.raises(HeadtreeError, match="several different matrices at once"):
        ht.head_weights(PerHeadAttention(), inputs=[torch.randn(1, 5, 8)])


def test_keys_put_together_from_several_projections_are_refused():
    case = zoo.ALL["minicpm3"]  # all heads share the rotary part of their keys
    with pytest.raises(HeadtreeError, match=r"the keys of layers\.0\.self_attn are written into another tensor"):
        ht.head_weights(case.build(), inputs=case.read())


def test_selected_layers_keep_their_numbers():
    case = zoo.ALL["bert"]
    model = case.build()
    everything = ht.head_weights(model, inputs=case.read())
    (last,) = ht.head_weights(model, inputs=case.read(), layers=[2])
    assert last.layer == 2
    assert torch.equal(last.query, everything[2].query)


def test_layers_known_from_outputs_are_matched_by_their_values():
    """LED runs self- and cross-attention in turn, but returns all layers of one, then all of the other."""
    model, read = zoo.UNUSUAL["led"].build(), zoo.UNUSUAL["led"].read()
    view = ht.ModelView(model)
    for part, path in (("decoder", "self_attn"), ("cross", "encoder_attn")):
        for found in view.weights(inputs=read, part=part):
            projection = model.decoder.layers[found.layer].get_submodule(path).out_proj.weight
            torch.testing.assert_close(found.output.flatten(0, 1), projection.T)
