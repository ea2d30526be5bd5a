"""Importance and prune curves: literal definitions, disjoint data, resuming, and what users are told."""

import json
import re

import numpy as np
import pytest
import torch

import headtree as ht
from headtree.cli.app import app
from headtree.errors import HeadtreeError
from headtree.prune.curve import PruneCurve
from headtree.prune.importance import CRITERIA
from headtree.report.words.prune_section import CALLED, prune_section
from tests.models import zoo
from tests.prune.networks import texts, tiny


@pytest.fixture(scope="module")
def model():
    return tiny()


@pytest.mark.parametrize("criterion", [name for name in CRITERIA if name != "family"])
def test_every_criterion_ranks_every_head(model, criterion):
    found = ht.head_importance(model, criterion, inputs=texts(4))
    assert len(found.heads) == 12
    assert np.isfinite(found.importance).all()
    assert sorted(found.order()) == sorted(found.heads)
    assert len(found.least(0.25)) == 3


def test_confidence_and_entropy_in_plain_loops(model):
    inputs = texts(3)
    confidences, entropies = [], []
    for att in ht.capture(model, inputs=inputs, kind="probs"):
        values = att.values.numpy()
        confidences.append([[max(row) for row in head] for head in values])
        entropies.append([[sum(-p * np.log(p) for p in row if p > 0) for row in head] for head in values])
    found = ht.head_importance(model, "confidence", inputs=inputs)
    assert np.allclose(found.importance, np.mean(confidences, axis=(0, 2)), atol=1e-5)
    shannon = ht.head_importance(model, "shannon", inputs=inputs)
    assert np.allclose(shannon.importance, -np.mean(entropies, axis=(0, 2)), atol=1e-5)


def test_gradient_is_the_mean_size_of_a_mask_gradient(model):
    """E|∂loss/∂m| with a mask m on what a head hands to W_O, by hand with autograd."""
    inputs, sizes = texts(3), []
    for item in inputs:
        masks = [torch.ones(4, requires_grad=True) for _ in model.blocks]
        handles = [
            block.attention.output.register_forward_pre_hook(
                lambda _, args, mask=mask: (args[0] * mask.repeat_interleave(4),)
            )
            for block, mask in zip(model.blocks, masks, strict=True)
        ]
        logits = model(**item).logits[0, :-1]
        loss = torch.nn.functional.cross_entropy(logits, item["input_ids"][0, 1:])
        sizes.append(torch.cat(torch.autograd.grad(loss, masks)).abs().numpy())
        for handle in handles:
            handle.remove()
    found = ht.head_importance(model, "gradient", inputs=inputs)
    assert np.allclose(found.importance, np.mean(sizes, axis=0), rtol=1e-3, atol=1e-6)


def test_output_norms_by_hand(model):
    (cache,) = ht.ModelView(model).cache(inputs=texts(1))
    found = ht.head_importance(model, "output_norm", inputs=texts(1))
    for i, head in enumerate(found.heads):
        written = np.linalg.norm(cache["writes"][i].values, axis=1).mean()
        assert found.importance[i] == pytest.approx(
            written / np.linalg.norm(cache["residual"][head.layer].values, axis=1).mean(), rel=1e-5
        )


def test_the_best_of_each_family_comes_first():
    from headtree.prune import importance

    network = ht.load_bundled("txl")
    inputs = [{"input_ids": item["input_ids"][:, :24]} for item in network.inputs[:6]]
    options = {"inputs": inputs, "layers": [0, 1]}
    found = ht.head_importance(network.model, "family", **options)
    confidence = ht.head_importance(network.model, "confidence", **options)
    atts = ht.capture(network.model, kind="probs", **options)
    families = importance.consensus(importance.head_similarity(atts)).families()
    alone = [i for i, family in enumerate(families.of_leaf) if family < 0]
    first = [max(members, key=lambda i: confidence.importance[i]) for members in families.folders]
    top = set(np.argsort(-found.importance)[: len(first) + len(alone)].tolist())
    assert top == {*first, *alone}


def test_one_of_each_matched_pair_goes_first(model):
    options = {"inputs": texts(3)}
    found = ht.head_importance(model, "pairs", **options)
    confidence = ht.head_importance(model, "confidence", **options).importance
    distance = ht.ModelView(model).head_similarity(**options).distance[0]
    left, pairs = set(range(12)), []
    while left:  # the closest pair of those left, by looking at all
        pairs.append(min((distance[a, b], a, b) for a in left for b in left if a < b)[1:])
        left -= set(pairs[-1])
    weaker = [min(pair, key=lambda i: confidence[i]) for pair in pairs]
    assert np.argsort(found.importance)[:6].tolist() == weaker


