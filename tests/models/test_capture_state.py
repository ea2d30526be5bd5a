"""Arguments with state, such as a key-value cache: each pass gets its own copy, and the caller's is not touched."""

import contextlib

import pytest
import torch

import headtree as ht
from headtree.errors import HeadtreeError
from tests.models import zoo

IDS = zoo._ids(14)[:1]


def cached(model, n=10, ids=IDS, grad=False):
    with torch.set_grad_enabled(grad):
        return model(ids[:, :n], use_cache=True).past_key_values


def continued(model, past, n=10, **options):
    return {"input_ids": IDS[:, n:], "past_key_values": past, "use_cache": True, **options}


@pytest.mark.parametrize("name", ["llama", "gpt2", "gptj", "mistral"])
@pytest.mark.parametrize("grad", [False, True])
def test_new_tokens_attend_to_the_cached_ones_as_in_the_whole_text(name, grad):
    model = zoo.ALL[name].build()
    past = cached(model, grad=grad)
    (whole,) = ht.capture(model, inputs={"input_ids": IDS}, kind="probs")
    for _ in range(2):
        (att,) = ht.capture(model, inputs=continued(model, past), kind="probs")
        n_keys = att.shape[2]  # a cache may drop what is out of a sliding window
        assert n_keys == 14 or name == "mistral"
        torch.testing.assert_close(att.values, whole.values[:, 10:, 14 - n_keys :], atol=1e-5, rtol=0)
    assert past.get_seq_length() == 10


def test_new_tokens_are_labelled_among_the_keys(tokenizer):
    model = zoo.ALL["llama"].build()
    past = cached(model)
    words = tuple(tokenizer.convert_ids_to_tokens(IDS[0, 10:].tolist()))
    (att,) = ht.capture(model, inputs=continued(model, past), tokenizer=tokenizer)
    assert att.queries == words
    assert att.keys == (*map(str, range(10)), *words)
    (plain,) = ht.capture(model, inputs=continued(model, past))
    assert plain.queries == tuple(map(str, range(10, 14)))
    assert plain.keys == tuple(map(str, range(14)))


def test_caches_with_room_to_spare_have_positions_as_keys():
    from transformers import StaticCache

    model = zoo.ALL["llama"].build()
    past = StaticCache(config=model.config, max_cache_len=20)
    with torch.no_grad():
        model(IDS[:, :10], past_key_values=past, use_cache=True)
    before = [layer.keys.clone() for layer in past.layers]
    (att,) = ht.capture(model, inputs=continued(model, past), kind="probs")
    (whole,) = ht.capture(model, inputs={"input_ids": IDS}, kind="probs")
    torch.testing.assert_close(att.values[:, :, :14], whole.values[:, 10:], atol=1e-5, rtol=0)
    assert att.keys == tuple(map(str, range(20)))
    assert all(torch.equal(layer.keys, keys) for layer, keys in zip(past.layers, before, strict=True))


def test_inputs_with_caches_run_one_by_one_and_have_plans_of_their_own():
    model = zoo.ALL["llama"].build()
    other = zoo._ids(14, seed=5)[:1]
    first, second = continued(model, cached(model)), continued(model, cached(model, ids=other))
    shorter = continued(model, cached(model, n=6))
    together = ht.capture(model, inputs=[first, second, shorter])
    for att, item in zip(together, (first, second, shorter), strict=True):
        (alone,) = ht.capture(model, inputs=item)
        assert torch.equal(att.values, alone.values)
        assert att.keys == alone.keys
    view = ht.ModelView(model)
    assert view.prepare(inputs=first).estimate().result > view.prepare(inputs=shorter).estimate().result


def test_a_batch_with_a_cache_cannot_be_split():
    model = zoo.ALL["llama"].build()
    ids = zoo._ids(14)
    past = cached(model, ids=ids)
    with pytest.raises(HeadtreeError, match=r"inputs\[0\]\['past_key_values'\].*batch of 2.*one input at a time"):
        ht.capture(model, inputs={"input_ids": ids[:, 10:], "past_key_values": past, "use_cache": True})


@pytest.mark.parametrize("method", ["residual", "relevance", "weights"])
def test_no_other_look_touches_the_cache(method):
    import transformers

    config = transformers.LlamaConfig(**zoo._LLAMA)
    model = transformers.LlamaForCausalLM(config).eval()
    past = cached(model)
    for _ in range(2):
        refused = pytest.raises(HeadtreeError, match="must not bring a key-value cache here")
        with refused if method == "weights" else contextlib.nullcontext():
            getattr(ht.ModelView(model), method)(inputs=continued(model, past))
    assert past.get_seq_length() == 10
