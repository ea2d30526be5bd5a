"""The states around attention against those the models return themselves."""

import pytest
import torch

import headtree as ht
from headtree.models.view import prepare
from headtree.models.watching.stream import layer_states
from tests.models import zoo

SELF = [
    "bert",
    "gpt2",
    "vit",
    "llama",
    "albert",
    "clip",
    "dinov2",
    "gpt_neox",
    "bloom",
    "mpnet",
    "deberta_v2",
    "gptj",
]


@pytest.mark.parametrize("name", SELF)
def test_leaving_states_are_the_models_hidden_states(name):
    case = zoo.ALL[name]
    model = case.build()
    job = prepare(model, inputs=case.read(), kind="probs")
    with torch.no_grad():
        states = model(**case.read(), output_hidden_states=True).hidden_states
    for i, item in enumerate(job.items):
        found = layer_states(job, item)
        assert len(found) == len(states) - 1
        # the last of the returned states has often been normed again
        for layer, expected in zip(found[:-1], states[1:-1], strict=True):
            torch.testing.assert_close(layer.leaving, expected[i], atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize(
    ("part", "field"), [("encoder", "encoder_hidden_states"), ("decoder", "decoder_hidden_states")]
)
def test_both_sides_of_an_encoder_decoder(part, field):
    for name in ("t5", "bart"):
        case = zoo.ALL[name]
        model = case.build()
        job = prepare(model, inputs=case.read(), kind="probs", part=part)
        with torch.no_grad():
            states = getattr(model(**case.read(), output_hidden_states=True), field)
        found = layer_states(job, job.items[0])
        for layer, expected in zip(found[:-1], states[1:-1], strict=True):
            torch.testing.assert_close(layer.leaving, expected[0], atol=1e-5, rtol=1e-4)


def n_hooks(model):
    return sum(len(module._forward_hooks) + len(module._forward_pre_hooks) for module in model.modules())


def test_entering_states_are_what_the_attention_reads():
    model = zoo.ALL["gpt2"].build()
    read = zoo.ALL["gpt2"].read()
    job = prepare(model, inputs=read, kind="probs")
    with torch.no_grad():
        states = model(**read, output_hidden_states=True).hidden_states
        before = n_hooks(model)
        for i, layer in enumerate(layer_states(job, job.items[0])):
            torch.testing.assert_close(layer.entering, model.h[i].ln_1(states[i])[0], atol=1e-5, rtol=1e-4)
    assert n_hooks(model) == before


def test_what_cannot_be_told_apart_is_refused():
    class Twice(torch.nn.Module):
        def forward(self, x):
            attention = torch.nn.functional.scaled_dot_product_attention
            return attention(attention(x, x, x), x, x)

    model = Twice()
    job = prepare(model, inputs=torch.randn(1, 2, 5, 4), kind="probs")
    with pytest.raises(ht.HeadtreeError, match="inside a module of their own"):
        layer_states(job, job.items[0])
