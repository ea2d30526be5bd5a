"""Ablated heads against the same model with rows of W_O set to zero by hand."""

import copy

import pytest
import torch
from torch import nn

import headtree as ht
from headtree.errors import HeadtreeError
from headtree.models.bundled.transformer_xl import TransformerXL, TransformerXLConfig
from tests.models import zoo

D = 8  # features of a head in the zoo


def of_linear(path):
    def zero(model, layer, head):
        model.get_submodule(path.format(layer)).weight[:, head * D : (head + 1) * D] = 0

    return zero


def of_conv1d(path):
    def zero(model, layer, head):
        model.get_submodule(path.format(layer)).weight[head * D : (head + 1) * D] = 0

    return zero


def of_xlnet(model, layer, head):
    model.layer[layer].rel_attn.o[:, head] = 0


BY_HAND = {
    ("bert", None): of_linear("encoder.layer.{}.attention.output.dense"),
    ("gpt2", None): of_conv1d("h.{}.attn.c_proj"),
    ("llama", None): of_linear("layers.{}.self_attn.o_proj"),  # grouped queries
    ("gemma2", None): of_linear("layers.{}.self_attn.o_proj"),
    ("gpt_oss", None): of_linear("layers.{}.self_attn.o_proj"),
    ("vit", None): of_linear("layers.{}.attention.o_proj"),
    ("modernbert", None): of_linear("layers.{}.attn.Wo"),
    ("t5", "encoder"): of_linear("encoder.block.{}.layer.0.SelfAttention.o"),
    ("t5", "cross"): of_linear("decoder.block.{}.layer.1.EncDecAttention.o"),
    ("bart", "decoder"): of_linear("decoder.layers.{}.self_attn.out_proj"),
    ("bloom", None): of_linear("h.{}.self_attention.dense"),
    ("falcon", None): of_linear("h.{}.self_attention.dense"),
    ("deberta_v2", None): of_linear("encoder.layer.{}.attention.output.dense"),
    ("xlnet", None): of_xlnet,
    ("opt", None): of_linear("decoder.layers.{}.self_attn.out_proj"),
    ("minicpm3", None): of_linear("layers.{}.self_attn.o_proj"),  # keys from two projections
}


def output(model, read):
    with torch.no_grad():
        return model(**read)[0]


def one(read):
    return {name: value[:1] for name, value in read.items()}


@pytest.mark.parametrize(("name", "part"), list(BY_HAND))
def test_a_zeroed_head_is_a_head_without_its_rows_of_the_output_projection(name, part):
    model, read = zoo.ALL[name].build(), zoo.ALL[name].read()
    heads = [(0, 1), (1, 2), (1, 3)]
    pruned = copy.deepcopy(model)
    with torch.no_grad():
        for layer, head in heads:
            BY_HAND[name, part](pruned, layer, head)
    before = output(model, read)
    view = ht.ModelView(model)
    with view.ablated(heads, part=part):
        without = output(model, read)
    torch.testing.assert_close(without, output(pruned, read), atol=1e-5, rtol=1e-5)
    assert not torch.allclose(without, before, atol=1e-3)
    assert torch.equal(output(model, read), before)
    assert torch.is_grad_enabled()
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


def test_a_head_of_a_shared_layer_is_ablated_in_one_call_only():
    model, read = zoo.ALL["albert"].build(), zoo.ALL["albert"].read()
    pruned = copy.deepcopy(model)
    with torch.no_grad():
        path = "encoder.albert_layer_groups.0.albert_layers.0.attention.dense"
        pruned.get_submodule(path).weight[:, 2 * D : 3 * D] = 0
    view = ht.ModelView(model)
    with view.ablated([(layer, 2) for layer in range(3)]):
        torch.testing.assert_close(output(model, read), output(pruned, read), atol=1e-5, rtol=1e-5)
    with view.ablated([(1, 2)]):
        assert not torch.allclose(output(model, read), output(pruned, read), atol=1e-3)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.mix = nn.MultiheadAttention(16, 4, batch_first=True)

    def forward(self, x):
        return x + self.mix(x, x, x, need_weights=False)[0]


