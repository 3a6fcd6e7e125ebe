"""What the Jobs of a scenario declare is a workload contract that the controller accepts."""

from __future__ import annotations

import pytest

from autopilot.app.options import SimulateOptions
from autopilot.app.runs.world import build_world
from autopilot.contract import Contract, parse_contract
from autopilot.playground.shapes import contract_of
from simulator.world.cluster import Cluster
from simulator.world.physics import PHYSICS


@pytest.mark.parametrize("scenario", ["no-checkpoint", "reclaim-storm", "spot-cascade", "underdriven"])
def test_every_job_declares_a_valid_contract(scenario: str) -> None:
    """Also work that never writes a checkpoint, which declares no interval."""
    world = build_world(SimulateOptions(scenario=scenario))
    jobs = world.jobs()
    cluster = Cluster(world.inventory, jobs, PHYSICS[world.physics])
    refused = {jobs.id[job]: found for job in range(len(jobs)) if not _accepted(found := contract_of(cluster, job))}
    assert refused == {}


def _accepted(declared: dict[str, str]) -> bool:
    return isinstance(parse_contract(declared), Contract)
