import numpy as np
import pytest
import torch

import headtree as ht
from headtree.errors import HeadtreeError
from headtree.geometry import diffusion
from headtree.geometry.diffusion import extended_coordinates, spectrum
from tests import oracles


def random_affinity(n, seed=0, dimensions=3):
    x = np.random.default_rng(seed).standard_normal((n, dimensions))
    d = np.linalg.norm(x[:, None] - x[None], axis=-1)
    return np.exp(-d / np.median(d)), x


def _block_diagonal(sizes):
    labels = np.repeat(np.arange(len(sizes)), sizes)
    affinity, _ = random_affinity(len(labels))
    return np.where(labels[:, None] == labels[None, :], affinity, 0), labels


def test_functions_are_eigenvectors_of_the_markov_chain():
    affinity, _ = random_affinity(30)
    pairs = spectrum(torch.from_numpy(affinity))
    r = affinity.sum(axis=1)
    p = affinity / np.outer(r, r)
    chain = p / p.sum(axis=1, keepdims=True)
    psi, values = pairs.functions.numpy(), pairs.eigenvalues.numpy()
    assert psi.shape == (30, 11)
    np.testing.assert_allclose(chain @ psi, psi * values, atol=1e-12)
    assert (np.diff(np.abs(values)) <= 1e-15).all()
    assert (psi[np.abs(psi).argmax(axis=0), np.arange(11)] > 0).all()
    expected, _ = oracles.markov_pairs(affinity)
    np.testing.assert_allclose(values, expected, atol=1e-13)


def test_a_disconnected_graph_gives_finite_coordinates_constant_on_its_parts():
    affinity, labels = _block_diagonal((7, 9, 4))
    pairs = spectrum(torch.from_numpy(affinity))
    np.testing.assert_allclose(pairs.eigenvalues[:2], 1, atol=1e-12)
    for part in range(3):
        np.testing.assert_allclose(np.ptp(pairs.functions[labels == part, :2].numpy(), axis=0), 0, atol=1e-11)
    assert torch.isfinite(pairs.functions).all()


def test_a_group_of_equal_eigenvalues_is_kept_whole():
    assert spectrum(torch.eye(40, dtype=torch.float64)).functions.shape == (40, 39)
    cycle = np.eye(30) + np.roll(np.eye(30), 1, axis=1) + np.roll(np.eye(30), -1, axis=1)
    # eigenvalues of a cycle come in pairs: an odd number of non-trivial ones may not be cut
    assert spectrum(torch.from_numpy(cycle), n_pairs=5).functions.shape[1] == 4
    assert spectrum(torch.from_numpy(cycle), n_pairs=4).functions.shape[1] == 4
    assert spectrum(torch.from_numpy(cycle), n_pairs=2).functions.shape[1] == 2
    assert spectrum(torch.from_numpy(cycle), n_pairs=1).functions.shape[1] == 0  # the trivial pair alone


@pytest.mark.parametrize("less", np.linspace(0.05, 0.95, 7))
def test_of_two_points_equally_far_out_the_first_is_positive(less):
    """Whether each has more affinity with itself or with the other."""
    for own, mutual in ((1, less), (less, 1)):
        pairs = spectrum(torch.tensor([[own, mutual], [mutual, own]], dtype=torch.float64))
        np.testing.assert_allclose(pairs.functions, [[1], [-1]])


def test_points_that_cannot_be_told_apart_have_no_coordinates():
    assert spectrum(torch.ones(60, 60, dtype=torch.float64)).functions.shape == (60, 0)
    assert spectrum(torch.ones(1, 1, dtype=torch.float64)).functions.shape == (1, 0)


def test_a_point_without_any_affinity_is_isolated():
    affinity, _ = random_affinity(10)
    affinity[3] = affinity[:, 3] = 0
    with_self = affinity.copy()
    with_self[3, 3] = 1
    a, b = (spectrum(torch.from_numpy(m)) for m in (affinity, with_self))
    torch.testing.assert_close(a.functions, b.functions)


@pytest.mark.parametrize("time", [0.0, 1.0, 2.5, 3.0])
def test_coordinates_are_functions_times_powers_of_eigenvalues(time):
    affinity = np.exp(-np.abs(np.subtract.outer(np.arange(9.0), np.arange(9.0)))) - np.eye(9) * 0.9
    m = ht.diffusion_map(affinity, n_components=5, time=time)
    pairs = spectrum(torch.from_numpy(affinity))
    values = pairs.eigenvalues[:5].numpy()
    assert (values < 0).any()
    np.testing.assert_allclose(m.eigenvalues, values, rtol=1e-12)
    powers = (values if time != 2.5 else np.abs(values)) ** time
    np.testing.assert_allclose(m.coordinates, pairs.functions[:, :5].numpy() * powers, atol=1e-12)


def test_a_map_has_three_coordinates_after_one_step_unless_told_otherwise():
    affinity, _ = random_affinity(12)
    told = ht.diffusion_map(affinity, n_components=3, time=1.0)
    np.testing.assert_array_equal(ht.diffusion_map(affinity).coordinates, told.coordinates)


