"""How the loss of a model changes, token by token, without some of its heads.

One pass with all heads gives the losses and the outputs of all blocks. A pass without a head then computes only the
blocks from that head's on. One pass with gradients gives the first-order change for all heads at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from headtree._checks import generator
from headtree.errors import InvalidValueError
from headtree.models.ablation import How, first_tokens, mean_outputs, reference_outputs
from headtree.models.graph.edit_outputs import intercepting, replaced, resumed
from headtree.models.graph.output_sites import Edit
from headtree.models.objective import Losses, Objective
from headtree.models.shared_prefix import SharedPrefix, block_paths
from headtree.models.watching.collect import PreparedInputs
from headtree.models.watching.probe import arguments
from headtree.tensor.attention_tensor import HeadId

#: Tokens per batch on a GPU by default; on the CPU, `PreparedInputs.batches` decides.
_TOKENS_ON_GPU = 65536

#: What replaces the outputs of all heads of a site: (head, feature), or (batch, token, head, feature) if it varies.
_Replacement = Float[Tensor, "... head feature"]


@dataclass(eq=False)
class LossChanges:
    """Measures losses of prepared inputs with all heads and without some; the view must be ready."""

    prepared: PreparedInputs
    objective: Objective
    how: How = "zero"
    reference: PreparedInputs | None = None
    rng: int | np.random.Generator = 0
    prefix: SharedPrefix = field(init=False)

    def __post_init__(self) -> None:
        prepared, selection = self.prepared, self.prepared.selection
        self.sites = prepared.view.output_sites(prepared.plan, selection.sites)
        names = [prepared.plan.sites[i].name for i in selection.layers]
        paths = None if prepared.plan.from_outputs else block_paths(names)  # else these are no names of modules
        self.prefix = SharedPrefix(prepared.model, paths)
        self.site_of_layer = {layer: site for site, layer in selection.layers.items()}
        self.device = next((p.device for p in prepared.model.parameters()), torch.device("cpu"))
        self._arguments: tuple[tuple[int, ...], tuple[tuple[Any, ...], dict[str, Any]]] | None = None
        reference = None if self.reference is None else _with_all_heads(self.reference)
        self._reference = [] if reference is None else reference_outputs(reference, self.how)
        self._means = mean_outputs(self._reference) if self.how == "mean" else {}
        self._draws = self._drawn(generator(self.rng)) if self.how == "resample" else None

    def _drawn(self, rng: np.random.Generator) -> list[int]:
        """A reference input for each input: never the input itself, and at least as long."""
        sizes = [len(next(iter(outputs.values()))) for outputs in self._reference]
        drawn = []
        for i, item in enumerate(self.prepared.items):
            is_own = self.reference is self.prepared
            n_tokens = sizes[i] if is_own else item.length()
            others = [k for k, size in enumerate(sizes) if size >= n_tokens and not (is_own and k == i)]
            if not others:
                raise InvalidValueError(
                    f"no other reference input has at least the {n_tokens} tokens of input {i}; pass more or "
                    "longer ones as reference=…, or how='mean'"
                )
            drawn.append(others[int(rng.integers(len(others)))])
        return drawn

    @property
    def heads(self) -> tuple[HeadId, ...]:
        """The selected heads."""
        return self.prepared.selection.head_ids()

    @property
    def has_gradients(self) -> bool:
        """Whether the outputs of all selected heads can be differentiated."""
        return all(bool(self.sites[i].hooks) for i in self.prepared.selection.sites)

    def batches(self, which: Sequence[int]) -> list[list[int]]:
        """Numbers of the inputs of each batch, among some inputs."""
        prepared = self.prepared
        size = 1 if self.objective.single or not self.has_gradients else prepared.batch_size
        if size is None and self.device.type != "cpu":
            longest = max(site.shape[2] for site in prepared.plan.sites) + max(i.length() for i in prepared.items)
            size = max(1, _TOKENS_ON_GPU // longest)
        chosen = replace(prepared, items=tuple(self.objective.items[i] for i in which), batch_size=size)
        return [[which[i] for i in batch] for batch in chosen.batches()]

    def base(self, batch: Sequence[int]) -> Baseline:
        """The losses of some inputs with all heads; later passes on these inputs resume from it."""
        with self.prefix.recording():
            output = self._run(batch)
        losses = _on_cpu(self.objective.losses(output, batch, output))
        for i, loss in zip(batch, losses, strict=True):
            if not np.isfinite(loss).all():
                raise InvalidValueError(
                    f"the loss of input {i} has NaN or infinite values with all heads ({self.objective.name}); "
                    "check the model's weights, the input and the loss, and if the model is in half precision, use "
                    "float32"
                )
        return Baseline(tuple(batch), output, losses)

    def changes(self, base: Baseline, heads: Sequence[HeadId]) -> list[Float[np.ndarray, " token"]]:
        """Loss without some heads minus loss with all heads, at every token of each input of a baseline."""
        by_site: dict[int, list[int]] = {}
        for layer, head in heads:
            by_site.setdefault(self.site_of_layer[layer], []).append(head)
        edits = {site: self._replacing(base.batch, site, chosen) for site, chosen in by_site.items()}
        first = min(layer for layer, _ in heads)
        with resumed(), self.prefix.from_block(first), intercepting(self.prepared.model, self.sites, edits):
            output = self._run(base.batch)
        without = _on_cpu(self.objective.losses(output, base.batch, base.output))
        if [len(ours) for ours in without] != [len(whole) for whole in base.losses]:
            raise InvalidValueError("loss must return as many losses without a head as with all heads")
        return [ours - whole for ours, whole in zip(without, base.losses, strict=True)]

    def first_order(self, batch: Sequence[int]) -> tuple[Float[np.ndarray, "input head"], list[np.ndarray]]:
        """First-order change of the summed loss of each input without each head, and the losses with all heads.

        The derivative along a straight line from each head's output to what replaces it: for zeros, minus the
        gradient of a mask on the head.
        """
        selection = self.prepared.selection
        steps: dict[int, Tensor] = {}

        def edit_for(site: int) -> Edit:
            def edit(z: Tensor, number: int) -> Tensor:
                if number == 0:
                    size = (z.shape[0], 1, z.shape[2], 1)
                    steps[site] = torch.zeros(size, dtype=z.dtype, device=z.device, requires_grad=True)
                return z + steps[site] * (self._replacement(batch, site, number, z) - z)

            return edit

        edits = {site: edit_for(site) for site in selection.sites}
        with torch.enable_grad(), intercepting(self.prepared.model, self.sites, edits):
            output = self._run(batch, gradients=True)
            losses = self.objective.losses(output, batch, output)
            total = torch.stack([loss.sum() for loss in losses]).sum()
        if not total.requires_grad:
            raise InvalidValueError(
                "the loss has no gradient, so its first-order change is unknown; return a loss that torch computes "
                "from the model's output, or pass control=False"
            )
        slopes = torch.autograd.grad(total, list(steps.values()), allow_unused=True)
        by_site = dict(zip(steps, slopes, strict=True))
        columns = [_slopes_of(by_site[site], steps[site], heads) for site, heads in selection.heads.items()]
        return np.concatenate(columns, axis=1), _on_cpu([loss.detach() for loss in losses])

    def _run(self, batch: Sequence[int], gradients: bool = False) -> Any:
        model = self.prepared.model
        items = [self.objective.items[i] for i in batch]
        if any(item.has_state() for item in items):
            args, kwargs = arguments(model, items)
        else:  # joined and moved to the device once for all passes on the batch
            if self._arguments is None or self._arguments[0] != tuple(batch):
                self._arguments = tuple(batch), arguments(model, items)
            args, kwargs = self._arguments[1]
        with torch.set_grad_enabled(gradients):
            return model(*args, **kwargs)

    def _replacing(self, batch: Sequence[int], site: int, heads: list[int]) -> Edit:
        def edit(z: Tensor, number: int) -> Tensor:
            return replaced(z, heads, self._replacement(batch, site, number, z)[..., heads, :])

        return edit

    def _replacement(self, batch: Sequence[int], site: int, number: int, z: Tensor) -> _Replacement:
        if self.how == "zero":
            return torch.zeros_like(z[0, 0])
        if self._draws is None:
            return self._means[site, number].to(z)
        rows = [self._reference[self._draws[i]][site, number] for i in batch]
        return torch.stack([first_tokens(row, z.shape[1], self.sites[site]) for row in rows]).to(z)


@dataclass(frozen=True, eq=False)
class Baseline:
    """A pass with all heads over some inputs."""

    batch: tuple[int, ...]
    output: Any
    losses: list[Float[np.ndarray, " token"]]


def _with_all_heads(prepared: PreparedInputs) -> PreparedInputs:
    """The same calls with all their heads, so that a head's number is its index."""
    heads = {site: tuple(range(prepared.plan.sites[site].shape[1])) for site in prepared.selection.sites}
    return replace(prepared, selection=replace(prepared.selection, heads=heads))


