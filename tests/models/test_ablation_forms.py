"""Heads of unusual attention, ablated in batches: against rows of W_O, or outputs, set to zero by hand."""

import copy

import pytest
import torch
from torch import nn

import headtree as ht
from headtree.errors import HeadtreeError
from headtree.models.module_stack import tensors_of
from tests.models.test_ablation import PerHeadInputsAttention, output
from tools.sweep import families
from tools.sweep.measure import built, runnable

#: Family and part, a head, the path of its W_O, and the size of heads.
BY_HAND = {
    "torch's multi-head attention": ("wavlm", None, (1, 2), "encoder.layers.1.attention.out_proj"),
    "beside blocks": ("longt5", "decoder", (1, 2), "decoder.block.1.layer.0.SelfAttention.o"),
    "cross, beside blocks": ("longt5", "cross", (1, 2), "decoder.block.1.layer.1.EncDecAttention.o"),
    "relative positions": (
        "fastspeech2_conformer", "encoder", (1, 2), "encoder.conformer_layers.1.self_attn.linear_out"
    ),
    "an input written piece by piece": (
        "fastspeech2_conformer", "decoder", (1, 2), "decoder.conformer_layers.1.self_attn.linear_out"
    ),
    "windows": ("swin", None, (1, 2), "encoder.layers.1.blocks.0.attention.o_proj"),
    "windows, softmax": ("swinv2", None, (1, 2), "encoder.layers.1.blocks.0.attention.output.dense"),
    "frames": ("timesformer", None, (1, 2), "encoder.layer.1.attention.output.dense"),
    "known from outputs, after a prompt": (
        "cpmant", None, (1, 2), "encoder.layers.1.self_att.self_attention.attention_out"
    ),
    "known from outputs": ("led", "decoder", (1, 2), "decoder.layers.1.self_attn.out_proj"),
    "cross, known from outputs": ("led", "cross", (1, 2), "decoder.layers.1.encoder_attn.out_proj"),
    "known from outputs, gated": ("hy_v4", None, (1, 2), "layers.1.self_attn.o_proj"),
    "encoder, beside n-grams": ("prophetnet", "encoder", (1, 2), "encoder.layers.1.self_attn.out_proj"),
    "cross, beside n-grams": ("prophetnet", "cross", (1, 2), "decoder.layers.1.cross_attn.out_proj"),
    "with n-grams": ("prophetnet", "decoder", (1, 2), "decoder.layers.1.self_attn.out_proj"),
    "global tokens, with blocks": ("pegasus_x", "encoder", (1, 2), "encoder.layers.1.self_attn.out_proj"),
    "bands": ("longformer", None, (1, 2), "encoder.layer.1.attention.output.dense"),
    "bands of an encoder": ("led", "encoder", (1, 2), "encoder.layers.1.self_attn.output"),
    "without a softmax": ("reformer", None, (1, 2), "encoder.layers.1.attention.output.dense"),
    "a single key": ("cvt", None, (1, 1), "encoder.stages.1.layers.0.attention.output.dense"),
    "beside assignments": ("groupvit", "text_model", (1, 2), "text_model.encoder.layers.1.self_attn.out_proj"),
    "learned tokens alone": (
        "sam3", "detr_decoder", (0, 2), "detr_decoder.layers.0.self_attn.o_proj"
    ),
}  # fmt: skip


def family(name):
    case = families.case(name)
    return built(case), runnable(case)[1]


def first(model, read):
    with torch.no_grad():
        found = model(**read)
    return torch.cat([each.flatten() for each in tensors_of(found) if each.is_floating_point()])


@pytest.mark.filterwarnings("ignore:the attention that (CpmAnt|HYV4)Model returns")
@pytest.mark.parametrize("form", list(BY_HAND))
def test_a_head_is_its_rows_of_the_output_projection(form):
    name, part, (layer, head), path = BY_HAND[form]
    model, read = family(name)
    if name == "sam3":  # refines its boxes, by which rounding errors grow
        model, read = model.double(), {key: x.double() if x.is_floating_point() else x for key, x in read.items()}
    view = ht.ModelView(model)
    before = first(model, read)
    pruned = copy.deepcopy(model)
    with view.ablated([(layer, head)], part=part):
        without = first(model, read)
    zero_rows(pruned.get_submodule(path), head, {"prophetnet": 16, "cvt": 2}.get(name, 4))
    torch.testing.assert_close(without, first(pruned, read), atol=1e-5, rtol=1e-5)
    assert without.shape != before.shape or not torch.allclose(without, before, atol=1e-5)
    assert torch.equal(first(model, read), before)
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


