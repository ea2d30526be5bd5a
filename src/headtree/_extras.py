"""Optional dependencies: one check and one error for all of them."""

from __future__ import annotations

from importlib.util import find_spec

from headtree.errors import MissingPackageError

#: The packages that each extra requires, by their import names.
EXTRAS = {
    "models": ("safetensors", "transformers"),
    "report": ("matplotlib",),
    "demo": ("PIL", "headtree_networks", "safetensors", "transformers"),
    "train": ("datasets",),
    "cluster": ("dask", "distributed"),
    "compare": ("ot",),
}

#: The extras that another extra includes, as in `pyproject.toml`.
_INCLUDED = {"demo": ("models", "report"), "train": ("models", "report")}

#: Names on the package index that differ from the import names.
INDEX_NAMES = {"PIL": "pillow", "headtree_networks": "headtree-networks", "ot": "POT"}


def require(extras: str, purpose: str, *packages: str) -> None:
    """Raise `MissingPackageError` unless the packages of some extras are installed.

    Call it before any work is done and before any file is written.

    Parameters
    ----------
    extras : str
        One or more of `EXTRAS`, separated by commas as in pip: "models" or "models,report".
    purpose : str
        What needs them, as the subject of a sentence with a singular verb: "drawing figures".
    *packages : str
        The required packages, by their import names; by default all packages of the extras.
    """
    absent = {
        extra: [name for name in packages or EXTRAS[extra] if find_spec(name) is None]
        for extra in extras.split(",")
    }
    wanted = [extra for extra, names in absent.items() if names]
    if not wanted:
        return
    included = {name for extra in wanted for name in _INCLUDED.get(extra, ())}
    install = ",".join(extra for extra in wanted if extra not in included)
    missing = sorted({INDEX_NAMES.get(name, name) for names in absent.values() for name in names})
    verb = "is" if len(missing) == 1 else "are"
    raise MissingPackageError(
        f"{purpose} needs {_listed(missing)}, which {verb} not installed; install with: "
        f"pip install 'headtree[{install}]'"
    )


def require_packages(purpose: str, *packages: str) -> None:
    """Raise `MissingPackageError` unless packages that belong to no extra are installed.

    Parameters
    ----------
    purpose : str
        What needs them, as the subject of a sentence with a singular verb.
    *packages : str
        The packages; their import names are those on the package index.
    """
    missing = [name for name in packages if find_spec(name) is None]
    if missing:
        verb = "is" if len(missing) == 1 else "are"
        raise MissingPackageError(
            f"{purpose} needs {_listed(missing)}, which {verb} not installed; install with: "
            f"pip install {' '.join(missing)}"
        )


def _listed(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
