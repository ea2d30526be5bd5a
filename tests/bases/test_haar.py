import numpy as np
import pytest
import pywt
import torch
from hypothesis import given
from hypothesis import strategies as st

import headtree as ht
from headtree.bases.haar import rotated
from headtree.bases.rotations import rotate_by_rounds, rotate_on_cpu
from tests.golden import golden
from tests.strategies import partition_trees


def literal_basis(tree):
    """Section 7 of ALGORITHMS in plain loops: columns, and (level, node, index) of each."""
    n = tree.n_leaves
    columns, names = [np.full(n, 1 / np.sqrt(n))], [(-1, -1, 0)]
    node = 0
    for level in range(tree.n_levels):
        for leaves in tree.folders(level):
            if level + 1 < tree.n_levels:
                children = {}
                for leaf in leaves:
                    children.setdefault(tree.labels[level + 1, leaf], []).append(leaf)
                ordered = sorted(children.values(), key=lambda child: (-len(child), min(child)))
                for i in range(len(ordered) - 1):
                    rest = [leaf for child in ordered[i + 1 :] for leaf in child]
                    column = np.zeros(n)
                    column[ordered[i]] = 1 / len(ordered[i])
                    column[rest] = -1 / len(rest)
                    columns.append(column / np.linalg.norm(column))
                    names.append((level, node, i))
            node += 1
    return np.column_stack(columns), names


@given(partition_trees())
def test_matrix_is_the_literal_definition(tree):
    basis = ht.HaarBasis(tree)
    columns, names = literal_basis(tree)
    np.testing.assert_allclose(basis.matrix(), columns, atol=1e-14)
    assert list(zip(basis.level, basis.node, basis.index, strict=True)) == names
    np.testing.assert_array_equal(basis.support, (columns != 0).sum(axis=0))
    for number, name in enumerate(names):
        assert basis.function(*name) == number


@pytest.mark.parametrize("rotate", [rotate_on_cpu, rotate_by_rounds])
@given(tree=partition_trees(), seed=st.integers(0, 99))
def test_both_ways_to_rotate_are_the_literal_product(rotate, tree, seed):
    basis = ht.HaarBasis(tree)
    columns, _ = literal_basis(tree)
    x = np.random.default_rng(seed).standard_normal((3, tree.n_leaves, 2))
    expected = np.einsum("anb,nf->afb", x, columns)
    found = rotate(torch.from_numpy(x), basis._analysis)
    np.testing.assert_allclose(found, expected, atol=1e-13)
    np.testing.assert_allclose(rotate(found, basis._synthesis), x, atol=1e-13)
    wanted = np.arange(tree.n_leaves)[::-2].copy()
    np.testing.assert_allclose(
        rotate(torch.from_numpy(x[..., :1]), basis._analysis.only(wanted)),
        expected[:, wanted, :1],
        atol=1e-13,
    )


@given(partition_trees())
def test_orthonormality(tree):
    matrix = ht.HaarBasis(tree).matrix()
    np.testing.assert_allclose(matrix.T @ matrix, np.eye(tree.n_leaves), atol=1e-14)


@pytest.mark.parametrize(("dtype", "tolerance"), [(np.float32, 1e-5), (np.float64, 1e-13)])
@given(tree=partition_trees(max_leaves=40), seed=st.integers(0, 99))
def test_round_trip_and_parseval(dtype, tolerance, tree, seed):
    basis = ht.HaarBasis(tree)
    x = np.random.default_rng(seed).standard_normal((2, tree.n_leaves, 3)).astype(dtype)
    c = basis.analyze(x, axis=1)
    assert c.dtype == dtype
    np.testing.assert_allclose(basis.synthesize(c, axis=1), x, atol=tolerance)
    np.testing.assert_allclose((c**2).sum(axis=1), (x**2).sum(axis=1), rtol=tolerance, atol=tolerance)


