import numpy as np
import pytest
import torch

import headtree as ht
from headtree.measures.heads.induction import copied_share, induction, repeated_tokens
from tests.measures.models import PlantedInduction
from tests.models import zoo


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def test_the_planted_model_predicts_by_induction():
    """So that the scores below are of a circuit that works."""
    ids = torch.tensor([[3, 7, 1, 9, 3, 7, 1]])
    assert PlantedInduction()(ids)[0, -2:].argmax(dim=1).tolist() == [1, 9]


def test_it_fires_on_the_planted_head_and_on_no_other():
    found = induction(PlantedInduction(), n_tokens=15)
    assert found.prefix_matching[2] > 0.95  # the first token of all has no predecessor, and matches itself as well
    assert found.copying[2] == pytest.approx(1)
    assert (np.delete(found.prefix_matching, 2) < 0.1).all()
    assert np.abs(np.delete(found.copying, 2)).max() < 0.1
    assert found.heads[2] == (1, 0)


def test_a_head_that_looks_a_fixed_way_back_does_not_count():
    """It has the right key at one distance of four."""
    found = induction(PlantedInduction(n_back=14), n_tokens=15)
    assert found.prefix_matching.max() < 0.3


def test_it_does_not_fire_on_random_weights():
    found = induction(PlantedInduction(planted=False), n_tokens=15)
    assert (found.prefix_matching < 0.2).all()
    assert np.abs(found.copying).max() < 0.2


def test_prefix_matching_is_read_from_the_attention():
    model = zoo.ALL["gpt2"].build()
    found = induction(model, n_tokens=6, n_sequences=2, rng=3)
    ids = repeated_tokens(model, 6, 2, np.random.default_rng(3)).ids
    assert ids[0, 1:7].tolist() == ids[0, 7:].tolist()  # one other token before
    assert ids[1, :6].tolist() == ids[1, 7:].tolist()  # one other token between
    assert all(len(set(row.tolist())) == 7 for row in ids)
    expected = []
    for gap, att in enumerate(ht.capture(model, inputs={"input_ids": ids}, kind="probs")):
        expected.append([np.mean([float(a[q, q - 6 - gap + 1]) for q in range(7, 13)]) for a in att.values])
    np.testing.assert_allclose(found.prefix_matching, np.mean(expected, axis=0), rtol=1e-6)
    assert found.why_no_copying == ""  # GPT-2 ties its unembedding to its embedding


def test_copying_reads_the_ov_circuit_literally():
    model = zoo.ALL["gpt2"].build()
    found = induction(model, n_tokens=6, n_sequences=1, rng=3)
    ids = repeated_tokens(model, 6, 1, np.random.default_rng(3)).ids
    words, first = model.wte.weight.detach(), ids[0, :6]
    with torch.no_grad():
        states = model(input_ids=ids, output_hidden_states=True).hidden_states
    shares = []
    for layer, block in enumerate(model.h):
        x = block.ln_1(states[layer][0])[:6].detach()
        w_v, w_o = block.attn.c_attn.weight[:, 64:].detach(), block.attn.c_proj.weight.detach()
        for h in range(4):
            part = slice(8 * h, 8 * h + 8)
            logits = x @ w_v[:, part] @ w_o[part] @ words[first].T
            rows = []
            for k in range(6):
                rise = np.maximum((logits[k] - logits[k].mean()).numpy(), 0)
                rows.append((rise[k] / rise.sum() - 1 / 6) / (1 - 1 / 6))
            shares.append(np.mean(rows))
    np.testing.assert_allclose(found.copying, shares, atol=1e-5)


def test_copied_share():
    diagonal = torch.eye(5)[None].double()
    assert float(copied_share(diagonal)[0]) == pytest.approx(1)
    assert float(copied_share(-diagonal)[0]) == pytest.approx(-1 / 4)  # never the token itself
    assert float(copied_share(torch.zeros(1, 5, 5))[0]) == pytest.approx(0)


@pytest.mark.parametrize(
    ("name", "reason"),
    [("bert", "looks ahead"), ("vit", "not read a single sequence"), ("t5", "not read a single sequence")],
)
def test_other_models_are_refused_with_the_reason(name, reason):
    with pytest.raises(ht.HeadtreeError, match=reason):
        induction(zoo.ALL[name].build())


def test_a_model_without_a_head_for_words_has_no_copying():
    found = induction(zoo.ALL["llama"].build(), n_tokens=6)
    assert np.isnan(found.copying).all()
    assert "language-model head" in found.why_no_copying
    assert np.isfinite(found.prefix_matching).all()


def test_sequences_fit_vocabulary_and_context():
    assert induction(PlantedInduction(n_words=9), n_tokens=50).n_tokens == 6  # three are for the gaps
    with pytest.raises(ht.HeadtreeError, match="room for only 3 distinct"):
        induction(PlantedInduction(n_words=6))
    special = repeated_tokens(zoo.ALL["gpt2"].build(), 50, 3, np.random.default_rng(0))
    assert not {1, 2} & set(special.ids.unique().tolist())
    assert (special.n_tokens, special.ids.shape) == (31, (3, 64))


def test_bad_input():
    with pytest.raises(ht.HeadtreeError, match="n_tokens must be"):
        induction(PlantedInduction(), n_tokens=0)
    with pytest.raises(ht.HeadtreeError, match="model must be"):
        induction(3)
