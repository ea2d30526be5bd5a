"""Families whose attention is easily taken for something else: said so, or captured as it is."""

import re

import pytest
import torch

import headtree as ht
from headtree.errors import HeadtreeError
from tests.models import zoo


def built(name, implementation=None):
    return zoo.UNUSUAL[name].build(implementation), zoo.UNUSUAL[name].read()


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
@pytest.mark.parametrize("kind", ["scores", "probs"])
def test_calls_on_the_same_queries_and_keys_are_one_layer(implementation, kind):
    """Differential attention attends twice with the same queries and keys, to two halves of the values."""
    model, read = built("diffllama", implementation)
    att = ht.capture(model, inputs=read, kind=kind)[0]
    assert {head.layer for head in att.heads} == {0, 1, 2}
    probs = att.values if kind == "probs" else att.values.masked_fill(att.mask, -torch.inf).softmax(-1)
    with torch.no_grad():
        layers = built("diffllama", "eager")[0](**read, output_attentions=True).attentions
    torch.testing.assert_close(probs, torch.cat([layer[0] for layer in layers]), atol=1e-5, rtol=0)


@pytest.mark.parametrize("number", [float("nan"), float("inf")])
@pytest.mark.parametrize("name", ["llama", "mpnet", "big_bird"])
def test_attention_that_is_not_finite_is_an_error_that_names_the_module(name, number):
    case = {**zoo.ALL, **zoo.UNUSUAL}[name]
    model = case.build()
    with torch.no_grad():
        next(p for n, p in model.named_parameters() if "key" in n or "k_proj" in n or ".k." in n).fill_(number)
    for kind in ("probs",) if name == "big_bird" else ("scores", "probs"):
        with pytest.raises(HeadtreeError, match=r"attention of layer 0 \(.*0.*\) has NaN or infinite values"):
            ht.capture(model, inputs=case.read(), kind=kind)


def test_scores_too_large_for_the_chosen_precision_are_an_error():
    model, read = zoo.ALL["llama"].build(), zoo.ALL["llama"].read()
    with torch.no_grad():
        model.layers[0].self_attn.q_proj.weight.mul_(1e6)
    with pytest.raises(HeadtreeError, match=r"layer 0 \(layers.0.self_attn\) has NaN or infinite values.*float32"):
        ht.capture(model, inputs=read, dtype="float16")


def test_nan_is_named_where_it_first_appears():
    model, read = zoo.ALL["qwen3"].build(), zoo.ALL["qwen3"].read()
    with torch.no_grad():
        model.layers[1].mlp.down_proj.weight.fill_(float("nan"))
    with pytest.raises(HeadtreeError, match=r"attention of layer 2 \(layers\.2\.self_attn\).*NaN.*weights"):
        ht.capture(model, inputs=read)
    assert torch.isfinite(ht.capture(model, inputs=read, layers=[0, 1])[0].values).all()


def test_each_part_of_a_model_of_two_modalities_has_its_own_labels(tokenizer):
    model, read = built("llava")
    (text,) = ht.capture(model, inputs=read, part="language_model")
    assert text.queries == text.keys == tuple(map(str, range(12)))
    (named,) = ht.capture(model, inputs=read, part="language_model", tokenizer=tokenizer)
    assert named.queries == named.keys == tuple(tokenizer.convert_ids_to_tokens(read["input_ids"][0].tolist()))
    for given in ({}, {"tokenizer": tokenizer}):
        (image,) = ht.capture(model, inputs=read, part="vision_tower", **given)
        assert image.queries == image.keys == ("class", "r0c0", "r0c1", "r1c0", "r1c1")


def test_a_model_that_reads_images_and_writes_text_labels_both(tokenizer):
    import transformers

    encoder = transformers.ViTConfig(**zoo._SMALL, image_size=16, patch_size=8)
    decoder = transformers.BertConfig(**zoo._TEXT, is_decoder=True, add_cross_attention=True)
    config = transformers.VisionEncoderDecoderConfig.from_encoder_decoder_configs(encoder, decoder)
    model = transformers.VisionEncoderDecoderModel(config).eval()
    read = {"pixel_values": zoo._square()["pixel_values"][:1], "decoder_input_ids": zoo._ids(6)[:1]}
    patches = ("class", "r0c0", "r0c1", "r1c0", "r1c1")
    words = tuple(tokenizer.convert_ids_to_tokens(read["decoder_input_ids"][0].tolist()))
    expected = {"encoder": (patches, patches), "decoder": (words, words), "cross": (words, patches)}
    for part, (queries, keys) in expected.items():
        (att,) = ht.capture(model, inputs=read, part=part, tokenizer=tokenizer)
        assert (att.queries, att.keys) == (queries, keys)
    (plain,) = ht.capture(model, inputs=read, part="decoder")
    assert plain.queries == tuple(map(str, range(6)))
