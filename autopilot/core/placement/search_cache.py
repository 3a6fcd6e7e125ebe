"""Answers for the latest states of the what-if: each is computed once."""

from __future__ import annotations

from dataclasses import dataclass, field

from autopilot.core.model.snapshot import I32, I64

STATES = 8
"""States to remember. Searches try many and return to their first one."""


@dataclass(slots=True)
class StateCache:
    """Answers for one state."""

    # whole free GPUs per node beside holds; read only
    rooms: dict[tuple[tuple[bytes, bytes], ...], I32] = field(default_factory=dict)
    # free GPUs for members
    counted: dict[tuple[int | tuple[int, ...], ...], tuple[int, ...]] = field(default_factory=dict)
    free_milli: I64 | None = None  # of usable GPUs, per node, parts included; read only


@dataclass(slots=True)
class SearchCache:
    """Answers by the stamp of the what-if."""

    states: dict[int, StateCache] = field(default_factory=dict)

    def at(self, stamp: int) -> StateCache:
        """Answers for this state; the caller may add to them."""
        found = self.states.pop(stamp, None) or StateCache()
        self.states[stamp] = found
        if len(self.states) > STATES:
            del self.states[next(iter(self.states))]
        return found
