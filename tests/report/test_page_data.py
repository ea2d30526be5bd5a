import base64
import json
import zlib
from types import SimpleNamespace

import numpy as np
import pytest

import headtree as ht
from headtree.bases.paraproduct import paraproduct
from headtree.report.page.coded_matrices import WHOLE
from headtree.report.page.details import details
from headtree.report.page.overview import representatives
from headtree.report.page.packing import packed
from headtree.report.page.page_data import _grains, page_data
from headtree.report.page.tiles import block_means
from headtree.tensor.probabilities import as_probabilities
from tests.report.noisy import noisy_run


def unpacked(text):
    """What static/data.js does."""
    content = zlib.decompress(base64.b64decode(text))
    size = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + size])
    arrays = {}
    for name, (dtype, shape, offset) in header["arrays"].items():
        data = np.frombuffer(content, dtype, int(np.prod(shape)), 8 + size + offset)
        arrays[name] = data.reshape(shape)
    return header["text"], arrays


def test_packing_keeps_text_and_arrays():
    text = {"a": "</script>\ud800 é", "b": [float("nan"), np.float32(0.5), np.int64(3), None, True], "c": {"d": ()}}
    arrays = {"x": np.arange(5, dtype=np.uint8), "y": np.arange(6.0).reshape(2, 3), "z": np.zeros((0, 2), np.int32)}
    found, back = unpacked(packed(text, arrays))
    assert found == {"a": "</script>\ud800 é", "b": [None, 0.5, 3, None, True], "c": {"d": []}}
    for name, array in arrays.items():
        np.testing.assert_array_equal(back[name], array)
    with pytest.raises(TypeError, match="int64"):
        packed({}, {"x": np.arange(3)})


def decoded(text, arrays):
    """Values of all heads, as static/fields.js reads them."""
    n_heads, *sides = text["shape"]
    codes = arrays["codes"]
    if text["bits"] == 4:
        codes = np.stack([codes >> 4, codes & 15], axis=2).reshape(n_heads, -1)[:, : sides[0] * sides[1]]
    codes = codes.reshape(text["shape"])
    top = 2 ** text["bits"] - 2
    low, high = arrays["low"][:, None, None], arrays["high"][:, None, None]
    return np.where(codes > top, np.nan, low + (high - low) * (codes / top) ** text["power"])


def test_matrices_are_those_of_the_run(run):
    data = page_data(run, 8_000_000)
    assert data.plan.every_head
    assert data.plan.grains == {"probs": (WHOLE,) * 3, "scores": (WHOLE,) * 3}
    assert not [note for note in data.left_out if "figure" not in note]
    present = ~run.values[1].mask.numpy()
    for kind, truth in (("scores", run.values[1]), ("probs", as_probabilities(run.attention[1]))):
        text, arrays = unpacked(data.parts[f"{kind}_1"])
        values = decoded(text, arrays)
        np.testing.assert_array_equal(np.isnan(values), ~present)
        extent = (arrays["high"] - arrays["low"])[:, None, None]
        error = np.abs(values - truth.values.numpy()) / extent
        assert error[present].max() <= 1.01 / 254  # half a step, and twice that where the square root is coded
    text, _ = unpacked(data.parts["input_1"])
    assert text["queries"][-1] == run.values[1].queries[-1]
    assert text["queries"][6] == "x" * 200 + "… (10,000 characters)"


def test_what_does_not_fit_is_left_out_in_order(run):
    room, plans = 1_000_000, []
    while (data := page_data(run, room)).n_bytes <= room:
        plans.append(data.plan)
        room = int(0.93 * data.n_bytes)
    bits = [plan.grains["probs"][0].bits for plan in plans]
    assert bits == sorted(bits, reverse=True)
    assert (bits[0], bits[-1]) == (8, 4)
    details = [plan.every_head for plan in plans]
    assert details == sorted(details, reverse=True)
    last = page_data(run, 1)
    notes = " ".join(last.left_out)
    assert "left out: 1-2" in notes
    assert "Haar coefficients and paraproduct terms are included for" in notes


