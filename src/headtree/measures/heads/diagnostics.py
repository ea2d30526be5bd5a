"""What each head and layer does: measures from many papers side by side, in two tables."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, overload

import numpy as np
from jaxtyping import Float

from headtree.errors import InvalidTypeError
from headtree.measures.heads.columns import Averages, Column, averages
from headtree.measures.heads.from_model import ModelTables, model_tables
from headtree.measures.heads.glossary import OF_HEADS, OF_LAYERS
from headtree.measures.heads.patterns import pattern_columns
from headtree.measures.heads.roles import Roles, RoleTables, checked_least, role_tables, roles_from
from headtree.measures.heads.rollout import rollout_columns
from headtree.models.relevance import Target
from headtree.progress import progress
from headtree.tensor.attention_tensor import AttentionTensor, HeadId
from headtree.tensor.probabilities import checked_tensors

if TYPE_CHECKING:
    from pandas import DataFrame


@dataclass(frozen=True, eq=False)
class Diagnostics:
    """Measures of heads and layers, averaged over inputs; `measures.heads.glossary` explains every column.

    Examples
    --------
    >>> import headtree as ht
    >>> import numpy as np
    >>> att = ht.AttentionTensor.from_array(np.random.default_rng(0).normal(size=(4, 6, 6)))
    >>> found = ht.diagnostics(att)
    >>> len(found.heads), found.n_inputs
    (4, 1)
    >>> found.missing["sink_logit_mass"]
    'the model has no sink logits'
    """

    heads: DataFrame  #: one row per head: name, layer, head, the measures, the share of each role, role
    layers: DataFrame  #: one row per layer: layer, its own measures, means over its heads, role of most heads
    spread: DataFrame  #: standard deviation over inputs of the measures of heads; nan for a single input
    missing: Mapping[str, str]  #: column -> why it has no value, or not for every row
    roles: Roles
    n_inputs: int

    def __repr__(self) -> str:
        named = sum(bool(name) for name in self.roles.names)
        return (
            f"Diagnostics({len(self.heads)} heads in {len(self.layers)} layers on {self.n_inputs} inputs: "
            f"{self.heads.shape[1]} columns of heads, {self.layers.shape[1]} of layers, {named} heads with a role, "
            f"{len(self.missing)} columns wholly or partly missing)"
        )


def diagnostics(
    atts: AttentionTensor | Sequence[AttentionTensor],
    *,
    model: Any = None,
    texts: Any = None,
    images: Any = None,
    inputs: Any = None,
    target: Target = None,
    delimiters: Collection[str] | None = None,
    window: int = 4,
    least: float = 0.4,
    rng: int | np.random.Generator = 0,
    **options: Any,
) -> Diagnostics:
    """Measure every head and layer of a network on one input or several.

    Parameters
    ----------
    atts : AttentionTensor or sequence
        The same heads on each input, as scores or probabilities. Those on disk are loaded one at a time.
    model : str, path or torch.nn.Module, optional
        The model they were captured from, for measures that need weights, activations or gradients.
    texts, images, inputs, **options
        The inputs they were captured on, as for `capture`; required with a model.
    target : int or function, optional
        The output that `relevance` refers to, as in `attention_relevance`.
    delimiters, window, least
        As in `head_roles`.
    rng : int or numpy Generator
        Source of the random tokens for `induction`.

    Examples
    --------
    A head that attends to the previous token, and a head of noise:

    >>> import headtree as ht
    >>> import numpy as np
    >>> scores = np.random.default_rng(0).normal(size=(2, 8, 8))
    >>> scores[0] += 8 * np.eye(8, k=-1)
    >>> tokens = [f"t{i}" for i in range(8)]
    >>> att = ht.AttentionTensor(scores, heads=[(0, 0), (0, 1)], queries=tokens, keys=tokens)
    >>> ht.diagnostics(att).heads[["name", "role"]].to_dict("list")
    {'name': ['L0H0', 'L0H1'], 'role': ['previous token', '']}
    """
    tensors = checked_tensors(atts)
    least = checked_least(least)
    of_roles, head_tables, layer_tables = _from_attention(tensors, delimiters, window)
    roles = roles_from(tensors[0].heads, of_roles, least)
    if model is not None:
        from_model = _from_model(tensors, model, target, rng, texts=texts, images=images, inputs=inputs, **options)
        head_tables = [a | b for a, b in zip(head_tables, from_model.heads, strict=True)]
        layer_tables = [a | b for a, b in zip(layer_tables, from_model.layers, strict=True)]
    elif options or any(given is not None for given in (texts, images, inputs, target)):
        raise InvalidTypeError(
            "texts, images, inputs, target and further options are only used with a model: pass model=… too"
        )
    of_heads, of_layers = averages(head_tables), averages(layer_tables)
    heads = _heads_table(roles, {**of_heads.mean, **roles.share})
    layers = _layers_table(heads, of_layers)
    return Diagnostics(
        heads=heads,
        layers=layers,
        spread=_spread_table(roles, {**of_heads.spread, **roles.spread}),
        missing=_all_reasons(heads, layers, {**of_heads.missing, **roles.missing, **of_layers.missing}),
        roles=roles,
        n_inputs=len(tensors),
    )


def _from_attention(
    tensors: list[AttentionTensor], delimiters: Collection[str] | None, window: int
) -> tuple[list[RoleTables], list[dict[str, Column]], list[dict[str, Column]]]:
    """Measures that need only the attention of each input: roles and patterns of heads, rollout of layers."""
    roles, heads, layers = [], [], []
    with progress("patterns of heads", len(tensors)) as step:
        for i in range(len(tensors)):
            att = tensors[i].load()
            roles.append(role_tables(att, delimiters, window))
            heads.append(pattern_columns(att))
            layers.append(rollout_columns(att))
            del att  # before the next is loaded
            step(f"input {i + 1} of {len(tensors)}")
    return roles, heads, layers


class _Loaded(Sequence[AttentionTensor]):
    """Tensors loaded one at a time during iteration; indexing does not load them."""

    def __init__(self, tensors: Sequence[AttentionTensor]) -> None:
        self._tensors = tensors

    def __iter__(self) -> Iterator[AttentionTensor]:
        return (att.load() for att in self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)

    @overload
    def __getitem__(self, i: int) -> AttentionTensor: ...
    @overload
    def __getitem__(self, i: slice) -> Sequence[AttentionTensor]: ...
    def __getitem__(self, i: int | slice) -> AttentionTensor | Sequence[AttentionTensor]:
        return self._tensors[i]


def _from_model(tensors: list[AttentionTensor], model: Any, target: Target, rng: Any, **given: Any) -> ModelTables:
    from headtree.models.given_model import prepare

    part = given.pop("part", tensors[0].provenance.get("part"))
    return model_tables(_Loaded(tensors), prepare(model, kind="probs", part=part, **given), target, rng)


def _all_reasons(heads: DataFrame, layers: DataFrame, known: dict[str, str]) -> Mapping[str, str]:
    """Give a reason for every column that is missing, or missing in some rows."""
    absent = [name for name in {**OF_HEADS, **OF_LAYERS} if name not in heads and name not in layers]
    return MappingProxyType({**dict.fromkeys(absent, "needs the model: pass model=…"), **known})


def _labels(heads: Sequence[HeadId]) -> dict[str, Any]:
    return {
        "name": [str(head) for head in heads],
        "layer": [head.layer for head in heads],
        "head": [head.head for head in heads],
    }


def _heads_table(roles: Roles, columns: Mapping[str, Float[np.ndarray, " head"]]) -> DataFrame:
    import pandas as pd

    return pd.DataFrame(
        {**_labels(roles.heads), **columns, "role": list(roles.names), "leaning": list(roles.leanings)}
    )


def _spread_table(roles: Roles, columns: Mapping[str, Float[np.ndarray, " head"]]) -> DataFrame:
    import pandas as pd

    return pd.DataFrame({**_labels(roles.heads), **columns})


def _layers_table(heads: DataFrame, of_layers: Averages) -> DataFrame:
    """Measures of layers, then means over the heads of each; the mean distance between heads is their diversity."""
    import pandas as pd

    groups = heads.groupby("layer", sort=True)
    means = groups.mean(numeric_only=True).drop(columns="head")
    means = means.rename(columns={"distance_to_layer": "head_diversity"})
    own = pd.DataFrame(dict(of_layers.mean), index=means.index)
    roles = groups["role"].agg(_most_frequent)
    return pd.concat([groups.size().rename("n_heads"), own, means, roles], axis=1).reset_index()


def _most_frequent(names: Any) -> str:
    """The role of at least half of the heads, or "" if there is none."""
    counts = names.value_counts()
    return str(counts.index[0]) if 2 * int(counts.iloc[0]) >= len(names) else ""
