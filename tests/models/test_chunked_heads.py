"""Heads that attend in bands or hash buckets: what they read and write, against the modules themselves."""

import copy

import numpy as np
import pytest
import torch

import headtree as ht
from headtree.depth.residual import rank_residual
from tests.models.test_ablation import output
from tests.models.test_activation_cache import check_heads, close
from tests.models.test_value_weighted import by_definition
from tests.models.zoo import Case

_SIZES = {"vocab_size": 64, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
_LONG = {
    **_SIZES,
    "hidden_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "max_position_embeddings": 80,
    "attention_window": 4,
}
_LED = {
    **_SIZES,
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 48,
    "decoder_ffn_dim": 48,
    "max_encoder_position_embeddings": 64,
    "max_decoder_position_embeddings": 64,
    "attention_window": 4,
}
_REFORMER = {
    **_SIZES,
    "hidden_size": 32,
    "attention_head_size": 8,
    "num_attention_heads": 4,
    "feed_forward_size": 48,
    "axial_pos_embds": False,
    "max_position_embeddings": 64,
    "attn_layers": ["local", "lsh", "local"],
    "is_decoder": False,
}


def ids(n, seed=0):
    return torch.randint(5, 60, (2, n), generator=torch.Generator().manual_seed(seed))


def model_and_inputs(name, n=13):
    """A tiny model with biases; 13 tokens are longer than the probe, and no multiple of the window."""
    model = {
        "longformer": Case("LongformerModel", "LongformerConfig", _LONG),
        "led": Case("LEDModel", "LEDConfig", _LED),
        "reformer": Case("ReformerModel", "ReformerConfig", _REFORMER),
    }[name].build()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter.add_(0.1 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1)))
    read = {"input_ids": ids(n)}
    return model, {**read, "decoder_input_ids": ids(7, seed=1)} if name == "led" else read


_BLOCKS = {
    "attention_type": "block_sparse",
    "block_size": 4,
    "num_random_blocks": 1,
    "max_position_embeddings": 128,
}


def blocks(name):
    """A model that attends in blocks of keys; fewer than 28 tokens would switch it to full attention."""
    read = {"input_ids": ids(64)}
    if name == "big_bird":
        sizes = {**_SIZES, **_BLOCKS, **{key: _LONG[key] for key in ("hidden_size", "num_attention_heads")}}
        sizes |= {"num_hidden_layers": 2, "intermediate_size": 48, "sep_token_id": 3}
        return Case("BigBirdModel", "BigBirdConfig", sizes).build(), read, None
    sizes = {key: value for key, value in _LED.items() if "position" not in key and "window" not in key}
    model = Case("BigBirdPegasusModel", "BigBirdPegasusConfig", {**sizes, **_BLOCKS}).build()
    return model, {**read, "decoder_input_ids": ids(7, seed=1)}, "encoder"


@pytest.mark.parametrize("name", ["big_bird", "bigbird_pegasus"])
@pytest.mark.filterwarnings("ignore:the attention that BigBird")
def test_heads_in_blocks_are_rows_of_the_output_projection(name):
    model, read, part = blocks(name)
    view = ht.ModelView(model)
    att = view.capture(inputs=read, part=part, kind="probs")[0]
    assert att.shape == (8, 64, 64)
    assert att.mask is not None
    pruned, before = copy.deepcopy(model), output(model, read)
    layer = (pruned.encoder.layer if part is None else pruned.encoder.layers)[1]
    with torch.no_grad():
        (layer.attention.output.dense if part is None else layer.self_attn.output).weight[:, 16:24] = 0
    with view.ablated([(1, 2)], part=part):
        torch.testing.assert_close(output(model, read), output(pruned, read), atol=1e-5, rtol=1e-5)
    assert torch.equal(output(model, read), before)
    with torch.no_grad():
        found = model(**read, output_hidden_states=True)
    states = found.hidden_states if part is None else found.encoder_hidden_states
    stream = view.residual(inputs=read, part=part)[1]
    inner = len(states) - (part is not None)  # the last state of the encoder is normalized once more
    torch.testing.assert_close(stream[:inner], torch.stack(states)[:inner, 1], atol=1e-5, rtol=1e-4)
    for use in (view.weights, view.cache):
        with pytest.raises(ht.HeadtreeError, match="is not what its heads hand to their output projection"):
            use(inputs=read, part=part)


def test_attention_that_a_model_returns_only_in_part_is_said():
    model, read, _ = blocks("big_bird")
    with pytest.warns(ht.HeadtreeWarning, match=r"is not all of its attention: in layer 0 rows sum to 0\.\d+"):
        ht.capture(model, inputs=read, kind="probs")


CHUNKED = [("longformer", None), ("led", "encoder"), ("reformer", None)]


@pytest.mark.parametrize(("name", "part"), CHUNKED)
def test_attention_times_values_is_what_heads_hand_over(name, part):
    model, read = model_and_inputs(name)
    cache = check_heads(ht.ModelView(model), read, part)
    assert cache["v"].sizes == {"head": len(cache.heads), "key": 13, "feature": 8}
    assert cache["writes"].sizes == {"head": len(cache.heads), "query": 13, "feature": 32}


@pytest.mark.parametrize(("name", "part"), CHUNKED)
def test_weighted_attention_is_by_definition(name, part):
    model, read = model_and_inputs(name)
    view = ht.ModelView(model)
    close(view.capture(inputs=read, part=part, kind="weighted")[-1].values.numpy(), by_definition(view, read, part))


