"""The Markov chain of an affinity, the chain's eigenvectors, and diffusion coordinates."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from scipy.sparse.linalg import ArpackError, ArpackNoConvergence, LinearOperator, eigsh
from torch import Tensor

from headtree import _checks
from headtree._threads import product_by_rows, sleeping_threads
from headtree.errors import InvalidValueError

#: Affinities up to this fraction of the largest are dropped.
_NO_AFFINITY = 1e-8
#: Number of eigenpairs, including the trivial one.
_PAIRS = 12
#: Eigenvalues whose magnitudes differ by less than this, relatively, form one group.
_SAME = 1e-8
#: Eigenvalues up to this magnitude are rounding errors.
_ZERO = 1e-10
#: From so many points per pair on, only the leading pairs are computed, and so many more than are wanted.
_MANY_POINTS = 24
_SPARE_PAIRS = 4
#: Up to so many points, eigenpairs of an affinity on a GPU are computed faster on the CPU.
_FEW_FOR_A_GPU = 768


@dataclass(frozen=True, eq=False)
class Spectrum:
    """The non-trivial eigenpairs of the Markov chain of an affinity, by decreasing magnitude of the eigenvalue.

    `functions` are right eigenvectors of the chain, ψ = v / v₀; column i belongs to ``eigenvalues[i]``. There are
    no columns if the chain cannot distinguish its points.
    """

    eigenvalues: Float[Tensor, " pair"]
    functions: Float[Tensor, "leaf pair"]

    def same_magnitude(self, first: int) -> slice:
        """Pairs from `first` on that tie with it in magnitude: a solver may return any basis of their span."""
        magnitudes = self.eigenvalues[first:].abs()
        return slice(first, first + int((magnitudes >= magnitudes[0] * (1 - _SAME)).sum()))


def spectrum(affinity: Float[Tensor, "leaf leaf"], n_pairs: int = _PAIRS) -> Spectrum:
    """Eigenpairs of the symmetric Markov matrix of a checked affinity, without the trivial pair.

    S = P / (s sᵀ) with P = G / (r rᵀ), where r and s² are the row sums of G and P. The top pair of S is known,
    eigenvalue 1 and eigenvector s/‖s‖, and is deflated: on a disconnected graph, a solver would return an arbitrary
    vector of that eigenspace instead. Of the rest, the ``n_pairs - 1`` largest in magnitude are returned, plus any
    that tie with the last of them. Distances then do not depend on the solver's choice of basis.

    The result is on the device of a large affinity, and on the CPU otherwise.
    """
    if len(affinity) <= _FEW_FOR_A_GPU:
        affinity = affinity.cpu()
    _, s, chain = _markov(affinity)
    top = s / s.norm()
    deflated = chain.sub_(top[:, None] * top[None, :])
    wanted = min(n_pairs, len(s)) - 1
    found = _leading_pairs(deflated, wanted) if len(s) > _MANY_POINTS * n_pairs else None
    eigenvalues, vectors = torch.linalg.eigh(deflated) if found is None else found
    eigenvalues, decreasing = _by_magnitude(eigenvalues.cpu())
    n_used = _n_with_ties(eigenvalues, wanted)
    functions = vectors.to(top.device)[:, decreasing[:n_used].to(top.device)] / top[:, None]
    return Spectrum(eigenvalues[:n_used].to(top.device), functions * _signs(functions))


def _by_magnitude(eigenvalues: Float[Tensor, " pair"]) -> tuple[Float[Tensor, " pair"], Int[Tensor, " pair"]]:
    """Eigenvalues by decreasing magnitude, and where they were."""
    decreasing = torch.from_numpy(np.lexsort((-eigenvalues.numpy(), -eigenvalues.abs().numpy())))
    return eigenvalues[decreasing], decreasing


def _n_with_ties(eigenvalues: Float[Tensor, " pair"], wanted: int) -> int:
    """Number of pairs, by decreasing magnitude, that are used: as many as wanted, and those that tie with them."""
    if wanted <= 0:
        return wanted
    magnitudes = eigenvalues.abs()
    tied = int((magnitudes >= magnitudes[wanted - 1] * (1 - _SAME)).sum())
    return min(tied, int((magnitudes > _ZERO).sum()))


def _leading_pairs(
    matrix: Float[Tensor, "leaf leaf"], wanted: int
) -> tuple[Float[Tensor, " pair"], Float[Tensor, "leaf pair"]] | None:
    """Some more pairs than wanted, by Lanczos iterations; None if these cannot show that they are the largest.

    Lanczos may miss copies of an eigenvalue. The largest eigenvalue that is left after the pairs found are deflated
    tells: it must be smaller than that of every pair that is used. It is looked for from a random vector, since
    iterations from a vector with the symmetries of the matrix see nothing but vectors with these symmetries.
    """
    start = torch.linalg.vector_norm(matrix, dim=1).square().cpu().numpy()  # follows permuted leaves
    elsewhere = np.random.default_rng(0).standard_normal(len(start))

    def times(x: Float[np.ndarray, " leaf"]) -> Float[np.ndarray, " leaf"]:
        vector = torch.from_numpy(np.ravel(x))
        if matrix.is_cuda:
            return np.asarray((matrix @ vector.to(matrix.device)).cpu().numpy())
        return np.asarray(product_by_rows(matrix, vector[None])[:, 0].numpy())

    given = LinearOperator(matrix.shape, times, dtype=np.float64)
    try:
        with sleeping_threads():
            eigenvalues, vectors = eigsh(given, wanted + _SPARE_PAIRS, v0=start, which="LM", tol=0)
            deflated = LinearOperator(
                given.shape, lambda x: times(x) - vectors @ (eigenvalues * (vectors.T @ x)), dtype=np.float64
            )
            left = abs(eigsh(deflated, 1, v0=elsewhere, which="LM", tol=1e-3, return_eigenvectors=False)[0])
    except (ArpackError, ArpackNoConvergence):
        return None
    ordered, _ = _by_magnitude(torch.from_numpy(eigenvalues))
    n_used = _n_with_ties(ordered, wanted)
    is_complete = wanted <= n_used < len(ordered) and left * (1 + 1e-2) < float(ordered[n_used - 1].abs())
    return (torch.from_numpy(eigenvalues), torch.from_numpy(vectors)) if is_complete else None


def _markov(
    affinity: Float[Tensor, "leaf leaf"],
) -> tuple[Float[Tensor, " leaf"], Float[Tensor, " leaf"], Float[Tensor, "leaf leaf"]]:
    """Row sums r of the affinity, square roots s of the row sums of P, and the symmetric matrix S."""
    g = torch.where(affinity > _NO_AFFINITY * affinity.max(), affinity, 0.0)
    # by a power of two, so nothing is rounded: row sums and their products stay in range
    exponent = math.frexp(float(affinity.max()))[1]
    g = _checks.times_power_of_two(g, -exponent, in_place=True)
    r = g.sum(dim=1)
    isolated = r == 0
    own = math.ldexp(1.0, max(-1000, min(-exponent, 1000)))  # an isolated point has affinity 1 with itself
    g.diagonal()[isolated] = own
    r[isolated] = own
    p = g.div_(r[:, None]).div_(r[None, :])
    s = p.sum(dim=1).sqrt()
    chain = p.div_(s[:, None]).div_(s[None, :])
    return r, s, (chain + chain.T).div_(2)


def _signs(functions: Float[Tensor, "leaf pair"]) -> Float[Tensor, " pair"]:
    """Sign, +1 or -1, that makes each column's entry of largest magnitude positive; of ties, the first entry."""
    magnitudes = functions.abs()
    largest = (magnitudes >= magnitudes.amax(dim=0) * (1 - _ZERO)).to(torch.uint8).argmax(dim=0)
    return torch.where(functions.gather(0, largest[None, :])[0] < 0, -1.0, 1.0).to(functions.dtype)


