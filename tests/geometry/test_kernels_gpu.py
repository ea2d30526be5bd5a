"""The GPU kernels: in Triton's interpreter everywhere, and on a GPU where there is one."""

import os
import subprocess
import sys

import numpy as np
import pytest
import torch

import headtree as ht
from headtree.geometry.slice_features import _box_sums, _in_orders

IN_INTERPRETER = """
import torch
from headtree.geometry import kernels_gpu
kernels_gpu._FEATURES_AT_A_TIME = 16
for n, n_features in ((1, 3), (5, 40), (70, 33), (130, 17)):
    for dtype, rtol in ((torch.float32, 1e-5), (torch.float64, 1e-12)):
        x = torch.randn(n, n_features, dtype=dtype)
        theirs = torch.cdist(x.double(), x.double(), p=1)
        ours = kernels_gpu.pairwise_l1(x)
        torch.testing.assert_close(ours, theirs, rtol=rtol, atol=1e-6)
        assert not ours.diagonal().any() and torch.equal(ours, ours.T)
        x[torch.rand(x.shape) < 0.3] = torch.nan
        theirs = (x[:, None] - x[None]).abs().double().nansum(2)
        torch.testing.assert_close(kernels_gpu.pairwise_l1(x, has_gaps=True), theirs, rtol=rtol, atol=1e-6)
print("as cdist has it")
"""


def test_pairwise_l1_in_the_interpreter():
    pytest.importorskip("triton")
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    done = subprocess.run(
        [sys.executable, "-c", IN_INTERPRETER], env=environment, capture_output=True, text=True, timeout=300
    )
    assert done.stdout.strip() == "as cdist has it", done.stderr


@pytest.mark.parametrize("shape", [(3, 7), (3, 5, 6), (2, 3, 4, 5)])
def test_sums_over_boxes_by_operations_of_torch(shape):
    """The function that runs on a GPU, here on the CPU, against sums of the boxes themselves."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=shape)
    orders = [rng.permutation(n) for n in shape[1:]]
    boxes = [[sorted(rng.integers(0, n + 1, size=2)) for n in shape[1:]] for _ in range(20)]
    ordered = x[np.ix_(range(shape[0]), *orders)]
    expected = [
        ordered[(slice(None), *(slice(a, b) for a, b in box))].reshape(shape[0], -1).sum(1) for box in boxes
    ]
    corners, signs = np.zeros((20, 1), dtype=np.int64), np.ones(1)
    for j in range(len(shape) - 1):
        stride = int(np.prod([m + 1 for m in shape[2 + j :]]))
        ends = np.array([[box[j][1], box[j][0]] for box in boxes])
        corners = (corners[:, :, None] + ends[:, None, :] * stride).reshape(20, -1)
        signs = np.outer(signs, [1, -1]).ravel()
    found = _box_sums(_in_orders(torch.from_numpy(x), orders), torch.from_numpy(corners), signs)
    np.testing.assert_allclose(found.numpy(), np.array(expected).T, atol=1e-12)


needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


@needs_gpu
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("samples", [None, 16])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_organizing_on_a_gpu_gives_the_trees_of_the_cpu(masked, samples, dtype):
    rng = np.random.default_rng(0)
    x = (rng.normal(size=(12, 40, 40)) + rng.normal(size=(1, 40, 40))).astype(dtype)
    mask = np.triu(np.ones((40, 40), bool), 1) if masked else None
    settings = ht.Questionnaire(samples=samples)
    ours = ht.organize_array(x, settings, mask=mask, device="cuda")
    theirs = ht.organize_array(x, settings, mask=mask)
    assert list(ours.trees) == list(theirs.trees)
    for a, b in zip(ours.distances, theirs.distances, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)


def test_a_device_that_is_not_there():
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    with pytest.raises(ht.HeadtreeError, match="not available here"):
        ht.organize_array(np.ones((3, 4)), device="cuda")
    with pytest.raises(ht.HeadtreeError, match="device must be"):
        ht.organize_array(np.ones((3, 4)), device="gpu")
