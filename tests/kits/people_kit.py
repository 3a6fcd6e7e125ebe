"""Commands of people, and memory after them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from autopilot.core.model.memory import ControllerMemory, Step
from autopilot.core.model.policy import Mode, Modes
from autopilot.core.model.records import (
    Command,
    CommandKind,
)
from autopilot.explain.notes import note_words
from tests.kits.core_world import (
    AUTO,
    taken_in,
    world,
)

KILL, RESUME, PAUSE = CommandKind.KILL, CommandKind.RESUME, CommandKind.PAUSE
APPROVE, REJECT = CommandKind.APPROVE, CommandKind.REJECT
ASKING = replace(AUTO, modes=Modes(*[Mode.APPROVE] * len(Modes.__dataclass_fields__)))


def said(kind: CommandKind, sequence: int = -1, at_s: float = 100.0, who: str = "ann", **more: Any) -> Command:
    """A command of a person."""
    return Command(kind, who, at_s, sequence=sequence, **more)


def obey(*commands: Command, memory: ControllerMemory | None = None, now_s: float = 100.0) -> ControllerMemory:
    """Memory after commands."""
    return taken_in(memory or ControllerMemory(), world("1x8", (), now_s, commands=commands), AUTO)


def notes(step: Step) -> list[str]:
    """What the decision says of refused commands."""
    return [note_words(note) for note in step.decision.notes]
