"""Rank collapse and paths of one prepared model, measured together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import nn

from headtree.depth.paths import PathLengths, paths_of
from headtree.depth.residual import VARIANTS, RankResidual, measured
from headtree.depth.untrained import fresh_copy
from headtree.errors import InvalidValueError
from headtree.models.watching.collect import PreparedInputs
from headtree.tensor.attention_tensor import HeadId

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, eq=False)
class ModelDepth:
    """What depth does to a model's tokens."""

    residual: RankResidual
    paths: PathLengths | None  #: None where the layers are not linear in the residual stream
    no_paths: str = ""  #: why there are no paths

    def layer_table(self) -> pd.DataFrame:
        """A row per layer, for layers.csv: relative residual after it by variant, and its share in short paths."""
        import pandas as pd

        residual = self.residual
        columns: dict[str, Any] = {"layer": np.arange(residual.trained.shape[-1] - 1)}
        for values, ending in ((residual.trained, ""), (residual.fresh, "_fresh")):
            if values is not None:
                for name, curve in zip(VARIANTS, values, strict=True):
                    column = "residual_" + name.lower().replace(" ", "_") + ending
                    columns[column] = curve.mean(axis=0)[1:]
        if self.paths is not None:
            columns["short_path_share"] = np.nansum(self.paths.head_share, axis=2).mean(axis=0)
        return pd.DataFrame(columns)

    def head_table(self) -> pd.DataFrame | None:
        """A row per head: its share in the paths of length 1, mean over inputs; None if there are no paths."""
        import pandas as pd

        if self.paths is None:
            return None
        share = self.paths.head_share.mean(axis=0)
        heads = [HeadId(layer, head) for layer, head in np.argwhere(~np.isnan(share)).tolist()]
        return pd.DataFrame(
            {
                "name": [str(head) for head in heads],
                "layer": [head.layer for head in heads],
                "head": [head.head for head in heads],
                "short_path_share": [share[head] for head in heads],
            }
        )


def measure_depth(prepared: PreparedInputs, *, fresh: bool | nn.Module = True, seed: int = 0) -> ModelDepth:
    """Measure the relative residual of a prepared model and, where it has them, its paths by length.

    Parameters
    ----------
    prepared : PreparedInputs
        What `headtree.models.given_model.prepare` returns.
    fresh : bool or module
        Whether to measure an untrained network as well; or that network.
    seed : int
        Seed of the fresh weights.
    """
    new = fresh_copy(prepared.model, seed) if fresh is True else fresh
    residual = measured(prepared, new if isinstance(new, nn.Module) else None)
    try:
        return ModelDepth(residual, paths_of(prepared))
    except InvalidValueError as error:
        return ModelDepth(residual, None, str(error))
