"""The decision as a function: pure, equal for equal inputs, unmoved by ticks in between, alive after a restart."""

from __future__ import annotations

from dataclasses import replace
from math import inf, isnan, nan

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autopilot.core.decision import reconciler
from autopilot.core.decision.reconciler import reconcile
from autopilot.core.model.records import Decision, Observation
from autopilot.records.memory import memory_text, read_memory_text
from autopilot.records.replay.unequal import first_unequal
from tests.kits.core_world import AUTO, arrays, with_policy
from tests.kits.ticking_world import ALL_AUTO, tenants
from tests.properties.strategies import Case, Held, Loop, cases, loop_of

few = settings(max_examples=3)


def played(case: Case, store: Held | None = None) -> Loop:
    """The whole run of a case."""
    loop = loop_of(case, store=store)
    loop.engine.run()
    return loop


@pytest.mark.parametrize("exact", [True, False], ids=["exact", "last-two"])
@given(case=cases())
@few
def test_a_tick_that_nothing_called_for_changes_nothing(case: Case, exact: bool) -> None:
    """Ticks between events and before `wake_at_s` leave the stream of effects as it is: time, kind, workload, GPUs."""
    case = replace(case, exact=exact)
    calm = played(replace(case, extra_s=()))
    restless = played(case)
    assert calm.effects == restless.effects


TREE = tenants(("a", 0, 2), ("b", 0, 0), weight={"b": 2.0})
TREE = replace(TREE, guarantee=TREE.guarantee[:, :1])


@given(case=cases(), half_life_s=st.sampled_from([600.0, 86_400.0]), min_runtime_s=st.sampled_from([0.0, 500.0]))
@few
def test_a_tick_that_nothing_called_for_changes_nothing_between_tenants(
    case: Case, half_life_s: float, min_runtime_s: float
) -> None:
    """The same where queues take from each other, and past use moves their shares with time."""
    policy = with_policy(
        replace(case.policy, modes=ALL_AUTO.modes),
        tenancy={"usage_half_life_s": half_life_s},
        hysteresis={"dwell_s": 100.0, "cool_down_s": 400.0},
        protection={"min_runtime_s": min_runtime_s},
        preemption={"priority_weight": 100.0},
    )
    case = replace(case, policy=policy, exact=True)
    calm, restless = loop_of(replace(case, extra_s=()), tree=TREE), loop_of(case, tree=TREE)
    calm.engine.run()
    restless.engine.run()
    assert calm.effects == restless.effects


@given(case=cases())
@few
def test_the_decision_is_pure_and_the_same_twice(case: Case) -> None:
    """Equal inputs give equal steps, and no input is written to."""
    seen: list[tuple[Observation, Decision]] = []
    loop = loop_of(case, on_decision=lambda observation, decision: seen.append((observation, decision)))
    loop.engine.run()
    memory = None
    for observation, decision in seen[:12]:
        memory = memory or replace(loop.controller.memory.__class__(), fence=1)
        frozen, text = arrays(observation), memory_text(memory)
        one = reconcile(memory, observation, case.policy)
        two = reconcile(memory, observation, case.policy)
        assert first_unequal(one, two, "step") is None
        assert first_unequal(one.decision, decision, "decision") is None
        assert arrays(observation) == frozen
        assert memory_text(memory) == text
        memory = one.memory


class Forgetful(Held):
    """A memory store that keeps text, as a file does."""

    text = ""

    def save(self, memory: object) -> None:
        """Write it down."""
        self.text = memory_text(memory)  # type: ignore[arg-type]


@given(case=cases(), at=st.integers(0, 12))
@few
def test_a_restart_from_saved_memory_decides_the_same(case: Case, at: int) -> None:
    """A controller that is replaced in mid-run by one that reads its saved memory leaves the effects as they are."""
    case = replace(case, exact=True)
    plain = played(replace(case, extra_s=()))
    store = Forgetful(case.policy)
    loop = loop_of(replace(case, extra_s=()), store=store)
    ticks = 0
    tick = loop.controller.tick

    def restarting(now_s: float) -> object:
        nonlocal ticks
        ticks += 1
        if ticks == at + 1 and store.text:
            loop.controller.memory = read_memory_text(store.text, "memory.json")
            loop.controller._outcomes = ()  # a new process knows of none
        return tick(now_s)

    loop.controller.tick = restarting  # type: ignore[method-assign, assignment]
    loop.engine.run()
    assert loop.effects == plain.effects


@given(case=cases())
@few
def test_work_is_started_whole_and_once(case: Case) -> None:
    """Every start has at least the minimum of its gang, on different GPUs, and none while the gang holds some."""
    loop = played(case)
    running: set[str] = set()
    jobs = loop.cluster.jobs
    rows = {name: row for row, name in enumerate(jobs.id)}
    for effect in loop.effects:
        if effect.kind == "evict":
            running.discard(effect.workload)
            continue
        shape = jobs.shape_of(rows[effect.workload])
        assert shape.min_gpus <= len(set(effect.slots)) == len(effect.slots) <= shape.gpus
        assert effect.workload not in running
        running.add(effect.workload)


@given(case=cases())
@few
def test_everything_that_fits_runs_in_the_end(case: Case) -> None:
    """Without a hard limit every gang has ended when the run is over: nothing is forgotten, nothing is stuck."""
    jobs = [job for job in case.jobs if job[2] <= 4 * case.nodes]
    case = replace(case, jobs=tuple(jobs), queue_limit=-1, extra_s=())
    loop = loop_of(case)
    run = loop.engine.run()
    assert not run.stuck
    assert not any(isnan(end_s) for end_s in loop.cluster.end_s), case


def test_a_forgotten_timer_would_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """A gang that passes a reservation when it is overdue starts at that review; without the timer the streams
    differ.
    """
    policy = with_policy(
        AUTO,
        review={"batch_s": 60.0},
        reservation={
            "depth": 1,
            "whole_nodes_only": False,
            "firm_after_s": 86_400.0,
            "max_spread_ratio": 1e6,
        },
        order={"short_s": 0.0, "max_wait_s": 600.0, "aging_exponent": 0.0},
    )
    jobs = ((0.0, 5000.0, 2), (0.0, 200.0, 2), (5.0, 9000.0, 2), (100.0, 100.0, 4))
    rows = tuple((submit_s, run_s, gpus, 0, nan, 2) for submit_s, run_s, gpus in jobs)
    case = Case(1, rows, policy, exact=True, extra_s=tuple(float(at) for at in range(25, 5000, 50)))
    calm, restless = played(replace(case, extra_s=())).effects, played(case).effects
    assert calm == restless
    assert {effect.workload: effect.at_s for effect in calm}["j2"] == 660.0
    monkeypatch.setattr(reconciler, "wake_at", lambda *_: inf)
    assert played(replace(case, extra_s=())).effects != played(case).effects
