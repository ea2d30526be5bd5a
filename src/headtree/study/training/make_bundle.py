"""Bundle a finished training: ``python -m headtree.study.training.make_bundle EXPORTED DATA [FOLDER]``.

Reads the files that `headtree.study.training.export` wrote for a finished training, and the folder of its data.
Writes weights, configuration, vocabulary, samples and the numbers of the model card. The card itself, README.md, is
written from the numbers of both networks. With ``--samples`` instead of EXPORTED, only the samples of a bundle and
their numbers are made again; nothing is trained.
"""

from __future__ import annotations

import json
import math
import re
import sys
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from headtree._files import atomic, write_text
from headtree.errors import InvalidValueError
from headtree.measures.comparisons import rank_correlation
from headtree.models.bundled.bundle import N_SAMPLES, N_WORDS, BundledNetwork, load_bundled, networks_folder
from headtree.models.bundled.word_tokenizer import END, UNKNOWN
from headtree.models.capture import capture
from headtree.study.training.checkpoint import write_json
from headtree.study.training.datasets import CLASSES, ImageData, TextData, read_cifar10, read_wikitext
from headtree.study.training.export import EARLIER, read_about
from headtree.study.training.training_watch import head_numbers, plot_history, structure

#: The first sample passages are spaced as far apart as if there were no others, which lie between them.
_FIRST = 10
#: Words of a paragraph in the plain text, at least.
_PARAGRAPH = 75
#: Beginning of a paragraph that passages.txt never had, so that the text before and after it stays as it is.
_LEFT_OUT = "Hitler's speech"


def bundle(exported: Path, data: TextData | ImageData, folder: Path) -> Path:
    """Write the bundle of one network; returns its folder."""
    from safetensors.torch import load_file

    about = read_about(exported)
    settings = about["settings"]
    if "test" not in about:
        raise InvalidValueError(
            f"the training in {exported} stopped at step {about['step']} of {settings['steps']} or was not tested; "
            "resume it, then export it again"
        )
    home: Path = folder / settings["network"]
    home.mkdir(parents=True, exist_ok=True)
    for name in ("weights", *EARLIER):
        if (exported / f"{name}.safetensors").is_file():
            _save(load_file(exported / f"{name}.safetensors"), home / f"{name}.safetensors")
    write_json(home / "config.json", about["config"])
    if isinstance(data, TextData):
        write_text(home / "vocabulary.txt", "\n".join(data.tokenizer.words) + "\n")
    write_samples(data, folder)
    card = {name: about[name] for name in ("settings", "history", "test", "seconds", "device", "torch")}
    write_json(home / "card.json", {**card, "classes": list(CLASSES)} if settings["network"] == "vit" else card)
    card |= _checked(settings["network"], folder)
    write_json(home / "card.json", card)
    plot_history(about["history"], home / "curve.svg", f"{settings['network']}, configuration small")
    return home


def write_samples(data: TextData | ImageData, folder: Path) -> Path:
    """Write the sample inputs of one network, for texts also the plain text; returns the network's folder."""
    home = folder / ("txl" if isinstance(data, TextData) else "vit")
    if isinstance(data, TextData):
        _save({"tokens": _passages(data).int()}, home / "samples.safetensors")
        write_text(folder / "passages.txt", plain_paragraphs(data))
    else:
        chosen = _pictures(data)
        samples = {"images": data.test_images[chosen].contiguous(), "labels": data.test_labels[chosen].int()}
        _save(samples, home / "samples.safetensors")
    return home


def renew_samples(data: TextData | ImageData, folder: Path) -> Path:
    """Make the samples of an existing bundle again, and their numbers in its card; returns the network's folder."""
    home = write_samples(data, folder)
    card = json.loads((home / "card.json").read_text(encoding="utf-8"))
    write_json(home / "card.json", card | _of_samples(load_bundled(home.name, folder=folder)))
    return home


