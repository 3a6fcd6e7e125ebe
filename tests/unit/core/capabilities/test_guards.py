"""Every guard: what it lets pass, what it refuses with which code and number, and what a contract waives."""

from __future__ import annotations

from typing import Any

import pytest

from autopilot.core.capabilities.guards import GUARDS
from autopilot.core.decision.planner import plan
from autopilot.core.effects.action import Action
from autopilot.core.model.memory import ControllerMemory
from autopilot.core.model.memory.budget import BudgetMemory, Disruption
from autopilot.core.model.memory.effects import EffectsMemory, InFlight
from autopilot.core.model.memory.halt import HaltMemory
from autopilot.core.model.memory.losses import LossesMemory
from autopilot.core.model.memory.plan import PlanMemory
from autopilot.core.model.memory.starts import StartsMemory
from autopilot.core.model.policy import Mode, Modes, Policy
from autopilot.core.model.records import Code, Command, CommandKind, Observation, Verdict
from autopilot.core.model.stops import StopReason
from autopilot.core.placement.whatif import WhatIf
from tests.kits.core_world import (
    AUTO,
    Disrupt,
    decide,
    evicted,
    holds,
    observe,
    snapshot,
    waits,
    with_policy,
    world,
)
from tests.kits.instructions import instruct
from tests.kits.ticking_world import tenants

NOW = 10_000.0
READY = {"evict/w": 0.0}
CALM = with_policy(AUTO, hysteresis={"dwell_s": 0.0})


def scene(now_s: float = NOW, work: list[Any] | None = None, **more: Any) -> Observation:
    """`w` waits for eight; `v1` and `v2` of one tenant and `v3` of another hold all of two nodes since time 0."""
    default = [holds("v1", 4), holds("v2", 4), holds("v3", 8, tenant=1), waits("w", 8)]
    return world("2x8", work or default, now_s, **more)


def answer(
    guard: str,
    action: Disrupt,
    observation: Observation | None = None,
    policy: Policy = CALM,
    memory: ControllerMemory | None = None,
) -> Verdict:
    """The verdict of one guard on the planted wish."""
    observation = observation or scene()
    ledger = WhatIf(observation.snapshot)
    chosen, _ = plan(observation, policy, memory or ControllerMemory(), ledger, frozenset(), action.table)
    (proposal,) = chosen.proposals
    found = {verdict.guard: verdict for verdict in proposal.verdicts}
    assert set(found) == {name for name, _ in GUARDS}
    verdict = found[guard]
    assert verdict.unit
    assert verdict.threshold == verdict.threshold
    return verdict


WISH = Disrupt("w", ("v1",))
CONTRACT = Disrupt("w", ("v1",), contract=True)


# --- freshness ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("field", "age_s", "code", "limit"),
    [
        ("inventory_age_s", 121.0, Code.STALE_INVENTORY, 120.0),
        ("inventory_age_s", float("inf"), Code.STALE_INVENTORY, 120.0),
        ("inventory_age_s", float("nan"), Code.STALE_INVENTORY, 120.0),
        ("work_age_s", 61.0, Code.STALE_WORK, 60.0),
        ("work_age_s", float("nan"), Code.STALE_WORK, 60.0),
        ("work_age_s", 60.0, Code.OK, 60.0),
    ],
)
def test_freshness_refuses_what_is_old_or_of_unknown_age(field: str, age_s: float, code: Code, limit: float) -> None:
    """Placements and inventory older than policy allows, or of no known age, stop every action, contract or not."""
    snap = snapshot("2x8", [holds("v1", 4), waits("w", 8)])
    object.__setattr__(snap, field, age_s)
    for action in (WISH, CONTRACT):
        verdict = answer("freshness", action, observe(snap, NOW))
        assert (verdict.code, verdict.threshold) == (code, limit)
        assert verdict.allowed is (code == Code.OK)


