from pathlib import Path

import numpy as np
import pytest
import torch

import headtree as ht
from headtree.measures.heads.glossary import OF_HEADS, OF_LAYERS, OF_RUNS, explained
from headtree.measures.heads.patterns import own_columns
from headtree.measures.heads.ranking_evidence import EFFECT_CORRELATIONS, RELIABILITY
from tests.measures.attention_examples import WORDS, causal, previous, probs, random_scores, to_key, uniform
from tests.measures.models import PlantedInduction
from tests.models import zoo

N = len(WORDS)
TEXT = {"queries": WORDS, "keys": WORDS}
LABELS = {"name", "layer", "head", "role", "leaning"}


@pytest.fixture(scope="module")
def found():
    atts = [random_scores(seed, 6, N, N, mask=causal(N), heads_per_layer=3, **TEXT) for seed in range(3)]
    return atts, ht.diagnostics(atts)


def test_one_row_for_each_head_and_layer(found):
    atts, table = found
    assert table.n_inputs == 3
    assert table.heads["name"].tolist() == [str(head) for head in atts[0].heads]
    assert table.layers["layer"].tolist() == [0, 1]
    assert table.layers["n_heads"].tolist() == [3, 3]
    assert "6 heads in 2 layers on 3 inputs" in repr(table)


def test_values_are_means_over_inputs_with_their_spread(found):
    atts, table = found
    single = np.stack([own_columns(att)["shannon_entropy"].values for att in atts])
    np.testing.assert_allclose(table.heads["shannon_entropy"], single.mean(axis=0))
    np.testing.assert_allclose(table.spread["shannon_entropy"], single.std(axis=0, ddof=1))
    np.testing.assert_allclose(table.heads["previous_token"], ht.head_roles(atts).share["previous_token"])
    np.testing.assert_allclose(
        table.layers["shannon_entropy"], table.heads.groupby("layer")["shannon_entropy"].mean()
    )
    np.testing.assert_allclose(
        table.layers["head_diversity"], table.heads.groupby("layer")["distance_to_layer"].mean()
    )
    rolled = np.mean([ht.attention_rollout(att)[:, :, 0].mean(dim=1).numpy() for att in atts], axis=0)
    np.testing.assert_allclose(table.layers["rollout_first_token"], rolled)


def test_every_column_is_defined_and_has_a_value_or_a_reason(found):
    _, table = found
    assert set(table.heads) - LABELS <= set(OF_HEADS)
    assert set(table.layers) - set(table.heads) - {"n_heads"} <= set(OF_LAYERS)
    assert set(OF_HEADS) == (set(table.heads) - LABELS) | (set(table.missing) & set(OF_HEADS))
    assert set(OF_LAYERS) <= set(table.layers) | set(table.missing)
    assert not table.heads.isna().any().any()
    assert all(table.missing.values())


def test_every_column_is_in_the_documentation():
    page = (Path(__file__).parents[2] / "docs" / "diagnostics.md").read_text(encoding="utf-8")
    for name, definition in {**OF_HEADS, **OF_LAYERS, **OF_RUNS}.items():
        assert f"| `{name}` | {definition.meaning} | {definition.source} |" in page
    for name, found in EFFECT_CORRELATIONS.items():
        assert name in {**OF_HEADS, **OF_RUNS}
        numbers = [f"{found[network]:.2f}" if network in found else "–" for network in RELIABILITY]
        assert f"| `{name}` | {' | '.join(numbers)} |" in page


def test_a_rank_goes_down_where_its_column_goes_up():
    value = EFFECT_CORRELATIONS["structure"]["txl"]
    assert f"heads: txl {value:.2f} (" in explained("structure")
    assert f"heads: txl {-value:.2f} (" in explained("structure_rank")
    assert explained("effect").endswith(f"MiniLM {RELIABILITY['MiniLM']:.2f}, vit {RELIABILITY['vit']:.2f}.")


