"""Each guard stands between a planted wish and harm: with it nothing is violated, without it a checker says so."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest

from autopilot.app.runs.world import World
from autopilot.controller import Controller
from autopilot.core.capabilities.actions import ACTIONS
from autopilot.core.capabilities.guards import GUARDS
from autopilot.core.effects.action import Action
from autopilot.core.model.policy import Mode, Policy
from autopilot.core.model.policy.bounds import Protection
from autopilot.settings import shipped_policy
from simulator.checkers import CHECKERS
from simulator.running.simulation import Simulation
from tests.simulation.guard_plants import (
    CALM,
    careless,
    churn,
    cordoned_node,
    cut_gpus,
    demolish,
    destroys,
    full_with_backlog,
    half_empty,
    halves,
    huddle,
    one_wide_one_narrow,
    overrun_service,
    pod_by_pod,
    replicas_like_jobs,
    short_patience,
    sledgehammer,
    slow_to_leave,
    steady_arrivals,
    strangers,
    swap,
    three_hours,
    wide_gangs,
)
from tests.simulation.kit import Setup, run, verdict_codes, without


@dataclass(frozen=True, slots=True, kw_only=True)
class Plant:
    """A guard, the world and wish that need it, why it refuses, and who finds out when it is gone."""

    guard: str
    world: Callable[[], World]
    codes: frozenset[str]
    caught_by: str
    actions: tuple[Action, ...] = ACTIONS
    policy: Policy = CALM
    change: Callable[[Simulation, Controller], None] | None = None


def allowing(**limits: int) -> Policy:
    """The calm policy with another disruption budget."""
    return replace(CALM, budget=replace(CALM.budget, **{"concurrent": 2, **limits}))


UNSHELTERED = replace(CALM, name="unsheltered", protection=Protection(classes=()))
"""No class of service is sheltered as such."""


GAIN = (*ACTIONS, Action("churn", "", churn(1e9)))
VAIN = (*ACTIONS, Action("churn", "", churn(1.0)))

CUTS = (*(action for action in ACTIONS if action.name != "regeometry"), Action("swap", "", swap))
DEMOLISHES = (*CUTS[:-1], Action("demolish", "", demolish))
CUTTING = replace(CALM, modes=replace(CALM.modes, regeometry=Mode.AUTO))

PLANTS = (
    Plant(
        guard="freshness",
        world=steady_arrivals,
        codes=frozenset({"node_unfit"}),
        caught_by="nodes",
        actions=(*ACTIONS, Action("careless", "", careless)),
        change=cordoned_node,
    ),
    Plant(
        guard="protected",
        world=full_with_backlog,
        codes=frozenset({"protected_class", "not_preemptible"}),
        caught_by="protected",
        actions=GAIN,
    ),
    Plant(
        guard="gang",
        world=wide_gangs,
        codes=frozenset({"partial_gang"}),
        caught_by="gangs",
        actions=(Action("halves", "", halves), *ACTIONS),
        change=pod_by_pod,
    ),
    Plant(
        guard="slo",
        world=overrun_service,
        codes=frozenset({"slo_burning"}),
        caught_by="slo",
        actions=GAIN,
        policy=UNSHELTERED,
        change=replicas_like_jobs,
    ),
    Plant(
        guard="blast_radius",
        world=one_wide_one_narrow,
        codes=frozenset({"blast_radius"}),
        caught_by="blast-radius",
        actions=(*ACTIONS, Action("sledgehammer", "", sledgehammer)),
    ),
    Plant(
        guard="min_runtime",
        world=full_with_backlog,
        codes=frozenset({"min_runtime"}),
        caught_by="min-runtime",
        actions=GAIN,
    ),
    Plant(
        guard="stops",
        world=full_with_backlog,
        codes=frozenset({"stopped_often"}),
        caught_by="preemption-rate",
        actions=GAIN,
        policy=replace(allowing(per_node=99, per_tenant=99, per_cluster=99), protection=Protection(most_stops=0)),
    ),
    Plant(guard="hysteresis", world=half_empty, codes=frozenset({"margin"}), caught_by="flapping", actions=VAIN),
    Plant(
        guard="hysteresis",
        world=half_empty,
        codes=frozenset({"margin"}),
        caught_by="preemption-rate",
        actions=VAIN,
        policy=allowing(per_node=99, per_tenant=99, per_cluster=99),
    ),
    Plant(guard="budget", world=full_with_backlog, codes=frozenset({"budget_node"}), caught_by="budgets", actions=GAIN),
    Plant(
        guard="budget",
        world=full_with_backlog,
        codes=frozenset({"budget_tenant"}),
        caught_by="budgets",
        actions=GAIN,
        policy=allowing(per_node=9, per_tenant=1, per_cluster=9),
    ),
    Plant(
        guard="budget",
        world=full_with_backlog,
        codes=frozenset({"budget_cluster"}),
        caught_by="budgets",
        actions=GAIN,
        policy=allowing(per_node=9, per_tenant=9, per_cluster=2),
    ),
    Plant(
        guard="budget",
        world=slow_to_leave,
        codes=frozenset({"budget_concurrent"}),
        caught_by="budgets",
        actions=GAIN,
        policy=allowing(per_node=9, per_tenant=9, per_cluster=18, concurrent=1),
    ),
    Plant(
        guard="regeometry",
        world=cut_gpus,
        codes=frozenset({"dwell", "recut_in_use"}),
        caught_by="regeometry-rate",
        actions=CUTS,
        policy=CUTTING,
        change=three_hours,
    ),
    Plant(
        guard="regeometry",
        world=cut_gpus,
        codes=frozenset({"recut_in_use"}),
        caught_by="capacity",
        actions=DEMOLISHES,
        policy=CUTTING,
        change=destroys,
    ),
    Plant(
        guard="sharing",
        world=strangers,
        codes=frozenset({"share_consent"}),
        caught_by="shared-trust",
        actions=(*ACTIONS, Action("huddle", "", huddle)),
    ),
    Plant(
        guard="mode",
        world=steady_arrivals,
        codes=frozenset({"mode_recommend"}),
        caught_by="modes",
        policy=shipped_policy("recommend"),
        change=short_patience,
    ),
)

by_guard = pytest.mark.parametrize("plant", PLANTS, ids=[plant.guard for plant in PLANTS])


def setup(plant: Plant, **more: Any) -> Setup:
    """How a plant is run; `more` are fields of Setup."""
    return Setup(policy=plant.policy, actions=plant.actions, change=plant.change, **more)


@by_guard
def test_with_the_guard_nothing_is_violated(plant: Plant) -> None:
    """The guard had something to refuse, said why, and no checker found anything."""
    ran = run(plant.world(), setup(plant))
    assert ran.simulated.found.violations == ()
    assert plant.codes <= verdict_codes(ran.tape.moments, plant.guard)


@pytest.mark.soak
@by_guard
def test_without_the_guard_its_checker_finds_the_harm(plant: Plant) -> None:
    """The same run with that guard allowing everything is caught, by the checker that is there for it.

    `make test` has the checkers (test_checkers.py) and the guards (tests/mutants/guards.toml) one by one.
    """
    ran = run(plant.world(), setup(plant, guards=without(plant.guard)))
    assert plant.caught_by in ran.violated, ran.simulated.found.violations
    assert verdict_codes(ran.tape.moments, plant.guard) == set()


def test_every_guard_has_a_planted_bug() -> None:
    """No guard is accepted without one, and each is caught by a checker that exists."""
    # `confidence` keeps from waste, which no checker of safety knows: planted in
    # tests/unit/core/replicas/test_scale_ahead.py; `telemetry` keeps from stops that false measurements suggest, which
    # are allowed as such: planted in tests/unit/core/capabilities/test_new_guards.py; `storm` keeps from effects that
    # are lawful one by one: planted in tests/unit/core/trust/test_storms.py; `promise` keeps from effects that gain too
    # little: planted in tests/unit/core/trust/test_promises.py; `contract` bounds contracts that are lawful one by one:
    # planted in tests/mutants/guards.toml
    assert {plant.guard for plant in PLANTS} == set(dict(GUARDS)) - {
        "confidence",
        "contract",
        "telemetry",
        "storm",
        "promise",
    }
    assert {plant.caught_by for plant in PLANTS} <= set(CHECKERS)


def test_the_guards_let_lawful_disruption_pass() -> None:
    """Churn that pays, lasts and stays within its budget happens: the guards above do not merely refuse everything."""
    ran = run(full_with_backlog(), Setup(policy=CALM, actions=GAIN))
    assert ran.simulated.accounts.preemptions > 0
    assert ran.simulated.run.complete


def test_every_guard_answers_on_every_proposal() -> None:
    """No short circuit: the first refusal does not silence the others."""
    ran = run(full_with_backlog(), Setup(policy=CALM, actions=GAIN))
    names = [name for name, _ in GUARDS]
    proposals = [proposal for moment in ran.tape.moments for proposal in moment.decision.plan.proposals]
    assert any(sum(not verdict.allowed for verdict in proposal.verdicts) > 1 for proposal in proposals)
    for proposal in proposals:
        assert [verdict.guard for verdict in proposal.verdicts] == names
        assert proposal.accepted == all(verdict.allowed for verdict in proposal.verdicts)
