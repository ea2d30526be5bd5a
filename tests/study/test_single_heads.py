import numpy as np
import pytest

import headtree as ht
from headtree.study.claims.single_heads import matrix_regularity
from tests.runs.examples import tensors

SHORT = ht.Questionnaire(alpha=1.0, beta=0.0, n_iter=2, tree="binary")


@pytest.mark.parametrize("causal", [False, True])
def test_every_head_is_organized_by_itself_with_what_the_mask_forbids_missing(causal):
    att = tensors(1, n_tokens=(14,), causal=causal)[0].load()
    found = matrix_regularity(att, SHORT)
    full = att.filled().values
    for i in (0, 7, 19):
        mask = np.triu(np.ones((14, 14), bool), 1) if causal else None
        org = ht.organize_array(np.asarray(att.values[i]), SHORT, mask=mask)
        expected = ht.holder_exponent(full[i], *org.trees)
        assert found.exponent["organized"][i] == pytest.approx(float(expected.exponent), nan_ok=True)
        assert found.constant["organized"][i] == pytest.approx(float(expected.constant), nan_ok=True)