def _save(tensors: dict[str, Tensor], path: Path) -> None:
    from safetensors.torch import save_file

    with atomic(path) as draft:
        save_file(tensors, draft)
    path.chmod(0o644)


def _passages(data: TextData) -> Tensor:
    """Evenly spaced passages of the test text, each from the start of a line."""
    ends = (data.test == data.tokenizer.numbers[END]).nonzero()[:, 0] + 1
    starts = []
    for i in sorted(range(N_SAMPLES), key=lambda i: i % (N_SAMPLES // _FIRST) > 0):
        after = ends[ends >= i * len(data.test) // N_SAMPLES]
        starts.append(int(after[0]) if len(after) and int(after[0]) + N_WORDS <= len(data.test) else 0)
    return torch.stack([data.test[start : start + N_WORDS] for start in starts])


def _pictures(data: ImageData) -> Tensor:
    """The first test images of every class: the first of each, then the second of each, and so on."""
    n = len(data.classes)
    of_class = [(data.test_labels == label).nonzero()[: N_SAMPLES // n, 0] for label in range(n)]
    return torch.stack(of_class, dim=1).flatten()


def plain_paragraphs(data: TextData) -> str:
    """The longer paragraphs of the test text in which every word is known, written as usual, one per line."""
    lines = " ".join(data.tokenizer.convert_ids_to_tokens(data.test.tolist())).split(END)
    long = [line for line in lines if UNKNOWN not in line and len(line.split()) >= _PARAGRAPH]
    chosen = [text for text in map(_plain, long) if not text.startswith(_LEFT_OUT)]
    return "".join(f"{text}\n" for text in chosen)


def _plain(line: str) -> str:
    """A line of WikiText without the spaces around its punctuation."""
    text = re.sub(r" @(.)@ ", r"\1", " ".join(line.split()))
    text = re.sub(r"(?<=\d) – (?=\d)", "–", text)
    text = re.sub(r"(?<=^At \d\d) : ", ":", text)  # not in later times of day, so that old inputs stay as they are
    text = re.sub(r" ([.,;:!?)]|'\w|(?<=s )' )", r"\1", text)
    text = re.sub(r"([($]) ", r"\1", text).replace(" ’ ", "’")
    return re.sub(r'" ([^"]*) "', r'"\1"', text).replace('" .', '".').replace('" ,', '",')


@torch.no_grad()
def passage_perplexity(network: BundledNetwork, i: int) -> float:
    """Perplexity of words 2 to 256 of a sample passage, read with an empty memory."""
    ids = network.inputs[i]["input_ids"]
    logits = network.model(ids).logits
    return math.exp(float(F.cross_entropy(logits[0, :-1], ids[0, 1:])))


@torch.no_grad()
def predicted_labels(network: BundledNetwork) -> list[int]:
    """The class that the network predicts for each of its sample images."""
    return [int(network.model(**item).logits.argmax()) for item in network.inputs]


def _checked(name: str, folder: Path) -> dict[str, Any]:
    """Measures of the bundled network, computed from the bundle itself."""
    network = load_bundled(name, folder=folder)
    untrained = load_bundled(name, "initial", folder=folder)
    probs, before = (
        [capture(item.model, inputs=[inputs], kind="probs")[0] for inputs in item.inputs[:3]]
        for item in (network, untrained)
    )
    rows = [structure(a, b) for a, b in zip(probs, before, strict=True)]
    scores = head_numbers(capture(network.model, inputs=[network.inputs[0]])[0])
    found: dict[str, Any] = {
        "n_weights": sum(parameter.numel() for parameter in network.model.parameters()),
        "structure": {key: round(sum(row[key] for row in rows) / len(rows), 4) for key in rows[0]},
        "scores_of_first_sample": scores,
    }
    return found | _of_samples(network)


def _of_samples(network: BundledNetwork) -> dict[str, Any]:
    """How well the network does on its samples."""
    if network.name == "txl":
        return {"passage_perplexities": [round(passage_perplexity(network, i), 4) for i in range(N_SAMPLES)]}
    return {"predicted_labels": predicted_labels(network), "classes": list(CLASSES)}


# -- the card -----------------------------------------------------------------------------------------------------

_HEAD = """# The networks that come with headtree

Two small transformers with the paper's numbers of layers, heads and tokens, so that real attention can
be looked at
without a network connection. They were trained with the settings of `headtree train txl|vit --config small`, with
`fast=True`; this page
is written
from the numbers that training and packing left in `card.json`. Both were trained
at the same time on one GPU, which the minutes below include. Settings were changed after earlier trainings whose
test results were known: perplexity 130 and 76 % in shorter ones.
"""

_TXL = """
## txl: Transformer-XL on WikiText-2

{n_weights:,} weights: {n_layers} layers × {n_heads} heads, width {width}, word vectors of {embedding}
shared by input and output,
memory {memory}, context {context}; {vocabulary:,} words. {steps:,} steps of {batch} × {context} words,
AdamW, one cycle up to {learning_rate:g},
weight decay {weight_decay:g}, dropout {dropout:g}; {minutes:.1f} minutes on {device}.

| | perplexity |
|---|---|
| test, memory {memory} | **{test:.2f}** |
| validation (in {streams} streams), at the end | {valid:.2f} |
| the {n_samples} sample passages, empty memory | {passages} |

The aim was a test perplexity under 95: {verdict}.

![loss and heads while it learned](txl/curve.svg)
{structure}
Words and samples are from WikiText-2 (Merity, Xiong, Bradbury, Socher 2016, *Pointer Sentinel Mixture
Models*), texts of
Wikipedia, CC BY-SA 3.0; `txl/samples.safetensors`, `txl/vocabulary.txt` and `passages.txt` are under that
licence. The first article of the
training text differs from the official file.
"""

_VIT = """
## vit: ViT on CIFAR-10

{n_weights:,} weights: {num_hidden_layers} layers × {num_attention_heads} heads, width {hidden_size},
{image_size} × {image_size} pixels in
patches of {patch_size}: 197 tokens, transformers' own `ViTForImageClassification`. Images are resized
from 32 × 32 by bilinear
interpolation. {steps:,} steps of {batch} images ({epochs:.0f} rounds), AdamW, one cycle up to
{learning_rate:g}, weight decay {weight_decay:g},
random turns, crops, flips and colours, mixup and cutmix, {visible:.0%} of the patches shown in the first
{visible_until:.0%} of the steps and all in the rest; {minutes:.1f} minutes on {device}.

Test accuracy: **{test:.2%}**. The aim was over 87 %: {verdict}. The curve below is of the first 2000
test images; nothing was
chosen by it.

The classes that it gives to its samples, below their true classes:

| samples | {true} |
|---|{rule}|
{named}

![loss and heads while it learned](vit/curve.svg)
{structure}
The sample images are the first {each} of each class in CIFAR-10's test part (Krizhevsky 2009, *Learning
Multiple Layers of Features
from Tiny Images*), bit for bit. CIFAR-10 was published for research without a licence text; cite that
report when you use them.
"""

_STRUCTURE = """
Real structure, not noise. Total variation distance between attention (0: equal, 1: nothing in common),
mean over three samples,
all heads and queries:

| | trained | untrained |
|---|---|---|
| from uniform attention | {from_uniform:.3f} | {from_uniform_untrained:.3f} |
| of two heads from each other | {from_each_other:.3f} | {from_each_other_untrained:.3f} |
| of each head from its own untrained self | {from_untrained:.3f} | 0 |

The curve shows loss, mean size of the heads' mixed Haar differences and mean of their scores on one
unseen input. Rank
correlation of the differences with the validation loss over the checkpoints: {correlation:.2f} (positive: they
move together,
as the premise of the paper's corollary 1 has it; negative: the differences grow as the loss falls).
"""

_TAIL = """
## Files

`weights.safetensors`: half precision. Test results are of the weights before they were rounded, all else above
is of these files.
`early`, `middle`, `late`: the same network after 2, 10 and 40 %
of its training, 8 bits
with a scale for each row, for comparing a network with its own past; `initial` is drawn again from the seed.
The weights are under headtree's own licence.
"""


def write_card(folder: Path) -> Path:
    """Write the model card from the numbers of the bundles in `folder`."""
    text = _HEAD
    for name, section in (("txl", _txl_section), ("vit", _vit_section)):
        if (folder / name / "card.json").is_file():
            card, config = (json.loads((folder / name / f"{part}.json").read_text()) for part in ("card", "config"))
            text += section(card, config)
    path = folder / "README.md"
    write_text(path, _reflowed(text + _TAIL))
    return path


def _reflowed(text: str) -> str:
    """Rewrap paragraphs; tables, headings and pictures stay unchanged."""
    parts = [
        part if part.startswith(("|", "#", "!")) else textwrap.fill(part, 116, break_on_hyphens=False)
        for part in re.split(r"\n{2,}", text.strip())
    ]
    return "\n\n".join(parts) + "\n"


def _txl_section(card: Mapping[str, Any], config: Mapping[str, Any]) -> str:
    perplexity, perplexities = card["test"]["perplexity"], card["passage_perplexities"]
    return _TXL.format(
        **{**_common(card), **config},
        test=perplexity,
        valid=card["history"][-1]["valid_perplexity"],
        streams=32,
        n_samples=len(perplexities),
        passages=f"{min(perplexities):.1f} to {max(perplexities):.1f}, median {np.median(perplexities):.1f}",
        verdict="reached" if perplexity < 95 else "not reached",
        structure=_structure_text(card),
    )


def _vit_section(card: Mapping[str, Any], config: Mapping[str, Any]) -> str:
    classes, named = card["classes"], [card["classes"][i] for i in card["predicted_labels"]]
    n = len(classes)
    rows = [named[i : i + n] for i in range(0, len(named), n)]
    accuracy = card["test"]["accuracy"]
    common = _common(card)
    return _VIT.format(
        **{**common, **config},
        epochs=common["steps"] * common["batch"] / 50_000,
        test=accuracy,
        verdict="reached" if accuracy > 0.87 else "not reached",
        rule="|".join("---" for _ in classes),
        true=" | ".join(classes),
        named="\n".join(f"| {i * n} to {i * n + n - 1} | {' | '.join(row)} |" for i, row in enumerate(rows)),
        each=len(rows),
        structure=_structure_text(card),
    )


def _common(card: Mapping[str, Any]) -> dict[str, Any]:
    names = ("steps", "batch", "context", "learning_rate", "weight_decay", "visible", "visible_until")
    return {
        **{name: card["settings"][name] for name in names},
        "n_weights": card["n_weights"],
        "minutes": card["seconds"] / 60,
        "device": card["device"],
    }


def _structure_text(card: Mapping[str, Any]) -> str:
    history = card["history"]
    sizes, losses = (np.array([row[name] for row in history], float) for name in ("mixed_difference", "valid_loss"))
    correlation = rank_correlation(sizes, losses) if len(sizes) > 2 else 0.0
    return _STRUCTURE.format(**card["structure"], correlation=correlation)


def main(arguments: list[str]) -> None:
    """Bundle an exported training, or make the samples of a bundle again."""
    exported, source = arguments[0], Path(arguments[1])
    folder = Path(arguments[2]) if len(arguments) > 2 else networks_folder()
    is_text = any(source.glob("*train*")) and not any(source.glob("data_batch_1*"))
    data = read_wikitext(source) if is_text else read_cifar10(source)
    if exported == "--samples":
        renew_samples(data, folder)
    else:
        bundle(Path(exported), data, folder)
    write_card(folder)


if __name__ == "__main__":
    main(sys.argv[1:])
