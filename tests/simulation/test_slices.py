"""Each capability changes its own slices of the memory alone, in a world where everything goes wrong."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

from autopilot.core.capabilities import memory as capabilities
from autopilot.core.model.capability import Capability
from autopilot.core.model.memory import ControllerMemory
from tests.simulation.kit import Setup, faulty_world, run

Watched = Callable[..., ControllerMemory]


def watched(row: Capability, trespasses: set[tuple[str, str]]) -> Capability:
    """The row; it notes changes of slices that it does not own."""

    def watch(function: Watched) -> Watched:
        def watching(memory: ControllerMemory, given: Any) -> ControllerMemory:
            after = function(memory, given)
            changed = {each.name for each in fields(memory) if getattr(after, each.name) != getattr(memory, each.name)}
            trespasses.update((row.name, name) for name in changed - {*row.owns})
            return after

        return watching

    absorb, commit = row.absorb and watch(row.absorb), row.commit and watch(row.commit)
    return replace(row, absorb=absorb, commit=commit)


def test_no_capability_changes_the_slice_of_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A row that says less than it does is found."""
    found: set[tuple[str, str]] = set()
    rows = [replace(row, owns=row.owns[:1]) for row in capabilities.CAPABILITIES]
    planted = replace(rows[0], owns=("plan",))
    monkeypatch.setattr(capabilities, "CAPABILITIES", tuple(watched(row, found) for row in (planted, *rows[1:])))
    run(faulty_world(3, tmp_path, horizon_min=8), Setup())
    assert found - {("geometry", "effects"), ("geometry", "halt")} == {("effects", "effects")}
