"""A progress bar with the remaining time if standard error is a terminal, nothing otherwise."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_on_screen: list[str] = []


@contextmanager
def progress(description: str, total: int) -> Iterator[Callable[[str], None]]:
    """Show a bar of `total` steps on standard error while the block runs, if that is a terminal.

    The block receives a function to call after each step, with a short note on what comes next. Only the outermost
    of nested bars is drawn.
    """
    if not sys.stderr.isatty() or _on_screen:
        yield lambda note: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}", markup=False),
    )
    _on_screen.append(description)
    try:
        with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
            task = bar.add_task(description, total=total, note="")
            yield lambda note: bar.update(task, advance=1, note=note)
    finally:
        _on_screen.remove(description)
