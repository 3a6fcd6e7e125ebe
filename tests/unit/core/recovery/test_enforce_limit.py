"""Limits: run time first warned, then suspended; spending that ran away."""

from __future__ import annotations

from dataclasses import replace
from math import isnan
from typing import Any

import pytest

from autopilot.core.effects.evict import EvictOperation
from autopilot.core.model.memory import ControllerMemory, Step
from autopilot.core.model.policy import Mode, Policy
from autopilot.core.model.policy.bounds import DAY_S
from autopilot.core.model.records import About, Evidence, Note, Save
from autopilot.core.recovery.follow_spending import remember_spending, runaways, spent_by
from autopilot.records.memory import memory_text, read_memory_text
from tests.kits.core_world import AUTO, decide, evicted, holds, observe, snapshot, with_policy
from tests.kits.instructions import asked
from tests.kits.ticking_world import EAGER, tenants
from tests.kits.ticks import follow

HOUR_S = 3600.0


def at(now_s: float, policy: Policy = EAGER, memory: ControllerMemory | None = None, **columns: Any) -> Step:
    """One decision on a gang of 8 GPUs that began at 0 and may run an hour."""
    given = {"limit_s": HOUR_S, **columns}
    return decide(observe(snapshot("1x8", [holds("g", 8, **given)]), now_s), policy, memory)


def test_work_past_its_limit_is_warned_and_then_suspended() -> None:
    """Nothing before the hour; a warning from then on; a checkpoint and the end a quarter of an hour later."""
    early = at(HOUR_S - 1.0)
    assert (evicted(early), early.decision.notes, early.wake_at_s) == ([], (), HOUR_S)
    warned = at(HOUR_S)
    assert evicted(warned) == []
    (note,) = warned.decision.notes
    assert note == Note("limit_warning", About.WORKLOAD, "g", 900.0, "s", (Evidence("limit", HOUR_S, "s"),))
    assert warned.wake_at_s == HOUR_S + 900.0
    (effect,) = at(HOUR_S + 900.0).instructions
    assert (effect.kind, effect.subject.name, effect.operation.takes, asked(effect, EvictOperation).save) == (
        "evict",
        "g",
        "suspend",
        Save.TRY,
    )


def test_a_limit_binds_work_that_may_not_be_preempted() -> None:
    """It is its owner's own word."""
    assert evicted(at(2 * HOUR_S, preemptible=False)) == ["g"]


@pytest.mark.parametrize(
    "columns", [{"slo_class": 0}, {"excluded": True}, {"service": 0}, {"limit_s": float("nan")}], ids=str
)
def test_who_is_let_be(columns: dict[str, Any]) -> None:
    """Sheltered classes, opted-out work, replicas, and work without a declared limit."""
    step = at(9 * HOUR_S, **columns)
    assert (evicted(step), step.decision.notes) == ([], ())


def test_a_gang_that_grew_ran_all_the_while() -> None:
    """The limit counts from its start, not from its last resize."""
    assert evicted(at(2 * HOUR_S, start_s=1.9 * HOUR_S, runs_since_s=0.0)) == ["g"]


def test_below_auto_it_is_recommended_and_nothing_happens() -> None:
    """The shipped simulation policy: the wish is there, and is held by its mode."""
    step = at(2 * HOUR_S, with_policy(EAGER, modes={"enforce_limit": Mode.RECOMMEND}))
    assert step.instructions == ()
    assert {p.action for p in step.decision.plan.proposals} == {"enforce_limit"}


# --- spending ---------------------------------------------------------------------------------------


def spent(days: int, gpus: int, wide: int = 8, now_s: float | None = None) -> ControllerMemory:
    """Memory of a tenant that held `gpus` GPUs for `days` days, and then `wide` for half a day."""
    memory = follow(remember_spending, ControllerMemory(), observe(snapshot("1x8", [holds("g", gpus)]), 0.0), AUTO)
    memory = follow(remember_spending, memory, observe(snapshot("1x8", [holds("g", wide)]), days * DAY_S), AUTO)
    return follow(remember_spending, memory, observe(snapshot("1x8", []), now_s or (days + 0.5) * DAY_S), AUTO)


