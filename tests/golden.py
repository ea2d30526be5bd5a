"""Results of the public code of [OA], to compare with: see data/golden/README.md."""

from pathlib import Path

import numpy as np
import pytest

FOLDER = Path(__file__).parent / "data" / "golden"


def golden(name):
    return np.load(FOLDER / f"{name}.npz", allow_pickle=False)


def golden_files(pattern):
    """Parameters for a test of every file that matches."""
    return [pytest.param(path, id=path.stem) for path in sorted(FOLDER.glob(pattern))]
