"""Instructions for tests."""

from __future__ import annotations

from typing import TypeVar

from autopilot.core.effects.evict import EvictOperation
from autopilot.core.model.objects import Subject, SubjectKind
from autopilot.core.model.records import Instruction
from autopilot.core.model.stops import StopReason
from autopilot.core.model.verb import Operation

Kind = TypeVar("Kind", bound=Operation)
STOP = EvictOperation(reason=StopReason.PREEMPT, grace_s=0.0)


def asked(instruction: Instruction, kind: type[Kind]) -> Kind:
    """The operation of an instruction, which has to be of this kind."""
    assert isinstance(instruction.operation, kind), instruction
    return instruction.operation


def workload(name: str, revision: int = 0, uid: str | None = None) -> Subject:
    """A workload whose uid is its name."""
    return Subject(SubjectKind.WORKLOAD, name, name if uid is None else uid, revision)


def instruct(
    name: str,
    operation: Operation = STOP,
    id: str = "",  # noqa: A002 - as the field is called
    *,
    deadline_s: float = 300.0,
    fence: int = 1,
    proposal_id: str = "p",
) -> Instruction:
    """An instruction to a workload."""
    return Instruction(id or f"0/{name}", workload(name), operation, deadline_s, fence, proposal_id)
