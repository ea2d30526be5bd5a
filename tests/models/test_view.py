"""A view of a model: loaded, probed and hashed once; its residual stream is the one the model itself returns."""

import pytest
import torch

import headtree as ht
from headtree.models import model_files as source
from headtree.models import view
from headtree.models.module_stack import ModuleStack
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
    "opt",
]


@pytest.mark.parametrize("name", SELF)
def test_the_residual_stream_is_the_models_hidden_states(name):
    case = zoo.ALL[name]
    model = case.build()
    with torch.no_grad():
        states = model(**case.read(), output_hidden_states=True).hidden_states
    for i, found in enumerate(ht.ModelView(model).residual(inputs=case.read())):
        assert len(found) == len(states)
        # the last of the returned states has often been normed again
        for depth, expected in zip(found[1:-1], states[1:-1], strict=True):
            torch.testing.assert_close(depth, expected[i], atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize(
    ("part", "field"), [("encoder", "encoder_hidden_states"), ("decoder", "decoder_hidden_states")]
)
def test_both_sides_of_an_encoder_decoder(part, field):
    for name in ("t5", "bart"):
        case = zoo.ALL[name]
        model = case.build()
        with torch.no_grad():
            states = getattr(model(**case.read(), output_hidden_states=True), field)
        found = ht.ModelView(model).residual(inputs=case.read(), part=part)[0]
        for depth, expected in zip(found[1:-1], states[1:-1], strict=True):
            torch.testing.assert_close(depth, expected[0], atol=1e-5, rtol=1e-4)


def n_hooks(model):
    return sum(len(module._forward_hooks) + len(module._forward_pre_hooks) for module in model.modules())


def test_entering_states_are_what_the_attention_reads():
    model = zoo.ALL["gpt2"].build()
    read = zoo.ALL["gpt2"].read()
    prepared = ht.ModelView(model).prepare(inputs=read, kind="probs")
    entering = {}
    with torch.no_grad():
        states = model(**read, output_hidden_states=True).hidden_states
        before = n_hooks(model)
        prepared.run(on_call=lambda call, site: entering.setdefault(site, call.entering))
        for i, found in entering.items():
            torch.testing.assert_close(found, model.h[i].ln_1(states[i]), atol=1e-5, rtol=1e-4)
    assert len(entering) == len(model.h)
    assert n_hooks(model) == before


def test_a_stream_that_cannot_be_found_is_refused():
    class Twice(torch.nn.Module):
        def forward(self, x):
            attention = torch.nn.functional.scaled_dot_product_attention
            return attention(attention(x, x, x), x, x)

    with pytest.raises(ht.HeadtreeError, match="no residual stream was found"):
        ht.ModelView(Twice()).residual(inputs=torch.randn(1, 2, 5, 4))


def counting(monkeypatch, owner, name):
    """Let a function count its calls; returns the list that grows by one with each."""
    calls, function = [], getattr(owner, name)
    monkeypatch.setattr(owner, name, lambda *args, **kwargs: calls.append(name) or function(*args, **kwargs))
    return calls


def test_a_model_is_probed_traced_and_hashed_once(monkeypatch):
    probes = counting(monkeypatch, view, "make_plan")
    hashes = counting(monkeypatch, source, "weights_hash")
    traces = counting(monkeypatch, view, "trace")
    look = ht.ModelView(zoo.ALL["gpt2"].build())
    read = zoo.ALL["gpt2"].read()
    atts = look.capture(inputs=read)
    look.capture(inputs=read, kind="probs")
    look.weights(inputs=read)
    look.residual(inputs=read)
    ht.diagnostics(atts, model=look, inputs=read)
    ht.rank_residual(look, inputs=read, fresh=False)
    ht.path_lengths(look, inputs=read)
    assert (len(probes), len(hashes), len(traces)) == (1, 1, 1)


def test_inputs_of_another_kind_are_probed_again(monkeypatch):
    probes = counting(monkeypatch, view, "make_plan")
    look = ht.ModelView(zoo.ALL["gpt2"].build())
    for n_tokens in (3, 5, 9, 12):  # probed on the first eight tokens
        look.capture(inputs={"input_ids": torch.arange(n_tokens)[None]})
    look.capture(inputs={"input_ids": torch.arange(12)[None], "attention_mask": torch.ones(1, 12)})
    assert len(probes) == 3
    image = ht.ModelView(zoo.ALL["vit"].build())
    for _ in range(2):
        image.capture(inputs=zoo.ALL["vit"].read())
    assert len(probes) == 4


def test_short_cuts_take_views_and_models_alike():
    model, read = zoo.ALL["bert"].build(), zoo.ALL["bert"].read()
    look = ht.ModelView(model)
    for att, same in zip(ht.capture(model, inputs=read), ht.capture(look, inputs=read), strict=True):
        assert torch.equal(torch.as_tensor(att.values), torch.as_tensor(same.values))
        assert dict(att.provenance) == dict(same.provenance)
    for weights, same in zip(ht.head_weights(model, inputs=read), look.weights(inputs=read), strict=True):
        assert torch.equal(weights.qk, same.qk)
    with pytest.raises(ht.HeadtreeError, match="device must be given to ModelView itself"):
        ht.capture(look, inputs=read, device="cpu")


def test_the_stack_of_modules_unwinds_after_an_exception():
    class Inner(torch.nn.Module):
        def forward(self, x):
            if x.sum() > 0:
                raise RuntimeError("inside")
            return x

    class Outer(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = Inner()

        def forward(self, x):
            try:
                return self.inner(x)
            except RuntimeError:
                return -x

    model, left = Outer(), []
    stack = ModuleStack(model, left=lambda call, output: left.append((call.name, call.index, output is None)))
    with stack.watching():
        model(torch.ones(1))
        model(-torch.ones(1))
    assert stack.running == []
    assert left == [("inner", 0, True), ("", 0, False), ("inner", 0, False), ("", 0, False)]  # counted per pass
    assert n_hooks(model) == 0


def test_a_description_that_comes_later_is_seen_by_a_view_that_is_there():
    class Mixer(torch.nn.Module):
        def forward(self, x):
            return (x @ x.mT).sigmoid() @ x

    class Both(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.mixer = Mixer()

        def forward(self, x):
            x = self.mixer(x)
            q = x[:, None]
            return torch.nn.functional.scaled_dot_product_attention(q, q, q)[:, 0]

    look, x = ht.ModelView(Both()), torch.randn(1, 5, 4)
    assert look.capture(inputs=x)[0].shape[0] == 1
    ht.register_attention(Mixer, lambda module, arguments, output: (arguments["x"] @ arguments["x"].mT)[:, None])
    try:
        assert look.capture(inputs=x)[0].shape[0] == 2
    finally:
        ht.unregister_attention(Mixer)
    assert look.capture(inputs=x)[0].shape[0] == 1


def test_weights_that_no_file_has_are_the_same_in_every_process(tmp_path):
    """A pooler that was not saved would be random."""
    from transformers import BertConfig, BertForMaskedLM

    config = BertConfig(
        hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8, vocab_size=9
    )
    BertForMaskedLM(config).save_pretrained(tmp_path)
    atts = [ht.capture(str(tmp_path), inputs={"input_ids": torch.arange(5)[None]})[0] for _ in range(2)]
    assert atts[0].provenance["class"] == "BertModel"
    assert atts[0].provenance["weights_sha256"] == atts[1].provenance["weights_sha256"]