def test_effects_are_the_ground_truth(model):
    found = ht.head_importance(model, "effect", inputs=texts(3))
    assert np.array_equal(found.importance, ht.head_effects(model, inputs=texts(3)).effect)


@pytest.mark.parametrize("refit", [False, True])
@pytest.mark.parametrize("iterative", [False, True])
def test_losses_of_a_curve_are_those_of_pruned_models(model, refit, iterative):
    inputs = texts(9)
    found = ht.prune_curve(
        model, ["compensated", "random"], inputs=inputs, steps=3, n_random=2, refit=refit, iterative=iterative
    )
    assert found.counts.tolist() == [0, 4, 7, 11]
    test = inputs[6:] if refit else inputs[3:]
    for name, k in (("compensated", 0), ("random", 1)):
        for step in (1, 2):
            heads = found.orders[name][k][: found.counts[step]]
            pruned = ht.prune_heads(model, heads, refit=inputs[3:6] if refit else None)
            for i, item in enumerate(test):
                with torch.no_grad():
                    logits = pruned(**item).logits[0, :-1]
                loss = torch.nn.functional.cross_entropy(logits, item["input_ids"][0, 1:])
                assert found.losses[name][k, step, i] == pytest.approx(float(loss), rel=2e-4)


def test_rankings_do_not_see_test_inputs(model):
    inputs = texts(9)
    names = ["confidence", "effect", "compensated"]
    ours = ht.prune_curve(model, names, inputs=inputs, steps=2)
    theirs = ht.prune_curve(model, names, inputs=[*inputs[:3], *texts(6, seed=9)], steps=2)
    assert ours.orders == theirs.orders


def test_differences_are_paired(model):
    found = ht.prune_curve(model, ["confidence", "shannon", "random"], inputs=texts(9), steps=2, n_random=3)
    ours, theirs = (found.losses[name][0, 1] for name in ("confidence", "shannon"))
    pair = found.compare("confidence", "shannon", 1)
    assert pair.difference == pytest.approx(abs(np.mean(theirs - ours)))
    assert pair.error == pytest.approx(np.std(theirs - ours, ddof=1) / np.sqrt(6))
    random = found.losses["random"][:, 1]
    against = found.compare("confidence", "random", 1)
    over_inputs = np.var(random.mean(axis=0) - ours, ddof=1) / 6
    assert against.error == pytest.approx(np.sqrt(over_inputs + np.var(random.mean(axis=1), ddof=1) / 3))


def test_every_two_criteria_are_compared_at_every_step(model):
    names = ["confidence", "shannon", "random"]
    found = ht.prune_curve(model, names, inputs=texts(9), steps=2, n_random=3)
    table = found.comparisons()
    assert len(table) == 2 * 3
    first = table.iloc[0]
    pair = found.compare(names[0], names[1], 1)
    assert (first["better"], first["worse"]) == (pair.better, pair.worse)
    assert first["difference"] == pair.difference >= 0
    assert first["is_clear"] == (pair.difference > 2 * pair.error)


def test_sentences_compare_with_a_random_order():
    rises = {"confidence": 0.0, "output_norm": 1.0, "gradient": 3.0, "random": 2.0}
    noise = np.random.default_rng(0).normal(scale=0.1, size=(1, 2, 9))
    losses = {name: np.repeat(noise + rise, 2 if name == "random" else 1, axis=0) for name, rise in rises.items()}
    found = PruneCurve(np.array([0, 6]), 12, losses, {}, np.ones(9), {}, "cross entropy of labels", 3, 0, False, {})
    text = [re.sub(r" ± [^)]+", "", sentence) for sentence in prune_section(found).text]  # errors are rounding
    assert text[2].startswith(
        "Without 50 % of the heads, the best criterion is confidence: clearly ahead of output"
    )
    better, worse = text[3].split("; clearly worse: ")
    assert better.endswith("clearly better: confidence (by 2), output norm (by 1)")
    assert worse == "gradient E|g| (by 1)."


