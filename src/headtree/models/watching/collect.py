"""Run prepared inputs in batches and collect their attention tensors."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from headtree import _checks
from headtree.errors import HeadtreeWarning, InvalidValueError
from headtree.models import facts
from headtree.models.inputs import ModelInput
from headtree.models.watching.attention_sites import reads_images
from headtree.models.watching.logits import Block, Logits
from headtree.models.watching.memory import MemoryEstimate, working_bytes
from headtree.models.watching.probe import AttentionPlan, run, watching
from headtree.models.watching.query_choice import Queries, chosen_queries
from headtree.models.watching.returned import returned_attentions
from headtree.models.watching.select import Selection
from headtree.models.watching.watch import AttentionCall
from headtree.progress import progress
from headtree.tensor.attention_tensor import AttentionTensor, CapturedKind
from headtree.tensor.factored_array import FactoredArray, LayerFactors, joined
from headtree.tensor.hidden_mask import future_keys

if TYPE_CHECKING:
    from headtree.models.view import ModelView

Store = Literal["dense", "factors"]

#: Ways to watch attention that show queries and keys, as in `AttentionSite`.
_SHOW_FACTORS = ("registry", "sdpa")

#: Features of a head that are assumed where its queries and keys are to be stored: models have 16 to 256.
_FEATURES = 256

#: Tokens per batch by default: batching speeds up short inputs, while for long ones it only costs memory.
_TOKENS_AT_ONCE = 1024


@dataclass(frozen=True, eq=False)
class PreparedInputs:
    """Inputs of a model and the selected heads, checked and ready to run."""

    view: ModelView
    items: tuple[ModelInput, ...]
    plan: AttentionPlan
    selection: Selection
    kind: CapturedKind
    dtype: torch.dtype
    window: tuple[slice, slice]
    batch_size: int | None
    part: str | None  #: as passed by the user
    queries: Queries | None = None  #: as passed by the user
    generate: int | None = None  #: number of tokens that the model writes
    as_factors: bool = False  #: whether queries and keys are stored in place of their products

    @property
    def model(self) -> nn.Module:
        """The module to run."""
        return self.view.model

    @property
    def provenance(self) -> dict[str, Any]:
        """Provenance of a captured tensor: the model, the part, how attention was detected, and where."""
        layers = [self._place(site) for site in self.selection.sites]
        return {**self.view.provenance, "part": self.part, "seen_by": self.plan.seen_by, "layers": layers}

    def _place(self, site: int) -> dict[str, Any]:
        """The layer of a selected site, its module and its place among all layers of the model."""
        known = None if self.plan.from_outputs else self.plan.sites[site]
        return {
            "layer": self.selection.layers[site],
            "module": None if known is None else known.name,
            "depth": None if known is None else known.depth,
        }

    def estimate(self) -> MemoryEstimate:
        """Memory of the whole capture, from the shapes seen in the probing run and the sizes of the inputs."""
        result = masks = working = 0
        n_heads = sum(len(chosen) for chosen in self.selection.heads.values())
        for batch in self.batches():
            n_queries, n_keys = self.call_size(self.items[batch[0]])
            entries = sum(self._n_entries(i) for i in batch)
            in_result = len(batch) * (n_queries + n_keys) * _FEATURES if self.as_factors else entries
            result += n_heads * in_result * self.dtype.itemsize
            masks += (n_heads if self.selection.mask_varies else 1) * entries
            widest = max(site.shape[1] for site in self.plan.sites)
            # without a fused kernel, the model itself computes the scores of each call once
            own = len(batch) * widest * n_queries * n_keys
            output = self.plan.output_bytes * len(batch) * self._growth(self.items[batch[0]])
            working = max(working, working_bytes(own, self.kind, math.ceil(output)))
        if self.plan.from_outputs:
            working += result // max(1, len(self.batches()))
        return MemoryEstimate(result, masks, working)

    def _n_entries(self, i: int) -> int:
        """Captured entries of each head on input i."""
        n_queries, n_keys = self.call_size(self.items[i])
        if self.generate is not None:
            return self.generate * (n_keys + self.generate)
        rows, columns = (len(range(*w.indices(n))) for w, n in zip(self.window, (n_queries, n_keys), strict=True))
        return columns * (rows if self.queries is None else len(self.rows(i, (n_queries, n_keys))))

    def rows(self, i: int, sizes: tuple[int, int], ends_meet: bool = True) -> list[int]:
        """Positions of the chosen queries of input i, of a call of this size."""
        labels = token_labels(self, self.items[i], sizes, ends_meet)[0]
        return chosen_queries(() if self.queries is None else self.queries, labels, i)

    def stored_as(self, store: str) -> PreparedInputs:
        """The same inputs, with tensors that hold all values ("dense") or queries and keys ("factors")."""
        _checks.one_of(store, "store", Store)
        if store == "dense":
            return self
        is_whole = self.window == (slice(None), slice(None)) and self.queries is None and self.generate is None
        if self.kind == "weighted" or not is_whole:
            raise InvalidValueError(
                "store='factors' needs kind='scores' or 'probs' and no window, queries or generate; leave them "
                "out, or capture with store='dense'"
            )
        if self.dtype.itemsize < 4:
            raise InvalidValueError(
                "store='factors' gives values in float32 or float64, got dtype='float16'; leave dtype out: factors "
                "of a model in half precision stay in it"
            )
        known = {} if self.plan.from_outputs else dict(enumerate(self.plan.sites))
        if not all(i in known and known[i].seen_by in _SHOW_FACTORS for i in self.selection.sites):
            warnings.warn(
                f"the scores of {type(self.model).__name__} are not seen as products of queries and keys, so the "
                "tensors hold all values: store='dense'",
                HeadtreeWarning,
                stacklevel=4,
            )
            return self
        return replace(self, as_factors=True)

    def check_window(self) -> None:
        """Raise an error if the window extends beyond an input, or a query does not occur in it."""
        if self.queries is not None and self.generate is None:
            for i, item in enumerate(self.items):
                self.rows(i, self.call_size(item))
        for i, item in enumerate(self.items):
            for window, n, axis in zip(self.window, self.call_size(item), ("queries", "keys"), strict=True):
                if window.stop is not None and window.stop > n:
                    raise InvalidValueError(
                        f"window must lie within the {n} {axis} of input {i}, got ({window.start}, {window.stop})"
                    )

    def advice(self) -> str:
        """The change that would save the most memory."""
        longest = max(item.length() for item in self.items)
        return (
            f"half of the {longest} tokens of an input would need a quarter: tokens=…"
            if longest > 64
            else "use smaller inputs"
        )

    def batches(self) -> list[list[int]]:
        """Indices of the inputs in each batch; all inputs of a batch have equal shapes."""
        groups: dict[Any, list[int]] = {}
        for i, item in enumerate(self.items):
            groups.setdefault(item.shapes() if item.can_join() else i, []).append(i)
        batches = []
        for members in groups.values():
            length = max(self.call_size(self.items[members[0]]))
            size = self.batch_size or max(1, _TOKENS_AT_ONCE // length)
            batches += [members[start : start + size] for start in range(0, len(members), size)]
        return sorted(batches)

    def run(self, on_call: Callable[[AttentionCall, int], None] | None = None) -> list[AttentionTensor]:
        """Run the model on every batch; `on_call` receives each selected call and the index of its site."""
        if self.generate is not None:
            from headtree.models.generation import written_tensors

            return written_tensors(self)
        results: list[AttentionTensor | None] = [None] * len(self.items)
        batches = self.batches()
        with self.view.ready(), progress("capturing", len(batches)) as step:
            for batch in batches:
                for i, tensor in zip(batch, self._run_batch(batch, on_call), strict=True):
                    results[i] = tensor
                step(f"input {batch[-1] + 1} of {len(self.items)}")
        return [result for result in results if result is not None]

    def _run_batch(
        self, batch: list[int], on_call: Callable[[AttentionCall, int], None] | None
    ) -> list[AttentionTensor]:
        items = [self.items[i] for i in batch]
        collectors = [_Collector(self, i) for i in batch]
        site_of_call = self.selection.site_of_call(self.plan)
        n_calls = 0  # a call is known by its position in call order

        def listen(call: AttentionCall) -> None:
            nonlocal n_calls
            site = site_of_call.get(n_calls)
            n_calls += 1
            if site is None:
                return
            self._check_call(call, site, batch[0])
            if call.logits.shape[0] != len(items):
                raise InvalidValueError(
                    f"{call.name} attends over {call.logits.shape[0]} inputs in a batch of {len(items)}, so its "
                    "inputs cannot be separated; pass batch_size=1"
                )
            for item, collector in enumerate(collectors):
                collector.take(call, item, site)
            if on_call is not None:
                on_call(call, site)

        try:
            with watching(self.model, self.plan, listen, len(items)):
                output = run(self.model, items, **({"output_attentions": True} if self.plan.from_outputs else {}))
        except torch.OutOfMemoryError as error:
            raise InvalidValueError(
                f"the device is out of memory for a batch of {len(items)} inputs: {error}; pass a smaller "
                "batch_size, tokens=… or device='cpu'"
            ) from error
        if n_calls > self.plan.n_calls:
            raise _other_calls(batch[0])
        if self.plan.from_outputs:
            for site, (_, weights) in enumerate(returned_attentions(self.model, output)):
                for item, collector in enumerate(collectors):
                    collector.take_weights(weights[item], site)
        return [collector.tensor(item) for item, collector in zip(items, collectors, strict=True)]

    def _check_call(self, call: AttentionCall, site: int, i: int) -> None:
        """Raise an error if a call is not the one that was made here in the probing run."""
        expected = self.plan.sites[site]
        if call.name != expected.name or call.logits.shape[1] != expected.shape[1]:
            raise _other_calls(i)

    def call_size(self, item: ModelInput) -> tuple[int, int]:
        """Number of queries and keys of a selected call on this input."""
        _, _, n_queries, n_keys = self.plan.sites[self.selection.sites[0]].shape
        before, now = self.plan.probe.lengths(), item.lengths()
        if before is None or now is None:
            growth = self._growth(item)
            return math.ceil(n_queries * growth), math.ceil(n_keys * growth)
        read, written = now[0] - before[0], now[1] - before[1]
        part = self.selection.part
        is_decoder = part in ("decoder", "cross")
        return n_queries + (written if is_decoder else read), n_keys + (written if part == "decoder" else read)

    def n_reported_keys(self, item: ModelInput) -> int | None:
        """Number of keys in the attention that the model returns; None if it is not captured from there."""
        return self.call_size(item)[1] if self.plan.from_outputs and item.lengths() is not None else None

    def _growth(self, item: ModelInput) -> float:
        return item.size() / max(1, self.plan.probe.size())


def _other_calls(i: int) -> InvalidValueError:
    return InvalidValueError(
        f"the model makes other attention calls on input {i} than on input 0, as some do when inputs differ in "
        "length; capture inputs of different shapes separately"
    )


class _Collector:
    """Collects the tensor of one input while the model runs."""

    def __init__(self, prepared: PreparedInputs, i: int) -> None:
        self.prepared, self.i = prepared, i
        self.queries: list[int] | slice = prepared.window[0]
        self.values: Tensor | None = None
        self.masks: list[Bool[Tensor, "#head query key"] | None] = []
        self.mask_index: dict[int, int] = {}  # site → index in `masks`
        self.sinks: dict[int, Tensor] = {}
        self.factors: dict[int, LayerFactors] = {}
        self.sizes = (0, 0)
        self.ends_meet = False  # whether the last query sees the last key

    def take(self, call: AttentionCall, item: int, site: int) -> None:
        """Store the selected heads of a call."""
        prepared, logits = self.prepared, call.logits
        heads = prepared.selection.heads[site]
        if prepared.as_factors:
            self._take_factors(logits, item, site)
            return
        picked = slice(None) if len(heads) == logits.shape[1] else heads
        last = logits.missing(Block(item, picked, slice(-1, None), slice(-1, None)))
        self.ends_meet = last is None or not bool(last.all())
        self._choose_queries((logits.shape[2], logits.shape[3]))
        keys = prepared.window[1]
        # softmax needs every key, scores only those of the window
        block = Block(item, picked, self.queries, keys if prepared.kind == "scores" else slice(None))
        values, missing = logits.scores(block), logits.missing(block)
        if prepared.kind != "scores":
            self._check_finite(values, missing, site)
            values = logits.probs(values, missing, picked)[:, :, keys]
            missing = None if missing is None else missing[:, :, keys]
        self._put(values, missing, site, (logits.shape[2], logits.shape[3]))
        if logits.sinks is not None:
            self.sinks[site] = logits.sinks[list(heads)].float().cpu()

    def _take_factors(self, logits: Logits, item: int, site: int) -> None:
        """Store the queries and keys of the selected heads of a call."""
        heads = self.prepared.selection.heads[site]
        found = logits.factors(item, heads)
        if found is None:
            raise InvalidValueError(
                f"layer {self.prepared.selection.layers[site]} shows only the product of its queries and keys on "
                "this input; leave out store='factors'"
            )
        for values in (found.query, found.key):
            self._check_finite(values, None, site)
        if torch.float64 in (found.query.dtype, self.prepared.dtype):  # others are read in single precision
            found = found.to(self.prepared.dtype)
        self.factors[site], self.sizes = found, (logits.shape[2], logits.shape[3])
        missing = logits.missing(Block(item, heads))
        self.ends_meet = missing is None or not bool(missing[:, -1, -1].all())
        self.mask_index[site] = self._shared_mask(missing)
        if logits.sinks is not None:
            self.sinks[site] = logits.sinks[list(heads)].float().cpu()

    def take_weights(self, weights: Float[Tensor, "head query key"], site: int) -> None:
        """Store the selected heads of returned attention weights; entries that are 0 in every head are masked."""
        if site not in self.prepared.selection.heads:
            return
        hidden = (weights == 0).all(dim=0, keepdim=True)
        self._choose_queries((weights.shape[1], weights.shape[2]))
        queries, keys = self.queries, self.prepared.window[1]
        values = weights[list(self.prepared.selection.heads[site])][:, queries, keys]
        self._put(
            values, hidden[:, queries, keys] if hidden.any() else None, site, (weights.shape[1], weights.shape[2])
        )

    def _choose_queries(self, sizes: tuple[int, int]) -> None:
        if self.prepared.queries is not None:
            self.queries = self.prepared.rows(self.i, sizes, self.ends_meet)

    def _put(self, values: Tensor, missing: Tensor | None, site: int, sizes: tuple[int, int]) -> None:
        selection = self.prepared.selection
        n_heads = sum(len(chosen) for chosen in selection.heads.values())
        if self.values is None:
            self.values = torch.empty((n_heads, *values.shape[1:]), dtype=self.prepared.dtype)
            self.sizes = sizes
        if values.shape[1:] != self.values.shape[1:]:
            raise InvalidValueError(
                f"the layers have unequal shapes on this input, {tuple(self.values.shape[1:])} and "
                f"{tuple(values.shape[1:])} (queries, keys); select layers of one shape with layers=…"
            )
        missing = None if missing is None else missing.cpu()
        start = selection.start(site)
        stored = self.values[start : start + values.shape[0]]
        stored[:] = values
        self._check_finite(stored, missing, site)
        self.mask_index[site] = self._shared_mask(missing)

    def _check_finite(self, values: Tensor, missing: Tensor | None, site: int) -> None:
        wrong = ~torch.isfinite(values)
        if not wrong.any() or (missing is not None and not (wrong & ~missing.to(wrong.device)).any()):
            return
        layer, name = self.prepared.selection.layers[site], self.prepared.plan.sites[site].name
        raise InvalidValueError(
            f"the attention of layer {layer} ({name}) has NaN or infinite values; check the model's weights and "
            "the input, and if one of them is in half precision, use float32"
        )

    def _shared_mask(self, missing: Tensor | None) -> int:
        """Index of a mask in `masks`, which holds equal masks once."""
        for i, mask in enumerate(self.masks):
            is_same = torch.equal(mask, missing) if mask is not None and missing is not None else mask is missing
            if is_same:
                return i
        self.masks.append(missing if missing is None else missing.clone())
        return len(self.masks) - 1

    def tensor(self, item: ModelInput) -> AttentionTensor:
        """The finished tensor."""
        prepared = self.prepared
        is_empty = self.values is None and not self.factors
        if is_empty or len(self.mask_index) < len(prepared.selection.heads):
            raise InvalidValueError(
                f"the model made only {len(self.mask_index)} of the {len(prepared.selection.heads)} attention "
                "calls of the probing run; its layers vary from input to input, so select with layers=… those it "
                "always runs"
            )
        if self.factors:
            return self._factored(item)
        if prepared.kind == "weighted" and self.values is not None:
            norms = prepared.view.value_norms(prepared, item)[:, None, prepared.window[1]]
            self.values *= norms.to(self.values)
        queries, keys = token_labels(prepared, item, self.sizes, self.ends_meet)
        shown, chosen = queries[prepared.window[0]], {}
        if isinstance(self.queries, list):
            shown, chosen = tuple(queries[i] for i in self.queries), {"query_positions": self.queries}
        mask = self._mask()
        return AttentionTensor(
            values=self.values,
            heads=prepared.selection.head_ids(),
            queries=shown,
            keys=keys[prepared.window[1]],
            kind=prepared.kind,
            mask=mask,
            provenance={**prepared.provenance, **item.about, **self._causal(mask), **chosen},
            sinks=self._all_sinks(),
        )

    def _factored(self, item: ModelInput) -> AttentionTensor:
        """The finished tensor, which is multiplied out when its values are read."""
        prepared, mask, sinks = self.prepared, self._mask(), self._all_sinks()
        values = FactoredArray(joined([self.factors[site] for site in prepared.selection.heads]))
        if prepared.kind == "probs":
            values = values.probabilities(None if mask is None else mask.expand(values.shape), sinks)
        queries, keys = token_labels(prepared, item, self.sizes, self.ends_meet)
        return AttentionTensor(
            values=values,
            heads=prepared.selection.head_ids(),
            queries=queries,
            keys=keys,
            kind=prepared.kind,
            mask=mask,
            provenance={**prepared.provenance, **item.about, **self._causal(mask)},
            sinks=sinks,
        )

    def _mask(self) -> Tensor | None:
        """The mask, with a single slice if all heads share it, which is nearly always the case."""
        if len(self.masks) == 1 and (self.masks[0] is None or self.masks[0].shape[0] == 1):
            return self.masks[0]
        n_heads = sum(len(heads) for heads in self.prepared.selection.heads.values())
        sizes = self.sizes if self.values is None else self.values.shape[1:]
        full = torch.zeros(n_heads, *sizes, dtype=torch.bool)
        for site, index in self.mask_index.items():
            mask = self.masks[index]
            if mask is not None:
                start = self.prepared.selection.start(site)
                full[start : start + len(self.prepared.selection.heads[site])] = mask
        return full

    def _causal(self, mask: Tensor | None) -> dict[str, bool]:
        """Whether the whole mask hides every key after the query, for the provenance."""
        is_whole = self.prepared.window == (slice(None), slice(None)) and self.prepared.queries is None
        if mask is None or not is_whole:
            return {}
        future = future_keys(*mask.shape[1:])
        return {"causal": True} if future.any() and bool((mask.cpu() | ~future).all()) else {}

    def _all_sinks(self) -> Tensor | None:
        if not self.sinks:
            return None
        no_sinks = {
            site: torch.full((len(heads),), -torch.inf) for site, heads in self.prepared.selection.heads.items()
        }
        return torch.cat(list({**no_sinks, **self.sinks}.values()))


def token_labels(
    prepared: PreparedInputs, item: ModelInput, sizes: tuple[int, int], ends_meet: bool = True
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Labels of the queries and keys. Where keys come from a cache, the queries are the last of them."""
    part = prepared.selection.part
    sides = {"cross": ("written", "read"), "decoder": ("written", "written")}.get(part, ("read", "read"))
    if reads_images(part):
        sides = ("images", "images")
    n_cached = sizes[1] - sizes[0]
    if item.has_state() and part != "cross" and n_cached > 0 and ends_meet:
        queries = _side_labels(prepared.model, item, sides[0], sizes[0], n_cached)
        return queries, (*map(str, range(n_cached)), *queries)
    first, second = (_side_labels(prepared.model, item, side, n) for side, n in zip(sides, sizes, strict=True))
    return first, second


def _side_labels(model: nn.Module, item: ModelInput, side: str, n: int, start: int = 0) -> tuple[str, ...]:
    """Labels of what one side reads: tokens or patches, or plain positions if neither has the right number."""
    if side == "written" and not item.writes_text():
        side = "read"
    labels = {"written": item.targets, "read": item.tokens, "images": None}[side]
    if labels is not None and len(labels) == n:
        return labels
    is_text = side == "written" or (side == "read" and item.reads_text())
    if item.pixels is not None and not is_text:
        return tuple(facts.patch_labels(model, item.pixels, n))
    return tuple(str(i) for i in range(start, start + n))
