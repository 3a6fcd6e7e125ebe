"""The kill and the pause."""

from __future__ import annotations

from dataclasses import dataclass

from autopilot.core.model.records import Command
from autopilot.core.model.times import Time


@dataclass(frozen=True, slots=True)
class HaltMemory:
    """Why nothing may act (core/tracking/lifecycle.py, `halted`)."""

    killed: bool = False
    kill_sequence: int = -1  # a RESUME with a higher number ends the kill
    last_kill: Command | None = None  # as received, to recognize a repeat
    paused_reason: str = ""
    paused_since_s: Time = float("nan")
    paused_by: str = ""  # the person; "" when the autopilot paused itself: such a pause lapses
