"""The circle of [RC]: one layer, applied again and again to two points that should follow opposite arcs."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from headtree._checks import at_least_one
from headtree.progress import progress
from headtree.study.collapse.path_tasks import Attention

#: (skip, MLP)
CIRCLES: dict[str, tuple[bool, bool]] = {
    "attention alone": (False, False),
    "with MLP": (False, True),
    "with skip": (True, False),
    "with skip and MLP": (True, True),
}
_RADIUS, _WIDTH = 0.3, 32


class Circle(nn.Module):
    """One layer of attention from points to points."""

    def __init__(self, has_skip: bool, has_mlp: bool) -> None:
        super().__init__()
        self.has_skip = has_skip
        self.enter, self.attention = nn.Linear(2, _WIDTH), Attention(_WIDTH, 1)
        self.mlp = (
            nn.Sequential(nn.Linear(_WIDTH, 4 * _WIDTH), nn.ReLU(), nn.Linear(4 * _WIDTH, _WIDTH))
            if has_mlp
            else None
        )
        self.leave = nn.Linear(_WIDTH, 2)

    def forward(self, points: Float[Tensor, "batch 2 2"]) -> Float[Tensor, "batch 2 2"]:
        """Where the two points go next."""
        hidden = self.enter(points)
        hidden = hidden + self.attention(hidden) if self.has_skip else self.attention(hidden)
        if self.mlp is not None:
            hidden = hidden + self.mlp(hidden) if self.has_skip else self.mlp(hidden)
        result: Tensor = self.leave(hidden)
        return result


@dataclass(frozen=True, eq=False)
class CircleRuns:
    """The paths of two points when each variant of the layer is applied to its own output."""

    truth: Float[np.ndarray, "step 2 2"]
    runs: dict[str, Float[np.ndarray, "seed step 2 2"]]

    def distances(self, variant: str) -> Float[np.ndarray, "seed step"]:
        """Between the two points, relative to the diameter: 0 is collapse, 1 is right, nan is out of range."""
        first, second = np.moveaxis(self.runs[variant].astype(np.float64), 2, 0)
        with np.errstate(invalid="ignore"):
            apart = first - second
        return np.asarray(_lengths(apart) / (2 * _RADIUS))

    def ends(self, variant: str) -> dict[str, int]:
        """How many seeds end with the points collapsed into one, apart as they should be, or diverged."""
        last = self.distances(variant)[:, -1]
        collapsed, apart = last < 0.1, (last >= 0.1) & (last <= 2)
        return {
            "collapsed": int(collapsed.sum()),
            "apart": int(apart.sum()),
            "ran away": int((~collapsed & ~apart).sum()),
        }

    def findings(self) -> list[str]:
        """Where the points end up, and whether that agrees with [RC]."""
        return [
            f"Circle, {variant}: after {len(self.truth) - 1} applications, of {len(runs)} seeds "
            + ", ".join(f"{n} {end}" for end, n in self.ends(variant).items())
            + "; "
            + _verdict(variant == "attention alone", self.ends(variant))
            for variant, runs in self.runs.items()
        ]


def _verdict(is_alone: bool, ends: dict[str, int]) -> str:
    """[RC]: attention alone degenerates to rank one; skips and MLPs stop that."""
    n, n_collapsed = sum(ends.values()), ends["collapsed"]
    if is_alone:
        said = {n: "as in [RC], all collapse.", 0: "unlike [RC], none collapses."}
        return said.get(n_collapsed, "in part as in [RC]: not all collapse.")
    if n_collapsed:
        return "unlike [RC], this does not always keep the points from collapsing."
    return "as in [RC], none collapses" + (", but not all stay." if ends["ran away"] else ".")


def _lengths(vectors: Float[np.ndarray, "seed step 2"]) -> Float[np.ndarray, "seed step"]:
    with np.errstate(invalid="ignore", over="ignore"):
        return np.asarray(np.linalg.norm(vectors, axis=-1))


def arcs(n_points: int) -> Float[Tensor, "{n_points} 2 2"]:
    """Two points on a circle, opposite to each other, along half of it counter-clockwise."""
    angle = torch.linspace(0, math.pi, n_points)
    first = torch.stack([angle.cos(), angle.sin()], dim=-1)
    return _RADIUS * torch.stack([-first, first], dim=1)


def circle_runs(*, n_seeds: int = 5, n_points: int = 100, n_steps: int = 5000) -> CircleRuns:
    """Train each variant to make single steps, then let it run on its own points.

    Parameters
    ----------
    n_seeds : int
        How many networks of each variant.
    n_points : int
        Along each arc.
    n_steps : int
        Of training.
    """
    truth = arcs(at_least_one(n_points, "n_points"))
    runs: dict[str, np.ndarray] = {}
    with progress("circle", len(CIRCLES) * at_least_one(n_seeds, "n_seeds")) as step:
        for name, (has_skip, has_mlp) in CIRCLES.items():
            seeds = []
            for seed in range(n_seeds):
                seeds.append(_run(_train(has_skip, has_mlp, seed, truth, n_steps), truth).numpy())
                step(name)
            runs[name] = np.stack(seeds)
    return CircleRuns(truth.numpy(), runs)


def _train(has_skip: bool, has_mlp: bool, seed: int, truth: Tensor, n_steps: int) -> Circle:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = Circle(has_skip, has_mlp)
    optimizer = torch.optim.Adam(network.parameters(), lr=3e-3, fused=True)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=3e-3, total_steps=n_steps + 1)
    for _ in range(at_least_one(n_steps, "n_steps")):
        loss = F.mse_loss(network(truth[:-1]), truth[1:])  # each step from the true points
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    return network.eval()


def _run(network: Circle, truth: Tensor) -> Float[Tensor, "step 2 2"]:
    points = [truth[:1]]
    with torch.no_grad():
        for _ in range(len(truth) - 1):
            points.append(network(points[-1]))
    return torch.cat(points)
