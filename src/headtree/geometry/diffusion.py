"""From an affinity to its Markov chain, the chain's eigenvectors, and coordinates made of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from headtree import _checks
from headtree.errors import InvalidValueError

#: Affinities at most this large are dropped; pairs kept, the trivial one included; eigenvalues whose
#: moduli differ relatively by less are one group; eigenvalues at most this large are rounding errors.
_NO_AFFINITY, _PAIRS, _SAME, _ZERO = 1e-8, 12, 1e-8, 1e-10


@dataclass(frozen=True, eq=False)
class Spectrum:
    """The non-trivial eigenpairs of the Markov chain of an affinity, by falling modulus of the eigenvalue.

    `functions` are right eigenvectors of the chain, ψ = v / v₀; column i belongs to ``eigenvalues[i]``. There are
    no columns when the chain cannot tell its points apart.
    """

    eigenvalues: Float[Tensor, " pair"]
    functions: Float[Tensor, "leaf pair"]

    def same_modulus(self, first: int) -> slice:
        """Pairs from the first on whose eigenvalues have its modulus: a solver returns any basis of their space."""
        moduli = self.eigenvalues[first:].abs()
        return slice(first, first + int((moduli >= moduli[0] * (1 - _SAME)).sum()))


def spectrum(affinity: Float[Tensor, "leaf leaf"], n_pairs: int = _PAIRS) -> Spectrum:
    """Eigenpairs of the symmetric Markov matrix of a checked affinity, the trivial pair left out.

    S = P / (s sᵀ) with P = G / (r rᵀ), r and s² the row sums of G and P. The top pair of S is known, eigenvalue 1
    and eigenvector s/‖s‖, and is deflated: on a disconnected graph a solver would return an arbitrary vector
    of that eigenspace instead. Of the others the ``n_pairs - 1`` of largest modulus are kept, and with the last
    of them its whole group of equal moduli, so that distances do not depend on the solver's choice of basis.
    """
    _, s, chain = _markov(affinity)
    top = s / s.norm()
    eigenvalues, vectors = torch.linalg.eigh(chain - top[:, None] * top[None, :])
    falling = torch.from_numpy(np.lexsort((-eigenvalues.numpy(), -eigenvalues.abs().numpy())))
    eigenvalues, vectors = eigenvalues[falling], vectors[:, falling]
    moduli = eigenvalues.abs()
    n_kept = min(n_pairs, len(s)) - 1
    if n_kept > 0:
        n_kept = int((moduli >= moduli[n_kept - 1] * (1 - _SAME)).sum())
        n_kept = min(n_kept, int((moduli > _ZERO).sum()))
    functions = vectors[:, :n_kept] / top[:, None]
    return Spectrum(eigenvalues[:n_kept], functions * _signs(functions))


def _markov(
    affinity: Float[Tensor, "leaf leaf"],
) -> tuple[Float[Tensor, " leaf"], Float[Tensor, " leaf"], Float[Tensor, "leaf leaf"]]:
    """Row sums r of the affinity, square roots s of the row sums of P, and the symmetric matrix S."""
    kept = torch.where(affinity > _NO_AFFINITY * affinity.max(), affinity, 0.0)
    isolated = kept.sum(dim=1) == 0
    kept = kept + torch.diag(isolated.to(kept.dtype))  # a point without any affinity has one with itself
    r = kept.sum(dim=1)
    p = kept / r[:, None] / r[None, :]
    s = p.sum(dim=1).sqrt()
    chain = p / s[:, None] / s[None, :]
    return r, s, (chain + chain.T) / 2


def _signs(functions: Float[Tensor, "leaf pair"]) -> Float[Tensor, " pair"]:
    """+1 or -1 for each column: the entry of largest modulus becomes positive, the first one on ties."""
    moduli = functions.abs()
    largest = (moduli >= moduli.amax(dim=0) * (1 - _ZERO)).to(torch.uint8).argmax(dim=0)
    return torch.where(functions.gather(0, largest[None, :])[0] < 0, -1.0, 1.0).to(functions.dtype)


@dataclass(frozen=True, eq=False)
class DiffusionMap:
    """Points in diffusion coordinates: ``coordinates[:, i] = eigenvalues[i]**time * ψ_i``.

    ``np.asarray(m)`` is ``m.coordinates``. There are fewer coordinates than asked for when the affinity does not
    have as many non-trivial eigenvalues.
    """

    coordinates: Float[np.ndarray, "point component"]
    eigenvalues: Float[np.ndarray, " component"]
    time: float
    _row_sums: Float[np.ndarray, " point"]
    _threshold: float

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.array(self.coordinates, dtype=dtype, copy=copy)

    def extend(self, affinity: Any) -> Float[np.ndarray, "new component"]:
        """Coordinates of new points from their affinities (new, point) to the mapped points (Nyström).

        A point of the map is sent to its own coordinates.
        """
        given = _checks.real_tensor(affinity, "affinity").double().numpy()
        n = len(self._row_sums)
        if given.ndim != 2 or given.shape[1] != n:
            raise InvalidValueError(
                f"affinity must have shape (new points, {n}), one column for each mapped point, got {given.shape}"
            )
        if not (np.isfinite(given).all() and (given >= 0).all()):
            raise InvalidValueError("affinity must be finite and not negative")
        kept = np.where(given > self._threshold, given, 0.0)
        if not kept.any(axis=1).all():
            lonely = np.flatnonzero(~kept.any(axis=1))
            raise InvalidValueError(
                f"affinity: {len(lonely)} new points have no affinity with any mapped point, the first is row "
                f"{lonely[0]}; they cannot be placed"
            )
        steps = kept / self._row_sums
        steps /= steps.sum(axis=1, keepdims=True)
        return np.asarray(steps @ self.coordinates / self.eigenvalues)


def diffusion_map(affinity: Any, n_components: int = 3, *, time: float = 1.0) -> DiffusionMap:
    """Diffusion map of an affinity: its largest non-trivial eigenfunctions times eigenvalue**time.

    Parameters
    ----------
    affinity : (n, n) array
        Symmetric and not negative.
    n_components : int
        Number of coordinates.
    time : float
        Number of steps of the Markov chain; for times that are not whole the moduli of eigenvalues are raised.
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