def zero_rows(projection, head, n_heads):
    n = projection.in_features // n_heads
    with torch.no_grad():
        projection.weight[:, head * n : (head + 1) * n] = 0


def test_text_and_layout_of_lilt_share_their_heads():
    model, read = family("lilt")
    pruned = copy.deepcopy(model)
    zero_rows(pruned.encoder.layer[1].attention.output.dense, 2, 4)
    zero_rows(pruned.encoder.layer[1].attention.layout_output.dense, 2, 4)
    with ht.ModelView(model).ablated([(1, 2)]):
        torch.testing.assert_close(output(model, read), output(pruned, read), atol=1e-5, rtol=1e-5)


def test_xlnet_in_batches():
    model, read = family("xlnet")
    pruned = copy.deepcopy(model)
    with torch.no_grad():
        pruned.layer[1].rel_attn.o[:, 2] = 0
    view = ht.ModelView(model)
    with view.ablated([(1, 2)]):
        torch.testing.assert_close(output(model, read), output(pruned, read), atol=1e-5, rtol=1e-5)
        with pytest.raises(KeyError), view.ablated([(0, 1)]):
            raise KeyError
        torch.testing.assert_close(output(model, read), output(pruned, read), atol=1e-5, rtol=1e-5)


class SelfAttention(nn.Module):
    """Averages its heads before the output projection, so that none of its rows belong to a single head."""

    def __init__(self):
        super().__init__()
        self.inner, self.kept = PerHeadInputsAttention(), [True, True]

    def forward(self, x):
        q, k, v = ((x[:, None] @ w[None]) for w in self.inner.weights)
        z = (q @ k.mT / 2).softmax(dim=-1) @ v * torch.tensor(self.kept)[:, None, None]
        return self.inner.out(z.mean(dim=1).repeat(1, 1, 2))


def test_heads_that_are_mixed_before_the_projection_hand_over_nothing():
    net, x = SelfAttention().eval(), torch.randn(3, 5, 8, generator=torch.Generator().manual_seed(0))
    view = ht.ModelView(net)
    with torch.no_grad():
        view.capture(inputs=[x[:1]])
        with view.ablated([(0, 1)]):
            found = net(x)
        net.kept = [True, False]
        torch.testing.assert_close(found, net(x))
    with pytest.raises(HeadtreeError, match="are mixed before the output projection"):
        view.capture(inputs=[x[:1]], kind="weighted")


@pytest.mark.parametrize("how", ["mean", "resample"])
def test_windows_are_tokens_of_one_input(how):
    model, read = family("swin")
    other = {"pixel_values": read["pixel_values"].flip(0)}
    seen = []
    attention = model.encoder.layers[0].blocks[0].attention
    handle = attention.o_proj.register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    first(model, other)
    handle.remove()
    reference = {name: value[:1] for name, value in other.items()}

    def replace(_, args):
        x = args[0].clone()
        z = seen[0][:16, :, 8:].mean(dim=(0, 1)) if how == "mean" else seen[0][:16, :, 8:].repeat(2, 1, 1)
        x[..., 8:] = z
        return (x,)

    view = ht.ModelView(model)
    with view.ablated([(0, 1)], how, reference={"inputs": reference}):
        found = first(model, read)
    handle = attention.o_proj.register_forward_pre_hook(replace)
    torch.testing.assert_close(found, first(model, read), atol=1e-5, rtol=1e-5)
    handle.remove()


def test_differential_attention_loses_both_products_of_a_head(monkeypatch):
    model, read = family("diffllama")
    view = ht.ModelView(model)
    with view.ablated([(1, 2)]):
        found = first(model, read)
    softmax, calls = nn.functional.softmax, []

    def without(scores, *args, **kwargs):
        probs = softmax(scores, *args, **kwargs)
        calls.append(1)
        if len(calls) in (3, 4):  # two in each layer
            probs[:, 2] = 0
        return probs

    eager = built(families.case("diffllama"), "eager")
    eager.load_state_dict(model.state_dict())
    monkeypatch.setattr(nn.functional, "softmax", without)
    torch.testing.assert_close(found, first(eager, read), atol=1e-5, rtol=1e-5)


#: What replaces features of one head: their mean over a reference input, or those of the same tokens of it.
REPLACED = {
    "mean": lambda x: x[:1].mean(dim=(0, 1), keepdim=True).expand_as(x),
    "resample": lambda x: x[:1].expand_as(x),
}