def test_sentences_say_who_is_better_and_who_was_not_measured(model):
    found = ht.prune_curve(model, ["confidence", "random"], inputs=texts(9), steps=2, n_random=2)
    text = " ".join(prune_section(found).text)
    assert "ranked on 3 inputs" in text
    assert "6 other inputs" in text
    assert "the best criterion is" in text
    assert set(CALLED) == set(CRITERIA)
    encoder = zoo.ALL["bert"].build()
    inputs = [{"input_ids": torch.randint(5, 60, (1, 12))} for _ in range(6)]
    found = ht.prune_curve(encoder, ["gradient", "confidence"], inputs=inputs, steps=2)
    assert "needs a loss" in found.skipped["gradient"]
    assert "Not measured: gradient" in " ".join(prune_section(found).text)
    assert found.losses["confidence"][0, 0].max() == 0  # distance of the output from itself


def test_labels_give_accuracy():
    model = zoo.ALL["vit"].build()
    from transformers import ViTConfig, ViTForImageClassification

    model = ViTForImageClassification(ViTConfig(**zoo.ALL["vit"].settings, num_labels=3)).eval()
    rng = torch.Generator().manual_seed(0)
    inputs = [{"pixel_values": torch.randn(1, 3, 16, 24, generator=rng)} for _ in range(6)]
    found = ht.prune_curve(model, ["confidence"], inputs=inputs, labels=[0, 1, 2, 0, 1, 2], steps=2)
    with torch.no_grad():
        right = [
            int(model(**item).logits.argmax() == label)
            for item, label in zip(inputs[2:], (2, 0, 1, 2), strict=True)
        ]
    assert found.correct["confidence"][0, 0].tolist() == right
    assert found.objective == "cross entropy of labels"


def test_bad_input(model):
    with pytest.raises(HeadtreeError, match="criterion must be one of effect"):
        ht.head_importance(model, "size", inputs=texts(2))
    with pytest.raises(HeadtreeError, match="at least 6 inputs"):
        ht.prune_curve(model, ["confidence"], inputs=texts(5))
    with pytest.raises(HeadtreeError, match="one entry per input"):
        ht.prune_curve(model, ["confidence"], inputs=texts(6), labels=[0])
    with pytest.raises(HeadtreeError, match="criteria must be"):
        ht.prune_curve(model, [], inputs=texts(6))
    encoder = zoo.ALL["bert"].build()
    with pytest.raises(HeadtreeError, match="needs a loss"):
        ht.head_importance(encoder, "gradient", inputs=[{"input_ids": torch.arange(5, 17)[None]}])
    with pytest.raises(HeadtreeError, match="n must be a number of heads up to 12"):
        ht.head_importance(model, "random", inputs=texts(1)).least(13)
    with pytest.raises(HeadtreeError, match="at least 2 inputs"):
        ht.head_importance(model, "family", inputs=texts(1))


def test_costs(model):
    pruned = ht.prune_heads(model, [(0, 0), (0, 1)])
    whole, small = ht.model_cost(model, pruned, inputs=texts(1)[0], n_runs=2)
    # rows of q, k, v, position and o, and two biases of scores
    assert whole.n_parameters - small.n_parameters == 2 * (5 * 16 * 4 + 2 * 4)
    assert whole.seconds > 0


def test_command_resumes(tmp_path, monkeypatch):
    from typer.testing import CliRunner

    from headtree.pipeline import prune_run

    calls = []
    stop = {"after": 3}
    original = prune_run._stored_in

    def counted(writer):
        remember = original(writer)

        def wrapped(name, compute):
            def counting():
                calls.append(name)
                if len(calls) > stop["after"]:
                    raise KeyboardInterrupt
                return compute()

            return remember(name, counting)

        return wrapped

    monkeypatch.setattr(prune_run, "_stored_in", counted)
    command = "prune txl --criterion confidence,random --steps 2 --orders 2 --inputs 6 --tokens 16"
    arguments = [*command.split(), "-o", str(tmp_path / "out")]
    first = CliRunner().invoke(app, arguments)
    assert first.exit_code == 130
    assert "run the same command to continue" in first.output
    done = calls[:3]
    stop["after"] = 1000
    calls.clear()
    second = CliRunner().invoke(app, arguments)
    assert second.exit_code == 0, second.output
    assert not set(done) & set(calls)
    assert "the best criterion is" in second.output
    assert {path.name for path in (tmp_path / "out" / "figures").iterdir()} == {"prune_loss.svg", "prune_loss.png"}
    assert len((tmp_path / "out" / "prune.csv").read_text().splitlines()) == 1 + 2 * 3
    assert len(json.loads((tmp_path / "out" / "orders.json").read_text())["random"]) == 2
    other = CliRunner().invoke(app, [*arguments[:-2], "--steps", "3", "-o", str(tmp_path / "out")])
    assert other.exit_code == 3
