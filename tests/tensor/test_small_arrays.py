"""Arrays of a dataset that are read once, and datasets that are opened once."""

import os

import numpy as np
import pytest

from headtree.tensor import zarr_dataset
from headtree.tensor.zarr_dataset import SmallArrays, Variable, checked_group, create, finish, put


def write(path, values):
    """A dataset with these arrays; all have an axis of inputs."""
    group = create(path, {"format": "test"})
    for name, array in values.items():
        put(group, name, Variable(("input", "row", "column"), array))
    finish(path)
    return path


@pytest.fixture
def values():
    rng = np.random.default_rng(0)
    return {"small": rng.random((3, 4, 5)), "large": rng.random((3, 20, 20))}


@pytest.fixture
def path(tmp_path, values, monkeypatch):
    monkeypatch.setattr(zarr_dataset, "_SMALL", 100)
    return write(tmp_path / "d", values)


def test_rows_are_those_of_the_dataset(path, values):
    arrays = SmallArrays()
    for _ in range(2):
        known = arrays.of(checked_group(path))
        for name, array in values.items():
            np.testing.assert_array_equal(known.whole(name), array)
            for i, row in enumerate(array):
                found = known.row(name, i)
                np.testing.assert_array_equal(found, row)
                found[:] = 0  # is a copy


def test_only_small_arrays_are_remembered(path):
    arrays = SmallArrays().of(checked_group(path))
    first, second = ({name: arrays.whole(name) for name in ("small", "large")} for _ in range(2))
    assert first["small"] is second["small"]
    assert not first["small"].flags.writeable
    assert first["large"] is not second["large"]


def test_a_group_is_opened_again_only_if_its_files_have_changed(path, values):
    first = checked_group(path)
    assert checked_group(path) is first
    metadata = path / "small" / "zarr.json"
    written = metadata.stat().st_mtime_ns
    metadata.write_text(metadata.read_text())  # the same, at another time
    os.utime(metadata, ns=(written, written + 10**9))
    assert checked_group(path) is not first


def test_a_dataset_that_was_replaced_is_read_anew(path, values):
    arrays = SmallArrays()
    arrays.of(checked_group(path)).whole("small")
    path.rename(path.with_name("old"))
    write(path, {name: array + 1 for name, array in values.items()})  # with the same metadata
    np.testing.assert_array_equal(arrays.of(checked_group(path)).row("small", 1), values["small"][1] + 1)