def extended_coordinates(
    affinity: Float[Tensor, "leaf leaf"], pairs: Spectrum, new: Float[Tensor, "new leaf"]
) -> Float[Tensor, "new pair"]:
    """Nyström extension of ``eigenvalues * functions`` to points with affinities `new` to those of the spectrum.

    It is the mean of the functions after one step of the chain: nan for a point with no affinity.
    """
    device = pairs.functions.device
    row_sums, _, _ = _markov(affinity.to(device))
    return _steps(new.to(device), row_sums, float(_NO_AFFINITY * affinity.max())) @ pairs.functions


def _steps(
    new: Float[Tensor, "new leaf"], row_sums: Float[Tensor, " leaf"], threshold: float
) -> Float[Tensor, "new leaf"]:
    """Probabilities of the chain's steps from new points; nan for a point with no affinity."""
    steps = torch.where(new > threshold, new, 0.0).div_(row_sums)
    return steps.div_(steps.sum(dim=1, keepdim=True))


@dataclass(frozen=True, eq=False)
class DiffusionMap:
    """Points in diffusion coordinates: ``coordinates[:, i] = eigenvalues[i]**time * ψ_i``.

    ``np.asarray(m)`` is ``m.coordinates``. There are fewer coordinates than requested if the affinity has fewer
    non-trivial eigenvalues.
    """

    coordinates: Float[np.ndarray, "point component"]
    eigenvalues: Float[np.ndarray, " component"]
    time: float
    _row_sums: Float[np.ndarray, " point"]
    _threshold: float

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.array(self.coordinates, dtype=dtype, copy=copy)

    def extend(self, affinity: Any) -> Float[np.ndarray, "new component"]:
        """Map new points, given their affinities (new, point) to the mapped points (Nyström extension).

        A point of the map gets its own coordinates.

        Examples
        --------
        >>> import headtree as ht
        >>> import numpy as np
        >>> points = np.array([0.0, 0.5, 1.0, 2.0])
        >>> embedding = ht.diffusion_map(np.exp(-np.abs(points[:, None] - points)), 2)
        >>> new = embedding.extend(np.exp(-np.abs(np.array([[1.0]]) - points)))
        >>> bool(np.allclose(new, embedding.coordinates[2]))
        True
        """
        given = _checks.real_tensor(affinity, "affinity").double().numpy()
        n = len(self._row_sums)
        if given.ndim != 2 or given.shape[1] != n:
            raise InvalidValueError(
                f"affinity must have shape (new points, {n}), a column for each mapped point, got {given.shape}"
            )
        if not (np.isfinite(given).all() and (given >= 0).all()):
            raise InvalidValueError(
                "affinity must be finite and nonnegative; use 0 where there is nothing in common"
            )
        steps = _steps(torch.from_numpy(given), torch.from_numpy(self._row_sums), self._threshold).numpy()
        if np.isnan(steps).any():
            isolated = np.flatnonzero(np.isnan(steps).any(axis=1))
            raise InvalidValueError(
                f"affinity: {len(isolated)} new points have no affinity with any mapped point, the first is row "
                f"{isolated[0]}; they cannot be mapped, leave them out"
            )
        return np.asarray(steps @ self.coordinates / self.eigenvalues)


