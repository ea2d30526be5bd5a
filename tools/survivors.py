"""Changes of the numerical core that no test can notice, and why: read by `tools.mutants`."""

from __future__ import annotations

_LARGER = "a bound on rounding errors may be a little larger"
_EDGE = "no number lies exactly on the bound"
_MEMORY = "only how much is in memory at a time"
_SAME_MASK = "the mask is the same all along this axis"
_WIDTH = "a factor that the width of the Gaussian has too"
_GPU = "only on a GPU"
_SORTED_FIRST = "only which pairs are sorted first"

#: For each module, a piece of ``line -> changed line``, and why the change changes no result. A piece of the line
#: as it was stands for every change of that line.
KNOWN = {
    "geometry/emd.py": {
        "_MULTIPLICATIONS = 9": _LARGER,
        "(sums < bound * bounds)": _EDGE,
        "torch.finfo(torch.float64).eps / 3": "next to float32, rounding in float64 is nothing",
        "bound = unit + bound * unit": "next to float32, rounding in float64 is nothing",
        "((sums >= 0) & (sums <= 2 * bound * products.total_weight))": "goes the long way to the same result",
    },
    "geometry/masked_emd.py": {
        "outer_axis = 1 if axis == 1 else 0": "counts entries again for every outer leaf, to the same numbers",
        "np.ones((1, 2, n_inner))": "both rows are ones",
        "missing.narrow(outer_axis, 1, 1)": _SAME_MASK,
    },
    "geometry/folder_sums.py": {
        "[np.diff(pointers) > 0]]] = 2": "anything but 0 says yes",
        "folders.first_leaf, -2)": "any negative number says that there is no leaf",
        "n_inner, n_bands = len(products.inner_size)": _MEMORY,
        "int(products.depth.max()) + 2": _MEMORY,
    },
    "geometry/sampled_emd.py": {
        "_FEATURES_AT_A_TIME = 1 << 30": _MEMORY,
        "ratio = 3.0": "where an iteration starts that converges from anywhere",
        "if start <= stop:": "adds nothing for no folders",
        "has_gaps: bool = True": "slower, and the same without gaps",
        "n_corners = 3 ** len(shape)": _LARGER,
        "torch.finfo(torch.float64).eps * 2 * scale": _LARGER,
        "((sums > 0) & (sums < most))": _EDGE,
        "len(counted) * n_tuples <= _COUNTS_ON_GPU": "both ways of counting give the same",
    },
    "geometry/affinity.py": {
        "_ENTRIES_AT_A_TIME, _MOST_AT_A_TIME = 4096, 1 << 23": _MEMORY,
        "step = max(1, at_a_time // max(": _MEMORY,
        "for where, block in blocks_along(values, 0, 2):": _MEMORY,
        "return sum(order_statistics(values,": _GPU,
        "at_a_time = _ENTRIES_ON_GPU * n": _GPU,
        "share = 1.0 if missing is None": _WIDTH,
        "return _gram(present, axis)": _WIDTH,
        "(first + second).div_(3)": "a factor of products and squares, which cancels",
        "missing.narrow(same, 1, 1)": _SAME_MASK,
        "keepdim=True) < roundoff * mean_size": _EDGE,
        "roundoff = ((n_entries + 2)": _LARGER,
        "squares <= 1.5e-12": _LARGER,
        "n = products.shape[1]": "the matrix is square",
    },
    "geometry/diffusion.py": {
        "_MANY_POINTS = 25": "which of two solvers is used, and they agree",
        "(magnitudes > magnitudes[0] * (1 - _SAME))": _EDGE,
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
    "trees/compare.py": {"nogil=False": "only how many threads work at a time"},
    "runs/checksums.py": {"len(path.parts) + 2)": "looks at the whole path twice"},
}
