"""Actions under restraint: a cap for unkept promises, or the pause of a storm. They may still recommend."""

from __future__ import annotations

from math import inf

from autopilot.core.model.memory import ControllerMemory


def is_capped(memory: ControllerMemory, action: str) -> bool:
    """True while the action may only recommend."""
    record = memory.trust.kept_promises.get(action)
    return record is not None and record.capped_s < inf


def is_paused(memory: ControllerMemory, action: str) -> bool:
    """True while the action is paused by a storm."""
    record = memory.trust.storms.get(action)
    return record is not None and record.since_s < inf
