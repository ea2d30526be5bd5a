"""The GPU kernels: in Triton's interpreter everywhere, and on a GPU where there is one."""

import os
import subprocess
import sys

import numpy as np
import pytest
import torch

import headtree as ht
from headtree.geometry import slice_features

COMPARED = """
import sys, torch
from headtree.geometry import kernels_gpu
device, blocks = sys.argv[1], int(sys.argv[2])
kernels_gpu._FEATURES_AT_A_TIME = blocks
sizes = ((1, 3), (5, 20), (70, 19), (130, 9))
if device == "cuda":
    sizes = ((1, 3), (70, 4099), (130, 70000), (700, 3000))
for n, n_features in sizes:
    for dtype, rtol in ((torch.float32, 1e-5), (torch.float64, 1e-12)):
        x = torch.randn(n, n_features, dtype=dtype, device=device)
        theirs = torch.cdist(x.double(), x.double(), p=1)
        ours = kernels_gpu.pairwise_l1(x)
        torch.testing.assert_close(ours, theirs, rtol=rtol, atol=1e-6)
        assert not ours.diagonal().any() and torch.equal(ours, ours.T)
        if dtype == torch.float32:
            ready = kernels_gpu.features_side_by_side(n, n_features, dtype, x.device).copy_(x)
            some = kernels_gpu.pairwise_l1(ready, n_first=-(-n // 2))
            torch.testing.assert_close(some, ours[: -(-n // 2)], rtol=1e-12, atol=0)
            part = kernels_gpu.pairwise_l1(ready[:, 1:])
            torch.testing.assert_close(part, kernels_gpu.pairwise_l1(x[:, 1:]), rtol=1e-12, atol=0)
        x[1 % n :: 3] = x[0].clone()
        x[:, torch.rand(n_features, device=device) < 0.3] = torch.nan
        x[n // 2 :][torch.rand(x[n // 2 :].shape, device=device) < 0.3] = torch.nan
        theirs = torch.stack([(x - row).abs().double().nansum(1) for row in x])
        ours = kernels_gpu.pairwise_l1(x, has_gaps=True)
        torch.testing.assert_close(ours, theirs, rtol=rtol, atol=1e-6)
        assert not ours[theirs == 0].any()
    assert kernels_gpu.features_side_by_side(n, 7, x.dtype, x.device).stride(1) < n + 16
assert not kernels_gpu.pairwise_l1(torch.ones(3, 0, device=device)).any()
print("as cdist has it")
x = torch.randn(3, 5, 70, device=device)
for hidden in (None, torch.rand(1, 5, 70) < 0.4, torch.rand(3, 5, 1) < 0.4):
    hidden = hidden if hidden is None else hidden.to(device)
    kept = x.double() if hidden is None else x.double().masked_fill(hidden, 0)
    for axis, tile in ((1, "_ACROSS"), (2, "_ALONG")):
        setattr(kernels_gpu, tile, (16, 4))
        ours = kernels_gpu.prefix_sums(x, axis, hidden, 0.25)
        torch.testing.assert_close(ours, kept.cumsum(axis) / 4, rtol=1e-12, atol=1e-12)
print("as cumsum has it")
"""

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


@pytest.mark.parametrize(
    ("device", "blocks"),
    [("cpu", 8), pytest.param("cuda", 16, marks=needs_gpu), pytest.param("cuda", 1024, marks=needs_gpu)],
)
def test_kernels_in_the_interpreter_and_on_a_gpu(device, blocks):
    pytest.importorskip("triton")
    environment = {**os.environ, "TRITON_INTERPRET": "1" if device == "cpu" else "0"}
    command = [sys.executable, "-c", COMPARED, device, str(blocks)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert done.stdout.splitlines() == ["as cdist has it", "as cumsum has it"], done.stderr


@pytest.mark.parametrize("bytes_at_a_time", [1 << 30, 200, 8])
@pytest.mark.parametrize(
    ("shape", "axis"), [((3, 7), 0), ((3, 7), 1), *(((5, 4, 6), i) for i in range(3)), ((2, 3, 4, 5), 2)]
)
def test_sums_over_boxes_by_operations_of_torch(shape, axis, bytes_at_a_time, monkeypatch):
    """The function that runs on a GPU, here on the CPU, against sums of the boxes themselves."""
    monkeypatch.setattr(slice_features, "_BYTES_ON_GPU", bytes_at_a_time)
    monkeypatch.setattr(slice_features, "_SLICES_ON_GPU", 2)
    rng = np.random.default_rng(0)
    x = rng.normal(size=shape)
    others = [n for i, n in enumerate(shape) if i != axis]
    orders = [rng.permutation(n) for n in others]
    ends = [np.sort(rng.integers(0, n + 1, size=(20, 2)))[:, ::-1] for n in others]
    group, counts = (
        torch.from_numpy(rng.integers(0, 3, size=20)),
        torch.from_numpy(rng.normal(size=(shape[axis], 3)) ** 2),
    )
    weight, size = (torch.from_numpy(rng.normal(size=20) ** 2) for _ in range(2))
    scale = slice_features.TupleScale(weight, size, counts, group)
    ordered = np.moveaxis(x, axis, 0)[np.ix_(range(shape[axis]), *orders)]
    boxes = [tuple(slice(each[t, 1], each[t, 0]) for each in ends) for t in range(20)]
    expected = np.array([ordered[(slice(None), *box)].reshape(shape[axis], -1).sum(1) for box in boxes]).T
    values, found = torch.from_numpy(x.copy()), torch.empty(shape[axis], 20, dtype=torch.float64)
    slice_features._fill_on_gpu(values, axis, orders, ends, scale, found)
    np.testing.assert_allclose(
        found.numpy(), expected * (weight / (counts[:, group] * size)).numpy(), rtol=1e-9, atol=1e-11
    )
    np.testing.assert_array_equal(values.numpy(), x)


@needs_gpu
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("samples", [None, 16])
@pytest.mark.parametrize("landmarks", [None, 16])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_organizing_on_a_gpu_gives_the_trees_of_the_cpu(masked, samples, landmarks, dtype):
    rng = np.random.default_rng(0)
    x = (rng.normal(size=(12, 40, 40)) + rng.normal(size=(1, 40, 40))).astype(dtype)
    mask = np.triu(np.ones((40, 40), bool), 1) if masked else None
    settings = ht.Questionnaire(samples=samples, landmarks=landmarks)
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
