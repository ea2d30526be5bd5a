"""Captured attention against what each architecture's eager attention says, and the model left as it was."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch

from headtree.models.capture import capture
from headtree.models.watching.watch import _configs
from tests.models import zoo

CASES = [(name, part) for name, case in zoo.ALL.items() for part in case.parts]


@functools.cache
def model(name: str) -> torch.nn.Module:
    return zoo.ALL[name].build()


@functools.cache
def eager_outputs(name: str) -> Any:
    """From a model of its own that never met headtree."""
    case = zoo.ALL[name]
    with torch.no_grad():
        return case.build("eager")(**case.read(), output_attentions=True, **_no_cache(name))


def _no_cache(name: str) -> dict[str, Any]:
    return {"use_cache": False} if hasattr(model(name).config, "use_cache") else {}


@functools.cache
def captured(name: str, part: str | None, kind: str) -> Any:
    return capture(model(name), inputs=zoo.ALL[name].read(), kind=kind, part=part)


def eager_probs(name: str, part: str | None, item: int) -> torch.Tensor:
    layers = eager_outputs(name)[zoo.ALL[name].parts[part]]
    return torch.cat([layer[item] for layer in layers])


def softmax_of(att: Any) -> torch.Tensor:
    scores = att.values if att.mask is None else att.values.masked_fill(att.mask, -torch.inf)
    if att.sinks is None:
        return torch.softmax(scores, dim=-1)
    sinks = att.sinks[:, None, None].expand(-1, scores.shape[1], 1)
    return torch.softmax(torch.cat([scores, sinks], dim=-1), dim=-1)[..., :-1]


@pytest.mark.parametrize(("name", "part"), CASES)
def test_softmax_of_scores_plus_mask_is_eager_attention(name, part):
    for item, att in enumerate(captured(name, part, "scores")):
        expected = eager_probs(name, part, item)
        assert att.shape == tuple(expected.shape)
        assert torch.isfinite(att.values).all()
        torch.testing.assert_close(softmax_of(att), expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize(("name", "part"), CASES)
def test_probs_are_eager_attention(name, part):
    for item, att in enumerate(captured(name, part, "probs")):
        torch.testing.assert_close(att.values, eager_probs(name, part, item), atol=1e-5, rtol=0)


@pytest.mark.parametrize("name", [name for name, case in zoo.ALL.items()])
def test_attention_is_not_so_uniform_that_the_comparison_says_nothing(name):
    for part in zoo.ALL[name].parts:
        att = captured(name, part, "probs")[0]
        largest = att.values.amax(dim=-1)[:, -1]
        assert largest.max() > 1.5 / att.shape[2]


@pytest.mark.parametrize("name", list(zoo.ALL))
def test_outputs_are_unchanged_bit_for_bit_and_the_model_is_put_back(name):
    watched, case = model(name), zoo.ALL[name]
    state = [(config, config._attn_implementation_internal) for config in _configs(watched)]
    seen = []
    with torch.no_grad():
        plain = watched(**case.read(), **_no_cache(name))
    handle = watched.register_forward_hook(lambda module, args, output: seen.append(output))
    try:
        capture(watched, inputs=case.read(), part=next(iter(case.parts)))
    finally:
        handle.remove()
    first, last = plain.to_tuple()[0], seen[-1].to_tuple()[0]
    assert torch.equal(first, last)
    assert all(
        config._attn_implementation_internal == before in ("eager", "sdpa", None) for config, before in state
    )
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in watched.modules())


@pytest.mark.parametrize("name", list(zoo.ALL))
def test_the_model_is_put_back_after_an_error(name):
    watched, case = model(name), zoo.ALL[name]
    state = [(config, config._attn_implementation_internal) for config in _configs(watched)]
    watched.train()
    n_calls = 0

    def fail(module, args, output):
        nonlocal n_calls
        n_calls += 1
        if n_calls == 4:  # after the first looks, in the midst of the real run
            raise KeyboardInterrupt

    handle = watched.register_forward_hook(fail)
    try:
        with pytest.raises(KeyboardInterrupt):
            _capture_again_and_again(watched, case)
    finally:
        handle.remove()
        was_training = all(module.training for module in watched.modules())
        watched.eval()
    assert was_training
    assert all(
        config._attn_implementation_internal == before in ("eager", "sdpa", None) for config, before in state
    )
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in watched.modules())
    from transformers import AttentionInterface, AttentionMaskInterface

    for registry in (AttentionInterface, AttentionMaskInterface):
        assert not [key for key in registry._global_mapping if key.startswith("headtree")]


def _capture_again_and_again(watched, case):
    for _ in range(4):
        capture(watched, inputs=case.read(), part=next(iter(case.parts)))


@pytest.mark.parametrize("name", ["bert", "gpt2", "llama", "gemma2", "t5", "vit", "gpt_neox"])
def test_models_loaded_with_eager_attention_are_captured_too(name):
    case = zoo.ALL[name]
    part = next(iter(case.parts))
    watched = case.build("eager")
    for item, att in enumerate(capture(watched, inputs=case.read(), part=part)):
        torch.testing.assert_close(softmax_of(att), eager_probs(name, part, item), atol=1e-5, rtol=0)


@pytest.mark.parametrize("name", list(zoo.REGISTRY))
def test_registry_is_the_way_where_the_model_uses_it(name):
    from headtree.models.given_model import prepare

    case = zoo.ALL[name]
    plan = prepare(model(name), inputs=case.read(), part=next(iter(case.parts))).plan
    assert plan.registry
    assert not plan.functions


@pytest.mark.parametrize("name", list(zoo.WATCHED))
def test_models_that_never_call_the_registry_do_not_pass_silently(name):
    from headtree.models.given_model import prepare

    plan = prepare(model(name), inputs=zoo.ALL[name].read()).plan
    assert not plan.registry
    assert plan.functions
    assert len(plan.sites) == 3


def test_sinks_are_kept_per_head():
    att = captured("gpt_oss", None, "scores")[0]
    module = model("gpt_oss")
    expected = torch.cat([layer.self_attn.sinks.detach() for layer in module.layers])
    torch.testing.assert_close(att.sinks, expected)


def test_sliding_windows_and_causality_are_in_the_mask():
    att = captured("mistral", None, "scores")[0]
    query, key = torch.arange(12)[:, None], torch.arange(12)
    expected = (key > query) | (query - key >= 5)
    assert torch.equal(att.mask, expected.expand(att.shape))


def test_layers_with_different_windows_keep_their_own_masks():
    att = captured("gemma3", None, "scores")[0]
    hidden = {head.layer: int(att.mask[i].sum()) for i, head in enumerate(att.heads)}
    assert len(set(hidden.values())) == 2


def test_a_model_whose_implementations_disagree_is_captured_as_it_is_with_a_warning():
    """Falcon in transformers 5.22 adds its ALiBi bias twice when eager, once with sdpa."""
    from headtree.errors import HeadtreeWarning

    watched, case = zoo.ALL["falcon"].build("sdpa"), zoo.ALL["falcon"]
    with torch.no_grad():
        agree = torch.allclose(watched(**case.read())[0], model("falcon")(**case.read())[0], atol=1e-4)
    if agree:
        pytest.skip("transformers has mended it")
    with pytest.warns(HeadtreeWarning, match="as loaded computes different attention"):
        atts = capture(watched, inputs=case.read())
    assert (softmax_of(atts[0]) - eager_probs("falcon", None, 0)).abs().max() > 1e-3


def _returned(name, config, **settings):
    import transformers

    with torch.random.fork_rng():
        torch.manual_seed(0)
        return getattr(transformers, name)(getattr(transformers, config)(**settings)).eval()


def test_scores_returned_under_the_name_of_attentions_are_not_taken_for_probs():
    model = _returned("SqueezeBertModel", "SqueezeBertConfig", **zoo._TEXT, embedding_size=32)
    att = capture(model, inputs=zoo.ALL["bert"].read(), kind="probs")[0]
    torch.testing.assert_close(att.values.sum(-1), torch.ones(12, 12))


def test_means_over_heads_that_a_model_returns_do_not_hide_its_heads():
    settings = {"conv_dim": [16, 16], "conv_stride": [4, 2], "conv_kernel": [8, 4], "num_conv_pos_embeddings": 4}
    small = {**zoo._SMALL, **settings, "num_feat_extract_layers": 2, "num_conv_pos_embedding_groups": 2}
    model = _returned("WavLMModel", "WavLMConfig", **small)
    att = capture(model, inputs={"input_values": torch.randn(1, 200)}, kind="probs")[0]
    assert att.shape[0] == 12
    assert (att.values[0] - att.values[1]).abs().max() > 1e-5


def test_banded_attention_gives_probs_and_says_that_scores_are_not_obtainable():
    from headtree.errors import HeadtreeError

    model = _returned("LongformerModel", "LongformerConfig", **zoo._TEXT, attention_window=4, pad_token_id=0)
    read = zoo.ALL["bert"].read()
    with pytest.raises(HeadtreeError, match="use kind='probs'"):
        capture(model, inputs=read)
    att = capture(model, inputs=read, kind="probs")[0]
    with torch.no_grad():
        band = torch.cat([layer[0] for layer in model(**read, output_attentions=True).attentions])
    for query in range(12):
        first, last = max(0, query - 2), min(12, query + 3)
        columns = slice(first - query + 2, last - query + 2)
        torch.testing.assert_close(att.values[:, query, first:last], band[:, query, columns])
    torch.testing.assert_close(att.values.sum(-1), band.sum(-1))


def test_gpt2_with_its_own_eager_attention_keeps_its_outputs():
    """Upcast attention is chosen where the implementation is called "eager"; another name must not lose it.

    The module's own branch scales inside the product, the function it would fall back on after it: on some
    processors the last bit differs, on others only for longer inputs than the one a plan is made on.
    """
    case = zoo.ALL["gpt2"]
    settings = {**case.settings, "reorder_and_upcast_attn": True, "scale_attn_by_inverse_layer_idx": True}
    watched = zoo.Case(case.model, case.config, settings).build("eager")
    outputs = []
    with torch.no_grad():
        plain = watched(**case.read(), use_cache=False, output_attentions=True)
    handle = watched.register_forward_hook(lambda module, args, output: outputs.append(output))
    att = capture(watched, inputs=case.read())[0]
    handle.remove()
    assert torch.equal(outputs[-1][0], plain[0])
    torch.testing.assert_close(
        softmax_of(att), torch.cat([layer[0] for layer in plain.attentions]), atol=1e-5, rtol=0
    )
