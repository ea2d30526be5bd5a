"""The logit lens: what the model would predict from its residual stream at every depth (nostalgebraist 2020)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import xarray as xr
from torch import Tensor

from headtree.errors import InvalidValueError
from headtree.models.block_array import BlockArray, lazy
from headtree.models.graph.forward_graph import SOFTMAX, Graph, Kept, Node, Ref, Trace, trace
from headtree.models.graph.read_stream import locate_stream
from headtree.models.graph.stream_places import StreamPlaces
from headtree.models.inputs import ModelInput
from headtree.models.watching.collect import PreparedInputs, token_labels
from headtree.progress import progress


def lenses_of(prepared: PreparedInputs) -> list[xr.DataArray]:
    """The lens on every prepared input."""
    with prepared.view.ready(), progress("looking", len(prepared.items)) as step:
        stream = StreamPlaces(locate_stream(prepared, chunked=True))
        path = path_to_logits(prepared, stream)
        kept = stream.kept | Kept({node.position for node in path if node.position is not None})
        found = []
        for i, item in enumerate(prepared.items):
            found.append(_lens(prepared, item, stream, kept))
            step(f"input {i + 1} of {len(prepared.items)}")
    return found


def logits_ref(prepared: PreparedInputs, traced: Trace) -> Ref:
    """The logits in a trace, or an error if the model has none."""
    if traced.logits is None:
        raise InvalidValueError(
            f"{type(prepared.model).__name__} returns no logits; load it with its language-model or classification "
            "head, as transformers' AutoModelForCausalLM does, and pass the loaded model"
        )
    return traced.logits


def path_to_logits(prepared: PreparedInputs, stream: StreamPlaces) -> list[Node]:
    """The operations between the end of the stream and the logits on the probe; layers among them are an error."""
    graph, end, logits = stream.located.graph, stream.stream.end, logits_ref(prepared, stream.located.trace)
    path = [node for node in graph.nodes[end.node + 1 :] if graph.depends(node.index, end)]
    path = [node for node in path if graph.depends(logits, node.index)]
    if not path or any(node.op in SOFTMAX for node in path):
        between = "other attention layers lie between the two" if path else "they do not depend on it"
        raise InvalidValueError(
            f"the logits of {type(prepared.model).__name__} cannot be read off this residual stream: {between}; "
            "pass the part that ends in the logits, such as part='decoder'"
        )
    return path


@dataclass(frozen=True, eq=False)
class _Lens:
    """The residual stream of one input at every depth, and the way from its end to the logits."""

    graph: Graph
    residual: list[Tensor]  #: with the axes that the stream has in the model
    end: Ref
    logits: Ref

    def __call__(self, depth: int) -> np.ndarray[Any, Any]:
        """The logits at one depth."""
        with torch.no_grad():
            found = self.graph.replay({self.end: self.residual[depth]}, self.logits)
        return np.asarray(found[0].float().cpu().numpy())


def _lens(prepared: PreparedInputs, item: ModelInput, stream: StreamPlaces, kept: Kept) -> xr.DataArray:
    traced = trace(prepared.model, item, kept=kept)
    graph = traced.graph
    residual = stream.residual(graph)
    lens = _Lens(graph, residual, stream.end_ref(graph), logits_ref(prepared, traced))
    shape = lens(len(residual) - 1).shape
    coords: dict[str, Any] = {"depth": range(len(residual))}
    if len(shape) == 2:
        coords["token"] = list(token_labels(prepared, item, (shape[0], shape[0]))[0])
    dims = ("depth", "token", "logit") if len(shape) == 2 else ("depth", "logit")
    array = BlockArray((len(residual), *shape), np.dtype(np.float32), lens)
    return lazy(array, dims, coords, {"description": "logits from the residual stream at every depth"})
