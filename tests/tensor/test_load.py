"""Tensors made by others."""

import os

import numpy as np
import pytest
import torch
import zarr
from safetensors.torch import save_file
from scipy.io import savemat

import headtree as ht
from headtree.errors import HeadtreeError
from headtree.tensor.load import load_array

X = np.random.default_rng(0).normal(size=(4, 5, 6)).astype(np.float32)  # head, query, key


def written(path, array, name="x"):
    if path.suffix == ".npy":
        np.save(path, array)
    elif path.suffix == ".npz":
        np.savez(path, **{name: array})
    elif path.suffix == ".safetensors":
        save_file({name: torch.from_numpy(np.ascontiguousarray(array))}, path)
    elif path.suffix == ".mat":
        savemat(path, {name: array})
    else:
        torch.save(torch.from_numpy(np.ascontiguousarray(array)), path)
    return path


@pytest.mark.parametrize("suffix", [".npy", ".npz", ".safetensors", ".pt", ".pth", ".mat"])
@pytest.mark.parametrize("axes", ["hqk", "qkh", "khq"])
def test_every_format_and_order(tmp_path, suffix, axes):
    path = written(tmp_path / f"a{suffix}", X.transpose(["hqk".index(axis) for axis in axes]))
    att = ht.load_tensor(path, axes=axes, kind="probs", heads_per_layer=2)
    np.testing.assert_array_equal(att.block().numpy(), X)
    assert att.kind == "probs"
    assert att.heads == ((0, 0), (0, 1), (1, 0), (1, 1))


@pytest.mark.parametrize("suffix", [".npy", ".npz", ".safetensors", ".pt", ".mat"])
def test_any_array_of_two_axes(tmp_path, suffix):
    found = load_array(written(tmp_path / f"a{suffix}", X[0]))
    np.testing.assert_array_equal(found.values, X[0])
    assert found.labels == (None, None)
    assert found.axes is None
    np.save(tmp_path / "line.npy", X[0, 0])
    with pytest.raises(HeadtreeError, match="no array of two axes"):
        load_array(tmp_path / "line.npy")


@pytest.mark.parametrize(
    ("given", "axes"), [(("row", "column"), ("row", "column")), (("row", None), None), (None, None)]
)
def test_a_zarr_array_of_two_axes_and_their_names(tmp_path, given, axes):
    zarr.create_array(tmp_path / "a.zarr", data=X[0], dimension_names=given)
    found = load_array(tmp_path / "a.zarr")
    np.testing.assert_array_equal(found.values, X[0])
    assert found.labels == (None, None)
    assert found.axes == axes


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_zarr_of_both_formats(tmp_path, zarr_format):
    zarr.create_array(tmp_path / "a.zarr", data=X, zarr_format=zarr_format)
    np.testing.assert_array_equal(np.asarray(ht.load_tensor(tmp_path / "a.zarr").values), X)


def test_layers_and_axes_of_length_one(tmp_path):
    path = written(tmp_path / "a.npy", X.reshape(2, 1, 2, 5, 6))
    att = ht.load_tensor(path, axes="l1hqk")
    np.testing.assert_array_equal(att.block().numpy(), X)
    assert att.heads == ((0, 0), (0, 1), (1, 0), (1, 1))


def test_ambiguous_files_name_their_arrays(tmp_path):
    np.savez(tmp_path / "a.npz", first=X, second=X[:2], note=np.zeros(3))
    with pytest.raises(
        HeadtreeError, match=r"2 arrays of three.*'first' \(4, 5, 6\), 'second' \(2, 5, 6\), 'note'"
    ):
        ht.load_tensor(tmp_path / "a.npz")
    assert ht.load_tensor(tmp_path / "a.npz", name="second").shape == (2, 5, 6)
    with pytest.raises(HeadtreeError, match="name must be one of the arrays"):
        ht.load_tensor(tmp_path / "a.npz", name="third")
    torch.save({"scores": torch.from_numpy(X), "epoch": 3}, tmp_path / "a.pt")
    assert ht.load_tensor(tmp_path / "a.pt").shape == (4, 5, 6)
    with pytest.raises(HeadtreeError, match="no array of three axes"):
        ht.load_tensor(written(tmp_path / "flat.npy", X[0]))


