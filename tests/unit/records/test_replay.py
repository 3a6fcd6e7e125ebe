from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from autopilot.core.decision.reconciler import reconcile
from autopilot.core.model.errors import InputError
from autopilot.core.model.memory import ControllerMemory, Step
from autopilot.core.model.policy import BackfillRules, Mode, Modes, Order, Policy, ReservationRules
from autopilot.core.model.policy.bounds import JournalRules
from autopilot.core.model.records import Observation
from autopilot.records.journal import SqliteJournal
from autopilot.records.replay import OPEN_LOOP, replay, replay_lines
from benchmarks.small_world import AUTO, Tick, World

RULES = JournalRules(keyframe_s=600.0, keyframe_ticks=16)


def record(path: Path, ticks: list[Tick]) -> Path:
    """A record of those turns at `path`."""
    with SqliteJournal(path, durable=False, rules=RULES) as journal:
        for tick in ticks:
            journal.intend(tick.observation, AUTO, tick.memory, tick.step.decision, tick.step.instructions)
            journal.conclude(tick.observation.tick, tick.outcomes)
    return path


@pytest.fixture(scope="module")
def ticks() -> list[Tick]:
    """Some hundred turns of a small loop."""
    return list(World(3, seed=3, load=1.3, backlog=30).run(200))


@pytest.fixture(scope="module")
def path(ticks: list[Tick], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Their record."""
    return record(tmp_path_factory.mktemp("replay") / "run.journal", ticks)


def test_a_run_is_decided_again_identically(path: Path) -> None:
    """Under its own policy every tick of a record is decided as it was."""
    seen: list[tuple[int, int]] = []
    result = replay(path, progress=lambda done, total: seen.append((done, total)))
    assert result.identical
    assert (result.ticks, result.first_tick, result.last_tick, result.policies) == (200, 1, 200, ("auto",))
    assert seen[-1] == (200, 200)
    assert "identical: 200 ticks" in replay_lines(result)[-1]


def test_a_decision_that_was_changed_is_named(tmp_path: Path, ticks: list[Tick]) -> None:
    """The first tick that differs is named with the field and both values."""
    at = next(at for at, tick in enumerate(ticks) if at > 20 and tick.step.decision.plan.proposals)
    step = ticks[at].step
    plan = step.decision.plan
    wrong = replace(plan.proposals[0], benefit_gpu_s=1.0)
    decision = replace(step.decision, plan=replace(plan, proposals=(wrong, *plan.proposals[1:])))
    changed = [*ticks]
    changed[at] = replace(ticks[at], step=replace(step, decision=decision))
    result = replay(record(tmp_path / "run.journal", changed))
    assert not result.identical
    found = result.difference
    assert found is not None
    assert (found.tick, found.field, found.recorded) == (
        ticks[at].observation.tick,
        "decision.plan.proposals[0].benefit_gpu_s",
        "1.0",
    )
    assert result.ticks == at
    text = "\n".join(replay_lines(result))
    assert f"differs at tick {found.tick}" in text
    assert found.field in text


def test_a_memory_that_was_changed_is_named(tmp_path: Path, ticks: list[Tick]) -> None:
    """A memory that does not follow from the tick before is a difference, too."""
    changed = [*ticks]
    changed[50] = replace(ticks[50], memory=replace(ticks[50].memory, halt=replace(ticks[50].memory.halt, killed=True)))
    result = replay(record(tmp_path / "run.journal", changed))
    assert result.difference is not None
    assert (result.difference.tick, result.difference.field.split(".")[0]) == (51, "memory")


def test_an_instruction_that_was_left_out_is_named(tmp_path: Path, ticks: list[Tick]) -> None:
    """An effect that the record does not have is a difference."""
    at = next(at for at, tick in enumerate(ticks) if tick.step.instructions)
    changed = [*ticks]
    changed[at] = replace(ticks[at], step=replace(ticks[at].step, instructions=()))
    result = replay(record(tmp_path / "run.journal", changed))
    assert result.difference is not None
    assert result.difference.field == "instructions[0]"
    assert result.difference.recorded == "absent"


def test_a_restart_and_another_leader_do_not_disturb(tmp_path: Path) -> None:
    """A record of several runs is replayed across their starts, with the fence of who led."""
    path = tmp_path / "run.journal"
    world = World(2, seed=8, backlog=10)
    memory = ControllerMemory(fence=1)
    for fence in (1, 2, 3):
        memory = replace(memory, fence=fence)
        part = list(world.run(40, memory=memory))
        record(path, part)
        memory = part[-1].step.memory
    result = replay(path)
    assert result.identical, result.difference
    assert result.ticks == 120


def test_the_same_policy_as_candidate_shows_no_difference(path: Path) -> None:
    """Comparing a policy with itself finds nothing: the open loop adds no differences of its own."""
    result = replay(path, replace(AUTO, name="same"))
    assert result.diff is not None
    assert result.diff.ticks_that_differ == 0
    assert result.diff.shifts == ()
    assert result.diff.recorded == result.diff.candidate
    assert result.identical


def test_another_policy_is_compared(path: Path) -> None:
    """A policy that holds no room and fills no gap reserves nothing, and the text says what the comparison is."""
    candidate = replace(
        AUTO,
        name="plain",
        reservation=ReservationRules(depth=0),
        order=Order(short_s=0.0, width_exponent=2.0),
        modes=Modes(Mode.AUTO, Mode.OFF),
        backfill=BackfillRules(),
    )
    result = replay(path, candidate)
    diff = result.diff
    assert diff is not None
    assert result.candidate == "plain"
    assert diff.recorded.reserved > 0 == diff.candidate.reserved
    assert diff.reserved_only_recorded
    assert diff.ticks_that_differ == len(diff.ticks) > 0
    assert any(shift.earlier_s is None or shift.earlier_s != 0 for shift in diff.shifts)
    text = "\n".join(replay_lines(result, rows=3))
    assert OPEN_LOOP in text
    assert f"{diff.ticks_that_differ} of 200 ticks differ" in text
    assert f"and {diff.ticks_that_differ - 3} more ticks" in text
    assert len(text.splitlines()) < 80


def test_a_policy_that_only_recommends_differs_by_what_is_held_back(path: Path) -> None:
    """The same wishes under `recommend` are shown as held back."""
    result = replay(path, replace(AUTO, name="recommend", modes=Modes()))
    assert result.diff is not None
    assert result.diff.candidate.accepted == 0
    assert any("(blocked)" in kind for tick in result.diff.ticks for _, kind, _ in tick.only_candidate)


def test_an_empty_record_is_one_clear_error(tmp_path: Path) -> None:
    """A run that ended before its first tick has nothing to decide again."""
    with pytest.raises(InputError, match="the record holds no ticks, so there is nothing to replay"):
        replay(record(tmp_path / "run.journal", []))


def test_a_missing_record_is_one_clear_error(tmp_path: Path) -> None:
    """Replay names the path that it cannot read."""
    with pytest.raises(InputError, match=r"gone\.journal: no such journal"):
        replay(tmp_path / "gone.journal")


def test_a_bug_in_the_decision_is_seen(path: Path) -> None:
    """A reconciler that decides otherwise than the one that wrote the record is caught."""

    def halting(memory: ControllerMemory, observation: Observation, policy: Policy) -> Step:
        step = reconcile(memory, observation, policy)
        planted = "planted" if observation.tick == 42 else step.decision.halted
        return replace(step, decision=replace(step.decision, halted=planted))

    result = replay(path, decide=halting)
    assert result.difference is not None
    assert (result.difference.tick, result.difference.field) == (42, "decision.halted")
