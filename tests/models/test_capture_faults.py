"""Families whose attention is easily taken for something else: said so, or captured as it is."""

from types import SimpleNamespace

import pytest
import torch
import transformers

import headtree as ht
from headtree.errors import HeadtreeError, HeadtreeWarning
from headtree.models import facts
from headtree.models.watching.returned import unaccounted
from tests.models import zoo
from tools.sweep import families
from tools.sweep.measure import built as sweep_built
from tools.sweep.measure import runnable


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


@pytest.mark.parametrize("patch", [(7, 3, 3, 3), [8], (0, 8), 0, None])
def test_an_unusual_patch_size_leaves_positions_as_labels(patch):
    model = torch.nn.Module()
    model.config = SimpleNamespace(model_type="any", patch_size=patch)
    assert facts.patch_labels(model, (16, 16), 5) == ["0", "1", "2", "3", "4"]


class Streaming(torch.nn.Module):
    """Decides itself whether its layers keep keys and values, and hands all other arguments down."""

    def __init__(self):
        super().__init__()
        self.config = SimpleNamespace(model_type="any", use_cache=True)
        self.layer = torch.nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, x, **options):
        return self._layers(x, use_cache=False, **options)

    def _layers(self, x, use_cache, **options):
        return self.layer(x, x, x)[0]


def test_a_model_that_does_not_take_use_cache_is_not_given_it():
    (att,) = ht.capture(Streaming().eval(), inputs={"x": torch.randn(1, 5, 8)})
    assert att.shape == (2, 5, 5)


def test_prophetnet_returns_scores_as_attentions_and_is_captured_all_the_same():
    model, read = built("prophetnet")
    with torch.no_grad():
        outputs = built("prophetnet")[0](**read, output_attentions=True, use_cache=False)
    for part, field in zoo._THREE.items():
        layers = [layer[0] for layer in outputs[field]]
        expected = torch.cat(layers if part == "decoder" else [layer.softmax(-1) for layer in layers])
        att = ht.capture(model, inputs=read, part=part, kind="probs")[0]
        torch.testing.assert_close(att.values, expected, atol=1e-5, rtol=0)
        scores = ht.capture(model, inputs=read, part=part)[0]
        hidden = torch.zeros(scores.shape).bool() if scores.mask is None else scores.mask
        torch.testing.assert_close(
            scores.values.masked_fill(hidden, -torch.inf).softmax(-1), expected, atol=1e-5, rtol=0
        )


@pytest.mark.parametrize("part", [None, "ngram"])
def test_attention_that_a_model_returns_but_that_cannot_be_captured_is_named(part):
    model, read = built("prophetnet")
    with pytest.raises(HeadtreeError, match=r"decoder_ngram_attentions .*2 × 4 × 7 × 14.*cannot be captured"):
        ht.capture(model, inputs=read, part=part)


class Extra(torch.nn.Module):
    """Returns attention in a field of its own that no watched softmax computes."""

    def __init__(self, field, n_axes=4):
        super().__init__()
        self.mix, self.field, self.n_axes = zoo_attention(), field, n_axes

    def forward(self, x, output_attentions=False):
        out, probs = self.mix(x)
        own = (x @ x.mT).sigmoid().reshape(x.shape[0], *[1] * (self.n_axes - 3), *[x.shape[1]] * 2)
        extra = {"attentions": (probs,), self.field: (own,)} if output_attentions else {}
        return {"out": out + own.reshape(x.shape[0], *[x.shape[1]] * 2) @ x, **extra}


def zoo_attention():
    class SelfAttention(torch.nn.Module):
        def forward(self, x):
            probs = (x @ x.mT)[:, None].softmax(-1)
            return probs[:, 0] @ x, probs

    return SelfAttention()


@pytest.mark.parametrize("n_axes", [4, 5])
def test_any_output_field_of_attention_is_looked_at(n_axes):
    model, x = Extra("routing_attentions", n_axes), torch.randn(1, 5, 4)
    with pytest.raises(HeadtreeError, match=r"routing_attentions.*cannot be captured.*part=''"):
        ht.capture(model, inputs=x)
    assert ht.capture(model, inputs=x, part="")[0].shape == (1, 5, 5)
    assert ht.capture(Extra("losses"), inputs=x)[0].shape == (1, 5, 5)


