"""Facts of idle work beside the facts of every action (planning/facts.py)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from autopilot.core.facts.table import fact, root
from autopilot.core.idle.ladder import Rung, rungs
from autopilot.core.intake.usage.facts import SnapshotFacts
from autopilot.core.model.memory import ControllerMemory
from autopilot.core.planning.context import Context

Value = TypeVar("Value")


def _root(read: Callable[[IdleFacts], Value]) -> Value:
    return root(read)


@dataclass(frozen=True, kw_only=True)
class IdleFacts(SnapshotFacts):
    """The facts of one tick."""

    recalled: ControllerMemory  # memory as planning began from it

    _memory = _root(lambda own: own.recalled)
    _policy = _root(lambda own: own.policy)

    rungs = fact(rungs, _memory, SnapshotFacts.snapshot, _policy)  # what the newest look showed idle, and its next step


def ladder(ctx: Context) -> tuple[Rung, ...]:
    """Idle work of this tick, by the newest look."""

    def table() -> IdleFacts:
        return IdleFacts(observation=ctx.observation, policy=ctx.policy, kept=ctx.kept, recalled=ctx.recalled)

    return ctx.once(IdleFacts, table).rungs