def test_torch_multihead_attention():
    net, x = Net().eval(), torch.randn(1, 5, 16, generator=torch.Generator().manual_seed(0))
    pruned = copy.deepcopy(net)
    with torch.no_grad():
        pruned.mix.out_proj.weight[:, 4:8] = 0
    with torch.no_grad(), ht.ModelView(net).ablated([(0, 1)]):
        torch.testing.assert_close(net(x), pruned(x))
        batch = torch.cat([x, x.flip(1), -x])
        torch.testing.assert_close(net(batch), pruned(batch))


def test_transformer_xl_with_heads_wider_than_the_stream():
    model = TransformerXL(
        TransformerXLConfig(20, n_layers=2, n_heads=3, width=16, head_size=6, inner=8, embedding=8)
    ).eval()
    read = {"input_ids": torch.arange(14).reshape(2, 7)}
    pruned = copy.deepcopy(model)
    with torch.no_grad():
        pruned.blocks[1].attention.output.weight[:, 12:18] = 0
    with ht.ModelView(model).ablated([(1, 2)]):
        torch.testing.assert_close(output(model, read), output(pruned, read))


class PerHeadInputsAttention(nn.Module):
    """Queries, keys and values by one matrix per head; one output projection for all heads."""

    def __init__(self) -> None:
        super().__init__()
        self.weights = nn.Parameter(torch.randn(3, 2, 8, 4, generator=torch.Generator().manual_seed(0)))
        self.out = nn.Linear(8, 8)

    def forward(self, x):
        q, k, v = ((x[:, None] @ w[None]) for w in self.weights)
        mixed = (q @ k.mT / 2).softmax(dim=-1) @ v
        return self.out(mixed.transpose(1, 2).flatten(2))


def test_only_the_output_projection_matters():
    net, x = PerHeadInputsAttention(), torch.randn(1, 5, 8)
    without = copy.deepcopy(net)
    with torch.no_grad():
        without.out.weight[:, 4:] = 0
        view = ht.ModelView(net)
        view.capture(inputs=[x])
        with view.ablated([(0, 1)]):
            found = net(x)
        torch.testing.assert_close(found, without(x))


class MeanAttention(PerHeadInputsAttention):
    """Its heads are averaged before the output projection."""

    def forward(self, x):
        q, k, v = ((x[:, None] @ w[None]) for w in self.weights)
        return self.out(((q @ k.mT / 2).softmax(dim=-1) @ v).mean(dim=1).repeat(1, 1, 2))


def test_heads_are_ablated_beside_others_that_are_mixed():
    net, x = nn.Sequential(MeanAttention(), PerHeadInputsAttention()), torch.randn(1, 5, 8)
    without = copy.deepcopy(net)
    with torch.no_grad():
        without[1].out.weight[:, 4:] = 0
        view = ht.ModelView(net)
        with view.ablated([(1, 1)]):
            found = net(x)
        torch.testing.assert_close(found, without(x))
        with pytest.raises(HeadtreeError, match="heads of 0 are mixed"):
            view.capture(inputs=[x], layers=[0], kind="weighted")


def test_the_mean_over_reference_inputs_is_a_constant_in_the_bias():
    model, read = zoo.ALL["gpt2"].build(), zoo.ALL["gpt2"].read()
    seen = []
    handle = model.h[1].attn.c_proj.register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    output(model, read)
    handle.remove()
    mean = seen[0][..., 2 * D : 3 * D].reshape(-1, D).mean(dim=0)
    pruned = copy.deepcopy(model)
    with torch.no_grad():
        pruned.h[1].attn.c_proj.bias += mean @ pruned.h[1].attn.c_proj.weight[2 * D : 3 * D]
        pruned.h[1].attn.c_proj.weight[2 * D : 3 * D] = 0
    with ht.ModelView(model).ablated([(1, 2)], "mean", reference=read):
        torch.testing.assert_close(output(model, read), output(pruned, read), atol=1e-5, rtol=1e-5)