def test_attention_within_windows_is_said_to_be_that():
    model, read = built("hiera")
    said = r"HieraModel cannot be captured: attentions \(5 axes, 1 × 1 × 4 × 16 × 16\).*attends within windows"
    for kind in ("scores", "probs"):
        with pytest.raises(HeadtreeError, match=said):
            ht.capture(model, inputs=read, kind=kind)


def test_pooled_queries_are_layers_of_unequal_shapes():
    model, read = built("funnel")
    with pytest.raises(HeadtreeError, match=r"unequal shapes \(queries × keys\): layer 0 12×12, layer 1 6×12"):
        ht.capture(model, inputs=read, part="encoder")
    assert ht.capture(model, inputs=read, part="encoder", layers=[1])[0].shape == (4, 6, 12)
    with pytest.raises(HeadtreeError, match=r"window must lie within the 6 queries"):
        ht.capture(model, inputs=read, part="encoder", layers=[1], window=((0, 8), (0, 8)))


PADDED = ["bert", "mpnet", "gptj", "bloom", "mpt", "xlnet", "deberta_v2", "llama"]


@pytest.mark.parametrize("name", PADDED)
def test_padding_is_in_the_mask_and_nothing_else_is(name):
    model, ids = zoo.ALL[name].build(), zoo._ids(14)[:1]
    padding = torch.ones(1, 14, dtype=torch.long)
    padding[0, -4:] = 0
    read = {"input_ids": ids, "attention_mask": padding}
    with torch.no_grad():
        layers = zoo.ALL[name].build("eager")(**read, output_attentions=True).attentions
    expected = torch.cat([layer[0] for layer in layers])[:, :10]  # of the tokens that are there
    att = ht.capture(model, inputs=read)[0]
    hidden = torch.as_tensor(att.mask).expand(att.shape)[:, :10]
    assert torch.equal(hidden, expected == 0)
    probs = att.values[:, :10].masked_fill(hidden, -torch.inf).softmax(-1)
    torch.testing.assert_close(probs, expected, atol=1e-5, rtol=0)


def dense_band(layer, states, half, hidden=None):
    """Attention of Longformer's first layer, from its weights, in plain products."""
    n_heads, attention = 4, layer.attention.self
    query, key = (
        linear(states).reshape(len(states), n_heads, -1).transpose(0, 1)
        for linear in (attention.query, attention.key)
    )
    scores = query @ key.mT / query.shape[-1] ** 0.5
    places = torch.arange(len(states))
    far = (places[:, None] - places).abs() > half
    return scores.masked_fill(far if hidden is None else far | hidden, -torch.inf).softmax(-1), far


@pytest.mark.parametrize("n_tokens", [3, 8, 12, 14, 31])
def test_bands_are_put_where_their_keys_are(n_tokens, tokenizer):
    model, ids = built("longformer")[0], zoo._ids(n_tokens)
    with torch.no_grad():
        states = model(ids, output_hidden_states=True).hidden_states[0]
        expected = [dense_band(model.encoder.layer[0], state[:n_tokens], half=2) for state in states]
    for att, (probs, far) in zip(
        ht.capture(model, inputs={"input_ids": ids}, kind="probs", tokenizer=tokenizer), expected, strict=True
    ):
        assert att.queries == att.keys
        assert len(att.keys) == n_tokens
        torch.testing.assert_close(att.values[:4], probs, atol=1e-5, rtol=0)
        if far.any():
            assert torch.equal(torch.as_tensor(att.mask).expand(att.shape)[0], far)
    with torch.no_grad():
        own = model(ids, output_attentions=True).attentions[2]
    for j, offset in enumerate(range(-2, 3)):
        found = att.values[8:].diagonal(offset, dim1=1, dim2=2)
        torch.testing.assert_close(found, own[-1][:, max(0, -offset) : n_tokens - max(0, offset), j])


def test_padding_in_a_band_is_masked():
    model, ids = built("longformer")[0], zoo._ids(14)[:1]
    padding = torch.ones(1, 14, dtype=torch.long)
    padding[0, -3:] = 0
    (att,) = ht.capture(model, inputs={"input_ids": ids, "attention_mask": padding}, kind="probs")
    assert att.shape == (12, 14, 14)
    assert torch.as_tensor(att.mask).expand(att.shape)[:, :, -3:].all()
    torch.testing.assert_close(att.values[:, :11].sum(-1), torch.ones(12, 11))


