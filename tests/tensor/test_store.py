"""Tensors on disk: what was saved is what is opened, and nothing is ever half there."""

import json
import os
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch
import xarray

import headtree as ht
from headtree.errors import HeadtreeError
from headtree.tensor import store
from headtree.tensor.stored_array import StoredArray

TOKENS = ("<s>", "é", "", "x", "x")


def tensor(seed=0, **changes):
    values = np.random.default_rng(seed).normal(size=(4, 5, 3)).astype(np.float32)
    given = {
        "values": values,
        "heads": [(0, 0), (0, 1), (2, 0), (2, 3)],
        "queries": TOKENS,
        "keys": TOKENS[:3],
        "kind": "probs",
        "mask": np.triu(np.ones((5, 3), bool), 1),
        "provenance": {"model": "some/model", "versions": {"torch": "2"}, "sizes": (1, 2)},
        "sinks": [0.5, -np.inf, 1.0, 2.0],
    }
    return ht.AttentionTensor(**given | changes)


def stored(att):
    """Missing entries are stored as 0."""
    return np.where(att.mask, 0, att.values).astype(np.float32)


@pytest.mark.parametrize("as_tensor", [False, True])
def test_round_trip(tmp_path, as_tensor):
    att = tensor(values=torch.from_numpy(tensor().values)) if as_tensor else tensor()
    att.save(tmp_path / "a.zarr")
    back = ht.AttentionTensor.open(tmp_path / "a.zarr")
    assert back.heads == att.heads
    assert back.queries == att.queries
    assert back.keys == att.keys
    assert back.kind == "probs"
    assert dict(back.provenance) == {"model": "some/model", "versions": {"torch": "2"}, "sizes": [1, 2]}
    np.testing.assert_array_equal(np.asarray(back.values), stored(att))
    np.testing.assert_array_equal(np.asarray(back.mask), att.mask.numpy())
    torch.testing.assert_close(back.sinks.float(), att.sinks.float())
    assert "on disk" in repr(back)
    loaded = back.load()
    assert torch.equal(loaded.values, torch.as_tensor(stored(att)))
    assert torch.equal(loaded.mask, att.mask)
    assert loaded.load() is loaded


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
def test_other_precisions_lose_nothing(tmp_path, dtype):
    values = torch.randn(2, 3, 3).to(dtype)
    ht.AttentionTensor.from_array(values).save(tmp_path / "a.zarr")
    assert torch.equal(ht.AttentionTensor.open(tmp_path / "a.zarr").block().to(dtype), values)


def test_xarray_opens_it_with_names(tmp_path):
    att = tensor()
    att.save(tmp_path / "a.zarr")
    with xarray.open_zarr(tmp_path / "a.zarr") as data:
        assert data["attention"].dims == ("input", "head", "query", "key")
        assert data.sizes == {"input": 1, "head": 4, "query": 5, "key": 3}
        assert list(data["head"].values) == ["L0H0", "L0H1", "L2H0", "L2H3"]
        assert list(data["query_token"].values[0]) == list(TOKENS)
        assert list(data["layer"].values) == [0, 0, 2, 2]
        mask = att.mask.numpy()
        np.testing.assert_array_equal(
            data["attention"].sel(head="L2H0").values[0], np.where(mask, 0, att.values)[2]
        )
        np.testing.assert_array_equal(data["mask"].values[0], mask)
        in_layer = data["layer"].compute() == 2  # xarray does not index with arrays of dask, if it is installed
        assert data["attention"].where(in_layer, drop=True).sizes["head"] == 2
        assert data.attrs["kind"] == "probs"


def test_opening_reads_nothing_until_a_block_is_asked_for(tmp_path, monkeypatch):
    monkeypatch.setattr(store, "_CHUNK_BYTES", 60)  # one head in a chunk
    att = tensor()
    att.save(tmp_path / "a.zarr")
    chunks = sorted((tmp_path / "a.zarr" / "attention" / "c").glob("0/*/*/*"))
    assert len(chunks) == 4
    for chunk in chunks[1:]:
        chunk.write_bytes(b"damaged")
    back = ht.AttentionTensor.open(tmp_path / "a.zarr")
    assert isinstance(back.values, StoredArray)
    assert back.shape == (4, 5, 3)
    np.testing.assert_array_equal(back.block(heads=slice(0, 1)).numpy(), stored(att)[:1])
    with pytest.raises(Exception, match=r".+"):
        back.block()


