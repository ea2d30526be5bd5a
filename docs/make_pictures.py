"""Draw the pictures of docs/figures.md and README.md from a run.

    headtree demo
    python docs/make_pictures.py runs/demo-vit
    python docs/make_pictures.py runs/demo-txl tree     # only this one

Each picture is a PNG with at most 256 colours, of less than 150 kB.
"""

import sys
from io import BytesIO
from pathlib import Path

from PIL import Image

import headtree as ht
from headtree.report.figures.run_figures import network_figures

PICTURES = Path(__file__).parent / "pictures"
RESOLUTIONS = (120, 100, 80)  # dots per inch; matrices of noise need the last
LARGEST = 150_000


def main(run_folder: str, *names: str) -> None:
    """Draw every figure of the run, or those named, small."""
    PICTURES.mkdir(exist_ok=True)
    for name, draw in network_figures(ht.open_run(run_folder)).items():
        if names and name not in names:
            continue
        figure = draw()
        for resolution in RESOLUTIONS:
            picture = BytesIO()
            figure.savefig(picture, format="png", dpi=resolution)
            path = PICTURES / f"{name}.png"
            Image.open(picture).convert("RGB").quantize(
                128, Image.Quantize.FASTOCTREE, dither=Image.Dither.NONE
            ).save(path, optimize=True)
            if path.stat().st_size < LARGEST:
                break


if __name__ == "__main__":
    main(*sys.argv[1:])
