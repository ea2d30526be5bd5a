"""Value-weighted attention, ‖a·v·W_O‖, against the definition and in everything that takes a tensor."""

import numpy as np
import pytest
import torch

import headtree as ht
from headtree.measures.heads.patterns import own_columns
from headtree.measures.per_input import measure_input
from headtree.tensor.probabilities import head_block
from tests.models.test_activation_cache import PARTS, built, close
from tests.models.test_capture_modules import X, stack


def by_definition(view, read, part=None, item=-1):
    """The norm of attention times value times W_O, for every head, query and key."""
    probs = view.capture(inputs=read, part=part, kind="probs")[item].values.numpy()
    written = view.cache(inputs=read, part=part)[item]["ov"].values
    norms = np.array([[np.sqrt(sum(x * x for x in row)) for row in head] for head in written.astype(np.float64)])
    return probs * norms[:, None, :]


@pytest.mark.parametrize(("name", "part"), PARTS)
def test_weights_are_the_norms_of_what_each_key_contributes(name, part):
    model, read = built(name)
    view = ht.ModelView(model)
    att = view.capture(inputs=read, part=part, kind="weighted")[-1]
    assert att.kind == "weighted"
    close(att.values.numpy(), by_definition(view, read, part))
    probs = view.capture(inputs=read, part=part, kind="probs")[-1]
    assert (att.mask is None) == (probs.mask is None)
    assert att.mask is None or torch.equal(torch.as_tensor(att.mask), torch.as_tensor(probs.mask))


def test_windows_heads_and_batches_select_what_they_should():
    model, read = built("llama")
    view = ht.ModelView(model)
    whole = view.capture(inputs=read, kind="weighted")
    some = view.capture(
        inputs=read, kind="weighted", heads=[(1, 2), (2, 0)], window=((2, 9), (1, 5)), batch_size=2, dtype="float64"
    )
    for ours, theirs in zip(some, whole, strict=True):
        close(ours.values.numpy(), theirs.values.numpy()[[6, 8], 2:9, 1:5])


def test_what_is_known_only_from_outputs_or_descriptions_is_refused():
    from tests.models.test_capture_modules import Mixer

    ht.register_attention(Mixer, lambda module, arguments, output: output[:, None] @ output[:, None].mT)
    try:
        with pytest.raises(ht.HeadtreeError, match="what its single heads write is unknown"):
            ht.capture(stack(Mixer), inputs=X, kind="weighted")
    finally:
        ht.unregister_attention(Mixer)


@pytest.fixture(scope="module")
def weighted():
    model, read = built("gpt2")
    return ht.capture(model, inputs=read, kind="weighted")


def test_missing_weights_are_zero(weighted):
    assert weighted[0].mask is not None
    hidden = np.broadcast_to(weighted[0].mask, weighted[0].shape)
    assert not weighted[0].filled().values.numpy()[hidden].any()


def test_measures_of_distributions_take_rows_scaled_to_sum_to_one(weighted):
    att = weighted[0]
    block = head_block(att, slice(None))
    values = att.filled().values
    torch.testing.assert_close(block.probs, values / values.sum(dim=2, keepdim=True))
    scaled = ht.AttentionTensor(block.probs, att.heads, att.queries, att.keys, "probs", att.mask)
    ours, theirs = own_columns(att), own_columns(scaled)
    for name in ours:
        np.testing.assert_allclose(ours[name].values, theirs[name].values, rtol=1e-5, atol=1e-6)
    assert "scaled to sum to one" in ours["sink_logit_mass"].reason
    np.testing.assert_allclose(ht.attention_rollout(att), ht.attention_rollout(scaled), rtol=1e-5)
    assert ht.head_roles(att).names == ht.head_roles(scaled).names


def test_negative_weights_are_refused(weighted):
    att = ht.AttentionTensor.from_array(-np.ones((1, 2, 2)), kind="weighted")
    with pytest.raises(ht.HeadtreeError, match=r"must not be negative, since kind='weighted'"):
        head_block(att, slice(None))


def test_softmax_of_the_logarithms_is_the_scaled_weights(weighted):
    att = weighted[0]
    block = head_block(att, slice(None))
    logs = att.log_probs().masked_fill(torch.as_tensor(att.mask), -torch.inf)
    torch.testing.assert_close(logs.softmax(dim=2), block.probs.double(), atol=1e-6, rtol=1e-5)


def test_everything_downstream_takes_them(weighted, tmp_path):
    att = weighted[0]
    org = ht.organize(att)
    measured = measure_input(att, org)
    assert measured.kind == "weighted"
    assert measured.invariance is None  # about the input of softmax
    assert np.isfinite(ht.head_entropy(att, org).raw).all()
    ht.diagnostics(weighted)
    att.save(tmp_path / "a.zarr")
    again = ht.AttentionTensor.open(tmp_path / "a.zarr")
    assert again.kind == "weighted"
    assert torch.equal(again.load().values, torch.as_tensor(att.filled().values))
    with pytest.raises(ht.HeadtreeError, match="kind='scores'"):
        ht.softmax_invariance(att, org)


def test_figures_say_what_is_drawn(weighted):
    from headtree.report.figures.matrix_figures import organized_head

    figure = organized_head(weighted[0], ht.organize(weighted[0]), 0)
    assert any("value-weighted attention" in axes.get_ylabel() + axes.get_xlabel() for axes in figure.axes)
