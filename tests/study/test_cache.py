import numpy as np
import pytest

import headtree as ht
from headtree.study.cache import from_json, kept, origin_of, to_json
from headtree.study.claims.evidence import Evidence, evidence_of
from headtree.study.claims.single_heads import matrix_regularity
from headtree.tensor.attention_tensor import HeadId
from tests.runs.examples import small_run, tensors


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


@pytest.fixture(scope="module")
def evidence():
    att = tensors(1, n_tokens=(14,), causal=True)[0]
    return evidence_of(att, ht.organize(att))


def test_what_is_kept_comes_back_bit_for_bit(evidence, tmp_path):
    file = tmp_path / "folder" / "a.json"
    assert kept(file, ["x"], lambda: evidence) is evidence
    again = kept(file, ["x"], lambda: pytest.fail("measured again"))
    assert isinstance(again, Evidence)
    assert same(evidence, again)
    matrices = matrix_regularity(tensors(1, n_tokens=(14,))[0])
    assert same(matrices, from_json(to_json(matrices)))
    odd = [(1, 2.5), {"a": [float("nan"), float("inf")], "b": HeadId(1, 2)}, "text", None, True]
    assert same(odd, from_json(to_json(odd)))


@pytest.mark.parametrize("damage", ["", "{", "[]", '{"origin": 1}', None])
def test_files_of_no_use_are_replaced(evidence, tmp_path, damage):
    file = tmp_path / "a.json"
    kept(file, ["x"], lambda: 1.5)
    if damage is None:  # made from something else
        assert kept(file, ["y"], lambda: 2.5) == 2.5
        return
    whole = file.read_text()
    file.write_text(damage or whole[: len(whole) // 2])
    assert kept(file, ["x"], lambda: 3.5) == 3.5
    assert kept(file, ["x"], lambda: 4.5) == 3.5
    assert [path.name for path in tmp_path.iterdir()] == ["a.json"]


def test_another_run_in_the_same_place_is_another_origin(tmp_path):
    first = small_run(tmp_path / "run")
    assert origin_of(first) == origin_of(ht.open_run(first.path))
    second = small_run(tmp_path / "other", seed=1)
    assert origin_of(first) != origin_of(second)
