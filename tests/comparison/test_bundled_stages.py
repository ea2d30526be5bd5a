"""The bundled networks at stages of their training: real networks, a few short inputs."""

import pytest
import torch

import headtree as ht
from headtree.pipeline.model_source import ModelSource
from tests.comparison.networks import compare_profiles, profile


@pytest.mark.parametrize(("name", "layers"), [("txl", [0, 3, 7, 11, 15]), ("vit", [0, 5, 11])])
def test_a_trained_network_is_farther_from_its_initialisation_than_from_its_last_checkpoint(name, layers):
    found = compare_profiles(
        [stage_profile(name, stage, layers) for stage in ("initial", "late", "trained")], 99, 0
    )
    for aspect in (
        "geometry",
        "compression",
        "rank",
        "confidence",
        "shannon_entropy_relative",
        "distance_to_layer",
    ):
        distance = found.distance(aspect)
        assert distance[2, 0] > 1.5 * distance[2, 1], aspect
    assert found.changes[0].looks.mean() > 1.2 * found.changes[1].looks.mean()
    assert (found.changes[1].match == range(len(found.changes[1].match))).mean() > 0.9  # heads stay who they are


def test_a_run_can_be_of_any_stage():
    ready = ModelSource(model="txl", revision="early", inputs=1, tokens=8).begin()
    expected = ht.load_bundled("txl", "early").model.state_dict()
    assert all(torch.equal(value, expected[name]) for name, value in ready.prepared.model.state_dict().items())
    with pytest.raises(ht.HeadtreeError, match="stage must be one of"):
        ModelSource(model="txl", revision="first", inputs=1).begin()


def stage_profile(name, stage, layers):
    network = ht.load_bundled(name, stage)
    inputs = [
        {key: value[:, :24] if name == "txl" else value for key, value in item.items()}
        for item in network.inputs[:3]
    ]
    tensors = ht.capture(network.model, inputs=inputs, tokenizer=network.tokenizer, layers=layers)
    return profile(tensors, stage)
