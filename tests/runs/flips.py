"""Flip bits in the files of runs: ``python -m tests.runs.flips [--each N]``.

Three runs, of a network with text and effects, of one with pictures, and of an array, have every kind of file that
a run can have. A flip is silent if everything is read without an error, and foreign if the error is not headtree's.
Arrays that only other programs read are read with Zarr.
"""

from __future__ import annotations

import argparse
import re
import tempfile
import time
import warnings
from collections import defaultdict
from pathlib import Path

import numpy as np
import zarr

import headtree as ht
from headtree.errors import HeadtreeError
from headtree.pipeline.array_run import ArrayFile
from headtree.pipeline.make_run import make_array_run, make_run
from headtree.pipeline.model_source import ModelSource
from tests.runs.examples import QUICK


def read_all(path):
    """Everything that a run has, as plain bytes."""
    run = ht.open_run(path)
    if run.kind == "array":
        found = [run.array[...].tobytes()]
    else:
        found = [np.asarray(a.values).tobytes() + repr((a.queries, a.keys)).encode() for a in run.attention]
        found += [np.asarray(a.mask).tobytes() for a in run.attention if a.mask is not None]
        found += [c.affinity.tobytes() + c.support.tobytes() for c in run.similarities.values()]
        found += [repr(m).encode() for m in run.measured]
    for org in run.organization:
        found += [a.tobytes() for a in (*org.affinities, *org.distances, *org.coordinates)]
        found += [tree.labels.tobytes() for tree in org.trees]
    if run.record.is_done("effects"):
        found += [run.effects.table().to_csv().encode(), run.effects.changes.tobytes()]
    found += [table.to_csv().encode() for table in run.tables.values()]
    found += [section.to_json().encode() for section in run.sections.values()]
    found += [
        file.read_bytes() for file in (*run.samples, *run.figures.values(), *([run.page] if run.page else []))
    ]
    return [*found, repr(run.measures).encode()]


class _DamagedChunk(Exception):
    """Zarr refuses a chunk."""


def read_stored(run: Path, file: Path) -> None:
    """Read the array that a chunk belongs to as any other program would."""
    store, _, inside = file.relative_to(run).as_posix().partition(".zarr/")
    array, _, chunk = inside.partition("/c")
    if chunk:
        try:
            np.asarray(zarr.open_group(run / f"{store}.zarr", mode="r")[array])
        except Exception as error:
            raise _DamagedChunk from error


def kinds_of_files(run: Path) -> dict[str, list[Path]]:
    """The files of a run by kind: metadata or chunks of each store, figures by format, others but for numbers."""
    found = defaultdict(list)
    for file in sorted(path for path in run.rglob("*") if path.is_file()):
        name = file.relative_to(run).as_posix()
        store, _, inside = name.partition(".zarr/")
        if inside:
            kind = f"{store}.zarr " + ("metadata" if file.name == "zarr.json" else "chunks")
        else:
            kind = f"figures/*{file.suffix}" if file.parent.name == "figures" else re.sub(r"\d+", "#", name)
        found[kind].append(file)
    return dict(found)


def flip(run: Path, files: list[Path], n: int, rng: np.random.Generator) -> list[str]:
    """Flip `n` bits, one at a time; returns what was wrong with each that did not give an error of headtree."""
    wrong = []
    for _ in range(n):
        file = files[rng.integers(len(files))]
        data = file.read_bytes()
        flipped = bytearray(data)
        place, bit = rng.integers(len(data)), rng.integers(8)
        flipped[place] ^= 1 << bit
        file.write_bytes(flipped)
        try:
            read_all(run)
            read_stored(run, file)
            wrong.append(f"silent: {file.relative_to(run)}, bit {bit} of byte {place}")
        except _DamagedChunk:
            pass  # of an array that only other programs read, with Zarr, which notices
        except HeadtreeError as error:
            if file.relative_to(run).parts[0] not in str(error):
                wrong.append(f"not named: {file.relative_to(run)}: {error}")
        except Exception as error:
            wrong.append(f"foreign: {file.relative_to(run)}, bit {bit} of byte {place}: {error!r}")
        file.write_bytes(data)
    return wrong


def make_runs(folder: Path) -> list[Path]:
    """Runs that have every kind of file."""
    text = ModelSource(model="txl", inputs=4, tokens=12, layers=[0, 1])
    pictures = ModelSource(model="vit", inputs=2, layers=[0])
    np.savez(folder / "table.npz", x=np.random.default_rng(0).standard_normal((20, 30)))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # few inputs
        runs = [
            make_run(text, folder / "text", measures=QUICK, effects=True, depth=True, sensitivity=True),
            make_run(pictures, folder / "pictures", measures=QUICK, draw=False),
            make_array_run(ArrayFile(folder / "table.npz"), folder / "array"),
        ]
    return [run.path for run in runs]


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--each", type=int, default=60, help="flips in each kind of file")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    start, rng = time.perf_counter(), np.random.default_rng(given.seed)
    wrong: list[str] = []
    known: set[str] = set()
    with tempfile.TemporaryDirectory() as folder:
        for run in make_runs(Path(folder)):
            read_all(run)  # nothing is wrong yet
            for kind, files in kinds_of_files(run).items():
                if kind not in known:
                    wrong += flip(run, files, given.each, rng)
                    known.add(kind)
    print(
        f"{given.each} flips in each of {len(known)} kinds of file: "
        f"{sum(w.startswith('silent') for w in wrong)} silent, "
        f"{sum(w.startswith('foreign') for w in wrong)} foreign errors, "
        f"{sum(w.startswith('not') for w in wrong)} not named; {time.perf_counter() - start:.0f} s"
    )
    if wrong:
        raise SystemExit("\n".join(wrong))


if __name__ == "__main__":
    main()
