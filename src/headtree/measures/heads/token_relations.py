"""Relations between tokens: which keys are the previous token, a delimiter, a patch in the same row."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence

import numpy as np
from jaxtyping import Bool, Int

from headtree import _checks
from headtree._checks import at_least_one
from headtree.errors import InvalidTypeError
from headtree.tensor.attention_tensor import AttentionTensor

_PATCH = re.compile(r"r(\d+)c(\d+)")
_CLASS = "class"
_SPECIAL = frozenset(
    {"[CLS]", "[SEP]", "[EOS]", "[BOS]", "<s>", "</s>", "<bos>", "<eos>", "<sep>", "<cls>", "<eod>", "<eop>"}
    | {"<|endoftext|>", "<|begin_of_text|>", "<|end_of_text|>", "<|im_start|>", "<|im_end|>"}
    | {"<start_of_turn>", "<end_of_turn>"}
)
_PUNCTUATION = re.compile(r"""[.,;:!?…"'()\[\]{}«»“”‘’。，、；：！？\-–—]+|[ĊĉčÂĠ\n\r\t]*[Ċ\n]""")
_WORD_STARTS = "Ġ▁ "  # how tokenizers write the space before a word

#: One relation between queries and keys, or the reason why it does not exist here.
Relation = Bool[np.ndarray, "query key"] | str


def relations(
    att: AttentionTensor, *, delimiters: Collection[str] | None = None, window: int = 4
) -> dict[str, Relation]:
    """Find the keys in each role for each query, from the labels of the tensor, or the reason why there are none.

    Parameters
    ----------
    att : AttentionTensor
        Image patches are labelled ``r3c5`` and the class token ``class``, as by `capture`.
    delimiters : collection of str, optional
        Tokens that count as delimiters; by default punctuation, line ends and special tokens.
    window : int
        Largest distance of nearby tokens.
    """
    window = at_least_one(window, "window")
    is_text = isinstance(delimiters, str)
    if delimiters is not None:
        delimiters = _checks.as_list(delimiters, "delimiters", "tokens")
        if is_text or not all(isinstance(token, str) for token in delimiters):
            raise InvalidTypeError(f"delimiters must be a collection of tokens, got {delimiters!r}")
    query_patches, key_patches = _patches(att.queries), _patches(att.keys)
    text = _text_relations(att, delimiters, window)
    if query_patches is not None and key_patches is not None:
        image = _image_relations(query_patches, key_patches, att.keys)
        no_text: dict[str, Relation] = dict.fromkeys(text, "the tokens are image patches")
        return {**no_text, "same_token": text["same_token"], **image}
    names = ("class_token", "same_row", "same_column", "neighbours")
    return {**text, **dict.fromkeys(names, "the tokens are not image patches")}


def _text_relations(att: AttentionTensor, delimiters: Collection[str] | None, window: int) -> dict[str, Relation]:
    n_queries, n_keys = att.shape[1:]
    keys = np.arange(n_keys)
    is_delimiter = np.array(
        [is_delimiter_token(key) if delimiters is None else key in delimiters for key in att.keys]
    )
    is_delimiter[0] = False  # the first token is a role of its own
    result: dict[str, Relation] = {
        "first_token": np.broadcast_to(keys == 0, (n_queries, n_keys)),
        "delimiters": np.broadcast_to(is_delimiter, (n_queries, n_keys)),
    }
    if not is_delimiter.any():
        result["delimiters"] = "there is no delimiter after the first token"
    positions = query_positions(att.queries, att.keys)
    if positions is None:
        reason = "queries and keys are not the same sequence of tokens"
        names = ("previous_token", "same_token", "next_token", "earlier_copies", "nearby_tokens")
        return {**dict.fromkeys(names, reason), **result}
    behind = positions[:, None] - keys
    copies = (np.array(att.queries)[:, None] == np.array(att.keys)) & (behind > 0)
    return {
        "previous_token": behind == 1,
        "same_token": behind == 0,
        "next_token": behind == -1,
        "earlier_copies": copies if copies.any() else "no token occurs twice",
        **result,
        "nearby_tokens": np.abs(behind) <= window,
    }


def query_positions(queries: Sequence[str], keys: Sequence[str]) -> Int[np.ndarray, " query"] | None:
    """Index of each query among the keys, which are the same sequence or end with it; None otherwise."""
    n_before = len(keys) - len(queries)
    if n_before < 0 or tuple(queries) != tuple(keys[n_before:]):
        return None
    return np.arange(n_before, len(keys))


def is_delimiter_token(token: str) -> bool:
    """Whether a token is punctuation, a line end, or a special token that separates texts."""
    return token in _SPECIAL or bool(_PUNCTUATION.fullmatch(token.lstrip(_WORD_STARTS)))


def _patches(labels: Sequence[str]) -> Int[np.ndarray, "token 2"] | None:
    """Row and column of each patch, -1 for other tokens; None for fewer than two patches."""
    found = [_PATCH.fullmatch(label) for label in labels]
    if sum(match is not None for match in found) < 2:
        return None
    return np.array([(int(match[1]), int(match[2])) if match else (-1, -1) for match in found])


def _image_relations(
    queries: Int[np.ndarray, "query 2"], keys: Int[np.ndarray, "key 2"], labels: Sequence[str]
) -> dict[str, Relation]:
    both = (queries[:, None, 0] >= 0) & (keys[None, :, 0] >= 0)
    apart = np.abs(queries[:, None] - keys[None])
    is_other = both & apart.any(axis=2)
    is_class = np.array(labels) == _CLASS
    return {
        "class_token": np.broadcast_to(is_class, both.shape) if is_class.any() else "there is no class token",
        "same_row": is_other & (apart[..., 0] == 0),
        "same_column": is_other & (apart[..., 1] == 0),
        "neighbours": is_other & (apart.max(axis=2) == 1),
    }