# --- protected ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("columns", "code"),
    [
        ({"slo_class": 0}, Code.PROTECTED_CLASS),
        ({"excluded": True}, Code.OPTED_OUT),
        ({"preemptible": False}, Code.NOT_PREEMPTIBLE),
        ({}, Code.OK),
        ({"slo_class": 1}, Code.OK),
        ({"preemptible": False, "backfilled": True}, Code.OK),
    ],
)
def test_protected_work_is_never_a_victim(columns: dict[str, Any], code: Code) -> None:
    """Protected classes, opted-out work and work that is not preemptible stay, under contract too."""
    observation = scene(work=[holds("v1", 4, **columns), waits("w", 8)])
    for action in (WISH, CONTRACT):
        verdict = answer("protected", action, observation)
        assert verdict.code == code
        assert verdict.allowed is (code == Code.OK)


def test_what_is_lent_stays_for_all_but_its_owner() -> None:
    """Opted-out work of a queue without a guarantee: neither a weighed preemption nor another contract takes it."""
    queues = tenants(("owner", 0, 8), ("guest", 0, 0))
    observation = scene(work=[holds("v1", 4, queue=2, excluded=True), waits("w", 8, queue=1)], queues=queues)
    for action in (WISH, CONTRACT):
        assert answer("protected", action, observation).code == Code.OPTED_OUT


# --- min_runtime ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("start_s", "code", "ran_s"),
    [(NOW - 899.0, Code.MIN_RUNTIME, 899.0), (NOW - 900.0, Code.OK, 900.0), (float("nan"), Code.MIN_RUNTIME, 0.0)],
)
def test_a_victim_has_its_guaranteed_run_time(start_s: float, code: Code, ran_s: float) -> None:
    """The youngest victim counts; one whose start is unknown counts as just started; a contract waives it."""
    observation = scene(work=[holds("v1", 4, start_s=start_s), holds("v2", 4), waits("w", 8)])
    verdict = answer("min_runtime", Disrupt("w", ("v1", "v2")), observation)
    assert (verdict.code, verdict.value, verdict.threshold) == (code, ran_s, 900.0)
    waived = answer("min_runtime", Disrupt("w", ("v1", "v2"), contract=True), observation)
    assert (waived.allowed, waived.code, waived.value) == (True, Code.WAIVED_CONTRACT, ran_s)
    alone = answer("min_runtime", Disrupt("w", ()), observation)
    assert (alone.allowed, alone.value, alone.unit) == (True, 0.0, "victims")


# --- stops ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("stops", "code"), [(2, Code.OK), (3, Code.STOPPED_OFTEN), (4, Code.STOPPED_OFTEN)])
def test_who_was_stopped_often_is_left_to_run(stops: int, code: Code) -> None:
    """The victim with the most stops counts; contracts waive it, and idle work has no such claim."""
    policy = with_policy(CALM, protection={"most_stops": 3})
    memory = ControllerMemory(losses=LossesMemory(weighed_stops={"v2": stops, "v1": 1}))
    verdict = answer("stops", Disrupt("w", ("v1", "v2")), policy=policy, memory=memory)
    assert (verdict.code, verdict.value, verdict.threshold) == (code, float(stops), 3.0)
    waived = answer("stops", Disrupt("w", ("v1", "v2"), contract=True), policy=policy, memory=memory)
    assert (waived.allowed, waived.code, waived.value) == (True, Code.WAIVED_CONTRACT, float(stops))
    idle = answer("stops", Disrupt("w", ("v2",), takes=StopReason.IDLE), policy=policy, memory=memory)
    assert (idle.allowed, idle.code) == (True, Code.OK)


# --- hysteresis -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("benefit", "code"), [(120.0, Code.MARGIN), (120.1, Code.OK)])
def test_a_disruption_pays_by_the_margin(benefit: float, code: Code) -> None:
    """The benefit exceeds the cost by the margin, or the wish is refused; a contract is not weighed."""
    verdict = answer("hysteresis", Disrupt("w", ("v1",), benefit, 100.0))
    assert verdict.code == code
    if code == Code.MARGIN:
        assert verdict.value == benefit
        assert verdict.threshold == pytest.approx(120.0)
    assert answer("hysteresis", Disrupt("w", ("v1",), benefit, 100.0, contract=True)).code == Code.WAIVED_CONTRACT


