"""A small world: forty words in patterns, sixteen images in two colours, networks that fit them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from headtree.study.training.training_config import TXL_SMALL, VIT_SMALL, Training


@pytest.fixture(scope="session")
def corpus(tmp_path_factory) -> Path:
    """Sentences from a few templates: far more regular than their words' frequencies tell."""
    rng = np.random.default_rng(0)
    folder = tmp_path_factory.mktemp("corpus")
    for part, n in (("train", 2000), ("valid", 200), ("test", 200)):
        lines = []
        for _ in range(n):
            a, b, c = rng.integers(12, size=3)
            lines.append(
                f" the n{a} sees the m{b} and the m{b} sees the n{a} near k{c} k{(c + 1) % 12} k{(c + 2) % 12}"
            )
        (folder / f"{part}.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return folder


@pytest.fixture(scope="session")
def cifar(tmp_path_factory) -> Path:
    """The binary version of CIFAR-10, with sixteen and ten images."""
    rng = np.random.default_rng(0)
    folder = tmp_path_factory.mktemp("cifar")
    for name, n in [*((f"data_batch_{i}", 4) for i in range(1, 6)), ("test_batch", 10)]:
        labels = np.arange(n) % 10
        images = rng.integers(0, 256, (n, 3072))
        rows = np.concatenate([labels[:, None], images], axis=1).astype(np.uint8)
        (folder / f"{name}.bin").write_bytes(rows.tobytes())
    return folder


@pytest.fixture(scope="session")
def tiny_txl() -> Training:
    sizes = {"n_layers": 2, "n_heads": 2, "width": 32, "inner": 64, "embedding": 16, "memory": 12, "dropout": 0.1}
    return replace(
        TXL_SMALL, steps=8, batch=4, context=16, evaluations=4, stages=(0.0, 0.25, 0.5, 0.75), sizes=sizes
    )


@pytest.fixture(scope="session")
def tiny_vit() -> Training:
    sizes = {
        **VIT_SMALL.sizes,
        "hidden_size": 16,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 32,
        "image_size": 32,
    }
    return replace(VIT_SMALL, steps=4, batch=4, evaluations=2, stages=(0.0, 0.25, 0.5, 0.75), sizes=sizes)
