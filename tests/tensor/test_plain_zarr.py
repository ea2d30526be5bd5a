"""Attention in Zarr arrays of other programs: read by blocks, in any order of axes."""

import numpy as np
import pytest
import zarr
from hypothesis import given
from hypothesis import strategies as st

import headtree as ht
from headtree.tensor.load import load_tensor
from headtree.tensor.plain_zarr import PlainZarr

VALUES = np.random.default_rng(0).standard_normal((2, 3, 5, 7)).astype(np.float32)  # lhqk
HEADS = VALUES.reshape(6, 5, 7)


def stored(folder, axes, values=VALUES):
    """An array with these axes on disk, in small chunks."""
    letters = axes.replace("1", "")
    values = values if "l" in letters else values.reshape(6, 5, 7)
    first = "lhqk" if "l" in letters else "hqk"
    moved = values.transpose([first.index(letter) for letter in letters])
    moved = moved.reshape([1 if letter == "1" else moved.shape[letters.index(letter)] for letter in axes])
    array = zarr.create_array(folder, shape=moved.shape, dtype=moved.dtype, chunks=(2,) * moved.ndim)
    array[...] = moved
    return folder


@pytest.mark.parametrize("axes", ["hqk", "kqh", "lhqk", "qklh", "1hqk", "lh1kq"])
def test_axes_may_come_in_any_order(tmp_path, axes):
    att = load_tensor(stored(tmp_path / "a.zarr", axes), axes)
    assert isinstance(att.values, PlainZarr)
    assert "on disk" in repr(att)
    np.testing.assert_array_equal(np.asarray(att.values), HEADS)
    np.testing.assert_array_equal(att.block(slice(1, 5), slice(2, 4), slice(6)), HEADS[1:5, 2:4, :6])
    assert [head.layer for head in att.heads] == ([0, 0, 0, 1, 1, 1] if "l" in axes else [0] * 6)


@given(data=st.data(), axes=st.sampled_from(["hqk", "lhqk"]))
def test_any_entries_are_those_of_the_array(data, axes, tmp_path_factory):
    array = PlainZarr(_opened(tmp_path_factory, axes), axes)

    def some(n):
        index = data.draw(st.lists(st.integers(0, n - 1), max_size=4) | st.just(None))
        if index is not None:
            return np.array(index, dtype=np.int64)
        return slice(*sorted((data.draw(st.integers(0, n)), data.draw(st.integers(0, n)))))

    index = tuple(some(n) for n in (6, 5, 7))
    expected = HEADS[np.ix_(*(np.arange(n)[i] for n, i in zip((6, 5, 7), index, strict=True)))]
    np.testing.assert_array_equal(array.read(index), expected)


def _opened(factory, axes, known={}):  # noqa: B006  (arrays are written once)
    if axes not in known:
        known[axes] = zarr.open_array(stored(factory.mktemp("zarr") / "a.zarr", axes), mode="r")
    return known[axes]


def test_numpy_indices_of_all_kinds(tmp_path):
    array = load_tensor(stored(tmp_path / "a.zarr", "lhqk"), "lhqk").values
    for index in (0, -1, ..., (slice(None, None, 2), 1), (..., 3), ([0, 4], slice(1, 3)), (slice(4, 1, -1),)):
        np.testing.assert_array_equal(array[index], HEADS[index])


def test_it_is_organized_as_the_same_array_in_memory(tmp_path):
    att = load_tensor(stored(tmp_path / "a.zarr", "hqk"), "hqk", heads_per_layer=3)
    found, expected = ht.organize(att), ht.organize_array(HEADS)
    assert list(found.trees) == list(expected.trees)


def test_an_array_of_a_group_is_named(tmp_path):
    group = zarr.open_group(tmp_path / "g.zarr", mode="w")
    for name in ("scores", "probs"):
        group.create_array(name, data=HEADS)
    with pytest.raises(ht.HeadtreeError, match="holds 2 arrays"):
        load_tensor(tmp_path / "g.zarr")
    np.testing.assert_array_equal(np.asarray(load_tensor(tmp_path / "g.zarr", name="probs").values), HEADS)


def test_axes_are_checked_without_reading(tmp_path):
    folder = stored(tmp_path / "a.zarr", "hqk")
    with pytest.raises(ht.HeadtreeError, match="axes must name every axis"):
        load_tensor(folder, "lhqk")
    with pytest.raises(ht.HeadtreeError, match="heads_per_layer must divide the 6 heads"):
        load_tensor(folder, heads_per_layer=4)
    ht.AttentionTensor.from_array(HEADS).save(tmp_path / "own.zarr")
    with pytest.raises(ht.HeadtreeError, match="leave it out"):
        load_tensor(tmp_path / "own.zarr", heads_per_layer=3)
