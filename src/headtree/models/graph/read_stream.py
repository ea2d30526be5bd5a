"""Run a model with skip connections or MLPs taken out, and read its residual stream.

The model's own code runs. Where it adds a term that is to be removed, the addition gives the other side alone: what
would have been added is cancelled, and nothing is rewritten.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from jaxtyping import Float
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from headtree.errors import InvalidValueError
from headtree.models.graph.attention_calls import TracedSite, matched_sites
from headtree.models.graph.forward_graph import Frames, Graph, Place, Trace, empty_product, one_side, trace, unfused
from headtree.models.graph.residual_stream import Stream, find_stream, idle_products
from headtree.models.inputs import ModelInput
from headtree.models.watching.collect import CaptureJob
from headtree.models.watching.probe import arguments


@dataclass(frozen=True, eq=False)
class Blocks:
    """The residual stream of a model, found on a short input, and where to find it on any other."""

    job: CaptureJob
    trace: Trace
    stream: Stream
    sites: tuple[TracedSite, ...]  #: the self-attention calls of its layers

    @property
    def graph(self) -> Graph:
        """Of the short input."""
        return self.trace.graph


def find_blocks(job: CaptureJob) -> Blocks:
    """The stream of the part of a model that a capture would look at."""
    if job.selection.part == "cross":
        raise InvalidValueError("part must be a stack of layers with a stream of its own, got 'cross'")
    if all(job.plan.sites[i].shape[2] < 2 for i in job.selection.sites):
        raise InvalidValueError("input 0 must have at least 2 tokens to differ from each other; pass longer inputs")
    traced = trace(job.model, job.plan.probe)
    sites = matched_sites(traced, job.plan.sites, type(job.model).__name__)
    chosen = tuple(sites[i] for i in job.selection.sites)
    return Blocks(job, traced, find_stream(traced, chosen, sites), chosen)


class _Look(NamedTuple):
    """What to keep at a place: a side of an addition, before it, or an output of an operation."""

    layer: int
    operand: int | None
    output: int = 0


class _Surgeon(TorchDispatchMode):
    """Cancels what is to be removed and keeps the stream between layers."""

    def __init__(
        self,
        frames: Frames,
        kept: Mapping[Place, int],
        idle: Collection[Place],
        looks: Mapping[Place, list[_Look]],
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.frames, self.kept, self.idle, self.looks = frames, kept, idle, looks
        self.seen: dict[int, Tensor] = {}
        self.n_cancelled = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        place = self.frames.place(func)
        looks = self.looks.get(place, [])
        for look in looks:
            if look.operand is not None:
                self.seen[look.layer] = args[look.operand].clone()
        if place in self.kept:
            self.n_cancelled += 1
            result = one_side(func, args, self.kept[place])
        elif place in self.idle:
            result = empty_product(func, args)
        else:
            result = func(*args, **(kwargs or {}))
        for look in looks:
            if look.operand is None:
                value = result[look.output] if isinstance(result, tuple | list) else result
                self.seen[look.layer] = value.clone()
        return result


def read_stream(
    blocks: Blocks, items: list[ModelInput], without: Collection[str] = ()
) -> list[Float[Tensor, "input token width"]]:
    """The stream before the first layer and after each, for inputs of equal shape.

    Parameters
    ----------
    blocks : Blocks
        What `find_blocks` found.
    items : list of ModelInput
        Run together.
    without : collection of {"skip", "mlp", "cross"}
        Terms to cancel.
    """
    stream, job = blocks.stream, blocks.job
    kept = stream.without(without)
    args, kwargs = arguments(job.model, items)
    frames = Frames(job.model)
    surgeon = _Surgeon(frames, kept, idle_products(blocks.graph, kept), _looks(blocks))
    with unfused(), frames.watching(), surgeon:
        job.model(*args, **kwargs)
    if len(surgeon.seen) != len(stream.layers) + 1 or surgeon.n_cancelled != len(kept):
        raise InvalidValueError(
            f"{type(job.model).__name__} ran other code on this input than on the short one its blocks were found "
            "on; pass inputs that it treats alike"
        )
    return [_batch_first(surgeon.seen[layer], stream, len(items)) for layer in sorted(surgeon.seen)]


def _looks(blocks: Blocks) -> dict[Place, list[_Look]]:
    looks: dict[Place, list[_Look]] = {}
    stream = blocks.stream
    for layer, sums in enumerate(stream.layers):
        skip = sums[0].skip
        looks.setdefault(skip.place, []).append(_Look(layer, skip.operand))
    end = blocks.graph.node(stream.end).place
    if end is None:
        raise RuntimeError("the stream ends where it begins")
    looks.setdefault(end, []).append(_Look(len(stream.layers), None, stream.end.output))
    return looks


def _batch_first(value: Tensor, stream: Stream, n_items: int) -> Float[Tensor, "input token width"]:
    if stream.batch_axis is None:
        return value.reshape(n_items, -1, value.shape[-1])
    return value.movedim(stream.batch_axis, 0)
