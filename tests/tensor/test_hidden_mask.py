"""Scores that hold their causal mask as numbers, and captured ones that lost it."""

from dataclasses import replace

import numpy as np
import pytest

import headtree as ht
from headtree.errors import HeadtreeWarning
from headtree.tensor.hidden_mask import future_keys


def scores(n_heads=3, n_queries=6, n_keys=6):
    return np.random.default_rng(0).standard_normal((n_heads, n_queries, n_keys)).astype(np.float32)


def masked_by_numbers(number, n_queries=6, n_keys=6, heads=slice(None)):
    """Scores with a large negative number added to future keys."""
    x = scores(n_queries=n_queries, n_keys=n_keys)
    x[heads] += np.where(future_keys(n_queries, n_keys), number, 0).astype(np.float32)
    return x


@pytest.mark.parametrize("number", [-1e4, -1e9, np.finfo(np.float32).min, -np.inf])
@pytest.mark.parametrize("shape", [(6, 6), (4, 7)])
@pytest.mark.parametrize("row_constant", [0.0, -3e4, 3e4])
def test_a_mask_in_numbers_is_refused_and_the_line_makes_the_right_mask(number, shape, row_constant):
    x = masked_by_numbers(number, *shape) + np.float32(row_constant)
    att = ht.AttentionTensor.from_array(x)
    for call in (att.centred, lambda: ht.head_similarity(att), lambda: ht.head_similarity(att, "questionnaire")):
        with pytest.raises(ht.HeadtreeError, match="L0H0 hold a causal mask as large negative numbers") as error:
            call()
    mask = eval(str(error.value).rsplit("mask=", 1)[1])
    np.testing.assert_array_equal(mask, future_keys(*shape))
    ht.head_similarity(ht.AttentionTensor.from_array(x, mask=mask))


@pytest.mark.parametrize("number", [-1e4, -1e9, np.finfo(np.float32).min])
def test_the_line_for_a_window_hides_all_that_the_window_does(number):
    """Its causal half alone would leave the rest to count as scores, and is refused too."""
    hidden = future_keys(12, 12).numpy() | np.tri(12, k=-4, dtype=bool)
    x = np.where(hidden, number, np.random.default_rng(0).standard_normal((3, 12, 12))).astype(np.float32)
    for mask in (None, future_keys(12, 12).numpy()):
        att = ht.AttentionTensor.from_array(x, mask=mask)
        for call in (att.centred, lambda att=att: ht.head_similarity(att, "questionnaire")):
            with pytest.raises(ht.HeadtreeError, match="large negative numbers") as error:
                call()
        found = eval(str(error.value).rsplit("mask=", 1)[1])
        np.testing.assert_array_equal(found, np.broadcast_to(hidden, x.shape))
        ht.head_similarity(ht.AttentionTensor.from_array(x, mask=found), "questionnaire")


@pytest.mark.parametrize("beneath", [0.0, 1e6, np.nan])
def test_what_a_mask_hides_stays_hidden(beneath):
    """A causal mask in numbers beside padding, and half of a window: the line only adds to the mask given."""
    x, future = scores(3, 12, 12), future_keys(12, 12).numpy()
    padding = np.zeros((12, 12), bool)
    padding[:, -2:] = True
    for mask, numbers in ((padding, future), (future, np.tri(12, k=-4, dtype=bool))):
        y = np.where(numbers, -1e9, x)
        y[:, mask] = 0 if np.isnan(beneath) else beneath
        att = ht.AttentionTensor.from_array(y, mask=mask)
        with pytest.raises(ht.HeadtreeError, match="large negative numbers") as error:
            att.centred()
        y[:, mask] = beneath  # as in the user's own array
        found = eval(str(error.value).rsplit("mask=", 1)[1], {"np": np, "x": y, "mask": mask})
        np.testing.assert_array_equal(np.broadcast_to(found, x.shape), np.broadcast_to(mask | numbers, x.shape))


