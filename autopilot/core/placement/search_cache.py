"""What was worked out for the states of the what-if that were looked at last, so that it need not be again."""

from __future__ import annotations

from dataclasses import dataclass, field

from autopilot.core.model.snapshot import I32

STATES = 8
"""So many states are remembered. Searches try many and come back to the one that they began at."""


@dataclass(slots=True)
class StateCache:
    """Of one state."""

    # whole free GPUs per node beside what is held: nobody writes to them
    rooms: dict[tuple[tuple[int, bytes, bytes], ...], I32] = field(default_factory=dict)
    # free GPUs for members
    counted: dict[tuple[int, ...], tuple[int, ...]] = field(default_factory=dict)
    # gangs for which no moves make room: what they are like, and how many were gone by plan
    unmovable: set[tuple[int, int]] = field(default_factory=set)


@dataclass(slots=True)
class SearchCache:
    """Of the last states, by the stamp of the what-if."""

    states: dict[int, StateCache] = field(default_factory=dict)

    def at(self, stamp: int) -> StateCache:
        """What is known of this state; it may be added to."""
        found = self.states.pop(stamp, None) or StateCache()
        self.states[stamp] = found
        if len(self.states) > STATES:
            del self.states[next(iter(self.states))]
        return found