def test_use_is_counted_by_day_however_the_ticks_fall() -> None:
    """One look after ten days and a look every hour give the same days, to the last bit."""
    snap = snapshot("1x8", [holds("g", 3), holds("h", 2, tenant=1)])
    once = follow(remember_spending, ControllerMemory(), observe(snap, 0.0), AUTO)
    often = once
    for hour in range(1, 240):
        often = follow(remember_spending, often, observe(snap, hour * HOUR_S), AUTO)
    assert often == once
    assert spent_by(once, 10 * DAY_S) == spent_by(often, 10 * DAY_S)
    found = spent_by(once, 10 * DAY_S)["t0"]
    assert (found.last_day_gpu_s, found.mean_day_gpu_s, found.days) == (3 * DAY_S, 3 * DAY_S, 9)


def test_a_tenant_that_spends_as_ever_has_not_run_away() -> None:
    """Its last day is its mean day."""
    memory = spent(20, 4, wide=4)
    assert runaways(memory, 20.5 * DAY_S, EAGER) == {}


def test_a_tenant_whose_day_is_far_above_its_mean_has() -> None:
    """Four GPUs for weeks and eight for half a day: the last 24 hours hold 1.5 times the mean day."""
    found = runaways(spent(20, 4), 20.5 * DAY_S, EAGER)["t0"]
    assert found.last_day_gpu_s / found.mean_day_gpu_s == pytest.approx(1.5)


def test_with_few_days_or_little_use_nobody_is_judged() -> None:
    """A new tenant has no mean; a GPU-hour more than nothing is not worth a word."""
    young = spent_by(spent(5, 4), 5.5 * DAY_S)["t0"]
    assert isnan(young.mean_day_gpu_s)
    assert runaways(spent(5, 4), 5.5 * DAY_S, EAGER) == {}
    small = with_policy(EAGER, enforcement={"spend_floor_gpu_s": 1e9})
    assert runaways(spent(20, 4), 20.5 * DAY_S, small) == {}


def test_days_too_long_ago_are_forgotten_and_memory_goes_through_its_text() -> None:
    """Thirty days and the running one stay."""
    memory = spent(200, 4)
    assert len(memory.spending.spent_gpu_s["t0"]) <= 32
    assert read_memory_text(memory_text(memory), "memory").spending.spent_gpu_s == memory.spending.spent_gpu_s


def test_a_runaway_tenant_is_warned_and_suspended_only_where_the_policy_says_so() -> None:
    """Down to what its queue is guaranteed: the lower priority first, then the one that loses less."""
    memory, now_s = spent(20, 4), 20.5 * DAY_S
    work = [
        holds("old", 2, queue=1, start_s=now_s - 9000.0),
        holds("young", 2, queue=1, start_s=now_s - 100.0),
        holds("dear", 2, queue=1, start_s=now_s - 10.0, priority=5),
        holds("other", 2, queue=2, tenant=1, start_s=now_s - 10.0),
    ]
    observation = observe(snapshot("1x8", work, queues=tenants(("a", 0, 4), ("b", 0, 0))), now_s)
    warned = decide(observation, EAGER, memory)
    assert evicted(warned) == []
    assert ("spending_warning", "t0") in {(note.code, note.subject) for note in warned.decision.notes}
    strict = with_policy(EAGER, enforcement={"spend_suspends": True})
    step = decide(observation, strict, memory)
    assert evicted(step) == ["young"]
    assert {effect.operation.takes for effect in step.instructions} == {"suspend"}


def test_tenants_are_named_in_one_order_whatever_the_order_of_memory() -> None:
    """A memory that was written and read again has its names in another order, and decides alike."""
    memory, now_s = spent(20, 4), 20.5 * DAY_S
    days = memory.spending.spent_gpu_s["t0"]
    observation = observe(snapshot("1x8", [holds("a", 1), holds("b", 1, tenant=1)]), now_s)
    said = []
    for names in (["t0", "t1"], ["t1", "t0"]):
        turned = replace(memory, spending=replace(memory.spending, spent_gpu_s=dict.fromkeys(names, days)))
        said.append([note.subject for note in decide(observation, EAGER, turned).decision.notes])
    assert len(said[0]) == 2
    assert said[0] == said[1]
