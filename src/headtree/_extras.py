"""Optional dependencies: one check and one error for all of them."""

from __future__ import annotations

from importlib.util import find_spec

from headtree.errors import MissingPackageError

#: What each extra of headtree brings, by the names under which the packages are imported.
EXTRAS = {
    "models": ("PIL", "safetensors", "sentencepiece", "tokenizers", "transformers"),
    "report": ("bokeh", "matplotlib"),
    "demo": ("headtree_networks", "safetensors", "transformers"),
    "train": ("datasets",),
}


def require(extra: str, purpose: str) -> None:
    """Raise unless the packages of an extra are installed.

    Parameters
    ----------
    extra : str
        One of `EXTRAS`.
    purpose : str
        What needs it, as the subject of a sentence: "drawing figures".
    """
    missing = [name for name in EXTRAS[extra] if find_spec(name) is None]
    if missing:
        raise MissingPackageError(
            f"{purpose} needs {' and '.join(missing)}, which is not installed: pip install 'headtree[{extra}]'"
        )
