"""What heads read and write, against the laws of attention and the modules' own results."""

import numpy as np
import pytest
import torch

import headtree as ht
from headtree.models.activation_cache import CallValues
from tests.models import zoo
from tests.models.test_capture_modules import X, stack
from tests.models.test_view import n_hooks
from tools.sweep import families
from tools.sweep.measure import built as sweep_built
from tools.sweep.measure import runnable

PARTS = [(name, part) for name, case in zoo.ALL.items() for part in case.parts]
POST_NORM = {"bert", "bart", "albert", "mpnet", "xlnet", "deberta_v2"}  # a norm follows each sum


def built(name):
    case = zoo.ALL[name]
    return case.build(), case.read()


def bundled(name):
    network = ht.load_bundled(name)
    return network.model, network.inputs[0]


def close(ours, theirs, tolerance=1e-5):
    scale = np.abs(theirs).max()
    assert ours.shape == theirs.shape
    assert np.abs(ours - theirs).max() <= tolerance * scale


def check_heads(view, read, part):
    """Attention times values is z, and heads sum to what attention adds, up to a bias."""
    cache = view.cache(inputs=read, part=part)[-1]
    probs = view.capture(inputs=read, part=part, kind="probs")[-1].values.numpy()
    close(probs @ cache["v"].values, cache["z"].values)
    if "residual" in cache:
        close(cache["residual"].values, view.residual(inputs=read, part=part)[-1].numpy(), 0)
        summed = cache["writes"].groupby("layer").sum("head").values
        bias = cache["attention_out"].values - summed
        close(bias - bias[:, :1] + summed, summed)  # the same at every token
    return cache


def check_sums(cache):
    added = [cache[name].values for name in ("attention_out", "cross_out", "mlp_out") if name in cache]
    residual = cache["residual"].values
    close(residual[:-1] + sum(added), residual[1:])


@pytest.mark.parametrize(("name", "part"), PARTS)
def test_heads_sum_to_attention_and_terms_to_the_stream(name, part):
    model, read = built(name)
    cache = check_heads(ht.ModelView(model), read, part)
    assert ("residual" in cache) == (part != "cross")
    if "residual" in cache and name not in POST_NORM:
        check_sums(cache)
    assert n_hooks(model) == 0


@pytest.mark.parametrize("name", ["txl", "vit"])
def test_the_laws_hold_in_the_bundled_networks(name):
    model, read = bundled(name)
    check_sums(check_heads(ht.ModelView(model), read, None))


def module_output(model, path, read):
    found = []
    handle = model.get_submodule(path).register_forward_hook(lambda module, args, output: found.append(output))
    with torch.no_grad():
        model(**read)
    handle.remove()
    return found[0][-1].numpy()


@pytest.mark.parametrize(
    ("name", "path"),
    [
        ("bert", "encoder.layer.1.attention.output.dense"),
        ("gpt2", "h.1.attn.c_proj"),
        ("llama", "layers.1.self_attn.o_proj"),
        ("vit", "layers.1.attention.o_proj"),
        ("gptj", "h.1.attn.out_proj"),
    ],
)
def test_heads_and_the_bias_are_the_output_of_the_projection(name, path):
    model, read = built(name)
    with torch.no_grad():  # the biases of the zoo are zero
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter.add_(0.1 * torch.randn_like(parameter))
    cache = ht.ModelView(model).cache(inputs=read, layers=[1])[-1]
    bias = model.get_submodule(path).bias
    ours = cache["writes"].sum("head").values + (0 if bias is None else bias.detach().numpy())
    close(ours, module_output(model, path, read))
    close(ours, cache["attention_out"].sel(layer=1).values)


def test_heads_may_write_into_a_stream_of_another_width_than_their_projection():
    case = families.case("mobilebert")
    cache = ht.ModelView(sweep_built(case)).cache(inputs=runnable(case)[1])[0]
    assert cache["ov"].shape == (16, 12, 128)
    assert cache["writes"].values.shape == (16, 12, cache["residual"].shape[2])
    for name in ("writes", "attention_out"):  # its layers send attention through MLPs before they add it
        assert "the heads do not sum to it" in cache[name].attrs["note"]


