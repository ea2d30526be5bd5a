"""A small transformer written out by hand, and the same with everything that can be removed as a switch."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tests.models.test_capture_modules import Attention


@pytest.fixture(scope="package", autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


class Heads(nn.Module):
    """Attention with an output projection."""

    def __init__(self, causal=False):
        super().__init__()
        self.attention, self.out = Attention(causal=causal), nn.Linear(16, 16)

    def forward(self, x):
        return self.out(self.attention(x))


class Block(nn.Module):
    """Attention, MLP, norms before or after, or side by side."""

    def __init__(self, order):
        super().__init__()
        self.order = order
        self.heads = Heads(causal=order == "parallel")
        self.mlp = nn.Sequential(nn.Linear(16, 24), nn.GELU(), nn.Linear(24, 16))
        self.first, self.second = nn.LayerNorm(16), nn.LayerNorm(16)

    def forward(self, x):
        if self.order == "pre":
            x = x + self.heads(self.first(x))
            return x + self.mlp(self.second(x))
        if self.order == "post":
            x = self.first(self.heads(x) + x)
            return self.second(x + self.mlp(x))
        if self.order == "in place":
            y = self.heads(self.first(x))
            y += x
            z = self.mlp(self.second(y))
            z += y
            return z
        return self.heads(self.first(x)) + self.mlp(self.second(x)) + x

    def by_hand(self, x, skip, mlp):
        """The same without skips or MLPs; a layer without MLP hands on what it got."""
        s = 1 if skip else 0
        if self.order == "post":
            x = self.first(self.heads(x) + s * x)
            return self.second(s * x + self.mlp(x) if mlp else x)
        if self.order == "parallel":
            return self.heads(self.first(x)) + (self.mlp(self.second(x)) if mlp else 0) + s * x
        x = s * x + self.heads(self.first(x))
        return s * x + self.mlp(self.second(x)) if mlp else x


ORDERS = ("pre", "post", "parallel", "in place")


def network(order, n_layers=3, seed=0):
    """Random weights large enough for attention that is far from uniform."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        net = nn.Sequential(*[Block(order) for _ in range(n_layers)]).eval()
        with torch.no_grad():
            for parameter in net.parameters():
                parameter.normal_(0.5 if parameter.ndim == 1 else 0, 0.3)
    return net


X = torch.randn(2, 6, 16, generator=torch.Generator().manual_seed(0))
