"""Use over a run by pool, tenant, queue and service: the groups of a level add up to the totals of the run."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from autopilot.app.runs.group_use import group_use
from autopilot.app.runs.recorder import StayRecorder
from simulator.baselines import BASELINES
from simulator.running.simulation import Simulated, Simulation
from simulator.signals.programs import behaviours_of
from simulator.specs.clusterqueues import QueueSpec
from simulator.world.work import Jobs
from tests.kits.cluster_kit import gang, inventory


@dataclass(frozen=True)
class Parent:
    """The part of a queue that is read here."""

    name: str
    parent: str


QUEUES: tuple[QueueSpec, ...] = (Parent("org", "root"), Parent("a", "org"), Parent("b", "root"))  # type: ignore[assignment]


def ran() -> tuple[StayRecorder, Simulated]:
    """Twelve trainings of two tenants on two nodes."""
    jobs = Jobs()
    for number in range(12):
        jobs.add(f"j{number}", "ab"[number % 2], gang((2, 4, 8)[number % 3]), 500.0 * number, 4000.0, kind="train")
    simulation = Simulation(inventory(2, 8), jobs, lambda _cluster: BASELINES["fifo-skip"]())
    stays = StayRecorder(simulation.cluster)
    return stays, simulation.run()


def test_the_groups_add_up_to_the_run() -> None:
    """Held and active GPU-seconds of tenants and of pools are those of the run; a queue includes those below it."""
    stays, simulated = ran()
    stays.know(*behaviours_of(3, simulated.cluster.jobs))
    found = group_use(stays, simulated.cluster, QUEUES, (), simulated.run.end_s)
    assert set(found) == {"pool", "tenant", "queue", "workload"}
    for level in ("pool", "tenant"):
        held = sum(row["held_gpu_s"] or 0.0 for row in found[level].values())
        active = sum(row["active_gpu_s"] or 0.0 for row in found[level].values())
        assert held == pytest.approx(12 * 4000.0 * (2 + 4 + 8) / 3)
        assert active == pytest.approx(stays.active_gpu_s())
    assert found["queue"]["org"] == found["queue"]["a"] == found["tenant"]["a"]
    a = found["tenant"]["a"]
    assert a["held_gpu_s"] is not None
    assert a["active_gpu_s"] is not None
    assert a["gap_gpu_s"] == pytest.approx(a["held_gpu_s"] - a["active_gpu_s"])
    assert a["hardware_ratio"] == pytest.approx(a["active_gpu_s"] / a["held_gpu_s"])
    assert a["real_utilization_ratio"] == pytest.approx(a["active_gpu_s"] / (16 * simulated.run.end_s))


def test_the_workloads_with_the_largest_gap_come_first() -> None:
    """All stays of a workload count, and those of replicas do not."""
    stays, simulated = ran()
    stays.know(*behaviours_of(3, simulated.cluster.jobs))
    simulated.cluster.jobs.service[2] = 0
    found = group_use(stays, simulated.cluster, (), ("chat",), simulated.run.end_s)
    gaps = [row["gap_gpu_s"] or 0.0 for row in found["workload"].values()]
    assert len(gaps) == 11
    assert gaps == sorted(gaps, reverse=True)
    assert "j2" not in found["workload"]
    whole = sum(row["gap_gpu_s"] or 0.0 for row in found["tenant"].values())
    assert sum(gaps) + (found["service"]["chat"]["gap_gpu_s"] or 0.0) == pytest.approx(whole)


def test_without_telemetry_there_is_no_use() -> None:
    """What was not measured is absent, not zero."""
    stays, simulated = ran()
    assert group_use(stays, simulated.cluster, QUEUES, (), simulated.run.end_s) == {}
    assert np.isnan(stays.held_and_active()[1]).all()
