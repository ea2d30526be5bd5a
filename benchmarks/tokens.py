"""The token tensor of a BERT-base-size model beside plain matrix products of the same number of operations."""

from __future__ import annotations

import time

from benchmarks._measure import peak_megabytes

#: Bytes that are allowed beside the model.
LIMIT = 1 << 30

SIZES = {"full": (12, 12, 768, 128), "check": (2, 2, 32, 12)}  # layers, heads, width, tokens


def main(check: bool = False) -> None:
    import torch
    from transformers import BertConfig, BertModel

    from headtree.models.view import ModelView

    n_layers, n_heads, width, n_tokens = SIZES["check" if check else "full"]
    config = BertConfig(
        hidden_size=width, num_hidden_layers=n_layers, num_attention_heads=n_heads, intermediate_size=4 * width
    )
    model = BertModel(config).eval()
    ids = torch.randint(1000, 2000, (1, n_tokens), generator=torch.Generator().manual_seed(0))
    made = []

    def compute() -> None:
        (found,) = ModelView(model).token_tensor(inputs={"input_ids": ids}, memory_limit=LIMIT)
        made.append(found.reduce("norm"))

    start, used = time.perf_counter(), time.process_time()
    peak = peak_megabytes(compute)
    seconds, used = time.perf_counter() - start, time.process_time() - used
    (att,) = made
    if att.shape != (n_layers, n_tokens, n_tokens):
        raise SystemExit(f"reduced to {att.shape}")
    print(f"token tensor {n_layers} layers, width {width}, {n_tokens} tokens: ", end="")
    if check:
        print("runs")
        return
    plain = _plain_seconds(width, n_tokens, n_layers)
    print(
        f"{seconds:.1f} s (target ≤ 60 on two quiet cores), processor {used:.1f} s, plain products of the same "
        f"size {plain:.1f} s, ratio {seconds / plain:.2f}; {peak:.0f} MB beside the model at most, "
        f"{LIMIT / 1e6:.0f} MB allowed"
    )


def _plain_seconds(width: int, n_tokens: int, n_layers: int) -> float:
    """Seconds for the products of all tokens with values, output projections and MLPs, measured on one layer's."""
    import torch

    rows = torch.randn(2048, width)
    up, down = torch.randn(width, 4 * width), torch.randn(4 * width, width)
    square = torch.randn(width, width)
    start = time.perf_counter()
    for _ in range(3):
        (rows @ up) @ down
        rows @ square @ square
    each = (time.perf_counter() - start) / 3 / len(rows)
    return each * n_tokens**2 * n_layers
