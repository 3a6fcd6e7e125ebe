"""What holds for every guard: it reads, it answers with a number, and one planted bug per guard is caught."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import autopilot.core
from autopilot.core.capabilities.guards import GUARDS
from autopilot.core.decision.planner import Planner, plan
from autopilot.core.effects.action import Action
from autopilot.core.effects.admit import AdmitDraft
from autopilot.core.effects.draft import Case, Draft
from autopilot.core.effects.evict import EvictDraft
from autopilot.core.facts.table import rows_of
from autopilot.core.guards.base import Check, allow
from autopilot.core.model.codes import ConditionKind
from autopilot.core.model.errors import InvariantError
from autopilot.core.model.memory import ControllerMemory
from autopilot.core.model.memory.replicas import ReplicasMemory
from autopilot.core.model.policy import Mode
from autopilot.core.model.records import About, Code, Note, Proposal, Verdict
from autopilot.core.placement.search_cache import SearchCache
from autopilot.core.placement.shapes import Fit, Miss
from autopilot.core.placement.whatif import WhatIf
from autopilot.core.planning.context import Context, Memo
from autopilot.core.planning.plan_state import PlanState
from autopilot.core.replicas.scale import Scale
from tests.kits.core_world import (
    AUTO,
    Disrupt,
    decide,
    evicted,
    holds,
    started,
    waits,
    with_policy,
    world,
)
from tests.kits.demand_world import LEARNED, forecast, serving
from tests.kits.instructions import asked

CORE = Path(autopilot.core.__file__).parent
CALM = with_policy(AUTO, hysteresis={"dwell_s": 0.0})


CACHES = {Memo, SearchCache}
"""Answers that are computed at most once. No decision depends on what they hold, so a guard may fill them."""
CACHED = {("Quota", "_running"), ("Quota", "_seen"), ("Quota", "_leaving"), ("QuotaLedger", "entries")}
CACHED |= {("WhatIf", "_order")}
"""The same, as fields. `entries` counts changes of the ledger, also those that were taken back."""


def state_of(value: Any, path: str = "ctx") -> Iterator[tuple[str, object]]:
    """Every value that can be reached from the context, by path, without the caches."""
    if type(value) in CACHES:
        return
    if isinstance(value, np.ndarray):
        yield path, value.tolist() if value.dtype == object else value.tobytes()
    elif isinstance(value, Mapping):
        for key, each in value.items():
            yield from state_of(each, f"{path}[{key!r}]")
        yield path, tuple(value)
    elif isinstance(value, set | frozenset):
        yield path, sorted(value, key=repr)
    elif isinstance(value, list | tuple):
        for number, each in enumerate(value):
            yield from state_of(each, f"{path}[{number}]")
        yield path, len(value)
    elif is_dataclass(value) or isinstance(value, WhatIf):
        names = [each.name for each in fields(value)] if is_dataclass(value) else list(vars(value))
        names += rows_of(type(value))
        for name in names:
            if (type(value).__name__, name) not in CACHED:
                yield from state_of(getattr(value, name), f"{path}.{name}")
    else:
        yield path, repr(value)


def watched(name: str, check: Check, calls: list[str]) -> Check:
    """The guard, with a comparison of the whole context before and after."""

    def watching(proposal: Proposal, draft: Draft, ctx: Context) -> Verdict:
        calls.append(proposal.id)
        before = dict(state_of(ctx))
        verdict = check(proposal, draft, ctx)
        after = dict(state_of(ctx))
        assert {path for path in before | after if before.get(path) != after.get(path)} == set()
        assert verdict.guard == name
        assert verdict.unit
        assert isinstance(verdict.value, float)
        assert isinstance(verdict.threshold, float)
        return verdict

    return watching


def plan_under(name: str, check: Check) -> list[str]:
    """Plans a starting gang and a preemption, weighed and by contract, with this guard watched; its proposals."""
    calls: list[str] = []
    observation = world("2x8", [holds("v", 4), waits("a", 8), waits("b", 4), waits("s", 1, gpu_milli=300)], 9000.0)
    guards = tuple((guard, watched(name, check, calls) if guard == name else other) for guard, other in GUARDS)
    for actions in (None, Disrupt("a", ("v",)).table, Disrupt("a", ("v",), contract=True).table):
        more = {} if actions is None else {"actions": actions}
        plan(observation, CALM, ControllerMemory(), WhatIf(observation.snapshot), frozenset(), guards=guards, **more)
    return calls


@pytest.mark.parametrize(("name", "check"), GUARDS, ids=[name for name, _ in GUARDS])
def test_a_guard_reads_and_never_writes(name: str, check: Check) -> None:
    """No guard changes anything in the context but caches; its verdict has its name and numbers."""
    assert len(plan_under(name, check)) >= 4


WRITES: dict[str, Callable[[Context], object]] = {
    "a note": lambda ctx: ctx.plan.note(Note("planted", About.CONTROLLER)),
    "a timer": lambda ctx: ctx.plan.wake_at(1.0),
    "a condition": lambda ctx: ctx.since_s(ConditionKind.STUCK, 0),
    "a refusal": lambda ctx: ctx.plan.refuse(0, Miss(Code.ORDER, 7.0, 3.0)),
    "a turn": lambda ctx: ctx.plan.take_turn(0),
    "steps": lambda ctx: ctx.plan.spend(1),
    "a recommendation": lambda ctx: ctx.plan.recommend({0: (ctx.whatif.layout_of(0), None)}),
    "a victim that leaves": lambda ctx: ctx.quota.leaving.add(0),
    "quota": lambda ctx: ctx.quota.ledger.add(0, 1.0, (0,), preemptible=True),
    "a GPU's free time": lambda ctx: ctx.plan.foresee(ctx.whatif.layout_of(0), 7.0),
    "the what-if": lambda ctx: ctx.whatif.evict(0),
    "a price": lambda ctx: ctx.lost_gpu_s.__iadd__(1.0),
    "the observation": lambda ctx: ctx.observation.snapshot.workloads.priority.__iadd__(1),
}


@pytest.mark.parametrize("write", sorted(WRITES))
def test_a_guard_that_writes_is_caught(write: str) -> None:
    """A planted guard that changes one thing in the context fails the comparison, whatever it changes."""

    def planted(proposal: Proposal, draft: Draft, ctx: Context) -> Verdict:
        WRITES[write](ctx)
        return allow("slo", 0.0, "planted", 0.0)

    with pytest.raises(AssertionError, match="ctx"):
        plan_under("slo", planted)


MUTATES = {"append", "extend", "insert", "add", "update", "pop", "remove", "discard", "clear", "setdefault", "fill"}


def test_the_plan_state_changes_through_its_methods_only() -> None:
    """No module of the core assigns to a field of `plan`, nor changes one in place."""
    found = []
    for path in sorted(CORE.rglob("*.py")):
        if path.name == "plan_state.py":
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            targets: list[ast.expr] = []
            if isinstance(node, ast.Assign):
                targets = node.targets
            elif isinstance(node, ast.AugAssign):
                targets = [node.target]
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in MUTATES:
                targets = [node.func.value]
            found += [f"{path.name}:{target.lineno}" for target in targets if _in_plan_state(target)]
    assert found == []


def _in_plan_state(target: ast.expr) -> bool:
    """True for `<...>.plan.<field>`, or an element of it."""
    while isinstance(target, ast.Subscript):
        target = target.value
    if not isinstance(target, ast.Attribute) or not isinstance(target.value, ast.Attribute):
        return False
    return target.value.attr == "plan" and target.attr in {each.name for each in fields(PlanState)}


@pytest.mark.parametrize("work", [[], [waits("a", 8)]], ids=["nobody", "somebody"])
def test_every_guard_answers_on_a_floor_of_a_service(work: list[Any]) -> None:
    """The wish is about no workload: each guard says so with a number, and none looks at a row that is not there."""
    observation = serving(world("1x8", work, 60.0), forecast({"chat": 9.0}, 60.0))
    policy = with_policy(AUTO, modes={"scale_ahead": Mode.AUTO})
    step = decide(observation, policy, ControllerMemory(replicas=ReplicasMemory(services=LEARNED)))
    (proposal,) = (each for each in step.decision.plan.proposals if each.kind == "scale")
    assert [verdict.guard for verdict in proposal.verdicts] == [name for name, _ in GUARDS]
    assert all(verdict.allowed and isinstance(verdict.value, float) for verdict in proposal.verdicts)
    assert [asked(each, Scale).replicas for each in step.instructions if each.kind == "scale"] == [5]


def test_confidence_alone_holds_a_floor_on_a_forecast_that_has_drifted() -> None:
    """With the guard nothing is asked for; without it the floor goes out."""
    drifted = forecast({"chat": 9.0}, 60.0, drifting=np.array([True]))
    observation = serving(world("1x8", [], 60.0), drifted)
    policy, memory = (
        with_policy(AUTO, modes={"scale_ahead": Mode.AUTO}),
        ControllerMemory(replicas=ReplicasMemory(services=LEARNED)),
    )
    assert decide(observation, policy, memory).instructions == ()
    without = tuple((guard, check) for guard, check in GUARDS if guard != "confidence")
    assert [each.kind for each in decide(observation, policy, memory, guards=without).instructions] == ["scale"]


CASES: dict[str, tuple[dict[str, Any], Disrupt]] = {
    "protected": ({"preemptible": False}, Disrupt("w", ("v",))),
    "min_runtime": ({"start_s": 8900.0}, Disrupt("w", ("v",))),
    "hysteresis": ({}, Disrupt("w", ("v",), benefit_gpu_s=0.5)),
    "budget": ({}, Disrupt("w", ("v",))),
    "mode": ({}, Disrupt("w", ("v",))),
    "stops": ({}, Disrupt("w", ("v",))),
}


@pytest.mark.parametrize("name", sorted(CASES))
def test_without_the_guard_the_bug_gets_through(name: str) -> None:
    """A wish that one guard alone holds is held with it and carried out without it."""
    columns, action = CASES[name]
    policy = with_policy(CALM, budget={"per_cluster": 0, "concurrent": 0}) if name == "budget" else CALM
    policy = with_policy(policy, protection={"most_stops": 0}) if name == "stops" else policy
    observation = world("1x8", [holds("v", 8, **columns), waits("w", 8)], 9000.0, kill_switch=False)
    if name == "mode":
        policy = replace(policy, modes=replace(policy.modes, backfill=Mode.RECOMMEND))
    without = tuple((guard, check) for guard, check in GUARDS if guard != name)
    assert evicted(decide(observation, policy, actions=action.table)) == []
    assert evicted(decide(observation, policy, actions=action.table, guards=without)) == ["v"]


def part_of_a_gang(ctx: Context, submit: object) -> None:
    """A planted action that starts a gang below its minimum."""
    from autopilot.core.placement.fit import find_fit
    from autopilot.core.placement.shapes import shape_of

    found = find_fit(
        ctx.whatif,
        shape_of(ctx.observation.snapshot, 0, 2),
        ctx.whatif.node_free,
        ctx.policy.placement,
        ctx.gpu_memory_mib,
    )
    assert isinstance(found, Fit)
    submit(_admission(0, found))  # type: ignore[operator]


def _admission(row: int, fit: Fit) -> AdmitDraft:
    return AdmitDraft(
        case=Case("admit_gang", "admit"), row=row, fit=fit, benefit_gpu_s=1.0, cost_gpu_s=0.0, evidence=()
    )


def test_a_part_of_a_gang_is_held_by_the_gang_guard_alone() -> None:
    """A start below the gang's minimum is refused with both numbers; without the guard it would go through."""
    observation = world("1x8", [waits("g", 8)])
    table = (Action("admit_gang", "", part_of_a_gang),)
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
    table = (Action("admit_gang", "", part_of_a_gang), Action("admit_gang", "", _same_gpus_again))
    with pytest.raises(InvariantError):
        decide(world("1x8", [waits("g", 8), waits("h", 8)]), AUTO, actions=table, guards=everything)


def _same_gpus_again(ctx: Context, submit: object) -> None:
    from autopilot.core.placement.whatif import Layout

    layout = Layout(np.arange(2, dtype=np.int32), np.full(2, -1, np.int32), np.full(2, 1000, np.int32))
    spot = Fit(layout, np.array([0], np.int32), 0.0, ())
    submit(_admission(1, spot))  # type: ignore[operator]


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
    case = Case("backfill", "evict")
    draft = EvictDraft(case=case, row=0, benefit_gpu_s=1.0, cost_gpu_s=0.0, evidence=(), evictions=())
    assert planner.submit(draft) is False
    assert planner.bound_hit
