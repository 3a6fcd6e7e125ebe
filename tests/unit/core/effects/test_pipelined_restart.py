"""Pipelined starts across a crash of the controller, and in the memory that it saves."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from autopilot.core.model.memory import ControllerMemory
from autopilot.records.memory import FileMemoryStore, InMemoryStore, memory_text, read_memory_text
from tests.kits.ticking_world import Ticking
from tests.unit.core.effects.test_pipelined import moving, reclaim


def crash_free(play: Ticking, times: list[float]) -> list[tuple[str, str]]:
    """Effects of a run in which everybody leaves one tick after being told."""
    for now_s in times:
        play.tick(now_s)
        play.leave_all()
    return [(kind, name) for _, kind, name in play.told]


@pytest.mark.parametrize("at", range(6))
@pytest.mark.parametrize("how", ["before it saved", "after it saved", "after it acted"])
def test_a_crash_between_any_two_steps_starts_nothing_twice(how: str, at: int) -> None:
    """The process dies at the n-th tick, and another goes on from what was saved: the same gangs run in the end."""
    times = [100.0, 110.0, 130.0, 400.0, 650.0, 700.0, 900.0, 1300.0]
    for scene in (reclaim, moving):
        plain = scene()
        crash_free(plain, times)
        play = scene()
        for number, now_s in enumerate(times):
            before = play.memory
            play.tick(now_s, lost=number == at and how != "after it acted")
            if number == at and how == "before it saved":
                play.memory = before
                play.sent.clear()
            if number == at:
                play.outcomes = ()  # nobody tells the new process
            play.leave_all()
        assert play.running() == plain.running()
        assert play.memory.starts.pipelined_starts == ()
        assert {name: len(play.on(name)) for name in play.running()} == {
            name: len(plain.on(name)) for name in plain.running()
        }


def test_landings_and_usage_survive_being_written_down(tmp_path: Path) -> None:
    """Text, file and variable give back the same memory: parts, victims with what they keep, times, use by queue."""
    play = moving()
    play.tick(100.0)
    memory = replace(
        play.memory,
        use=replace(
            play.memory.use,
            usage_gpu_s={"a": 1.5},
            standing_use_gpu_s={"b": 2.5},
            held_gpus={"a": 8.0},
            part_gpu_s={"a": 3.5},
            standing_part_gpu_s={"b": 4.5},
            part_gpus={"a": 4.0},
            usage_at_s=100.0,
        ),
    )
    assert [part.workload for part in memory.starts.pipelined_starts[0].parts] == ["w", "m"]
    assert len(memory.starts.pipelined_starts[0].victims[0].keeps) == 4
    again = read_memory_text(memory_text(memory), "memory")
    assert again.starts.pipelined_starts == memory.starts.pipelined_starts
    assert (again.use.usage_gpu_s, again.use.standing_use_gpu_s, again.use.held_gpus, again.use.usage_at_s) == (
        {"a": 1.5},
        {"b": 2.5},
        {"a": 8.0},
        100.0,
    )
    assert (again.use.part_gpu_s, again.use.standing_part_gpu_s, again.use.part_gpus) == (
        {"a": 3.5},
        {"b": 4.5},
        {"a": 4.0},
    )
    store = FileMemoryStore(tmp_path / "memory.json")
    store.save(memory)
    kept = InMemoryStore()
    kept.save(memory)
    for loaded in (FileMemoryStore(tmp_path / "memory.json").load(), kept.load()):
        assert loaded is not None
        assert memory_text(loaded) == memory_text(memory)
    first = read_memory_text(memory_text(ControllerMemory()), "memory")
    assert first.use.usage_at_s == float("-inf")
