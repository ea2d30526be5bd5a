"""Argument checks shared by the public functions, and the conversion of any array to a tensor."""

from __future__ import annotations

import math
import operator
from dataclasses import dataclass
from typing import Any, get_args

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from headtree.errors import InvalidTypeError, InvalidValueError, first_line

#: Numbers of things and of repetitions fit into 32 bits.
_LARGEST_COUNT = 2**31 - 1


@dataclass(frozen=True)
class ScaledArray:
    """A checked array, divided by the power of two that puts its largest absolute value between 1/2 and 1."""

    values: Any  #: a tensor of float32 or float64, zero where missing; or `ScaledBlocks`, which are not in memory
    missing: Bool[Tensor, "..."] | None  #: on the CPU, broadcast to the shape of `values`; None: none is
    exponent: int  #: the original array is ``values * 2**exponent``

    def in_units(self, distances: Float[Tensor, "slice slice"]) -> Float[np.ndarray, "slice slice"]:
        """Convert distances between slices of `values` to the array's units; inf beyond the range of float64."""
        return in_units(distances, self.exponent)


def in_units(distances: Float[Tensor, "slice slice"], exponent: int) -> Float[np.ndarray, "slice slice"]:
    """Distances times ``2**exponent``, on the CPU; inf beyond the range of float64."""
    if distances.is_cuda and abs(exponent) < 1000:  # a power of two that float64 has
        return np.asarray((distances * 2.0**exponent).cpu().numpy())
    with np.errstate(over="ignore", under="ignore"):
        return np.asarray(np.ldexp(distances.cpu().numpy(), exponent))


def real_tensor(x: Any, name: str) -> Float[Tensor, "..."]:
    """Return `x` as a CPU tensor of float32 or float64. Copies only if it must; does not check the values."""
    return real_tensor_on_device(x, name).cpu()


def real_tensor_on_device(x: Any, name: str) -> Float[Tensor, " ..."]:
    """Do the same as `real_tensor`, but leave `x` on its device."""
    tensor = x.detach() if isinstance(x, Tensor) else _from_numpy(x, name)
    if tensor.is_meta:
        raise InvalidTypeError(
            f"{name} must hold numbers, got a tensor on the meta device; load or compute it first"
        )
    if tensor.is_complex() or tensor.is_quantized or tensor.layout != torch.strided:
        raise InvalidTypeError(
            f"{name} must be a dense real array, got {tensor.dtype} with layout {tensor.layout}; "
            "take its real part or absolute value, or make it dense"
        )
    if tensor.dtype in (torch.float16, torch.bfloat16):
        tensor = tensor.float()  # on purpose: half precision is too coarse for sums over folders
    elif tensor.dtype not in (torch.float32, torch.float64):
        tensor = tensor.double()
    return tensor


def full_tensor(x: Any, name: str) -> Float[Tensor, " ..."]:
    """`real_tensor_on_device` of an array that must not be empty, have masked entries, or have non-finite ones."""
    if isinstance(x, np.ma.MaskedArray) and np.ma.getmaskarray(x).any():
        raise InvalidValueError(
            f"{name} must have no missing entries, got a masked array with "
            f"{int(np.ma.getmaskarray(x).sum())} of them; fill them first, for example with "
            f"{name}.filled({name}.mean())"
        )
    tensor = real_tensor_on_device(x, name)
    if 0 in tensor.shape:
        raise InvalidValueError(f"{name} must not be empty, got shape {tuple(tensor.shape)}")
    low, high = (float(value) for value in torch.aminmax(tensor))
    if not (math.isfinite(low) and math.isfinite(high)):
        raise InvalidValueError(_non_finite(tensor, name, "remove them"))
    return tensor


def in_range(result: Float[Tensor, " ..."], x: Float[Tensor, " ..."], name: str) -> Float[Tensor, " ..."]:
    """Return `result`, sums of entries of the finite array `x`, or raise if one of them has overflowed."""
    low, high = (float(value) for value in torch.aminmax(result))
    if not (math.isfinite(low) and math.isfinite(high)):
        raise InvalidValueError(
            f"{name} must be small enough for sums of its entries to stay within the range of {x.dtype}, got "
            f"absolute values up to {float(x.abs().max()):.3g}; scale it down, or mask entries that represent "
            "minus infinity"
        )
    return result


def _from_numpy(x: Any, name: str) -> Tensor:
    try:
        array = np.asarray(x)
    except (RuntimeError, TypeError) as error:  # a list of tensors that need gradients or are on another device
        raise InvalidTypeError(
            f"{name} must be one array or tensor, got {type(x).__name__}: {error}; join tensors with torch.stack"
        ) from error
    except ValueError as error:
        raise InvalidValueError(f"{name} must be a rectangular array, got ragged nested lists: {error}") from error
    if array.dtype.kind not in "fiub":
        raise InvalidTypeError(
            f"{name} must be an array of real numbers, got dtype {array.dtype}; convert it to floats first"
        )
    is_short = array.dtype.kind == "f" and array.dtype.itemsize <= 4
    array = array.astype(np.float32 if is_short else np.float64, copy=False)
    if not array.flags.writeable or any(stride < 0 for stride in array.strides):
        array = array.copy()  # torch accepts neither read-only arrays nor negative strides
    return torch.from_numpy(array)