def test_values_and_writes_are_those_of_the_modules():
    model, read = model_and_inputs("longformer")
    attention, seen = model.encoder.layer[1].attention, []
    modules = attention.self.value, attention.output.dense
    handles = [
        module.register_forward_hook(lambda _, args, output: seen.extend([*args[:1], output])) for module in modules
    ]
    with torch.no_grad():
        model(read["input_ids"][1:])
    for handle in handles:
        handle.remove()
    _, v, z, written = seen
    cache = ht.ModelView(model).cache(inputs=read, layers=[1])[1]
    close(cache["v"].values, v[:13, 0].reshape(13, 4, 8).movedim(0, 1).numpy())
    close(cache["z"].values, z[0, :13].reshape(13, 4, 8).movedim(0, 1).numpy())
    bias = attention.output.dense.bias.detach().numpy()
    close(cache["writes"].sum("head").values + bias, written[0, :13].numpy())


@pytest.mark.parametrize(("name", "part"), CHUNKED[:2])
def test_queries_and_keys_make_the_attention(name, part):
    model, read = model_and_inputs(name)
    view = ht.ModelView(model)
    cache, att = view.cache(inputs=read, part=part)[0], view.capture(inputs=read, part=part, kind="probs")[0]
    scores = torch.as_tensor(cache["q"].values @ cache["k"].values.swapaxes(1, 2))
    allowed = att.values > 0
    close(scores.masked_fill(~allowed, -torch.inf).softmax(dim=-1).numpy(), att.values.numpy())


@pytest.mark.parametrize(("name", "part"), CHUNKED[:2])
def test_the_stream_is_what_the_model_returns(name, part):
    model, read = model_and_inputs(name)
    view = ht.ModelView(model)
    with torch.no_grad():
        found = model(**read, output_hidden_states=True)
    states = found.hidden_states if part is None else found.encoder_hidden_states
    stream = view.residual(inputs=read, part=part)[1]
    assert torch.equal(stream, torch.stack([state[1] for state in states]))
    assert rank_residual(model, inputs=read, part=part).trained.shape[1:] == (2, len(states))


def test_the_logit_lens_ends_in_the_logits():
    model = Case("LongformerForMaskedLM", "LongformerConfig", _LONG).build()
    (lens,) = ht.ModelView(model).logit_lens(inputs={"input_ids": ids(13)[:1]})
    with torch.no_grad():
        close(lens.values[-1], model(ids(13)[:1]).logits[0].numpy())


def test_weights_are_the_rows_and_columns_of_the_modules():
    model, read = model_and_inputs("longformer")
    layer = ht.head_weights(model, inputs=read, layers=[1])[0]
    module = model.encoder.layer[1].attention
    for ours, linear in zip(
        (layer.query, layer.key, layer.value), (module.self.query, module.self.key, module.self.value), strict=True
    ):
        assert torch.equal(ours, linear.weight.T.reshape(32, 4, 8).movedim(1, 0))
    assert torch.equal(layer.output, module.output.dense.weight.T.reshape(4, 8, 32))


def test_hash_buckets_have_no_queries_and_keys_and_no_single_stream():
    model, read = model_and_inputs("reformer")
    view = ht.ModelView(model)
    cache = view.cache(inputs=read)[0]
    assert cache.names == ("v", "z", "ov", "writes")
    for name in ("q", "k"):
        with pytest.raises(ht.HeadtreeError, match=rf"no '{name}': layer 1 does not attend by the softmax"):
            cache[name]
    with pytest.raises(ht.HeadtreeError, match="reads another stream than the one that it writes into"):
        cache["residual"]
    assert "q" in view.cache(inputs=read, layers=[0])[0]
    with pytest.raises(ht.HeadtreeError, match=r"layer 1 .* has no W_Q and W_K"):
        view.weights(inputs=read)
    assert len(view.weights(inputs=read, layers=[0, 2])) == 2


def test_padding_of_the_user_and_of_the_model_do_not_mix():
    model, read = model_and_inputs("longformer")
    mask = torch.ones_like(read["input_ids"])
    mask[:, 9:] = 0
    view = ht.ModelView(model)
    cache = check_heads(view, {**read, "attention_mask": mask}, None)
    short = view.cache(inputs={"input_ids": read["input_ids"][:, :9]})[-1]
    close(cache["z"].values[:, :9], short["z"].values)
    close(cache["writes"].values[:, :9], short["writes"].values)


def test_heads_in_bands_are_compared_by_function():
    model, read = model_and_inputs("longformer")
    found = ht.ModelView(model).head_similarity(inputs=read)
    assert np.isfinite(found.distance).all()


def test_the_stream_is_the_norm_of_its_sums():
    model, read = model_and_inputs("led")
    cache = ht.ModelView(model).cache(inputs=read, part="encoder")[0]
    for i, layer in enumerate(model.encoder.layers):
        with torch.no_grad():
            x = layer.self_attn_layer_norm(
                torch.as_tensor(cache["residual"].values[i] + cache["attention_out"].values[i])
            )
            x = layer.final_layer_norm(x + torch.as_tensor(cache["mlp_out"].values[i]))
        close(x.numpy(), cache["residual"].values[i + 1])
