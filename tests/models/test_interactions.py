"""Interactions of heads against plain sums over ablated passes."""

import numpy as np
import pytest
import torch

import headtree as ht
from headtree.errors import HeadtreeError
from tests.models import zoo
from tests.models.test_effects import next_token, texts


@pytest.fixture(scope="module")
def gpt2():
    return zoo.Case("GPT2LMHeadModel", "GPT2Config", zoo.ALL["gpt2"].settings).build()


def mean_change(model, items, heads):
    with ht.ModelView(model).ablated(heads):
        without = np.concatenate([next_token(model, item) for item in items])
    return (without - np.concatenate([next_token(model, item) for item in items])).mean()


def test_pairs_and_groups_against_the_definition(gpt2):
    items = texts(4)
    groups = [[(0, 1), (2, 3)], [(1, 0), (1, 2), (2, 1)]]
    found = ht.interactions(gpt2, groups, inputs=items, n_partners=3)
    for i, group in enumerate(groups):
        together = mean_change(gpt2, items, group)
        apart = sum(mean_change(gpt2, items, [head]) for head in group)
        assert found.together[i] == pytest.approx(together, abs=1e-6)
        assert found.apart[i] == pytest.approx(apart, abs=1e-6)
        assert found.interaction[i] == pytest.approx(together - apart, abs=2e-6)
    assert found.partners.shape == (2, 3)
    assert np.isfinite(found.error).all()
    assert ((found.p > 0) & (found.p <= 1)).all()
    assert found.table()["group"].tolist() == ["L0H1 L2H3", "L1H0 L1H2 L2H1"]


def test_heads_that_are_copies_stand_in_for_each_other(gpt2):
    """In one layer a linear loss makes groups add up; a saturating one makes copies redundant."""
    items = texts(2)
    linear = ht.interactions(
        gpt2, [[(2, 0), (2, 1)]], inputs=items, loss=lambda output, _: 0 * output.logits[..., 0] + 1.0, n_partners=2
    )
    assert linear.interaction[0] == 0
    assert linear.p[0] == 1


def test_partners_are_of_the_same_layers_and_reproducible(gpt2, monkeypatch):
    from headtree.measures.heads import interactions as module

    drawn = []
    original = module._partner
    monkeypatch.setattr(
        module, "_partner", lambda group, known, rng: drawn.append(original(group, known, rng)) or drawn[-1]
    )
    group = [(0, 1), (2, 0), (2, 3)]
    ht.interactions(gpt2, [group], inputs=texts(1), n_partners=5)
    for partner in drawn:
        assert [head.layer for head in partner] == [0, 2, 2]
        assert not set(map(tuple, partner)) & set(group)
        assert len(set(partner)) == 3
    again = list(drawn)
    drawn.clear()
    ht.interactions(gpt2, [group], inputs=texts(1), n_partners=5)
    assert drawn == again


@pytest.mark.parametrize(
    ("groups", "options", "message"),
    [
        ([], {}, "groups must be a list of groups"),
        ([[(0, 1)]], {}, r"groups\[0\] must name at least two heads"),
        ([[(0, 1), (0, 9)]], {}, r"groups must name heads of the model, got \(0, 9\)"),
        ([[(0, 1), (0, 2)]], {"n_partners": -1}, "n_partners must be a whole number of at least 0"),
        ([[(0, 1), (0, 2)]], {"layers": [0]}, "layers and heads are given by the groups"),
    ],
)
def test_bad_arguments_are_named(gpt2, groups, options, message):
    with pytest.raises(HeadtreeError, match=message):
        ht.interactions(gpt2, groups, inputs=texts(1), **options)
    assert not any(module._forward_pre_hooks for module in gpt2.modules())
    assert torch.is_grad_enabled()


def test_a_whole_layer_has_no_partners(gpt2):
    found = ht.interactions(gpt2, [[(0, i) for i in range(4)]], inputs=texts(1), n_partners=2)
    assert np.isnan(found.partners).all()
    assert np.isnan(found.p).all()