@pytest.mark.parametrize(
    ("room", "cells"),
    [
        (400, [1, 1, 1, 1]),
        (399, [1, 1, 1, 2]),
        (180, [1, 2, 2, 2]),
        (130, [1, 4, 4, 4]),
        (105, [1, 8, 8, 8]),
        (100, [1, None, None, None]),
        (99, [2, 2, 2, 4]),
        (1, [24, 24, 24, 24]),
        (0.01, [32, None, None, None]),
    ],
)
def test_the_first_inputs_that_fit_are_whole(room, cells):
    material = SimpleNamespace(
        run=SimpleNamespace(n_inputs=4), longest=256, size=lambda kind, i, grain: 100 / grain.cell**2
    )
    assert [grain and grain.cell for grain in _grains(material, "probs", room)] == cells


def test_representatives_are_nearest_to_their_folder(run):
    affinity, families = run.consensus.affinity, run.consensus.families()
    chosen = representatives(run)
    assert len(chosen) == len(families)
    for head in chosen:
        own = families.folders[families.of_leaf[head]]
        assert affinity[head, own].sum() == max(affinity[h, own].sum() for h in own)


def test_terms_and_coefficients_are_the_definitions(run):
    att, org = run.values[2], run.organization[2]
    found = details(att, org, [4, 11])
    values = att.filled().values[[4, 11]].double()
    basis = ht.TensorHaarBasis(tuple(org.trees)[1:])
    coefficients = basis.analyze(values).numpy()
    moduli = np.sort(np.abs(coefficients.reshape(2, -1)), axis=1)
    decoded = found.largest[:, None] * 10.0 ** (6 * (found.moduli / 254.0 - 1))
    np.testing.assert_allclose(np.sort(decoded, axis=1)[:, 100:], moduli[:, 100:], rtol=0.03)  # half a step in 254
    np.testing.assert_allclose(found.energy.sum(axis=1), 1, rtol=1e-5)
    coarse = np.multiply.outer(*basis.supports) >= found.octaves[-1]
    expected = (coefficients[:, coarse] ** 2).sum(axis=1) / (coefficients**2).sum(axis=(1, 2))
    np.testing.assert_allclose(found.energy[:, -1], expected, rtol=1e-4)
    with pytest.warns(ht.HeadtreeWarning):
        product = paraproduct(values, org.trees.query, org.trees.key, "softmax")
    np.testing.assert_allclose(found.shares[:, 4], product.relative_error, rtol=1e-5)
    signed = (found.terms.astype(float) - 127) / 127
    shown = found.term_scale[:, None, None, None] * np.sign(signed) * signed**2
    softmax = block_means(product.value.numpy(), found.rows, found.columns)
    assert np.abs(shown[:, 0] - softmax).max() <= 0.02 * softmax.max()  # steps are coarsest at the largest values
    total = shown[:, 1:].sum(axis=1)
    assert np.abs(total - softmax).max() <= 0.06 * np.abs(shown).max()


def test_probabilities_give_their_own_softmax(images):
    found = details(images.attention[0], images.organization[0], [3])
    signed = (found.terms[0, 0].astype(float) - 127) / 127
    probs = images.attention[0].load().values[3].numpy()
    expected = block_means(probs[None], found.rows, found.columns)[0]
    assert np.abs(found.term_scale[0] * signed**2 - expected).max() <= 0.02 * expected.max()


@pytest.mark.parametrize(
    ("n_heads", "n_tokens", "n_inputs", "coarsest"),
    [(48, 40, 4, 2), (256, 24, 1, 2)],
    ids=["48 heads, 4 inputs", "256 heads"],
)
def test_pages_stay_within_their_budget(n_heads, n_tokens, n_inputs, coarsest):
    """Noise takes more room than any attention."""
    room = 600_000
    data = page_data(noisy_run(n_heads, n_tokens, n_inputs, per_layer=16), room)
    assert 0.4 * room < data.n_bytes < room
    assert data.plan.grains["probs"][0].cell <= coarsest
    assert not data.plan.every_head
    assert "Haar coefficients" in " ".join(data.left_out)