def test_layers_are_named_after_the_role_of_most_heads():
    heads = [previous(N), previous(N), to_key(N, 0), uniform(N), to_key(N, 0), to_key(N, 0)]
    table = ht.diagnostics(probs(*heads, heads=[(i // 3, i % 3) for i in range(6)], **TEXT))
    assert table.heads["role"].tolist() == ["previous token"] * 2 + ["first token", ""] + ["first token"] * 2
    assert table.layers["role"].tolist() == ["previous token", "first token"]


def test_heads_may_come_in_any_order(found):
    atts, table = found
    order = [4, 0, 5, 2, 1, 3]
    turned = ht.diagnostics(
        [
            ht.AttentionTensor.from_array(
                att.values[order], heads=[att.heads[i] for i in order], mask=causal(N), **TEXT
            )
            for att in atts
        ]
    )
    for name in set(table.heads) - LABELS:
        np.testing.assert_allclose(turned.heads[name], table.heads[name].to_numpy()[order], err_msg=name)
        np.testing.assert_allclose(turned.layers.get(name, 0), table.layers.get(name, 0), err_msg=name)


def test_one_token_and_masked_heads_are_missing_with_reasons():
    one = ht.diagnostics(random_scores(0, 2, 1, 1))
    assert set(one.heads) == LABELS
    assert "choose between two keys" in one.missing["shannon_entropy"]
    hidden = np.zeros((3, N, N), bool)
    hidden[1] = True
    some = ht.diagnostics(random_scores(0, 3, N, N, mask=hidden, **TEXT))
    assert some.heads["confidence"].isna().tolist() == [False, True, False]
    assert "some heads" in some.missing["confidence"]


def test_tensors_on_disk_give_the_same(tmp_path, found):
    atts, _ = found
    atts[0].save(tmp_path / "a.zarr")
    opened = ht.diagnostics(ht.AttentionTensor.open(tmp_path / "a.zarr"))
    whole = ht.diagnostics(atts[0])
    for name in set(whole.heads) - LABELS:
        np.testing.assert_allclose(opened.heads[name], whole.heads[name], rtol=1e-6, err_msg=name)


def test_bad_input():
    with pytest.raises(ht.HeadtreeError, match="atts must be an AttentionTensor"):
        ht.diagnostics(np.zeros((2, 3, 3)))


def test_a_model_adds_weights_activations_and_behaviour():
    model = PlantedInduction()
    ids = torch.tensor([[3, 7, 1, 9, 5, 3, 7, 1], [1, 2, 3, 4, 1, 2, 3, 4]])
    atts = ht.capture(model, inputs={"input_ids": ids}, kind="probs")
    table = ht.diagnostics(atts, model=model, inputs={"input_ids": ids})
    heads = table.heads.set_index("name")
    assert heads["prefix_matching"].idxmax() == heads["copying"].idxmax() == heads["relevance"].idxmax() == "L1H0"
    assert heads["ov_rank"].tolist() == [20, 0, 20, 0]
    assert heads["relevance"].sum() == pytest.approx(1)
    assert heads.loc["L0H0", "role"] == "previous token"
    assert {"token_similarity", "dirichlet_energy"} <= set(table.layers)
    assert table.missing["massive_activation_ratio"] == "half of the residual stream is 0"
    assert not any("needs the model" in reason for reason in table.missing.values())


@pytest.mark.parametrize("name", ["bert", "gpt2", "vit", "albert", "gpt_oss", "mpnet"])
def test_models_of_all_kinds(name):
    case = zoo.ALL[name]
    model = case.build()
    atts = ht.capture(model, inputs=case.read(), heads=[(2, 1), (0, 3)])
    table = ht.diagnostics(atts, model=model, inputs=case.read())
    assert table.heads["name"].tolist() == ["L0H3", "L2H1"]
    assert table.layers["layer"].tolist() == [0, 2]
    assert np.isfinite(table.heads[["qk_eigenvalue_variance", "qk_rank", "ov_stable_rank"]]).all().all()
    assert np.isfinite(table.layers[["massive_activation_ratio", "token_similarity"]]).all().all()
    assert "has no logits" in table.missing["relevance"]
    assert ("prefix_matching" in table.heads) == (name in ("gpt2", "gpt_oss"))


def test_a_model_that_raises_in_the_middle_gives_reasons(monkeypatch):
    model = zoo.ALL["gpt2"].build()
    atts = ht.capture(model, inputs=zoo.ALL["gpt2"].read())

    def broken(*arguments):
        raise RuntimeError("out of order")

    monkeypatch.setattr("headtree.measures.heads.from_model.relevance_of", broken)
    table = ht.diagnostics(atts, model=model, inputs=zoo.ALL["gpt2"].read())
    assert table.missing["relevance"] == "the model raised RuntimeError: out of order"
    assert "qk_rank" in table.heads


def test_parts_of_an_encoder_decoder_are_remembered():
    case = zoo.ALL["t5"]
    model = case.build()
    atts = ht.capture(model, inputs=case.read(), part="cross")
    table = ht.diagnostics(atts, model=model, inputs=case.read())
    assert table.heads["qk_rank"].tolist() == [8] * 8
    assert "different sequences" in table.missing["qk_eigenvalue_mean"]
    assert "does not read a single sequence" in table.missing["prefix_matching"]


def test_a_model_and_its_inputs_belong_together():
    model = zoo.ALL["gpt2"].build()
    ids = zoo.ALL["gpt2"].read()
    atts = ht.capture(model, inputs=ids)
    with pytest.raises(ht.HeadtreeError, match="got 1 tensors and 2 inputs"):
        ht.diagnostics(atts[0], model=model, inputs=ids)
    with pytest.raises(ht.HeadtreeError, match="exactly one of texts, images and inputs"):
        ht.diagnostics(atts, model=model)
    with pytest.raises(ht.HeadtreeError, match="pass model="):
        ht.diagnostics(atts, texts=["a"])
