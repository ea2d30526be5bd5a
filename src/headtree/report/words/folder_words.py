"""Folders of heads in words: "12 heads, layers 2-5, previous token"."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from headtree import _checks
from headtree.errors import InvalidTypeError, InvalidValueError
from headtree.measures.consensus import Consensus
from headtree.tensor.attention_tensor import HeadId, head_ids
from headtree.trees.tree import PartitionTree

if TYPE_CHECKING:
    from pandas import DataFrame

#: Least share of heads with one role for a folder to have the role, and to have mostly the role.
_NEARLY_ALL, _HALF = 0.75, 0.5


def describe_folders(tree: PartitionTree | Consensus, heads: Sequence[HeadId], roles: Sequence[str]) -> DataFrame:
    """Describe every folder of a tree of heads in words, one row each, parents first.

    The root and single heads are left out.

    Parameters
    ----------
    tree : PartitionTree or Consensus
        The tree of the heads; a consensus includes the support of its folders.
    heads : sequence of HeadId
        The heads in the order of the leaves.
    roles : sequence of str
        The role of each head, "" for none: ``diagnostics(...).roles.names``.

    Examples
    --------
    >>> import headtree as ht
    >>> heads = [ht.HeadId(layer, head) for layer in (0, 1) for head in (0, 1)]
    >>> roles = ["previous token", "previous token", "", "first token"]
    >>> describe_folders(ht.PartitionTree.halving(4), heads, roles)["words"].tolist()
    ['2 heads, layer 0, previous token', '2 heads, layer 1, mostly first token']
    """
    import pandas as pd

    plain = tree.tree if isinstance(tree, Consensus) else tree
    if not isinstance(plain, PartitionTree):
        raise InvalidTypeError(f"tree must be a PartitionTree or a Consensus, got {type(tree).__name__}")
    heads = head_ids(heads)
    roles = _checks.as_list(roles, "roles", "strings")
    if not all(isinstance(role, str) for role in roles):
        raise InvalidTypeError(f'roles must be strings, "" for a head without a role, got {roles!r}')
    if not len(heads) == len(roles) == plain.n_leaves:
        raise InvalidValueError(
            f"heads and roles must be one for each of the tree's {plain.n_leaves} leaves, got {len(heads)} and "
            f"{len(roles)}"
        )
    distinct = plain.distinct
    support = dict(zip(tree.node.tolist(), tree.support, strict=True)) if isinstance(tree, Consensus) else {}
    rows = []
    for i in np.flatnonzero(~distinct.is_leaf)[1:]:
        leaves = np.flatnonzero(plain.nodes[distinct.level[i]] == distinct.node[i]).tolist()
        role, share = _main_role([roles[leaf] for leaf in leaves])
        rows.append(
            {
                "node": int(distinct.node[i]),
                "level": int(distinct.level[i]),
                "n_heads": len(leaves),
                "first_layer": min(heads[leaf].layer for leaf in leaves),
                "last_layer": max(heads[leaf].layer for leaf in leaves),
                "role": role,
                "share_of_role": share,
                "support": float(support.get(int(distinct.node[i]), np.nan)),
                "words": folder_words(leaves, heads, roles),
                "heads": " ".join(str(heads[leaf]) for leaf in leaves),
            }
        )
    columns = ["node", "level", "n_heads", "first_layer", "last_layer", "role", "share_of_role", "support", "words"]
    return pd.DataFrame(rows, columns=[*columns, "heads"])


def folder_words(leaves: Iterable[int], heads: Sequence[HeadId], roles: Sequence[str] | None) -> str:
    """A set of heads in a phrase: how many, in which layers, and, where roles are known, doing what."""
    own = [int(leaf) for leaf in leaves]
    number = "1 head" if len(own) == 1 else f"{len(own)} heads"
    phrase = f"{number}, {_layer_words(sorted({heads[leaf].layer for leaf in own}))}"
    words = "" if roles is None else _role_words([roles[leaf] for leaf in own])
    return f"{phrase}, {words}" if words else phrase


def _role_words(roles: Sequence[str]) -> str:
    """What they do; nothing if most of them have no role."""
    role, share = _main_role(roles)
    if share >= _NEARLY_ALL:
        return role
    if share >= _HALF:
        return f"mostly {role}"
    n_without = sum(not role for role in roles)
    return "" if n_without >= _HALF * len(roles) else "mixed roles"


def _main_role(roles: Sequence[str]) -> tuple[str, float]:
    """The most frequent role and the share of heads that have it; ("", 0) if none has any."""
    counts = Counter(role for role in roles if role)
    if not counts:
        return "", 0.0
    role, count = min(counts.items(), key=lambda pair: (-pair[1], pair[0]))
    return role, count / len(roles)


def _layer_words(layers: Sequence[int]) -> str:
    """Sorted numbers of layers: "layer 3", "layers 0 and 5", "layers 0-2, 7"."""
    runs: list[list[int]] = []
    for layer in layers:
        if runs and layer == runs[-1][-1] + 1:
            runs[-1].append(layer)
        else:
            runs.append([layer])
    parts = [str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs]
    if len(layers) == 1:
        return f"layer {parts[0]}"
    return f"layers {' and '.join(parts) if len(layers) == 2 else ', '.join(parts)}"
