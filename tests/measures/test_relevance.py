import numpy as np
import pytest
import torch

import headtree as ht
from headtree.models.capture import attention_relevance
from tests.measures.models import PlantedInduction
from tests.models import zoo

IDS = torch.tensor([[3, 7, 1, 9, 5, 3, 7, 1]])


def first_number(answer):
    return answer.last_hidden_state[0, -1, 0]


def test_the_planted_prediction_rests_on_the_induction_head_and_the_token_it_reads():
    (found,) = attention_relevance(PlantedInduction(), inputs={"input_ids": IDS})
    assert found.output == pytest.approx(5)
    assert found.share.argmax() == 2
    assert found.share[2] > 0.99
    assert found.tokens[-1, :7].argmax() == 3  # the 9 that followed the 1
    (other,) = attention_relevance(PlantedInduction(), inputs={"input_ids": IDS}, target=2)
    assert other.output == pytest.approx(0)
    assert other.tokens[-1, 3] == pytest.approx(0)


@pytest.mark.parametrize("name", ["bert", "gpt2"])
def test_it_is_the_definition_with_the_attentions_the_model_returns(name):
    model = zoo.ALL[name].build("eager")
    ids = zoo.ALL[name].read()["input_ids"][:1]
    found = attention_relevance(model, inputs={"input_ids": ids}, target=first_number)[0]
    answer = model(input_ids=ids, output_attentions=True)
    gradients = torch.autograd.grad(first_number(answer), answer.attentions)
    rolled, sums = torch.eye(ids.shape[1]), []
    for attention, gradient in zip(answer.attentions, gradients, strict=True):
        weighted = (attention * gradient)[0].clamp(min=0).detach()
        rolled = rolled + weighted.mean(dim=0) @ rolled
        sums += [float(head.sum()) for head in weighted]
    np.testing.assert_allclose(found.tokens, rolled, atol=1e-5)
    np.testing.assert_allclose(found.share, np.array(sums) / sum(sums), atol=1e-5)
    assert found.output == pytest.approx(float(first_number(answer).detach()), abs=1e-5)


@pytest.mark.parametrize("name", ["vit", "llama", "albert", "bloom", "gpt_oss", "mpnet"])
def test_other_architectures(name):
    case = zoo.ALL[name]
    found = attention_relevance(case.build(), inputs=case.read(), target=first_number)
    assert len(found) == 2
    for one in found:
        assert one.share.sum() == pytest.approx(1)
        assert one.share.shape == (12,)
        assert one.tokens.shape[0] == one.tokens.shape[1]


def test_frozen_weights_and_the_model_stay_as_they_were():
    model = zoo.ALL["gpt2"].build()
    expected = attention_relevance(model, inputs={"input_ids": IDS}, target=first_number)[0]
    model.requires_grad_(False)
    before = model.config._attn_implementation_internal
    found = attention_relevance(model, inputs={"input_ids": IDS}, target=first_number)[0]
    np.testing.assert_allclose(found.tokens, expected.tokens, atol=1e-6)
    assert model.config._attn_implementation_internal == before
    assert all(parameter.grad is None for parameter in model.parameters())


def test_bad_input():
    model = zoo.ALL["gpt2"].build()
    with pytest.raises(ht.HeadtreeError, match="GPT2Model has no logits"):
        attention_relevance(model, inputs={"input_ids": IDS})
    planted = PlantedInduction()
    for target, message in [
        (99, "one of the 20 logits"),
        ("9", "index of a logit"),
        (True, "index of a logit"),
        (lambda answer: 3.0, "tensor with one element"),
        (lambda answer: answer[0, -1], "tensor with one element"),
    ]:
        with pytest.raises(ht.HeadtreeError, match=message):
            attention_relevance(planted, inputs={"input_ids": IDS}, target=target)
    fused = torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval()
    with pytest.raises(ht.HeadtreeError, match="has no gradient to watch"):
        attention_relevance(fused, inputs=torch.randn(1, 5, 8), target=lambda answer: answer[0, 0, 0])
