"""Whatever comes in through a public name: an answer, or an error of ours that says what to do."""

import copy

import numpy as np
import pytest
import torch

import headtree as ht
from headtree.errors import HeadtreeError

RNG = np.random.default_rng(0)
X = RNG.standard_normal((6, 8, 9))
TREES = [ht.PartitionTree.halving(n) for n in X.shape]
ROWS, COLUMNS = TREES[1:]
AFFINITY = np.exp(-np.abs(np.subtract.outer(np.arange(6), np.arange(6))))

CALLS = {
    "alpha a string": lambda: ht.tree_emd(X, 0, TREES, alpha="1"),
    "alpha none": lambda: ht.tree_emd(X, 0, TREES, alpha=None),
    "trees none": lambda: ht.tree_emd(X, 0, None),
    "mask a string": lambda: ht.organize_array(X, mask="abc"),
    "mask ragged": lambda: ht.organize_array(X, mask=[[True], [True, False]]),
    "two masks that do not fit": lambda: ht.organize_array(np.ma.array(X, mask=X > 1), mask=np.zeros(5, bool)),
    "basis of none": lambda: ht.TensorHaarBasis(None),
    "coefficient without a name": lambda: ht.TensorHaarBasis(ROWS).coefficient(X[:, :, 0], 3),
    "coefficient with four numbers": lambda: ht.TensorHaarBasis(ROWS).coefficient(X[:, :, 0], (0, 0, 0, 0)),
    "ragged indices": lambda: ht.TensorHaarBasis(TREES).coefficients(X, [[0, 0, 0], [1]]),
    "supports beyond all": lambda: ht.TensorHaarBasis(TREES).at_least(float("inf")),
    "no indices": lambda: ht.TensorHaarBasis(TREES).coefficients(X, np.zeros((0, 3), int)),
    "fn an array": lambda: ht.paraproduct(X, ROWS, COLUMNS, fn=np.array([1, 2, 3])),
    "fn unknown": lambda: ht.paraproduct(X, ROWS, COLUMNS, fn="sigmoid"),
    "fn returns none": lambda: ht.paraproduct(X, ROWS, COLUMNS, fn=(lambda u: None,) * 3),
    "fn returns complex": lambda: ht.paraproduct(X, ROWS, COLUMNS, fn=(lambda u: u + 1j,) * 3),
    "compress without trees": lambda: ht.compress(X, None, 3),
    "compress with one tree": lambda: ht.compress(X, TREES[0], 3),
    "consensus of one": lambda: ht.consensus(ht.organize_array(X)),
    "consensus of none": lambda: ht.consensus(None),
    "stability of none": lambda: ht.stability(None),
    "stability of masked entropies": lambda: ht.stability(np.ma.masked_greater(X[:, 0], 1)),
    "stability of complex entropies": lambda: ht.stability(X[:, 0] + 1j),
    "stability of heads that are no pairs": lambda: ht.stability(X[:, 0], heads=range(9)),
    "stability of one number for heads": lambda: ht.stability(X[:, 0], heads=9),
    "stability of heads that differ": lambda: ht.stability(
        [ht.head_entropy(ht.AttentionTensor.from_array(X, heads_per_layer=n), pair(X)[1]) for n in (2, 3)]
    ),
    "table of fewer than none": lambda: ht.stability(X[:, 0]).table(-1),
    "stability with a share in words": lambda: ht.stability(X[:, 0], share="all"),
    "distance to none": lambda: ht.tree_distance(TREES[0], None),
    "levels of different lengths": lambda: ht.PartitionTree([[0, 0], [0]]),
    "leaves that are no integers": lambda: ROWS.take([float(i) for i in range(8)]),
    "a key for other leaves": lambda: ROWS.order(np.zeros(3)),
    "halving nothing": lambda: ht.PartitionTree.halving(0),
    "halving a part": lambda: ht.PartitionTree.halving(2.5),
    "flat of nothing": lambda: ht.PartitionTree.flat(0),
    "rng a string": lambda: ht.binary_tree(AFFINITY, 1.5, rng="x"),
    "rng negative": lambda: ht.consensus([ht.organize_array(X)] * 2, rng=-1),
    "components a part": lambda: ht.diffusion_map(AFFINITY, 2.5),
    "time nan": lambda: ht.diffusion_map(AFFINITY, time=float("nan")),
    "time infinite": lambda: ht.diffusion_map(AFFINITY, time=float("inf")),
    "p beyond all floats": lambda: ht.head_entropy(*pair(X), p=10**400),
    "tensors with gradients in a list": lambda: ht.organize_array([torch.ones(3, requires_grad=True)] * 2),
    "a tensor without numbers": lambda: ht.organize_array(torch.zeros(3, 4, device="meta")),
    "p that overflows": lambda: ht.head_entropy(*pair(X), p=1e-4),
}


def pair(x):
    att = ht.AttentionTensor.from_array(x)
    return att, ht.organize(att)


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_is_refused_with_an_error_of_ours(call):
    with pytest.raises(HeadtreeError):
        call()