@pytest.mark.parametrize(
    ("axes", "said"),
    [("hq", "must name h, q and k"), ("hqq", "must name h"), ("lhqk", "every axis"), ("hqkz", "must name")],
)
def test_wrong_axes_are_named(tmp_path, axes, said):
    with pytest.raises(HeadtreeError, match=said):
        ht.load_tensor(written(tmp_path / "a.npy", X), axes=axes)


def test_pickles_are_never_run(tmp_path):
    class Evil:
        def __reduce__(self):
            return (exec, ("raise SystemExit('run!')",))

    evil = np.empty((2, 2, 2), dtype=object)
    evil[:] = Evil()
    np.save(tmp_path / "a.npy", evil)
    np.savez(tmp_path / "a.npz", evil=evil)
    torch.save(Evil(), tmp_path / "a.pt")
    for name in ("a.npy", "a.npz", "a.pt"):
        with pytest.raises(HeadtreeError, match=r"(?s)cannot be read.*pickled objects are refused on purpose"):
            ht.load_tensor(tmp_path / name)


def test_one_array_is_read_without_the_others(tmp_path):
    """Of an archive, only the array that was asked for: another may be damaged, huge or pickled."""
    path = tmp_path / "a.npz"
    np.savez(path, x=X, bad=np.arange(4000.0), other=np.array([{}], dtype=object))
    data = bytearray(path.read_bytes())
    data[data.index(np.arange(4000.0)[2000:2010].tobytes())] ^= 1
    path.write_bytes(data)
    np.testing.assert_array_equal(ht.load_tensor(path, name="x").block().numpy(), X)
    np.testing.assert_array_equal(ht.load_tensor(path).block().numpy(), X)  # the only one with three axes
    np.savez(path, x=X, small=np.arange(3.0))
    data = bytearray(path.read_bytes())
    data[data.index(np.arange(3.0).tobytes())] ^= 1
    path.write_bytes(data)
    np.testing.assert_array_equal(ht.load_tensor(path, name="x").block().numpy(), X)
    with pytest.raises(HeadtreeError, match=r"Bad CRC-32 for file 'small.npy'"):
        ht.load_tensor(path, name="small")
    np.savez(path, x=X, y=X)
    with pytest.raises(HeadtreeError, match=r"2 arrays of three or more axes; choose one with name=…"):
        ht.load_tensor(path)


@pytest.mark.parametrize(
    ("text", "labels"), [("a,1_2,3_4\nx,1,2\n", ("1_2", "3_4")), ("a,１,２\nx,1,2\n", ("１", "２"))]
)
def test_names_that_python_would_read_as_numbers_are_names(tmp_path, text, labels):
    (tmp_path / "t.csv").write_text(text, encoding="utf-8")
    found = load_array(tmp_path / "t.csv")
    assert found.labels == (("x",), labels)
    np.testing.assert_array_equal(found.values, [[1, 2]])


@pytest.mark.parametrize(
    ("text", "values", "labels"),
    [
        ("1,2\n3,4\n", [[1, 2], [3, 4]], (None, None)),
        ("x,1\ny,2\n", [[1], [2]], (("x", "y"), None)),
        ("a,b\n1,2\n,NA\n", [[1, 2], [np.nan, np.nan]], (None, ("a", "b"))),
        (",b\nx,1\n", [[1]], (("x",), ("b",))),
        ("1\n2\n3\n", [[1], [2], [3]], (None, None)),
        ("a\n2\n3\n", [[2], [3]], (None, ("a",))),
    ],
)
def test_tables_with_names_and_without(tmp_path, text, values, labels):
    (tmp_path / "t.csv").write_text(text)
    found = load_array(tmp_path / "t.csv")
    np.testing.assert_array_equal(found.values, values)
    assert found.labels == labels


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("a,b,c\nx,1,2\ny,3,1_000\n", "'1_000' in line 3, column 3"),
        ("a,1,b\nx,2,3\n", "'b' in line 1, column 3"),  # a header has no numbers
        ("x,a,b\n", "'a' in line 1, column 2"),  # a header has rows below it
        ("a\nb\n", "'b' in line 2, column 1"),  # names of rows have numbers beside them
    ],
)
def test_a_cell_that_is_no_number_is_named(tmp_path, text, where):
    (tmp_path / "t.csv").write_text(text)
    with pytest.raises(HeadtreeError) as caught:
        load_array(tmp_path / "t.csv")
    assert f"got {where}" in str(caught.value)
    assert "pickle" not in str(caught.value)


