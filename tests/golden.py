"""The golden vectors beside the repository."""

from pathlib import Path

import numpy as np
import pytest

FOLDER = Path(__file__).parents[2] / "shared" / "golden"


def golden(name):
    path = FOLDER / f"{name}.npz"
    if not path.exists():
        pytest.skip(f"golden vectors are not here: {path} is missing")
    return np.load(path, allow_pickle=False)
