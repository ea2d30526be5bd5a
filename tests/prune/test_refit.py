"""Refitting against least squares in plain steps, and orders of removal against an exhaustive one."""

import copy

import numpy as np
import pytest
import torch

import headtree as ht
from headtree.errors import HeadtreeError
from headtree.models.objective import choose_objective
from headtree.prune.compensation import RIDGE, LayerSignals, layer_signals, removal_order
from headtree.prune.refit import RIDGES, OutputLayers, refitted, ridge_fit
from tests.models import zoo
from tests.prune.networks import texts, tiny


def streams(model, ids):
    """What enters the attention of each block, and the stream after it."""
    seen = []

    def hook(block, args, _):
        hidden, past, distances, mask = args
        normed = block.attention_norm(hidden)
        written = block.attention(normed, past, distances, mask)
        seen.append((hidden.reshape(-1, 16), (hidden + written).reshape(-1, 16)))

    handles = [block.register_forward_hook(hook) for block in model.blocks]
    with torch.no_grad():
        model(ids)
    for handle in handles:
        handle.remove()
    return seen


def test_ridge_without_strength_is_least_squares():
    rng = np.random.default_rng(0)
    z, y = rng.normal(size=(50, 6)), rng.normal(size=(50, 3))
    weights, bias = ridge_fit(*map(torch.from_numpy, (z, y, np.zeros((6, 3)))), [0.0])
    expected = np.linalg.lstsq(np.hstack([z, np.ones((50, 1))]), y, rcond=None)[0]
    assert np.allclose(torch.vstack([weights, bias]).numpy(), expected)


def test_a_strong_ridge_leaves_the_weights_as_they_were():
    rng = np.random.default_rng(0)
    z, y, before = (torch.from_numpy(rng.normal(size=size)) for size in ((50, 6), (50, 3), (6, 3)))
    weights, bias = ridge_fit(z, y, before, [1e9])
    assert torch.allclose(weights, before, atol=1e-6)
    assert torch.allclose(bias, (y - z @ before).mean(dim=0), atol=1e-6)


