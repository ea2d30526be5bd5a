"""The checks that public functions share, and the one place where arrays of all kinds become tensors."""

from __future__ import annotations

import math
import operator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from headtree.errors import InvalidTypeError, InvalidValueError


@dataclass(frozen=True)
class ScaledArray:
    """A checked array, divided by the power of two that brings its largest entry between 1/2 and 1."""

    values: Float[Tensor, "..."]  #: float32 or float64 on the CPU; zero where missing
    missing: Bool[Tensor, "..."] | None  #: broadcast to the shape of `values`; None if nothing is missing
    exponent: int  #: the array is ``values * 2**exponent``

    def in_units(self, distances: Float[Tensor, "slice slice"]) -> Float[np.ndarray, "slice slice"]:
        """Distances between slices of `values` in the array's own units; inf beyond the range of float64."""
        with np.errstate(over="ignore", under="ignore"):
            return np.asarray(np.ldexp(distances.numpy(), self.exponent))


def real_tensor(x: Any, name: str) -> Float[Tensor, "..."]:
    """`x` as a CPU tensor of float32 or float64; no copy where none is needed, no check of its values."""
    return real_tensor_on_device(x, name).cpu()


def real_tensor_on_device(x: Any, name: str) -> Float[Tensor, " ..."]:
    """`real_tensor` that leaves `x` on the device where it is."""
    tensor = x.detach() if isinstance(x, Tensor) else _from_numpy(x, name)
    if tensor.is_meta:
        raise InvalidTypeError(
            f"{name} must hold numbers, got a tensor on the meta device; load or compute it first"
        )
    if tensor.is_complex() or tensor.is_quantized or tensor.layout != torch.strided:
        raise InvalidTypeError(
            f"{name} must be a dense real array, got {tensor.dtype} with layout {tensor.layout}; "
            "take its real part or modulus, or make it dense"
        )
    if tensor.dtype in (torch.float16, torch.bfloat16):
        tensor = tensor.float()  # raised on purpose: sums over folders need the digits
    elif tensor.dtype not in (torch.float32, torch.float64):
        tensor = tensor.double()
    return tensor


def full_tensor(x: Any, name: str) -> Float[Tensor, " ..."]:
    """`real_tensor_on_device` of an array without gaps: not empty, nothing masked, every entry finite."""
    if isinstance(x, np.ma.MaskedArray) and np.ma.getmaskarray(x).any():
        raise InvalidValueError(
            f"{name} must be full, got a masked array with {int(np.ma.getmaskarray(x).sum())} missing "
            f"entries; fill them first, for instance with {name}.filled({name}.mean())"
        )
    tensor = real_tensor_on_device(x, name)
    if 0 in tensor.shape:
        raise InvalidValueError(f"{name} must not be empty, got shape {tuple(tensor.shape)}")
    low, high = (float(value) for value in torch.aminmax(tensor))
    if not (math.isfinite(low) and math.isfinite(high)):
        raise InvalidValueError(_non_finite(tensor, name, "remove them"))
    return tensor


def in_range(result: Float[Tensor, " ..."], x: Float[Tensor, " ..."], name: str) -> Float[Tensor, " ..."]:
    """`result`, made of sums of entries of the finite `x`, unless a sum is out of the range of its dtype."""
    low, high = (float(value) for value in torch.aminmax(result))
    if not (math.isfinite(low) and math.isfinite(high)):
        raise InvalidValueError(
            f"{name} must be such that sums of its entries are in the range of {x.dtype}, got entries up to "
            f"{float(x.abs().max()):.3g} in modulus; scale it down, or mask entries that stand for minus infinity"
        )
    return result


def _from_numpy(x: Any, name: str) -> Tensor:
    try:
        array = np.asarray(x)
    except (RuntimeError, TypeError) as error:  # of tensors in a list, with gradients or on another device
        raise InvalidTypeError(
            f"{name} must be one array or tensor, got {type(x).__name__}: {error}; join tensors with torch.stack"
        ) from error
    except ValueError as error:
        raise InvalidValueError(f"{name} must be a full rectangular array, got nested lists: {error}") from error
    if array.dtype.kind not in "fiub":
        raise InvalidTypeError(
            f"{name} must be an array of real numbers, got dtype {array.dtype}; convert it to floats first"
        )
    is_short = array.dtype.kind == "f" and array.dtype.itemsize <= 4
    array = array.astype(np.float32 if is_short else np.float64, copy=False)
    if not array.flags.writeable or any(stride < 0 for stride in array.strides):
        array = array.copy()  # torch wants neither
    return torch.from_numpy(array)


