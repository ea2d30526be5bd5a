import re

import numpy as np
import pytest

import headtree as ht
from headtree.measures.heads.roles import WORDS, head_roles
from headtree.measures.heads.token_relations import is_delimiter_token, query_positions
from tests.measures.attention_examples import (
    WORDS as SENTENCE,
)
from tests.measures.attention_examples import (
    causal,
    plain_softmax,
    previous,
    probs,
    random_scores,
    to_key,
    uniform,
)

N = len(SENTENCE)
TEXT = {"queries": SENTENCE, "keys": SENTENCE}
GRID = ["class", *[f"r{i}c{j}" for i in range(4) for j in range(5)]]


def in_role(name, q, k, queries, keys, offset, window=4):
    """Whether key k is in the role for query q, in plain words."""
    here = q + offset
    if name in ("same_row", "same_column", "neighbours"):
        a, b = (re.fullmatch(r"r(\d+)c(\d+)", label) for label in (queries[q], keys[k]))
        if a is None or b is None or a[0] == b[0]:
            return False
        rows, columns = (abs(int(a[i]) - int(b[i])) for i in (1, 2))
        return {"same_row": rows == 0, "same_column": columns == 0, "neighbours": max(rows, columns) == 1}[name]
    return {
        "previous_token": k == here - 1,
        "same_token": k == here,
        "next_token": k == here + 1,
        "first_token": k == 0,
        "class_token": keys[k] == "class",
        "delimiters": k > 0 and keys[k] in (",", "."),
        "earlier_copies": k < here and keys[k] == queries[q],
        "nearby_tokens": abs(here - k) <= window,
    }[name]


def literal(att, name, offset=0):
    """Share and chance of each head: the queries that can choose, one by one."""
    weights, allowed = plain_softmax(att)
    shares, chances = [], []
    for h in range(att.shape[0]):
        share, chance = [], []
        for q in range(att.shape[1]):
            keys = [k for k in range(att.shape[2]) if allowed[h, q, k]]
            inside = [k for k in keys if in_role(name, q, k, att.queries, att.keys, offset)]
            if 0 < len(inside) < len(keys):
                share.append(sum(weights[h, q, k] for k in inside))
                chance.append(sum(weights[h, q, k] for k in keys) * len(inside) / len(keys))
        shares.append(np.mean(share) if share else np.nan)
        chances.append(np.mean(chance) if chance else np.nan)
    return np.array(shares), np.array(chances)


@pytest.mark.parametrize(
    ("att", "offset"),
    [
        (random_scores(0, 3, N, N, **TEXT), 0),
        (random_scores(1, 3, N, N, mask=causal(N), **TEXT), 0),
        (random_scores(2, 2, N, N, mask=np.random.default_rng(0).random((2, N, N)) < 0.2, **TEXT), 0),
        (random_scores(3, 2, 6, N, queries=SENTENCE[-6:], keys=SENTENCE, mask=causal(N)[-6:]), N - 6),
        (random_scores(4, 2, 21, 21, queries=GRID, keys=GRID), 0),
    ],
    ids=["text", "causal", "masks by head", "after a memory", "image"],
)
def test_shares_and_chances_are_their_definitions(att, offset):
    found = head_roles(att)
    for name in WORDS:
        share, chance = literal(att, name, offset)
        if name in found.share:
            np.testing.assert_allclose(found.share[name], share, rtol=1e-9, atol=1e-12, err_msg=name)
            np.testing.assert_allclose(found.chance[name], chance, rtol=1e-9, err_msg=name)
        else:
            assert name in found.missing
    assert set(found.share) | set(found.missing) == set(WORDS)