@pytest.mark.parametrize("unit", [1.0, 1e-9])
def test_extension_sends_known_points_to_themselves(unit):
    affinity = unit * random_affinity(25)[0]
    m = ht.diffusion_map(affinity, n_components=4, time=2)
    np.testing.assert_allclose(m.extend(affinity), m.coordinates, atol=1e-11)
    np.testing.assert_array_equal(np.asarray(m), m.coordinates)
    given, pairs = torch.from_numpy(affinity), spectrum(torch.from_numpy(affinity))
    torch.testing.assert_close(extended_coordinates(given, pairs, given), pairs.eigenvalues * pairs.functions)


def test_extension_drops_the_affinities_that_the_map_drops():
    m = ht.diffusion_map(random_affinity(8)[0])  # the largest is 1
    without, with_little, with_more = (m.extend([[0.5] * 7 + [last]]) for last in (0, 1e-8, 1.01e-8))
    np.testing.assert_array_equal(with_little, without)
    assert (with_more != without).any()


def test_extension_places_new_points_near_their_neighbours():
    affinity, x = random_affinity(200, dimensions=2)
    scale = np.median(np.linalg.norm(x[:, None] - x[None], axis=-1))
    nearby = x[:20] + 1e-3
    new = np.exp(-np.linalg.norm(nearby[:, None] - x[None], axis=-1) / scale)
    m = ht.diffusion_map(affinity)
    spread = np.ptp(m.coordinates, axis=0).max()
    assert np.abs(m.extend(new) - m.coordinates[:20]).max() < 0.05 * spread


def test_a_map_of_a_line_is_monotone_along_it():
    t = np.sort(np.random.default_rng(3).random(50))
    m = ht.diffusion_map(np.exp(-np.abs(t[:, None] - t[None]) / 0.1))
    first = m.coordinates[:, 0]
    assert (np.diff(first) > 0).all() or (np.diff(first) < 0).all()


@pytest.mark.parametrize(
    ("affinity", "said"),
    [
        (np.ones((3, 4)), "square"),
        (np.zeros((0, 0)), "square"),
        (np.array([[1.0, -0.5], [-0.5, 1.0]]), "must not have negative entries"),
        (np.array([[1.0, 0.5], [0.1, 1.0]]), "symmetric"),
        (np.array([[1.0, np.nan], [np.nan, 1.0]]), "2 NaN or infinite entries"),
        ("affinity", "real numbers"),
    ],
)
@pytest.mark.parametrize("function", [ht.diffusion_map, ht.flexible_tree, ht.binary_tree])
def test_what_is_no_affinity_is_refused(function, affinity, said):
    with pytest.raises(HeadtreeError, match=said):
        function(affinity)


def test_wrong_extensions_are_refused():
    m = ht.diffusion_map(random_affinity(8)[0])
    for bad, said in [
        (np.ones((2, 7)), "a column for each"),
        (-np.ones((1, 8)), "finite and nonnegative"),
        (np.zeros((1, 8)), "no affinity with any"),
    ]:
        with pytest.raises(HeadtreeError, match=said):
            m.extend(bad)
    with pytest.raises(HeadtreeError, match="n_components"):
        ht.diffusion_map(np.eye(3), n_components=0)


def test_leading_pairs_are_those_of_the_full_solver(monkeypatch):
    affinity = torch.from_numpy(random_affinity(400)[0])
    full, calls = torch.linalg.eigh, []
    monkeypatch.setattr(torch.linalg, "eigh", lambda matrix: calls.append(1) or full(matrix))
    ours = spectrum(affinity)
    assert not calls  # nothing is missed here
    monkeypatch.setattr(diffusion, "_MANY_POINTS", 10**6)
    theirs = spectrum(affinity)
    torch.testing.assert_close(ours.eigenvalues, theirs.eigenvalues, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(ours.functions, theirs.functions, rtol=1e-7, atol=1e-7)


def test_copies_of_an_eigenvalue_are_not_missed(monkeypatch):
    """Equal parts that nothing connects: every eigenvalue occurs as often as there are parts."""
    part = torch.from_numpy(random_affinity(80)[0])
    affinity = torch.block_diag(*[part] * 5)
    ours = spectrum(affinity)
    monkeypatch.setattr(diffusion, "_MANY_POINTS", 10**6)
    theirs = spectrum(affinity)
    torch.testing.assert_close(ours.eigenvalues, theirs.eigenvalues, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("n_copies", [1, 3])
@pytest.mark.parametrize("copied", [0, 2, 4])
def test_pairs_with_copies_that_were_missed_are_not_returned(copied, n_copies):
    """Of a diagonal matrix, iterations from one vector may see each eigenvalue once; five are wanted."""
    values = np.concatenate([[0.9, 0.8, 0.7, 0.6, 0.5], np.linspace(0.3, 0.01, 115)])
    values = np.sort(np.append(values, [values[copied]] * n_copies))[::-1]
    found = diffusion._leading_pairs(torch.diag(torch.from_numpy(values.copy())), 5)
    if found is not None:
        np.testing.assert_allclose(np.sort(found[0])[::-1][: 5 + n_copies], values[: 5 + n_copies], atol=1e-10)


def test_many_points_that_cannot_be_told_apart_have_no_coordinates():
    assert spectrum(torch.ones(400, 400, dtype=torch.float64)).functions.shape == (400, 0)
