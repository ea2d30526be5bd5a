"""Do families agree with roles? Adjusted mutual information of the two."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from jaxtyping import Int

from headtree.measures.agreement import tree_agreement
from headtree.study.similarities.halved_estimates import HalvedEstimate, halvings
from headtree.study.similarities.replication import FamilyReplication
from headtree.study.similarities.similarity_settings import HEAD_SAMPLES, SEED
from headtree.trees.tree import PartitionTree


def information(labels: Int[np.ndarray, " head"], roles: Sequence[str]) -> float:
    """Adjusted mutual information of families and roles; 0 without any family, nan if all roles are the same."""
    n = len(labels)
    _, families = np.unique(labels, return_inverse=True)
    if len(set(roles)) < 2:
        return float("nan")
    if not 1 < families.max() + 1 < n:
        return 0.0
    tree = PartitionTree([[0] * n, families.tolist(), list(range(n))])
    return tree_agreement(tree, list(roles), n_permutations=1).information


def role_agreement(found: FamilyReplication, roles: Sequence[str]) -> HalvedEstimate | None:
    """Information of the families of all inputs about roles; None if all heads have the same role."""
    whole = information(found.families, roles)
    if not np.isfinite(whole):
        return None
    by_draw = [information(labels, roles) for pair in found.of_halves for labels in pair]
    by_heads = [
        information(found.families[half], [roles[i] for i in half])
        for half, _ in halvings(len(roles), HEAD_SAMPLES, SEED)
    ]
    return HalvedEstimate(whole, np.array(by_draw), np.array(by_heads))
