"""What goes through JSON comes back bit for bit."""

import json
from dataclasses import dataclass

import numpy as np
import pytest
from jaxtyping import Bool, Float, Int

from headtree._json import from_json, to_json
from headtree.errors import HeadtreeError
from headtree.tensor.attention_tensor import HeadId


def flat(value, path=""):
    """Every number, text and array of a result, by its place."""
    if isinstance(value, dict):
        return {k: v for name, item in value.items() for k, v in flat(item, f"{path}.{name}").items()}
    if isinstance(value, list | tuple) and not isinstance(value, HeadId):
        return {k: v for i, item in enumerate(value) for k, v in flat(item, f"{path}[{i}]").items()}
    if hasattr(value, "__dataclass_fields__"):
        return flat({name: getattr(value, name) for name in value.__dataclass_fields__}, path)
    return {path: value}


def same(a, b):
    assert list(flat(a)) == list(flat(b))
    for x, y in zip(flat(a).values(), flat(b).values(), strict=True):
        assert type(x) is type(y)
        if isinstance(x, np.ndarray):
            assert (x.dtype, x.shape) == (y.dtype, y.shape)
            np.testing.assert_array_equal(x, y)
        else:
            assert x == y or (x != x and y != y)
    return True


@dataclass(frozen=True, eq=False)
class Inner:
    head: HeadId
    share: float


@dataclass(frozen=True, eq=False)
class Outer:
    name: str
    table: Float[np.ndarray, "row column"]
    counts: Int[np.ndarray, " row"]
    holds: Bool[np.ndarray, " row"]
    by_name: dict[str, Inner]
    several: tuple[HeadId, ...]
    pair: tuple[float, int]
    rows: list[Float[np.ndarray, " _n"]]
    absent: Inner | None
    there: Inner | None


def test_every_bit_and_type_comes_back():
    rng = np.random.default_rng(0)
    inner = Inner(HeadId(3, 1), 0.1)
    outer = Outer(
        name='a "name"',
        table=np.array([[np.nan, np.inf, -np.inf], [5e-324, -0.0, np.nextafter(1, 2)]]),
        counts=np.array([2**62, -1]),
        holds=np.array([True, False]),
        by_name={"first": inner},
        several=(HeadId(0, 0), HeadId(0, 1)),
        pair=(1.5, 2),
        rows=[rng.standard_normal(4), rng.standard_normal(1), np.zeros(0)],
        absent=None,
        there=inner,
    )
    again = from_json(Outer, json.loads(json.dumps(to_json(outer))))
    assert same(outer, again)
    assert np.signbit(again.table[1, 1])
    assert isinstance(again.several[0], HeadId)


def test_what_would_lose_its_type_is_refused():
    with pytest.raises(HeadtreeError, match="float64, int64, bool, got float32"):
        to_json(np.zeros(2, np.float32))
