"""A tokenizer that splits text at spaces, for WikiText."""

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
    """Splits text at spaces into words with ids; the end of a line is the word `<eos>`.

    Has the interface that `headtree.capture` expects of a tokenizer: calling it on a text gives ``{"input_ids":
    …}``.
    """

    words: tuple[str, ...]

    @cached_property
    def numbers(self) -> dict[str, int]:
        """Id of each word."""
        return {word: i for i, word in enumerate(self.words)}

    @property
    def unk_token_id(self) -> int:
        """Id of `<unk>`, which replaces unknown words."""
        return self.numbers[UNKNOWN]

    @property
    def all_special_ids(self) -> list[int]:
        """No word is special: `<unk>` and `<eos>` are treated like any other."""
        return []

    def __len__(self) -> int:
        return len(self.words)

    def __call__(self, text: str, add_special_tokens: bool = True, **_: Any) -> dict[str, list[int]]:
        """Ids of the words of a text; `<eos>` replaces every line break."""
        lines = text.split("\n")
        words = [word for i, line in enumerate(lines) for word in [*([END] if i else []), *line.split()]]
        return {"input_ids": self.encode(words).tolist()}

    def encode(self, words: Iterable[str]) -> Int[np.ndarray, " word"]:
        """Ids of words; unknown words become `<unk>`."""
        unknown, numbers = self.unk_token_id, self.numbers
        return np.fromiter((numbers.get(word, unknown) for word in words), dtype=np.int64)

    def convert_ids_to_tokens(self, ids: Sequence[int]) -> list[str]:
        """Words of the given ids."""
        return [self.words[i] for i in ids]
