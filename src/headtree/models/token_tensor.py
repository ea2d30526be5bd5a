"""The whole network as one tensor: what of the residual stream at each token comes from each input token.

With attention, norms, gates and activation functions frozen at their values on an input, the network is a linear
map of its tokens (TensorLens, arXiv 2601.17958).
"""

from __future__ import annotations

import math
from bisect import bisect_right
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

import numpy as np
import torch
import xarray as xr
from jaxtyping import Float
from torch import Tensor

from headtree import _checks
from headtree._memory import allowed_memory, format_bytes
from headtree.errors import InvalidTypeError, InvalidValueError
from headtree.models.block_array import BlockArray, lazy
from headtree.models.capture_options import check_all_heads
from headtree.models.graph.forward_graph import trace
from headtree.models.graph.frozen_pass import FrozenPass
from headtree.models.graph.read_stream import locate_stream
from headtree.models.graph.stream_places import StreamPlaces
from headtree.models.graph.trace_memory import growth_of, held_bytes, trace_bytes
from headtree.models.inputs import ModelInput
from headtree.models.logit_lens import logits_ref, path_to_logits
from headtree.models.watching.collect import PreparedInputs, token_labels
from headtree.progress import progress
from headtree.tensor.attention_tensor import AttentionTensor, HeadId, Kind
from headtree.tensor.hidden_mask import future_keys

By = Literal["norm", "projection", "logit"]

#: Rows that go through the frozen network together: more are no faster, and need more memory.
_ROWS = 2048

#: Copies of the values of a part while they are computed.
_COPIES = 3


@dataclass(frozen=True, eq=False, repr=False)
class TokenTensor:
    """What of the residual stream at each token comes from each input token; `ModelView.token_tensor` makes it.

    At every depth, ``residual = parts.sum("key") + bias``. Depth 0 is the stream before the first layer, where each
    token is its own part, with its position embedding; depth l is the stream after layer l - 1. The bias has what
    comes from no token of the stream: biases, and in a decoder what is read from the encoder.

    Examples
    --------
    >>> import headtree as ht
    >>> network = ht.load_bundled("vit")
    >>> (found,) = ht.ModelView(network.model).token_tensor(inputs=network.inputs[0])
    >>> found
    TokenTensor(12 layers, 197 tokens, width 192)
    >>> found.parts.sizes  # nothing is computed yet
    Frozen({'key': 197, 'depth': 13, 'query': 197, 'feature': 192})
    >>> part = found.parts.sel(key="r3c5").isel(depth=12)  # of one patch, after the last layer
    >>> part.sel(query="class").shape
    (192,)
    """

    tokens: tuple[str, ...]
    residual: Float[Tensor, "depth token width"]  #: the residual stream before the first layer and after each
    bias: Float[Tensor, "depth token width"]  #: what of it comes from no token
    prepared: PreparedInputs
    item: ModelInput
    memory_limit: float | None = None
    _reduced: dict[Any, Tensor] = field(default_factory=dict)

    def __repr__(self) -> str:
        n_depths, n_tokens, width = self.residual.shape
        return f"TokenTensor({n_depths - 1} layers, {n_tokens} tokens, width {width})"

    @property
    def parts(self) -> xr.DataArray:
        """The vectors (key, depth, query, feature), computed for the keys that are read, when they are read."""
        n_depths, n_tokens, width = self.residual.shape
        passes: list[FrozenPass] = []

        def compute(token: int) -> np.ndarray[Any, Any]:
            with self.prepared.view.ready(), torch.no_grad():
                frozen = passes[0] if passes else frozen_pass(self.prepared, self.item)
                passes[:] = [frozen]
                return np.asarray(torch.stack([depth[0] for depth in frozen.parts([token])]).cpu().numpy())

        array = BlockArray((n_tokens, n_depths, n_tokens, width), self.residual.numpy().dtype, compute)
        labels = list(self.tokens)
        coords = {"key": labels, "depth": range(n_depths), "query": labels}
        what = {"description": "what of the residual stream at each query comes from each key"}
        return lazy(array, ("key", "depth", "query", "feature"), coords, what)

    def reduce(self, by: By = "norm", target: int | None = None) -> AttentionTensor:
        """The tensor as one number for each layer, query and key, in the form of attention.

        Layer l is the stream after it, as in `attention_rollout`: depth takes the place of heads, and L3H0 is what
        lies after layer 3. Keys that a query cannot depend on are masked.
        The first call takes about as long as one forward pass for each token.

        Parameters
        ----------
        by : {"norm", "projection", "logit"}
            The norm of each part; its share of the final residual stream at the query, ``⟨part, x⟩ / ‖x‖²``, where
            shares of all keys and of the bias sum to 1 after the last layer; or what it contributes to a logit if
            norms and activation functions after the last layer are frozen as well. Norms are of the kind
            "weighted"; the others have both signs, of the kind "signed".
        target : int, optional
            Index of the logit; by default the largest logit of each query. In a model with one row of logits,
            queries that it does not read have zeros.

        Examples
        --------
        >>> import headtree as ht
        >>> network = ht.load_bundled("vit")
        >>> (found,) = ht.ModelView(network.model).token_tensor(inputs=network.inputs[0])
        >>> att = found.reduce("projection")
        >>> att
        AttentionTensor(12 depths × 197 queries × 197 keys, signed)
        >>> org = ht.organize(att)  # layers, queries and keys in one order
        >>> len(org.trees.head.labels[0])
        12
        """
        if by not in get_args(By):
            raise InvalidValueError(f"by must be one of {get_args(By)}, got {by!r}")
        if target is not None and by != "logit":
            raise InvalidTypeError(f"target is for by='logit', got by={by!r}; leave target out")
        key = (by, target)
        if key not in self._reduced:
            self._compute(by, target)
        return self._tensor(self._reduced[key][1:], "weighted" if by == "norm" else "signed", by, target)

    def _tensor(self, values: Tensor, kind: Kind, by: str, target: int | None) -> AttentionTensor:
        hidden = (self._reduced["norm", None][1:] == 0).all(dim=0)
        is_causal = bool((hidden | ~future_keys(*hidden.shape)).all()) and len(hidden) > 1
        chosen = {} if target is None else {"target": target}
        return AttentionTensor(
            values=values,
            heads=tuple(HeadId(layer, 0) for layer in range(len(values))),
            queries=self.tokens,
            keys=self.tokens,
            kind=kind,
            mask=hidden[None] if hidden.any() and not hidden.all() else None,
            provenance={
                **self.prepared.provenance,
                **self.item.about,
                **({"causal": True} if is_causal else {}),
                "token_tensor": {"by": by, **chosen},
            },
        )

    def _compute(self, by: By, target: int | None) -> None:
        """Send every token through the frozen network, in batches, and reduce what arrives."""
        with self.prepared.view.ready(), torch.no_grad():
            frozen = frozen_pass(self.prepared, self.item)
            final = self.residual[-1].to(frozen.value)
            rows: dict[Any, Tensor] = {
                ("projection", None): final / (final * final).sum(dim=-1, keepdim=True).clamp(min=1e-30)
            }
            if by == "logit":
                rows["logit", target] = _logit_directions(self.prepared, frozen, target)
            names = [("norm", None), *rows]
            n = frozen.n_tokens
            found = {name: torch.zeros(len(frozen.depths), n, n, dtype=frozen.value.dtype) for name in names}
            batches = _batches(frozen, self.memory_limit)
            with progress("sending tokens", len(batches)) as step:
                for tokens in batches:
                    for depth, parts in enumerate(frozen.parts(tokens)):
                        found["norm", None][depth, :, tokens] = parts.norm(dim=-1).T.cpu()
                        for name, row in rows.items():
                            found[name][depth, :, tokens] = torch.einsum("ptw,tw->tp", parts, row).cpu()
                    step(f"token {tokens[-1] + 1} of {n}")
        self._reduced.update(found)


