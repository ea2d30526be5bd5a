"""Residual curves and path lengths of a model the size of BERT with random weights on 8 inputs of 128 tokens."""

from __future__ import annotations

import time

import torch

import headtree as ht


def main(check: bool = False) -> None:
    """Print the table; with `check`, use tiny sizes only to see that everything runs."""
    import transformers

    sizes = (
        {"num_hidden_layers": 2, "num_attention_heads": 2, "hidden_size": 16, "intermediate_size": 32}
        if check
        else {}
    )
    n_inputs, n_tokens = (2, 8) if check else (8, 128)
    model = transformers.BertModel(transformers.BertConfig(vocab_size=1000, **sizes)).eval()
    ids = torch.randint(1000, (n_inputs, n_tokens), generator=torch.Generator().manual_seed(0))
    ht.path_lengths(model, inputs={"input_ids": ids[:1, :8]})  # imports
    for name, measure in (("residual curves", ht.rank_residual), ("path lengths", ht.path_lengths)):
        start, processors = time.perf_counter(), time.process_time()
        measure(model, inputs={"input_ids": ids})
        wall, processors = time.perf_counter() - start, time.process_time() - processors
        print(f"{name}: {wall:.1f} s, {processors:.1f} s of processors", flush=True)
