"""The picture of a run's page in README.md.

    python docs/make_screenshot.py runs/demo-vit        # writes docs/pictures/page.png

Needs Playwright and Chromium, as the tests of the page do.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
from pathlib import Path

import headtree as ht

PICTURE = Path(__file__).parent / "pictures" / "page.png"

#: What the picture shows: two heads selected, L0H7 and L4H10 of the bundled ViT.
FRAGMENT = "#s=7.58"

#: A picture in a repository is looked at, and downloaded by everyone.
BYTES_AT_MOST = 300_000


def page_picture(run: ht.Run, fragment: str, size: tuple[int, int]) -> bytes:
    """The page of a run as a browser shows it, as PNG."""
    from playwright.sync_api import sync_playwright

    path = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as driver:
        page = ht.write_report(run, Path(folder) / "report.html")
        browser = driver.chromium.launch(executable_path=path, args=["--no-sandbox", "--disable-gpu"])
        tab = browser.new_page(viewport={"width": size[0], "height": size[1]})
        tab.goto(page.as_uri() + fragment)
        tab.wait_for_selector("html[data-ready]", state="attached", timeout=60_000)
        tab.wait_for_function("() => HT.plots.cards.slice(0, 4).every(card => card.view)", timeout=60_000)
        tab.wait_for_timeout(500)
        picture = tab.screenshot()
        browser.close()
    return bytes(picture)


def main() -> None:
    """Write the picture."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", help="folder of a run")
    parser.add_argument("--fragment", default=FRAGMENT, help="what is selected, as in the address of the page")
    arguments = parser.parse_args()
    picture = page_picture(ht.open_run(arguments.run), arguments.fragment, (1400, 1500))
    if len(picture) > BYTES_AT_MOST:
        raise SystemExit(f"the picture has {len(picture)} bytes, more than {BYTES_AT_MOST}")
    PICTURE.write_bytes(picture)
    print(f"{PICTURE}: {len(picture)} bytes")


if __name__ == "__main__":
    main()
