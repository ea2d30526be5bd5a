"""Small tasks on which [RC] measures what paths of each length are worth: sorting, convex hull, memorisation.

A network of attention and skips alone learns the task; then the sum of all paths of each length answers instead of
the network. Its accuracy is compared with chance.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from headtree._checks import at_least_one
from headtree.depth.paths import frozen_networks
from headtree.errors import InvalidValueError
from headtree.progress import progress

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class PathTask:
    """What a network is to learn, and how large it is."""

    name: str
    n_layers: int
    n_heads: int
    width: int
    n_tokens: int
    n_labels: int
    n_steps: int
    batch_size: int
    draw: Callable[[np.random.Generator, int], tuple[Tensor, Tensor]]  #: (inputs, labels) of n sequences
    vocabulary: int | None = None  #: None: points of the plane
    is_memorised: bool = False  #: measured on what was learned, not on new sequences
    learning_rate: float = 1e-3


def sorting() -> PathTask:
    """Sort 8 numbers out of 10: the label of a position is the number that belongs there."""

    def draw(rng: np.random.Generator, n: int) -> tuple[Tensor, Tensor]:
        numbers = rng.integers(10, size=(n, 8))
        return torch.from_numpy(numbers), torch.from_numpy(np.sort(numbers, axis=1))

    return PathTask("sorting", 6, 2, 48, 8, 10, 700, 64, draw, vocabulary=10)


def convex_hull() -> PathTask:
    """Say of each of 10 points in the unit square whether it is a corner of their convex hull."""

    def draw(rng: np.random.Generator, n: int) -> tuple[Tensor, Tensor]:
        points = rng.random((n, 10, 2))
        return torch.from_numpy(points).float(), torch.from_numpy(_are_corners(points).astype(np.int64))

    return PathTask("convex hull", 6, 3, 84, 10, 2, 1000, 64, draw)


def _are_corners(points: Float[np.ndarray, "cloud point 2"]) -> Bool[np.ndarray, "cloud point"]:
    """Which points of each cloud are corners of its hull: an edge of it has all other points on one side."""
    to = points[:, None] - points[:, :, None]  # from the second index to the third
    sides = to[:, :, :, None, 0] * to[:, :, None, :, 1] - to[:, :, :, None, 1] * to[:, :, None, :, 0]
    is_other = ~np.eye(points.shape[1], dtype=bool)
    has_none_left = np.all((sides <= 0) | ~is_other[:, None, :], axis=-1)  # (cloud, from, to)
    return np.asarray(np.any(has_none_left & is_other, axis=-1))


def memorisation() -> PathTask:
    """Memorise a random label for every word of a text; only the words around it tell which."""
    n_sequences, n_tokens, n_labels = 24, 32, 20
    words = _text_words(n_sequences * n_tokens)
    numbers = {word: i for i, word in enumerate(sorted(set(words)))}
    text = np.array([numbers[word] for word in words]).reshape(n_sequences, n_tokens)

    def draw(rng: np.random.Generator, n: int) -> tuple[Tensor, Tensor]:
        labels = np.random.default_rng(0).integers(n_labels, size=text.shape)
        rows = rng.choice(n_sequences, size=min(n, n_sequences), replace=False)
        return torch.from_numpy(text[rows]), torch.from_numpy(labels[rows])

    sizes = (6, 2, 250, n_tokens, n_labels, 300, 8)
    return PathTask("memorisation", *sizes, draw, vocabulary=len(numbers), is_memorised=True, learning_rate=5e-4)


def _text_words(n: int) -> list[str]:
    """The first words of Python's own documentation, which comes with every Python."""
    from pydoc_data.topics import topics

    text = " ".join(topics[name] for name in sorted(topics))
    words = [word.strip(".,:;()[]\"'`*").lower() for word in text.split()]
    return [word for word in words if word.isalpha()][:n]


