"""Support of the folders of a consensus tree: how much of them other inputs put together, beyond chance."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Int

from headtree._threads import for_each_task
from headtree.geometry.combined_affinity import InputMatrices
from headtree.geometry.resampled_trees import LinkageFolders, ResampledTrees
from headtree.progress import progress

#: The null distribution: sets of inputs with items relabelled at random, divisions of each set, and how many sets
#: may exceed what is called chance, about one in a hundred.
_RELABELLED_SETS = 200
_RELABELLED_DIVISIONS = 20
_EXCEEDING_SETS = 1

#: The same where a folder is tested given others, which takes most of the time: as severe with half of everything.
_CONDITIONAL_SETS = 100
_CONDITIONAL_DIVISIONS = 10
_CONDITIONAL_EXCEEDING_SETS = 0
#: Sets after which a folder that is within chance already is given up.
_SETS_AT_A_TIME = 10

#: The smaller transfer must exceed chance by this much: chance is known only to about that.
_LEAST_EXCESS = 0.05

#: Support below this counts as none: one network of noise in a hundred has some above 0.1.
LEAST_SUPPORT = 0.2

#: Cap on the items permuted per null set, since the time grows with their square. Fewer items transfer more by
#: chance (128 heads of txl: up to 0.37, and 64 of them 0.40), so a cap errs on the safe side.
_MANY = 256

#: A set of leaves, as an integer with bit i set for leaf i.
Folder = int


@dataclass(frozen=True, eq=False)
class FolderSupport:
    """A consensus tree, as the closeness that linkage makes it of, with the support of its folders."""

    closeness: Float[np.ndarray, "leaf leaf"]
    transfer: dict[Folder, float]  #: mean transfer to the trees of halves; chance is not taken out
    support: dict[Folder, float]  #: the same beyond chance
    chance: Chance  #: for all leaves


def tree_closeness(inputs: InputMatrices, trees: ResampledTrees) -> Float[np.ndarray, "leaf leaf"]:
    """How closely trees join two leaves; ties are broken by their affinity."""
    affinity = inputs.combined()
    low, high = affinity.min(), affinity.max()
    step = 1 / (len(trees.joins) * inputs.n_leaves)  # between values of the closeness
    scaled = (affinity - low) / (high - low) if high > low else np.zeros_like(affinity)
    return trees.closeness() + step / 2 * scaled


def folder_support(inputs: InputMatrices, n_bootstrap: int, rng: np.random.Generator) -> FolderSupport:
    """Compute the tree, and the transfer and support of its folders; see `headtree.consensus`."""
    n = inputs.n_leaves
    weights = divisions(inputs.n_inputs, n_bootstrap, rng)
    trees = ResampledTrees.grow(inputs, weights)
    closeness = tree_closeness(inputs, trees)
    found = LinkageFolders.of(closeness, inputs.combined())
    transfer = Transfer.to_halves(trees, found.members)
    folders = [as_folder(np.flatnonzero(row)) for row in found.members]
    chance = Chance.of(inputs, rng)
    support = dict.fromkeys(folders, 0.0)
    conditional = _Conditional(inputs, weights, rng)
    supported: list[Folder] = []
    beyond = np.array([chance.beyond(transfer.of(i), folder.bit_count(), n) for i, folder in enumerate(folders)])
    with progress("support of folders", len(folders)) as step:
        for i in _order_of_tests(beyond, found):
            folder = folders[i]
            if beyond[i] >= LEAST_SUPPORT and conditional.holds(folder, supported):
                support[folder] = float(beyond[i])
                supported.append(folder)
            step("")
    return FolderSupport(closeness, dict(zip(folders, transfer.mean.tolist(), strict=True)), support, chance)


def _order_of_tests(beyond: Float[np.ndarray, " folder"], found: LinkageFolders) -> Int[np.ndarray, " folder"]:
    """Order of the tests: first folders that are in nearly every tree, by their gap; then from large to small.

    The more inputs agree on everything, the less does support tell families from unions of them. The others lie in
    long chains that grow by a head or two, and which of a chain were supported would be a matter of chance if
    smaller ones came first.
    """
    is_clear = beyond >= 0.95
    size = np.where(is_clear, 0, found.members.sum(axis=1))
    return np.lexsort([-found.gap, -size, ~is_clear])


class _Conditional:
    """Whether a folder is beyond chance given those that are supported already."""

    def __init__(
        self, inputs: InputMatrices, weights: Float[np.ndarray, "sample 2 input"], rng: np.random.Generator
    ) -> None:
        self._inputs, self._weights, self._rng = inputs, weights, rng
        self._known: dict[frozenset[Folder], tuple[ResampledTrees, _Relabelled]] = {}

    def holds(self, folder: Folder, supported: Sequence[Folder]) -> bool:
        everything = (1 << self._inputs.n_leaves) - 1
        around = min((f for f in supported if _is_within(folder, f)), key=int.bit_count, default=everything)
        is_union = any(_is_within(f, folder) for f in supported)
        if around == everything and not is_union:
            return True
        items = sorted(_items(around, supported if is_union else []))
        trees, null = self._among(items)
        inside = np.array([[_is_within(item, folder) for item in items]])
        transfer, n_inside = Transfer.to_halves(trees, inside).of(0), int(inside.sum())
        # no set may exceed chance, so more sets never make it smaller
        return all(
            Chance(*null.largest(n_sets), _CONDITIONAL_EXCEEDING_SETS).beyond(transfer, n_inside, len(items)) > 0
            for n_sets in (*range(_SETS_AT_A_TIME, _CONDITIONAL_SETS, _SETS_AT_A_TIME), _CONDITIONAL_SETS)
        )

    def _among(self, items: Sequence[Folder]) -> tuple[ResampledTrees, _Relabelled]:
        key = frozenset(items)
        if key not in self._known:
            among = self._inputs.of_items([leaves_of(item) for item in items])
            null = _Relabelled(among, self._rng, _CONDITIONAL_SETS, _CONDITIONAL_DIVISIONS)
            self._known[key] = ResampledTrees.grow(among, self._weights), null
        return self._known[key]


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
    return [*blocks, *(1 << leaf for leaf in leaves_of(left))]


def leaves_of(folder: Folder) -> list[int]:
    """Leaves of a folder, in increasing order."""
    return [leaf for leaf in range(folder.bit_length()) if folder >> leaf & 1]


def as_folder(leaves: Iterable[int]) -> Folder:
    """Return the folder with these leaves."""
    return sum(1 << int(leaf) for leaf in leaves)


@dataclass(frozen=True, eq=False)
class Transfer:
    """Transfer of folders to the trees of halves, over divisions of the inputs into two halves."""

    mean: Float[np.ndarray, " *folder"]  #: over both halves
    smaller: Float[np.ndarray, " *folder"]  #: mean over divisions of the smaller of both halves

    @classmethod
    def to_halves(cls, trees: ResampledTrees, members: Bool[np.ndarray, "folder leaf"]) -> Transfer:
        """The transfer of each folder; the two trees of a division follow each other."""
        found = trees.transfer(members)
        return cls(found.mean(axis=0), np.minimum(found[::2], found[1::2]).mean(axis=0))

    def of(self, i: int) -> Transfer:
        """That of one folder."""
        return Transfer(np.asarray(self.mean[i]), np.asarray(self.smaller[i]))


@dataclass(frozen=True)
class Chance:
    """Null distribution of the transfer: the items of each input are relabelled at random.

    A folder is beyond chance if both halves show it, as measured by the smaller transfer, which noise rarely does.
    How far beyond is measured by the mean.
    """

    mean: Float[np.ndarray, "set size"]  #: largest of any folder with this number of items
    smaller: Float[np.ndarray, "set size"]
    n_exceeding: int = _EXCEEDING_SETS  #: sets that may exceed chance

    @classmethod
    def of(cls, inputs: InputMatrices, rng: np.random.Generator) -> Chance:
        """Relabel the items of every input, and divide the inputs, again and again."""
        null = _Relabelled(inputs, rng, _RELABELLED_SETS, _RELABELLED_DIVISIONS)
        return cls(*null.largest(_RELABELLED_SETS), _EXCEEDING_SETS)

    def beyond(self, transfer: Transfer, n_inside: int, n_items: int) -> float:
        """The transfer beyond chance, as in Cohen's kappa; 0 if it is not."""
        sizes = self._comparable(n_inside, n_items - n_inside)
        if transfer.smaller - self._exceeded_by_few(self.smaller[:, sizes]) <= (1 - 1e-9) * _LEAST_EXCESS:
            return 0.0
        chance = self._exceeded_by_few(self.mean[:, sizes])
        return max(0.0, float((transfer.mean - chance) / (1 - chance))) if chance < 1 else 0.0

    def _exceeded_by_few(self, largest: Float[np.ndarray, "set size"]) -> float:
        return float(np.sort(largest.max(axis=1))[-1 - self.n_exceeding])

    def _comparable(self, n_inside: int, n_outside: int) -> slice:
        """Sizes with at least as many items inside and outside.

        If most items are inside, only folders with the same number outside are compared. Numbers above half of the
        items drawn are capped there.
        """
        n = self.mean.shape[1]
        fewer = min(n_inside, n_outside, n // 2)
        return slice(fewer, n - fewer + 1) if n_inside <= n_outside else slice(n - fewer, n - fewer + 1)


class _Relabelled:
    """Sets of inputs with relabelled items. All are drawn at once; their transfers are computed when asked for."""

    def __init__(self, inputs: InputMatrices, rng: np.random.Generator, n_sets: int, n_divisions: int) -> None:
        n_inputs, n_drawn = inputs.n_inputs, min(inputs.n_leaves, _MANY)
        # Items are drawn from an order that depends on their affinities only, not on how they were given.
        canonical = np.argsort(inputs.parts.mean(axis=(0, 1, 2)))
        drawn = rng.permuted(np.tile(canonical, (n_sets, 1)), axis=1)[:, None, :n_drawn]
        self._orders = rng.permuted(np.tile(drawn, (1, n_inputs, 1)), axis=2)
        self._weights = [divisions(n_inputs, n_divisions, rng) for _ in range(n_sets)]
        self._inputs, self._n_known = inputs, 0
        self._mean, self._smaller = np.zeros((2, n_sets, n_drawn))

    def largest(self, n_sets: int) -> tuple[Float[np.ndarray, "set size"], Float[np.ndarray, "set size"]]:
        """Largest mean and smaller transfer of any folder of each size, in each of the first sets."""
        first = self._n_known
        if n_sets > first:
            for_each_task(lambda i: self._find(first + i), n_sets - first)
            self._n_known = n_sets
        return self._mean[:n_sets], self._smaller[:n_sets]

    def _find(self, i: int) -> None:
        null = self._inputs.relabelled(self._orders[i])
        trees = ResampledTrees.grow(null, self._weights[i])
        members = LinkageFolders.of(tree_closeness(null, trees)).members
        found, size = Transfer.to_halves(trees, members), members.sum(axis=1)
        np.maximum.at(self._mean[i], size, found.mean)
        np.maximum.at(self._smaller[i], size, found.smaller)


def divisions(n_inputs: int, n_samples: int, rng: np.random.Generator) -> Float[np.ndarray, "sample 2 input"]:
    """Weights of the inputs when each half of a random division into two is resampled with replacement."""
    shuffled = rng.permuted(np.tile(np.arange(n_inputs), (n_samples, 1)), axis=1)
    weights = np.zeros((n_samples, 2, n_inputs))
    for side, half in enumerate(np.split(shuffled, [n_inputs // 2], axis=1)):
        size = half.shape[1]
        drawn = rng.multinomial(size, np.full(size, 1 / size), n_samples) / size
        np.put_along_axis(weights[:, side], half, drawn, axis=1)
    return weights