def test_a_stored_tensor_is_organized_as_one_in_memory(tmp_path):
    values = np.random.default_rng(0).normal(size=(6, 7, 8)).astype(np.float32)
    att = ht.AttentionTensor.from_array(values, mask=np.arange(8) > 6)
    att.save(tmp_path / "a.zarr")
    settings = ht.Questionnaire(n_iter=1)
    ours, theirs = ht.organize(ht.AttentionTensor.open(tmp_path / "a.zarr"), settings), ht.organize(att, settings)
    for axis in ("head", "query", "key"):
        assert getattr(ours.trees, axis) == getattr(theirs.trees, axis)


def test_half_precision_is_half_the_size_and_close(tmp_path):
    values = np.random.default_rng(0).normal(size=(4, 64, 64)).astype(np.float32)
    att = ht.AttentionTensor.from_array(values)
    att.save(tmp_path / "half.zarr", half=True)
    att.save(tmp_path / "full.zarr")
    back = ht.AttentionTensor.open(tmp_path / "half.zarr")
    assert back.values.dtype == np.float16
    np.testing.assert_allclose(back.block().numpy(), values, rtol=1e-3, atol=1e-6)
    half, full = (tmp_path / name / "attention" / "c" for name in ("half.zarr", "full.zarr"))
    assert _size(half) < 0.6 * _size(full)
    with pytest.raises(HeadtreeError, match="half precision holds numbers up to"):
        ht.AttentionTensor.from_array(values * 1e6).save(tmp_path / "big.zarr", half=True)
    assert not (tmp_path / "big.zarr").exists()


