"""Decide a record again under its own policies: identical, or the first difference."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from autopilot.core.model.memory import ControllerMemory, Step
from autopilot.core.model.policy import Policy
from autopilot.core.model.records import Decision, Instruction, Observation
from autopilot.records.journal.decisions import digest, memory_bytes
from autopilot.records.journal.observations import ENCODER
from autopilot.records.journal.reader import JournalReader, TickRecord
from autopilot.records.replay.findings import Difference, ReplayResult
from autopilot.records.replay.unequal import first_unequal

Progress = Callable[[int, int], None]
"""Called with (ticks done, ticks in total)."""

Decide = Callable[[ControllerMemory, Observation, Policy], Step]
"""`reconcile`, or a replacement in tests."""


def verify(reader: JournalReader, total: int, progress: Progress | None, decide: Decide) -> ReplayResult:
    """Every tick again, up to the first difference."""
    memory: ControllerMemory | None = None
    names: dict[str, None] = {}
    done, first, last, difference = 0, None, None, None
    for record in reported(reader, total, progress):
        decided = record.decided
        names[decided.policy.name] = None
        first, last = (decided.tick if first is None else first), decided.tick
        memory, difference = remembered(memory, record)
        if difference is None:
            step = decide(memory, record.observation, decided.policy)
            difference = first_difference(record, step.decision, step.instructions)
            memory = step.memory
        if difference is not None:
            break
        done += 1
    return ReplayResult(str(reader.path), done, first, last, tuple(names), difference=difference)


def remembered(memory: ControllerMemory | None, record: TickRecord) -> tuple[ControllerMemory, Difference | None]:
    """The memory to decide with; it must equal the recorded one, except for the leader's fence."""
    decided = record.decided
    if memory is None or (decided.starts and decided.memory is not None):
        if decided.memory is None:
            return ControllerMemory(), Difference(decided.tick, decided.now_s, "memory", "not in the record", "unknown")
        return replace(decided.memory, fence=decided.fence), None
    if memory.fence != decided.fence:
        memory = replace(memory, fence=decided.fence)
    if digest(memory_bytes(memory)) == decided.memory_digest:
        return memory, None
    if decided.memory is not None:
        found = first_unequal(replace(decided.memory, fence=decided.fence), memory, "memory")
        if found is None:
            return memory, None
        return memory, Difference(decided.tick, decided.now_s, *found)
    return memory, Difference(
        decided.tick, decided.now_s, "memory", decided.memory_digest.hex(), digest(memory_bytes(memory)).hex()
    )


def first_difference(record: TickRecord, decision: Decision, instructions: Sequence[Instruction]) -> Difference | None:
    """The first field of decision or instructions that differs from the record."""
    decided = record.decided
    pairs = (
        ("decision", decided.decision, decision),
        ("instructions", decided.instructions, tuple(instructions)),
    )
    for name, recorded, now in pairs:
        if ENCODER.encode(recorded) == ENCODER.encode(now):
            continue
        found = first_unequal(recorded, now, name)
        if found is not None:
            return Difference(decided.tick, decided.now_s, *found)
    return None


def reported(reader: JournalReader, total: int, progress: Progress | None) -> Iterator[TickRecord]:
    """Every tick of the record; reports to `progress`."""
    for done, record in enumerate(reader.ticks(), 1):
        yield record
        if progress is not None:
            progress(done, total)
