"""Transformer-XL in plain torch: relative attention over the current segment and a memory of earlier ones.

See section 3.3 of Dai et al., Transformer-XL: Attentive Language Models beyond a Fixed-Length Context, 2019.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from headtree.errors import InvalidValueError


@dataclass(frozen=True)
class TransformerXLConfig:
    """The sizes of a Transformer-XL."""

    vocabulary: int
    n_layers: int = 16
    n_heads: int = 8
    width: int = 128  #: width of the residual stream
    head_size: int = 16
    inner: int = 512  #: width of the feed-forward sublayers
    embedding: int = 64  #: width of the word vectors, shared by input and output and projected to `width`
    memory: int = 150  #: number of earlier states that each layer can attend to
    dropout: float = 0.0
    pre_norm: bool = True  #: normalize the input of a sublayer; False: the residual sum, as Dai et al. do

    model_type = "transformer_xl"  # not a field: identifies models with this configuration

    def __post_init__(self) -> None:
        sizes = {name: value for name, value in asdict(self).items() if name not in ("dropout", "pre_norm")}
        for name, value in sizes.items():
            least = 0 if name == "memory" else 1
            if not isinstance(value, int) or value < least:
                raise InvalidValueError(f"{name} must be a whole number of at least {least}, got {value!r}")
        if self.width % 2:
            raise InvalidValueError(
                f"width must be even, because sines and cosines come in pairs, got {self.width}"
            )
        if not 0 <= self.dropout < 1:
            raise InvalidValueError(f"dropout must be at least 0 and less than 1, got {self.dropout}")

    def to_dict(self) -> dict[str, Any]:
        """The configuration as written to files."""
        return {"model_type": self.model_type, **asdict(self)}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> TransformerXLConfig:
        """Make a configuration from the result of `to_dict`."""
        return cls(**{name: value for name, value in values.items() if name != "model_type"})


class TransformerXLOutput(NamedTuple):
    """Logits of the next word after every token, and the memory for the next segment."""

    logits: Float[Tensor, "batch token word"]
    memory: Float[Tensor, "batch layer past width"]


class TransformerXL(nn.Module):
    """Blocks of relative attention and feed-forward layers; each block has a memory of its own earlier inputs.

    The memory is an argument and a result, never state: equal calls give equal results. Without a memory, as in the
    first segment of a text, n tokens attend to n tokens.
    """

    def __init__(self, config: TransformerXLConfig) -> None:
        super().__init__()
        self.config = config
        self.embedding = nn.Embedding(config.vocabulary, config.embedding)
        is_narrow = config.embedding != config.width
        self.widen = nn.Linear(config.embedding, config.width, bias=False) if is_narrow else nn.Identity()
        self.dropout = nn.Dropout(config.dropout)
        self.blocks = nn.ModuleList(TransformerXLBlock(config) for _ in range(config.n_layers))
        self.norm = nn.LayerNorm(config.width) if config.pre_norm else nn.Identity()
        self.narrow = nn.Linear(config.width, config.embedding, bias=False) if is_narrow else nn.Identity()
        self.word_bias = nn.Parameter(torch.zeros(config.vocabulary))

    def forward(
        self,
        input_ids: Int[Tensor, "batch token"],
        memory: Float[Tensor, "batch layer past width"] | None = None,
    ) -> TransformerXLOutput:
        """Logits of the next word after every token, and the memory for the next segment."""
        hidden, memory = self.hidden_states(input_ids, memory)
        return TransformerXLOutput(self.logits(hidden), memory)

    def hidden_states(
        self,
        input_ids: Int[Tensor, "batch token"],
        memory: Float[Tensor, "batch layer past width"] | None = None,
    ) -> tuple[Float[Tensor, "batch token width"], Float[Tensor, "batch layer past width"]]:
        """The residual stream after the last block, and the memory for the next segment."""
        config = self.config
        n_batch, n_tokens = input_ids.shape
        # the residual stream stays in full precision, even if matrix products do not
        vectors = self.widen(self.embedding(input_ids)).to(self.embedding.weight.dtype)
        hidden = self.dropout(vectors * math.sqrt(config.width))  # or the first blocks would swamp the word vectors
        if memory is None:
            memory = hidden.new_zeros(n_batch, config.n_layers, 0, config.width)
        n_keys = memory.shape[2] + n_tokens
        distances = sinusoids(n_keys, config.width, device=hidden.device)
        hidden_keys = later_keys(n_tokens, n_keys, hidden.device)
        seen = []
        for layer, block in enumerate(self.blocks):
            past = memory[:, layer].to(hidden.dtype)
            seen.append(torch.cat([past, hidden], dim=1)[:, max(0, n_keys - config.memory) :].detach())
            hidden = block(hidden, past, distances, hidden_keys)
        return self.dropout(self.norm(hidden)), torch.stack(seen, dim=1)

    @property
    def unembedding(self) -> Float[Tensor, "word width"]:
        """The matrix that maps the final hidden states to logits."""
        words = self.embedding.weight
        return words @ self.narrow.weight if isinstance(self.narrow, nn.Linear) else words

    def logits(self, hidden: Float[Tensor, "... width"]) -> Float[Tensor, "... word"]:
        """Logits of the next word, with the word vectors that the input uses."""
        return F.linear(self.narrow(hidden), self.embedding.weight, self.word_bias)


class TransformerXLBlock(nn.Module):
    """Attention sublayer, residual sum, norm; feed-forward sublayer, residual sum, norm."""

    def __init__(self, config: TransformerXLConfig) -> None:
        super().__init__()
        self.pre_norm = config.pre_norm
        self.attention = RelativeAttention(config)
        self.attention_norm = nn.LayerNorm(config.width)
        self.feed_forward = nn.Sequential(
            nn.Linear(config.width, config.inner),
            nn.ReLU(),
            nn.Dropout(config.dropout),
            nn.Linear(config.inner, config.width),
            nn.Dropout(config.dropout),
        )
        self.feed_forward_norm = nn.LayerNorm(config.width)

    def forward(
        self,
        hidden: Float[Tensor, "batch token width"],
        past: Float[Tensor, "batch past width"],
        distances: Float[Tensor, "key width"],
        hidden_keys: Bool[Tensor, "token key"],
    ) -> Float[Tensor, "batch token width"]:
        """The residual stream after this block; `past` is its input in earlier segments."""
        if self.pre_norm:
            n_past = past.shape[1]
            known = self.attention_norm(torch.cat([past, hidden], dim=1))
            hidden = hidden + self.attention(known[:, n_past:], known[:, :n_past], distances, hidden_keys)
            hidden = hidden + self.feed_forward(self.feed_forward_norm(hidden))
        else:
            hidden = self.attention_norm(hidden + self.attention(hidden, past, distances, hidden_keys))
            hidden = self.feed_forward_norm(hidden + self.feed_forward(hidden))
        return hidden


class RelativeAttention(nn.Module):
    r"""Attention by content and by distance.

    .. math:: s_{ij} = \frac{(q_i + u) \cdot k_j + (q_i + v) \cdot W_R\, R_{i + m - j}}{\sqrt{d}}

    for query i of the segment and key j of memory and segment together, where m is the length of the memory and R
    holds the sinusoids of the distance. Keys after the query have score minus infinity.
    """

    def __init__(self, config: TransformerXLConfig) -> None:
        super().__init__()
        inner = config.n_heads * config.head_size
        self.n_heads = config.n_heads
        self.query = nn.Linear(config.width, inner, bias=False)
        self.key = nn.Linear(config.width, inner, bias=False)
        self.value = nn.Linear(config.width, inner, bias=False)
        self.position = nn.Linear(config.width, inner, bias=False)
        self.output = nn.Linear(inner, config.width, bias=False)
        self.content_bias = nn.Parameter(torch.zeros(config.n_heads, 1, config.head_size))
        self.position_bias = nn.Parameter(torch.zeros(config.n_heads, 1, config.head_size))
        self.dropout = nn.Dropout(config.dropout)

    def forward(
        self,
        hidden: Float[Tensor, "batch token width"],
        past: Float[Tensor, "batch past width"],
        distances: Float[Tensor, "key width"],
        hidden_keys: Bool[Tensor, "token key"],
    ) -> Float[Tensor, "batch token width"]:
        """Output of the attention heads; `distances` runs from the largest down to 0."""
        known = torch.cat([past, hidden], dim=1)
        query = self._heads(self.query(hidden))
        key, value = self._heads(self.key(known)), self._heads(self.value(known))
        position = self._heads(self.position(distances.to(hidden.dtype))[None])
        by_content = (query + self.content_bias) @ key.mT
        by_distance = relative_shift((query + self.position_bias) @ position.mT)
        scores = (by_content.to(hidden.dtype) + by_distance) * (1 / math.sqrt(query.shape[-1]))
        probs = torch.softmax(scores.masked_fill(hidden_keys, -torch.inf), dim=-1)
        mixed = self.dropout(probs).to(value.dtype) @ value
        result: Tensor = self.dropout(self.output(mixed.transpose(1, 2).flatten(2)))
        return result

    def _heads(self, x: Float[Tensor, "batch token inner"]) -> Float[Tensor, "batch head token feature"]:
        return x.reshape(*x.shape[:-1], self.n_heads, -1).transpose(1, 2)


def relative_shift(x: Float[Tensor, "*batch query key"]) -> Float[Tensor, "*batch query key"]:
    """Shift row i left by (queries - 1 - i), which turns columns by distance into columns by key.

    Column c of `x` belongs to the distance (keys - 1 - c); column j of the result belongs to the distance from
    query i to key j. Keys after the query, j > i + keys - queries, have no distance: their entries are filled from
    the next row and must be masked.
    """
    *batch, n_queries, n_keys = x.shape
    padded = F.pad(x, (1, 0)).reshape(*batch, n_keys + 1, n_queries)
    return padded[..., 1:, :].reshape(*batch, n_queries, n_keys)


def later_keys(n_queries: int, n_keys: int, device: torch.device) -> Bool[Tensor, "query key"]:
    """True where the key comes after the query; the last query is at the last key."""
    query = torch.arange(n_queries, device=device)[:, None] + n_keys - n_queries
    return torch.arange(n_keys, device=device) > query


def sinusoids(n: int, width: int, device: torch.device) -> Float[Tensor, "{n} {width}"]:
    """Sines, then cosines, of the distances n - 1, …, 1, 0."""
    distance = torch.arange(n - 1, -1, -1, device=device, dtype=torch.float32)
    rate = 10000 ** (-torch.arange(0, width, 2, device=device, dtype=torch.float32) / width)
    angle = distance[:, None] * rate
    return torch.cat([angle.sin(), angle.cos()], dim=-1)
