"""What holds for every guard: it reads, it answers with a number, and one planted bug per guard is caught."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from autopilot.core.decision.planner import Planner, plan
from autopilot.core.guards import GUARDS
from autopilot.core.guards.base import Check, allow
from autopilot.core.model.errors import InvariantError
from autopilot.core.model.memory import ControllerMemory
from autopilot.core.model.policy import Mode
from autopilot.core.model.records import Proposal, Verdict
from autopilot.core.placement.whatif import WhatIf
from autopilot.core.planning.context import Context
from autopilot.core.planning.draft import Draft
from autopilot.memory_store import memory_text
from tests.kits.core_world import (
    AUTO,
    Disrupt,
    arrays,
    decide,
    evicted,
    holds,
    started,
    waits,
    with_policy,
    world,
)
from tests.kits.demand_world import LEARNED, forecast, serving

CALM = with_policy(AUTO, hysteresis={"dwell_s": 0.0})


def state_of(ctx: Context) -> dict[str, bytes]:
    """Everything that a guard could change."""
    ledger = {name: getattr(ctx.whatif, name).tobytes() for name in ("gpu_used", "node_free", "instance_used")}
    columns = {name: getattr(ctx, name).tobytes() for name in ("taken", "code", "value", "threshold", "gpu_free_at_s")}
    return ledger | columns | arrays(ctx.observation) | {"memory": memory_text(ctx.memory).encode()}


@pytest.mark.parametrize(("name", "check"), GUARDS, ids=[name for name, _ in GUARDS])
def test_a_guard_reads_and_never_writes(name: str, check: Check) -> None:
    """No guard changes the books, the memory, the observation or the refusals; its verdict bears its name."""
    calls = 0

    def watched(proposal: Proposal, draft: Draft, ctx: Context) -> Verdict:
        nonlocal calls
        calls += 1
        before = state_of(ctx)
        verdict = check(proposal, draft, ctx)
        assert state_of(ctx) == before
        assert verdict.guard == name
        assert verdict.unit
        assert isinstance(verdict.value, float)
        assert isinstance(verdict.threshold, float)
        return verdict

    observation = world("2x8", [holds("v", 4), waits("a", 8), waits("b", 4), waits("s", 1, gpu_milli=300)], 9000.0)
    guards = tuple((guard, watched if guard == name else other) for guard, other in GUARDS)
    for actions in (None, Disrupt("a", ("v",)).table, Disrupt("a", ("v",), contract=True).table):
        more = {} if actions is None else {"actions": actions}
        plan(
            observation,
            CALM,
            ControllerMemory(),
            WhatIf(observation.snapshot),
            frozenset(),
            guards=guards,
            **more,
        )
    assert calls >= 4


@pytest.mark.parametrize("work", [[], [waits("a", 8)]], ids=["nobody", "somebody"])
def test_every_guard_answers_on_a_floor_of_a_service(work: list[Any]) -> None:
    """The wish is about no workload: each guard says so with a number, and none looks at a row that is not there."""
    observation = serving(world("1x8", work, 60.0), forecast({"chat": 9.0}, 60.0))
    policy = with_policy(AUTO, modes={"scale_ahead": Mode.AUTO})
    step = decide(observation, policy, ControllerMemory(services=LEARNED))
    (proposal,) = (each for each in step.decision.plan.proposals if each.kind == "scale")
    assert [verdict.guard for verdict in proposal.verdicts] == [name for name, _ in GUARDS]
    assert all(verdict.allowed and isinstance(verdict.value, float) for verdict in proposal.verdicts)
    assert [each.replicas for each in step.instructions if each.kind == "scale"] == [5]


def test_confidence_alone_holds_a_floor_on_a_forecast_that_has_drifted() -> None:
    """With the guard nothing is asked for; without it the floor goes out."""
    drifted = forecast({"chat": 9.0}, 60.0, drifting=np.array([True]))
    observation = serving(world("1x8", [], 60.0), drifted)
    policy, memory = with_policy(AUTO, modes={"scale_ahead": Mode.AUTO}), ControllerMemory(services=LEARNED)
    assert decide(observation, policy, memory).instructions == ()
    without = tuple((guard, check) for guard, check in GUARDS if guard != "confidence")
    assert [each.kind for each in decide(observation, policy, memory, guards=without).instructions] == ["scale"]


CASES: dict[str, tuple[dict[str, Any], Disrupt]] = {
    "protected": ({"preemptible": False}, Disrupt("w", ("v",))),
    "min_runtime": ({"start_s": 8900.0}, Disrupt("w", ("v",))),
    "hysteresis": ({}, Disrupt("w", ("v",), benefit_gpu_s=0.5)),
    "budget": ({}, Disrupt("w", ("v",))),
    "mode": ({}, Disrupt("w", ("v",))),
}


@pytest.mark.parametrize("name", sorted(CASES))
def test_without_the_guard_the_bug_gets_through(name: str) -> None:
    """A wish that one guard alone holds is held with it and carried out without it."""
    columns, action = CASES[name]
    policy = with_policy(CALM, budget={"per_cluster": 0, "concurrent": 0}) if name == "budget" else CALM
    observation = world("1x8", [holds("v", 8, **columns), waits("w", 8)], 9000.0, kill_switch=False)
    if name == "mode":
        policy = replace(policy, modes=replace(policy.modes, backfill=Mode.RECOMMEND))
    without = tuple((guard, check) for guard, check in GUARDS if guard != name)
    assert evicted(decide(observation, policy, actions=action.table)) == []
    assert evicted(decide(observation, policy, actions=action.table, guards=without)) == ["v"]


def part_of_a_gang(ctx: Context, submit: object) -> None:
    """A planted action that starts a gang below its minimum."""
    from autopilot.core.placement.fit import Fit, find_fit, shape_of

    found = find_fit(
        ctx.whatif,
        shape_of(ctx.observation.snapshot, 0, 2),
        ctx.whatif.node_free,
        ctx.policy.placement,
        ctx.gpu_memory_mib,
    )
    assert isinstance(found, Fit)
    submit(Draft("admit_gang", "admit", 0, 0, found, ctx.now_s, (), 1.0, 0.0, ()))  # type: ignore[operator]


def test_a_part_of_a_gang_is_held_by_the_gang_guard_alone() -> None:
    """A start below the gang's minimum is refused with both numbers; without the guard it would go through."""
    observation = world("1x8", [waits("g", 8)])
    table = (("admit_gang", part_of_a_gang),)
    step = decide(observation, AUTO, actions=table)
    verdict = next(v for v in step.decision.plan.proposals[0].verdicts if not v.allowed)
    assert (verdict.code, verdict.value, verdict.threshold) == ("partial_gang", 2.0, 8.0)
    assert not step.instructions
    without = tuple((guard, check) for guard, check in GUARDS if guard != "gang")
    assert len(started(decide(observation, AUTO, actions=table, guards=without))["g"]) == 2


