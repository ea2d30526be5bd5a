"""What each head and layer does: measures from many papers side by side, in two tables."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float

from headtree.errors import InvalidTypeError
from headtree.measures.heads.columns import Averages, Column, averages, joined_columns
from headtree.measures.heads.from_model import ModelOfInputs
from headtree.measures.heads.glossary import OF_HEADS, OF_LAYERS
from headtree.measures.heads.patterns import distance_to_layer, own_columns
from headtree.measures.heads.roles import Roles, RoleTables, checked_least, role_tables, roles_from
from headtree.measures.heads.rollout import rollout_columns
from headtree.models.relevance import Target
from headtree.progress import progress
from headtree.tensor.attention_tensor import AttentionTensor, HeadId
from headtree.tensor.factored_array import FactoredArray
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
        The same heads on each input, as scores or probabilities. Those on disk are loaded one at a time; those held
        as factors are multiplied out some heads at a time.
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
    ran = None
    if model is not None:
        ran = _model_of_inputs(tensors, model, texts=texts, images=images, inputs=inputs, **options)
    elif options or any(given is not None for given in (texts, images, inputs, target)):
        raise InvalidTypeError(
            "texts, images, inputs, target and further options are only used with a model: pass model=… too"
        )
    shared = {} if ran is None else ran.same_for_all(tensors[0].heads, rng)
    tables = []
    with progress("diagnosing", len(tensors)) as step:
        for i, att in enumerate(tensors):
            held = att if isinstance(att.values, FactoredArray) else att.load()
            tables.append(input_tables(held, ran, i, target=target, delimiters=delimiters, window=window))
            step(f"input {i + 1} of {len(tensors)}")
    return combined(tensors[0].heads, tables, shared, least)


@dataclass(frozen=True, eq=False)
class InputTables:
    """What is measured on one input: shares of roles, and columns of heads and of layers."""

    roles: RoleTables
    heads: dict[str, Column]  #: that the attention gives
    more_heads: dict[str, Column]  #: that need the model
    layers: dict[str, Column]


def input_tables(
    att: AttentionTensor,
    ran: ModelOfInputs | None = None,
    i: int = 0,
    *,
    target: Target = None,
    delimiters: Collection[str] | None = None,
    window: int = 4,
) -> InputTables:
    """Measure the heads and layers on one input, number `i` of those of the model if there is one.

    A tensor that is not in memory is read some heads at a time, several times.
    """
    return of_parts(layer_tables(att, ran, i, target=target), [head_tables(att, delimiters, window)])


#: Shares of roles of some heads, and what their attention alone gives.
HeadTables = tuple[RoleTables, dict[str, Column]]


def head_tables(att: AttentionTensor, delimiters: Collection[str] | None = None, window: int = 4) -> HeadTables:
    """What is measured on each of some heads, whatever the others are."""
    return role_tables(att, delimiters, window), own_columns(att)


@dataclass(frozen=True, eq=False)
class LayerTables:
    """What is measured on the heads of layers together, or by the model."""

    distance_to_layer: Column
    more_heads: dict[str, Column]
    layers: dict[str, Column]


def layer_tables(
    att: AttentionTensor, ran: ModelOfInputs | None = None, i: int = 0, *, target: Target = None
) -> LayerTables:
    """The measures of layers, and those of heads that need the layer or the model."""
    distance, layers = distance_to_layer(att), rollout_columns(att)
    if ran is None:
        return LayerTables(distance, {}, layers)
    more_heads, more_layers = ran.of_input(i, att, target)
    return LayerTables(distance, more_heads, layers | more_layers)


def of_parts(layers: LayerTables, parts: Sequence[HeadTables]) -> InputTables:
    """The tables of an input from those of its layers, and of its heads in one block or several."""
    roles = tuple(joined_columns([part[0][i] for part in parts]) for i in range(len(parts[0][0])))
    heads = joined_columns([part[1] for part in parts]) | {"distance_to_layer": layers.distance_to_layer}
    return InputTables(roles, heads, layers.more_heads, layers.layers)


def combined(
    of: Sequence[HeadId], tables: Sequence[InputTables], shared: Mapping[str, Column], least: float = 0.4
) -> Diagnostics:
    """The averages over inputs; `shared` are columns of heads that are the same on all inputs."""
    roles = roles_from(tuple(of), [each.roles for each in tables], least)
    of_heads = averages([{**each.heads, **shared, **each.more_heads} for each in tables])
    of_layers = averages([each.layers for each in tables])
    heads = _heads_table(roles, {**of_heads.mean, **roles.share})
    layers = _layers_table(heads, of_layers)
    return Diagnostics(
        heads=heads,
        layers=layers,
        spread=_spread_table(roles, {**of_heads.spread, **roles.spread}),
        missing=_all_reasons(heads, layers, {**of_heads.missing, **roles.missing, **of_layers.missing}),
        roles=roles,
        n_inputs=len(tables),
    )


def _model_of_inputs(tensors: list[AttentionTensor], model: Any, **given: Any) -> ModelOfInputs:
    from headtree.models.given_model import prepare

    part = given.pop("part", tensors[0].provenance.get("part"))
    ran = ModelOfInputs.of(prepare(model, kind="probs", part=part, **given))
    ran.check_number(len(tensors))
    return ran


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
