"""Weights of quantized models: the plain tensors they are stored in, and the numbers they stand for."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor, nn
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from headtree.models.module_stack import tensors_of


def dequantized(weight: Tensor) -> Tensor:
    """The real numbers that the quantized weight of a library stands for; a plain tensor is returned unchanged."""
    return weight.dequantize() if is_traceable_wrapper_subclass(weight) else weight


def packed_weights(model: nn.Module) -> dict[str, Tensor]:
    """Weights that are neither parameters nor buffers, as in the quantized layers of torch, as real numbers."""
    return {
        f"{name}.{i}": tensor.dequantize() if tensor.is_quantized else tensor
        for name, value in model.state_dict().items()
        if not isinstance(value, Tensor)
        for i, tensor in enumerate(tensors_of(value))
    }


def plain_tensors(name: str, tensor: Tensor) -> Iterator[tuple[str, Tensor]]:
    """The tensor itself with its name, or those that the quantized tensor of a library consists of."""
    if not is_traceable_wrapper_subclass(tensor):
        yield name, tensor
        return
    for part in tensor.__tensor_flatten__()[0]:
        yield from plain_tensors(f"{name}.{part}", getattr(tensor, part))