def test_a_wish_lasts_before_it_acts() -> None:
    """A disruptive wish is refused until it has been made for the dwell time, and forgotten when it is not repeated."""
    policy = with_policy(AUTO, hysteresis={"dwell_s": 300.0})
    first = decide(scene(), policy, actions=WISH.table)
    assert not first.instructions
    assert first.memory.plan.proposed_since_s == {"backfill/evict/w": NOW}
    assert first.wake_at_s <= NOW + 300.0
    soon = decide(scene(NOW + 299.0, tick=1), policy, first.memory, actions=WISH.table)
    verdict = next(v for v in soon.decision.plan.proposals[0].verdicts if v.guard == "hysteresis")
    assert (verdict.code, verdict.value, verdict.threshold) == (Code.DWELL, 299.0, 300.0)
    due = decide(scene(NOW + 300.0, tick=2), policy, soon.memory, actions=WISH.table)
    assert evicted(due) == ["v1"]
    pause = decide(scene(NOW + 299.0, tick=2), policy, soon.memory, actions=())
    assert pause.memory.plan.proposed_since_s == {}


@pytest.mark.parametrize("dwell_s", [0.1, 0.3, 1 / 3, 299.99])
def test_the_timer_of_a_wish_is_the_instant_at_which_it_acts(dwell_s: float) -> None:
    """A tick at the wake-up time acts, whatever the rounding of the sum."""
    policy = with_policy(AUTO, hysteresis={"dwell_s": dwell_s}, review={"batch_s": 3600.0})
    first = decide(scene(1234.56), policy, actions=WISH.table)
    memory = first.memory
    at_s = 1234.56 + dwell_s
    assert first.wake_at_s == at_s
    assert evicted(
        decide(scene(at_s, tick=1), with_policy(policy, protection={"min_runtime_s": 0.0}), memory, actions=WISH.table)
    ) == ["v1"]


def test_a_victim_is_left_alone_for_a_while() -> None:
    """A workload that was disrupted is not disrupted again before its cool-down is over."""
    memory = ControllerMemory(budget=BudgetMemory(cooled_until_s={"v1": NOW + 40.0}))
    verdict = answer("hysteresis", WISH, memory=memory)
    assert (verdict.code, verdict.value) == (Code.COOL_DOWN, 40.0)
    assert answer("hysteresis", CONTRACT, memory=memory).code == Code.WAIVED_CONTRACT
    assert answer("hysteresis", WISH, memory=ControllerMemory(budget=BudgetMemory(cooled_until_s={"v1": NOW}))).allowed


def test_one_victim_in_its_cool_down_holds_the_whole_wish() -> None:
    """Of several victims the one whose cool-down ends last decides."""
    wanted, memory = (
        Disrupt("w", ("v1", "v2")),
        ControllerMemory(budget=BudgetMemory(cooled_until_s={"v2": NOW + 40.0})),
    )
    verdict = answer("hysteresis", wanted, memory=memory)
    assert (verdict.code, verdict.value) == (Code.COOL_DOWN, 40.0)


def test_a_gang_that_could_not_land_waits_before_it_tries_again() -> None:
    """The cool-down after a start that was given up holds the next wish for that gang, up to its end."""
    verdict = answer(
        "hysteresis", WISH, memory=ControllerMemory(starts=StartsMemory(no_pipelined_until_s={"w": NOW + 40.0}))
    )
    assert (verdict.code, verdict.value) == (Code.GIVEN_UP, 40.0)
    assert answer(
        "hysteresis", WISH, memory=ControllerMemory(starts=StartsMemory(no_pipelined_until_s={"w": NOW}))
    ).allowed