def scaled_array(
    x: Any, name: str, mask: Any = None, min_axes: int = 1, device: torch.device | str = "cpu"
) -> ScaledArray:
    """Check that every entry of `x` that is not missing is finite, and return a scaled copy on a device.

    The factor is a power of two. Scaling is therefore exact, and the squares of 1e30 and 1e-30 stay in range.
    """
    own_mask = None
    if isinstance(x, np.ma.MaskedArray):
        own_mask, x = np.ma.getmaskarray(x), x.data
    tensor = real_tensor_on_device(x, name).to(device)
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
        tensor = tensor.masked_fill(unshared(missing).to(device), 0)
    low, high = (float(value) for value in torch.aminmax(tensor))
    if not (math.isfinite(low) and math.isfinite(high)):
        advice = (
            "remove them, or pass a mask that is True for missing entries"
            if missing is None
            else "mask them as well"
        )
        raise InvalidValueError(_non_finite(tensor, name, advice))
    exponent = math.frexp(max(-low, high))[1]
    values = times_power_of_two(tensor, -exponent, in_place=missing is not None)  # what was filled in is a copy
    return ScaledArray(values.contiguous(), missing, exponent)


def times_power_of_two(x: Float[Tensor, "..."], exponent: int, in_place: bool = False) -> Float[Tensor, "..."]:
    """``x * 2**exponent`` as a new tensor or in place, also where that power itself is out of range."""
    factor = 2.0 ** max(-100, min(exponent, 100))
    result = x.mul_(factor) if in_place else x * factor
    if abs(exponent) > 100:
        result *= 2.0 ** (exponent - math.copysign(100, exponent))
    return result


def checked_device(device: Any) -> torch.device | None:
    """The device as torch knows it, once something was placed on it; None stays None."""
    if device is None:
        return None
    try:
        found = torch.device(device)
    except (RuntimeError, TypeError, ValueError) as error:
        raise InvalidValueError(
            f"device must be a device of torch such as 'cpu', 'cuda' or 'cuda:1', got {device!r}"
        ) from error
    if found.type == "meta":
        raise InvalidValueError("device must hold numbers, got 'meta', which has only shapes; use 'cpu' or 'cuda'")
    try:
        torch.empty(1, device=found)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = first_line(error).split(". ")[0]  # torch goes on with advice to its own developers
        raise InvalidValueError(
            f"device {str(found)!r} is not available here: {reason}; use 'cpu', or check the driver and that torch "
            "is built for this device"
        ) from error
    return found


def missing_entries(mask: Any, name: str, shape: tuple[int, ...]) -> Bool[Tensor, "..."] | None:
    """Return `mask` as a tensor broadcast to `shape`, or None if no entry is masked.

    The result has stride 0 along every axis whose slices all have the same mask: see `is_shared`.
    """
    if mask is None:
        return None
    if isinstance(mask, Tensor) and mask.is_meta:
        tensor = torch.empty(0)
    elif isinstance(mask, Tensor):
        tensor = mask.detach().cpu()
    else:
        try:
            array = np.array(mask, order="C")
        except ValueError as error:
            raise InvalidValueError(
                f"mask must be a rectangular array, got ragged nested lists: {error}"
            ) from error
        tensor = torch.from_numpy(array) if array.dtype == np.bool_ else torch.empty(0)
    if tensor.dtype != torch.bool:
        raise InvalidTypeError(
            f"mask must be boolean, True for missing entries, got {getattr(mask, 'dtype', type(mask).__name__)}"
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
            f"mask hides every entry of {name}; True means missing: if yours is True for entries to use, pass ~mask"
        )
    return tensor.expand(shape)


def is_shared(mask: Bool[Tensor, "..."], axis: int) -> bool:
    """Whether all slices along `axis` have the same mask; `mask` comes from `missing_entries`."""
    return mask.stride(axis) == 0


def unshared(mask: Bool[Tensor, "..."]) -> Bool[Tensor, "..."]:
    """Reduce `mask` to one index along every axis whose slices all have the same mask."""
    return mask[tuple(slice(0, 1) if is_shared(mask, axis) else slice(None) for axis in range(mask.ndim))]


def _non_finite(tensor: Tensor, name: str, advice: str) -> str:
    bad = ~torch.isfinite(tensor)
    first = tuple(int(i) for i in bad.nonzero()[0])
    return (
        f"{name} must be finite, got {int(bad.sum())} NaN or infinite entries, the first "
        f"({float(tensor[first])}) at index {first}; {advice}"
    )


def axis_index(axis: int, n_axes: int) -> int:
    """Return `axis` as an index from the front."""
    return checked_index(axis, n_axes, "axis", "axes")


