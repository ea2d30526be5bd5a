"""Parity of the questionnaire with known-good numbers: there X[q, k, h], q called row and k called col."""

import json

import numpy as np
import pytest

import headtree as ht
from headtree.geometry.grow_tree import join_clusters
from headtree.trees.tree import PartitionTree
from tests.golden import FOLDER, golden_files

AXES = ("head", "row", "col")


def tree(data, name):
    return PartitionTree(data[f"{name}_labels"])


def assert_close(actual, expected):
    np.testing.assert_allclose(actual, expected, rtol=1e-10, atol=1e-10 * np.abs(expected).max())


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("path", golden_files("q3d_*.npz"))
def test_questionnaire_of_three_axes(path, dtype):
    data = np.load(path)
    meta = json.loads(str(data["meta"]))
    x = data["X"].transpose(2, 0, 1).astype(dtype)
    settings = ht.Questionnaire(alpha=meta["alpha"], beta=meta["beta"], n_iter=meta["n_iters"], head_from="initial")
    org = ht.organize_array(x, settings, names=AXES)
    for name in ("row", "col"):
        assert org.initial_trees[name] == tree(data, f"init_{name}_tree")
    for i, iteration in enumerate(org.history):
        for name in AXES:
            assert iteration.trees[name] == tree(data, f"it{i}_{name}_tree")
    last = meta["n_iters"] - 1
    if dtype == np.float64:
        for name in AXES:
            assert_close(org.distances[name], data[f"it{last}_emd_{name}"])
            assert_close(org.affinities[name], data[f"it{last}_aff_{name}"])


@pytest.mark.parametrize("path", golden_files("q3d_*.npz"))
def test_tree_emd_of_every_iteration(path):
    data = np.load(path)
    x = data["X"].transpose(2, 0, 1)
    newest = {name: tree(data, f"init_{name}_tree") for name in ("row", "col")}
    initial = [newest["row"], newest["col"]]
    for i in range(json.loads(str(data["meta"]))["n_iters"]):
        for axis, name in enumerate(AXES):
            others = initial if name == "head" else [newest[other] for other in AXES if other != name]
            if f"it{i}_emd_{name}" in data:
                assert_close(ht.tree_emd(x, axis, others), data[f"it{i}_emd_{name}"])
            newest[name] = tree(data, f"it{i}_{name}_tree")


@pytest.mark.parametrize("path", golden_files("updhead_*.npz"))
def test_heads_from_the_latest_trees(path):
    data = np.load(path)
    x = np.load(FOLDER / json.loads(str(data["meta"]))["source_X"])["X"].transpose(2, 0, 1)
    org = ht.organize_array(x, ht.Questionnaire(head_from="latest"), names=AXES)
    for i, iteration in enumerate(org.history):
        for name in AXES:
            assert iteration.trees[name] == tree(data, f"it{i}_{name}_tree")
    for name in AXES:
        assert_close(org.distances[name], data[f"it2_emd_{name}"])


@pytest.mark.parametrize("path", golden_files("q2d_*.npz"))
def test_questionnaire_of_two_axes(path):
    data = np.load(path)
    meta = json.loads(str(data["meta"]))
    settings = ht.Questionnaire(
        alpha=meta["alpha"], beta=meta["beta"], n_iter=meta["n_iters"], tree_constant=meta["tree_constant"]
    )
    org = ht.organize_array(data["F"], settings, names=("row", "col"))
    assert org.initial_trees.row == tree(data, "q1_row_tree0")
    for i, iteration in enumerate(org.history):
        assert iteration.trees.col == tree(data, f"q1_col_tree{i}")
        assert iteration.trees.row == tree(data, f"q1_row_tree{i + 1}")
    for name in ("row", "col"):
        assert_close(org.distances[name], data[f"q1_it{meta['n_iters'] - 1}_emd_{name}"])


@pytest.mark.parametrize("path", golden_files("trace_flextree_*.npz"))
def test_every_join_of_the_flexible_tree(path):
    data = np.load(path)
    assert ht.flexible_tree(data["affinity"]) == tree(data, "tree")
    level = 0
    while f"L{level}_dist" in data:
        groups, trials = join_clusters(data[f"L{level}_dist"], 1.0)
        expected = data[f"L{level}_labels"]
        assert len(set(zip(groups, expected, strict=True))) == len(set(groups)) == len(set(expected))
        joins = data[f"L{level}_joins"]
        if len(groups) > 2:  # two clusters are joined without a trial
            # where D[r, c] and D[c, r] tie, the recorded trial may start from the other end
            assert [sorted(pair) for pair in trials[:, :2]] == [sorted(pair) for pair in joins[:, :2]]
            np.testing.assert_array_equal(trials[:, 2:], joins[:, [4, 5]])
        level += 1
    assert level > 0


@pytest.mark.parametrize("path", golden_files("q3d_*.npz"))
def test_binary_trees_where_nothing_is_drawn(path):
    data = np.load(path)
    for name in AXES:
        if f"bin_{name}_bal1.0_seed0_labels" not in data:
            continue
        affinity = data[f"it{json.loads(str(data['meta']))['n_iters'] - 1}_aff_{name}"]
        found, expected = ht.binary_tree(affinity), tree(data, f"bin_{name}_bal1.0_seed0")
        level = 0
        while level < expected.n_levels and (expected.n_folders[: level + 1] == 2 ** np.arange(level + 1)).all():
            assert len(set(zip(found.labels[level], expected.labels[level], strict=True))) == 2**level
            if any(len(folder) % 2 for folder in expected.folders(level)):
                break  # the reference flips a coin for odd folders
            level += 1
        assert level > 0