@pytest.mark.parametrize("suffix", [".csv", ".npy", ".npz", ".mat"])
def test_errors_speak_of_what_is_wrong_only(tmp_path, suffix):
    (tmp_path / f"bad{suffix}").write_bytes(b"\x00\xff\xfe")
    with pytest.raises(HeadtreeError) as caught:
        load_array(tmp_path / f"bad{suffix}")
    assert "refused on purpose" not in str(caught.value)


def test_damaged_missing_and_unknown_files(tmp_path):
    for suffix in (".npy", ".npz", ".safetensors", ".pt", ".mat"):
        (tmp_path / f"bad{suffix}").write_bytes(b"not that")
        with pytest.raises(HeadtreeError, match="cannot be read as"):
            ht.load_tensor(tmp_path / f"bad{suffix}")
    with pytest.raises(HeadtreeError, match="does not exist"):
        ht.load_tensor(tmp_path / "nowhere.npy")
    (tmp_path / "a.csv").write_text("1,2")
    with pytest.raises(HeadtreeError, match=r"path must be a Zarr folder or end in one of .mat, [^c]*, got a.csv"):
        ht.load_tensor(tmp_path / "a.csv")


def test_folders_are_saved_tensors(tmp_path):
    ht.AttentionTensor.from_array(X).save(tmp_path / "a.zarr")
    np.testing.assert_array_equal(ht.load_tensor(tmp_path / "a.zarr").block().numpy(), X)
    (tmp_path / "a.zarr" / "zarr.json").write_text("{")
    with pytest.raises(HeadtreeError, match="cannot be read as a tensor that headtree saved"):
        ht.load_tensor(tmp_path / "a.zarr")


@pytest.mark.parametrize(
    "given",
    [{"axes": "qkh"}, {"kind": "probs"}, {"name": "x"}, {"heads_per_layer": 2}, {"mask": np.zeros((5, 6), bool)}],
    ids=lambda given: next(iter(given)),
)
def test_folders_know_their_own(tmp_path, given):
    ht.AttentionTensor.from_array(X).save(tmp_path / "a.zarr")
    with pytest.raises(HeadtreeError, match=f"{next(iter(given))} must not be given for a folder"):
        ht.load_tensor(tmp_path / "a.zarr", **given)


@pytest.mark.parametrize("axes", [None, ["h", "q", "k"]])
def test_axes_of_another_type(tmp_path, axes):
    with pytest.raises(HeadtreeError, match="axes must be a string"):
        ht.load_tensor(written(tmp_path / "a.npy", X), axes=axes)


@pytest.mark.parametrize("suffix", ["npy", "npz", "pt", "mat", "safetensors"])
@pytest.mark.parametrize("number", [np.nan, -np.inf])
def test_scores_that_are_not_there_are_missing(tmp_path, suffix, number):
    hidden = np.triu(np.ones((4, 4), bool), 1)
    x = np.where(hidden, number, np.random.default_rng(0).random((3, 4, 4)))
    att = ht.load_tensor(written(tmp_path / f"a.{suffix}", x))
    np.testing.assert_array_equal(att.mask, np.broadcast_to(hidden, x.shape))
    assert np.isfinite(np.asarray(att.values)).all()
    other = np.zeros(x.shape, bool)
    other[0, 0, 0] = True
    both = ht.load_tensor(tmp_path / f"a.{suffix}", mask=other)
    np.testing.assert_array_equal(both.mask, other | hidden)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda x: x.to_sparse(), "dense"),
        (lambda x: x.to("meta"), "meta device"),
        (lambda x: x.to(torch.complex64), "real"),
    ],
)
def test_tensors_that_are_no_arrays_are_named(tmp_path, make, said):
    torch.save({"a": make(torch.rand(2, 3, 3))}, tmp_path / "a.pt")
    for read in (ht.load_tensor, load_array):
        with pytest.raises(HeadtreeError, match=said):
            read(tmp_path / "a.pt")


