"""Owed time against cases that are computed by hand, on 2 nodes of 8 GPUs."""

from __future__ import annotations

import pytest

from simulator.baselines import BASELINES
from simulator.outcome.results import policy_result
from simulator.running.owed import Debt
from simulator.running.simulation import Simulation
from simulator.specs.clusterqueues import ROOT, QueueSpec
from simulator.world.work import Jobs
from tests.kits.cluster_kit import gang, inventory, pool, pools

MODEL = inventory().names.gpu_models[0]


def queue(name: str, guarantee: int = 0, parent: str = ROOT, model: str = MODEL) -> QueueSpec:
    """A queue with a guarantee of one GPU model."""
    return QueueSpec(name, parent, {model: guarantee} if guarantee else {}, None, 1.0, 0, None)


def owed(jobs: Jobs, *queues: QueueSpec, policy: str = "fifo-skip") -> dict[str, Debt]:
    """The debts of one run, by queue."""
    run = Simulation(inventory(), jobs, lambda _: BASELINES[policy](), queues=queues).run()
    return run.owed.by_queue


def jobs_of(*rows: tuple[str, float, float, int]) -> Jobs:
    """Jobs of (tenant, submit_s, duration_s, gpus)."""
    jobs = Jobs()
    for number, (tenant, submit_s, duration_s, gpus) in enumerate(rows):
        jobs.add(f"job-{number}", tenant, gang(gpus), submit_s, duration_s)
    return jobs


def test_a_queue_is_owed_what_it_lacks_while_a_gang_waits_that_fits() -> None:
    """16 GPUs are lent until 100 s. The owner of 8 waits from 10 s on with a gang of 4: it lacks 8 for 90 s."""
    found = owed(jobs_of(("guest", 0, 100, 16), ("owner", 10, 50, 4)), queue("owner", 8), queue("guest"))
    assert found == {"owner": Debt(8 * 90 * 1024 * 1000, 90.0)}
    assert found["owner"].gpu_s == 720.0


def test_what_it_holds_counts_and_a_gang_wider_than_the_rest_is_not_owed() -> None:
    """The owner of 8 holds 4 and waits for 8, which do not fit under it; from 20 s on it also waits for 2."""
    rows = (("owner", 0, 100, 4), ("guest", 0, 100, 12), ("owner", 0, 10, 8), ("owner", 20, 10, 2))
    found = owed(jobs_of(*rows), queue("owner", 8), queue("guest"))
    assert found["owner"] == Debt(4 * 80 * 1024 * 1000, 80.0)


def test_a_spell_ends_when_the_gang_starts_and_another_begins_later() -> None:
    """Spells of 30 s and 50 s: the longer one counts, the debt is the sum."""
    rows = (("guest", 0, 40, 16), ("owner", 10, 1, 4), ("guest", 50, 100, 16), ("owner", 100, 1, 4))
    found = owed(jobs_of(*rows), queue("owner", 8), queue("guest"))
    assert found["owner"] == Debt(8 * 80 * 1024 * 1000, 50.0)


def test_what_starts_at_the_instant_of_its_submit_is_not_owed() -> None:
    """Nothing lasts no time."""
    assert owed(jobs_of(("owner", 0, 10, 4), ("owner", 5, 10, 8)), queue("owner", 16))["owner"] == Debt(0, 0.0)


def test_the_run_ends_a_spell() -> None:
    """A gang that never starts is owed to the end of the run."""
    jobs = jobs_of(("guest", 0, 100, 16), ("owner", 10, 50, 4))
    simulation = Simulation(
        inventory(), jobs, lambda _: BASELINES["fifo-skip"](), queues=(queue("owner", 8),), horizon_s=60.0
    )
    assert simulation.run().owed.by_queue["owner"] == Debt(8 * 50 * 1024 * 1000, 50.0)


@pytest.mark.parametrize(("parent_gpus", "expected"), [(8, 4), (6, 2), (4, 0)])
def test_every_queue_above_must_have_the_room_too(parent_gpus: int, expected: int) -> None:
    """The brother holds 4 of the parent's guarantee; what the parent has left bounds what the child is owed."""
    specs = (queue("parent", parent_gpus), queue("child", 8, "parent"), queue("brother", 0, "parent"), queue("guest"))
    rows = (("brother", 0, 100, 4), ("guest", 0, 100, 12), ("child", 0, 10, 2))
    found = owed(jobs_of(*rows), *specs)
    assert found["child"] == Debt(expected * 100 * 1024 * 1000, 100.0 if expected else 0.0)


def test_a_guarantee_of_one_model_owes_nothing_to_work_for_another() -> None:
    """Four GPUs of the second model are guaranteed; a gang that may use the first only is not owed them."""
    hardware = pools(pool("a", gpus=4), pool("b", gpus=4, model="H100-80GB"))
    _, second = hardware.names.gpu_models
    specs = (queue("owner", 4, model=second), queue("guest"))
    debts = []
    for models in (0b01, 0b10):
        jobs = Jobs()
        jobs.add("guest", "guest", gang(8, 4), 0.0, 100.0)
        jobs.add("owner", "owner", gang(2, 4, models=models), 0.0, 10.0)
        run = Simulation(hardware, jobs, lambda _: BASELINES["fifo-skip"](), queues=specs).run()
        debts.append(run.owed.by_queue["owner"].units)
    assert debts == [0, 4 * 100 * 1024 * 1000]


def test_work_that_no_node_can_hold_is_owed_nothing() -> None:
    """A member of 9 GPUs fits on no node of 8."""
    jobs = jobs_of(("guest", 0, 100, 16))
    jobs.add("wide", "owner", gang(9, 9), 0.0, 10.0)
    assert owed(jobs, queue("owner", 16), queue("guest"))["owner"] == Debt(0, 0.0)


def test_the_result_states_it_and_is_null_without_guarantees() -> None:
    """The block of the JSON, by queue and in all."""
    jobs = jobs_of(("guest", 0, 100, 16), ("owner", 10, 50, 4), ("second", 60, 5, 1))
    specs = (queue("owner", 8), queue("second", 2), queue("guest"))
    run = Simulation(inventory(), jobs, lambda _: BASELINES["fifo-skip"](), queues=specs).run()
    assert policy_result(run)["guarantees"] == {
        "owed_gpu_s": 800.0,
        "longest_owed_s": 90.0,
        "longest_owed_queue": "owner",
        "queues": {
            "owner": {"owed_gpu_s": 720.0, "longest_owed_s": 90.0},
            "second": {"owed_gpu_s": 80.0, "longest_owed_s": 40.0},
        },
    }
    without = Simulation(inventory(), jobs_of(("t", 0, 1, 1)), lambda _: BASELINES["fifo-skip"]()).run()
    assert policy_result(without)["guarantees"] is None