def test_the_band_of_an_encoder_and_the_parts_of_its_decoder():
    model, read = built("led")
    shapes = {part: ht.capture(model, inputs=read, part=part, kind="probs")[0].shape for part in zoo._THREE}
    assert shapes == {"encoder": (8, 12, 12), "decoder": (12, 7, 7), "cross": (12, 7, 12)}


@pytest.mark.parametrize("part", [None, ""])
def test_columns_of_global_tokens_are_not_taken_for_keys(part):
    model, read = built("longformer")
    everywhere = torch.zeros_like(read["input_ids"])
    everywhere[:, 0] = 1
    with pytest.raises(
        HeadtreeError, match=r"cannot be captured: attentions \(1 × 4 × 12 × 6\).*global_attentions"
    ):
        ht.capture(model, inputs={**read, "global_attention_mask": everywhere}, kind="probs", part=part)


def test_layers_of_hybrid_models_are_known_by_their_place_in_the_model():
    model, read = built("jamba")
    (att, *_) = ht.capture(model, inputs=read)
    assert att.heads[-1] == (1, 3)
    assert list(att.provenance["layers"]) == [
        {"layer": 0, "module": "layers.1.self_attn", "depth": 1},
        {"layer": 1, "module": "layers.3.self_attn", "depth": 3},
    ]
    (last, *_) = ht.capture(model, inputs=read, layers=[1])
    assert last.provenance["layers"] == [{"layer": 1, "module": "layers.3.self_attn", "depth": 3}]


def test_a_module_that_several_layers_share_has_the_depth_of_each():
    class Layer(torch.nn.Module):
        def __init__(self, shared):
            super().__init__()
            self.shared_attention = shared

        def forward(self, x):
            return x if self.shared_attention is None else x + self.shared_attention(x)[0]

    shared = zoo_attention()
    model = torch.nn.Sequential(*[Layer(inner) for inner in (None, shared, None, None, shared)])
    (att,) = ht.capture(model, inputs=torch.randn(1, 5, 4))
    assert [layer["depth"] for layer in att.provenance["layers"]] == [1, 4]
    assert {layer["module"] for layer in att.provenance["layers"]} == {"1.shared_attention"}


@pytest.mark.parametrize(("name", "part"), [("gpt2", None), ("t5", "decoder"), ("albert", None)])
def test_depths_of_other_models(name, part):
    (att, *_) = ht.capture(zoo.ALL[name].build(), inputs=zoo.ALL[name].read(), part=part)
    depths = [layer["depth"] for layer in att.provenance["layers"]]
    assert depths == ([0, 0, 0] if name == "albert" else list(range(len(depths))))


@pytest.mark.filterwarnings("ignore:the attention that .* returns, from which it is captured, is not all")
def test_attention_known_from_outputs_has_no_module():
    model, read = built("big_bird")
    (att, *_) = ht.capture(model, inputs=read, kind="probs", layers=[2])
    assert att.provenance["layers"] == [{"layer": 2, "module": None, "depth": None}]


class HiddenAttentionModel(transformers.LlamaModel):
    """Also attends without a softmax function that could be watched, and returns that attention."""

    def forward(self, input_ids, output_attentions=False, **options):
        found = super().forward(input_ids, output_attentions=output_attentions, **options)
        if output_attentions:
            states = found.last_hidden_state
            scores = (states @ states.mT).exp()
            found["memory_attentions"] = ((scores / scores.sum(-1, keepdim=True))[:, None],)
        return found


def test_returned_attention_that_the_registry_does_not_show_is_named():
    model, read = zoo.ALL["llama"].build(), zoo.ALL["llama"].read()
    hidden = HiddenAttentionModel(model.config).eval()
    before = hidden(read["input_ids"]).last_hidden_state
    with pytest.raises(HeadtreeError, match=r"other attention as well; memory_attentions \(1 × 1 × 8 × 8\) cannot"):
        ht.capture(hidden, inputs=read)
    assert torch.equal(hidden(read["input_ids"]).last_hidden_state, before)
    assert hidden.config._attn_implementation == model.config._attn_implementation


