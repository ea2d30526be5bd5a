"""Attention while a model writes, and captures of some queries."""

import pytest
import torch
import transformers

import headtree as ht
from headtree.models import facts, generation
from headtree.models.watching.query_choice import chosen_queries
from tests.models import zoo

N = 8
IDS = torch.randint(5, 60, (1, 7), generator=torch.Generator().manual_seed(2))

HEADED = {
    "gpt2": "GPT2LMHeadModel",
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",  # its cache forgets keys outside the window
    "opt": "OPTForCausalLM",
    "bloom": "BloomForCausalLM",
    "gpt_oss": "GptOssForCausalLM",  # with sinks
    "t5": "T5ForConditionalGeneration",
    "bart": "BartForConditionalGeneration",
}


def headed(name):
    case = zoo.ALL[name]
    settings = case.settings() if callable(case.settings) else case.settings
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = getattr(transformers, HEADED[name])(getattr(transformers, case.config)(**settings)).eval()
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.ndim > 1:
                    parameter.normal_(0, 0.25)
    return model


def in_one_pass(view, ids, kind, part):
    """The rows of the written tokens in one pass over everything."""
    if part is None:
        given = {"input_ids": torch.cat([IDS, torch.tensor([ids])], dim=1)}
    else:
        start = facts.decoder_start(view.model)
        given = {"input_ids": IDS, "decoder_input_ids": torch.tensor([[start, *ids]])}
    (whole,) = view.capture(inputs=given, kind=kind, part=part)
    values = whole.values[:, -len(ids) :]
    hidden = torch.zeros_like(values, dtype=torch.bool)
    return values, hidden if whole.mask is None else whole.mask[:, -len(ids) :].expand_as(values)


@pytest.mark.parametrize("kind", ["probs", "scores", "weighted"])
@pytest.mark.parametrize(
    ("name", "part"),
    [(name, None) for name in HEADED if name not in ("t5", "bart")]
    + [("t5", "decoder"), ("t5", "cross"), ("bart", "decoder"), ("bart", "cross")],
)
@pytest.mark.filterwarnings("ignore")
def test_what_is_captured_while_writing_is_what_one_pass_shows(name, part, kind):
    if kind != "probs" and name not in ("gpt2", "t5"):
        return
    view = ht.ModelView(headed(name))
    (att,) = view.capture(inputs={"input_ids": IDS}, generate=N, kind=kind, part=part)
    about = att.provenance["generated"]
    assert about["cached"]
    assert att.shape[1] == N == len(about["ids"])
    values, hidden = in_one_pass(view, about["ids"], kind, part)
    assert att.shape == tuple(values.shape)
    own = torch.zeros_like(hidden) if att.mask is None else att.mask.expand_as(hidden)
    assert torch.equal(own, hidden)
    torch.testing.assert_close(att.values[~hidden], values[~hidden], atol=1e-4, rtol=0)


def test_it_writes_what_transformers_writes():
    model = headed("gpt2")
    (att,) = ht.ModelView(model).capture(inputs={"input_ids": IDS}, generate=N, kind="probs")
    model.generation_config.eos_token_id = None
    mask = torch.ones_like(IDS)
    expected = model.generate(IDS, attention_mask=mask, max_new_tokens=N, do_sample=False, pad_token_id=0)
    assert att.provenance["generated"]["ids"] == expected[0, IDS.shape[1] :].tolist()


def test_the_cache_is_on(monkeypatch):
    lengths = []
    model = headed("gpt2")
    model.register_forward_pre_hook(
        lambda _, args, kwargs: lengths.append(kwargs["input_ids"].shape[1]), with_kwargs=True
    )
    view = ht.ModelView(model)
    view.prepare(inputs={"input_ids": IDS})  # probes
    lengths.clear()
    view.capture(inputs={"input_ids": IDS}, generate=N, kind="probs")
    assert lengths == [7, *[1] * N, 7 + N]  # the last pass checks the cache


def test_labels_and_provenance_tell_the_text(tokenizer):
    view = ht.ModelView(headed("gpt2"), tokenizer=tokenizer)
    (att,) = view.capture(texts=["w1 w2 w3"], generate=5, kind="probs")
    about = att.provenance["generated"]
    assert att.keys[:5] == ("[CLS]", "w1", "w2", "w3", "[SEP]")
    assert att.queries == att.keys[5:] == tuple(tokenizer.convert_ids_to_tokens(about["ids"]))
    assert about["n_before"] == 5
    assert about["prompt"] == "[CLS] w1 w2 w3 [SEP]"
    assert about["text"] == tokenizer.decode(about["ids"])
    assert att.provenance["causal"]
    roles = ht.head_roles([att])  # queries are the last keys, as measures expect them
    assert len(roles.heads) == 12


