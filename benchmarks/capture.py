"""Cost of capture compared with a plain eager forward pass, and whether memory stays within the estimate."""

from __future__ import annotations

import subprocess
import sys
import threading
import time

SIZES = {"full": (12, 12, 768, 512), "check": (2, 2, 32, 16)}  # layers, heads, width, tokens


def main(check: bool = False) -> None:
    for name in ("bert", "gpt2"):
        for kind in ("scores", "probs"):
            if check:
                measure(name, kind, "check")
                continue
            # a separate process, since memory left by another run would hide what this one uses
            code = f"from benchmarks.capture import measure; measure({name!r}, {kind!r}, 'full')"
            subprocess.run([sys.executable, "-c", code], check=True)


def measure(name: str, kind: str, size: str) -> None:
    import torch

    from headtree.models.view import ModelView

    n_layers, n_heads, width, n_tokens = SIZES[size]
    model, eager = _models(name, n_layers, n_heads, width)
    inputs = {"input_ids": torch.randint(0, 900, (1, n_tokens)), "use_cache": False}
    with torch.no_grad():
        eager_time = _fastest(lambda: eager(**inputs, output_attentions=True), 1 if size == "check" else 5)
    del eager
    start = time.perf_counter()
    view = ModelView(model)
    view.prepare(inputs=inputs, kind=kind)
    dict(view.provenance)
    once = time.perf_counter() - start  # probing and hashing, once per model
    times, taken = [], 0
    for _ in range(1 if size == "check" else 5):
        before, start = _resident(), time.perf_counter()
        with _Peak() as peak:
            prepared = view.prepare(inputs=inputs, kind=kind)
            (att,) = prepared.run()
        times.append(time.perf_counter() - start)
        taken, estimated = max(taken, peak.bytes - before), prepared.estimate().total
        if taken > estimated:
            raise SystemExit(f"memory {taken >> 20} MB exceeds the estimate of {estimated >> 20} MB")
    if att.shape != (n_layers * n_heads, n_tokens, n_tokens):
        raise SystemExit(f"captured {att.shape}")
    ratio = min(times) / eager_time
    print(f"capture {name:5} {kind:6} {n_layers}×{n_heads} heads, {n_tokens} tokens: ", end="")
    if size == "check":
        print("runs")
        return
    print(
        f"eager {eager_time:.2f} s, capture {min(times):.2f} s, ratio {ratio:.2f} (target ≤ 2), and once per model "
        f"{once:.2f} s to probe and hash it; "
        f"memory {taken >> 20} MB of {estimated >> 20} MB estimated"
    )


def _models(name: str, n_layers: int, n_heads: int, width: int):
    from transformers import BertConfig, BertModel, GPT2Config, GPT2Model

    if name == "bert":
        kind, config = (
            BertModel,
            BertConfig(
                num_hidden_layers=n_layers,
                num_attention_heads=n_heads,
                hidden_size=width,
                intermediate_size=4 * width,
                vocab_size=1000,
            ),
        )
    else:
        kind, config = (
            GPT2Model,
            GPT2Config(
                n_layer=n_layers, n_head=n_heads, n_embd=width, vocab_size=1000, bos_token_id=1, eos_token_id=2
            ),
        )
    model = kind(config).eval()
    return model, kind._from_config(config, attn_implementation="eager").eval()


def _fastest(function, n: int) -> float:
    times = []
    for _ in range(n):
        start = time.perf_counter()
        function()
        times.append(time.perf_counter() - start)
    return min(times)


def _resident() -> int:
    import psutil

    return psutil.Process().memory_info().rss


class _Peak:
    """The largest resident memory while the block runs."""

    def __enter__(self):
        self.bytes, self._done = _resident(), threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()
        return self

    def _watch(self) -> None:
        while not self._done.wait(0.002):
            self.bytes = max(self.bytes, _resident())

    def __exit__(self, *_) -> None:
        self._done.set()
        self._thread.join()


if __name__ == "__main__":
    main("--check" in sys.argv)