@pytest.mark.parametrize("how", list(REPLACED))
def test_both_products_of_differential_attention_are_replaced(how, monkeypatch):
    model, read = family("diffllama")
    reference = {name: value[:1] for name, value in read.items()}
    with ht.ModelView(model).ablated([(0, 2)], how, reference={"inputs": reference}):
        found = first(model, read)
    matmul, calls = torch.matmul, []

    def replacing(probs, values):
        product = matmul(probs, values)
        if probs.ndim == 4 and probs.shape[-1] == values.shape[-2] == 12:
            calls.append(1)
            if len(calls) in (1, 2):  # of the first layer
                product[:, 2] = REPLACED[how](product[:, 2])
        return product

    eager = built(families.case("diffllama"), "eager")
    eager.load_state_dict(model.state_dict())
    monkeypatch.setattr(torch, "matmul", replacing)
    torch.testing.assert_close(found, first(eager, read), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("how", list(REPLACED))
def test_text_and_layout_of_lilt_are_replaced(how):
    model, read = family("lilt")
    reference = {name: value[:1] for name, value in read.items()}
    with ht.ModelView(model).ablated([(0, 2)], how, reference={"inputs": reference}):
        found = first(model, read)

    def replace(_, args):
        x, n = args[0].clone(), args[0].shape[-1] // 4
        x[..., 2 * n : 3 * n] = REPLACED[how](x[..., 2 * n : 3 * n])
        return (x, *args[1:])

    attention = model.encoder.layer[0].attention
    handles = [
        each.dense.register_forward_pre_hook(replace) for each in (attention.output, attention.layout_output)
    ]
    torch.testing.assert_close(found, first(model, read), atol=1e-5, rtol=1e-5)
    for handle in handles:
        handle.remove()


@pytest.mark.parametrize("how", list(REPLACED))
@pytest.mark.parametrize(
    ("name", "part", "path"),
    [
        ("prophetnet", "decoder", "decoder.layers.0.self_attn.out_proj"),
        ("longformer", None, "encoder.layer.0.attention.output.dense"),
    ],
)
def test_all_that_heads_hand_over_is_replaced(name, part, path, how):
    model, read = family(name)
    reference = {key: value[:1] for key, value in read.items()}
    with ht.ModelView(model).ablated([(0, 2)], how, part=part, reference={"inputs": reference}):
        found = first(model, read)

    def replace(_, args):
        x, n = args[0].clone(), args[0].shape[-1] // (16 if name == "prophetnet" else 4)
        tokens = x[..., 2 * n : 3 * n].flatten(1, -2)
        own = tokens[:, :12] if name == "longformer" and how == "mean" else tokens  # it appends padding
        new = REPLACED[how](own)
        x[..., 2 * n : 3 * n] = (new[:, :1].expand_as(tokens) if how == "mean" else new).reshape(*x.shape[:-1], n)
        return (x, *args[1:])

    handle = model.get_submodule(path).register_forward_pre_hook(replace)
    expected = first(model, read)
    handle.remove()
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


def test_references_of_n_grams_must_be_of_one_length():
    model, read = family("prophetnet")
    shorter = {**read, "decoder_input_ids": read["decoder_input_ids"][:, :5]}
    with (
        ht.ModelView(model).ablated([(0, 2)], "resample", part="decoder", reference={"inputs": read}),
        pytest.raises(HeadtreeError, match="exactly as many tokens as the input, got 7 and 5; pass other"),
    ):
        first(model, shorter)


@pytest.mark.parametrize("name", ["led", "longformer"])
def test_effects_where_attention_is_known_from_outputs(name):
    model, read = family(name)
    given = {"part": "encoder" if name == "led" else None, "heads": [(0, 1), (1, 2)]}
    found = ht.head_effects(model, inputs=read, loss=lambda output, _: output[0].square(), **given)
    view, whole = ht.ModelView(model), first_output(model, read)
    for head, effect in zip(found.heads, found.raw, strict=True):
        with view.ablated([head], part=given["part"]):
            assert effect == pytest.approx(float(first_output(model, read) - whole), abs=1e-6)


def first_output(model, read):
    return output(model, read).double().square().mean()


@pytest.mark.parametrize("name", ["swiftformer", "patchtsmixer"])
def test_a_gate_is_no_attention(name):
    model, read = family(name)
    with pytest.raises(HeadtreeError, match="no attention was found"):
        ht.ModelView(model).capture(inputs=read)
