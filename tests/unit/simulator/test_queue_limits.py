"""The limits of queues hold for every baseline and for policies of other people, who know no quota."""

from __future__ import annotations

from math import isfinite

import pytest

from autopilot import api
from simulator.baselines import BASELINES
from simulator.checkers import PHYSICAL, Rules
from simulator.plugins.plugged import Plugged
from simulator.running.engine import Scheduler
from simulator.running.queue_limits import hold_limits
from simulator.running.simulation import Simulated, Simulation
from simulator.specs.clusterqueues import ROOT, QueueSpec
from simulator.world.cluster import Cluster
from simulator.world.work import Jobs
from tests.kits.cluster_kit import gang, inventory

MODEL = inventory().names.gpu_models[0]
QUEUES = (
    QueueSpec("lab", ROOT, {}, 12, 1.0, 0, None),
    QueueSpec("bio", "lab", {}, 8, 1.0, 0, None),
    QueueSpec("edu", "lab", {}, None, 1.0, 0, None, limit_by_model={MODEL: 6}),
)
ROWS = [(("bio", "edu", "free")[n % 3], 7.0 * n, 40.0 + 13 * (n % 5), (2, 4, 1, 6)[n % 4]) for n in range(60)]
OWN_QUOTA = ("kueue", "slurm")
"""They keep limits themselves."""


class Greedy:
    """Starts whatever it is given."""

    def decide(self, view: api.View) -> None:
        for job in view.waiting:
            view.start(job)


def jobs_of(rows: list[tuple[str, float, float, int]]) -> Jobs:
    """Jobs of (tenant, submit_s, duration_s, gpus)."""
    jobs = Jobs()
    for number, (tenant, submit_s, duration_s, gpus) in enumerate(rows):
        jobs.add(f"job-{number}", tenant, gang(gpus), submit_s, duration_s)
    return jobs


def run(name: str, rows: list[tuple[str, float, float, int]], *, held: bool = True) -> Simulated:
    """Two nodes of 8 GPUs, watched by the checker of limits."""

    def make(cluster: Cluster) -> Scheduler:
        if held:
            hold_limits(cluster, QUEUES)
        return Plugged("greedy", Greedy()) if name == "greedy" else BASELINES[name]()

    checkers = (*PHYSICAL, "limits")
    return Simulation(inventory(), jobs_of(rows), make, checkers=checkers, rules=Rules(queues=QUEUES)).run()


@pytest.mark.parametrize("name", ["greedy", *(name for name in BASELINES if name not in OWN_QUOTA)])
def test_no_start_exceeds_a_limit_and_all_work_is_done(name: str) -> None:
    """Limits of a queue, of the queue above it, and of one GPU model; without them the same run exceeds them."""
    done = run(name, ROWS)
    assert not done.found.violations
    if name != "static":  # each tenant has nodes of its own there, and the last one none
        assert sum(map(isfinite, done.cluster.end_s)) == len(ROWS)
        assert run(name, ROWS, held=False).found.violations


@pytest.mark.parametrize(("name", "last"), [("fifo", 10.0), ("fifo-skip", 10.0), ("easy", 10.0), ("las", 10.0)])
def test_work_above_its_limit_does_not_hold_up_other_queues(name: str, last: float) -> None:
    """The second job of bio waits for its limit; the one of another queue behind it starts at once."""
    found = run(name, [("bio", 0.0, 100.0, 8), ("bio", 5.0, 10.0, 8), ("free", 10.0, 10.0, 8)])
    assert found.cluster.first_start_s[2] == last
    assert found.cluster.first_start_s[1] >= 100.0 or name == "las"


def test_a_head_without_room_still_holds_up_a_strict_order() -> None:
    """Under fifo a wide job that lacks GPUs lets nothing pass, also of other queues."""
    found = run("fifo", [("free", 0.0, 100.0, 10), ("free", 5.0, 10.0, 16), ("bio", 10.0, 10.0, 1)])
    assert found.cluster.first_start_s == [0.0, 100.0, 110.0]
