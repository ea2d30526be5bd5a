"""Compare two run folders number by number: ``python tools/compare_runs.py OLD NEW [OLD NEW …]``.

Every array of every Zarr dataset, every column of every table and every value of every JSON file is compared bit
for bit; figures and pages are listed by name only. Prints one line per difference and exits with 1 if there is any.
Use it to show that a change of the code leaves results alone.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import zarr

#: Parts of run.json that say when and with what a run was made, not what was found.
_CIRCUMSTANCES = ("created", "versions", "steps", "settings")


def differences(old: Path, new: Path) -> Iterator[str]:
    """One line for each difference between two runs."""
    for name in sorted({path.name for folder in (old, new) for path in folder.iterdir()}):
        yield from _compared(old / name, new / name, name)


def _compared(old: Path, new: Path, name: str) -> Iterator[str]:
    if not old.exists() or not new.exists():
        yield f"{name}: only in the {'new' if new.exists() else 'old'} run"
    elif name.endswith(".zarr"):
        yield from _zarr(old, new, name)
    elif name.endswith(".csv"):
        yield from _table(old, new, name)
    elif name.endswith(".json"):
        yield from _json(json.loads(old.read_text()), json.loads(new.read_text()), name)
    elif old.is_dir():
        for inner in sorted({path.name for folder in (old, new) for path in folder.iterdir()}):
            yield from _compared(old / inner, new / inner, f"{name}/{inner}")


def _zarr(old: Path, new: Path, name: str) -> Iterator[str]:
    groups = [zarr.open_group(path, mode="r") for path in (old, new)]
    names = [set(group.array_keys()) for group in groups]
    for array in sorted(names[0] ^ names[1]):
        yield f"{name}/{array}: only in the {'old' if array in names[0] else 'new'} run"
    for array in sorted(names[0] & names[1]):
        a, b = (group[array][...] for group in groups)
        yield from _array(np.asarray(a), np.asarray(b), f"{name}/{array}")


def _array(a: np.ndarray[Any, Any], b: np.ndarray[Any, Any], name: str) -> Iterator[str]:
    if a.dtype != b.dtype or a.shape != b.shape:
        yield f"{name}: {a.dtype} {a.shape} became {b.dtype} {b.shape}"
    elif not np.array_equal(a, b, equal_nan=a.dtype.kind == "f"):
        yield f"{name}: {int((a != b).sum())} of {a.size} entries differ{_largest(a, b)}"


def _largest(a: np.ndarray[Any, Any], b: np.ndarray[Any, Any]) -> str:
    if a.dtype.kind != "f":
        return ""
    scale = float(np.nanmax(np.abs(a))) or 1.0
    return f", by at most {float(np.nanmax(np.abs(a - b))) / scale:.1e} of the largest"


def _table(old: Path, new: Path, name: str) -> Iterator[str]:
    a, b = (pd.read_csv(path, keep_default_na=False) for path in (old, new))
    for column in [*a, *(column for column in b if column not in a)]:
        if column not in a or column not in b:
            yield f"{name}: column {column} only in the {'old' if column in a else 'new'} run"
        else:
            yield from _array(a[column].to_numpy(), b[column].to_numpy(), f"{name}: {column}")


def _json(a: Any, b: Any, name: str) -> Iterator[str]:
    if isinstance(a, dict) and isinstance(b, dict):
        for key in [*a, *(key for key in b if key not in a)]:
            if name == "run.json" and key in _CIRCUMSTANCES:
                continue
            if key not in a or key not in b:
                yield f"{name}: {key} only in the {'old' if key in a else 'new'} run"
            else:
                yield from _json(a[key], b[key], f"{name}: {key}" if name.endswith(".json") else f"{name}.{key}")
    elif isinstance(a, list) and isinstance(b, list) and len(a) == len(b):
        for i, (x, y) in enumerate(zip(a, b, strict=True)):
            yield from _json(x, y, f"{name}[{i}]")
    elif a != b:
        yield f"{name}: {_short(a)} became {_short(b)}"


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 120 else text[:117] + "…"


def main(arguments: list[str]) -> int:
    """Compare pairs of runs; the exit code."""
    n_different = 0
    for old, new in zip(arguments[::2], arguments[1::2], strict=True):
        found = list(differences(Path(old), Path(new)))
        print(f"{old} and {new}: {len(found)} differences")
        for line in found:
            print(f"  {line}")
        n_different += len(found)
    return int(n_different > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
