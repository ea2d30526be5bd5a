"""First weights that are the same on every machine."""

from __future__ import annotations

import numpy as np
import torch
from torch import nn


def draw_weights(model: nn.Module, seed: int, scale: float = 0.02) -> None:
    """Set every parameter: matrices and tables normal with deviation `scale`, norms 1, biases 0.

    The numbers come from numpy's generator, parameter by parameter in the order of their names, so that they do not
    depend on the processor or on the version of torch.
    """
    rng = np.random.default_rng(seed)
    gains = {f"{name}.weight" for name, module in model.named_modules() if isinstance(module, nn.LayerNorm)}
    with torch.no_grad():
        for name, parameter in sorted(model.named_parameters()):
            if name in gains:
                parameter.fill_(1)
            elif parameter.ndim < 2:
                parameter.zero_()
            else:
                values = rng.standard_normal(tuple(parameter.shape), dtype=np.float32) * np.float32(scale)
                parameter.copy_(torch.from_numpy(values))