def _size(folder):
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def test_nothing_is_overwritten_unasked(tmp_path):
    tensor(0).save(tmp_path / "a.zarr")
    with pytest.raises(HeadtreeError, match=r"exists already; .*overwrite=True"):
        tensor(1).save(tmp_path / "a.zarr")
    tensor(1).save(tmp_path / "a.zarr", overwrite=True)
    np.testing.assert_array_equal(ht.AttentionTensor.open(tmp_path / "a.zarr").block().numpy(), stored(tensor(1)))
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("years of work")
    with pytest.raises(HeadtreeError, match="not a tensor that headtree saved, so it is not overwritten"):
        tensor().save(tmp_path / "mine", overwrite=True)
    (tmp_path / "file").write_text("")
    with pytest.raises(HeadtreeError, match="is a file or a link"):
        tensor().save(tmp_path / "file", overwrite=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.zarr", "file", "mine"]


@pytest.mark.parametrize("exists", [False, True])
def test_an_interrupted_save_leaves_what_was_there(tmp_path, monkeypatch, exists):
    target = tmp_path / "a.zarr"
    if exists:
        tensor(0).save(target)

    def interrupted(att, group):
        raise KeyboardInterrupt

    monkeypatch.setattr(store, "_write_labels", interrupted)
    with pytest.raises(KeyboardInterrupt):
        tensor(1).save(target, overwrite=True)
    assert [path.name for path in tmp_path.iterdir()] == (["a.zarr"] if exists else [])
    if exists:
        np.testing.assert_array_equal(ht.AttentionTensor.open(target).block().numpy(), stored(tensor(0)))


def test_leftovers_of_a_killed_writer_are_swept(tmp_path):
    leftover = tmp_path / ".a.zarr.partial-999999999-abcdef"
    other = tmp_path / ".b.zarr.partial-999999999-abcdef"
    leftover.mkdir()
    other.mkdir()
    tensor().save(tmp_path / "a.zarr")
    assert not leftover.exists()
    assert other.exists()


def test_a_rewritten_folder_is_not_read_under_old_labels(tmp_path):
    tensor(0).save(tmp_path / "a.zarr")
    old = ht.AttentionTensor.open(tmp_path / "a.zarr")
    tensor(1).save(tmp_path / "a.zarr", overwrite=True)
    with pytest.raises(HeadtreeError, match="replaced after"):
        old.block()
    shutil.rmtree(tmp_path / "a.zarr")
    with pytest.raises(HeadtreeError, match="gone since"):
        old.block()


def test_what_is_not_a_saved_tensor_is_refused(tmp_path):
    with pytest.raises(HeadtreeError, match="does not exist"):
        ht.AttentionTensor.open(tmp_path / "nowhere.zarr")
    with pytest.raises(HeadtreeError, match="cannot be read"):
        ht.AttentionTensor.open(tmp_path)
    xarray.Dataset({"x": ("a", np.arange(3))}).to_zarr(tmp_path / "other.zarr", zarr_format=3, consolidated=False)
    with pytest.raises(HeadtreeError, match="not a tensor that headtree saved"):
        ht.AttentionTensor.open(tmp_path / "other.zarr")
    tensor().save(tmp_path / "a.zarr")
    (tmp_path / "a.zarr" / "zarr.json").write_text("{")
    with pytest.raises(HeadtreeError, match="cannot be read"):
        ht.AttentionTensor.open(tmp_path / "a.zarr")


def test_sinks_must_be_one_for_each_head():
    with pytest.raises(HeadtreeError, match="sinks must be one number for each of the 4 heads"):
        tensor(sinks=[1.0])


def test_provenance_is_plain_json(tmp_path):
    tensor(provenance={"path": tmp_path, "n": 1}).save(tmp_path / "a.zarr")
    attributes = json.loads((tmp_path / "a.zarr" / "zarr.json").read_text())["attributes"]
    assert json.loads(attributes["provenance"]) == [{"path": str(tmp_path), "n": 1}]


def test_labels_that_cannot_be_encoded_are_written_with_backslashes(tmp_path):
    tensor(keys=["a", "\ud800", "b"]).save(tmp_path / "a.zarr")
    assert ht.AttentionTensor.open(tmp_path / "a.zarr").keys == ("a", "\\ud800", "b")


def test_long_doubles_are_saved_as_doubles(tmp_path):
    values = np.arange(12, dtype=np.longdouble).reshape(2, 2, 3) / 3
    ht.AttentionTensor.from_array(values).save(tmp_path / "a.zarr")
    back = ht.AttentionTensor.open(tmp_path / "a.zarr")
    assert back.values.dtype == np.float64
    np.testing.assert_array_equal(back.block().numpy(), values.astype(np.float64))


def test_integer_labels_are_strings_before_and_after(tmp_path):
    att = tensor(queries=range(5))
    att.save(tmp_path / "a.zarr")
    assert att.queries == ht.AttentionTensor.open(tmp_path / "a.zarr").queries == ("0", "1", "2", "3", "4")


@pytest.mark.parametrize("use", [tensor().save, ht.AttentionTensor.open, ht.load_tensor])
@pytest.mark.parametrize(
    ("path", "said"),
    [
        (None, "path must be a string"),
        (5, "path must be a string"),
        (b"a.zarr", "path must be a string"),
        ("a\0b", "must not contain null"),
        ("a" * 300, r"path cannot be .*File name too long"),
    ],
)
def test_paths_that_are_none(tmp_path, monkeypatch, use, path, said):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(HeadtreeError, match=said):
        use(path)


def test_folders_that_cannot_be_written(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    with pytest.raises(HeadtreeError, match=r"path cannot be written: .*a\.zarr \("):
        tensor().save(tmp_path / "file" / "a.zarr")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(HeadtreeError, match="must end in the name"):
        tensor().save(".", overwrite=True)

    def forbidden(*args, **kwargs):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("zarr.open_group", forbidden)
    with pytest.raises(HeadtreeError, match=r"path cannot be written: .*Permission denied"):
        tensor().save(tmp_path / "a.zarr")


def test_values_too_small_for_half_precision_are_refused(tmp_path):
    values = np.random.default_rng(0).normal(size=(2, 3, 3)) * 1e-9
    with pytest.raises(HeadtreeError, match=r"digits down to 6\.1e-05.*half=False"):
        ht.AttentionTensor.from_array(values).save(tmp_path / "a.zarr", half=True)
    values[0, 0, 0] = 1  # where it is missing, it does not count
    mask = values == 1
    with pytest.raises(HeadtreeError, match="half precision keeps"):
        ht.AttentionTensor.from_array(values, mask=mask).save(tmp_path / "a.zarr", half=True)
    assert not any(tmp_path.iterdir())
    ht.AttentionTensor.from_array(values).save(tmp_path / "a.zarr", half=True)
    ht.AttentionTensor.from_array(values * 0).save(tmp_path / "zero.zarr", half=True)


@pytest.mark.parametrize("name", ["notes.txt", "attention/c/0/0/notes", "other/zarr.json"])
def test_other_files_in_the_folder_are_kept(tmp_path, name):
    tensor(0).save(tmp_path / "a.zarr")
    mine = tmp_path / "a.zarr" / name
    mine.parent.mkdir(exist_ok=True)
    mine.write_text("years of work")
    with pytest.raises(HeadtreeError, match=f"not part of the tensor, {name}, so it is not overwritten"):
        tensor(1).save(tmp_path / "a.zarr", overwrite=True)
    assert mine.read_text() == "years of work"
    mine.unlink()
    tensor(1).save(tmp_path / "a.zarr", overwrite=True)


def inputs(lengths, **changes):
    """Tensors of the same heads and of different lengths."""
    return [
        tensor(
            i,
            values=np.random.default_rng(i).normal(size=(4, n, n)).astype(np.float32),
            queries=range(n),
            keys=range(n),
            mask=None,
            **changes,
        )
        for i, n in enumerate(lengths)
    ]


def joined(folder, atts):
    """The dataset of a run, made as a run makes it: one input at a time, then all of them."""
    parts = [folder / f"part{i}" for i in range(len(atts))]
    for part, att in zip(parts, atts, strict=True):
        store.write_attention(part, [att], "one", like=parts[0] if part != parts[0] else None)
    store.join_attention(folder / "all.zarr", [store.open_tensor(part, 0) for part in parts], "all")
    return folder / "all.zarr"


@pytest.mark.parametrize("lengths", [(6, 6, 6), (6, 4, 5), (3, 7, 20), (2, 300)])
@pytest.mark.parametrize("masked", [(), (1,), (0, 1)])
def test_a_joined_dataset_is_the_one_written_at_once(tmp_path, lengths, masked):
    atts = inputs(lengths)
    for i in masked:
        n = lengths[i]
        atts[i] = replace(atts[i], mask=np.triu(np.ones((n, n), bool), 1))
    store.write_attention(tmp_path / "once.zarr", atts, "all")
    path = joined(tmp_path, atts)
    with xarray.open_zarr(tmp_path / "once.zarr") as once, xarray.open_zarr(path) as found:
        xarray.testing.assert_identical(once.load(), found.load())
    for i, att in enumerate(atts):
        back = ht.AttentionTensor.open(path, input=i).load()
        values = att.values if att.mask is None else np.where(att.mask, 0, att.values)
        np.testing.assert_array_equal(back.values, values)
        assert (back.mask is None) == (att.mask is None)
        assert (back.queries, back.shape) == (att.queries, att.shape)


def test_chunks_of_a_run_are_written_once(tmp_path):
    path = joined(tmp_path, inputs((6, 4, 9)))
    for i in range(3):
        chunks = sorted((tmp_path / f"part{i}" / "attention" / "c" / "0").rglob("[0-9]"))
        for chunk in (chunk for chunk in chunks if chunk.is_file()):
            inside = chunk.relative_to(tmp_path / f"part{i}" / "attention" / "c" / "0")
            assert (path / "attention" / "c" / str(i) / inside).samefile(chunk)


def test_without_hard_links_chunks_are_copied(tmp_path, monkeypatch):
    link = os.link

    def no_links(source, target):
        if "c" in target.parts:  # Zarr makes its metadata with links
            raise OSError(95, "Operation not supported")
        link(source, target)

    atts = inputs((6, 4))
    monkeypatch.setattr(os, "link", no_links)
    path = joined(tmp_path, atts)
    np.testing.assert_array_equal(ht.AttentionTensor.open(path, input=1).block(), atts[1].values)


def test_tensors_of_different_precision_share_the_wider_one(tmp_path):
    first, second = inputs((5, 5))
    path = joined(tmp_path, [first, replace(second, values=second.values.astype(np.float64) / 3)])
    np.testing.assert_array_equal(np.asarray(ht.AttentionTensor.open(path, input=0).values), first.values)
    found = np.asarray(ht.AttentionTensor.open(path, input=1).values)
    np.testing.assert_array_equal(found, second.values.astype(np.float64) / 3)


def test_one_of_several_inputs_must_be_chosen(tmp_path):
    path = joined(tmp_path, inputs((3, 4)))
    with pytest.raises(HeadtreeError, match=r"holds 2 inputs; .*input=0"):
        ht.AttentionTensor.open(path)
    with pytest.raises(HeadtreeError, match="input must be below 2"):
        ht.AttentionTensor.open(path, input=2)
    with pytest.raises(HeadtreeError, match="input must be an integer"):
        ht.AttentionTensor.open(path, input="1")
    assert ht.AttentionTensor.open(path, input=-1).shape == (4, 4, 4)
    with pytest.raises(HeadtreeError, match="not overwritten"):
        tensor().save(path, overwrite=True)


@pytest.mark.parametrize("name", ["headtree.attention/1", "headtree.run.attention/1"])
def test_older_formats_are_named_in_one_line(tmp_path, name):
    xarray.Dataset({"x": ("a", np.arange(3))}, attrs={"format": name}).to_zarr(
        tmp_path / "old.zarr", zarr_format=3, consolidated=False
    )
    with pytest.raises(HeadtreeError, match=rf"^[^\n]*made by an older format \({name}\); run again[^\n]*$"):
        ht.AttentionTensor.open(tmp_path / "old.zarr")