@pytest.mark.parametrize("wish", [WISH, CONTRACT])
def test_what_the_cluster_refused_is_not_tried_again_at_once(wish: Disrupt) -> None:
    """Also by contract: victims would leave for a start that is refused again. Stopping it is another matter."""
    verdict = answer(
        "hysteresis", wish, memory=ControllerMemory(effects=EffectsMemory(refused_until_s={"w": NOW + 40.0}))
    )
    assert (verdict.code, verdict.value) == (Code.REFUSED, 40.0)
    assert answer(
        "hysteresis", wish, memory=ControllerMemory(effects=EffectsMemory(refused_until_s={"w": NOW, "v1": NOW + 40.0}))
    ).allowed


def test_a_wish_for_latency_critical_work_is_confirmed_by_one_more_tick() -> None:
    """It dwells for a second where other work dwells for minutes."""
    policy = with_policy(AUTO, hysteresis={"dwell_s": 300.0})
    urgent = scene(work=[holds("v1", 4), waits("w", 8, slo_class=0)])
    verdict = answer("hysteresis", WISH, urgent, policy)
    assert (verdict.code, verdict.value, verdict.threshold) == (Code.DWELL, 0.0, 1.0)
    memory = ControllerMemory(plan=PlanMemory(proposed_since_s={"backfill/evict/w": NOW - 1.0}))
    assert answer("hysteresis", WISH, urgent, policy, memory).allowed


# --- budget ---------------------------------------------------------------------------------------


def spent(
    count: int, tenant: str = "x", node: str = "elsewhere", at_s: float = NOW - 10.0, *, contract: bool = False
) -> ControllerMemory:
    """A ledger with `count` disruptions."""
    return ControllerMemory(
        budget=BudgetMemory(disrupted=tuple(Disruption(at_s, f"w{n}", tenant, (node,), contract) for n in range(count)))
    )


def under_way(count: int, *, contract: bool = False) -> ControllerMemory:
    """Evictions in flight."""
    entries = {}
    for number in range(count):
        effect = instruct(f"other{number}", id=f"e{number}", deadline_s=NOW + 99.0)
        entries[effect.id] = InFlight(effect, "issued", NOW, "backfill", "t", 1.0, contract)
    return ControllerMemory(effects=EffectsMemory(in_flight=entries))


@pytest.mark.parametrize(
    ("memory", "code", "value", "limit"),
    [
        (spent(19), Code.OK, 20.0, 20.0),
        (spent(20), Code.BUDGET_CLUSTER, 21.0, 20.0),
        (spent(20, at_s=NOW - 3600.0), Code.OK, 1.0, 20.0),
        (spent(20, contract=True), Code.OK, 1.0, 20.0),
        (spent(4, "t0"), Code.OK, 5.0, 20.0),
        (spent(5, "t0"), Code.BUDGET_TENANT, 6.0, 5.0),
        (spent(1, node="node-0"), Code.OK, 2.0, 20.0),
        (spent(2, node="node-0"), Code.BUDGET_NODE, 3.0, 2.0),
        (under_way(3), Code.OK, 1.0, 20.0),
        (under_way(4), Code.BUDGET_CONCURRENT, 5.0, 4.0),
        (under_way(4, contract=True), Code.OK, 1.0, 20.0),
    ],
)
def test_the_budget_bounds_disruption(memory: ControllerMemory, code: Code, value: float, limit: float) -> None:
    """Cluster, tenant, node and concurrency each have a bound; contractual entries and old ones do not count."""
    verdict = answer("budget", WISH, memory=memory)
    assert (verdict.code, verdict.value, verdict.threshold) == (code, value, limit)
    waived = answer("budget", CONTRACT, memory=memory)
    assert (waived.allowed, waived.code) == (True, Code.WAIVED_CONTRACT)


def test_the_busiest_node_of_a_victim_decides() -> None:
    """A victim on two nodes, of which one was disrupted twice already."""
    wide = scene(work=[holds("v1", 8, on=[0, 1, 2, 3, 8, 9, 10, 11], gpus_per_member=4), waits("w", 8)])
    for node in ("node-0", "node-1"):
        verdict = answer("budget", WISH, wide, memory=spent(2, node=node))
        assert (verdict.code, verdict.value, verdict.threshold) == (Code.BUDGET_NODE, 3.0, 2.0)


