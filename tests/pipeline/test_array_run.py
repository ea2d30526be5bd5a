import numpy as np
import pytest
import torch
import xarray

import headtree as ht
from headtree.errors import HeadtreeError
from headtree.pipeline.array_run import ArrayFile
from headtree.pipeline.make_run import make_array_run
from headtree.tensor.planted import planted_array

X = planted_array((12, 16, 10), branching=(2, 2), noise=0.3).values


def write(path, x=X):
    x = np.asarray(x)
    if path.suffix == ".npy":
        np.save(path, x)
    elif path.suffix == ".npz":
        np.savez(path, x=x, scalar=1.0)
    elif path.suffix == ".pt":
        torch.save({"x": torch.from_numpy(x)}, path)
    elif path.suffix == ".safetensors":
        from safetensors.torch import save_file

        save_file({"x": torch.from_numpy(x)}, path)
    elif path.suffix == ".mat":
        from scipy.io import savemat

        savemat(path, {"x": x})
    else:
        xarray.Dataset({"x": (("sensor", "time", "trial"), x)}).to_zarr(path, consolidated=False)
    return path


@pytest.mark.parametrize("ending", [".npy", ".npz", ".pt", ".safetensors", ".mat", ".zarr"])
def test_the_same_array_in_any_file(ending, tmp_path):
    source = ArrayFile(write(tmp_path / f"x{ending}"))
    np.testing.assert_array_equal(source.values, X)
    assert source.names == (("sensor", "time", "trial") if ending == ".zarr" else ("axis0", "axis1", "axis2"))


def test_a_run_of_an_array(tmp_path):
    source = ArrayFile(write(tmp_path / "x.npy"), axes=["sensor", "time", "trial"])
    run = make_array_run(source, tmp_path / "run", draw=False)
    expected = ht.organize_array(X, names=("sensor", "time", "trial"))
    assert list(run.organization[0].trees) == list(expected.trees)
    assert (run.kind, run.inputs) == ("array", ("x.npy",))
    np.testing.assert_array_equal(np.asarray(run.array), X)
    table = run.tables.time
    assert list(table.columns[:3]) == ["slice", "place_in_tree", "folder_1"]
    np.testing.assert_array_equal(np.argsort(table["place_in_tree"]), expected.order("time"))
    assert xarray.open_zarr(run.path / "organization.zarr")["tree_time"].dims == ("input", "level", "time")
    assert xarray.open_zarr(run.path / "array.zarr")["array"].dims == ("sensor", "time", "trial")
    assert run.measures.sparsity.gain > 1
    assert run.measures.effort.found < 0.9 * run.measures.effort.noise  # more than noise shows
    with pytest.raises(HeadtreeError, match=r"its array is run\.array"):
        _ = run.attention
    with pytest.raises(HeadtreeError, match="no consensus"):
        _ = run.consensus
    told = []
    make_array_run(source, tmp_path / "run", draw=False, say=lambda *a: told.append(a))
    assert told == []


def test_a_table_with_names_and_gaps(tmp_path):
    rng = np.random.default_rng(0)
    x = np.round(np.add.outer(rng.permutation(9) % 3, 4.0 * (rng.permutation(7) % 2)) + 0.1 * rng.random((9, 7)), 3)
    path = tmp_path / "table.csv"
    lines = [",".join(["gene", *(f"day {i}" for i in range(7))])]
    for i, row in enumerate(x):
        lines.append(",".join([f"g{i}", *("" if (i, j) == (2, 3) else str(v) for j, v in enumerate(row))]))
    path.write_text("\n".join(lines) + "\n")
    run = make_array_run(ArrayFile(path), tmp_path / "run", draw=False)
    assert run.organization[0].shape == (9, 7)
    assert run.measures.missing == 1
    assert list(run.tables.axis1["label"]) == [f"day {i}" for i in range(7)]
    plain = tmp_path / "plain.tsv"
    plain.write_text("\n".join("\t".join(map(str, row)) for row in x))
    np.testing.assert_array_equal(ArrayFile(plain).values, x)


@pytest.mark.parametrize(
    ("file", "options", "message"),
    [
        ("one.npy", {}, "two axes"),
        ("none.npy", {}, "does not exist"),
        ("text.npy", {}, "cannot be read"),
        ("objects.npy", {}, "cannot be read"),
        ("words.csv", {}, "must hold numbers"),
        ("image.png", {}, "path must be a Zarr folder or end in one of"),
        ("complex.npy", {}, "real numbers"),
        ("infinite.npy", {}, "finite"),
        ("empty.npy", {}, "must not be empty"),
        ("many.npz", {}, "2 arrays of two or more axes"),
        ("many.npz", {"name": "c"}, "must be one of the arrays"),
        ("two.npy", {"axes": ["a"]}, "2 different names"),
        ("two.npy", {"axes": ["a", "../b"]}, "letters, digits"),
        ("two.npy", {"axes": ["a", "level"]}, "must not be one of"),
        ("folder", {}, "cannot be read"),
    ],
)
def test_what_is_no_array_is_refused_before_anything_is_written(file, options, message, tmp_path):
    np.save(tmp_path / "one.npy", np.arange(3.0))
    np.save(tmp_path / "two.npy", np.eye(3))
    np.save(tmp_path / "complex.npy", np.eye(3) + 1j)
    np.save(tmp_path / "infinite.npy", np.array([[np.inf, 1], [2, 3]]))
    np.save(tmp_path / "empty.npy", np.zeros((0, 3)))
    np.save(tmp_path / "objects.npy", np.array([{}], dtype=object), allow_pickle=True)
    np.savez(tmp_path / "many.npz", a=np.eye(3), b=np.eye(3))
    (tmp_path / "text.npy").write_text("no array")
    (tmp_path / "words.csv").write_text("a,b\nc,d\ne,f\n")
    (tmp_path / "image.png").write_bytes(b"")
    (tmp_path / "folder").mkdir()
    with pytest.raises(HeadtreeError, match=message):
        make_array_run(ArrayFile(tmp_path / file, **options), tmp_path / "run", draw=False)
    assert not (tmp_path / "run").exists()


def test_the_tables_tell_the_place_of_layers_in_a_hybrid_model(tmp_path):
    from dataclasses import replace

    from headtree.pipeline.make_run import make_run
    from headtree.pipeline.sources import TensorSource
    from tests.runs.examples import QUICK, tensors

    places = [{"layer": i, "module": f"layers.{2 * i + 1}.attn", "depth": 2 * i + 1} for i in range(4)]
    hybrid = [replace(att, provenance={"layers": places}) for att in tensors(2)]
    run = make_run(TensorSource(hybrid), tmp_path / "run", measures=QUICK, draw=True)
    assert run.layers["model_layer"].tolist() == [1, 3, 5, 7]
    assert run.layers["module"].tolist() == [place["module"] for place in places]
    assert run.heads["model_layer"].tolist() == [2 * layer + 1 for layer in run.heads["layer"]]
    plain = [{**place, "depth": place["layer"]} for place in places]
    usual = [replace(att, provenance={"layers": plain}) for att in tensors(2)]
    run = make_run(TensorSource(usual), tmp_path / "usual", measures=QUICK, draw=False)
    assert not {"model_layer", "module"} & {*run.layers, *run.heads}
