"""Compile the kernels and fill the caches once, at set-up: ``python -m headtree.pipeline.compile_kernels``.

numba compiles a kernel on the first call with each array type, which takes seconds, and caches the result on disk
beside the source. A run on tiny tensors of every type calls all kernels.
"""

from __future__ import annotations

import tempfile
import warnings
from itertools import product
from pathlib import Path

import numpy as np

from headtree.pipeline.make_run import Measures, make_run
from headtree.pipeline.sources import TensorSource
from headtree.questionnaire.organize import organize
from headtree.questionnaire.settings import Questionnaire
from headtree.tensor.attention_tensor import AttentionTensor


def warm() -> None:
    """Make small runs in both precisions, with and without missing entries."""
    rng = np.random.default_rng(0)
    n_tokens = 20  # more than a kernel sums at a time
    causal = np.triu(np.ones((n_tokens, n_tokens), bool), 1)
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # organizing noise raises many warnings
        for dtype, mask in product((np.float32, np.float64), (None, causal)):
            values = [rng.standard_normal((8, n_tokens, n_tokens)).astype(dtype) for _ in range(2)]
            tensors = [AttentionTensor.from_array(x, heads_per_layer=4, mask=mask) for x in values]
            path = Path(folder, f"{np.dtype(dtype).name}-{mask is None}")
            make_run(TensorSource(tensors), path, measures=Measures(bootstrap=2))
            organize(tensors[0], Questionnaire(samples=2))


if __name__ == "__main__":
    warm()