def test_padding_does_not_count_in_the_mean():
    model, read = zoo.ALL["bert"].build(), one(zoo.ALL["bert"].read())
    longer = torch.cat([read["input_ids"], torch.zeros(1, 3, dtype=torch.long)], dim=1)
    mask = torch.ones_like(longer)
    mask[:, -3:] = 0
    view = ht.ModelView(model)
    with view.ablated([(1, 2)], "mean", reference=read):
        expected = output(model, read)
    with view.ablated([(1, 2)], "mean", reference={"input_ids": longer, "attention_mask": mask}):
        torch.testing.assert_close(output(model, read), expected, atol=1e-5, rtol=1e-5)


def test_resampling_from_the_input_itself_changes_nothing_and_from_another_does():
    model, read = zoo.ALL["llama"].build(), zoo.ALL["llama"].read()
    before, view = output(model, one(read)), ht.ModelView(model)
    with view.ablated([(0, 0), (1, 2)], "resample", reference=one(read)):
        torch.testing.assert_close(output(model, one(read)), before, atol=1e-5, rtol=1e-5)
    other = {"input_ids": read["input_ids"][1:]}
    with view.ablated([(0, 0), (1, 2)], "resample", reference=other):
        assert not torch.allclose(output(model, one(read)), before, atol=1e-3)
    short = {"input_ids": read["input_ids"][:, :5]}
    with (
        view.ablated([(0, 0)], "resample", reference=short),
        pytest.raises(HeadtreeError, match="at least as many tokens as the input, got 5 and 12"),
    ):
        output(model, read)


def test_draws_follow_the_generator():
    model, read = zoo.ALL["llama"].build(), zoo.ALL["llama"].read()
    several = {"input_ids": torch.cat([read["input_ids"], read["input_ids"].flip(1)])}
    view, found = ht.ModelView(model), []
    for rng in (0, 0, 1):
        with view.ablated([(1, 2)], "resample", reference=several, rng=rng):
            found.append(torch.stack([output(model, read) for _ in range(3)]))
    assert torch.equal(found[0], found[1])
    assert not torch.equal(found[0], found[2])


def test_contexts_nest_and_survive_an_exception():
    model, read = zoo.ALL["gpt2"].build(), zoo.ALL["gpt2"].read()
    view, before = ht.ModelView(model), output(model, read)
    with view.ablated([(0, 1), (2, 3)]):
        both = output(model, read)
    with view.ablated([(0, 1)]):
        alone = output(model, read)
        with view.ablated([(2, 3)]):
            assert torch.equal(output(model, read), both)
        assert torch.equal(output(model, read), alone)
    with pytest.raises(KeyError), view.ablated([(0, 1)]):
        raise KeyError
    assert torch.equal(output(model, read), before)
    assert not any(module._forward_pre_hooks for module in model.modules())


def test_a_capture_inside_the_context_shows_what_later_layers_do_without_the_head():
    model, read = zoo.ALL["gpt2"].build(), zoo.ALL["gpt2"].read()
    view = ht.ModelView(model)
    before = view.capture(inputs=read)[0].values
    with view.ablated([(0, 1)]):
        without = view.capture(inputs=read)[0].values
    fresh = ht.ModelView(model)
    with fresh.ablated([(0, 1)]):
        assert torch.equal(fresh.capture(inputs=read)[0].values, without)
    assert torch.equal(before[:4], without[:4])
    assert not torch.allclose(before[4:], without[4:], atol=1e-3)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([(0, 9)],), r"heads must be less than 4, or pairs .* got \(0, 9\)"),
        (([(7, 0)],), r"pairs \(layer, head\) of layers 0 to 2, got \(7, 0\)"),
        (("L0H1",), "heads must be a list of pairs"),
        (([1, 2, 3],), r"heads must be pairs \(layer, head\), got 1"),
        (([0, 1],), r"heads must be pairs \(layer, head\), got 0 among them; .*\[\(0, 1\)\]"),
        (([(0, 1)], "never"), "how must be one of"),
        (([(0, 1)], "mean"), "how='mean' needs reference inputs"),
    ],
)
def test_bad_arguments_are_named(arguments, message):
    model, read = zoo.ALL["gpt2"].build(), zoo.ALL["gpt2"].read()
    view = ht.ModelView(model)
    with pytest.raises(HeadtreeError, match=message), view.ablated(*arguments):
        output(model, read)
    assert not any(module._forward_pre_hooks for module in model.modules())
    with pytest.raises(HeadtreeError, match="uses no reference inputs"), view.ablated([(0, 1)], reference=read):
        pass


