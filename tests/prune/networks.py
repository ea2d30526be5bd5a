"""A tiny Transformer-XL with random weights, and inputs for it."""

import torch

from headtree.models.bundled.transformer_xl import TransformerXL, TransformerXLConfig


def tiny(n_layers=3, n_heads=4):
    config = TransformerXLConfig(
        vocabulary=40, n_layers=n_layers, n_heads=n_heads, width=16, head_size=4, inner=24, embedding=16
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = TransformerXL(config).eval()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(0.3 * torch.randn_like(parameter))
    return model


def texts(n, n_tokens=12, seed=0):
    rng = torch.Generator().manual_seed(seed)
    return [{"input_ids": torch.randint(0, 40, (1, n_tokens), generator=rng)} for _ in range(n)]
