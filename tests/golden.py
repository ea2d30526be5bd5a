"""Known-good numbers, where the folder that holds them is present.

Set HEADTREE_GOLDEN to its path, or keep it at ../shared/golden beside the repository.
"""

import os
from pathlib import Path

import numpy as np
import pytest

FOLDER = Path(os.environ.get("HEADTREE_GOLDEN", Path(__file__).parents[2] / "shared" / "golden"))


def golden(name):
    path = FOLDER / f"{name}.npz"
    if not path.exists():
        pytest.skip(f"no {path.name} in the golden folder (HEADTREE_GOLDEN)")
    return np.load(path, allow_pickle=False)


def golden_files(pattern):
    """Parameters for a test of every file that matches, or one that is skipped."""
    found = sorted(FOLDER.glob(pattern)) if FOLDER.is_dir() else []
    missing = pytest.param(
        None, marks=pytest.mark.skip(reason=f"no {pattern} in the golden folder (HEADTREE_GOLDEN)")
    )
    return [pytest.param(path, id=path.stem) for path in found] or [missing]
