"""A tokenizer that splits at spaces, as WikiText is written."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from jaxtyping import Int

UNKNOWN, END = "<unk>", "<eos>"


@dataclass(frozen=True)
class WordTokenizer:
    """Words by their spaces, numbered; the end of a line is a word of its own, `<eos>`.

    Has what `headtree.capture` asks of a tokenizer: call it on a text for ``{"input_ids": …}``.
    """

    words: tuple[str, ...]

    @cached_property
    def numbers(self) -> dict[str, int]:
        """Number of each word."""
        return {word: i for i, word in enumerate(self.words)}

    @property
    def unk_token_id(self) -> int:
        """Number of the word that stands for all others."""
        return self.numbers[UNKNOWN]

    @property
    def all_special_ids(self) -> list[int]:
        """No word is special: `<unk>` and `<eos>` are read like others."""
        return []

    def __len__(self) -> int:
        return len(self.words)

    def __call__(self, text: str, add_special_tokens: bool = True, **_: Any) -> dict[str, list[int]]:
        """The words' numbers; between two lines stands `<eos>`, and after the last if the text ends its line."""
        lines = text.split("\n")
        words = [word for i, line in enumerate(lines) for word in [*([END] if i else []), *line.split()]]
        return {"input_ids": self.encode(words).tolist()}

    def encode(self, words: Iterable[str]) -> Int[np.ndarray, " word"]:
        """Numbers of words; unknown ones become `<unk>`."""
        unknown, numbers = self.unk_token_id, self.numbers
        return np.fromiter((numbers.get(word, unknown) for word in words), dtype=np.int64)

    def convert_ids_to_tokens(self, ids: Sequence[int]) -> list[str]:
        """The words themselves."""
        return [self.words[i] for i in ids]
