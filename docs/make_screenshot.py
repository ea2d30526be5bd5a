"""The picture of a run's page in README.md.

    python docs/make_screenshot.py runs/demo-vit        # writes docs/pictures/page.png

Needs Playwright and Chromium, as the tests of the page do.
"""

from __future__ import annotations

import argparse
import io
import shutil
import tempfile
from pathlib import Path

import headtree as ht

PICTURE = Path(__file__).parent / "pictures" / "page.png"

#: What the picture shows: L4H10 of the bundled ViT, and where its patch r6c6 looks.
FRAGMENT = "#s=58&p=91"

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
        tab.wait_for_selector("html[data-ready][data-settled]", state="attached", timeout=60_000)
        picture = tab.screenshot()
        browser.close()
    return _small(bytes(picture))


def _small(picture: bytes) -> bytes:
    """The picture in 128 colours, which a page hardly exceeds."""
    from PIL import Image

    target = io.BytesIO()
    colours = (
        Image.open(io.BytesIO(picture))
        .convert("RGB")
        .quantize(128, Image.Quantize.FASTOCTREE, dither=Image.Dither.NONE)
    )
    colours.save(target, format="PNG", optimize=True)
    return target.getvalue()


def main() -> None:
    """Write the picture."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", help="folder of a run")
    parser.add_argument("--fragment", default=FRAGMENT, help="what is selected, as in the address of the page")
    arguments = parser.parse_args()
    picture = page_picture(ht.open_run(arguments.run), arguments.fragment, (1400, 1050))
    if len(picture) > BYTES_AT_MOST:
        raise SystemExit(f"the picture has {len(picture)} bytes, more than {BYTES_AT_MOST}")
    PICTURE.write_bytes(picture)
    print(f"{PICTURE}: {len(picture)} bytes")


if __name__ == "__main__":
    main()