@pytest.mark.parametrize("number", [-1e9, np.finfo(np.float32).min])
@pytest.mark.parametrize("given", [False, True])
def test_numbers_that_are_no_scores_are_refused_in_any_shape(number, given):
    """Beyond the next key, beyond fewer keys than queries, and padding that no query sees."""
    for hidden in (
        np.triu(np.ones((8, 8), bool), 2),
        np.triu(np.ones((8, 4), bool), 1),
        np.arange(8) >= np.full((8, 1), 6),
    ):
        x = np.where(hidden, number, np.random.default_rng(0).standard_normal((3, *hidden.shape))).astype(
            np.float32
        )
        mask = None
        if given:
            mask = np.zeros(hidden.shape, bool)
            mask[:, 1] = True
        att = ht.AttentionTensor.from_array(x, mask=mask)
        with pytest.raises(ht.HeadtreeError, match="mask") as error:
            ht.head_similarity(att)
        found = eval(str(error.value).rsplit("mask=", 1)[1], {"np": np, "x": x, "mask": mask})
        wanted = hidden if mask is None else hidden | mask
        np.testing.assert_array_equal(np.broadcast_to(found, x.shape), np.broadcast_to(wanted, x.shape))


@pytest.mark.parametrize("scale", [1e6, 1e8, 1e9, 1e12, 1e30])
def test_an_array_of_large_numbers_holds_no_mask(scale):
    rng = np.random.default_rng(0)
    ht.head_similarity(ht.AttentionTensor.from_array(scale * rng.standard_normal((4, 8, 8))))
    x = rng.standard_normal((4, 8, 8))
    x[:, :, 3] = -scale * (1 + rng.random((4, 8)))  # a key that no query attends to
    ht.head_similarity(ht.AttentionTensor.from_array(x))


def test_padding_on_the_left_does_not_hide_a_causal_mask():
    x = masked_by_numbers(-1e9)
    x[:, :, :2] = -1e9
    with pytest.raises(ht.HeadtreeError, match="causal mask") as error:
        ht.head_similarity(ht.AttentionTensor.from_array(x))
    assert "x <= x.max" in str(error.value)


def test_scores_of_any_size_are_scores():
    """Also beside a mask, and where one key has nearly all attention."""
    first = scores(2, 8, 8) + np.where(np.arange(8) < 2, 2e4, 0)  # every query sees them above all
    centred = first - first.mean(axis=2, keepdims=True)
    one = np.tile(1e4 * np.eye(8), (2, 1, 1))
    for x in (np.full((2, 8, 8), 1e20), 1e6 * scores(2, 8, 8), one, first, centred):
        for mask in (None, future_keys(8, 8)):
            ht.AttentionTensor.from_array(x, mask=mask).centred()


def test_a_mask_in_the_numbers_of_some_heads_and_on_disk(tmp_path):
    x = masked_by_numbers(-1e5, heads=slice(1, 2))
    ht.AttentionTensor.from_array(x).save(tmp_path / "a.zarr")
    with pytest.raises(ht.HeadtreeError, match="head L0H1 hold"):
        ht.head_similarity(ht.AttentionTensor.open(tmp_path / "a.zarr"))


def test_other_large_negative_numbers_are_scores():
    """Below the diagonal as well, on some future keys only, on rows as a whole, or masked."""
    some = scores()
    some[:, 0, 3:] -= 1e5
    below = masked_by_numbers(-1e5)
    below[:, 2:, 0] -= 2e5
    rows = scores()
    rows[:, 2] -= 1e6
    for x in (some, rows, masked_by_numbers(-4e3)):
        att = ht.AttentionTensor.from_array(x)
        att.centred()
        ht.head_similarity(att)
    masked = ht.AttentionTensor.from_array(masked_by_numbers(-1e5), mask=future_keys(6, 6))
    assert masked.centred().block().abs().max() < 10
    with pytest.raises(ht.HeadtreeError, match="causal mask"):  # whatever else is masked
        ht.AttentionTensor.from_array(below).centred()
    probs = ht.AttentionTensor.from_array(np.full((2, 3, 3), 1 / 3), kind="probs")
    ht.head_similarity(probs)


def test_a_captured_mask_that_was_taken_away_is_missed():
    network = ht.load_bundled("txl")
    (att,) = ht.capture(network.model, inputs=network.inputs[:1], layers=[0])
    assert att.provenance["causal"] is True
    att.centred()
    ht.head_similarity(att)
    lost = replace(att, mask=None)
    for call in (lost.centred, lambda: ht.head_similarity(lost)):
        with pytest.warns(HeadtreeWarning, match="captured from a causal model, but their mask is missing"):
            call()


def test_what_sees_the_future_is_not_called_causal():
    network = ht.load_bundled("vit")
    (att,) = ht.capture(network.model, inputs=network.inputs[:1], layers=[0])
    assert "causal" not in att.provenance
    att.centred()
