import numpy as np
import pytest

import headtree as ht
from headtree.measures.orders import filled
from headtree.study.claims.single_heads import matrix_regularity, missing_entries
from tests.runs.examples import tensors

SHORT = ht.Questionnaire(alpha=1.0, beta=0.0, n_iter=2, tree="binary")


@pytest.mark.parametrize("causal", [False, True])
def test_every_head_is_organized_by_itself_with_what_the_mask_forbids_missing(causal):
    att = tensors(1, n_tokens=(14,), causal=causal)[0].load()
    found = matrix_regularity(att, SHORT)
    full = filled(att).values
    for i in (0, 7, 19):
        mask = np.triu(np.ones((14, 14), bool), 1) if causal else None
        org = ht.organize_array(np.asarray(att.values[i]), SHORT, mask=mask)
        expected = ht.holder_exponent(full[i], *org.trees)
        assert found.exponent["organized"][i] == pytest.approx(float(expected.exponent), nan_ok=True)
        assert found.constant["organized"][i] == pytest.approx(float(expected.constant), nan_ok=True)


def test_the_mask_of_a_head_may_be_its_own_or_shared():
    values = np.random.default_rng(0).standard_normal((2, 3, 3))
    shared, own = np.eye(3, dtype=bool), np.stack([np.eye(3, dtype=bool), np.zeros((3, 3), bool)])
    assert missing_entries(ht.AttentionTensor.from_array(values), 0) is None
    for mask, expected in ((shared, (shared, shared)), (own, tuple(own))):
        att = ht.AttentionTensor.from_array(values, mask=mask)
        for head in (0, 1):
            np.testing.assert_array_equal(missing_entries(att, head), expected[head])
