"""The kill, the pause, and the failures that lead to one."""

from __future__ import annotations

from dataclasses import dataclass

from autopilot.core.model.records import Command
from autopilot.core.model.times import Time


@dataclass(frozen=True, slots=True)
class Failure:
    """One failed effect: its object, and the tenant of it; "" for an object of the cluster, a node or a GPU."""

    at_s: Time
    uid: str
    tenant: str


@dataclass(frozen=True, slots=True)
class HaltMemory:
    """Why nothing may act (core/effects/halt.py)."""

    killed: bool = False
    kill_sequence: int = -1  # a RESUME with a higher number ends the kill
    last_kill: Command | None = None  # as received, to recognize a repeat
    paused_reason: str = ""
    paused_since_s: Time = float("nan")
    paused_by: str = ""  # the person; "" when the autopilot paused itself: such a pause lapses
    failed: tuple[Failure, ...] = ()  # failed effects inside the pause window