def scaled_array(x: Any, name: str, mask: Any = None, min_axes: int = 1) -> ScaledArray:
    """Check that every present entry of `x` is finite and return a scaled copy.

    The factor is a power of two, so that scaling is exact and the squares of 1e30 and 1e-30 stay in range.
    """
    own_mask = None
    if isinstance(x, np.ma.MaskedArray):
        own_mask, x = np.ma.getmaskarray(x), x.data
    tensor = real_tensor(x, name)
    if tensor.ndim < min_axes:
        raise InvalidValueError(f"{name} must have at least {min_axes} axes, got shape {tuple(tensor.shape)}")
    if 0 in tensor.shape:
        raise InvalidValueError(
            f"{name} must not be empty, got shape {tuple(tensor.shape)}; every axis needs at least one slice"
        )
    missing = missing_entries(mask, name, tuple(tensor.shape))
    if own_mask is not None:
        missing = missing_entries(
            own_mask if missing is None else torch.from_numpy(own_mask) | missing, name, tuple(tensor.shape)
        )
    if missing is not None:
        tensor = tensor.masked_fill(missing, 0)
    low, high = (float(value) for value in torch.aminmax(tensor))
    if not (math.isfinite(low) and math.isfinite(high)):
        advice = (
            "remove them, or pass a mask that is True where an entry is missing"
            if missing is None
            else "mask them as well"
        )
        raise InvalidValueError(_non_finite(tensor, name, advice))
    exponent = math.frexp(max(-low, high))[1]
    values = tensor * 2.0 ** max(-100, min(-exponent, 100))
    if abs(exponent) > 100:  # 2**-exponent itself may be out of range
        values *= 2.0 ** (-exponent - math.copysign(100, -exponent))
    return ScaledArray(values.contiguous(), missing, exponent)


def missing_entries(mask: Any, name: str, shape: tuple[int, ...]) -> Bool[Tensor, "..."] | None:
    """`mask` as a tensor broadcast to `shape`, or None if it hides nothing.

    Along axes whose slices have equal masks it has stride 0: see `is_shared`.
    """
    if mask is None:
        return None
    if isinstance(mask, Tensor):
        tensor = mask.detach().cpu()
    else:
        try:
            array = np.array(mask, order="C")
        except ValueError as error:
            raise InvalidValueError(f"mask must be a full rectangular array, got nested lists: {error}") from error
        tensor = torch.from_numpy(array) if array.dtype == np.bool_ else torch.empty(0)
    if tensor.dtype != torch.bool:
        raise InvalidTypeError(
            "mask must be boolean, True where an entry is missing, got "
            f"{getattr(mask, 'dtype', type(mask).__name__)}"
        )
    try:
        tensor = tensor.expand(shape)
    except RuntimeError:
        raise InvalidValueError(
            f"mask must broadcast to the shape of {name}, {shape}, got {tuple(tensor.shape)}"
        ) from None
    for axis in range(tensor.ndim):
        first = tensor.narrow(axis, 0, 1)
        if is_shared(tensor, axis) or bool((tensor == first).all()):
            tensor = first
    if not tensor.any():
        return None
    if tensor.all():
        raise InvalidValueError(
            f"mask hides every entry of {name}; True means missing: if it marks the entries to keep, pass ~mask"
        )
    return tensor.expand(shape)


def is_shared(mask: Bool[Tensor, "..."], axis: int) -> bool:
    """Whether all slices along `axis` have the same mask, of those that `missing_entries` returns."""
    return mask.stride(axis) == 0


def unshared(mask: Bool[Tensor, "..."]) -> Bool[Tensor, "..."]:
    """`mask` with one index along every axis whose slices share it."""
    return mask[tuple(slice(0, 1) if is_shared(mask, axis) else slice(None) for axis in range(mask.ndim))]


def _non_finite(tensor: Tensor, name: str, advice: str) -> str:
    bad = ~torch.isfinite(tensor)
    first = tuple(int(i) for i in bad.nonzero()[0])
    return (
        f"{name} must be finite, got {int(bad.sum())} entries that are NaN or infinite, the first "
        f"({float(tensor[first])}) at index {first}; {advice}"
    )


