"""A small BERT with a tokenizer, and a small ViT with an image processor, as folders."""

import numpy as np
import pytest

from tests.models.conftest import bert, folder, one_thread, tokenizer  # noqa: F401  (fixtures)


@pytest.fixture(scope="session")
def text(tmp_path_factory):
    rng = np.random.default_rng(0)
    path = tmp_path_factory.mktemp("texts") / "words.txt"
    path.write_text(" ".join(f"w{i}" for i in rng.integers(59, size=150)))
    return path


@pytest.fixture(scope="session")
def vit_folder(tmp_path_factory):
    from transformers import ViTConfig, ViTForImageClassification, ViTImageProcessorPil

    path = tmp_path_factory.mktemp("models") / "vit"
    config = ViTConfig(
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        image_size=32,
        patch_size=8,
    )
    ViTForImageClassification(config).save_pretrained(path)
    ViTImageProcessorPil(size={"height": 32, "width": 32}).save_pretrained(path)
    return path


@pytest.fixture(scope="session")
def pictures(tmp_path_factory):
    from PIL import Image

    place = tmp_path_factory.mktemp("pictures")
    rng = np.random.default_rng(0)
    for name, size in (("b.png", (40, 30)), ("a.jpg", (32, 32)), ("c.png", (200, 100))):
        Image.fromarray(rng.integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)).save(place / name)
    (place / "notes.txt").write_text("not an image")
    return place
