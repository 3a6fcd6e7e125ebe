"""The shipped scenario `pools`: a model with pools for prefill and decode, and one that does both."""

from __future__ import annotations

import numpy as np
import pytest

from autopilot.app.options import SimulateOptions
from autopilot.app.runs.world import build_world
from autopilot.controller import Controller
from autopilot.core.model.objectives import breached, missed_ratio
from autopilot.core.model.objects import ServingRole
from autopilot.core.model.records import Code, Observation
from autopilot.core.model.snapshot import State
from autopilot.core.planning.foresight import capacity_rps
from simulator.running.simulation import Simulation
from tests.kits.core_world import decide
from tests.kits.policies import simulated
from tests.kits.ticking_world import EAGER
from tests.simulation.kit import Ran, Setup, run
from tests.unit.core.capabilities.test_new_guards import Planted, layout

END_S = 1500.0
NAMES = ["llama-prefill", "llama-decode", "chat"]


def ends(simulation: Simulation, _controller: Controller) -> None:
    """After the first burst of `chat`."""
    simulation.engine.horizon_s = END_S


@pytest.fixture(scope="module")
def ran() -> Ran:
    """The first 25 minutes."""
    return run(
        build_world(SimulateOptions(scenario="pools", telemetry="off")),
        Setup(policy=simulated(), change=ends),
    )


def test_each_pool_is_judged_by_its_own_tokens(ran: Ran) -> None:
    """In the burst of `chat` its first tokens are late, and its further ones as the prefills stall them."""
    assert ran.violated == set()
    seen = [moment.observation.snapshot.services for moment in ran.tape.moments]
    assert seen[-1].id.tolist() == NAMES
    assert seen[-1].role.tolist() == [ServingRole.PREFILL, ServingRole.DECODE, ServingRole.WHOLE]
    measured = np.isfinite([[seen[-1].ttft_p99_s, seen[-1].itl_p99_s]])[0]
    assert measured.tolist() == [[True, False, True], [False, True, True]]
    late = [str(name) for table in seen for name in table.id[breached(table)]]
    assert set(late) == {"chat"}
    assert max(float(missed_ratio(table)[0][2]) for table in seen[-20:]) == 1.0
    itl_s = [float(table.itl_p99_s[2]) for table in seen]
    assert np.nanmax(itl_s) > 1.3 * next(each for each in itl_s if each > 0)


def test_the_guard_keeps_a_replica_whose_first_tokens_are_late(ran: Ran) -> None:
    """And lets one of a pool go that keeps its promise."""
    observations = [moment.observation for moment in ran.tape.moments]
    late = next(
        each
        for each in observations
        if breached(each.snapshot.services)[2] and (each.snapshot.workloads.state == State.PENDING).any()
    )
    codes = {name: verdict_on(late, name) for name in NAMES}
    assert codes == {"llama-prefill": Code.OK, "llama-decode": Code.OK, "chat": Code.SLO_BURNING}


def verdict_on(observation: Observation, service: str) -> Code:
    """What the guard `slo` says to the eviction of a replica."""
    work, services = observation.snapshot.workloads, observation.snapshot.services
    (row,) = np.flatnonzero(services.id == service).tolist()
    victim = str(work.id[np.flatnonzero((work.service == row) & (work.state == State.RUNNING))[0]])
    waiting = str(work.id[np.flatnonzero(work.state == State.PENDING)[0]])
    planted = Planted(waiting, {victim: ("evict", None)}, layout(0))
    (proposal,) = decide(observation, EAGER, actions=planted.table).decision.plan.proposals
    return next(each.code for each in proposal.verdicts if each.guard == "slo")


def test_what_a_replica_bears_is_learned_from_the_times_of_its_tokens(ran: Ran) -> None:
    """`scale_ahead` knows the load at which they are in time: no service here promises a latency."""
    policy, known = simulated(), ran.controller.memory.replicas.services
    assert all(np.isnan(ran.tape.moments[-1].observation.snapshot.services.objective_s))
    bears = [capacity_rps(known[f"service-{row}"], policy.scale_ahead.violation_ratio) for row in range(3)]
    assert all(each > 0 for each in bears)
    late = [sum(over for _, _, over in known[f"service-{row}"].loads) for row in range(3)]
    assert late[2] > 100 > late[0] > late[1] == 0.0