@pytest.mark.parametrize(("n_tokens", "noise"), [(24, 3.0), (200, 1.0), (400, 0.1)])
def test_the_ridge_is_the_one_that_predicts_the_other_half(n_tokens, noise):
    """Literally: fit one half of the tokens, predict the other, for every ridge."""
    rng = np.random.default_rng(0)
    z, before = rng.normal(size=(n_tokens, 8)) @ rng.normal(size=(8, 8)), rng.normal(size=(8, 3))
    y = z @ (before + 0.3 * rng.normal(size=(8, 3))) + noise * rng.normal(size=(n_tokens, 3)) + 2
    z, y, before = map(torch.from_numpy, (z, y, before))
    halves = [(z[: n_tokens // 2], y[: n_tokens // 2]), (z[n_tokens // 2 :], y[n_tokens // 2 :])]
    errors = []
    for ridge in RIDGES:
        error = 0.0
        for fitted, other in (halves, halves[::-1]):
            weights, bias = ridge_fit(*fitted, before, [ridge])
            error += float(((other[0] @ weights + bias - other[1]) ** 2).sum(dim=1).mean())
        errors.append(error)
    expected = ridge_fit(z, y, before, [RIDGES[int(np.argmin(errors))]])
    assert all(map(torch.equal, ridge_fit(z, y, before), expected))
    assert (np.argmin(errors) > 0) == (n_tokens == 24)  # few and noisy tokens want a stronger one


def test_layer_after_layer_as_in_plain_steps():
    """Each layer by lstsq on what the layers before it, fitted already, hand over; literal and slow."""
    model, inputs = tiny(), texts(6)
    removed = [(0, 1), (1, 0), (1, 3), (2, 2)]
    ids = torch.cat([item["input_ids"] for item in inputs])
    prepared = ht.ModelView(model).prepare(inputs=inputs, kind="probs")
    found = refitted(prepared, removed, ridges=[1e-12])

    whole = streams(model, ids)
    plain = copy.deepcopy(model)
    for layer, block in enumerate(plain.blocks):
        rows = [h * 4 + f for h in range(4) if (layer, h) not in removed for f in range(4)]
        handed = []
        handle = block.attention.output.register_forward_pre_hook(lambda _, args, to=handed: to.append(args[0]))
        with torch.no_grad():
            plain(ids)
        handle.remove()
        z = handed[0].reshape(-1, 16)[:, rows].double().numpy()
        target = (whole[layer][1] - streams(plain, ids)[layer][0]).double().numpy()
        fit = np.linalg.lstsq(np.hstack([z, np.ones((len(z), 1))]), target, rcond=None)[0]
        weight = np.zeros((16, 16))
        weight[:, rows] = fit[:-1].T
        block.attention.output.weight.data = torch.from_numpy(weight).float()
        block.attention.output.bias = torch.nn.Parameter(torch.from_numpy(fit[-1]).float())
    with torch.no_grad():
        assert torch.allclose(found(ids).logits, plain(ids).logits, atol=1e-3)


def test_without_removed_heads_nothing_changes():
    model, inputs = tiny(), texts(6)
    prepared = ht.ModelView(model).prepare(inputs=inputs, kind="probs")
    found = refitted(prepared, [])
    with torch.no_grad():
        assert torch.allclose(found(**inputs[0]).logits, model(**inputs[0]).logits, atol=1e-4)


@pytest.mark.parametrize("name", ["bert", "gpt2", "llama", "gemma2"])
def test_refitted_models_are_nearer_to_the_whole_one(name):
    case = zoo.ALL[name]
    model = case.build()
    inputs = [
        {"input_ids": torch.randint(5, 60, (1, 12), generator=torch.Generator().manual_seed(i))} for i in range(40)
    ]
    heads = [(0, 1), (1, 2), (2, 0)]
    fitted = ht.prune_heads(model, heads, refit=inputs)
    pruned = ht.prune_heads(model, heads)

    def distance(other):
        with torch.no_grad():
            return sum(float((other(**item)[0] - model(**item)[0]).square().sum()) for item in inputs[:20])

    assert distance(fitted) < 0.95 * distance(pruned)


def test_a_refitted_model_is_saved_with_its_new_biases(tmp_path):
    model = tiny()
    fitted = ht.prune_heads(model, [(0, 1), (2, 3)], refit=texts(6))
    ht.save_pruned(fitted, tmp_path / "small")
    again = ht.load_pruned(tmp_path / "small")
    assert again.blocks[1].attention.output.bias is not None
    with torch.no_grad():
        assert torch.equal(again(**texts(1)[0]).logits, fitted(**texts(1)[0]).logits)


def test_calibration_inputs_must_fit_in_one_batch():
    with pytest.raises(HeadtreeError, match="refit must be inputs that all have the same size"):
        ht.prune_heads(tiny(), [(0, 1)], refit=[*texts(2), *texts(2, 9)])


def signals(seed=0, n=60):
    rng = np.random.default_rng(seed)
    made = {}
    for layer in range(2):
        z = rng.normal(size=(n, 6))
        z[:, 4:] = 0.9 * z[:, 2:4] + 0.2 * z[:, 4:]  # heads 1 and 2 can stand in for each other
        slope, matrix = rng.normal(size=(n, 5)), rng.normal(size=(6, 5))
        z, slope, matrix = (torch.from_numpy(value) for value in (z - z.mean(axis=0), slope, matrix))
        made[layer] = LayerSignals(z, slope, matrix, torch.arange(6).reshape(3, 2))
    return made


def lost_by_hand(signal, removed):
    z, slope, matrix = (value.numpy() for value in (signal.z, signal.slope, signal.matrix))
    gone = [2 * h + f for h in removed for f in range(2)]
    rest = [c for c in range(6) if c not in gone]
    written = z[:, gone] @ matrix[gone]
    if rest:  # a ridge is least squares with more rows
        strength = np.sqrt(RIDGE * np.square(z).mean() * len(z))
        more = np.vstack([z[:, rest], strength * np.eye(len(rest))])
        fill = np.linalg.lstsq(more, np.vstack([written, np.zeros((len(rest), 5))]), rcond=None)[0]
        written = written - z[:, rest] @ fill
    return (written * slope).sum(axis=1)


@pytest.mark.parametrize("removed", [[0], [1, 2], [0, 1, 2]])
def test_what_is_lost_is_the_residual_of_a_regression(removed):
    signal = signals()[0]
    assert np.allclose(signal.lost(removed).numpy(), lost_by_hand(signal, removed))


def test_each_removal_is_the_cheapest_one():
    made = signals()
    order, costs = removal_order(made)
    gone = {0: [], 1: []}
    for (layer, head), cost in zip(order, costs, strict=True):
        tried = {}
        for i in (0, 1):
            for h in set(range(3)) - set(gone[i]):
                after = {**gone, i: [*gone[i], h]}
                tried[i, h] = float(sum(made[k].lost(after[k]) for k in (0, 1)).square().mean())
        assert min(tried, key=tried.get) == (layer, head)
        assert cost == pytest.approx(tried[layer, head])
        gone[layer].append(head)
    assert sorted(order) == [(i, h) for i in (0, 1) for h in range(3)]


def test_signals_are_what_enters_and_the_gradient_of_what_leaves():
    model, inputs = tiny(n_layers=2), texts(3)
    prepared = ht.ModelView(model).prepare(inputs=inputs, kind="probs")
    with prepared.view.ready():
        found = layer_signals(model, prepared, choose_objective(prepared), OutputLayers.find(prepared))
    step = 1e-2
    probe = torch.zeros(1, 12, 16)
    probe[0, 5, 7] = step

    def loss(shift):
        handle = model.blocks[1].attention.output.register_forward_hook(lambda *_, s=shift: _[2] + s)
        with torch.no_grad():
            logits = model(**inputs[0]).logits[0, :-1].double()
        handle.remove()
        return float(torch.nn.functional.cross_entropy(logits, inputs[0]["input_ids"][0, 1:], reduction="sum"))

    slope = (loss(probe) - loss(-probe)) / (2 * step)
    assert float(found[1].slope[5, 7]) == pytest.approx(slope, rel=0.02)