@given(tree=partition_trees(), seed=st.integers(0, 99))
def test_linearity(tree, seed):
    basis = ht.HaarBasis(tree)
    x, y = np.random.default_rng(seed).standard_normal((2, 4, tree.n_leaves))
    np.testing.assert_allclose(
        basis.analyze(2 * x - 3 * y), 2 * basis.analyze(x) - 3 * basis.analyze(y), atol=1e-13
    )


@given(tree=partition_trees(), seed=st.integers(0, 99))
def test_equivariance_under_relabelling(tree, seed):
    """What a folder holds moves with its leaves: supports, and the energy of the functions of each folder."""
    rng = np.random.default_rng(seed)
    order, x = rng.permutation(tree.n_leaves), rng.standard_normal(tree.n_leaves)
    energies = []
    for a_tree, a in ((tree, x), (tree.take(order), x[order])):
        basis, found = ht.HaarBasis(a_tree), {}
        for level, node, c in zip(basis.level, basis.node, basis.analyze(a), strict=True):
            values = a[a_tree.nodes[level] == node] if node >= 0 else a
            key = (level, tuple(np.sort(values)))
            found[key] = found.get(key, 0) + c**2
        energies.append(found)
    assert energies[0].keys() == energies[1].keys()
    for key, energy in energies[0].items():
        assert energies[1][key] == pytest.approx(energy, abs=1e-12)
    np.testing.assert_array_equal(
        np.sort(ht.HaarBasis(tree).support), np.sort(ht.HaarBasis(tree.take(order)).support)
    )


@given(partition_trees())
def test_a_folder_on_several_levels_gives_its_functions_once(tree):
    """Repeating every level changes neither functions nor supports."""
    repeated = ht.PartitionTree(np.repeat(tree.labels, 2, axis=0))
    np.testing.assert_allclose(ht.HaarBasis(repeated).matrix(), ht.HaarBasis(tree).matrix(), atol=1e-14)


@pytest.mark.parametrize("n", [2, 8, 64])
def test_dyadic_coefficients_are_those_of_pywavelets(n):
    x = np.random.default_rng(0).standard_normal((3, n))
    expected = np.concatenate(pywt.wavedec(x, "haar"), axis=-1)
    np.testing.assert_allclose(ht.HaarBasis(ht.PartitionTree.halving(n)).analyze(x), expected, atol=1e-13)


@pytest.mark.parametrize("name", ["q3d_24x20x16_rand_s0", "q3d_24x20x16_signed_s3"])
@pytest.mark.parametrize(("axis", "letter"), [("row", "Q"), ("col", "K"), ("head", "H")])
def test_golden_basis(name, axis, letter):
    vectors = golden(name)
    basis = ht.HaarBasis(ht.PartitionTree(vectors[f"it2_{axis}_tree_labels"]))
    np.testing.assert_allclose(basis.matrix(), vectors[f"haarcanon_{letter}"], atol=1e-14)
    np.testing.assert_array_equal(basis.node, vectors[f"haar_{letter}_node"])
    np.testing.assert_array_equal(basis.support, vectors[f"supp_{letter}"])


def test_cost_is_one_rotation_per_function():
    for n in (64, 2048):
        assert len(ht.HaarBasis(ht.PartitionTree.halving(n))._analysis.first) == n - 1
    # a chain of rounds no longer than needed, so that other devices do many rotations at once
    assert ht.HaarBasis(ht.PartitionTree.halving(1024))._analysis.round.max() == 10


@pytest.mark.parametrize("axis", [0, 1, 2, -1, -3])
def test_every_axis_of_any_layout(axis):
    x = np.random.default_rng(0).standard_normal((4, 5, 6)).transpose(2, 0, 1)[::-1]
    basis = ht.HaarBasis(ht.PartitionTree.halving(x.shape[axis]))
    expected = np.moveaxis(np.moveaxis(x, axis, -1) @ basis.matrix(), -1, axis)
    np.testing.assert_allclose(basis.analyze(x, axis=axis), expected, atol=1e-13)