def axis_index(axis: int, n_axes: int) -> int:
    """`axis` counted from the front."""
    return place(axis, n_axes, "axis", "axes")


def place(number: int, n: int, name: str, what: str) -> int:
    """`number` of one of `n` things, counted from the front."""
    try:
        index = operator.index(number)
    except TypeError:
        raise InvalidTypeError(f"{name} must be an integer, got {number!r}") from None
    if not -n <= index < n:
        raise InvalidValueError(f"{name} must be between {-n} and {n - 1} for {n} {what}, got {index}")
    return index % n


def affinity_matrix(affinity: Any) -> Float[Tensor, "leaf leaf"]:
    """`affinity` as a checked float64 tensor: square, finite, not negative, symmetric."""
    matrix = real_tensor(affinity, "affinity").double()
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1] or 0 in matrix.shape:
        raise InvalidValueError(f"affinity must be a square matrix, got shape {tuple(matrix.shape)}")
    if not torch.isfinite(matrix).all():
        raise InvalidValueError(_non_finite(matrix, "affinity", "use 0 for points that have nothing in common"))
    if (matrix < 0).any():
        raise InvalidValueError(
            f"affinity must not be negative, got a smallest entry of {float(matrix.min()):.3g}; "
            "clip it at 0, or turn distances into affinities with exp(-distance / median)"
        )
    # symmetric up to the rounding of float32 products
    if (matrix - matrix.T).abs().max() > 1e-6 * matrix.max():
        raise InvalidValueError(
            f"affinity must be symmetric, but entries differ from their mirror images by up to "
            f"{float((matrix - matrix.T).abs().max()):.3g}; pass (affinity + affinity.T) / 2 if that is meant"
        )
    return (matrix + matrix.T) / 2


def positive(value: float, name: str) -> float:
    """`value` as a finite float greater than zero."""
    if finite_number(value, name) <= 0:
        raise InvalidValueError(f"{name} must be greater than 0, got {value}")
    return float(value)


def finite_number(value: float, name: str) -> float:
    """`value` as a finite float."""
    if not isinstance(value, int | float | np.floating | np.integer) or isinstance(value, bool):
        raise InvalidTypeError(f"{name} must be a number, got {value!r}")
    try:
        number = float(value)
    except OverflowError:  # of an integer
        number = math.inf
    if not math.isfinite(number):
        raise InvalidValueError(f"{name} must be finite, got {number}")
    return number


def generator(rng: Any) -> np.random.Generator:
    """A numpy generator from a seed, or the generator itself."""
    try:
        return np.random.default_rng(rng)
    except (TypeError, ValueError) as error:
        raise InvalidValueError(f"rng must be a seed >= 0 or a numpy Generator, got {rng!r}: {error}") from error


def items(values: Any, name: str, what: str) -> list[Any]:
    """`values` as a list."""
    try:
        return list(values)
    except TypeError:
        raise InvalidTypeError(f"{name} must be a sequence of {what}, got {type(values).__name__}") from None


def frobenius_norm(x: Tensor, dims: tuple[int, ...] | None = None) -> Float[Tensor, "..."]:
    """Root of the sum of squares in float64, also where the squares themselves are out of its range."""
    low, high = (float(value) for value in torch.aminmax(x))
    exponent = math.frexp(max(-low, high))[1]
    if abs(exponent) <= 400:
        return torch.as_tensor(torch.linalg.vector_norm(x, dim=dims, dtype=torch.float64))
    half = exponent // 2  # only float64 goes so far, and the whole power may be out of its range
    units = x * 2.0**-half * 2.0 ** (half - exponent)
    return torch.as_tensor(torch.linalg.vector_norm(units, dim=dims) * 2.0**half * 2.0 ** (exponent - half))


def at_least_one(value: int, name: str) -> int:
    """`value` as an integer of 1 or more."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        raise InvalidTypeError(f"{name} must be an integer, got {value!r}")
    if value < 1:
        raise InvalidValueError(f"{name} must be at least 1, got {value}")
    return int(value)


def like(result: Tensor, x: Any) -> Any:
    """`result` as `x` is: a tensor on its device for tensors, a numpy array for everything else."""
    return result.to(x.device) if isinstance(x, Tensor) else result.numpy()