def token_tensors(prepared: PreparedInputs, memory_limit: float | None) -> list[TokenTensor]:
    """The token tensor of every prepared input."""
    if memory_limit is not None:
        _checks.positive(memory_limit, "memory_limit")
    check_all_heads(prepared, "tokens go through all of them")
    found = []
    with prepared.view.ready(), torch.no_grad(), progress("freezing", len(prepared.items)) as step:
        places = StreamPlaces(locate_stream(prepared))
        probe = FrozenPass(places, places.located.trace, type(prepared.model).__name__)
        for i, item in enumerate(prepared.items):
            _check_memory(probe, item, i, memory_limit)
            frozen = frozen_pass(prepared, item)
            labels = token_labels(prepared, item, (frozen.n_tokens, frozen.n_tokens))[0]
            found.append(
                TokenTensor(labels, frozen.residual().cpu(), frozen.bias().cpu(), prepared, item, memory_limit)
            )
            step(f"input {i + 1} of {len(prepared.items)}")
    return found


def frozen_pass(prepared: PreparedInputs, item: ModelInput) -> FrozenPass:
    """The network frozen on one input; the view must be ready."""
    places = StreamPlaces(locate_stream(prepared))
    return FrozenPass(places, trace(prepared.model, item), type(prepared.model).__name__)


def _logit_directions(
    prepared: PreparedInputs, frozen: FrozenPass, target: int | None
) -> Float[Tensor, "token width"]:
    path_to_logits(prepared, frozen.places)  # refuses a stream that ends elsewhere
    logits = logits_ref(prepared, frozen.traced)
    if target is not None:
        _checks.checked_index(target, frozen.graph.value(logits).shape[-1], "target", "logits")
    return frozen.directions(logits, target)


def _check_memory(probe: FrozenPass, item: ModelInput, i: int, limit: float | None) -> None:
    """Raise an error if an input would not fit into memory, before it runs, and say what would."""
    located = probe.places.located
    growth, n_probe = growth_of(located, item), probe.n_tokens
    allowed, source = allowed_memory(limit)

    def needed(n_tokens: float) -> int:
        longer = n_tokens / n_probe
        results = 3 * len(probe.depths) * n_tokens**2 * probe.value.element_size()
        return int(trace_bytes(located, longer) + _COPIES * probe.linear.peak_bytes * longer + results)

    n_tokens = math.ceil(n_probe * growth)
    if needed(n_tokens) <= allowed:
        return
    fits = bisect_right(range(n_tokens), allowed, key=needed) - 1
    advice = f"inputs of {fits} tokens would fit: pass tokens={fits}, or" if fits > 1 else "no input would fit;"
    raise InvalidValueError(
        f"the token tensor of input {i} with {n_tokens} tokens needs about {format_bytes(needed(n_tokens))}, but "
        f"{source} is {format_bytes(allowed)}; {advice} raise memory_limit"
    )


def _batches(frozen: FrozenPass, limit: float | None) -> list[list[int]]:
    """Tokens that go through the frozen network together, within the memory that is allowed."""
    n = frozen.n_tokens
    results = 3 * len(frozen.depths) * n**2 * frozen.value.element_size()
    free = allowed_memory(limit)[0] - results - (0 if limit is None else held_bytes(frozen.graph))
    size = max(1, min(_ROWS // n, free // (_COPIES * max(1, frozen.linear.peak_bytes))))
    return [list(range(start, min(n, start + size))) for start in range(0, n, size)]