@pytest.mark.parametrize("name", ["bert", "gpt2", "llama", "vit", "gptj", "qwen3"])
def test_heads_that_sum_to_the_output_have_no_note(name):
    model, read = built(name)
    cache = ht.ModelView(model).cache(inputs=read)[0]
    assert "note" not in cache["writes"].attrs
    assert "note" not in cache["attention_out"].attrs


def test_outputs_of_layers_that_drop_tokens_are_no_single_array():
    case = families.case("granite_speech5_encoder")
    view, read = ht.ModelView(sweep_built(case)), runnable(case)[1]
    cache = view.cache(inputs=read)[0]
    assert cache["v"].sizes["key"] == cache["q"].sizes["query"]
    for name in ("z", "writes"):
        with pytest.raises(
            ht.HeadtreeError, match=rf"no '{name}': it has .* rows for 8 tokens, because layers join or drop"
        ):
            cache[name]
        assert name not in cache
    assert cache.names == ("q", "k", "v", "ov")
    assert view.cache(inputs=read, layers=[0])[0]["z"].sizes["query"] == 8


def test_only_arrays_that_can_be_read_are_named():
    case = families.case("gemma4_text")
    (cache, *_) = ht.ModelView(sweep_built(case)).cache(inputs={"input_ids": torch.arange(5, 17)[None]})
    assert cache.names == ("ov", "writes", "residual", "attention_out", "mlp_out")
    with pytest.raises(ht.HeadtreeError, match=r"no 'q': it has 8 and 512 features in different layers"):
        cache["q"]


def test_after_norms_the_stream_is_the_norm_of_its_sums():
    model, read = built("bert")
    cache = ht.ModelView(model).cache(inputs=read)[0]
    for i, layer in enumerate(model.encoder.layer):
        with torch.no_grad():
            x = torch.as_tensor(cache["residual"].values[i] + cache["attention_out"].values[i])
            x = layer.attention.output.LayerNorm(x) + torch.as_tensor(cache["mlp_out"].values[i])
            close(layer.output.LayerNorm(x).numpy(), cache["residual"].values[i + 1])


@pytest.mark.parametrize("name", ["bert", "gpt2", "llama", "vit", "mistral", "qwen3", "clip"])
def test_queries_times_keys_are_the_scores(name):
    model, read = built(name)
    view = ht.ModelView(model)
    cache, att = view.cache(inputs=read)[1], view.capture(inputs=read)[1]
    q, k = cache["q"].values, cache["k"].values
    scores = q @ k.swapaxes(1, 2) / q.shape[-1] ** 0.5
    hidden = np.zeros(att.shape, dtype=bool) if att.mask is None else np.broadcast_to(att.mask, att.shape)
    close(np.where(hidden, 0, scores), np.where(hidden, 0, att.values.numpy()))


def test_queries_are_the_models_own_even_where_torch_scales_them():
    model, read = built("gpt2")
    joint = module_output(model, "h.0.attn.c_attn", read)
    cache = ht.ModelView(model).cache(inputs=read, layers=[0])[-1]
    for i, name in enumerate("qkv"):
        close(cache[name].values, joint[:, 32 * i : 32 * (i + 1)].reshape(12, 4, 8).swapaxes(0, 1))


def test_heads_that_share_keys_have_equal_ones():
    model, read = built("llama")
    cache = ht.ModelView(model).cache(inputs=read)[0]
    for name in "kv":
        shared = cache[name].values.reshape(3, 2, 2, 12, 8)
        assert np.array_equal(shared[:, :, 0], shared[:, :, 1])


def test_axes_and_labels(tokenizer):
    model = zoo.ALL["bert"].build()
    (cache,) = ht.ModelView(model, tokenizer=tokenizer).cache(texts=["w1 w2 w3"], heads=[(0, 1), (2, 3)])
    assert cache["q"].dims == cache["z"].dims == cache["writes"].dims == ("head", "query", "feature")
    assert cache["k"].dims == cache["v"].dims == cache["ov"].dims == ("head", "key", "feature")
    assert list(cache["ov"]["head"].values) == ["L0H1", "L2H3"]
    assert list(cache["ov"]["layer"].values) == [0, 2]
    assert list(cache["ov"]["index"].values) == [1, 3]
    assert list(cache["q"]["query"].values) == ["[CLS]", "w1", "w2", "w3", "[SEP]"]
    assert list(cache["residual"]["token"].values) == list(cache["k"]["key"].values)
    assert cache["residual"].dims == ("depth", "token", "feature")
    assert cache["mlp_out"].dims == ("layer", "token", "feature")
    assert list(cache["residual"]["depth"].values) == [0, 1, 2, 3]
    assert list(cache) == list(cache.names)
    assert all(cache[name].attrs["description"] for name in cache)