def test_a_layer_that_is_returned_and_was_not_seen_is_unaccounted_for():
    layers = [torch.rand(1, 4, 8, 8).softmax(dim=-1) for _ in range(3)]
    fields = {"attentions": layers, "encoder_attentions": layers[:2], "n_gram_attn": [torch.rand(1, 2, 4, 8, 8)]}
    shapes = [(1, 4, 8, 8)] * 3
    assert list(unaccounted(shapes, fields)) == ["n_gram_attn"]
    assert list(unaccounted(shapes[:2], fields)) == ["attentions", "n_gram_attn"]
    assert not unaccounted([], {"attentions": [torch.rand(8, 32), torch.randn(1, 4, 8, 8)]})


class SilentModel(transformers.LlamaModel):
    """Fails when it is asked for its attention."""

    def forward(self, input_ids, output_attentions=False, **options):
        if output_attentions:
            raise ValueError("attention is not for sale")
        return super().forward(input_ids, **options)


class ShuffledModel(transformers.LlamaModel):
    """Returns the attention of a head under the number of another."""

    def forward(self, input_ids, output_attentions=False, **options):
        found = super().forward(input_ids, output_attentions=output_attentions, **options)
        if output_attentions:
            found["attentions"] = tuple(layer.roll(1, dims=1) for layer in found.attentions)
        return found


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (
            SilentModel,
            r"fails when it attends eagerly.*ValueError: attention is not for sale.*not compared with that",
        ),
        (ShuffledModel, r"a layer of attentions that ShuffledModel returns is the attention of no captured call"),
    ],
)
def test_a_comparison_that_fails_or_was_not_possible_is_said(model, message):
    known, read = zoo.ALL["llama"].build(), zoo.ALL["llama"].read()
    other = model(known.config).eval()
    other.load_state_dict(known.state_dict())
    expected = ht.capture(known, inputs=read)[0].values
    with pytest.warns(HeadtreeWarning, match=message):
        found = ht.capture(other, inputs=read)[0].values
    assert torch.equal(found, expected)


def test_a_softmax_that_weighs_residual_streams_is_no_attention():
    case = families.case("deepseek_v4")
    model, read = sweep_built(case), runnable(case)[1]
    att = ht.capture(model, inputs=read, kind="probs", layers=[0, 1])[0]
    assert [layer["module"] for layer in att.provenance["layers"]] == ["layers.0.self_attn", "layers.1.self_attn"]
    layers = runnable(case)[0](**read, output_attentions=True).attentions[:2]
    torch.testing.assert_close(att.values, torch.cat([layer[0] for layer in layers]), atol=1e-5, rtol=0)


def test_sampling_points_of_deformable_attention_are_no_keys():
    case = families.case("rf_detr")
    model, read = sweep_built(case), runnable(case)[1]
    with pytest.raises(
        HeadtreeError, match=r"part must be one of 'backbone', 'decoder'.*cross_attentions \(5 axes"
    ):
        ht.capture(model, inputs=read, part="cross")


class LearnedPooling(torch.nn.Module):
    """A learned query looks at all tokens; named like attention, and it is."""

    def __init__(self):
        super().__init__()
        self.attention = torch.nn.Softmax(dim=-1)
        self.query = torch.nn.Parameter(torch.randn(1, 8, generator=torch.Generator().manual_seed(0)))

    def forward(self, x):
        return self.attention(self.query @ x.mT) @ x


def test_the_scores_of_a_learned_query_are_attention():
    net, x = LearnedPooling(), torch.randn(1, 5, 8, generator=torch.Generator().manual_seed(1))
    att = ht.capture(net, inputs=[x], kind="probs")[0]
    torch.testing.assert_close(att.values, (net.query @ x.mT).softmax(-1).detach())


class SingleKeyAttention(torch.nn.Module):
    """Attends by einsum, which multiplies by a single key without a matrix product."""

    def forward(self, x):
        keys = x[:, :1]
        probs = torch.einsum("bqd,bkd->bqk", x, keys).softmax(dim=-1)
        return torch.einsum("bqk,bkd->bqd", probs, keys)


def test_a_single_key_is_attended_to():
    att = ht.capture(SingleKeyAttention(), inputs=[torch.randn(1, 5, 8)], kind="probs")[0]
    assert att.values.shape == (1, 5, 1)
    assert bool((att.values == 1).all())
