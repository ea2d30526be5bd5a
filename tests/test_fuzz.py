"""A share of `make fuzz`."""

import numpy as np
import pytest

from tools.fuzz import Case, drawn, problem, run


def test_drawn_arrays_agree_with_the_literal_definitions():
    assert run(40, seed=1).startswith("40 arrays")


def test_arrays_can_be_shared_between_processes():
    alone, shared = (run(6, seed=2, jobs=jobs).rsplit(";", 1)[0] for jobs in (1, 2))
    assert alone == shared


def test_a_broken_law_is_told(monkeypatch):
    monkeypatch.setattr("tools.fuzz.oracles.tree_emd", lambda x, axis, *_, **__: np.ones([x.shape[axis]] * 2))
    with pytest.raises(SystemExit, match="distances differ from the literal sum"):
        run(20, seed=1)


def test_a_case_is_drawn_from_its_number_alone():
    first, again = drawn(0, 7), drawn(0, 7)
    assert isinstance(first, Case)
    assert first.x.tobytes() == again.x.tobytes()
    assert first.settings == again.settings
    assert problem(first) is None