def test_selected_heads_are_those_of_all_heads():
    model, read = built("llama")
    view = ht.ModelView(model)
    (whole, _), (some, _) = view.cache(inputs=read), view.cache(inputs=read, heads=[(1, 2), (2, 0)])
    for name in ("q", "k", "v", "z", "ov", "writes"):
        assert np.array_equal(some[name].values, whole[name].sel(head=["L1H2", "L2H0"]).values)
    assert np.array_equal(some["residual"].values, whole["residual"].values)


@pytest.mark.parametrize("name", ["writes", "ov"])
def test_only_the_heads_that_are_read_are_computed(name, monkeypatch):
    model, read = built("gpt2")
    cache = ht.ModelView(model).cache(inputs=read)[0]
    computed, function = [], CallValues.of_head

    def noting(call, array, head):
        computed.extend([head] * (array == name))
        return function(call, array, head)

    monkeypatch.setattr(CallValues, "of_head", noting)
    array = cache[name]
    assert array.shape == (12, 12, 32)
    repr(array)
    assert computed == [0, 0, 0]  # one head of each layer, which shows how wide it writes
    computed.clear()
    block = array.isel(head=slice(3, 6), feature=slice(0, 5))
    assert computed == []
    assert block.values.shape == (3, 12, 5)
    assert computed == [3, 0, 1]  # the last head of a layer, and two of the next
    assert np.array_equal(block.values, array.values[3:6, :, :5])


def test_a_cache_is_of_the_model_as_it_was():
    model, read = built("gpt2")
    view = ht.ModelView(model)
    before = view.cache(inputs=read)[1]
    with view.ablated([(0, 2)]):
        ablated = view.cache(inputs=read)[1]
    after = view.cache(inputs=read)[1]
    assert not ablated["writes"].sel(head="L0H2").values.any()
    assert np.array_equal(ablated["writes"].values[:2], before["writes"].values[:2])
    assert not np.allclose(ablated["residual"].values[1], before["residual"].values[1])
    check_sums(ablated)
    for name in before:
        assert np.array_equal(before[name].values, after[name].values)


def test_without_a_stream_heads_are_still_known():
    class Twice(torch.nn.Module):
        def forward(self, x):
            attention = torch.nn.functional.scaled_dot_product_attention
            return attention(attention(x, x, x), x, x)

    x = torch.randn(1, 2, 5, 4)
    (cache,) = ht.ModelView(Twice()).cache(inputs=x)
    close(cache["v"].values[:2], x[0].numpy())
    assert "residual" not in cache
    assert cache["writes"].shape == (4, 5, 8)  # heads write side by side
    with pytest.raises(ht.HeadtreeError, match=r"no 'residual': no residual stream was found around the attention"):
        cache["residual"]
    with pytest.raises(ht.HeadtreeError, match=r"name must be one of 'q', 'k', .*'writes', got 'queries'"):
        cache["queries"]


def test_decoders_without_cross_attention_say_so():
    model, read = built("gpt2")
    with pytest.raises(ht.HeadtreeError, match=r"no 'cross_out': no layer adds such a term"):
        ht.ModelView(model).cache(inputs=read)[0]["cross_out"]


def test_attention_that_is_no_softmax_is_refused():
    from tests.models.test_capture_modules import Mixer

    ht.register_attention(Mixer, lambda module, arguments, output: output[:, None] @ output[:, None].mT)
    try:
        with pytest.raises(ht.HeadtreeError, match="what its single heads write is unknown"):
            ht.ModelView(stack(Mixer)).cache(inputs=X)
    finally:
        ht.unregister_attention(Mixer)


def test_values_have_the_requested_type():
    model, read = built("bert")
    (cache, _) = ht.ModelView(model.half().float()).cache(inputs=read, dtype="float64")
    assert {cache[name].dtype for name in cache} == {np.dtype(np.float64)}
