"""A network's attention as one labelled array: heads × queries × keys."""

from __future__ import annotations

import operator
import reprlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from os import PathLike
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from headtree import _checks, _notebook
from headtree._lazy_array import LazyArray
from headtree.errors import InvalidTypeError, InvalidValueError
from headtree.tensor.factored_array import FactoredArray
from headtree.tensor.filling import Filled, centre_rows, fill, finite_logarithms
from headtree.tensor.hidden_mask import check_future_keys
from headtree.tensor.slice_names import counted_slices, slices_of
from headtree.tensor.stored_array import StoredArray

CapturedKind = Literal["scores", "probs", "weighted"]  #: of attention
Kind = Literal["scores", "probs", "weighted", "signed"]

#: Rows and columns of a head that a notebook shows.
_SHOWN_AT_MOST = 96


class HeadId(NamedTuple):
    """The layer of a head and its number within the layer, both from 0.

    Examples
    --------
    >>> str(HeadId(3, 5)), HeadId(3, 5) == (3, 5)
    ('L3H5', True)
    """

    layer: int
    head: int

    def __str__(self) -> str:
        return f"L{self.layer}H{self.head}"


@dataclass(frozen=True, eq=False, repr=False)
class AttentionTensor:
    """Every head of a network on one input: ``values[head, query, key]``.

    Parameters
    ----------
    values : array or tensor (head, query, key)
        Real numbers; the heads of all layers in layer order. Entries are missing where `mask` is True or where a
        numpy masked array hides them.
    heads : sequence of HeadId
        Layer and head of each slice.
    queries, keys : sequence of str
        Token strings or patch positions.
    kind : {"scores", "probs", "weighted", "signed"}
        Everything finite that enters softmax, what leaves it, or what leaves it times the norm of what each key
        contributes; see `headtree.capture`. Signed numbers, such as those of `TokenTensor.reduce`, have nothing to
        do with softmax; shares of keys are those of absolute values.
    mask : array of bool, optional
        True where an entry is missing because the model forbids it; broadcast to the shape of `values`.
    provenance : mapping
        Where the tensor came from.
    sinks : array (head), optional
        Attention sinks: a logit per head that enters softmax but attends to nothing, -inf for heads without one;
        ``probs = softmax([scores, sink])`` without the last column.

    Examples
    --------
    >>> att = AttentionTensor([[[0.5, 1.5]]], heads=[(0, 0)], queries=["a"], keys=["a", "b"])
    >>> att.shape, att.heads[0]
    ((1, 1, 2), HeadId(layer=0, head=0))
    """

    values: Any
    heads: tuple[HeadId, ...]
    queries: tuple[str, ...]
    keys: tuple[str, ...]
    kind: Kind = "scores"
    mask: Any = None
    provenance: Mapping[str, Any] = field(default_factory=dict)
    sinks: Any = None

    def __post_init__(self) -> None:
        values, mask = _checked_values(self.values, "values"), self.mask
        shape = tuple(int(n) for n in values.shape)
        if len(shape) != 3 or 0 in shape:
            raise InvalidValueError(
                f"values must have three axes (head, query, key), none of them empty, got shape {shape}"
            )
        _checks.one_of(self.kind, "kind", Kind)
        labels = {
            "heads": head_ids(self.heads),
            "queries": _names(self.queries, "queries"),
            "keys": _names(self.keys, "keys"),
        }
        for (name, names), n in zip(labels.items(), shape, strict=True):
            if len(names) != n:
                raise InvalidValueError(f"{name} must label the {n} slices of its axis, got {len(names)}")
            object.__setattr__(self, name, names)
        if isinstance(values, np.ma.MaskedArray):
            mask = _union(np.ma.getmaskarray(values), mask, shape)
            values = values.data
        if not isinstance(mask, StoredArray):
            mask = _checks.missing_entries(mask, "values", shape)
        object.__setattr__(self, "values", values)
        object.__setattr__(self, "mask", mask)
        object.__setattr__(self, "sinks", _checked_sinks(self.sinks, shape[0]))
        if not isinstance(self.provenance, Mapping):
            raise InvalidTypeError(f"provenance must be a mapping, got {self.provenance!r}; pass a dict")
        object.__setattr__(self, "provenance", MappingProxyType(dict(self.provenance)))

    def __getstate__(self) -> dict[str, Any]:
        state = {**self.__dict__, "provenance": dict(self.provenance)}  # a mapping proxy cannot be pickled
        if isinstance(self.values, Tensor) and not self.values.is_leaf:
            state["values"] = self.values.detach()  # nor can a tensor within a graph of gradients
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, provenance=MappingProxyType(state["provenance"]))

    @classmethod
    def from_array(
        cls,
        x: Any,
        *,
        heads: Sequence[tuple[int, int]] | None = None,
        heads_per_layer: int | None = None,
        queries: Sequence[str] | None = None,
        keys: Sequence[str] | None = None,
        kind: Kind = "scores",
        mask: Any = None,
    ) -> AttentionTensor:
        """Label any (head, query, key) array.

        Without `heads`, heads are numbered in one layer, or in layers of `heads_per_layer`. Tokens are named by
        their positions unless `queries` and `keys` name them.

        Examples
        --------
        >>> att = AttentionTensor.from_array(np.zeros((4, 2, 2)), heads_per_layer=2, kind="probs")
        >>> att
        AttentionTensor(4 heads in 2 layers × 2 queries × 2 keys, probs)
        >>> att.heads[3], att.keys
        (HeadId(layer=1, head=1), ('0', '1'))
        """
        values = _checked_values(x, "x")
        if len(values.shape) != 3:
            raise InvalidValueError(
                f"x must have three axes (head, query, key), got shape {tuple(values.shape)}; "
                "organize_array takes arrays with any number of axes"
            )
        n_heads, n_queries, n_keys = values.shape
        if heads is not None and heads_per_layer is not None:
            raise InvalidTypeError("give heads or heads_per_layer, not both")
        per_layer = n_heads if heads_per_layer is None else _checks.at_least_one(heads_per_layer, "heads_per_layer")
        if heads_per_layer is not None and n_heads % per_layer:
            raise InvalidValueError(f"heads_per_layer must divide the {n_heads} heads, got {heads_per_layer}")
        return cls(
            values=values,
            heads=head_ids([divmod(i, per_layer) for i in range(n_heads)] if heads is None else heads),
            queries=_names(range(n_queries) if queries is None else queries, "queries"),
            keys=_names(range(n_keys) if keys is None else keys, "keys"),
            kind=kind,
            mask=mask,
        )

    @property
    def shape(self) -> tuple[int, int, int]:
        """Number of heads, queries and keys."""
        n_heads, n_queries, n_keys = self.values.shape
        return int(n_heads), int(n_queries), int(n_keys)

    def block(
        self, heads: slice = slice(None), queries: slice = slice(None), keys: slice = slice(None)
    ) -> Float[Tensor, "head query key"]:
        """A block of the values as a float tensor on the CPU; of a tensor on disk only the block is read.

        Examples
        --------
        >>> att = AttentionTensor.from_array(np.arange(8.0).reshape(2, 2, 2))
        >>> att.block(heads=slice(1, 2), keys=slice(0, 1)).tolist()
        [[[4.0], [6.0]]]
        """
        return _checks.real_tensor(self.values[heads, queries, keys], "values")

    def load(self) -> AttentionTensor:
        """The same tensor with all its values in memory; itself, if they are in memory already.

        Examples
        --------
        >>> att = AttentionTensor.from_array([[[1.0]]])
        >>> att.load() is att
        True
        """
        if not isinstance(self.values, LazyArray):
            return self
        mask = self.mask if not isinstance(self.mask, StoredArray) else np.asarray(self.mask)
        return replace(self, values=torch.from_numpy(np.asarray(self.values)), mask=mask)

    def filled(self) -> Filled:
        """The values without gaps, as measures need them, and how many entries were filled.

        Missing scores take the mean of their row's present entries; a row without any takes the mean of its head,
        and a head without any is 0. In other kinds missing entries become 0. A tensor without a mask returns its
        own values.

        Examples
        --------
        >>> scores = [[[1.0, 9.0], [2.0, 4.0]]]
        >>> att = AttentionTensor.from_array(scores, mask=[[[False, True], [False, False]]])
        >>> att.filled().values.tolist(), att.filled().n_filled
        ([[[1.0, 1.0], [2.0, 4.0]]], 1)
        """
        att = self.load()  # measures read all of a tensor on disk
        if att.mask is None:
            values = att.values.cpu() if isinstance(att.values, Tensor) else att.values
            return Filled(_checks.full_tensor(values, "att.values"), 0)
        values = _checks.real_tensor(att.values, "att.values")
        return fill(values, att.mask, with_row_means=att.kind == "scores")

    def log_probs(self) -> Float[Tensor, "head query key"]:
        """Logarithms of probabilities in float64, without gaps and finite.

        They equal the scores that entered softmax up to a constant per row, which softmax ignores. A probability of
        exactly 0, an underflow of softmax, takes the logarithm of the head's smallest positive one, so a matrix
        whose smallest probabilities are tiny hardly changes. Missing entries take the mean of their row, as missing
        scores do. Weights, and absolute values of signed numbers, are treated alike: softmax scales their rows.

        Examples
        --------
        >>> att = AttentionTensor.from_array([[[0.0, 1.0], [0.25, 0.75]]], kind="probs")
        >>> att.log_probs().exp()
        tensor([[[0.2500, 1.0000],
                 [0.2500, 0.7500]]], dtype=torch.float64)
        """
        if self.kind == "scores":
            raise InvalidValueError(
                "log_probs needs another kind than 'scores', which already are what enters softmax; use filled()"
            )
        att = self.load()
        return finite_logarithms(_checks.real_tensor(att.values, "att.values").double().abs(), att.mask)

    def centred(self) -> AttentionTensor:
        """Scores without what softmax cannot see: each row minus the mean over its allowed keys, in memory.

        Softmax ignores a constant that is added to a row, so such constants say nothing about attention; but they
        can dominate the size of scores and their distances. Missing entries stay missing. Attention sinks are
        dropped, since their logits are not shifted along: take probabilities of the tensor itself.

        Examples
        --------
        >>> att = AttentionTensor.from_array([[[1.0, 3.0], [104.0, 100.0]]])
        >>> att.centred().block().tolist()
        [[[-1.0, 1.0], [2.0, -2.0]]]
        """
        if self.kind != "scores":
            raise InvalidValueError(
                f"centred needs scores (kind='scores'), got kind={self.kind!r}; what leaves softmax is free of "
                "constants already"
            )
        if self.provenance.get("centred"):
            return self.load() if isinstance(self.values, StoredArray) else self
        if isinstance(self.values, FactoredArray):
            centred = self.values.centred(self.mask)
            return replace(self, values=centred, sinks=None, provenance={**self.provenance, "centred": True})
        att = self.load()
        check_future_keys(att)
        values = _checks.real_tensor(att.values, "att.values")
        values = centre_rows(values, None if att.mask is None else torch.as_tensor(att.mask))
        return replace(att, values=values, sinks=None, provenance={**att.provenance, "centred": True})

    def take(self, heads: Any) -> AttentionTensor:
        """Some heads of the tensor, in memory; of a tensor on disk only these are read.

        Parameters
        ----------
        heads : int, str, HeadId or sequence of them
            Indices (negative ones count from the end), names such as "L3H5", HeadIds or pairs (layer, head). A pair
            on its own is two indices: write ``[(3, 5)]`` for one head given by its layer and number.

        Examples
        --------
        >>> att = AttentionTensor.from_array([[[1.0]], [[2.0]], [[3.0]], [[4.0]]], heads_per_layer=2)
        >>> att.take(["L1H0", (0, 1)]).block().tolist()
        [[[3.0]], [[2.0]]]
        >>> att.take([0, -1]).heads
        (HeadId(layer=0, head=0), HeadId(layer=1, head=1))
        """
        indices = head_indices(self.heads, heads)
        mask = _taken_mask(self.mask, indices)
        is_blind = mask is not None and bool(mask.all())
        result = replace(
            self,
            values=_taken(self.values, indices),
            heads=tuple(self.heads[i] for i in indices),
            mask=None if is_blind else mask,
            sinks=None if self.sinks is None else self.sinks[indices],
        )
        if is_blind:  # a whole tensor must not be hidden, but some of its heads may be
            object.__setattr__(result, "mask", mask)
        return result

    def save(self, path: str | PathLike[str], *, half: bool = False, overwrite: bool = False) -> None:
        """Write the tensor as a Zarr folder that `xarray.open_zarr` reads, whole or not at all.

        The format is that of ``attention.zarr`` in a run, with one input. Missing entries are stored as 0, integers
        as float64, and lone surrogates in labels with backslashes.

        Parameters
        ----------
        path : path
            The folder to make, usually named ``*.zarr``.
        half : bool
            Store the values in half precision: half the size, three significant digits for magnitudes between 6e-5
            and 65504, fewer below. Values that are all below or exceed that range are refused.
        overwrite : bool
            Replace a saved tensor at this path, unless its folder contains other files as well.

        Examples
        --------
        >>> import tempfile
        >>> folder = tempfile.mkdtemp()
        >>> AttentionTensor.from_array([[[1.0, 2.0]]]).save(f"{folder}/a.zarr")
        >>> AttentionTensor.open(f"{folder}/a.zarr")
        AttentionTensor(1 head in 1 layer × 1 query × 2 keys, scores, on disk)
        """
        from headtree.tensor import store

        store.save_tensor(self, path, half=half, overwrite=overwrite)

    @classmethod
    def open(cls, path: str | PathLike[str], *, input: int | None = None) -> AttentionTensor:
        """Open a saved tensor: labels are read at once, values and mask when a block of them is needed.

        Parameters
        ----------
        path : path
            A folder that `save` made, or ``attention.zarr`` in a run.
        input : int, optional
            Which input, where the folder holds several.

        Examples
        --------
        >>> import tempfile
        >>> folder = tempfile.mkdtemp()
        >>> AttentionTensor.from_array([[[1.0, 2.0], [3.0, 4.0]]]).save(f"{folder}/a.zarr")
        >>> AttentionTensor.open(f"{folder}/a.zarr").block(queries=slice(1, 2))
        tensor([[[3., 4.]]], dtype=torch.float64)
        """
        from headtree.tensor import store

        return store.open_tensor(path, input)

    def __repr__(self) -> str:
        _, n_queries, n_keys = self.shape
        held = f", {self.values.held}" if isinstance(self.values, LazyArray) else ""
        return (
            f"AttentionTensor({counted_slices(self.heads, self.provenance)} × "
            f"{_counted(n_queries, 'query', 'queries')} × {_counted(n_keys, 'key')}, "
            f"{self.kind}{self._missing_words()}{held})"
        )

    def _repr_html_(self) -> str:
        chosen = np.unique(np.linspace(0, self.shape[0] - 1, min(self.shape[0], 12)).astype(int))
        step = [slice(None, None, -(-n // _SHOWN_AT_MOST)) for n in self.shape[1:]]
        pictures = []
        for head in map(int, chosen):
            shown = (slice(head, head + 1), *step)
            values = _checks.real_tensor(self.values[shown], "values")[0].numpy().astype(np.float64)
            if self.mask is not None:
                values = np.where(np.asarray(self.mask[shown])[0], np.nan, values)
            pictures.append(_notebook.heatmap(values, str(self.heads[head])))
        shown_words = f"Queries down, keys across; {_counted(len(chosen), slices_of(self.provenance))}"
        return _notebook.panel(repr(self), [shown_words], pictures)

    def _missing_words(self) -> str:
        if self.mask is None:
            return ""
        if isinstance(self.mask, StoredArray):
            return ", some missing"
        return f", {int(self.mask.sum()) / self.mask.numel():.0%} missing"


def _checked_values(values: Any, name: str) -> Any:
    """`values` as they are, or as a tensor if they are not an array; only the dtype of an array is checked."""
    if not (hasattr(values, "shape") and hasattr(values, "dtype")):
        return _checks.real_tensor(values, name)
    if not _is_real(values):
        raise InvalidTypeError(
            f"{name} must be a dense array of real numbers, got {type(values).__name__} of {values.dtype}; convert "
            "it to floats, take its real part or absolute value, or make it dense"
        )
    return values


def _is_real(values: Any) -> bool:
    if isinstance(values, Tensor):
        return not (values.is_complex() or values.is_quantized) and values.layout == torch.strided
    try:
        return np.dtype(values.dtype).kind in "fiub"
    except TypeError:
        return False


def head_ids(heads: Any) -> tuple[HeadId, ...]:
    """Pairs (layer, head) of integers as HeadIds."""
    try:
        pairs = [(layer, head) for layer, head in heads]
        return tuple(HeadId(operator.index(layer), operator.index(head)) for layer, head in pairs)
    except (TypeError, ValueError):
        raise InvalidTypeError(
            "heads must be pairs (layer, head) of integers, one for each slice, got "
            f"{reprlib.repr(heads)}; for example [(0, 0), (0, 1)]"
        ) from None


def head_indices(known: Sequence[HeadId], heads: Any) -> list[int]:
    """Indices of heads given by index, by name or by (layer, head)."""
    if isinstance(heads, str | HeadId | int | np.integer):
        heads = [heads]
    try:
        given = heads.tolist() if isinstance(heads, Tensor | np.ndarray) else list(heads)
    except TypeError:
        raise InvalidTypeError(f"heads must be a sequence of heads, got {heads!r}; pass a list") from None
    if not given:
        raise InvalidValueError("heads must name at least one head, got none")
    names = {str(head): i for i, head in enumerate(known)}
    return [_head_index(known, names, head) for head in given]


def _head_index(known: Sequence[HeadId], names: Mapping[str, int], head: Any) -> int:
    if isinstance(head, int | np.integer) and not isinstance(head, bool):
        if -len(known) <= head < len(known):
            return int(head) % len(known)
    else:
        name = "L{}H{}".format(*head) if isinstance(head, tuple | list) and len(head) == 2 else head
        if isinstance(name, str) and name in names:
            return names[name]
    raise InvalidValueError(
        f"heads must be indices below {len(known)}, names or pairs (layer, head) of the tensor's heads, got "
        f"{reprlib.repr(head)}; names go from {known[0]} to {known[-1]}"
    )


def _taken(values: Any, indices: Sequence[int]) -> Any:
    """Slices along the first axis; neighbours are read together."""
    if isinstance(values, Tensor):
        return values[list(indices)]
    breaks = np.flatnonzero(np.diff(indices) != 1) + 1
    spans = [slice(int(span[0]), int(span[-1]) + 1) for span in np.split(np.asarray(indices), breaks)]
    return torch.from_numpy(np.concatenate([np.asarray(values[span]) for span in spans]))


def _taken_mask(mask: Any, indices: Sequence[int]) -> Bool[Tensor, "head query key"] | None:
    if mask is None:
        return None
    if isinstance(mask, Tensor) and _checks.is_shared(mask, 0):
        return mask[:1].expand(len(indices), -1, -1)
    taken: Tensor = _taken(mask, indices)
    return taken if taken.any() else None


def _names(labels: Any, name: str) -> tuple[str, ...]:
    """Labels as strings, as they come back from disk."""
    try:
        return tuple(map(str, labels.tolist() if isinstance(labels, Tensor) else labels))
    except (TypeError, NotImplementedError, RuntimeError):  # tensors without entries, or sparse ones
        raise InvalidTypeError(
            f"{name} must be a sequence of labels, one for each slice, got {labels!r}; pass a list of strings"
        ) from None


def _union(hidden: Any, mask: Any, shape: tuple[int, ...]) -> Any:
    """The entries that a masked array hides and those that `mask` hides."""
    mask = np.asarray(mask) if isinstance(mask, StoredArray) else mask
    given = _checks.missing_entries(mask, "values", shape)
    return hidden if given is None else torch.from_numpy(np.array(hidden)) | given


def _checked_sinks(sinks: Any, n_heads: int) -> Float[Tensor, " head"] | None:
    if sinks is None:
        return None
    tensor = _checks.real_tensor(sinks, "sinks")
    if tuple(tensor.shape) != (n_heads,):
        raise InvalidValueError(
            f"sinks must be one number for each of the {n_heads} heads, got {tuple(tensor.shape)}"
        )
    return tensor


def _counted(n: int, singular: str, plural: str | None = None) -> str:
    return f"{n} {singular if n == 1 else plural or singular + 's'}"