def test_what_one_tick_accepts_counts_at_once() -> None:
    """Two wishes of one tick cannot spend the same room in the budget."""
    policy = with_policy(CALM, budget={"concurrent": 1, "per_cluster": 5})
    two = (Action("backfill", "", Disrupt("w", ("v1",))), Action("backfill", "", Disrupt("w", ("v3",))))
    step = decide(scene(), policy, actions=two)
    assert evicted(step) == ["v1"]
    assert [p.accepted for p in step.decision.plan.proposals] == [True, False]


def test_the_ledger_opens_again_when_its_entries_leave_the_window() -> None:
    """A wish held by the budget is looked at again when an entry leaves the window, and acts then."""
    policy = with_policy(CALM, review={"batch_s": 3600.0})
    memory = spent(20, at_s=NOW - 3500.0)
    held = decide(scene(), policy, memory, actions=WISH.table)
    assert not held.instructions
    assert held.wake_at_s == NOW + 100.0
    assert evicted(decide(scene(held.wake_at_s, tick=1), policy, held.memory, actions=WISH.table)) == ["v1"]


# --- mode -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mode", "code"),
    [
        (Mode.OFF, Code.MODE_OFF),
        (Mode.OBSERVE, Code.MODE_OBSERVE),
        (Mode.RECOMMEND, Code.MODE_RECOMMEND),
        (Mode.APPROVE, Code.NEEDS_APPROVAL),
        (Mode.AUTO, Code.OK),
    ],
)
def test_the_mode_decides_how_far_an_action_goes(mode: Mode, code: Code) -> None:
    """Only `auto` acts by itself; a contract does not lift the mode."""
    policy = with_policy(CALM)
    object.__setattr__(policy, "modes", Modes(mode, mode))
    for action in (WISH, CONTRACT):
        verdict = answer("mode", action, policy=policy)
        assert verdict.code == code
        assert verdict.allowed is (code == Code.OK)


def test_the_kill_switch_and_a_pause_hold_everything() -> None:
    """With the switch on (or not readable), a kill command given, or a pause, nothing is allowed."""
    assert answer("mode", CONTRACT, scene(kill_switch=True)).code == Code.KILL_SWITCH
    assert answer("mode", CONTRACT, memory=ControllerMemory(halt=HaltMemory(killed=True))).code == Code.KILL_SWITCH
    paused = ControllerMemory(halt=HaltMemory(paused_reason="x", paused_since_s=NOW - 5.0))
    verdict = answer("mode", CONTRACT, memory=paused)
    assert (verdict.code, verdict.value, verdict.threshold) == (Code.PAUSED, 5.0, 1800.0)


# --- gang -----------------------------------------------------------------------------------------


def test_every_guard_answers_on_every_proposal() -> None:
    """A wish that several guards refuse carries all of their answers."""
    memory = spent(20)
    observation = scene(kill_switch=True, work=[holds("v1", 4, preemptible=False, start_s=NOW), waits("w", 8)])
    step = decide(observation, CALM, memory, actions=WISH.table)
    (proposal,) = step.decision.plan.proposals
    assert [verdict.guard for verdict in proposal.verdicts] == [name for name, _ in GUARDS]
    assert {v.code for v in proposal.verdicts if not v.allowed} == {
        Code.NOT_PREEMPTIBLE,
        Code.MIN_RUNTIME,
        Code.BUDGET_CLUSTER,
        Code.KILL_SWITCH,
    }


def test_a_victim_is_taken_once() -> None:
    """A gang that another proposal evicts, or that is already being evicted, cannot be a victim."""
    twice = Disrupt("w", ("v1",))
    step = decide(scene(), CALM, actions=(*WISH.table, *twice.table))
    assert evicted(step) == ["v1"]
    assert twice.answers == [False]
    command = Command(CommandKind.RESUME, "me", NOW)
    again = decide(scene(NOW + 1.0, tick=1, commands=(command,)), CALM, step.memory, actions=WISH.table)
    assert evicted(again) == []
