"""The definitions once more, literally and slowly."""

from __future__ import annotations

import itertools

import numpy as np

from headtree.trees.tree import PartitionTree


def tree_emd(x, axis, trees, alpha, beta, *, distinct=False, missing=None):
    """Sum over all tuples of nodes of |difference of means| · weights; missing folders left out, then rescaled."""
    x = np.moveaxis(np.asarray(x, dtype=np.float64), axis, 0)
    here = (
        np.ones(x.shape, bool)
        if missing is None
        else ~np.moveaxis(np.broadcast_to(missing, missing.shape), axis, 0)
    )
    nodes = [list(weighted_nodes(tree, alpha, beta, distinct)) for tree in trees]
    n = x.shape[0]
    result = np.zeros((n, n))
    for a, b in itertools.combinations(range(n), 2):
        total = kept = distance = 0.0
        for folders in itertools.product(*nodes):
            index = np.ix_(*(leaves for leaves, _ in folders))
            weight = np.prod([w for _, w in folders])
            total += weight
            in_a, in_b = here[a][index], here[b][index]
            if in_a.any() and in_b.any():
                kept += weight
                distance += weight * abs(x[a][index][in_a].mean() - x[b][index][in_b].mean())
        result[a, b] = result[b, a] = distance * total / kept if kept else np.inf
    return result


def weighted_nodes(tree: PartitionTree, alpha, beta, distinct):
    """(leaves, weight) of every node; with `distinct`, of the uppermost node of every set of leaves."""
    seen = set()
    for level in range(tree.n_levels):
        for label in range(tree.labels[level].max() + 1):
            leaves = np.flatnonzero(tree.labels[level] == label)
            if distinct and tuple(leaves) in seen:
                continue
            seen.add(tuple(leaves))
            yield leaves, (len(leaves) / tree.n_leaves) ** beta * 2.0 ** ((1 - (level + 1)) * alpha)


def cosine(x, axis, missing=None):
    """Cosine over entries present in both, negatives 0, diagonal 1."""
    x = np.moveaxis(np.asarray(x, dtype=np.float64), axis, 0)
    here = np.ones(x.shape, bool) if missing is None else ~np.moveaxis(missing, axis, 0)
    n = len(x)
    result = np.eye(n)
    for a, b in itertools.permutations(range(n), 2):
        both = here[a] & here[b]
        u, v = x[a][both], x[b][both]
        norms = np.sqrt((u @ u) * (v @ v))
        result[a, b] = max(0.0, u @ v / norms) if norms > 0 else 0.0
    return result


def markov_pairs(affinity, n_pairs=12):
    """(eigenvalues, ψ) of the symmetric Markov matrix, the trivial pair projected out."""
    g = np.where(affinity > 1e-8, affinity, 0.0)
    r = g.sum(axis=1)
    p = g / np.outer(r, r)
    s = np.sqrt(p.sum(axis=1))
    chain = p / np.outer(s, s)
    v0 = s / np.linalg.norm(s)
    values, vectors = np.linalg.eigh(chain - np.outer(v0, v0))
    order = np.argsort(-np.abs(values), kind="stable")
    values, vectors = values[order], vectors[:, order]
    k = min(n_pairs, len(s)) - 1
    while 0 < k < len(values) and abs(abs(values[k]) - abs(values[k - 1])) <= 1e-8 * abs(values[k - 1]):
        k += 1
    keep = [i for i in range(k) if abs(values[i]) > 1e-10]
    return values[keep], vectors[:, keep] / v0[:, None]


def flexible_tree(affinity, tree_constant=1.0):
    """Section 4 of the definitions in plain loops."""
    values, psi = markov_pairs(np.asarray(affinity, dtype=np.float64))
    n = len(psi)
    if len(values) == 0:
        return PartitionTree.flat(n)
    clusters = [[leaf] for leaf in range(n)]
    levels = [list(range(n))]
    time = 1.0
    while len(clusters) > 1:
        points = psi * (np.abs(values) / abs(values[0])) ** time
        groups = join_level(cluster_distances(points, clusters), tree_constant)
        clusters = [sorted(leaf for c in group for leaf in clusters[c]) for group in groups]
        level = np.empty(n, int)
        for label, leaves in enumerate(clusters):
            level[leaves] = label
        levels.append(list(level))
        time *= 2
    return PartitionTree(np.array(levels[::-1]))


def cluster_distances(points, clusters):
    k = len(clusters)
    d = np.zeros((k, k))
    for a, b in itertools.permutations(range(k), 2):
        d[a, b] = np.mean([np.linalg.norm(points[i] - points[j]) for i in clusters[a] for j in clusters[b]])
    return d


def join_level(d, tree_constant):
    """Groups of clusters, ordered by their smallest member."""
    k = len(d)
    largest = max(d[a, b] for a, b in itertools.permutations(range(k), 2))
    for a, b in itertools.product(range(k), repeat=2):
        if largest == 0 or d[a, b] < 1e-10 * largest:
            d[a, b] = 0.0
        else:
            d[a, b] = float(f"{d[a, b] / largest:.9e}")
        if a == b:
            d[a, b] = np.inf
    off = [d[a, b] for a, b in itertools.permutations(range(k), 2)]
    if max(off) == min(off):
        return [list(range(k))]
    med = np.median(d)
    if med == 0:
        med = np.median(d[np.isfinite(d) & (d > 0)])
    limit = med / tree_constant
    group_of = {c: [c] for c in range(k)}
    starters, d, joined = set(range(k)), d.copy(), False
    while starters:
        r, c = min(((r, c) for r in sorted(starters) for c in range(k)), key=lambda rc: d[rc])
        if not np.isfinite(d[r, c]) or (d[r, c] >= med and joined):
            break
        s = len(group_of[c])
        if s == 1 or d[r, c] < limit * 2.0 ** (1 - s):
            group_of[c].append(r)
            group_of[r] = group_of[c]
            starters -= {r, c}
            joined = True
        else:
            d[r, c] = np.inf
    return sorted({tuple(sorted(g)) for g in map(tuple, group_of.values())})
