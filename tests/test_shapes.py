"""Shapes in signatures are checked while the tests run."""

import jaxtyping
import numpy as np
import pytest

from headtree.measures.comparisons import adjusted_rand_index
from tests.shapes import _jaxtyped_where_shapes_are


def test_a_wrong_shape_is_refused():
    assert adjusted_rand_index(np.array([0, 0, 1]), np.array([1, 1, 0])) == 1
    with pytest.raises(jaxtyping.TypeCheckError):
        adjusted_rand_index(np.array([0, 0, 1]), np.array([[1, 1, 0]]))


def test_functions_without_shapes_are_left_alone():
    def plain(x: int) -> int:
        return x

    assert _jaxtyped_where_shapes_are(plain, typechecker=None) is plain
