"""`make sweep`: capture the attention of every family of transformers, and write docs/families.md.

``python -m tools.sweep`` runs all families; ``python -m tools.sweep bert t5`` prints the rows of two.
"""

from __future__ import annotations

import datetime as dt
import os
import sys
import time
from pathlib import Path

from tools.sweep import families
from tools.sweep.measure import measured
from tools.sweep.page import page, summary
from tools.sweep.workers import guarded

_PAGE = Path(__file__).parents[2] / "docs" / "families.md"
_N_WORKERS = 2
_LIMIT = 60.0  # seconds for one family


def main(chosen: list[str]) -> None:
    """Sweep the chosen families, or all of them and write the page."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    start, rows = time.monotonic(), []
    for row in guarded(measured, chosen or families.names(), _N_WORKERS, _LIMIT):
        rows.append(row)
        print(f"{len(rows):4}  {row['family']}: {row['outcome']}{': ' * bool(row['why'])}{row['why']}", flush=True)
        if chosen:
            print("      ", row)
    print(summary(rows))
    if not chosen:
        today = dt.date.today().isoformat()
        _PAGE.write_text(page(rows, time.monotonic() - start, _N_WORKERS, today), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
