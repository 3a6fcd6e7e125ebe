"""Times in memory: told from durations by the type of their field."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from typing import Any, get_args, get_type_hints

from autopilot.core.model.memory import ControllerMemory
from autopilot.core.model.records import Command
from autopilot.core.model.times import Day, Duration, Time


def records_of(kind: Any, seen: set[Any]) -> Iterator[type[Any]]:
    """Every record that a memory can hold."""
    if is_dataclass(kind) and kind not in seen:
        seen.add(kind)
        yield kind  # type: ignore[misc]
        for hint in get_type_hints(kind).values():
            yield from records_of(hint, seen)
    for part in get_args(kind):
        yield from records_of(part, seen)


def floats_of(hint: Any) -> Iterator[Any]:
    """The floats in a type, as they are annotated."""
    if hint in {float, Time, Duration}:
        yield hint
    elif hint != Day:
        for part in get_args(hint):
            yield from floats_of(part)


def test_every_field_in_seconds_of_a_memory_is_told_a_time_or_a_duration() -> None:
    """A new field has to choose: a time moves with the clock, a duration does not."""
    told = {Command}  # said by people, kept as it came
    for kind in {*records_of(ControllerMemory, set())} - told:
        hints = get_type_hints(kind, include_extras=True)
        named = [field.name for field in fields(kind) if field.name.endswith("_s") and "_gpu_s" not in field.name]
        plain = [name for name in named if not {*floats_of(hints[name])} & {Time, Duration}]
        assert not plain, f"{kind.__name__}: {plain} is a Time or a Duration (core/model/times.py)"
