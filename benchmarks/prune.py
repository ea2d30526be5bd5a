"""Pruning the bundled networks: time of the criteria, of surgery and of a curve, and latency before and after.

If HEADTREE_WIKITEXT names a folder with the valid.txt and test.txt of WikiText-2, half and three quarters of the
heads of the Transformer-XL are also removed in the order of `compensated`, refitted and tested (`docs/pruning.md`).
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import headtree as ht


def main(check: bool = False) -> None:
    _importance(check)
    _surgery(check)
    _curve(check)
    if not check and "HEADTREE_WIKITEXT" in os.environ:
        _refitted(Path(os.environ["HEADTREE_WIKITEXT"]))


def _timed(what: str, compute: Callable[[], Any], target: str = "") -> Any:
    start = time.perf_counter()
    result = compute()
    print(f"{what}: {time.perf_counter() - start:.1f} s{target}")
    return result


def _importance(check: bool) -> None:
    network = ht.load_bundled("vit")
    names = ("confidence",) if check else ("confidence", "shannon", "haar_probs", "haar_scores")
    for name in names:
        inputs = list(network.inputs[: 1 if check else 4])
        options = {"layers": [0]} if check else {}
        measure = lambda name=name, inputs=inputs, options=options: ht.head_importance(  # noqa: E731
            network.model, name, inputs=inputs, **options
        )
        _timed(f"vit, importance by {name}, {len(inputs)} inputs", measure, " (target 30 s)")


def _surgery(check: bool) -> None:
    network = ht.load_bundled("vit")
    half = [(layer, head) for layer in range(12) for head in range(1 if check else 6)]
    pruned = _timed("vit, surgery", lambda: ht.prune_heads(network.model, half))
    before, after = ht.model_cost(network.model, pruned, inputs=network.inputs[0], n_runs=1 if check else 20)
    print(
        f"parameters {before.n_parameters:,} and {after.n_parameters:,}; latency "
        f"{after.seconds / before.seconds:.2f} of the whole network's"
    )


def _curve(check: bool) -> None:
    network = ht.load_bundled("vit")
    n = 6 if check else 40
    inputs = [network.inputs[i % 40] for i in range(n)]
    labels = [int(network.labels[i % 40]) for i in range(n)]  # type: ignore[index]
    sizes = {"steps": 1, "n_random": 1} if check else {"steps": 10}
    found = _timed(
        f"vit, one-shot curve of confidence on {n} pictures",
        lambda: ht.prune_curve(network.model, ["confidence"], inputs=inputs, labels=labels, **sizes),
        "" if check else " (500 pictures: 12.5 times as long; target 300 s)",
    )
    print(found)


def _refitted(folder: Path) -> None:
    """Rank, fit and test on texts that are strictly apart."""
    network = ht.load_bundled("txl")
    view = ht.ModelView(network.model, tokenizer=network.tokenizer)

    def passages(part: str, n: int, start: int = 0, size: int = 256) -> list[dict[str, Any]]:
        words = (folder / f"{part}.txt").read_text(encoding="utf-8")[: 40 * (start + size * n) + 10_000]
        ids = network.tokenizer(words)["input_ids"][start : start + size * n]  # type: ignore[misc]
        import torch

        return [{"input_ids": piece[None]} for piece in torch.tensor(ids).split(size)]

    ranking, fitting, test = passages("valid", 32), passages("valid", 72, 20_000), passages("test", 6, size=512)
    order = ht.head_importance(view, "compensated", inputs=ranking).order()
    whole = _perplexity(network.model, test)
    for n in (64, 96):
        pruned = ht.prune_heads(view, order[:n], refit=fitting)
        print(f"txl without {n} of 128 heads: perplexity {_perplexity(pruned, test):.2f} ({whole:.2f} with all)")


def _perplexity(model: Any, inputs: list[dict[str, Any]]) -> float:
    import torch

    total, n = 0.0, 0
    with torch.inference_mode():
        for item in inputs:
            logits, ids = model(**item).logits[0, :-1], item["input_ids"][0, 1:]
            total += float(torch.nn.functional.cross_entropy(logits, ids, reduction="sum"))
            n += len(ids)
    return math.exp(total / n)
