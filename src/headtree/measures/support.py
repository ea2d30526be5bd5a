"""Support of the folders of a consensus tree: how often they recur over inputs, beyond chance."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from headtree._threads import for_each_task
from headtree.geometry.recurrence import Recurrence, recurrence
from headtree.progress import progress

#: Sets of inputs whose items are relabelled at random, and divisions of each set, that make the null distribution.
#: Chance is the share that at most one set exceeds, so a folder of noise has support in about 2 of 201 cases.
_RELABELLED_SETS = 200
_RELABELLED_DIVISIONS = 20

#: Cap on the items permuted per null set; beyond 64 the null distribution barely changes. In six inputs, of noise
#: or of a network, pairs recur with a share of 0.2 to 0.3 for both 64 and 128 items, but of 0.5 for 16.
_MANY = 64

#: A set of leaves, as an integer with bit i set for leaf i.
Folder = int


@dataclass(frozen=True)
class FolderSupport:
    """Share and support of each folder of a linkage tree, except single leaves."""

    share: dict[Folder, float]  #: fraction of resampled sets of inputs whose tree has the folder
    support: dict[Folder, float]  #: fraction of divisions with it in both halves, beyond chance; 0 for the root


def folder_support(
    affinities: Float[np.ndarray, "input leaf leaf"], n_bootstrap: int, rng: np.random.Generator
) -> FolderSupport:
    """Compute the share and support of the folders; see `headtree.consensus`."""
    n_inputs, n_leaves, _ = affinities.shape
    mean, everything = affinities.mean(axis=0), (1 << n_leaves) - 1
    resampled = recurrence(mean, affinities, _bootstrap(n_inputs, n_bootstrap, rng))
    divided = recurrence(mean, affinities, _divisions(n_inputs, n_bootstrap, rng))
    chance = _Chance.of(affinities, rng)
    chance_among: dict[frozenset[Folder], _Chance] = {}
    folders = _folders(divided)
    support = dict.fromkeys(folders, 0.0)
    supported: list[Folder] = []
    clearest_first = np.argsort(-divided.gap, kind="stable")[1:]  # without the first, the root
    with progress("support of folders", len(clearest_first)) as step:
        for i in clearest_first:
            folder, twice = folders[i], divided.count[i] / n_bootstrap
            beyond = _beyond(twice, chance.of_size(folder.bit_count(), n_leaves - folder.bit_count()))
            around = min((f for f in supported if _is_within(folder, f)), key=int.bit_count, default=everything)
            is_union = any(_is_within(f, folder) for f in supported)
            if beyond > 0 and (is_union or around != everything):
                items = frozenset(_items(around, supported if is_union else []))
                if items not in chance_among:
                    chance_among[items] = _Chance.of(_between(sorted(items), affinities), rng)
                n_inside = sum(_is_within(item, folder) for item in items)
                beyond = _beyond(twice, chance_among[items].of_size(n_inside, len(items) - n_inside))
            if beyond > 0:
                support[folder] = beyond
                supported.append(folder)
            step("")
    share = dict(zip(_folders(resampled), (resampled.count / n_bootstrap).tolist(), strict=True))
    return FolderSupport(share, support)


def _is_within(a: Folder, b: Folder) -> bool:
    return a & b == a


def _items(around: Folder, units: Iterable[Folder]) -> list[Folder]:
    """Items of `around` to permute: the largest folders among `units` inside it, and the remaining leaves."""
    blocks: list[Folder] = []
    left = around
    for folder in sorted(units, key=int.bit_count, reverse=True):
        if folder != around and _is_within(folder, left):  # and therefore in none of the blocks
            blocks.append(folder)
            left &= ~folder
    return [*blocks, *(1 << leaf for leaf in _leaves(left))]


def _leaves(folder: Folder) -> list[int]:
    """Leaves of a folder, in increasing order."""
    return [leaf for leaf in range(folder.bit_length()) if folder >> leaf & 1]


def as_folder(leaves: Iterable[int]) -> Folder:
    """Return the folder with these leaves."""
    return sum(1 << int(leaf) for leaf in leaves)


def _between(
    items: Sequence[Folder], affinities: Float[np.ndarray, "input leaf leaf"]
) -> Float[np.ndarray, "input item item"]:
    """Mean affinity between the leaves of every two items."""
    mean = np.zeros((len(items), affinities.shape[1]))
    for row, item in zip(mean, items, strict=True):
        row[_leaves(item)] = 1 / item.bit_count()
    between = mean @ affinities @ mean.T
    return np.asarray((between + between.transpose(0, 2, 1)) / 2)  # the products are symmetric only up to rounding


def _beyond(share: float, chance: float) -> float:
    """Share beyond chance, as in Cohen's kappa; 0 if the excess is below the null distribution's resolution."""
    is_beyond = share - chance > (1 - 1e-9) / _RELABELLED_DIVISIONS
    return (share - chance) / (1 - chance) if is_beyond else 0.0


def _folders(found: Recurrence) -> list[Folder]:
    return [as_folder(found.order[a : a + n]) for a, n in zip(found.start, found.size, strict=True)]


@dataclass(frozen=True)
class _Chance:
    """Null distribution of the shares: the items of each input are relabelled at random."""

    largest: Float[np.ndarray, "set size"]  #: largest share of any folder with this number of items

    @classmethod
    def of(cls, affinities: Float[np.ndarray, "input item item"], rng: np.random.Generator) -> _Chance:
        n_inputs, n, _ = affinities.shape
        n_drawn = min(n, _MANY)
        # Items are drawn from an order that depends on their affinities only, not on how they were given.
        canonical = np.argsort(affinities.mean(axis=(0, 1)))
        drawn = rng.permuted(np.tile(canonical, (_RELABELLED_SETS, 1)), axis=1)[:, None, :n_drawn]
        orders = rng.permuted(np.tile(drawn, (1, n_inputs, 1)), axis=2)
        weights = [_divisions(n_inputs, _RELABELLED_DIVISIONS, rng) for _ in orders]
        largest = np.zeros((_RELABELLED_SETS, n_drawn))

        def find(i: int) -> None:
            rows, columns = orders[i, :, :, None], orders[i, :, None, :]
            relabelled = affinities[np.arange(n_inputs)[:, None, None], rows, columns]
            found = recurrence(relabelled.mean(axis=0), relabelled, weights[i])
            np.maximum.at(largest[i], found.size[1:], found.count[1:] / _RELABELLED_DIVISIONS)

        for_each_task(find, _RELABELLED_SETS)
        return cls(largest)

    def of_size(self, n_inside: int, n_outside: int) -> float:
        """Share that at most one set exceeds, over folders with at least as many items inside and outside.

        If most items are inside, only folders with the same number outside are compared. Numbers above half of the
        items drawn are capped there.
        """
        n = self.largest.shape[1]
        fewer = min(n_inside, n_outside, n // 2)
        sizes = slice(fewer, n - fewer + 1) if n_inside <= n_outside else slice(n - fewer, n - fewer + 1)
        return float(np.sort(self.largest[:, sizes].max(axis=1))[-2])


def _bootstrap(n_inputs: int, n_samples: int, rng: np.random.Generator) -> Float[np.ndarray, "sample 1 input"]:
    """Weights of the inputs in samples drawn with replacement."""
    counts = rng.multinomial(n_inputs, np.full(n_inputs, 1 / n_inputs), n_samples)
    return np.asarray(counts[:, None, :] / n_inputs)


def _divisions(n_inputs: int, n_samples: int, rng: np.random.Generator) -> Float[np.ndarray, "sample 2 input"]:
    """Weights of the inputs when each half of a random division into two is resampled with replacement."""
    shuffled = rng.permuted(np.tile(np.arange(n_inputs), (n_samples, 1)), axis=1)
    weights = np.zeros((n_samples, 2, n_inputs))
    for side, half in enumerate(np.split(shuffled, [n_inputs // 2], axis=1)):
        drawn = _bootstrap(half.shape[1], n_samples, rng)[:, 0]
        np.put_along_axis(weights[:, side], half, drawn, axis=1)
    return weights
