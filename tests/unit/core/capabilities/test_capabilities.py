"""The table of capabilities: every slice of the memory has its owner, and every row the reason for its place."""

from __future__ import annotations

from dataclasses import is_dataclass
from typing import get_type_hints

from autopilot.core.capabilities.memory import CAPABILITIES
from autopilot.core.model.memory import ControllerMemory

SLICES = {name for name, kind in get_type_hints(ControllerMemory).items() if is_dataclass(kind)}
BEFORE_THE_TABLE = {"intake"}
"""Changed by the facts of the clock and of the views (core/decision/intake_facts.py)."""


def test_every_slice_has_an_owner_and_every_row_a_reason() -> None:
    """Names are unique. The last row is last, and only the first one claims to be first."""
    assert {name for each in CAPABILITIES for name in each.owns} == SLICES - BEFORE_THE_TABLE
    assert len({each.name for each in CAPABILITIES}) == len(CAPABILITIES)
    known = ("first: ", "after ", "before ", "anywhere: ", "last: ")
    assert [each.name for each in CAPABILITIES if not each.place.startswith(known)] == []
    assert [each.name for each in CAPABILITIES if each.place.startswith(("first: ", "last: "))] == [
        CAPABILITIES[0].name,
        CAPABILITIES[-1].name,
    ]
