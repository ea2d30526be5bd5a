"""Changes of the numerical core that no test can notice, and why: read by `tools.mutants`."""

from __future__ import annotations

_LARGER = "a bound on rounding errors may be a little larger"
_EDGE = "no number lies exactly on the bound"
_MEMORY = "only how much is in memory at a time"
_SAME_MASK = "the mask is the same all along this axis"
_WIDTH = "a factor that the width of the Gaussian has too"
_GPU = "only on a GPU"
_FLOAT64 = "next to float32, rounding in float64 is nothing"
_LONG_WAY = "goes the long way to the same result"
_NO_GAPS = "slower, and the same without gaps"
_FIRST = "only the first is read"
_FAR_OUT = "only for affinities beyond 2**1000 or 2**-1000, where a bound stands in for 1 already"
_SOLVER = "which of two solvers is used, and they agree"
_SORTED_FIRST = "only which pairs are sorted first"

#: For each module, a piece of ``line -> changed line``, and why the change changes no result. A piece of the line
#: as it was stands for every change of that line.
KNOWN = {
    "geometry/emd.py": {
        "(sums < bound * bounds)": _EDGE,
        "is_doubtful = (sums >= 0)": "a sum of 0 stays 0: in float64 it is at most the rounding of the entries",
        "torch.finfo(torch.float64).eps / 3": _FLOAT64,
        "torch.finfo(torch.float64).eps * 2": _FLOAT64,
        "bound = unit + bound * unit": _FLOAT64,
        "bound = unit - bound / unit": _FLOAT64,
        "is_doubtful &= sums < bound * bounds": _EDGE,
        "((sums >= 0) & (sums <= 2 * bound * products.total_weight))": _LONG_WAY,
        "(sums <= 3 * bound * products.total_weight)": _LONG_WAY,
        "(sums < 2 * bound * products.total_weight)": _EDGE,
    },
    "geometry/masked_emd.py": {
        "return len(self.is_present) >= 1": _NO_GAPS,
        "inner_mean), inner_mean > 0)": "without a mask nobody reads which folders are present",
        "outer_axis = 1 if axis == 1 else 0": "counts entries again for every outer leaf, to the same numbers",
        "np.ones((1, 2, n_inner))": "both rows are ones",
        "reshape(len(run.is_present), -2)": "numpy takes any negative number for the length that is left",
    },
    "geometry/folder_sums.py": {
        "_SUMS_AT_A_TIME = 1 << 21": _MEMORY,
        "dtype=np.int64), np.ones(2)": _FIRST,
        "nothing, one = np.zeros(1, dtype=np.int64)": _FIRST,
        "outer_weight=np.ones(2)": _FIRST,
        "range(1, len(folders)): -> for": "the root's first child adds up where the root does, to the same sums",
        "[np.diff(pointers) > 1]]] = 1": "a distinct folder never has exactly one child",
        "[np.diff(pointers) > 0]]] = 2": "anything but 0 says yes",
        "folders.first_leaf, -2)": "any negative number says that there is no leaf",
        "n_inner, n_bands = len(products.inner_size)": _MEMORY,
        "int(products.depth.max()) + 2": _MEMORY,
    },
    "geometry/sampled_emd.py": {
        "_COPIED_AT_A_TIME = 8 * BLOCK": _MEMORY,
        "_FEATURES_AT_A_TIME = 1 << 30": _MEMORY,
        "_COUNTS_ON_GPU = 1 << 26": _GPU,
        "else values.memory / 3": _MEMORY,
        "parts[2:]) and bool(known.any())": "both halves have draws, or neither",
        "ratio = 3.0": "where an iteration starts that converges from anywhere",
        "for _ in range(65)": "the iteration has converged",
        "* step - rng.random()": "a shift by a random number is as random the other way",
        "np.zeros((1, len(shape)), dtype=np.int64)": "a row without a weight, after all others, is never read",
        "if start <= stop:": "adds nothing for no folders",
        "stop + columns.start": "a run that does not start at 0 has no other part's folders",
        "has_gaps=len(scale.counts) >= 1": _NO_GAPS,
        "has_gaps: bool = True": _NO_GAPS,
        "most = 3 * float(": _LONG_WAY,
        "((sums > 0) & (sums < most))": _EDGE,
        "masked_fill(sums < bound[": _EDGE,
        "len(counted) * n_tuples <= _COUNTS_ON_GPU": "both ways of counting give the same",
        "[(each.stop + each.start).astype(np.float64)": _GPU,
        "(sums > 0.5).double()": _GPU,
        "np.ones((1, 2, n_inner))": "both rows are ones",
    },
    "geometry/affinity.py": {
        "_ENTRIES_AT_A_TIME, _MOST_AT_A_TIME = 4096, 1 << 23": _MEMORY,
        "_SLICES_AT_A_TIME = 129": "how copying is divided between threads",
        "(band + 2) * _SLICES_AT_A_TIME)": "copies slices twice",
        "-(-len(slices) * _SLICES_AT_A_TIME)": "more tasks, which copy nothing",
        "_FEWEST_TAKEN = 17": "rounded down to a multiple of 4",
        "_ENTRIES_ON_GPU = 1 << 27": _GPU,
        "if not not values.is_cuda:": "on the CPU, both ways give the same median",
        "rng.integers(2**63)": _GPU,
        "n_rows = max(": _MEMORY,
        "for n in (2, *rest)]": "a column that is not read",
        "max(2, n * (n - 1))": "a single slice has no pairs, and the sum is 0",
        "_MOST_AT_A_TIME * n)": _MEMORY,
        "squares < 1e-12 * (powers + powers.T)": _EDGE,
        "step = max(1, at_a_time // max(": _MEMORY,
        "for where, block in blocks_along(values, 0, 2):": _MEMORY,
        "return sum(order_statistics(values,": _GPU,
        "at_a_time = _ENTRIES_ON_GPU * n": _GPU,
        "share = 1.0 if missing is None": _WIDTH,
        "return _gram(present, axis)": _WIDTH,
        "(first + second).div_(3)": "a factor of products and squares, which cancels",
        "missing.narrow(same, 1, 1)": _SAME_MASK,
        "keepdim=True) < roundoff * mean_size": _EDGE,
        "farthest < roundoff * sizes": "on the bound, a slice is all zero already",
        "roundoff = (n_entries + 2)": _LARGER,
        "squares <= 1.5e-12": _LARGER,
        "n = products.shape[1]": "the matrix is square",
    },
    "geometry/diffusion.py": {
        "_MANY_POINTS = 25": _SOLVER,
        ">= _MANY_POINTS * n_pairs": _SOLVER,
        "_SPARE_PAIRS = 5": "one more pair, which is not used",
        "spectrum(matrix, n_components + 2)": "one more pair, which is cut off",
        "_FEW_FOR_A_GPU = 769": _GPU,
        "if len(affinity) < _FEW_FOR_A_GPU:": _GPU,
        "functions / _signs(functions)": "signs are 1 or -1",
        "(magnitudes > magnitudes[0] * (1 - _SAME))": _EDGE,
        "(magnitudes > magnitudes[wanted - 1] * (1 - _SAME))": _EDGE,
        "(magnitudes > magnitudes.amax(dim=0) * (1 - _ZERO))": _EDGE,
        "(magnitudes >= _ZERO)": _EDGE,
        "left * (1 + 0.01) <= float(": _EDGE,
        "left * (1 + 0.015) <": "a wider margin only turns to the full solver, and the two agree",
        "tol=0.0015": "the margin of 1e-2 is wider still",
        "return_eigenvectors=True)[0])": "one eigenvalue, as a number or as an array of one",
        "np.random.default_rng(1)": "any random vector will do",
        "times_power_of_two(g, -exponent, in_place=False)": _MEMORY,
        "max(-1001, ": _FAR_OUT,
        "min(-exponent, 1001)": _FAR_OUT,
        "[0] <= 0, -1.0, 1.0)": "the largest entry of an eigenvector is not 0",
    },
    "geometry/grow_tree.py": {
        "eigenvalues.abs() * pairs.": "a common factor of all distances, as long as it is not rounded to 0",
        "group.shape[1] >= 1:": "on a line, three points are never equally far from each other",
        "_PAIRS_FIRST = 4": _SORTED_FIRST,
        "min(_PAIRS_FIRST, n - 2) * n": _SORTED_FIRST,
        "n - 1) * n + 1]": _SORTED_FIRST,
        "n - 1) * n - 2]": _SORTED_FIRST,
        "median * tree_constant, *state)]": "the first pair joins whatever the limit is",
        "1.5e+300": "at that time, powers of ratios are 0 or 1",
        "n = affinity.shape[1]": "the matrix is square",
        "if n < 2:": "two leaves become single leaves in either way",
        "if balance >= 1:": "at most one position to draw, which takes nothing from the generator",
        "strict=True))) <= n:": "no ties are left to break",
        "if not coordinates or group": "later functions are too few to make all leaves equally far",
        "(np.linalg.norm(axis) or 1.5)": "what is divided is 0",
    },
    "measures/sparsity.py": {
        "np.empty((1, 0))": "refused for its type, whatever its shape",
        "np.empty((0, 1))": "refused for its type, whatever its shape",
    },
    "questionnaire/organize.py": {
        "self.settings.samples != 'auto' and not _fits_on_gpu": _GPU,
        "not error >= LARGEST_ERROR": _EDGE,
        "_TUPLES_ON_GPU = 2 * 10**7": _GPU,
        "_TUPLES_ON_GPU = 2 * 10 ** 7": _GPU,
        "for tree in trees)) < _TUPLES_ON_GPU": _GPU,
        "not not _fits_on_gpu": _GPU,
        "torch.cuda.memory_reserved(device)": _GPU,
        "torch.empty(1)  # make room": "replaced before it is read",
        "own is None and pairs is None": "for the type checker: none of them is None",
        "-1.5 if math.isnan(d)": "tree distances are not negative",
    },
    "trees/compare.py": {
        "nogil=False": "only how many threads work at a time",
        "_LEAVES_AT_A_TIME = 65": "how leaves are divided between threads",
    },
    "runs/checksums.py": {"len(path.parts) + 2)": "looks at the whole path twice"},
}
