import pytest

import headtree as ht
from headtree._json import from_json, to_json
from headtree.study.cache import cached, origin_of
from headtree.study.claims.evidence import ClaimNumbers, measure_beyond
from headtree.study.claims.single_heads import MatrixRegularity, matrix_regularity
from tests.runs.examples import small_run, tensors
from tests.test_json import same


@pytest.fixture(scope="module")
def numbers():
    att = tensors(1, n_tokens=(14,), causal=True)[0]
    return measure_beyond(att, ht.organize(att), 400)


def test_what_is_kept_comes_back_bit_for_bit(numbers, tmp_path):
    file = tmp_path / "folder" / "a.json"
    assert cached(file, ["x"], ClaimNumbers, lambda: numbers) is numbers
    again = cached(file, ["x"], ClaimNumbers, lambda: pytest.fail("measured again"))
    assert isinstance(again, ClaimNumbers)
    assert same(numbers, again)
    matrices = matrix_regularity(tensors(1, n_tokens=(14,))[0])
    assert same(matrices, from_json(MatrixRegularity, to_json(matrices)))


@pytest.mark.parametrize("damage", ["", "{", "[]", '{"origin": 1}', None])
def test_files_of_no_use_are_replaced(tmp_path, damage):
    file = tmp_path / "a.json"
    cached(file, ["x"], float, lambda: 1.5)
    if damage is None:  # made from something else
        assert cached(file, ["y"], float, lambda: 2.5) == 2.5
        return
    whole = file.read_text()
    file.write_text(damage or whole[: len(whole) // 2])
    assert cached(file, ["x"], float, lambda: 3.5) == 3.5
    assert cached(file, ["x"], float, lambda: 4.5) == 3.5
    assert [path.name for path in tmp_path.iterdir()] == ["a.json"]


def test_another_run_in_the_same_place_is_another_origin(tmp_path):
    first = small_run(tmp_path / "run")
    assert origin_of(first) == origin_of(ht.open_run(first.path))
    second = small_run(tmp_path / "other", seed=1)
    assert origin_of(first) != origin_of(second)
