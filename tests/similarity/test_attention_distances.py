"""Distances of heads, once more in plain loops."""

import numpy as np
import pytest
from scipy.spatial.distance import jensenshannon

import headtree as ht
from headtree.similarity.attention_distances import attention_distance, probability_cosines
from headtree.similarity.head_similarity import named_heads
from headtree.tensor import probabilities
from tests.similarity.examples import cases, own_masks, scores, tensor

KINDS = ("attention", "cosine", "jensen-shannon", "l1")
NAMES = tuple(cases())


def literal_rows(att):
    """head -> query -> probabilities of all keys and, last, of the sink; queries that a head lacks are left out."""
    x = np.asarray(att.values, dtype=np.float64)
    mask = np.zeros(att.shape, bool) if att.mask is None else np.broadcast_to(np.asarray(att.mask), att.shape)
    found = []
    for head in range(att.shape[0]):
        rows = {}
        for query in range(att.shape[1]):
            allowed = [key for key in range(att.shape[2]) if not mask[head, query, key]]
            if not allowed:
                continue
            row = np.zeros(att.shape[2] + 1)
            if att.kind == "scores":
                for key in allowed:
                    row[key] = np.exp(x[head, query, key])
                if att.sinks is not None:
                    row[-1] = np.exp(float(att.sinks[head]))
            else:
                row[allowed] = x[head, query, allowed]
            rows[query] = row / row.sum()
        found.append(rows)
    return found


def hellinger(p, q):
    return np.sqrt(max(0, 1 - np.mean([sum(np.sqrt(a * b)) for a, b in zip(p, q, strict=True)])))


def total_variation(p, q):
    return np.mean([sum(abs(a - b)) / 2 for a, b in zip(p, q, strict=True)])


def jensen_shannon(p, q):
    return np.sqrt(np.mean([jensenshannon(a, b) ** 2 for a, b in zip(p, q, strict=True)]))


def cosine(p, q):
    p, q = (np.concatenate([row[:-1] for row in rows]) for rows in (p, q))  # without the sink
    return 1 - p @ q / np.sqrt((p @ p) * (q @ q))


LITERAL = {"attention": hellinger, "l1": total_variation, "jensen-shannon": jensen_shannon, "cosine": cosine}


def literal_distance(att, kind):
    rows, n = literal_rows(att), att.shape[0]
    found = np.zeros((n, n))
    for a in range(n):
        for b in range(n):
            both = sorted(rows[a].keys() & rows[b].keys())
            if a != b:
                found[a, b] = LITERAL[kind]([rows[a][q] for q in both], [rows[b][q] for q in both])
    return found


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(3))
def test_distances_are_those_of_the_definition(kind, name, seed):
    att = cases(seed)[name]
    found = attention_distance(att, kind)
    np.testing.assert_allclose(found, literal_distance(att, kind), atol=1e-7)
    np.testing.assert_array_equal(found, found.T)
    np.testing.assert_array_equal(np.diag(found), 0)
    assert found.max() <= np.sqrt(np.log(2)) if kind == "jensen-shannon" else found.max() <= 1


@pytest.mark.parametrize("kind", KINDS)
def test_probabilities_are_taken_as_they_are(kind):
    att = cases()["sinks and own masks"]
    rows = np.zeros(att.shape)
    for head, found in enumerate(literal_rows(att)):
        for query, row in found.items():
            rows[head, query] = row[:-1]  # sums to less than one
    probs = tensor(rows, np.asarray(att.mask), kind="probs")
    np.testing.assert_allclose(attention_distance(probs, kind), attention_distance(att, kind), atol=1e-7)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("kind", KINDS)
def test_blocks_of_queries_give_what_one_block_gives(kind, name, monkeypatch):
    att = cases()[name]
    whole = attention_distance(att, kind)
    for n_queries in (1, 4):
        monkeypatch.setattr(probabilities, "_ENTRIES", n_queries * att.shape[0] * att.shape[2])
        np.testing.assert_allclose(attention_distance(att, kind), whole, atol=1e-12)


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(4))
def test_equal_heads_have_distance_exactly_0_and_affinity_1(kind, dtype, seed):
    x, mask = scores(8, 9, 10, seed).astype(dtype), own_masks(8, 9, 10, seed)
    sinks = np.random.default_rng(seed).standard_normal(8).astype(dtype)
    for values in (x, mask, sinks):
        values[5] = values[2]
    for att in (tensor(x), tensor(x, mask), tensor(x, mask, sinks)):
        found = ht.head_similarity(att, kind)
        assert found.distance[0, 2, 5] == found.distance[0, 5, 2] == 0
        assert found.affinity[0, 2, 5] == 1
        others = found.distance[0][~np.eye(8, dtype=bool)]
        assert np.sum(others == 0) == 2


@pytest.mark.parametrize("kind", KINDS)
def test_heads_that_look_at_different_keys_are_as_far_apart_as_can_be(kind):
    probs = np.eye(4)[[[0, 1], [2, 3]]]
    furthest = np.sqrt(np.log(2)) if kind == "jensen-shannon" else 1
    assert attention_distance(tensor(probs, kind="probs"), kind)[0, 1] == pytest.approx(furthest)


def test_cosines_of_a_head_without_attention_are_0():
    probs = np.stack([np.full((2, 4), 0.25), np.zeros((2, 4))])
    found = probability_cosines(tensor(probs, kind="probs"))
    np.testing.assert_allclose(found, [[1, 0], [0, 0]])


@pytest.mark.parametrize("kind", KINDS)
def test_heads_without_a_query_in_common_are_refused_by_name(kind):
    mask = np.zeros((5, 6, 7), bool)
    mask[1, :3] = mask[4, 3:] = True
    with pytest.raises(ht.HeadtreeError, match="heads L0H1 and L0H4 have no query in common"):
        attention_distance(tensor(scores(), mask), kind)
    mask[3] = True
    with pytest.raises(ht.HeadtreeError, match=r"head L0H3 is masked on every query .* att\.take"):
        attention_distance(tensor(scores(), mask), kind)


def test_notes_name_a_few_heads_of_many():
    heads = [ht.HeadId(0, head) for head in range(9)]
    assert named_heads(heads[:8]) == ", ".join(f"L0H{i}" for i in range(8))
    assert named_heads(heads) == "L0H0, L0H1, L0H2, … (9 in all)"
