"""The page in Chromium: its size, when its first view is there, and how long a selection takes to be painted.

The runs are noise, which takes more room than any attention.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from pathlib import Path

import headtree as ht
from benchmarks._measure import seconds
from tests.report.noisy import noisy_run

#: Heads, heads in a layer, tokens and inputs.
_SIZES = [(144, 12, 512, 6), (1024, 32, 128, 2)]

#: From a click to the next frame in which every view of the selection is drawn.
_CLICK = """async ([x, y]) => {
    const target = document.querySelector("#grid-plot");
    const options = {bubbles: true, clientX: x, clientY: y, button: 0};
    const start = performance.now();
    target.dispatchEvent(new PointerEvent("pointerdown", options));
    target.dispatchEvent(new PointerEvent("pointerup", options));
    while (!("settled" in document.documentElement.dataset)) await new Promise(resolve => setTimeout(resolve));
    await new Promise(resolve => requestAnimationFrame(() => setTimeout(resolve)));
    return performance.now() - start;
}"""


def main(check: bool = False) -> None:
    """Print the table; with `check`, use a small run only to see that everything runs."""
    for n_heads, per_layer, n_tokens, n_inputs in [(8, 4, 12, 2)] if check else _SIZES:
        with tempfile.TemporaryDirectory() as folder:
            run = noisy_run(n_heads, n_tokens, n_inputs, per_layer)
            path = Path(folder) / "report.html"
            took = seconds(lambda run=run, path=path: ht.write_report(run, path), repeats=1)
            name = f"{n_heads} heads x {n_tokens} tokens x {n_inputs} inputs"
            print(f"{name}: {path.stat().st_size / 1e6:.1f} MB, written in {took:.1f} s", flush=True)
            if not check:
                first, clicks = _in_chromium(path)
                print(f"{name}: first view after {first:.2f} s, selections {min(clicks):.0f}-{max(clicks):.0f} ms")


def _in_chromium(path: Path) -> tuple[float, list[float]]:
    """Seconds until the heads are seen, and milliseconds of some selections."""
    from playwright.sync_api import sync_playwright

    program = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=program, args=["--no-sandbox", "--disable-gpu"])
        tab = browser.new_page(viewport={"width": 1440, "height": 900})
        start = time.perf_counter()
        tab.goto(path.as_uri(), wait_until="commit")
        tab.wait_for_selector("#grid-plot image", state="attached", timeout=120_000)
        first = time.perf_counter() - start
        tab.wait_for_selector("html[data-ready][data-settled]", state="attached", timeout=120_000)
        places = tab.eval_on_selector_all(
            ".stop",
            "all => all.slice(0, 40).map(e => { const b = e.getBoundingClientRect(); return [b.x + 5, b.y + 5]; })",
        )
        clicks = [float(tab.evaluate(_CLICK, place)) for place in places[::4]]
        browser.close()
    return first, clicks