def test_chance_is_what_shuffled_rows_have():
    """The closed form against two thousand shuffles: the mean to four standard errors, the deviation to 8 %."""
    att = random_scores(0, 1, N, N, mask=causal(N), scale=3.0, **TEXT)
    weights, _ = plain_softmax(att)
    rng, shuffled = np.random.default_rng(0), []
    for _ in range(2000):
        a = np.zeros((N, N))
        for q in range(N):
            a[q, : q + 1] = rng.permutation(weights[0, q, : q + 1])
        shuffled.append([np.mean([a[q, 0] for q in range(1, N)]), np.mean([a[q, q - 1] for q in range(1, N)])])
    found = head_roles(att)
    for i, name in enumerate(["first_token", "previous_token"]):
        draws = np.array(shuffled)[:, i]
        deviation = (found.share[name] - found.chance[name]) / found.score[name]
        assert abs(draws.mean() - found.chance[name][0]) < 4 * draws.std() / np.sqrt(2000)
        assert deviation[0] == pytest.approx(draws.std(), rel=0.08)


def copies():
    """Each token looks at its first earlier copy, or at itself."""
    return np.eye(N)[[SENTENCE.index(word) for word in SENTENCE]]


def delimiters():
    return np.eye(N)[np.full(N, SENTENCE.index(","))] / 2 + np.eye(N)[np.full(N, SENTENCE.index("."))] / 2


def near():
    close = (np.abs(np.subtract.outer(np.arange(N), np.arange(N))) <= 4).astype(float)
    return close / close.sum(axis=1, keepdims=True)


def test_every_role_is_named_on_the_head_made_for_it():
    n = N
    following = np.eye(n)[np.minimum(np.arange(n) + 1, n - 1)]
    heads = [previous(n), np.eye(n), following, to_key(n, 0), delimiters(), copies(), near()]
    mixed = [0.8 * a + 0.2 * uniform(n) for a in heads]
    names = head_roles(probs(*mixed, **TEXT)).names
    assert names == (
        "previous token",
        "same token",
        "next token",
        "first token",
        "delimiters",
        "earlier copies",
        "nearby tokens",
    )


def test_every_role_of_images_is_named():
    n = len(GRID)
    heads = []
    for name in ("same_row", "same_column", "neighbours"):
        a = np.array([[in_role(name, q, k, GRID, GRID, 0) for k in range(n)] for q in range(n)], float)
        a[0] = 1  # the class token looks everywhere
        heads.append(a / a.sum(axis=1, keepdims=True))
    found = head_roles(probs(*heads, to_key(n, 0), np.eye(n), uniform(n), queries=GRID, keys=GRID))
    assert found.names == ("same row", "same column", "neighbours", "class token", "same token", "")
    assert "image patches" in found.missing["previous_token"]


def test_no_role_for_noise_for_even_heads_and_for_a_sink_elsewhere():
    noise = random_scores(0, 100, N, N, scale=3.0, mask=causal(N), **TEXT)
    assert set(head_roles(noise).names) == {""}
    assert set(head_roles(noise).leanings) == {""}
    found = head_roles(probs(uniform(N), to_key(N, 5), **TEXT))
    assert found.names == ("", "")


def test_a_head_leans_to_a_role_that_stands_out_but_does_not_dominate():
    """A fifth of the attention to one token of sixteen leans to it; a twelfth does not, nor 1.3 times chance."""
    words = [f"w{i}" for i in range(16)]
    parts = [share * previous(16) + (1 - share) * uniform(16) for share in (0.9, 0.2, 0.08)]
    found = head_roles(probs(*parts, queries=words, keys=words))
    assert found.names == ("previous token", "", "")
    assert found.leanings == ("previous token", "previous token", "")
    places = np.arange(16)
    window = (np.abs(places[:, None] - places) <= 4).astype(float)
    half = 0.3 * window / window.sum(axis=1, keepdims=True) + 0.7 * uniform(16)
    often = head_roles(probs(half, queries=words, keys=words))
    assert often.excess["nearby_tokens"][0] > 0.1  # but what is near is half of everything
    assert often.leanings == ("",)
    named = head_roles(probs(*parts, queries=words, keys=words), least=0.05)
    assert named.leanings == named.names == ("previous token",) * 3  # if so little is enough


def test_a_head_is_named_after_the_narrow_role():
    found = head_roles(probs(0.6 * previous(N) + 0.4 * near(), **TEXT))
    assert found.share["nearby_tokens"][0] > found.share["previous_token"][0]
    assert found.names == ("previous token",)


