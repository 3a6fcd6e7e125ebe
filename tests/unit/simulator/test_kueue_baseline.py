"""The `kueue` baseline on worlds made by hand: who borrows, who is displaced, who passes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from math import inf, isfinite
from pathlib import Path

import numpy as np
import pytest

from autopilot.app.options import SimulateOptions
from autopilot.app.runs.simulate import simulate
from autopilot.core.model.snapshot import Displace
from autopilot.core.quota.rules import cohort
from autopilot.core.quota.rules.base import Claim, Refusal
from simulator.baselines.kueue import Kueue
from simulator.running.engine import Scheduler
from simulator.running.simulation import Simulated, Simulation
from simulator.specs.clusterqueues import ROOT, QueueSpec
from simulator.world.physics import CHARGED, IDEAL, REAL, Physics
from simulator.world.work import Jobs
from tests.kits.cluster_kit import gang, inventory, pool, pools

MODEL = "A100-80GB"

Row = tuple[str, float, float, int]
"""Tenant, submit time, duration, GPUs."""


def queue(name: str, gpus: int = 0, parent: str = ROOT, limit: int | None = None) -> QueueSpec:
    """A queue that is guaranteed `gpus`."""
    return QueueSpec(name=name, parent=parent, guarantee={MODEL: gpus}, limit=limit, weight=1.0, priority=0, order=None)


def jobs_of(rows: Sequence[Row], priorities: Sequence[int] = ()) -> Jobs:
    """One job a row; members of up to 8 GPUs, priority 0 unless told."""
    jobs = Jobs()
    for number, (tenant, submit_s, duration_s, gpus) in enumerate(rows):
        priority = priorities[number] if priorities else 0
        jobs.add(f"job-{number}", tenant, gang(gpus), submit_s, duration_s, priority=priority)
    return jobs


def play(
    rows: Sequence[Row],
    queues: Sequence[QueueSpec],
    nodes: int = 2,
    *,
    physics: Physics = IDEAL,
    priorities: Sequence[int] = (),
    scheduler: Scheduler | None = None,
) -> Simulated:
    """One run on nodes of 8 GPUs, checked."""
    simulated = Simulation(
        inventory(nodes, 8), jobs_of(rows, priorities), lambda _: scheduler or Kueue(queues), physics
    ).run()
    assert simulated.found.violations == ()
    return simulated


def starts(simulated: Simulated) -> list[float]:
    """First starts by job."""
    return simulated.cluster.first_start_s


# --- quota and borrowing -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("queues", "second"),
    [
        pytest.param([queue("a", 8), queue("b", 8)], 0, id="what the other queue does not use"),
        pytest.param([queue("a", 8)], 0, id="what nobody is guaranteed"),
        pytest.param([], 0, id="without any queue"),
        pytest.param([queue("a", 8, limit=8), queue("b", 8)], 100, id="up to the hard limit"),
    ],
)
def test_a_queue_borrows_what_is_idle(queues: list[QueueSpec], second: float) -> None:
    """Beyond its guarantee a queue uses what others leave, up to its limit."""
    assert starts(play([("a", 0, 100, 8), ("a", 0, 100, 8)], queues)) == [0, second]


def test_a_guarantee_of_one_model_is_not_paid_in_another() -> None:
    """The owner of the H100s takes them back; the borrower on the A100s stays."""
    hardware = pools(pool("old", nodes=1, gpus=8), pool("new", nodes=1, gpus=8, model="H100-80GB"))
    jobs = Jobs()
    for number in range(2):
        jobs.add(f"lent-{number}", "b", gang(8), 0.0, 100.0)
    code = hardware.names.gpu_models.index("H100-80GB")
    jobs.add("owner", "a", gang(8, models=1 << code), 10.0, 50.0)
    owner = QueueSpec("a", ROOT, {"H100-80GB": 8}, None, 1.0, 0, None)
    simulated = Simulation(hardware, jobs, lambda _: Kueue([owner])).run()
    assert starts(simulated) == [0, 0, 10]
    assert simulated.cluster.evictions == [0, 1, 0]


def test_a_gang_counts_for_the_model_that_it_runs_on() -> None:
    """It might have run on either; it took the H100s of its queue, so the next one that needs them must wait."""
    hardware = pools(pool("new", nodes=2, gpus=8, model="H100-80GB"), pool("old", nodes=1, gpus=8))
    only_new = 1 << hardware.names.gpu_models.index("H100-80GB")
    jobs = Jobs()
    jobs.add("either", "a", gang(8), 0.0, 100.0)
    jobs.add("borrower", "b", gang(8), 1.0, 200.0)
    jobs.add("new", "a", gang(8, models=only_new), 2.0, 50.0)
    owner = QueueSpec("a", ROOT, {"H100-80GB": 8, MODEL: 8}, None, 1.0, 0, None)
    simulated = Simulation(hardware, jobs, lambda _: Kueue([owner])).run()
    assert starts(simulated) == [0, 1, 100]
    assert simulated.accounts.preemptions == 0


def test_a_queue_borrows_up_to_its_borrow_limit() -> None:
    """Eight of its own and four more; the other four stay idle, unused."""
    queues = [replace(queue("a", 8), borrow_limit=4), queue("b", 8)]
    assert starts(play([("a", 0, 100, 4), ("a", 0, 100, 8), ("a", 0, 100, 4)], queues)) == [0, 0, 100]


def test_a_queue_keeps_what_it_does_not_lend() -> None:
    """The owner sleeps; two of its eight may be borrowed."""
    queues = [queue("a", 8), replace(queue("b", 8), lend_limit=2)]
    assert starts(play([("a", 0, 100, 8), ("a", 0, 100, 2), ("a", 0, 100, 2)], queues)) == [0, 0, 100]


def test_a_limit_of_one_model_binds_that_model() -> None:
    """Four A100s are the most; the fifth and sixth GPU are of the other model, or are waited for."""
    hardware = pools(pool("new", nodes=1, gpus=8, model="H100-80GB"), pool("old", nodes=1, gpus=8))
    jobs = Jobs()
    code = hardware.names.gpu_models.index(MODEL)
    for number in range(3):
        jobs.add(f"old-{number}", "a", gang(2, models=1 << code), 0.0, 100.0)
    bound = QueueSpec("a", ROOT, {}, None, 1.0, 0, None, limit_by_model={MODEL: 4})
    simulated = Simulation(hardware, jobs, lambda _: Kueue([bound])).run()
    assert starts(simulated) == [0, 0, 100]


def test_in_a_strict_queue_nobody_passes_a_gang_that_cannot_start() -> None:
    """The gang of sixteen holds up the single GPU behind it; in a queue that is not strict it does not."""
    rows: list[Row] = [("b", 0, 100, 1), ("a", 1, 50, 16), ("a", 2, 50, 1)]
    assert starts(play(rows, [queue("a"), queue("b")])) == [0, 100, 2]
    assert starts(play(rows, [replace(queue("a"), strict=True), queue("b")])) == [0, 100, 150]


def test_in_a_strict_queue_a_higher_priority_goes_first() -> None:
    """What comes later and is more urgent is the new head: it is not held up."""
    rows: list[Row] = [("b", 0, 100, 1), ("a", 1, 50, 16), ("a", 2, 50, 1)]
    simulated = play(rows, [replace(queue("a"), strict=True), queue("b")], priorities=[0, 0, 1])
    assert starts(simulated) == [0, 100, 2]


# --- reclaim -----------------------------------------------------------------------------------------------


def test_the_owner_takes_back_from_the_youngest_borrower() -> None:
    """It starts at once; the displaced gang goes on with its progress when there is room."""
    rows: list[Row] = [("a", 0, 100, 8), ("a", 1, 100, 8), ("b", 11, 50, 8)]
    simulated = play(rows, [queue("a", 8), queue("b", 8)])
    assert starts(simulated) == [0, 1, 11]
    assert simulated.cluster.end_s == [100, 151, 61]
    assert (simulated.cluster.evictions, simulated.accounts.preemptions) == ([0, 1, 0], 1)


def test_a_displaced_gang_pays_what_the_physics_says() -> None:
    """Charged: it repeats a minute of work and restores for half a minute."""
    rows: list[Row] = [("a", 0, 1000, 8), ("a", 1, 1000, 8), ("b", 101, 50, 8)]
    simulated = play(rows, [queue("a", 8), queue("b", 8)], physics=CHARGED)
    assert simulated.cluster.end_s == [1000, 151 + 30 + 1000 - (100 - 60), 151]


def test_nobody_takes_from_a_queue_within_its_guarantee() -> None:
    """What the owner uses is its own, whatever waits elsewhere."""
    rows: list[Row] = [("b", 0, 100, 8), ("a", 1, 100, 8), ("a", 2, 100, 8)]
    simulated = play(rows, [queue("a", 8), queue("b", 8)], priorities=[0, 5, 5])
    assert starts(simulated) == [0, 1, 100]
    assert simulated.accounts.preemptions == 0


def test_a_queue_that_never_reclaims_waits() -> None:
    """Its own setting, in place of the one that Kueue recommends."""
    rows: list[Row] = [("a", 0, 100, 8), ("a", 1, 100, 8), ("b", 11, 50, 8)]
    simulated = play(rows, [queue("a", 8), replace(queue("b", 8), reclaim=Displace.NEVER)])
    assert (starts(simulated), simulated.accounts.preemptions) == ([0, 1, 100], 0)


def test_a_queue_may_displace_while_it_borrows_where_it_is_set_so() -> None:
    """Lower priorities up to the one that is stated: the first borrower is too important, the second is not."""
    rows: list[Row] = [("c", 0, 100, 8), ("c", 1, 100, 8), ("b", 11, 50, 8)]
    borrows = replace(queue("b"), while_borrowing=Displace.LOWER, while_borrowing_priority=3)
    simulated = play(rows, [queue("c"), borrows], priorities=[3, 4, 9])
    assert (starts(simulated), simulated.cluster.evictions) == ([0, 1, 11], [1, 0, 0])


def test_a_gang_wider_than_the_guarantee_waits_for_idle_quota() -> None:
    """It may borrow, and preempts nothing for that."""
    rows: list[Row] = [("b", 0, 100, 8), ("a", 1, 50, 16)]
    simulated = play(rows, [queue("a", 8)])
    assert starts(simulated) == [0, 100]
    assert simulated.accounts.preemptions == 0


def test_a_cohort_takes_back_for_its_queues() -> None:
    """Queues below one parent share its guarantee: up to that they take back together, and borrow beyond it."""
    queues = [queue("team", 16), queue("a", 8, "team"), queue("b", 0, "team")]
    lent: list[Row] = [("other", 0, 100, 8), ("other", 1, 100, 8), ("other", 2, 100, 8)]
    own: list[Row] = [("b", 10, 500, 8), ("b", 11, 500, 8), ("b", 12, 500, 8)]
    simulated = play(lent + own, queues, nodes=3)
    assert starts(simulated) == [0, 1, 2, 10, 11, 282]
    assert simulated.cluster.evictions[:3] == [0, 1, 1]
    assert simulated.cluster.end_s[:3] == [100, 190, 282]


def test_nobody_is_evicted_where_that_would_not_suffice() -> None:
    """The owner lacks room on one node; the only borrower there is too small to help."""
    rows: list[Row] = [("c", 0, 100, 5), ("b", 1, 500, 2), ("c", 2, 100, 5), ("a", 3, 50, 6)]
    simulated = play(rows, [queue("a", 6), queue("c", 10)])
    assert starts(simulated) == [0, 1, 2, 100]
    assert simulated.accounts.preemptions == 0


def test_a_victim_that_is_not_needed_is_put_back() -> None:
    """The youngest borrower comes first, but the next one alone makes the room: only that one leaves."""
    rows: list[Row] = [("b", 0, 900, 2), ("b", 1, 900, 8), ("b", 2, 900, 4), ("a", 10, 50, 8)]
    simulated = play(rows, [queue("a", 8)])
    assert starts(simulated) == [0, 1, 2, 10]
    assert simulated.cluster.evictions == [0, 1, 0, 0]


# --- inside one queue --------------------------------------------------------------------------------------


@pytest.mark.parametrize(("priority", "start_s"), [pytest.param(1, 10, id="higher"), pytest.param(0, 100, id="equal")])
def test_only_lower_priorities_of_the_own_queue_give_way(priority: int, start_s: float) -> None:
    """LowerPriority: a higher one starts at once, an equal one waits."""
    rows: list[Row] = [("a", 0, 100, 8), ("a", 1, 100, 8), ("a", 10, 50, 8)]
    simulated = play(rows, [queue("a", 16)], priorities=[0, 1, priority])
    assert starts(simulated) == [0, 1, start_s]
    assert simulated.cluster.evictions == [priority, 0, 0]


def test_work_that_may_not_be_preempted_stays() -> None:
    """The owner waits for it."""
    jobs = jobs_of([("b", 0, 100, 8), ("a", 10, 50, 8)])
    jobs.preemptible[0] = False
    simulated = Simulation(inventory(1, 8), jobs, lambda _: Kueue([queue("a", 8)])).run()
    assert starts(simulated) == [0, 100]


def test_later_gangs_pass_one_that_cannot_go() -> None:
    """Best-effort FIFO: the wide one waits, the narrow ones behind it start, first come first served."""
    rows: list[Row] = [("a", 0, 100, 5), ("a", 1, 50, 8), ("a", 2, 10, 2), ("a", 3, 10, 2), ("a", 4, 10, 1)]
    assert starts(play(rows, [queue("a", 8)], nodes=1)) == [0, 100, 2, 12, 4]


def test_higher_priorities_are_the_head_of_the_queue() -> None:
    """Whatever the order of arrival."""
    rows: list[Row] = [("a", 0, 100, 8), ("a", 1, 10, 8), ("a", 2, 10, 8)]
    assert starts(play(rows, [queue("a", 8)], nodes=1, priorities=[9, 0, 1])) == [0, 110, 100]


def test_the_head_that_need_not_borrow_goes_first() -> None:
    """Of two heads for one node: the one within its guarantee, though it came later and has a lower priority."""
    rows: list[Row] = [("c", 0, 100, 8), ("a", 1, 10, 8), ("b", 2, 10, 8)]
    queues = [queue("b", 8, limit=8)]
    jobs = jobs_of(rows, [0, 5, 0])
    jobs.preemptible[0] = False
    simulated = Simulation(inventory(1, 8), jobs, lambda _: Kueue(queues)).run()
    assert starts(simulated) == [0, 110, 100]


# --- evictions that take time ------------------------------------------------------------------------------


def test_a_gang_lands_when_its_victims_have_gone() -> None:
    """Meanwhile it holds its quota: no queue borrows the idle node, and its own queue sends no other head."""
    jobs = jobs_of([("b", 0, 9000, 16), ("a", 4000, 100, 24), ("c", 4001, 100, 8), ("a", 4002, 100, 1)])
    simulation = Simulation(inventory(3, 8), jobs, lambda _: Kueue([queue("a", 24)]), REAL)
    told: list[int] = []
    simulation.engine.at(4010.0, lambda _: told.extend(simulation.cluster.leaving))
    simulated = simulation.run()
    first = starts(simulated)
    assert told == [0]
    assert 4010 < first[1] < min(first[2], first[3])
    assert simulated.found.violations == ()
    assert simulated.run.complete


def test_a_landing_gang_that_its_owner_takes_away_gives_its_quota_up() -> None:
    """The next one of its queue finds the guarantee free again."""
    jobs = jobs_of([("b", 0, 9000, 8), ("a", 4020, 100, 8)])
    simulation = Simulation(inventory(1, 8), jobs, lambda _: Kueue([queue("a", 8)]), REAL)
    simulation.engine.at(
        4000.0, lambda now_s: simulation.engine.submit(jobs.add("svc-0", "a", gang(8), now_s, inf, service=0), now_s)
    )
    simulation.engine.at(4001.0, lambda now_s: simulation.cluster.retire(2, now_s))
    simulated = simulation.run()
    assert simulated.cluster.evictions[0] >= 1
    assert starts(simulated)[1] < 4300
    assert simulated.run.complete


# --- the whole ---------------------------------------------------------------------------------------------


def test_a_tenant_that_comes_later_may_borrow() -> None:
    """Work of an unknown tenant gets a queue without a guarantee, and is preempted by the owner."""
    jobs = jobs_of([("a", 0, 10, 8), ("a", 50, 20, 8)])
    simulation = Simulation(inventory(1, 8), jobs, lambda _: Kueue([queue("a", 8)]))
    simulation.engine.at(
        20.0, lambda now_s: simulation.engine.submit(jobs.add("svc-0", "late", gang(8), now_s, inf, service=0), now_s)
    )
    simulated = simulation.run()
    assert starts(simulated) == [0, 50, 20]
    assert simulated.cluster.evictions == [0, 0, 1]


def crowd(seed: int) -> tuple[list[Row], list[int], list[QueueSpec]]:
    """Many gangs of five tenants and three priorities on a tree with a cohort."""
    rng = np.random.default_rng(seed)
    rows = sorted(
        (
            (
                str(rng.choice(list("abcde"))),
                float(rng.integers(0, 3000)),
                float(rng.integers(20, 900)),
                int(rng.choice([1, 1, 2, 3, 4, 8, 12, 16])),
            )
            for _ in range(150)
        ),
        key=lambda row: row[1],
    )
    queues = [
        queue("team", 12),
        queue("a", 4, "team"),
        queue("b", 4, "team"),
        queue("c", 8, limit=16),
        queue("d", 2),
    ]
    return rows, rng.integers(0, 3, len(rows)).tolist(), queues


class Checked(Kueue):
    """Evaluates the rules also where the shortcut expects a refusal."""

    vain = 0

    def _may_displace(self, claim: Claim) -> bool:
        worth = super()._may_displace(claim)
        if not worth:
            answer = cohort.targets(self._books, claim, list(self._running.values()), partial(self._fits, claim))
            assert isinstance(answer, Refusal)
            self.vain += 1
        return worth


@pytest.mark.parametrize("physics", [IDEAL, CHARGED, REAL], ids=lambda each: each.name)
def test_the_rules_would_refuse_where_they_are_not_asked(physics: Physics) -> None:
    """A crowd with priorities, a cohort and a limit: the rules are left alone only where their answer is no."""
    rows, priorities, queues = crowd(3)
    checked = Checked(queues)
    simulated = play(rows, queues, 4, physics=physics, priorities=priorities, scheduler=checked)
    assert checked.vain > 100
    assert simulated.accounts.preemptions > 10
    assert simulated.run.complete


@pytest.mark.parametrize("physics", [IDEAL, CHARGED, REAL], ids=lambda each: each.name)
def test_the_same_work_gives_the_same_run(physics: Physics) -> None:
    """All of it ends, to the second alike."""
    rows, priorities, queues = crowd(5)
    first, again = (play(rows, queues, 4, physics=physics, priorities=priorities).cluster for _ in range(2))
    assert first.end_s == again.end_s
    assert first.evictions == again.evictions
    assert all(map(isfinite, first.end_s))


def test_the_queues_of_a_cluster_file_reach_the_baseline(tmp_path: Path) -> None:
    """`simulate --policy kueue` reclaims what the file guarantees, and states the slowdown of its owner."""
    (tmp_path / "cluster.yaml").write_text(
        "pools:\n  - {name: p, nodes: 1, gpus_per_node: 8, gpu_model: A100-80GB}\n"
        "queues:\n  - {name: a, guarantee: {A100-80GB: 8}}\n"
    )
    (tmp_path / "jobs.csv").write_text("job_id,tenant,submit_s,duration_s,gpus\n0,b,0,100,8\n1,a,10,50,8\n")
    entry = simulate(
        SimulateOptions(
            jobs=tmp_path / "jobs.csv",
            cluster=str(tmp_path / "cluster.yaml"),
            policies=("kueue",),
            series=False,
        )
    ).document()["policies"]["kueue"]
    assert entry["disruptions"]["preemptions"] == 1
    assert entry["tenants"]["a"]["slowdown"] == 1.0
    assert entry["jobs"]["jct_s_mean"] == (50 + 150) / 2