TASKS: dict[str, Callable[[], PathTask]] = {
    "sorting": sorting,
    "convex hull": convex_hull,
    "memorisation": memorisation,
}


class Attention(nn.Module):
    """Heads of softmax attention."""

    def __init__(self, width: int, n_heads: int) -> None:
        super().__init__()
        self.n_heads = n_heads
        self.query, self.key = nn.Linear(width, width), nn.Linear(width, width)
        self.value, self.output = nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, x: Float[Tensor, "batch token width"]) -> Float[Tensor, "batch token width"]:
        """What every token gathers from the others."""
        query, key, value = (
            part(x).unflatten(-1, (self.n_heads, -1)).transpose(1, 2) for part in (self.query, self.key, self.value)
        )
        probs = torch.softmax(query @ key.mT / math.sqrt(query.shape[-1]), dim=-1)
        result: Tensor = self.output((probs @ value).transpose(1, 2).flatten(2))
        return result


class TaskNetwork(nn.Module):
    """Attention and skips alone, and a linear reading of every token's label."""

    def __init__(self, task: PathTask) -> None:
        super().__init__()
        is_points = task.vocabulary is None
        self.embed = nn.Linear(2, task.width) if is_points else nn.Embedding(task.vocabulary or 0, task.width)
        # points have no order; numbers and words do
        self.positions = None if is_points else nn.Parameter(torch.randn(task.n_tokens, task.width) * 0.5)
        self.norms = nn.ModuleList(nn.LayerNorm(task.width) for _ in range(task.n_layers))
        self.attentions = nn.ModuleList(Attention(task.width, task.n_heads) for _ in range(task.n_layers))
        self.read = nn.Linear(task.width, task.n_labels)

    def forward(self, x: Tensor) -> Float[Tensor, "batch token label"]:
        """Logits of the labels."""
        hidden = self.embed(x)
        if self.positions is not None:
            hidden = hidden + self.positions
        for norm, attention in zip(self.norms, self.attentions, strict=True):
            hidden = hidden + attention(norm(hidden))
        logits: Tensor = self.read(hidden)
        return logits


@dataclass(frozen=True, eq=False)
class TaskPaths:
    """Accuracy of the paths of each length on one task, by seed."""

    task: str
    accuracy: Float[np.ndarray, "seed length"]
    network: Float[np.ndarray, " seed"]  #: of the whole network
    chance: float  #: of always giving the most frequent label
    n_paths: tuple[int, ...]

    def interval(self) -> tuple[Float[np.ndarray, " length"], Float[np.ndarray, " length"]]:
        """Mean over seeds and half the width of its 95 % interval (Student's t)."""
        return mean_interval(self.accuracy)

    def table(self) -> pd.DataFrame:
        """A row per length."""
        import pandas as pd

        mean, half = self.interval()
        columns = {"length": np.arange(len(mean)), "accuracy": mean, "± 95 %": half}
        return pd.DataFrame(
            {**columns, "above chance": mean - self.chance, "paths": [str(n) for n in self.n_paths]}
        )

    def findings(self) -> list[str]:
        """What agrees with [RC] and what does not."""
        mean, half = self.interval()
        best = int(mean.argmax())
        half_way = len(mean) // 2
        above = mean[best] - self.chance
        near = [length for length in range(half_way + 1, len(mean)) if mean[length] - half[length] <= self.chance]
        far = [length for length in range(half_way + 1, len(mean)) if length not in near]
        said = [
            f"{self.task}: accuracy of the network {self.network.mean():.1%}, of chance {self.chance:.1%}.",
            f"Paths of length {best} alone get most, {mean[best]:.1%} ± {half[best]:.1%}: "
            + _who_carries(above, half[best], best <= half_way),
        ]
        if near:
            said.append(f"Lengths {_listed(near)} are not above chance, as in [RC].")
        if far:
            said.append(f"Lengths {_listed(far)} are still above chance, unlike the longest paths of [RC].")
        return said


