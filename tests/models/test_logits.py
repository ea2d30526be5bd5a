"""Logits as sums over heads, and read off the residual stream at every depth."""

import dataclasses

import numpy as np
import pytest
import torch

import headtree as ht
from tests.models import zoo
from tests.models.test_activation_cache import built, bundled
from tests.models.test_view import n_hooks

CLASSES = {
    "gpt2": "GPT2LMHeadModel",
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "gpt_neox": "GPTNeoXForCausalLM",
    "gpt_oss": "GptOssForCausalLM",
    "gptj": "GPTJForCausalLM",
    "bloom": "BloomForCausalLM",
    "mpt": "MptForCausalLM",
    "falcon": "FalconForCausalLM",
    "gemma3": "Gemma3ForCausalLM",
    "xlnet": "XLNetLMHeadModel",  # norms after each sum
    "bart": "BartForConditionalGeneration",
    "t5": "T5ForConditionalGeneration",
    "whisper": "WhisperForConditionalGeneration",
    "vit": "ViTForImageClassification",
    "dinov2": "Dinov2ForImageClassification",
}


def with_logits(name):
    """The model of a family with its head, biases that are not zero, and what it reads."""
    model_class = CLASSES[name]
    case = zoo.ALL[name]
    model = dataclasses.replace(case, model=model_class).build()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter.add_(0.1 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1)))
    part = "decoder" if "decoder" in case.parts else None
    return model, case.read(), part


def own_logits(model, read):
    with torch.no_grad():
        return model(**read).logits


def total(found):
    return float(found.heads.sum() + found.layers.sum()) + found.embedding + found.bias


@pytest.mark.parametrize("name", CLASSES)
def test_contributions_add_up_to_the_logit(name):
    model, read, part = with_logits(name)
    logits = own_logits(model, read)
    largest = float(logits.abs().max())
    for i, found in enumerate(ht.ModelView(model).logit_attribution(inputs=read, part=part)):
        row = logits[i] if logits.ndim == 2 else logits[i, -1]
        assert found.target == int(row.argmax())
        assert found.position == (None if logits.ndim == 2 else logits.shape[1] - 1)
        assert found.logit == pytest.approx(float(row.max()), abs=1e-5 * largest)
        assert total(found) == pytest.approx(float(row.max()), abs=1e-5 * largest)
    assert n_hooks(model) == 0


@pytest.mark.parametrize("name", ["txl", "vit"])
def test_they_add_up_in_the_bundled_networks(name):
    model, read = bundled(name)
    (found,) = ht.ModelView(model).logit_attribution(inputs=read)
    assert total(found) == pytest.approx(found.logit, abs=1e-4)


def test_contributions_are_what_heads_write_times_the_unembedding():
    """Llama by hand: the final norm with its scale frozen, then the unembedding."""
    model, read, _ = with_logits("llama")
    view = ht.ModelView(model)
    cache, found = view.cache(inputs=read)[1], view.logit_attribution(inputs=read, target=7, position=4)[1]
    x = cache["residual"].values[-1, 4]
    scale = 1 / np.sqrt((x**2).mean() + model.config.rms_norm_eps)
    with torch.no_grad():
        direction = scale * (model.model.norm.weight * model.lm_head.weight[7]).numpy()
    np.testing.assert_allclose(found.heads.values, cache["writes"].values[:, 4] @ direction, atol=1e-5)
    np.testing.assert_allclose(found.layers.sel(term="mlp"), cache["mlp_out"].values[:, 4] @ direction, atol=1e-5)
    assert found.embedding == pytest.approx(float(cache["residual"].values[0, 4] @ direction), abs=1e-5)
    assert found.bias == pytest.approx(0, abs=1e-6)
    assert found.logit == pytest.approx(float(own_logits(model, read)[1, 4, 7]), abs=1e-5)
    assert (found.target, found.position) == (7, 4)


def test_a_head_that_writes_nothing_contributes_nothing():
    model, read, _ = with_logits("gpt2")
    view = ht.ModelView(model)
    with view.ablated([(1, 2)]):
        found = view.logit_attribution(inputs=read)[0]
    assert float(found.heads.sel(head="L1H2")) == 0
    assert total(found) == pytest.approx(found.logit, abs=1e-4)


@pytest.mark.parametrize("name", CLASSES)
def test_the_last_depth_of_the_lens_has_the_models_logits(name):
    model, read, part = with_logits(name)
    logits = own_logits(model, read)
    for i, lens in enumerate(ht.ModelView(model).logit_lens(inputs=read, part=part)):
        assert lens.dims == (("depth", "logit") if logits.ndim == 2 else ("depth", "token", "logit"))
        torch.testing.assert_close(torch.as_tensor(lens[-1].values), logits[i], atol=1e-4, rtol=1e-4)


def test_every_depth_is_the_norm_and_the_unembedding_of_the_stream():
    model, read, _ = with_logits("gpt2")
    view = ht.ModelView(model)
    lens, residual = view.logit_lens(inputs=read)[1], view.residual(inputs=read)[1]
    with torch.no_grad():
        for depth, x in enumerate(residual):
            expected = model.lm_head(model.transformer.ln_f(x))
            torch.testing.assert_close(torch.as_tensor(lens[depth].values), expected, atol=1e-5, rtol=1e-5)


def test_the_lens_looks_through_what_is_not_linear():
    """Gemma 2 caps its logits with tanh, so they are no sum, but the lens shows them."""
    model, read = (
        dataclasses.replace(zoo.ALL["gemma2"], model="Gemma2ForCausalLM").build(),
        zoo.ALL["gemma2"].read(),
    )
    view = ht.ModelView(model)
    with pytest.raises(ht.HeadtreeError, match=r"logits of Gemma2ForCausalLM are not linear .* use logit_lens"):
        view.logit_attribution(inputs=read)
    lens = view.logit_lens(inputs=read)[0]
    torch.testing.assert_close(torch.as_tensor(lens[-1].values), own_logits(model, read)[0], atol=1e-4, rtol=1e-4)


def test_models_without_logits_are_refused():
    model, read = built("bert")
    for method in ("logit_attribution", "logit_lens"):
        with pytest.raises(ht.HeadtreeError, match="BertModel returns no logits; load it with its"):
            getattr(ht.ModelView(model), method)(inputs=read)


def test_an_encoder_does_not_end_in_logits():
    model, read, _ = with_logits("t5")
    view = ht.ModelView(model)
    for method in (view.logit_lens, view.logit_attribution):
        with pytest.raises(ht.HeadtreeError, match="other attention layers lie between"):
            method(inputs=read, part="encoder")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"target": 64}, "target must be one of the 64 logits, got 64"),
        ({"target": "cat"}, "target must be a whole number, got 'cat'"),
        ({"position": 12}, "position must be one of the 12 tokens, got 12"),
        ({"layers": [0]}, "layers and heads must be left out"),
    ],
)
def test_bad_targets(options, message):
    model, read, _ = with_logits("gpt2")
    with pytest.raises(ht.HeadtreeError, match=message):
        ht.ModelView(model).logit_attribution(inputs=read, **options)


def test_a_single_row_of_logits_has_no_position():
    model, read, _ = with_logits("vit")
    with pytest.raises(ht.HeadtreeError, match="position must be left out, since the model has one row of logits"):
        ht.ModelView(model).logit_attribution(inputs=read, position=0)
