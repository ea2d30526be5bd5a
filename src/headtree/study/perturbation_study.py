"""Which method knows which tokens matter: the perturbation test on the bundled networks and MiniLM, in words."""

from __future__ import annotations

import csv
import io
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from headtree._files import write_text
from headtree.errors import InvalidValueError
from headtree.measures.perturbation import METHODS, PerturbationTest, perturbation_test
from headtree.models.bundled.bundle import load_bundled
from headtree.models.view import ModelView
from headtree.pipeline.make_run import Say
from headtree.study.cache import cached
from headtree.study.similarities.evidence_networks import evidence_network

NETWORKS = ("txl", "vit", "minilm")

#: Tokens of each text.
TOKENS = 48

_TITLES = {"txl": "Transformer-XL (txl)", "vit": "ViT (vit)", "minilm": "MiniLM (minilm)"}

_METHOD = (
    "The tokens of an input are removed in the order of their relevance by each method, the most relevant first, "
    "in eighths of all tokens. A token is removed by giving it the mean embedding of the input's tokens before the "
    "first layer; a class token, which is the same in all inputs, stays. The area under the curve of the change of "
    "output is the mean change over all shares: the larger, the earlier the important tokens came. Relevance is "
    "that for the last token (txl), for the class token (vit), and the mean over tokens (MiniLM, which has no "
    "logits). Intervals are 95 %, over inputs, by Student's t; differences are of the same inputs. Nothing was "
    "chosen: there is one setting, and the three reductions of the token tensor are all shown."
)


@dataclass(frozen=True, eq=False)
class NetworkPerturbation:
    """The perturbation test of one network."""

    name: str
    about: str
    methods: tuple[str, ...]
    shares: list[float]
    curves: list[list[list[float]]]
    output: str

    @property
    def test(self) -> PerturbationTest:
        """The test itself."""
        return PerturbationTest(self.methods, np.array(self.shares), np.array(self.curves), self.output)


def perturb(
    networks: Sequence[str], folder: Path, n_inputs: int = 12, say: Say | None = None
) -> list[NetworkPerturbation]:
    """Run the test on some networks; what was measured before is read from the folder."""
    wrong = [name for name in networks if name not in NETWORKS]
    if wrong:
        raise InvalidValueError(f"networks must be some of {', '.join(NETWORKS)} for --tokens, got {wrong[0]!r}")
    found = []
    for name in networks:
        path = folder / "measured" / f"perturbation-{name}.json"
        measure = partial(_measure, name, n_inputs, say)
        found.append(cached(path, [name, n_inputs, TOKENS, list(METHODS)], NetworkPerturbation, measure))
    return found


def _measure(name: str, n_inputs: int, say: Say | None) -> NetworkPerturbation:
    start = time.perf_counter()
    view, inputs, about = _network(name, n_inputs)
    test = perturbation_test(view, inputs=inputs)
    if say is not None:
        say(f"{name} removing tokens", time.perf_counter() - start)
    return NetworkPerturbation(name, about, test.methods, test.shares.tolist(), test.curves.tolist(), test.output)


def _network(name: str, n_inputs: int) -> tuple[ModelView, list[Mapping[str, Tensor]], str]:
    if name == "vit":
        network = load_bundled("vit")
        chosen: list[Any] = list(network.inputs[:n_inputs])
        return ModelView(network.model), chosen, f"{len(chosen)} sample pictures (CIFAR-10, test)"
    known = evidence_network(name)
    texts: list[Mapping[str, Tensor]] = [
        {key: value[:, :TOKENS] for key, value in item.items()} for item in known.inputs[:n_inputs]
    ]
    return known.view, texts, f"{TOKENS} tokens of {len(texts)} passages (Wikipedia)"


# -- words ---------------------------------------------------------------------------------------------------------


def write_perturbation(found: Sequence[NetworkPerturbation], folder: Path) -> Path:
    """Write ``perturbation.md`` and ``perturbation.csv``; returns the first."""
    write_text(folder / "perturbation.csv", csv_text(found))
    write_text(folder / "perturbation.md", markdown_text(found))
    return folder / "perturbation.md"


def perturbation_parts(found: Sequence[NetworkPerturbation]) -> dict[str, str]:
    """What documents show of it: everything, or the sentences alone."""
    return {"perturbation": markdown_text(found), "which tokens": _sentences(found)}


def csv_text(found: Sequence[NetworkPerturbation]) -> str:
    """Every area with its interval."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(["network", "method", "area", "low", "high"])
    for each in found:
        writer.writerows([each.name, *row] for row in each.test.table().itertuples(index=False))
    return file.getvalue()


def markdown_text(found: Sequence[NetworkPerturbation]) -> str:
    """Sentences, a table for each network, and how it was measured."""
    blocks = ["# Which tokens matter", _sentences(found)]
    for each in found:
        blocks += [f"## {_TITLES[each.name]}", f"{each.about}; change of output: {each.output}.", table_text(each)]
    methods = "\n".join(f"- *{name}*: {what}." for name, what in METHODS.items())
    return "\n\n".join([*blocks, "## How it was measured", _METHOD, methods]) + "\n"


def _sentences(found: Sequence[NetworkPerturbation]) -> str:
    return "\n".join(f"- {sentence(each)}" for each in found)


def sentence(each: NetworkPerturbation) -> str:
    """Who wins on a network, by how much, and what the token tensor does."""
    test = each.test
    table = test.table()
    best = str(table.method[0])
    tied = [name for name in table.method[1:] if name != "random" and _overlaps(test.difference(best, name))]
    area, low, high = test.interval(best)
    words = f"**{each.name}**: *{best}* finds the tokens that matter best, area {area:.3f} [{low:.3f}, {high:.3f}]"
    words += f"; not clearly better than {_listed(tied)}" if tied else ", clearly better than all others"
    ours = [name for name in test.methods if name.startswith("token tensor")]
    own = next(str(name) for name in table.method if name in ours)
    if best not in ours:
        gap, least, most = test.difference(own, best)
        words += f". The best reduction of the token tensor, *{own}*, differs from it by {gap:+.3f} [{least:+.3f}, "
        words += f"{most:+.3f}]"
    gap, least, most = test.difference(own, "random")
    is_clear = not _overlaps((gap, least, most))
    words += f". Against random order *{own}* gains {gap:+.3f} [{least:+.3f}, {most:+.3f}]"
    return words + (" (clear)." if is_clear else " (not clear).")


def _overlaps(interval: tuple[float, float, float]) -> bool:
    _, low, high = interval
    return not (low > 0 or high < 0)


def _listed(names: Sequence[str]) -> str:
    quoted = [f"*{name}*" for name in names]
    return quoted[0] if len(quoted) == 1 else f"{', '.join(quoted[:-1])} and {quoted[-1]}"


def table_text(each: NetworkPerturbation) -> str:
    """Areas of all methods, the largest first, and their differences from random order."""
    lines = ["| method | area | 95 % | gain over random | 95 % |", "|---|---|---|---|---|"]
    test = each.test
    for name, area, low, high in test.table().itertuples(index=False):
        gain, least, most = test.difference(name, "random")
        own = "" if name == "random" else f"{gain:+.3f} | {least:+.3f} to {most:+.3f}"
        lines.append(f"| {name} | {area:.3f} | {low:.3f} to {high:.3f} | {own or ' | '} |")
    return "\n".join(lines)