def checked_index(number: int, n: int, name: str, what: str) -> int:
    """Return `number`, which may be negative, as an index from the front into a sequence of length `n`."""
    try:
        index = operator.index(number)
    except (TypeError, RuntimeError):
        raise InvalidTypeError(f"{name} must be an integer, got {number!r}") from None
    if not -n <= index < n:
        raise InvalidValueError(f"{name} must be between {-n} and {n - 1} for {n} {what}, got {index}")
    return index % n


def affinity_matrix(affinity: Any) -> Float[Tensor, "leaf leaf"]:
    """Return `affinity` as a float64 tensor after checking that it is square, finite, nonnegative, symmetric."""
    matrix = real_tensor(affinity, "affinity").double()
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1] or 0 in matrix.shape:
        raise InvalidValueError(f"affinity must be a square matrix, got shape {tuple(matrix.shape)}")
    if not torch.isfinite(matrix).all():
        raise InvalidValueError(_non_finite(matrix, "affinity", "use 0 for points with nothing in common"))
    if (matrix < 0).any():
        raise InvalidValueError(
            f"affinity must not have negative entries, the smallest is {float(matrix.min()):.3g}; "
            "clip it at 0, or turn distances into affinities with exp(-distance / median)"
        )
    # symmetric up to the rounding of float32 products
    if (matrix - matrix.T).abs().max() > 1e-6 * matrix.max():
        raise InvalidValueError(
            f"affinity must be symmetric, but it differs from its transpose by up to "
            f"{float((matrix - matrix.T).abs().max()):.3g}; if that is acceptable, pass (affinity + affinity.T) / 2"
        )
    return (matrix + matrix.T) / 2


def positive(value: float, name: str) -> float:
    """Return `value` as a finite float greater than zero."""
    if finite_number(value, name) <= 0:
        raise InvalidValueError(f"{name} must be greater than 0, got {value}")
    return float(value)


def finite_number(value: float, name: str) -> float:
    """Return `value` as a finite float."""
    if not isinstance(value, int | float | np.floating | np.integer) or isinstance(value, bool):
        raise InvalidTypeError(f"{name} must be a number, got {value!r}")
    try:
        number = float(value)
    except OverflowError:  # an integer too large for a float
        number = math.inf
    if not math.isfinite(number):
        raise InvalidValueError(f"{name} must be finite, got {number}")
    return number


def generator(rng: Any) -> np.random.Generator:
    """Return a numpy generator made from a seed, or the given generator itself."""
    try:
        return np.random.default_rng(rng)
    except (TypeError, ValueError) as error:
        raise InvalidValueError(f"rng must be a seed >= 0 or a numpy Generator, got {rng!r}: {error}") from error


def seed(rng: Any) -> int:
    """Return `rng` as an integer seed, from which several generators can be made."""
    if isinstance(rng, bool) or not isinstance(rng, int | np.integer) or rng < 0:
        raise InvalidTypeError(f"rng must be an integer seed >= 0, got {rng!r}")
    return int(rng)


def flag(value: Any, name: str) -> bool:
    """Return `value`, which must be True or False."""
    if not isinstance(value, bool | np.bool_):
        raise InvalidTypeError(f"{name} must be True or False, got {value!r}")
    return bool(value)


def as_list(values: Any, name: str, what: str) -> list[Any]:
    """Return `values`, any iterable, as a list."""
    try:
        return list(values)
    except TypeError:
        raise InvalidTypeError(f"{name} must be a sequence of {what}, got {type(values).__name__}") from None


def frobenius_norm(x: Tensor, dims: tuple[int, ...] | None = None) -> Float[Tensor, "..."]:
    """Square root of the sum of squares in float64, even where the squares themselves would overflow."""
    low, high = (float(value) for value in torch.aminmax(x))
    exponent = math.frexp(max(-low, high))[1]
    if abs(exponent) <= 400:
        return torch.as_tensor(torch.linalg.vector_norm(x, dim=dims, dtype=torch.float64))
    half = exponent // 2  # in two steps: the full power of two may be out of range even for float64
    units = x * 2.0**-half * 2.0 ** (half - exponent)
    return torch.as_tensor(torch.linalg.vector_norm(units, dim=dims) * 2.0**half * 2.0 ** (exponent - half))


def at_least_one(value: int, name: str) -> int:
    """Return `value` as an integer that is at least 1."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        raise InvalidTypeError(f"{name} must be an integer, got {value!r}")
    if not 1 <= value <= _LARGEST_COUNT:
        rule = "at least 1" if value < 1 else f"at most {_LARGEST_COUNT}"
        raise InvalidValueError(f"{name} must be {rule}, got {value}")
    return int(value)


def one_of(value: Any, name: str, choices: Any, alternative: str = "") -> Any:
    """Return `value`, which must be one of the strings that a Literal allows."""
    if not isinstance(value, str) or value not in get_args(choices):
        raise InvalidValueError(f"{name} must be one of {get_args(choices)}{alternative}, got {value!r}")
    return value


def as_input_type(result: Tensor, x: Any) -> Any:
    """Return `result` as a tensor on the device of `x` if `x` is a tensor, otherwise as a numpy array."""
    return result.to(x.device) if isinstance(x, Tensor) else result.numpy()
