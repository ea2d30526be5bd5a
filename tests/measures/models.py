"""Small models whose heads do what they were made to do."""

import torch
from torch import nn


class PlantedAttention(nn.Module):
    """Plain causal attention without biases."""

    def __init__(self, *matrices):
        super().__init__()
        self.n_heads = len(matrices[0])
        query, key, value, output = matrices  # (head, width, feature), the last (head, feature, width)
        self.query, self.key, self.value = (_linear(torch.cat(list(w), dim=1)) for w in (query, key, value))
        self.output = _linear(output.flatten(0, 1))

    def forward(self, x):
        query, key, value = (
            part(x).unflatten(2, (self.n_heads, -1)).transpose(1, 2) for part in (self.query, self.key, self.value)
        )
        later = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
        probs = torch.softmax((query @ key.mT).masked_fill(later, -torch.inf), dim=-1)
        return self.output((probs @ value).transpose(1, 2).flatten(2))


def _linear(matrix):
    """The layer that multiplies rows by this matrix."""
    layer = nn.Linear(*matrix.shape, bias=False)
    layer.weight.data = matrix.T.contiguous()
    return layer


class PlantedBlock(nn.Module):
    def __init__(self, attention):
        super().__init__()
        self.attention = attention

    def forward(self, x):
        return x + self.attention(x)


class PlantedInduction(nn.Module):
    """Two layers of two heads: L0H0 tells each token its predecessor, L1H0 is an induction head, H1 do nothing.

    The stream has four parts: token, position, previous token, prediction. With `planted=False` the weights are
    random numbers of the same size; with another `n_back` L0H0 looks that many places back.
    """

    def __init__(self, n_words=20, n_places=48, planted=True, n_back=1):
        super().__init__()
        self.n_words, self.n_places, self.n_back = n_words, n_places, n_back
        self.word = nn.Embedding(n_words, n_words)
        self.word.weight.data = torch.eye(n_words)
        width = 3 * n_words + n_places
        previous, match, nothing = self._previous(width), self._match(width), [torch.zeros(width, n_places)] * 3
        layers = [previous, match]
        stacked = [
            [torch.stack([a, b]) for a, b in zip(layer[:3], nothing, strict=True)]
            + [torch.stack([layer[3], torch.zeros(n_places, width)])]
            for layer in layers
        ]
        if not planted:
            generator = torch.Generator().manual_seed(0)
            stacked = [[0.3 * torch.randn(w.shape, generator=generator) for w in layer] for layer in stacked]
        self.blocks = nn.ModuleList(PlantedBlock(PlantedAttention(*layer)) for layer in stacked)

    def _parts(self):
        n, m = self.n_words, self.n_places
        return slice(0, n), slice(n, n + m), slice(n + m, 2 * n + m), slice(2 * n + m, None)

    def _previous(self, width):
        token, place, before, _ = self._parts()
        n, m = self.n_words, self.n_places
        query, key, value = (torch.zeros(width, m) for _ in range(3))
        output = torch.zeros(m, width)
        query[place] = 20 * torch.eye(m).roll(-self.n_back, dims=1)  # place i asks for place i - n_back
        key[place] = torch.eye(m)
        value[token, :n] = torch.eye(n)
        output[:n, before] = torch.eye(n)
        return query, key, value, output

    def _match(self, width):
        token, _, before, said = self._parts()
        n, m = self.n_words, self.n_places
        query, key, value = (torch.zeros(width, m) for _ in range(3))
        output = torch.zeros(m, width)
        query[token, :n] = 20 * torch.eye(n)  # who had this token before it?
        key[before, :n] = torch.eye(n)
        value[token, :n] = torch.eye(n)
        output[:n, said] = 5 * torch.eye(n)
        return query, key, value, output

    @property
    def unembedding(self):
        matrix = torch.zeros(self.n_words, 3 * self.n_words + self.n_places)
        matrix[:, self._parts()[3]] = torch.eye(self.n_words)
        return matrix

    def forward(self, input_ids):
        n = input_ids.shape[1]
        places = torch.eye(self.n_places)[:n].expand(len(input_ids), -1, -1)
        words = self.word(input_ids)
        x = torch.cat([words, places, torch.zeros(*words.shape[:2], 2 * self.n_words)], dim=2)
        for block in self.blocks:
            x = block(x)
        return x @ self.unembedding.T