def test_eight_bits_are_read(tmp_path):
    x = torch.rand(2, 3, 3).to(torch.float8_e4m3fn)
    save_file({"a": x}, tmp_path / "a.safetensors")
    np.testing.assert_array_equal(load_array(tmp_path / "a.safetensors").values, x.double())
    np.testing.assert_array_equal(ht.load_tensor(tmp_path / "a.safetensors").values, x.double())


@pytest.mark.parametrize(
    ("text", "values", "labels"),
    [
        (",0,1\n0,5,6\n1,7,8\n", [[5, 6], [7, 8]], (("0", "1"), ("0", "1"))),
        (",a,b\n3,5,6\n9,7,8\n", [[5, 6], [7, 8]], (("3", "9"), ("a", "b"))),
        (",2001,2002\nA,5,6\nB,7,8\n", [[5, 6], [7, 8]], (("A", "B"), ("2001", "2002"))),
        (",2\n5,6\n", [[np.nan, 2], [5, 6]], (None, None)),  # an entry is missing
    ],
)
@pytest.mark.filterwarnings("ignore:the first row and the first column of the table are 0, 1, 2")
def test_names_meet_in_an_empty_cell(tmp_path, text, values, labels):
    (tmp_path / "t.csv").write_text(text)
    found = load_array(tmp_path / "t.csv")
    np.testing.assert_array_equal(found.values, values)
    assert found.labels == labels


def test_short_rows_and_other_encodings_are_named(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("1,2,3\n4,5\n6,7,8\n")
    with pytest.raises(HeadtreeError, match="same number of cells in every row, got 2 in line 2 and 3 in line 1"):
        load_array(path)
    path.write_bytes("é,1\nb,2\n".encode("latin-1"))
    with pytest.raises(HeadtreeError, match=r"UTF-8.*convert it"):
        load_array(path)
    path.write_text("1,2\n3,4,5\n")
    with pytest.raises(HeadtreeError, match="got 3 in line 2 and 2 in line 1"):
        load_array(path)
    path.write_text("")
    with pytest.raises(HeadtreeError, match="got nothing"):
        load_array(path)


def test_pipes_are_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "x.npy")
    for read in (ht.load_tensor, load_array):
        with pytest.raises(HeadtreeError, match="is a pipe"):
            read(tmp_path / "x.npy")


def test_numbers_that_are_taken_for_names_are_said(tmp_path):
    (tmp_path / "t.csv").write_text(",0,1\n0,,1\n1,1,\n")
    with pytest.warns(ht.HeadtreeWarning, match="first row and the first column"):
        load_array(tmp_path / "t.csv")


def test_lines_are_numbered_as_in_the_file(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("1,2\n\n  \n3,4\n   \n")
    np.testing.assert_array_equal(load_array(path).values, [[1, 2], [3, 4]])
    for line in ("3,x", "3"):
        path.write_text(f"1,2\n\n{line}\n")
        with pytest.raises(HeadtreeError, match="in line 3"):
            load_array(path)


@pytest.mark.parametrize("dtype", [">f4", ">f8", np.longdouble, np.float16, ">i4", bool])
def test_every_type_of_real_number_is_read(tmp_path, dtype):
    x = np.arange(24).reshape(2, 3, 4).astype(dtype)
    np.save(tmp_path / "x.npy", x)
    np.testing.assert_array_equal(ht.load_tensor(tmp_path / "x.npy").block(), x.astype(float))


@pytest.mark.parametrize("dtype", ["U5", "M8[s]", complex])
def test_other_types_are_named(tmp_path, dtype):
    np.save(tmp_path / "x.npy", np.zeros((2, 3, 4)).astype(dtype))
    with pytest.raises(HeadtreeError, match="real"):
        ht.load_tensor(tmp_path / "x.npy")


def test_damaged_metadata_are_no_matter_of_encoding(tmp_path):
    zarr.create_array(tmp_path / "z.zarr", data=X)
    (tmp_path / "z.zarr" / "zarr.json").write_bytes(b"\xff")
    with pytest.raises(HeadtreeError) as error:
        load_array(tmp_path / "z.zarr")
    assert "UTF-8 (" not in str(error.value)