def diffusion_map(affinity: Any, n_components: int = 3, *, time: float = 1.0) -> DiffusionMap:
    """Diffusion map of an affinity: the leading non-trivial eigenfunctions times eigenvalue**time.

    Parameters
    ----------
    affinity : (n, n) array
        Symmetric and nonnegative.
    n_components : int
        Number of coordinates.
    time : float
        Number of steps of the Markov chain. If it is not an integer, the absolute values of the eigenvalues are
        raised to this power.

    Examples
    --------
    The first coordinate separates two groups of points:

    >>> import headtree as ht
    >>> import numpy as np
    >>> points = np.array([0.0, 0.3, 0.5, 5.0, 5.2, 5.4])
    >>> affinity = np.exp(-np.abs(points[:, None] - points))
    >>> embedding = ht.diffusion_map(affinity, 2)
    >>> embedding.coordinates.shape
    (6, 2)
    >>> np.sign(embedding.coordinates[:, 0])
    array([-1., -1., -1.,  1.,  1.,  1.])
    """
    n_components = _checks.at_least_one(n_components, "n_components")
    time = _checks.finite_number(time, "time")
    matrix = _checks.affinity_matrix(affinity)
    pairs = spectrum(matrix, n_components + 1)
    eigenvalues = pairs.eigenvalues[:n_components]
    base = eigenvalues if float(time).is_integer() else eigenvalues.abs()
    r, _, _ = _markov(matrix)
    return DiffusionMap(
        coordinates=(pairs.functions[:, :n_components] * base**time).numpy(),
        eigenvalues=eigenvalues.numpy(),
        time=float(time),
        _row_sums=r.numpy(),
        _threshold=float(_NO_AFFINITY * matrix.max()),
    )