def _who_carries(above: float, half: float, is_short: bool) -> str:
    """In words, from how far the best length is above chance and half the width of its interval."""
    if above + half <= 0:
        return "no length by itself does better than chance, unlike [RC]; the lengths only work together."
    if above - half <= 0:
        return "these seeds cannot tell it from chance, unlike [RC]; the lengths only work together."
    return (
        f"{'short' if is_short else 'long'} paths carry the prediction, {'as in' if is_short else 'unlike'} [RC]."
    )


def _listed(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers))


def mean_interval(values: Float[np.ndarray, "seed length"]) -> tuple[np.ndarray, np.ndarray]:
    """Mean over the first axis and half the width of its 95 % interval; 0 for a single seed."""
    from scipy.stats import t

    n = len(values)
    spread = values.std(axis=0, ddof=1) if n > 1 else np.zeros(values.shape[1:])
    factor = float(t.ppf(0.975, n - 1)) if n > 1 else 0.0
    return values.mean(axis=0), factor * spread / math.sqrt(n)


def task_paths(name: str, *, n_seeds: int = 5, n_test: int = 32, n_steps: int | None = None) -> TaskPaths:
    """Train networks on a task and measure what their paths of each length get right.

    Parameters
    ----------
    name : {"sorting", "convex hull", "memorisation"}
        In the sizes of [RC].
    n_seeds : int
        How many networks.
    n_test : int
        How many sequences to measure on; new ones, except for memorisation.
    n_steps : int, optional
        Instead of the task's own number of training steps.
    """
    if name not in TASKS:
        raise InvalidValueError(f"name must be one of {tuple(TASKS)}, got {name!r}")
    task = TASKS[name]()
    steps = task.n_steps if n_steps is None else at_least_one(n_steps, "n_steps")
    rows, whole, chances = [], [], []
    with progress(name, at_least_one(n_seeds, "n_seeds")) as step:
        for seed in range(n_seeds):
            network = train_task(task, seed, steps)
            inputs, labels = task.draw(np.random.default_rng([seed, 1]), at_least_one(n_test, "n_test"))
            by_length, all_of_it = _accuracies(network, inputs, labels)
            rows.append(by_length)
            whole.append(all_of_it)
            chances.append(float(torch.bincount(labels.flatten()).max()) / labels.numel())
            step(f"seed {seed}")
    n_paths = tuple(math.comb(task.n_layers, k) * task.n_heads**k for k in range(task.n_layers + 1))
    return TaskPaths(name, np.array(rows), np.array(whole), float(np.mean(chances)), n_paths)


def train_task(task: PathTask, seed: int, n_steps: int) -> TaskNetwork:
    """A network that has learned the task."""
    rng = np.random.default_rng([seed, 0])
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = TaskNetwork(task)
    optimizer = torch.optim.Adam(network.parameters(), lr=task.learning_rate, fused=True)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=task.learning_rate, total_steps=n_steps + 1)
    for _ in range(n_steps):
        inputs, labels = task.draw(rng, task.batch_size)
        loss = F.cross_entropy(network(inputs).flatten(0, 1), labels.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    return network.eval()


def _accuracies(
    network: TaskNetwork, inputs: Tensor, labels: Int[Tensor, "sequence token"]
) -> tuple[list[float], float]:
    """Of the paths of each length, read by the network's own last layer, and of the whole network."""
    with torch.no_grad():
        whole = float((network(inputs).argmax(dim=-1) == labels).double().mean())
        read = network.read
        weight, bias = read.weight.double(), read.bias.double()
        hits = []
        for frozen, wanted in zip(frozen_networks(network, inputs=inputs), labels, strict=True):
            sums, _ = frozen.by_length()
            answers = [(term[0] @ weight.T + bias).argmax(dim=-1) for term in sums]
            hits.append([float((answer == wanted).double().mean()) for answer in answers])
    return np.mean(hits, axis=0).tolist(), whole