def _slopes_of(slope: Tensor | None, step: Tensor, heads: tuple[int, ...]) -> Float[np.ndarray, "input head"]:
    known = torch.zeros_like(step) if slope is None else slope
    return known[:, 0, list(heads), 0].double().cpu().numpy()


def _on_cpu(losses: Losses) -> list[Float[np.ndarray, " token"]]:
    return [loss.detach().double().cpu().numpy() for loss in losses]


@contextmanager
def measuring(
    prepared: PreparedInputs,
    objective: Callable[[], Objective],
    how: How,
    reference: PreparedInputs | None,
    rng: int | np.random.Generator,
) -> Iterator[LossChanges]:
    """A `LossChanges` whose passes resume correctly, while the view is ready."""
    with prepared.view.ready():
        changes = LossChanges(prepared, objective(), how, reference, rng)
        try:
            check_resuming(changes)
            yield changes
        finally:
            changes.prefix.forget()


def check_resuming(changes: LossChanges) -> None:
    """Share nothing between passes if resuming a pass does not give the same losses."""
    batch = changes.batches([0])[0]
    base = changes.base(batch)
    if not changes.prefix.blocks:
        return
    with resumed(), changes.prefix.from_block(len(changes.prefix.blocks) - 1):
        output = changes._run(batch)
    again = _on_cpu(changes.objective.losses(output, batch, base.output))
    if not all(np.allclose(a, b, rtol=1e-5, atol=1e-6) for a, b in zip(again, base.losses, strict=True)):
        changes.prefix = SharedPrefix(changes.prepared.model, None)