def test_blocks_of_many_fibres():
    """More fibres than a block holds, along the last axis and along others."""
    basis = ht.HaarBasis(ht.PartitionTree.halving(3))
    x = np.random.default_rng(0).standard_normal((3, 30011))
    expected = basis.matrix().T @ x
    np.testing.assert_allclose(basis.analyze(x, axis=0), expected, atol=1e-13)
    np.testing.assert_allclose(basis.analyze(x.T), expected.T, atol=1e-13)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (torch.float16, torch.float32),
        (torch.bfloat16, torch.float32),
        (torch.float32, torch.float32),
        (torch.float64, torch.float64),
        (torch.int64, torch.float64),
    ],
)
def test_kind_and_dtype_are_kept(given, expected):
    basis = ht.HaarBasis(ht.PartitionTree.flat(4))
    x = torch.ones(2, 4, dtype=given)
    assert basis.analyze(x).dtype == expected
    assert isinstance(basis.synthesize(x), torch.Tensor)
    assert isinstance(basis.analyze(x.float().numpy()), np.ndarray)


def test_input_is_not_changed():
    x = np.arange(6.0).reshape(2, 3)
    ht.HaarBasis(ht.PartitionTree.flat(3)).analyze(x)
    np.testing.assert_array_equal(x, np.arange(6.0).reshape(2, 3))


def test_constants_have_one_coefficient():
    c = ht.HaarBasis(ht.PartitionTree.halving(7)).analyze(np.full(7, 3.0))
    np.testing.assert_allclose(c, [3 * np.sqrt(7), 0, 0, 0, 0, 0, 0], atol=1e-14)


def test_other_devices_go_by_rounds():
    """The meta device stands in for a GPU: shapes only, but the choice is the same."""
    x = torch.empty(2, 6, 3, device="meta")
    chain = ht.HaarBasis(ht.PartitionTree.halving(6))._analysis
    assert rotated(x, 1, chain).shape == (2, 6, 3)
    assert rotated(x, 1, chain).device.type == "meta"


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_gpu_agrees_with_cpu():
    basis = ht.HaarBasis(ht.PartitionTree.halving(197))
    x = torch.randn(3, 197, 5, dtype=torch.float64)
    on_gpu = basis.analyze(x.cuda(), axis=1)
    assert on_gpu.is_cuda
    torch.testing.assert_close(on_gpu.cpu(), basis.analyze(x, axis=1))
    torch.testing.assert_close(basis.synthesize(on_gpu, axis=1).cpu(), x)


def test_bad_input():
    basis = ht.HaarBasis(ht.PartitionTree.flat(4))
    with pytest.raises(TypeError, match="tree must be a PartitionTree, got list"):
        ht.HaarBasis([[0, 0], [0, 1]])
    with pytest.raises(ValueError, match="tree has 4 leaves, the axis 5 entries"):
        basis.analyze(np.zeros((4, 5)))
    with pytest.raises(ValueError, match="at least one axis"):
        basis.analyze(3.0)
    with pytest.raises(ValueError, match="axis must be between"):
        basis.analyze(np.zeros(4), axis=1)
    with pytest.raises(ValueError, match="c must be finite"):
        basis.synthesize(np.array([0, 1, np.nan, 2]))
    with pytest.raises(ValueError, match="x must have no missing entries, got a masked array with 1 of them"):
        basis.analyze(np.ma.array(np.zeros(4), mask=[0, 0, 1, 0]))
    with pytest.raises(ValueError, match="must not be empty"):
        basis.analyze(np.zeros((0, 4)))
    with pytest.raises(ValueError, match="must name a function"):
        basis.function(0, 0, 3)
    with pytest.raises(ValueError, match="read-only"):
        basis.level[0] = 1