def test_contexts_nest_before_the_model_was_probed():
    model, read = zoo.ALL["gpt2"].build(), zoo.ALL["gpt2"].read()
    with ht.ModelView(model).ablated([(0, 1), (2, 3)]):
        both = output(model, read)
    fresh = ht.ModelView(model)
    with fresh.ablated([(0, 1)]), fresh.ablated([(2, 3)]):
        assert torch.equal(output(model, read), both)


def test_submodules_are_ablated_too_and_a_model_that_never_ran_is_an_error():
    model, read = zoo.ALL["albert"].build(), zoo.ALL["albert"].read()
    view = ht.ModelView(model)
    with (
        pytest.raises(HeadtreeError, match="never found, because AlbertModel itself was not called"),
        view.ablated([(1, 1)]),
    ):
        pass
    view.capture(inputs=read)
    with view.ablated([(1, 1)]):
        expected = output(model, read)
        for _ in range(2):
            hidden = model.embeddings(**read)
            with torch.no_grad():
                torch.testing.assert_close(model.encoder(hidden)[0], expected)


def test_an_error_of_the_first_call_is_not_forgotten():
    model, read = zoo.ALL["gpt2"].build(), zoo.ALL["gpt2"].read()
    with ht.ModelView(model).ablated([(0, 1)]):
        for _ in range(2):
            with pytest.raises(HeadtreeError, match=r"cannot be found|fails on the first input"):
                model(input_ids=torch.tensor([[999]]))
        output(model, read)


def test_resampling_refuses_a_cache():
    model, read = zoo.ALL["llama"].build(), zoo.ALL["llama"].read()
    with torch.no_grad():
        cache = model(read["input_ids"][:, :8], use_cache=True).past_key_values
        with (
            ht.ModelView(model).ablated([(1, 1)], "resample", reference=read),
            pytest.raises(HeadtreeError, match="needs whole inputs, but this pass continues a cache of 8 tokens"),
        ):
            model(read["input_ids"][:, 8:], past_key_values=cache)


def test_another_view_inside_a_context_that_has_not_found_its_heads():
    model, read = zoo.ALL["gpt2"].build(), zoo.ALL["gpt2"].read()
    view, other = ht.ModelView(model), ht.ModelView(model)
    with (
        pytest.raises(HeadtreeError, match="not found yet, and another view is already watching the model"),
        view.ablated([(0, 1)]),
    ):
        other.capture(inputs=read)
    assert not any(module._forward_pre_hooks for module in model.modules())
    with view.ablated([(0, 1)]):
        expected = view.capture(inputs=read)[0].values
        assert torch.equal(other.capture(inputs=read)[0].values, expected)


@pytest.mark.parametrize("rng", ["a", -1, 1.5])
def test_bad_seeds_are_named(rng):
    model = zoo.ALL["gpt2"].build()
    with pytest.raises(HeadtreeError, match="rng must be a seed"), ht.ModelView(model).ablated([(0, 1)], rng=rng):
        pass


def test_a_query_that_is_a_weight_does_not_hide_the_other_calls():
    """SigLIP pools its patches by attention from a learned query."""
    settings = {**zoo.ALL["clip"].settings}
    model = zoo.Case("SiglipVisionModel", "SiglipVisionConfig", settings).build()
    read = zoo.ALL["clip"].read()
    pruned = copy.deepcopy(model)
    with torch.no_grad():
        of_linear("encoder.layers.{}.self_attn.out_proj")(pruned, 1, 2)
    with ht.ModelView(model).ablated([(1, 2)], part="encoder"):
        torch.testing.assert_close(output(model, read), output(pruned, read))
