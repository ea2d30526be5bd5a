"""Sums over boxes against plain sums: rows apart and side by side in memory, one to three other axes."""

import numpy as np
import pytest

from headtree.geometry.box_sums import box_features

N_BOXES = 40


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("shape", [(6, 20), (19, 5), (5, 4, 19), (18, 7, 3), (3, 4, 5, 17)], ids=str)
@pytest.mark.parametrize("per_row", [False, True])
def test_features_are_weighted_means_over_boxes(shape, dtype, per_row):
    rng = np.random.default_rng(0)
    x = rng.standard_normal(shape).astype(dtype)
    for axis in range(x.ndim):
        rows = np.moveaxis(x, axis, 0)
        orders = [rng.permutation(n) for n in rows.shape[1:]]
        ends = [
            np.sort([rng.choice(n + 1, 2, replace=False) for _ in range(N_BOXES)])[:, ::-1] for n in rows.shape[1:]
        ]
        weight, size, group = rng.random(N_BOXES), rng.integers(1, 5, N_BOXES).astype(float), np.arange(N_BOXES) % 3
        counts = rng.integers(0, 3, (len(rows) if per_row else 1, 3)).astype(float)
        out = np.empty((len(rows), N_BOXES), dtype)
        strides = [stride // x.itemsize for stride in x.strides]
        others = [stride for i, stride in enumerate(strides) if i != axis]
        box_features(x.ravel(), (strides[axis], others), orders, ends, (weight, size, counts, group, -7.0), out)
        for i, row in enumerate(rows):
            for j in range(N_BOXES):
                entries = counts[i if per_row else 0, group[j]] * size[j]
                leaves = [order[each[j, 1] : each[j, 0]] for order, each in zip(orders, ends, strict=True)]
                total = row[np.ix_(*leaves)].sum(dtype=np.float64)
                expected = total * weight[j] / entries if entries else -7.0
                assert out[i, j] == pytest.approx(expected, rel=1e-5 if dtype == np.float32 else 1e-12, abs=1e-6)
