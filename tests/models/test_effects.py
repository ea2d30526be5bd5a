"""Effects of heads against plain loops over ablated models."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import headtree as ht
from headtree.errors import HeadtreeError
from headtree.measures.heads import loss_changes
from headtree.models.objective import choose_objective
from tests.models import zoo


@pytest.fixture(scope="module")
def gpt2():
    case = zoo.ALL["gpt2"]
    return zoo.Case("GPT2LMHeadModel", case.config, case.settings).build()


def texts(n, n_tokens=12, seed=0):
    ids = torch.randint(5, 60, (n, n_tokens), generator=torch.Generator().manual_seed(seed))
    return [{"input_ids": ids[i : i + 1]} for i in range(n)]


def next_token(model, item):
    with torch.no_grad():
        logits = model(**item).logits[0]
    return F.cross_entropy(logits[:-1], item["input_ids"][0, 1:], reduction="none").double().numpy()


def literal_changes(model, items, heads, loss, **how):
    view = ht.ModelView(model)
    base = [loss(model, item) for item in items]
    rows = []
    for head in heads:
        with view.ablated([head], **how):
            rows.append(np.concatenate([loss(model, item) - b for item, b in zip(items, base, strict=True)]))
    return np.array(rows), np.concatenate(base)


def test_changes_of_the_next_token_are_those_of_ablated_passes(gpt2):
    items = texts(3)
    found = ht.head_effects(gpt2, inputs=items)
    expected, base = literal_changes(gpt2, items, found.heads, next_token)
    assert found.objective == "cross entropy of the next token"
    np.testing.assert_allclose(found.changes, expected, atol=2e-6)
    np.testing.assert_allclose(found.raw, expected.mean(axis=1), atol=1e-6)
    np.testing.assert_allclose(found.effect, found.raw, atol=1e-12)  # all inputs were ablated
    assert found.loss == pytest.approx(base.mean(), abs=1e-6)
    assert found.input_of.tolist() == np.repeat([0, 1, 2], 11).tolist()
    np.testing.assert_allclose(found.similarity, np.corrcoef(expected), atol=1e-4)
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in gpt2.modules())


@pytest.mark.parametrize("how", ["mean", "resample"])
def test_other_ways_of_ablating(gpt2, how):
    items = texts(4)
    reference = {"input_ids": torch.cat([item["input_ids"] for item in texts(1, seed=3)])}
    found = ht.head_effects(gpt2, inputs=items, how=how, reference=reference)
    expected, _ = literal_changes(gpt2, items, found.heads, next_token, how=how, reference=reference)
    np.testing.assert_allclose(found.changes, expected, atol=3e-6)
    some = ht.head_effects(gpt2, inputs=items, how=how, reference=reference, heads=[(1, 3), (2, 0)])
    np.testing.assert_allclose(some.changes, found.changes[[7, 8]], atol=3e-6)
    own = ht.head_effects(gpt2, inputs=items, how=how, heads=[(1, 3), (2, 0)])
    assert np.abs(own.changes).max() > 1e-3


def test_first_order_terms_are_derivatives(gpt2):
    """Against a central difference of a mask on the head, made by scaling its rows of the output projection."""
    items = texts(2)
    found = ht.head_effects(gpt2, inputs=items)
    weight = gpt2.transformer.h[1].attn.c_proj.weight
    for head in range(4):
        sums = []
        for mask in (0.99, 1.01):
            with torch.no_grad():
                weight[8 * head : 8 * head + 8] *= mask
                sums.append(np.concatenate([next_token(gpt2, item) for item in items]).mean())
                weight[8 * head : 8 * head + 8] /= mask
        assert found.first_order[4 + head] == pytest.approx(-(sums[1] - sums[0]) / 0.02, abs=2e-4)


def test_the_control_variate(gpt2):
    items = texts(9)
    part = ht.head_effects(gpt2, inputs=items, n_ablated=4)
    whole = ht.head_effects(gpt2, inputs=items)
    few = ht.head_effects(gpt2, inputs=items[:4])
    np.testing.assert_allclose(part.changes, few.changes, atol=2e-6)
    np.testing.assert_allclose(part.first_order, whole.first_order, atol=1e-6)
    np.testing.assert_allclose(part.effect, few.raw - few.first_order + whole.first_order, atol=1e-6)
    plain = ht.head_effects(gpt2, inputs=items, n_ablated=4, control=False)
    np.testing.assert_allclose(plain.effect, few.raw, atol=1e-6)
    assert np.isnan(plain.first_order).all()
    assert part.loss == pytest.approx(whole.loss, abs=1e-6)


def test_standard_errors_are_those_of_means_over_inputs(gpt2):
    found = ht.head_effects(gpt2, inputs=texts(6))
    means = np.stack([found.changes[:, found.input_of == i].mean(axis=1) for i in range(6)])
    np.testing.assert_allclose(found.error, means.std(axis=0, ddof=1) / np.sqrt(6), rtol=1e-6)
    assert np.isnan(ht.head_effects(gpt2, inputs=texts(2)).error).all()


def test_the_error_covers_the_truth():
    """On made-up sums: Δ = effect + c + noise, with the first-order terms known on many more inputs."""
    from headtree.measures.heads.effects import _effect, _error, _Sums

    rng = np.random.default_rng(0)
    truth, misses = np.linspace(0, 1, 40), []
    for _ in range(40):
        slopes = rng.normal(0, 1, (60, 40))
        changes = truth + slopes[:12] + rng.normal(0, 0.1, (12, 40))
        sums = _Sums(changes, slopes, np.ones(60), np.ones(60), [])
        effect = _effect(sums, np.arange(12), np.arange(60))
        misses.append((effect - truth) / _error(sums))
    assert np.std(misses) == pytest.approx(1.0, abs=0.1)


def test_reliability_is_near_one_for_clear_effects_and_near_zero_for_noise(gpt2):
    from headtree.measures.heads.effects import _reliability, _Sums

    rng = np.random.default_rng(0)
    noise = rng.normal(0, 1, (20, 50))
    clear = np.linspace(-9, 9, 50) + noise
    ones = np.ones(20)
    assert _reliability(_Sums(clear, None, ones, ones, []), rng)[0] > 0.95
    assert abs(_reliability(_Sums(noise, None, ones, ones, []), rng)[0]) < 0.35
    assert np.isnan(ht.head_effects(gpt2, inputs=texts(1)).reliability)


def test_nothing_depends_on_what_passes_share(gpt2, monkeypatch):
    shared = ht.head_effects(gpt2, inputs=texts(2))
    monkeypatch.setattr(loss_changes, "block_paths", lambda names: None)
    np.testing.assert_array_equal(ht.head_effects(gpt2, inputs=texts(2)).changes, shared.changes)


def test_blocks_with_state_share_nothing(gpt2):
    """A model that gives something else when it resumes is noticed, and passes then run from the start."""
    model = zoo.Case("GPT2LMHeadModel", "GPT2Config", zoo.ALL["gpt2"].settings).build()
    n_calls = []

    def drift(_, __, output):
        n_calls.append(1)
        return output + 0.01 * len(n_calls)

    def objective():
        return choose_objective(prepared, loss=lambda output, _: output.logits[..., 0])

    prepared = ht.ModelView(model).prepare(inputs=texts(1), kind="probs")
    handle = model.transformer.ln_f.register_forward_hook(drift)
    with loss_changes.measuring(prepared, objective, "zero", None, 0) as measured:
        assert measured.prefix.blocks == []
    handle.remove()
    with loss_changes.measuring(prepared, objective, "zero", None, 0) as measured:
        assert len(measured.prefix.blocks) == 3
    assert not any("forward" in vars(module) for module in model.modules())


def test_labels():
    settings = {**zoo.ALL["vit"].settings, "num_labels": 3}
    model = zoo.Case("ViTForImageClassification", "ViTConfig", settings).build()
    pixels = torch.randn(4, 3, 16, 24, generator=torch.Generator().manual_seed(0))
    labels = [0, 2, 1, 2]
    found = ht.head_effects(model, inputs={"pixel_values": pixels}, labels=labels)

    def loss(model, item):
        with torch.no_grad():
            return F.cross_entropy(model(item[0]).logits, item[1], reduction="none").double().numpy()

    items = [(pixels[i : i + 1], torch.tensor(labels[i : i + 1])) for i in range(4)]
    expected, _ = literal_changes(model, items, found.heads, loss)
    np.testing.assert_allclose(found.changes, expected, atol=2e-6)
    assert found.objective == "cross entropy of labels"
    with pytest.raises(HeadtreeError, match="one entry per input, got 2 for 4"):
        ht.head_effects(model, inputs={"pixel_values": pixels}, labels=[0, 1])
    with pytest.raises(HeadtreeError, match=r"labels\[1\] must be a class, whole numbers from 0 to 2, got 7"):
        ht.head_effects(model, inputs={"pixel_values": pixels[:2]}, labels=[0, 7])


def test_masked_tokens(tokenizer):
    model = zoo.Case("BertForMaskedLM", "BertConfig", zoo.ALL["bert"].settings).build()
    tokenizer.mask_token = "[MASK]"
    text = " ".join(f"w{i}" for i in range(20))
    found = ht.head_effects(model, texts=[text, text], tokenizer=tokenizer, rng=1)
    assert found.objective == "cross entropy of masked tokens"
    assert found.changes.shape == (12, 6)  # 15 % of 20 words, twice
    with pytest.raises(HeadtreeError, match="predicts masked tokens, but its tokenizer"):
        ht.head_effects(model, inputs=texts(1))


def test_distance_of_the_output_where_there_is_no_loss():
    model = zoo.ALL["bert"].build()
    items = texts(3)
    found = ht.head_effects(model, inputs=items)
    view = ht.ModelView(model)
    for i, item in enumerate(items):
        with torch.no_grad():
            whole = model(**item)[0][0].double()
            with view.ablated([(1, 2)]):
                without = model(**item)[0][0].double()
        expected = (without - whole).square().sum(-1) / whole.square().sum(-1).mean()
        np.testing.assert_allclose(found.changes[6][found.input_of == i], expected.numpy(), rtol=1e-4)
    assert found.loss == 0
    assert (found.effect > 0).all()
    assert (found.first_order == 0).all()  # the distance is smallest with all heads


def test_a_loss_of_ones_own(gpt2):
    items = texts(2)

    def loss(output, arguments):
        return output.logits[0, :, arguments["input_ids"][0, 0]]

    found = ht.head_effects(gpt2, inputs=items, loss=loss)

    def literal(model, item):
        with torch.no_grad():
            return loss(model(**item), item).double().numpy()

    expected, _ = literal_changes(gpt2, items, found.heads, literal)
    np.testing.assert_allclose(found.changes, expected, atol=1e-5)
    with pytest.raises(HeadtreeError, match="loss must return a tensor of floating-point losses, got int"):
        ht.head_effects(gpt2, inputs=items, loss=lambda *_: 3)
    with pytest.raises(HeadtreeError, match="loss must be a function"):
        ht.head_effects(gpt2, inputs=items, loss="mse")
    with pytest.raises(HeadtreeError, match="either labels or a loss"):
        ht.head_effects(gpt2, inputs=items, loss=loss, labels=[0, 1])


def test_models_below_autograd_are_measured_without_the_control_variate():
    case = zoo.ALL["xlnet"]
    model = zoo.Case("XLNetLMHeadModel", case.config, case.settings).build()
    found = ht.head_effects(model, inputs=texts(2), layers=[1], loss=lambda output, _: output.logits[0, :, 3])
    assert np.isnan(found.first_order).all()
    assert np.isfinite(found.effect).all()


def test_bad_counts_are_named(gpt2):
    for count in (0, 5, True, 1.5):
        with pytest.raises(HeadtreeError, match="n_ablated must be a whole number from 1 to the 4 inputs"):
            ht.head_effects(gpt2, inputs=texts(4), n_ablated=count)


def test_padding_does_not_count(gpt2):
    (item,) = texts(1)
    ids, mask = item["input_ids"], torch.ones(1, 16, dtype=torch.long)
    mask[:, :4] = 0
    left = {
        "input_ids": torch.cat([torch.zeros(1, 4, dtype=torch.long), ids], dim=1),
        "attention_mask": mask,
        "position_ids": (mask.cumsum(dim=1) - 1).clamp(min=0),
    }
    plain = ht.head_effects(gpt2, inputs=[item])
    padded = ht.head_effects(gpt2, inputs=[left])
    np.testing.assert_allclose(padded.changes, plain.changes, atol=1e-4)
    moved = ht.head_effects(gpt2.transformer, inputs=[left])
    assert moved.changes.shape == (12, 12)


def test_effects_inside_contexts(gpt2):
    items = texts(2)
    found = ht.head_effects(gpt2, inputs=items)
    with torch.no_grad():
        np.testing.assert_array_equal(ht.head_effects(gpt2, inputs=items).first_order, found.first_order)
    view = ht.ModelView(gpt2)
    with view.ablated([(1, 1)]):
        inside = ht.head_effects(view, inputs=items)
    assert np.abs(inside.changes[5]).max() < 1e-5  # the head is ablated already
    assert np.abs(inside.changes[0]).max() > 1e-4


def test_resampling_never_draws_the_input_itself(gpt2):
    assert (np.abs(ht.head_effects(gpt2, inputs=texts(2), how="resample").raw) > 1e-6).all()
    with pytest.raises(HeadtreeError, match="no other reference input has at least the 12 tokens"):
        ht.head_effects(gpt2, inputs=texts(1), how="resample")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"bogus": 1}, "bogus is not an option here"),
        ({"rng": -1}, "rng must be a seed"),
        ({"labels": 3}, "labels must be a list of whole numbers"),
        ({"labels": ["a", "b"]}, "labels must be a list of whole numbers"),
        ({"labels": [[-100] * 12] * 2}, "input 0 has no loss"),
        ({"labels": [[1] * 5] * 2}, "a label for each of the 12 tokens, got 5"),
        ({"labels": [[-3] * 12] * 2}, r"labels\[0\] must be a class for every token"),
        ({"loss": lambda output, _: output.logits[:0, 0, 0]}, "input 0 has no loss"),
    ],
)
def test_bad_options_are_named(gpt2, options, message):
    with pytest.raises(HeadtreeError, match=message):
        ht.head_effects(gpt2, inputs=texts(2), **options)


def test_one_token_predicts_nothing(gpt2):
    with pytest.raises(HeadtreeError, match="at least 2 tokens"):
        ht.head_effects(gpt2, inputs=texts(1, n_tokens=1))


def decoder_token(model, item):
    with torch.no_grad():
        logits = model(**item).logits[0]
    present = item["decoder_attention_mask"][0, 1:].bool()
    loss = F.cross_entropy(logits[:-1], item["decoder_input_ids"][0, 1:], reduction="none")
    return loss[present].double().numpy()


def test_a_decoder_is_measured_by_the_next_token_of_what_it_reads():
    case = zoo.ALL["t5"]
    model = zoo.Case("T5ForConditionalGeneration", case.config, case.settings).build()
    items = []
    for i, item in enumerate(texts(3, 7)):
        mask, read = torch.ones(1, 7, dtype=torch.long), torch.ones(1, 7, dtype=torch.long)
        mask[:, 5:] = 0
        read[:, 3:] = 0  # padding of the encoder, which has as many tokens
        target = texts(1, 7, seed=i + 5)[0]["input_ids"]
        masks = {"attention_mask": read, "decoder_attention_mask": mask}
        items.append({**item, "decoder_input_ids": target, **masks})
    heads = [(0, 1), (1, 2)]
    for part in ("encoder", "decoder", "cross"):
        found = ht.head_effects(model, inputs=items, part=part, heads=heads)
        assert found.objective == "cross entropy of the next token"
        expected, base = literal_changes(model, items, heads, decoder_token, part=part)
        np.testing.assert_allclose(found.changes, expected, atol=2e-6)
        assert found.loss == pytest.approx(base.mean(), abs=1e-6)


def test_the_mean_of_a_decoder_leaves_out_padding_of_the_decoder_alone():
    case = zoo.ALL["t5"]
    model, ids = zoo.Case("T5Model", case.config, case.settings).build(), texts(2, 7)
    mask = torch.tensor([[1, 1, 1, 1, 0, 0, 0]])
    read = {"input_ids": ids[0]["input_ids"], "decoder_input_ids": ids[1]["input_ids"]}
    reference = {**read, "attention_mask": mask, "decoder_attention_mask": torch.tensor([[1] * 6 + [0]])}
    seen = []
    o = model.decoder.block[0].layer[0].SelfAttention.o
    handle = o.register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    with torch.no_grad():
        model(**reference)
        handle.remove()
        view = ht.ModelView(model)
        with view.ablated([(0, 0)], "mean", reference={"inputs": reference}, part="decoder"):
            found = model(**read)[0]
        mean = seen[0][0, :6, :8].mean(dim=0)
        handle = o.register_forward_pre_hook(
            lambda _, args: (torch.cat([mean.expand(1, 7, 8), args[0][..., 8:]], dim=-1),)
        )
        expected = model(**read)[0]
        handle.remove()
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    ("loss", "message"),
    [
        (lambda output: output.logits.mean(), "loss must be a function of two arguments"),
        (lambda output, given: output.logits.mean() * float("nan"), "loss of input 0 has NaN or infinite values"),
    ],
)
def test_losses_that_cannot_be_used_are_named(gpt2, loss, message):
    with pytest.raises(HeadtreeError, match=message):
        ht.head_effects(gpt2, inputs=texts(2), loss=loss, heads=[(0, 0)])