def test_what_is_odd_but_clear_is_taken():
    basis = ht.TensorHaarBasis(TREES)
    assert len(basis.at_least(1e30)) == len(basis.at_least(10**400)) == 0
    product = ht.paraproduct(0.1 * X, ROWS, COLUMNS)
    np.testing.assert_array_equal(product.scales(np.int64(0), 0).first, product.scales(0, 0).first)
    assert ht.stability(iter(X[:, 0])).n_inputs == 6
    org = ht.organize_array(X)
    np.testing.assert_array_equal(org.arrange(X.tolist()), org.arrange(X))
    again = copy.deepcopy(org)
    assert list(again.trees) == list(org.trees)
    assert again.names == org.names


# float32 holds 1e±30, but not its square; float64 holds 1e±200, but not its square
@pytest.mark.parametrize(
    ("dtype", "scale"), [(np.float32, 2.0**100), (np.float32, 2.0**-100), (np.float64, 2.0**700)]
)
def test_measures_do_not_depend_on_scale(dtype, scale):
    small, large = (X.astype(dtype), (X * scale).astype(dtype))
    (att, org), (att_scaled, org_scaled) = pair(small), pair(large)
    relative = ht.head_entropy(att, org).relative
    np.testing.assert_allclose(ht.head_entropy(att_scaled, org_scaled).relative, relative, rtol=1e-5)
    np.testing.assert_allclose(
        ht.network_entropy(att_scaled, org_scaled).relative, ht.network_entropy(att, org).relative, rtol=1e-5
    )
    fit, fit_scaled = (ht.holder_exponent(x, ROWS, COLUMNS) for x in (small, large))
    np.testing.assert_allclose(fit_scaled.exponent, fit.exponent, rtol=1e-5)
    np.testing.assert_allclose(fit_scaled.constant, fit.constant * scale, rtol=1e-4)
    np.testing.assert_allclose(fit_scaled.rms, fit.rms * scale, rtol=1e-5)
    curve, curve_scaled = (ht.compression_curve(x, TREES) for x in (small, large))
    np.testing.assert_allclose(curve_scaled.largest, curve.largest, atol=1e-6)
    assert curve_scaled.n_for_99 == curve.n_for_99
    errors, errors_scaled = (
        ht.denoising_errors(*p, 0.1 * s) for p, s in (((att, org), 1), ((att_scaled, org), scale))
    )
    for name, error in errors.items():
        assert errors_scaled[name] == pytest.approx(error, rel=1e-4)
    if scale > 1:  # d · d' is out of range, and the error says so
        return
    identity = (lambda u: u, np.ones_like, np.zeros_like)
    shares, shares_scaled = (ht.paraproduct(x, ROWS, COLUMNS, identity).shares["first"] for x in (small, large))
    np.testing.assert_allclose(shares_scaled, shares, rtol=1e-5)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_sums_out_of_range_are_refused(dtype):
    """As of scores that have the smallest of all floats where they should have minus infinity."""
    lowest = np.where(np.tri(8, 9, dtype=bool), X[0], np.finfo(dtype).min).astype(dtype)
    att, org = ht.AttentionTensor.from_array(np.stack([lowest] * 6)), pair(X)[1]
    calls = (
        lambda: ht.HaarBasis(COLUMNS).analyze(lowest),
        lambda: ht.HaarBasis(COLUMNS).synthesize(lowest),
        lambda: ht.TensorHaarBasis([ROWS, COLUMNS]).analyze(lowest),
        lambda: ht.TensorHaarBasis([ROWS, COLUMNS]).synthesize(lowest),
        lambda: ht.TensorHaarBasis([ROWS, COLUMNS]).coefficients(lowest, [[0, 0]]),
        lambda: ht.compression_curve(lowest, [ROWS, COLUMNS]),
        lambda: ht.head_entropy(att, org),
        lambda: ht.network_entropy(att, org),
        lambda: ht.sparsity(att, org),
    )
    for call in calls:
        with pytest.raises(
            HeadtreeError, match=r"must be small enough for sums .* got absolute values .*mask entries"
        ):
            call()


def test_functions_get_a_copy_and_may_return_it():
    f = X[0].copy()
    double = (lambda u: np.multiply(u, 2, out=u), lambda u: 2 + 0 * u, lambda u: 0 * u)
    result = ht.paraproduct(f, ROWS, COLUMNS, double)
    np.testing.assert_array_equal(f, X[0])
    assert np.abs(result.residual).max() < 1e-13
    ht.paraproduct(f, ROWS, COLUMNS, (lambda u: u, np.ones_like, np.zeros_like)).value[:] = 0
    np.testing.assert_array_equal(f, X[0])


@pytest.mark.parametrize("kind", ["scores", "probs"])
def test_a_tensor_on_disk_measures_as_in_memory(tmp_path, kind):
    mask = np.triu(np.ones((8, 9), bool), 1)
    att = ht.AttentionTensor.from_array(np.abs(X), mask=mask, kind=kind)
    att.save(tmp_path / "a.zarr")
    stored = ht.AttentionTensor.open(tmp_path / "a.zarr")
    org = ht.organize(stored)
    assert list(org.trees) == list(ht.organize(att).trees)
    measures = [ht.head_entropy, ht.network_entropy]
    for measure in measures:
        np.testing.assert_array_equal(np.asarray(measure(stored, org)), np.asarray(measure(att, org)))
    assert ht.sparsity(stored, org).to_dict() == ht.sparsity(att, org).to_dict()
    assert ht.regularity(stored, org).to_dict() == ht.regularity(att, org).to_dict()