def test_a_part_of_a_victim_is_never_taken() -> None:
    """A victim that is to lose a part of what it holds is refused."""
    observation = world("1x8", [holds("v", 8), waits("w", 8)], 9000.0)
    ledger = WhatIf(observation.snapshot)
    ledger.layout_of(0)
    ledger.layouts[0] = replace(ledger.layout_of(0), gpu=np.arange(3, dtype=np.int32))
    chosen, _ = plan(observation, CALM, ControllerMemory(), ledger, frozenset(), Disrupt("w", ("v",)).table)
    verdict = next(v for v in chosen.proposals[0].verdicts if v.guard == "gang")
    assert (verdict.code, verdict.value, verdict.threshold) == ("partial_eviction", 3.0, 8.0)


def test_a_double_hand_out_breaks_the_tick() -> None:
    """An action that hands out the same GPUs twice stops the tick, whatever the guards say."""
    everything = tuple((name, lambda *_: allow(name, 0.0, "x", 0.0)) for name, _ in GUARDS)  # noqa: B023
    table = (("admit_gang", part_of_a_gang), ("admit_gang", _same_gpus_again))
    with pytest.raises(InvariantError):
        decide(world("1x8", [waits("g", 8), waits("h", 8)]), AUTO, actions=table, guards=everything)


def _same_gpus_again(ctx: Context, submit: object) -> None:
    from autopilot.core.placement.fit import Fit
    from autopilot.core.placement.whatif import Layout

    layout = Layout(np.arange(2, dtype=np.int32), np.full(2, -1, np.int32), np.full(2, 1000, np.int32))
    spot = Fit(layout, np.array([0], np.int32), 0.0, ())
    submit(Draft("admit_gang", "admit", 1, 1, spot, ctx.now_s, (), 1.0, 0.0, ()))  # type: ignore[operator]


def test_the_planner_is_the_only_door() -> None:
    """A draft beyond the bound of the tick is not judged and not carried out."""
    observation = world("1x8", [waits("g", 1)])
    planner = plan(
        observation,
        with_policy(AUTO, limits={"proposals_per_tick": 1}),
        ControllerMemory(),
        WhatIf(observation.snapshot),
        frozenset(),
    )[1]
    assert isinstance(planner, Planner)
    assert planner.submit(Draft("backfill", "evict", -1, 0, None, 0.0, (), 1.0, 0.0, ())) is False
    assert planner.bound_hit
