"""Which families of heads continue, split, merge, appear and dissolve between two runs of the same heads."""

from __future__ import annotations

from typing import Literal, NamedTuple

import numpy as np
from jaxtyping import Int

#: Two families are linked if they share more than this fraction of the smaller one.
_LINKED = 0.5

Event = Literal["continues", "splits", "merges", "appears", "dissolves"]


class FamilyChange(NamedTuple):
    """What became of some families."""

    event: Event
    before: tuple[int, ...]  #: families of the first run
    after: tuple[int, ...]  #: families of the second run
    shared: int  #: heads that are in these families before and after


def family_changes(before: Int[np.ndarray, " head"], after: Int[np.ndarray, " head"]) -> tuple[FamilyChange, ...]:
    """Compare the families of the same heads in two runs; -1 for heads in none.

    Two families are linked if they share more than half of the heads of the smaller one. A family with several
    links to the second run *splits*, one with several links to the first *merges* those, a family without a link
    *appears* or *dissolves*, and two that are linked with each other alone *continue*. Where links are many to
    many, each of these families splits or merges.

    Examples
    --------
    Heads 0 to 3 were one family and are two; a third family is new:

    >>> import numpy as np
    >>> changes = family_changes(np.array([0, 0, 0, 0, -1, -1]), np.array([0, 0, 1, 1, 2, 2]))
    >>> [(change.event, change.before, change.after) for change in changes]
    [('splits', (0,), (0, 1)), ('appears', (), (2,))]
    """
    n_before, n_after = before.max(initial=-1) + 1, after.max(initial=-1) + 1
    shared = np.array([[((before == i) & (after == j)).sum() for j in range(n_after)] for i in range(n_before)])
    shared = shared.reshape(n_before, n_after)
    sizes = (
        np.array([(before == i).sum() for i in range(n_before)]),
        np.array([(after == j).sum() for j in range(n_after)]),
    )
    smaller = np.minimum(sizes[0].reshape(-1, 1), sizes[1].reshape(1, -1))
    is_linked = shared > _LINKED * smaller
    found: list[FamilyChange] = []
    for i in range(n_before):
        after_i = tuple(np.flatnonzero(is_linked[i]).tolist())
        if len(after_i) > 1:
            found.append(FamilyChange("splits", (i,), after_i, int(shared[i, list(after_i)].sum())))
        elif not after_i:
            found.append(FamilyChange("dissolves", (i,), (), 0))
        elif is_linked[:, after_i[0]].sum() == 1:
            found.append(FamilyChange("continues", (i,), after_i, int(shared[i, after_i[0]])))
    for j in range(n_after):
        before_j = tuple(np.flatnonzero(is_linked[:, j]).tolist())
        if len(before_j) > 1:
            found.append(FamilyChange("merges", before_j, (j,), int(shared[list(before_j), j].sum())))
        elif not before_j:
            found.append(FamilyChange("appears", (), (j,), 0))
    return tuple(found)
