"""The networks on which similarities are compared, with the inputs for it and others on which heads are ablated."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float
from torch import Tensor

from headtree.errors import InvalidValueError
from headtree.measures.heads.effects import head_effects
from headtree.models.bundled.bundle import load_bundled, networks_folder
from headtree.models.view import ModelView
from headtree.pipeline.demo import pretrained_source
from headtree.study.similarities.functional_truth import FunctionalTruth, output_changes, truth_of
from headtree.study.similarities.reactions import ORIGIN, reaction_tokenizer, reactions, rxnmapper_folder
from headtree.study.similarities.similarity_settings import (
    MOST_INPUTS,
    PIECES_FOR_EFFECTS,
    REACTIONS,
    REACTIONS_FOR_EFFECTS,
    SEED,
    SHARED_RUN,
    TOKENS,
)
from headtree.study.similarities.vit_effects import other_pictures, read_pictures, vit_effects

NETWORKS = ("txl", "vit", "minilm", "rxnmapper")


@dataclass(frozen=True, eq=False)
class EvidenceNetwork:
    """A model, the inputs on which its heads are compared, and how their function is measured on other inputs."""

    name: str
    view: ModelView
    inputs: Sequence[Mapping[str, Tensor]]  #: arguments of the model's forward method
    about: str  #: model and inputs, in words
    measure_function: Callable[[], FunctionalTruth] | None  #: None if there are too few inputs for it
    why_not: str = ""  #: why function is not measured


def check_network(name: str) -> None:
    """Refuse a network that is not known."""
    if name not in NETWORKS:
        raise InvalidValueError(
            f"networks must be bundled, {', '.join(NETWORKS)} for similarities, got {name!r}; other models have no "
            "text or pictures here on which their heads could be ablated"
        )


def evidence_network(name: str, pictures: Path | None = None, device: str = "cpu") -> EvidenceNetwork:
    """Load a network by name."""
    known: dict[str, Callable[[], EvidenceNetwork]] = {
        "txl": _txl,
        "vit": lambda: _vit(pictures, device),
        "minilm": _minilm,
        "rxnmapper": _rxnmapper,
    }
    check_network(name)
    return known[name]()


def _txl() -> EvidenceNetwork:
    network = load_bundled("txl")
    view = ModelView(network.model, tokenizer=network.tokenizer)
    passages = [item["input_ids"] for item in network.inputs]
    half = len(passages) // 2
    for_effects = [{"input_ids": ids} for ids in passages[half:]]

    def measure() -> FunctionalTruth:
        return truth_by_loss(view, for_effects, "words of the other sample passages")

    return EvidenceNetwork(
        name="txl",
        view=view,
        inputs=[{"input_ids": ids[:, :TOKENS]} for ids in passages[:half][:MOST_INPUTS]],
        about=f"the first {TOKENS} words of the first {half} of {len(passages)} sample passages (WikiText-2, test)",
        measure_function=measure,
    )


def _vit(pictures: Path | None, device: str) -> EvidenceNetwork:
    network = load_bundled("vit")
    images = network.images
    if images is None:
        raise InvalidValueError("the bundled ViT has no sample pictures; install 'headtree[demo]' again")

    def measure() -> FunctionalTruth:
        if pictures is None:
            raise InvalidValueError("the function of the ViT's heads needs pictures; name a folder with --pictures")
        return vit_effects(network, other_pictures(read_pictures(pictures), images), device)

    n = min(MOST_INPUTS, len(network.inputs))
    return EvidenceNetwork(
        name="vit",
        view=ModelView(network.model),
        inputs=list(network.inputs[:n]),
        about=f"{n} sample pictures (CIFAR-10, test)",
        measure_function=None if pictures is None else measure,
        why_not="it takes thousands of pictures: of 64, the reliability is .02; pass CIFAR-10 with --pictures",
    )


def _minilm() -> EvidenceNetwork:
    folder = pretrained_source(1).model
    view = ModelView(folder)
    text = (networks_folder() / "passages.txt").read_text(encoding="utf-8")
    pieces = text_pieces(view, [text])[:MOST_INPUTS]
    passages = load_bundled("txl").tokens or ()

    def measure() -> FunctionalTruth:
        others = without_shared_text(text_pieces(view, [" ".join(words) for words in passages]), pieces)
        step = max(1, len(others) // PIECES_FOR_EFFECTS)
        others = others[::step][:PIECES_FOR_EFFECTS]
        return truth_by_embeddings(view, others)

    return EvidenceNetwork(
        name="minilm",
        view=view,
        inputs=pieces,
        about=f"{len(pieces)} pieces of {TOKENS} tokens of passages.txt (Wikipedia)",
        measure_function=measure,
    )


def _rxnmapper() -> EvidenceNetwork:
    folder = rxnmapper_folder()
    tokenizer = reaction_tokenizer(folder)
    view = ModelView(str(folder), tokenizer=tokenizer)
    found = []
    for smiles in reactions(4 * (REACTIONS + REACTIONS_FOR_EFFECTS), SEED):
        given = tokenizer(smiles, return_tensors="pt")
        if given["input_ids"].shape[1] <= TOKENS:
            found.append({key: given[key] for key in ("input_ids", "attention_mask")})
    for_effects = found[REACTIONS : REACTIONS + REACTIONS_FOR_EFFECTS]

    def measure() -> FunctionalTruth:
        return truth_by_loss(view, for_effects, "tokens of other reactions")

    return EvidenceNetwork(
        name="rxnmapper",
        view=view,
        inputs=found[: min(REACTIONS, MOST_INPUTS)],
        about=f"{min(REACTIONS, MOST_INPUTS)} {ORIGIN} of at most {TOKENS} tokens",
        measure_function=measure,
    )


def text_pieces(view: ModelView, texts: Sequence[str], tokens: int = TOKENS) -> list[dict[str, Tensor]]:
    """Texts in pieces of equal length."""
    items = view.prepare(texts=list(texts), tokens=tokens, kind="probs").items
    return [{key: value for key, value in item.kwargs.items() if isinstance(value, Tensor)} for item in items]


def without_shared_text(
    pieces: Sequence[dict[str, Tensor]], others: Sequence[Mapping[str, Tensor]]
) -> list[dict[str, Tensor]]:
    """The pieces that share no run of tokens with other pieces: both may be of the same article."""
    known = {run for piece in others for run in _runs(piece)}
    return [piece for piece in pieces if known.isdisjoint(_runs(piece))]


def _runs(piece: Mapping[str, Tensor]) -> set[tuple[int, ...]]:
    ids = piece["input_ids"][0].tolist()[1:-1]  # without the special tokens
    return {tuple(ids[i : i + SHARED_RUN]) for i in range(len(ids) - SHARED_RUN + 1)}


def truth_by_loss(view: ModelView, inputs: Sequence[Mapping[str, Tensor]], of_what: str) -> FunctionalTruth:
    """Correlations of the changes of loss at every token; halves are every other input."""
    effects = head_effects(view, inputs=list(inputs), n_ablated=len(inputs), control=False)
    in_half = np.stack([effects.input_of % 2 == half for half in (0, 1)])
    what = f"changes of the {effects.objective}, {effects.changes.shape[1]:,} {of_what}"
    return truth_of(effects.changes, in_half, what)


def truth_by_embeddings(view: ModelView, inputs: Sequence[Mapping[str, Tensor]]) -> FunctionalTruth:
    """Correlations of the changes of the cosines of embeddings; halves are the pairs within every other input."""
    pairs = np.array(list(combinations(range(len(inputs)), 2)))

    def embeddings(output: Any) -> Float[Tensor, "input width"]:
        found: Tensor = output.last_hidden_state.mean(dim=1)
        return found

    def cosines(embedded: Float[np.ndarray, "... input width"]) -> Float[np.ndarray, "... pair"]:
        scaled = embedded / np.linalg.norm(embedded, axis=-1, keepdims=True)
        of_all: np.ndarray = scaled @ scaled.swapaxes(-1, -2)
        return of_all[..., pairs[:, 0], pairs[:, 1]]

    whole, moved = output_changes(view, inputs, embeddings, batch_size=32)
    changes = cosines(whole + moved) - cosines(whole)
    in_half = np.stack([(pairs % 2 == half).all(axis=1) for half in (0, 1)])
    what = (
        f"changes of the {len(pairs):,} cosines between the embeddings of {len(inputs)} pieces of {TOKENS} tokens "
        "of the sample passages of txl"
    )
    return truth_of(changes, in_half, what)
