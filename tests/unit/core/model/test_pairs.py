"""Pairs of codes."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from autopilot.core.model.pairs import pairs_of

CODE = st.integers(-3, 5)


@given(st.lists(st.tuples(CODE, CODE)))
def test_pairs_are_those_of_a_search_row_by_row(rows: list[tuple[int, int]]) -> None:
    """In ascending order, each once; also with negative codes, and without rows."""
    columns = np.array(rows, np.int32).reshape(-1, 2)
    pairs, place = pairs_of(columns[:, 0], columns[:, 1])
    assert pairs == sorted(set(rows))
    assert [pairs[at] for at in place.tolist()] == rows
