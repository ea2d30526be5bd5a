"""Cuts: what is taken out of a model's weights to remove heads, as data that can be stored and applied again."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from headtree.errors import InvalidValueError

#: The attribute in which a model remembers its cuts.
_APPLIED = "headtree_cuts"


@dataclass(frozen=True)
class Slice:
    """The entries of a parameter or buffer that stay, along one axis."""

    tensor: str  #: path
    axis: int
    remaining: tuple[int, ...]


@dataclass(frozen=True)
class Repeat:
    """A linear layer some of whose results are used several times: keys and values shared by unequal groups."""

    module: str  #: path
    features: tuple[int, ...]  #: for each feature after the layer, which of its results it is


@dataclass(frozen=True)
class Number:
    """A number that a module knows about its heads, such as how many there are."""

    module: str  #: path
    name: str  #: of the attribute; "config.…": of the module's configuration, of which it gets its own copy
    value: int


@dataclass(frozen=True)
class Cuts:
    """Everything that changes in a model when heads are removed; apply it with `apply_cuts`."""

    heads: tuple[tuple[int, int], ...]  #: the heads that are removed, (layer, head)
    slices: tuple[Slice, ...] = ()
    repeats: tuple[Repeat, ...] = ()
    emptied: tuple[str, ...] = ()  #: paths of linear layers that lose their matrix, in attention without heads
    biased: tuple[str, ...] = ()  #: paths of linear layers that get a bias
    numbers: tuple[Number, ...] = ()


class RepeatedLinear(nn.Module):
    """A linear layer some of whose results are used several times."""

    features: Tensor

    def __init__(self, linear: nn.Module, features: Sequence[int]) -> None:
        super().__init__()
        self.linear = linear
        self.register_buffer("features", torch.tensor(features), persistent=False)

    def forward(self, x: Float[Tensor, "... width"]) -> Float[Tensor, "... feature"]:
        """The results of the layer, in the order of the features that use them."""
        result: Tensor = self.linear(x)
        return result[..., self.features]


class WithoutMatrix(nn.Module):
    """What remains of a linear layer in attention without heads: zeros, or its bias."""

    bias: nn.Parameter | None

    def __init__(self, n_features: int, bias: nn.Parameter | None) -> None:
        super().__init__()
        self.n_features = n_features
        self.register_parameter("bias", bias)

    def forward(self, x: Float[Tensor, "... width"]) -> Float[Tensor, "... feature"]:
        """The bias, or zeros, for every token."""
        zeros = x.new_zeros(*x.shape[:-1], self.n_features)
        return zeros if self.bias is None else zeros + self.bias


def is_linear(module: nn.Module) -> bool:
    """Whether a module multiplies by one matrix: `torch.nn.Linear`, or the Conv1D of GPT-2."""
    return isinstance(module, nn.Linear) or type(module).__name__ == "Conv1D"


def output_axis(module: nn.Module) -> int:
    """The axis of a linear layer's weight that numbers its results."""
    return 0 if isinstance(module, nn.Linear) else 1


def apply_cuts(model: nn.Module, cuts: Cuts) -> None:
    """Change a model in place; it remembers its cuts, see `cuts_of`."""
    touched = {}
    for each in cuts.slices:
        touched[each.tensor.rpartition(".")[0]] = _slice(model, each)
    for module in touched.values():
        _note_sizes(module)
    for path in cuts.biased:
        _add_bias(model.get_submodule(path))
    for path in cuts.emptied:
        linear: Any = model.get_submodule(path)
        n_features = linear.weight.shape[output_axis(linear)]
        # the bias of queries, keys and values has nothing to act on any more
        is_output = any(
            each.tensor == f"{path}.weight" and each.axis != output_axis(linear) for each in cuts.slices
        )
        _replace(model, path, WithoutMatrix(n_features, linear.bias if is_output else None))
    for repeat in cuts.repeats:
        _replace(model, repeat.module, RepeatedLinear(model.get_submodule(repeat.module), repeat.features))
    _set_numbers(model, cuts.numbers)
    model.__dict__[_APPLIED] = (*cuts_of(model), cuts)


def cuts_of(model: nn.Module) -> tuple[Cuts, ...]:
    """The cuts that were applied to a model, the first one first."""
    found: tuple[Cuts, ...] = vars(model).get(_APPLIED, ())
    return found


def _set_numbers(model: nn.Module, numbers: Sequence[Number]) -> None:
    """Change what modules know about their heads."""
    with_own_config: set[str] = set()
    for number in numbers:
        owner: Any = model.get_submodule(number.module)
        name = number.name
        if name.startswith("config."):
            if number.module not in with_own_config:
                owner.config = copy.copy(owner.config)
                with_own_config.add(number.module)
            owner, name = owner.config, name.removeprefix("config.")
        if isinstance(getattr(owner, name, None), bool) or not isinstance(getattr(owner, name, None), int):
            raise InvalidValueError(f"cuts must change numbers that {number.module} has, got {number.name!r}")
        setattr(owner, name, number.value)


def _slice(model: nn.Module, cut: Slice) -> nn.Module:
    path, _, name = cut.tensor.rpartition(".")
    module = model.get_submodule(path)
    before: Tensor = getattr(module, name)
    index = torch.tensor(cut.remaining, dtype=torch.long, device=before.device)
    after = before.detach().index_select(cut.axis, index)
    if name in module._parameters:
        module._parameters[name] = nn.Parameter(after, requires_grad=before.requires_grad)
    else:
        module._buffers[name] = after
    return module


def _note_sizes(module: Any) -> None:
    """Let a layer tell its new sizes."""
    if isinstance(module, nn.Linear):
        module.out_features, module.in_features = module.weight.shape
    elif is_linear(module):
        module.nx, module.nf = module.weight.shape
    elif isinstance(module, nn.Embedding):
        module.num_embeddings, module.embedding_dim = module.weight.shape


def _add_bias(linear: Any) -> None:
    if linear.bias is None:
        weight = linear.weight
        n_features = weight.shape[output_axis(linear)]
        linear.bias = nn.Parameter(weight.detach().new_zeros(n_features), requires_grad=weight.requires_grad)


def _replace(model: nn.Module, path: str, module: nn.Module) -> None:
    parent, _, name = path.rpartition(".")
    setattr(model.get_submodule(parent), name, module.train(model.training))