def test_one_repeated_word_makes_no_head_of_repeated_words():
    words = [*[f"w{i}" for i in range(30)], "w3"]
    a = uniform(31)
    a[30] = np.eye(31)[3]
    found = head_roles(probs(a, queries=words, keys=words))
    assert found.share["earlier_copies"] == pytest.approx(1)
    assert found.names == ("",)


def test_several_inputs_are_averaged_and_their_gaps_counted():
    plain = [f"w{i}" for i in range(N)]
    atts = [probs(previous(N), **TEXT), probs(uniform(N), queries=plain, keys=plain)]
    found = head_roles(atts)
    assert found.share["previous_token"][0] == pytest.approx((1 + 1 / N) / 2)
    assert found.spread["previous_token"][0] == pytest.approx((1 - 1 / N) / np.sqrt(2))
    assert "(on 1 of 2 inputs)" in found.missing["delimiters"]
    assert found.share["delimiters"][0] == head_roles(atts[0]).share["delimiters"][0]


def test_causal_models_have_no_next_token_and_cross_attention_no_places():
    found = head_roles(random_scores(0, 2, N, N, mask=causal(N), **TEXT))
    assert "no query may attend" in found.missing["next_token"]
    cross = head_roles(random_scores(0, 2, 5, N, queries=list("abcde"), keys=SENTENCE))
    assert set(cross.share) == {"first_token", "delimiters"}
    assert "not the same sequence" in cross.missing["previous_token"]


def test_one_token_has_no_roles_and_positions_as_names_no_copies():
    one = head_roles(random_scores(0, 2, 1, 1))
    assert one.share == {}
    assert one.names == ("", "")
    plain = head_roles(random_scores(0, 2, 8, 8))
    assert plain.missing["earlier_copies"] == "no token occurs twice"
    assert plain.missing["delimiters"] == "there is no delimiter after the first token"


@pytest.mark.parametrize("token", [".", ",", "Ġ.", "▁,", "[SEP]", "</s>", "<|endoftext|>", "Ċ", "ĊĊ", ";", "”"])
def test_delimiters(token):
    assert is_delimiter_token(token)


@pytest.mark.parametrize("token", ["the", "Ġcat", "##s", "[OH]", "3", "▁", "Ġ", "", "[MASK]", "r3c5", "a.b", "</b"])
def test_not_delimiters(token):
    assert not is_delimiter_token(token)


def test_places():
    assert query_positions("abc", "abc").tolist() == [0, 1, 2]
    assert query_positions("bc", "abc").tolist() == [1, 2]
    assert query_positions("abd", "abc") is None
    assert query_positions("abc", "bc") is None


def test_own_delimiters_and_window():
    att = probs(to_key(N, 1), near(), **TEXT)
    assert head_roles(att, delimiters={"cat"}).names[0] == "delimiters"
    assert head_roles(att, window=4).share["nearby_tokens"][1] == pytest.approx(1)
    assert head_roles(att, window=1).share["nearby_tokens"][1] < 0.5


def test_bad_input():
    att = probs(np.eye(4))
    for bad in (0, -1, 1.5, float("nan"), "much"):
        with pytest.raises(ht.HeadtreeError, match="least must be"):
            head_roles(att, least=bad)
    with pytest.raises(ht.HeadtreeError, match="window must be"):
        head_roles(att, window=0)
    with pytest.raises(ht.HeadtreeError, match="collection of tokens"):
        head_roles(att, delimiters=".,")
    for bad in (None, [], [1], np.eye(3)):
        with pytest.raises(ht.HeadtreeError, match="atts must"):
            head_roles(bad)
    with pytest.raises(ht.HeadtreeError, match="same heads"):
        head_roles([att, probs(np.eye(4), np.eye(4))])


def test_a_special_token_at_the_start_is_the_first_token():
    words = ["[CLS]", "a", "b", "c", "d", "e", "f", "[SEP]"]
    found = head_roles(probs(to_key(8, 0), to_key(8, 7), queries=words, keys=words))
    np.testing.assert_allclose(found.share["delimiters"], [0, 1])
    np.testing.assert_allclose(found.share["first_token"], [1, 0])
    assert found.names == ("first token", "delimiters")