def test_a_model_without_a_cache_writes_all_the_same():
    bundled = ht.load_bundled("txl")
    view = ht.ModelView(bundled.model, tokenizer=bundled.tokenizer)
    given = {"input_ids": bundled.inputs[0]["input_ids"][:, :9]}
    (att,) = view.capture(inputs=given, generate=4, kind="probs", layers=[0, 5])
    about = att.provenance["generated"]
    assert not about["cached"]
    assert att.shape == (16, 4, 13)
    assert att.provenance["causal"]
    ids = torch.cat([given["input_ids"], torch.tensor([about["ids"]])], dim=1)
    (whole,) = view.capture(inputs={"input_ids": ids}, kind="probs", layers=[0, 5])
    torch.testing.assert_close(att.values, whole.values[:, -4:])
    with torch.no_grad():
        assert view.model(ids).logits[0, 8:12].argmax(-1).tolist() == about["ids"]


def test_a_cache_that_computes_something_else_is_not_trusted(monkeypatch):
    def forgetful(model, kwargs, output, ids):
        given = following(model, kwargs, output, ids)
        return {**given, "position_ids": torch.zeros(1, 1, dtype=torch.long)}

    following = generation._following
    monkeypatch.setattr(generation, "_following", forgetful)
    view = ht.ModelView(headed("gpt2"))
    with pytest.warns(ht.HeadtreeWarning, match="other logits with its cache"):
        (att,) = view.capture(inputs={"input_ids": IDS}, generate=N, kind="probs")
    assert not att.provenance["generated"]["cached"]
    values, _ = in_one_pass(view, att.provenance["generated"]["ids"], "probs", None)
    torch.testing.assert_close(att.values, values)


# -- some queries --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["bert", "gpt2", "vit", "bloom", "t5"])
def test_chosen_queries_are_rows_of_the_whole_capture(name):
    case = zoo.ALL[name]
    view, part = ht.ModelView(case.build()), "cross" if name == "t5" else None
    for kind in ("scores", "probs"):
        whole = view.capture(inputs=case.read(), part=part, kind=kind)[1]
        some = view.capture(inputs=case.read(), part=part, kind=kind, queries=[-1, 2])[1]
        rows = [whole.shape[1] - 1, 2]
        torch.testing.assert_close(some.values, whole.values[:, rows])
        assert some.queries == tuple(whole.queries[i] for i in rows)
        assert some.provenance["query_positions"] == rows
        hidden = torch.zeros(some.shape, dtype=torch.bool) if some.mask is None else some.mask
        if whole.mask is not None:
            assert torch.equal(hidden, whole.mask[:, rows])


def test_tokens_name_queries(bert, tokenizer):
    view = ht.ModelView(bert, tokenizer=tokenizer)
    texts = ["w1 w2 w3 w2", "w2 w4 w5 w6"]
    first, second = view.capture(texts=texts, queries=["w2"])
    assert first.queries == ("w2", "w2")
    assert first.provenance["query_positions"] == [2, 4]
    assert second.provenance["query_positions"] == [1]
    assert chosen_queries(["cat", " the"], ["▁the", "Ġcat", "##s"], 0) == [1, 0]
    assert chosen_queries(["s"], ["▁the", "s", "##s"], 0) == [1]  # the exact token, if there is one


def test_of_written_tokens_some_can_be_chosen(tokenizer):
    view = ht.ModelView(headed("gpt2"), tokenizer=tokenizer)
    (whole,) = view.capture(texts=["w1 w2 w3"], generate=5)
    (some,) = view.capture(texts=["w1 w2 w3"], generate=5, queries=[-1, 0])
    torch.testing.assert_close(some.values, whole.values[:, [4, 0]])
    assert some.provenance["query_positions"] == [9, 5]


# -- bad input -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"queries": ["zebra"]}, "'zebra' is not among the 5 tokens of input 0, such as"),
        ({"queries": [9]}, "queries must be between -5 and 4 for 5 tokens of input 0, got 9"),
        ({"queries": []}, "queries must name at least one query"),
        ({"queries": [1.5]}, "queries must be positions or tokens, got 1.5"),
        ({"queries": [1], "window": (0, 2)}, "queries cannot be combined with window"),
        ({"generate": 0}, "generate must be at least 1, got 0"),
        ({"generate": 2, "window": (0, 2)}, "window cannot be combined with generate"),
        ({"generate": 4}, "BertModel has no head that predicts the next token"),
    ],
)
def test_bad_requests(bert, tokenizer, options, said):
    with pytest.raises(ht.HeadtreeError, match=said):
        ht.capture(bert, texts=["w1 w2 w3"], tokenizer=tokenizer, **options)


def test_what_a_model_cannot_write(tokenizer):
    view = ht.ModelView(headed("gpt2"), tokenizer=tokenizer)
    with pytest.raises(ht.HeadtreeError, match="exceed the model's context of 64; pass generate=59 or less"):
        view.capture(texts=["w1 w2 w3"], generate=60)
    bundled = ht.load_bundled("vit")
    with pytest.raises(ht.HeadtreeError, match="generate applies to texts"):
        ht.capture(bundled.model, inputs=bundled.inputs[0], generate=3)
    headless = torch.nn.Sequential(torch.nn.Embedding(64, 16), torch.nn.TransformerEncoderLayer(16, 2)).eval()
    with pytest.raises(ht.HeadtreeError):
        ht.capture(headless, inputs={"input": IDS}, generate=3)
