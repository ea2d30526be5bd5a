"""A model is the same after headtree has looked at it: attributes, submodules, buffers, hooks, configuration."""

from __future__ import annotations

import contextlib

import pytest
import torch
from torch import nn

import headtree as ht
from headtree.errors import HeadtreeError
from headtree.models.watching.unchanged import unchanged
from tests.models import zoo

FAMILIES = {**zoo.ALL, **zoo.UNUSUAL}


def plain_output(model, case):
    options = {"use_cache": False} if hasattr(model.config, "use_cache") else {}
    with torch.no_grad():
        return model(**case.read(), **options).to_tuple()[0]


@pytest.mark.parametrize("name", list(FAMILIES))
def test_capture_leaves_the_model_as_it_was(name):
    case = FAMILIES[name]
    model, fresh = case.build(), case.build()
    with unchanged(model) as changes:
        for kind in ("scores", "probs"):
            for part in case.parts:
                with contextlib.suppress(HeadtreeError):  # an error must leave the model as it was, too
                    ht.capture(model, inputs=case.read(), kind=kind, part=part)
    assert changes == []
    assert torch.equal(plain_output(model, case), plain_output(fresh, case))


@pytest.mark.parametrize("method", ["residual", "weights", "relevance"])
def test_other_looks_leave_the_model_as_it_was_too(method):
    case = zoo.UNUSUAL["big_bird"]
    model, short = case.build(), {"input_ids": zoo._ids(12)}
    with unchanged(model) as changes, contextlib.suppress(HeadtreeError):
        getattr(ht.ModelView(model), method)(inputs=short)
    assert changes == []


#: BigBird attends to its first block twice and reports it once.
PART_OF_ROWS = pytest.mark.filterwarnings("ignore:the attention that BigBirdModel returns")


def block_sparse_and_its_attention():
    case = zoo.UNUSUAL["big_bird"]
    model = case.build()
    with torch.no_grad():
        layers = case.build()(**case.read(), output_attentions=True).attentions
    return model, case.read(), layers


@PART_OF_ROWS
def test_a_short_probe_that_switches_the_model_does_not_stand_for_a_long_input():
    model, read, layers = block_sparse_and_its_attention()
    with pytest.raises(HeadtreeError, match=r"the scores of BigBirdModel are not available.*kind='probs'"):
        ht.capture(model, inputs=read)
    for i, att in enumerate(ht.capture(model, inputs=read, kind="probs")):
        expected = torch.cat([layer[i] for layer in layers])
        torch.testing.assert_close(att.values, expected, atol=1e-6, rtol=0)
        forbidden = torch.as_tensor(att.mask).expand(att.shape)
        assert 0.3 < forbidden.float().mean() < 0.8
        assert torch.equal(forbidden, expected == 0)


@PART_OF_ROWS
def test_one_input_does_not_change_the_model_for_the_next():
    model, read, layers = block_sparse_and_its_attention()
    view, long = ht.ModelView(model), {"input_ids": read["input_ids"][:1]}
    for n_tokens in (8, 12):  # on which the model attends to everything
        (short,) = view.capture(inputs={"input_ids": read["input_ids"][:1, :n_tokens]})
        assert short.mask is None
    (att,) = view.capture(inputs=long, kind="probs")
    torch.testing.assert_close(att.values, torch.cat([layer[0] for layer in layers]), atol=1e-6, rtol=0)
    with pytest.raises(HeadtreeError, match=r"other attention calls on input 1 than on input 0.*separately"):
        view.capture(inputs=[{"input_ids": read["input_ids"][:1, :12]}, long], kind="probs")


class Restless(nn.Module):
    """Changes itself in every way when it runs."""

    def __init__(self):
        super().__init__()
        self.attention, self.counts, self.sizes = nn.MultiheadAttention(4, 1, batch_first=True), {"runs": 0}, [1]
        self.register_buffer("scale", torch.ones(1))
        self.n_runs = 0

    def forward(self, x):
        self.n_runs += 1
        self.counts["runs"] += 1
        self.sizes.append(x.shape[1])
        self.latest = x
        self.scale = self.scale * 2
        self.attention.train()
        self.attention = self.attention if self.n_runs > 1 else nn.MultiheadAttention(4, 1, batch_first=True)
        self.register_forward_hook(lambda *given: None)
        return self.attention(x, x, x)[0]


def test_every_kind_of_change_is_undone():
    model = Restless().eval()
    attention = model.attention
    att = ht.capture(model, inputs=torch.randn(1, 3, 4))[0]
    assert att.shape == (1, 3, 3)
    assert (model.n_runs, model.counts, model.sizes, float(model.scale)) == (0, {"runs": 0}, [1], 1.0)
    assert model.attention is attention
    assert not attention.training
    assert not hasattr(model, "latest")
    assert not model._forward_hooks


def test_changes_are_named():
    model = Restless().eval()
    with unchanged(model) as changes, torch.no_grad():
        model(torch.randn(1, 3, 4))
    assert {"n_runs", "counts.runs", "sizes.1", "latest", "scale", "attention", "attention.training"} <= set(
        changes
    )


def test_a_model_that_overwrites_its_buffers_is_refused():
    class Counter(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.BatchNorm1d(4)
            self.attention = nn.MultiheadAttention(4, 1, batch_first=True)

        def forward(self, x):
            self.inner.running_mean += x.mean(dim=(0, 1))
            return self.attention(x, x, x)[0]

    with pytest.raises(HeadtreeError, match=r"Counter overwrites inner.running_mean when it runs"):
        ht.capture(Counter().eval(), inputs=torch.randn(1, 3, 4))
