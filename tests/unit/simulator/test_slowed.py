"""Replicas that work on their node slows down: their speed, and the latencies that their servers report."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from autopilot.core.model.errors import InputError
from autopilot.core.model.latencies import ReplicaLatency
from simulator.baselines.textbook import fifo_skip
from simulator.inference.services import ServiceFleet
from simulator.running.simulation import Simulation
from simulator.scenarios.loader import load_scenario
from simulator.world.work import Jobs
from tests.conftest import ROOT
from tests.kits.cluster_kit import inventory, make_jobs
from tests.kits.service_kit import calls, deployment, services


def seen(name: str, slowed_by: dict[str, float], pause: bool = False) -> dict[float, ReplicaLatency]:
    """By time: what two replicas of two GPUs on two nodes report; a job of this name runs beside one from 600 s on."""
    jobs: Jobs = make_jobs([(600.0, 1200.0, 2)])
    jobs.name[0] = name
    plan = deployment(low=2, high=2, initial=2, gpus_per_replica=3, slowed_by=slowed_by)
    fleet = ServiceFleet(services(calls(np.arange(1.0, 2400.0, 2.0), 2), 2400.0, plan), jobs, inventory(2, 5))
    simulation = Simulation(inventory(2, 5), jobs, lambda _cluster: fifo_skip())
    fleet.arm(simulation.engine)
    found: dict[float, ReplicaLatency] = {}
    for at_s in (300.0, 905.0, 2105.0):
        simulation.engine.at(at_s, lambda now_s: found.update({now_s: fleet.latencies(now_s)}), essential=False)
    if pause:
        simulation.engine.at(700.0, lambda _now_s: simulation.cluster.paused.update({0: 700.0}), essential=False)
    simulation.run()
    return found


def test_a_replica_is_slower_while_work_of_that_name_runs_on_its_node() -> None:
    """So many times as slow, and no longer when it is gone; the other replica, and other work, are as before."""
    tables = seen("copy", {"copy": 1.7})
    levels = {at_s: np.sort(table.mean_log_s) for at_s, table in tables.items()}
    assert levels[300.0] == pytest.approx([math.log(2.0)] * 2, abs=0.02)
    assert levels[905.0] == pytest.approx([math.log(2.0), math.log(3.4)], abs=0.05)
    assert levels[2105.0] == pytest.approx([math.log(2.0)] * 2, abs=0.02)
    table = tables[905.0]
    assert (table.minute_s.tolist(), table.age_s.tolist()) == ([840.0] * 2, [5.0] * 2)
    assert table.requests.sum() == pytest.approx(30.0, abs=2.0)
    assert seen("other", {"copy": 1.7})[905.0].mean_log_s == pytest.approx([math.log(2.0)] * 2, abs=0.02)


def test_a_pause_ends_it_and_a_service_that_nothing_slows_reports_no_replicas() -> None:
    """The pause of the work beside it, not its end."""
    assert seen("copy", {"copy": 1.7}, pause=True)[905.0].mean_log_s == pytest.approx([math.log(2.0)] * 2, abs=0.02)
    assert not len(seen("copy", {})[905.0].id)


def test_a_fleet_that_nothing_slows_makes_no_event() -> None:
    """An event is a tick of the controller: runs without slow replicas decide at the same times as before."""
    planned: dict[str, int] = {}
    for name, slowed_by in (("none", {}), ("slowed", {"copy": 1.7})):
        plan = deployment(low=2, high=2, initial=2, gpus_per_replica=3, slowed_by=slowed_by)
        fleet = ServiceFleet(services(calls([1.0], 2), 60.0, plan), Jobs(), inventory(2, 5))
        simulation = Simulation(inventory(2, 5), Jobs(), lambda _cluster: fifo_skip())
        fleet.arm(simulation.engine)
        planned[name] = len(simulation.engine._actions)
    assert planned["slowed"] == planned["none"] + 1
    assert planned["none"] == 3  # the first replicas, the autoscaler, and the horizon


def test_factors_of_a_scenario_are_checked(tmp_path: Path) -> None:
    """Above 1, by the name of the field; and the shipped scenario has one."""
    assert load_scenario("noisy").services[0].slowed_by == {"copy": 1.7}
    text = (ROOT / "simulator" / "scenarios" / "noisy.yaml").read_text("utf-8")
    path = tmp_path / "noisy.yaml"
    path.write_text(text.replace("{copy: 1.7}", "{copy: 0.7}"), "utf-8")
    with pytest.raises(InputError, match="slowed_by"):
        load_scenario(str(path))
