"""Whether heads form clusters or a continuum: silhouettes compared with those of clouds without clusters."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int

from headtree.geometry.diffusion import diffusion_map

_DRAWS = 40
_MOST_CLUSTERS = 12
_SMALLEST = 3  # smaller groups are outliers, not clusters


@dataclass(frozen=True, eq=False)
class Clustering:
    """Best mean silhouette over cuts of the heads' tree, and that of Gaussian clouds with the same covariance."""

    silhouette: float
    n_clusters: int  #: of the best cut
    by_chance: Float[np.ndarray, " draw"]

    @property
    def excess(self) -> float:
        """Silhouette minus its null mean, in null standard deviations; positive if there are clusters."""
        deviation = float(self.by_chance.std(ddof=1))
        return (self.silhouette - float(self.by_chance.mean())) / deviation if deviation > 0 else float("nan")


def clustering(distances: Float[np.ndarray, "point point"], *, rng: int = 0) -> Clustering:
    """Look for clusters among points with given distances, such as heads.

    The points are embedded in Euclidean space by classical scaling, mapped to three diffusion coordinates (affinity
    exp(-distance / median)) and clustered by average linkage. The cut into 2 to 12 groups with the largest mean
    silhouette is chosen; groups of fewer than three points are outliers and do not count. The null distribution
    comes from Gaussian clouds with the same covariance in the same space, which have no clusters by construction.
    So structure created by the diffusion map is not mistaken for structure of the points.
    """
    distances = np.asarray(distances, dtype=np.float64)
    n = len(distances)
    points = _scaled(distances)
    if n < 2 * _SMALLEST or points.shape[1] == 0:
        return Clustering(float("nan"), 0, np.full(_DRAWS, np.nan))
    deviations = points.std(axis=0)  # classical scaling has uncorrelated coordinates
    clouds = np.random.default_rng(rng).standard_normal((_DRAWS, *points.shape)) * deviations
    best, n_clusters = _best_silhouette(_mapped(points))
    return Clustering(best, n_clusters, np.array([_best_silhouette(_mapped(cloud))[0] for cloud in clouds]))


def _scaled(distances: Float[np.ndarray, "point point"]) -> Float[np.ndarray, "point component"]:
    """Points whose Euclidean distances approximate the given ones (classical scaling)."""
    centred = distances**2
    centred = centred - centred.mean(axis=0) - centred.mean(axis=1, keepdims=True) + centred.mean()
    eigenvalues, vectors = np.linalg.eigh(-centred / 2)
    kept = eigenvalues > 1e-10 * max(float(np.abs(eigenvalues).max()), np.finfo(float).tiny)
    return np.asarray(vectors[:, kept] * np.sqrt(eigenvalues[kept]))


def _mapped(points: Float[np.ndarray, "point component"]) -> Float[np.ndarray, "point coordinate"]:
    from scipy.spatial.distance import pdist, squareform

    distances = squareform(pdist(points))
    return diffusion_map(np.exp(-distances / np.median(distances)), n_components=3).coordinates


def _best_silhouette(points: Float[np.ndarray, "point component"]) -> tuple[float, int]:
    from scipy.cluster.hierarchy import fcluster, linkage
    from scipy.spatial.distance import pdist, squareform

    distances = pdist(points)
    tree = linkage(distances, "average")
    square = squareform(distances)
    found = [(0.0, 1)]
    for n_clusters in range(2, min(_MOST_CLUSTERS, len(points) // _SMALLEST) + 1):
        labels = fcluster(tree, n_clusters, "maxclust")
        is_cluster = np.bincount(labels) >= _SMALLEST
        kept = is_cluster[labels]
        if is_cluster.sum() >= 2:
            found.append((mean_silhouette(square[np.ix_(kept, kept)], labels[kept]), int(is_cluster.sum())))
    return max(found)


def mean_silhouette(distances: Float[np.ndarray, "point point"], labels: Int[np.ndarray, " point"]) -> float:
    """Mean over points of (b - a) / max(a, b): a is the mean distance to its own cluster, b to the nearest other.

    A point alone in its cluster counts as 0 (Rousseeuw 1987).
    """
    _, labels = np.unique(labels, return_inverse=True)
    member = np.eye(labels.max() + 1)[labels]
    sizes = member.sum(axis=0)
    sums = distances @ member
    own = sizes[labels]
    a = sums[np.arange(len(labels)), labels] / np.maximum(own - 1, 1)
    means = sums / sizes
    means[np.arange(len(labels)), labels] = np.inf
    b = means.min(axis=1)
    larger = np.maximum(a, b)
    return float(np.where((own > 1) & (larger > 0), (b - a) / np.where(larger > 0, larger, 1), 0).mean())
