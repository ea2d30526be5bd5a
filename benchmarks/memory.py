"""Peak memory of `headtree run` on many inputs compared with few: only one input is in memory at a time."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

import psutil

#: How much more memory four times as many inputs may take: their names, numbers and heads' affinities.
LIMIT = 1.1


def main(check: bool = False) -> None:
    """Print both peaks and their ratio; with `check`, use few short inputs only to see that everything runs."""
    tokens, few, many = (16, 1, 1) if check else (256, 6, 24)
    with tempfile.TemporaryDirectory() as folder:
        text = Path(folder, "text.txt")
        text.write_text(_text(many * tokens), encoding="utf-8")
        if check:
            _peak(Path(folder, "run"), text, few, tokens, "--no-draw")
            print("runs")
            return
        peaks = [_peak(Path(folder, f"run{n}"), text, n, tokens) for n in (few, many)]
    ratio = peaks[1] / peaks[0]
    print(
        f"the bundled txl, 16×8 heads, {tokens} tokens: {peaks[0]:.0f} MB for {few} inputs, {peaks[1]:.0f} MB",
        end="",
    )
    print(f" for {many}: {ratio:.2f} times as much (target at most {LIMIT})")


def _text(n_words: int) -> str:
    """Sentences of words that the bundled network knows."""
    from headtree.models.bundled.bundle import networks_folder

    words = (networks_folder() / "passages.txt").read_text(encoding="utf-8").split()
    return " ".join(words * (2 * n_words // len(words) + 1))


def _peak(run: Path, text: Path, n: int, tokens: int, *options: str) -> float:
    """Peak megabytes of a whole run in a separate process."""
    command = [sys.executable, "-m", "headtree", "run", "txl", "--text", str(text), "--inputs", str(n)]
    command += ["--tokens", str(tokens), "--output", str(run), *options]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    watched, peak = psutil.Process(process.pid), 0
    while process.poll() is None:
        with suppress(psutil.NoSuchProcess):
            peak = max(peak, watched.memory_info().rss)
        time.sleep(0.005)
    if process.wait() != 0:
        raise RuntimeError(f"{' '.join(command)} ended with {process.returncode}")
    return peak / 1e6
