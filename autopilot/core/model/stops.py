"""Why work is stopped, and how a stop treats what it has not saved."""

from __future__ import annotations

from enum import StrEnum


class StopReason(StrEnum):
    """Why GPUs are taken from running work. It decides what its owner sees and what becomes of the work."""

    PREEMPT = "preempt"  # for other work, weighed
    RECLAIM = "reclaim"  # it holds what another queue is owed
    MOVE = "move"  # it continues in another place, weighed
    MOVE_AHEAD = "move-ahead"  # it continues in another place, for work that is only expected
    AWAY = "away"  # it continues in another place, because a member holds it up where it is
    ISOLATE = "isolate"  # it continues in another place, because it slows a neighbour or one slows it
    DRAIN = "drain"  # it continues in another place, so that its GPU or node can be cut anew
    RECLAIM_MOVE = "reclaim-move"  # it continues in another place, by contract
    BACKFILL = "backfill"  # the reservation that it started before is due
    RECOVER = "recover"  # it cannot continue where it is
    RESTART = "restart"  # it hangs, and starts again
    SUSPEND = "suspend"  # it stays away until a person lets it continue
    IDLE = "idle"  # it does nothing: it waits until its owner resumes it

    @property
    def by_contract(self) -> bool:
        """True where the work started on the condition that this may happen, or cannot continue."""
        return self in _BY_CONTRACT

    @property
    def continues_elsewhere(self) -> bool:
        """True where the work has a new place already."""
        return self in _MOVES

    @property
    def for_itself(self) -> bool:
        """True where the work is stopped for its own sake: it is broken or hangs."""
        return self in _FOR_ITSELF

    @property
    def for_others(self) -> bool:
        """True where the work makes room for other work. Idle work and work past its limit leave room by themselves."""
        return self not in _OWN


_BY_CONTRACT = frozenset(
    {StopReason.RECLAIM, StopReason.RECLAIM_MOVE, StopReason.BACKFILL, StopReason.RECOVER, StopReason.SUSPEND}
)
_MOVES = frozenset(
    {
        StopReason.MOVE,
        StopReason.MOVE_AHEAD,
        StopReason.AWAY,
        StopReason.ISOLATE,
        StopReason.DRAIN,
        StopReason.RECLAIM_MOVE,
    }
)
_FOR_ITSELF = frozenset({StopReason.RECOVER, StopReason.RESTART})
_OWN = _FOR_ITSELF | {StopReason.SUSPEND, StopReason.IDLE, StopReason.AWAY}


class Save(StrEnum):
    """How an eviction treats a gang that has no fresh checkpoint at the end of its grace."""

    TRY = "try"  # it is stopped and loses its progress since the last checkpoint
    MUST = "must"  # it keeps its place, and the effect is declined
    SKIP = "skip"  # it is stopped immediately: the store has no turn for it within the grace
