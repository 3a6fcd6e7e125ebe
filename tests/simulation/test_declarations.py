"""Guarantees against declarations: whatever a guest declares, the owner has its guarantee back in time."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from autopilot.app.options import SimulateOptions
from autopilot.app.runs.world import World, build_world
from autopilot.controller import Controller
from autopilot.core.model.policy import Policy
from autopilot.core.model.snapshot import Bools, ClusterSnapshot, SloClass
from autopilot.core.planning import quota_state
from autopilot.core.quota.counting import Counting
from autopilot.core.quota.ledger import QuotaLedger
from autopilot.core.quota.protection import Starts, lent_rows
from simulator.running.simulation import Simulation
from simulator.world.placing import find_spot
from tests.kits.policies import elastic, simulated
from tests.simulation.kit import Ran, Setup, run

CLUSTER = """
pools: [{{name: default, nodes: 2, gpus_per_node: 8, gpu_model: A100-80GB}}]
queues:
  - {{name: a, guarantee: {{A100-80GB: 8}}}}
  - {{name: b, guarantee: {{A100-80GB: {guest}}}}}
"""
JOBS = """job_id,tenant,submit_s,duration_s,gpus
a-0,a,10,600,8
"""
OWNER, GRACE_S = -1, 120.0
JUDGED, NOT_OURS = Starts.judged, {"effects"}
"""NOT_OURS: the checker that objects to starts that the controller has not decided."""
WITHIN_S = 1200.0
"""Time of an elastic guarantee, in place of a day."""


class Declares(NamedTuple):
    """What the guest declares about both of its gangs."""

    preemptible: bool
    excluded: bool  # by `exclude`, a refused contract, or a window outside its hours
    slo_class: SloClass


CLASSES = (SloClass.LATENCY_CRITICAL, SloClass.BATCH)
PRODUCT = [Declares(*each) for each in itertools.product((True, False), (False, True), CLASSES)]
FIRM = Declares(preemptible=False, excluded=False, slo_class=SloClass.BATCH)
WHEN = [("autopilot", -1.0), ("autopilot", 5.0), ("elastic", -1.0), ("elastic", 5.0), ("elastic", 60.0)]
"""Policies, and when the guest declares: before its work starts, while it runs, and while the owner waits."""


def short(name: str) -> Policy:
    """A shipped policy; an elastic guarantee comes back after twenty minutes, and past use does not count."""
    if name == "elastic":
        return elastic(within_s=WITHIN_S, half_life_s=0.0)
    return simulated(name, tenancy__usage_half_life_s=0.0)


def played(
    folder: Path,
    policy: str,
    declared: Mapping[int, tuple[float, Declares]],
    *,
    guest: int = 0,
    gangs: int = 2,
    tree: str = CLUSTER,
    tenants: str = "b",
    beside: bool = False,
) -> Ran:
    """A guest whose `gangs` fill two nodes declares this about them, by number and time; the owner comes at 10 s.

    `guest`: GPUs that are guaranteed to the guest. A time before the start is negative. Jobs are in the order of
    their arrival: the owner is the last. `tenants`: one letter for each queue of the guest, which take turns.
    `beside`: another scheduler starts the work of the guest that waits at 4 s.
    """
    (folder / "cluster.yaml").write_text(tree.format(guest=guest), encoding="utf-8")
    rows = [f"b-{number},{tenants[number % len(tenants)]},0,72000,{16 / gangs:g}\n" for number in range(gangs)]
    (folder / "jobs.csv").write_text(JOBS + "".join(rows), encoding="utf-8")
    options = SimulateOptions(
        jobs=folder / "jobs.csv", cluster=str(folder / "cluster.yaml"), physics="charged", telemetry="off"
    )
    world: World = build_world(options)

    def change(simulation: Simulation, _controller: Controller) -> None:
        simulation.engine.horizon_s = 4000.0

        for job, (at_s, declares) in declared.items():
            declare = partial(_declare, simulation, job, declares)
            if at_s < 0:
                declare(0.0)
            else:
                simulation.engine.at(at_s, declare)
        if beside:
            simulation.engine.at(4.0, partial(_start_all, simulation))

    return run(world, Setup(policy=short(policy), durations="exact", change=change))


def _declare(simulation: Simulation, job: int, declares: Declares, now_s: float) -> None:
    simulation.cluster.declare(
        job,
        now_s,
        preemptible=declares.preemptible,
        excluded=declares.excluded,
        slo_class=declares.slo_class,
    )


def _start_all(simulation: Simulation, now_s: float) -> None:
    for job in list(simulation.cluster.pending):
        spot = find_spot(simulation.cluster.hardware, simulation.cluster.jobs.shape_of(job))
        assert spot is not None
        assert simulation.cluster.start(job, spot.gpus, now_s) is None


def bound_s(policy: str) -> float:
    """When the owner runs at the latest: one grace and two ticks after it came, elastic after its time."""
    return 10.0 + GRACE_S + 10.0 + (WITHIN_S if policy == "elastic" else 0.0)


@pytest.mark.parametrize(("policy", "at_s"), WHEN)
@pytest.mark.parametrize("declares", PRODUCT, ids=str)
def test_the_owner_runs_in_time_whatever_the_guest_declares(
    declares: Declares, policy: str, at_s: float, tmp_path: Path
) -> None:
    """Not preemptible, opted out, protected class, and all of these together. No checker objects."""
    ran = played(tmp_path, policy, {0: (at_s, declares), 1: (at_s, declares)})
    assert ran.cluster.first_start_s[OWNER] <= bound_s(policy)
    assert ran.violated == set()


def test_halves_of_gpus_are_taken_back_like_whole_ones(tmp_path: Path) -> None:
    """Sixteen of them make room for the owner, and each of these is needed."""
    ran = played(tmp_path, "autopilot", dict.fromkeys(range(32), (5.0, FIRM)), gangs=32)
    assert sum(ran.cluster.evictions) == 16
    assert ran.cluster.first_start_s[OWNER] <= bound_s("autopilot")
    assert ran.violated == set()


TREE = """
pools: [{{name: default, nodes: 2, gpus_per_node: 8, gpu_model: A100-80GB}}]
queues:
  - {{name: all, guarantee: {{A100-80GB: 16}}}}
  - {{name: a, parent: all, guarantee: {{A100-80GB: 8}}}}
  - {{name: guests, parent: all, guarantee: {{A100-80GB: 8}}}}
  - {{name: b, parent: guests, guarantee: {{A100-80GB: {guest}}}}}
  - {{name: c, parent: guests, guarantee: {{A100-80GB: {guest}}}}}
"""


@pytest.mark.parametrize("policy", ["autopilot", "elastic"])
@pytest.mark.parametrize(("guest", "gangs", "firm"), [(0, 2, 0), (0, 2, 2), (4, 4, 4)])
def test_the_owner_runs_in_time_where_others_fill_the_guarantee_of_its_parent(
    policy: str, guest: int, gangs: int, firm: int, tmp_path: Path
) -> None:
    """Two queues of a guest, below the same parent: with nothing declared, and with all of their work protected."""
    declared = dict.fromkeys(range(firm), (5.0, FIRM))
    ran = played(tmp_path, policy, declared, guest=guest, gangs=gangs, tree=TREE, tenants="bc")
    assert ran.cluster.first_start_s[OWNER] <= bound_s(policy)
    assert ran.violated == set()


def test_protected_work_does_not_start_on_borrowed_gpus(tmp_path: Path) -> None:
    """Whatever protects it: a protected class that says it may be preempted waits for a guarantee like other firm work.

    What opted out is started by nobody here.
    """
    for declares in PRODUCT:
        ran = played(tmp_path, "autopilot", {0: (-1.0, declares), 1: (-1.0, FIRM)})
        starts = declares == Declares(True, False, SloClass.BATCH)
        assert math.isnan(ran.cluster.first_start_s[0]) is not starts
        assert math.isnan(ran.cluster.first_start_s[1])


@pytest.mark.parametrize("declares", [each for each in PRODUCT if each != PRODUCT[1]], ids=str)
def test_a_declaration_is_kept_within_the_guarantee_of_its_queue(declares: Declares, tmp_path: Path) -> None:
    """With a guarantee of eight the guest keeps one of its two gangs: the one that was protected first."""
    ran = played(tmp_path, "autopilot", {1: (3.0, declares), 0: (5.0, FIRM)}, guest=8)
    assert (ran.cluster.evictions[0], ran.cluster.evictions[1]) == (1, 0)
    assert ran.cluster.first_start_s[OWNER] <= bound_s("autopilot")
    assert ran.violated == set()


@pytest.mark.parametrize("policy", ["autopilot", "elastic"])
def test_a_guest_cannot_scatter_what_it_protects(policy: str, tmp_path: Path) -> None:
    """It protects a gang of four on each node, within its guarantee of eight. One of them makes room for the owner."""
    ran = played(tmp_path, policy, {0: (5.0, FIRM), 2: (5.0, FIRM)}, guest=8, gangs=4)
    assert ran.cluster.first_start_s[OWNER] <= bound_s(policy)
    assert ran.violated == set()


def test_work_that_started_protected_inside_its_guarantee_is_never_taken(tmp_path: Path) -> None:
    """The same declarations before the start: both gangs stay, and the checkers agree that the owner has to wait."""
    ran = played(tmp_path, "autopilot", {0: (-1.0, FIRM), 2: (-1.0, FIRM)}, guest=8, gangs=4)
    assert (ran.cluster.evictions[0], ran.cluster.evictions[2]) == (0, 0)
    assert ran.violated == set()


@pytest.mark.parametrize("policy", ["autopilot", "elastic"])
@pytest.mark.parametrize("declares", PRODUCT, ids=str)
def test_the_owner_runs_in_time_whatever_others_start(declares: Declares, policy: str, tmp_path: Path) -> None:
    """Another scheduler starts what we would not: two protected gangs on borrowed GPUs."""
    ran = played(tmp_path, policy, {0: (-1.0, declares), 1: (-1.0, declares)}, beside=True)
    assert ran.cluster.first_start_s[OWNER] <= bound_s(policy)
    assert ran.violated <= NOT_OURS


def test_what_others_start_inside_the_guarantee_is_never_taken(tmp_path: Path) -> None:
    """The first of two gangs fits there; the second one goes."""
    ran = played(tmp_path, "autopilot", {0: (-1.0, FIRM), 1: (-1.0, FIRM)}, guest=8, beside=True)
    assert (ran.cluster.evictions[0], ran.cluster.evictions[1]) == (0, 1)
    assert ran.cluster.first_start_s[OWNER] <= bound_s("autopilot")
    assert ran.violated == NOT_OURS


@pytest.mark.parametrize("at_s", [-1.0, 20.0])
def test_an_owner_that_opts_out_is_owed_nothing(at_s: float, tmp_path: Path) -> None:
    """Before it comes, or while it waits: it asks for no start, and no checker objects."""
    ran = played(tmp_path, "elastic", {2: (at_s, Declares(True, True, SloClass.BATCH))})
    assert math.isnan(ran.cluster.first_start_s[OWNER])
    assert ran.violated == set()


def test_work_that_others_start_and_that_stays_is_caught(tmp_path: Path) -> None:
    """Planted: what is seen to start protected is firm, whether it fits or not."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Starts, "judged", lambda starts, work, _lent, now_s: JUDGED(starts, work, (), now_s))
        ran = played(tmp_path, "autopilot", {0: (-1.0, FIRM), 1: (-1.0, FIRM)}, beside=True)
    assert ran.violated == {"guarantees", *NOT_OURS}


def test_a_protection_that_binds_contracts_above_the_guarantee_is_caught(tmp_path: Path) -> None:
    """Planted: all protected work counts as if it had started protected."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(quota_state, "follow_starts", lambda *_: Starts())
        ran = played(tmp_path, "autopilot", {0: (5.0, FIRM), 1: (5.0, FIRM)})
    assert ran.violated == {"guarantees"}


def test_a_contract_that_takes_work_protected_inside_its_guarantee_is_caught(tmp_path: Path) -> None:
    """Planted: all protected work counts as lent, also what started protected within its guarantee."""

    def all_lent(
        snapshot: ClusterSnapshot, ledger: QuotaLedger, protected: Bools, starts: Starts, counted: Counting | None
    ) -> dict[int, dict[int, float]]:
        nothing = [[0.0 for _ in owed] for owed in ledger.guarantee]
        everything = {**dict.fromkeys(np.flatnonzero(protected).tolist(), 0.0), **starts.late_s}
        return lent_rows(snapshot, replace(ledger, guarantee=nothing), protected, Starts(late_s=everything), counted)

    latest = Declares(preemptible=True, excluded=False, slo_class=SloClass.LATENCY_CRITICAL)
    declared = {0: (-1.0, latest), 1: (5.0, FIRM)}
    assert played(tmp_path, "autopilot", declared, guest=8).cluster.evictions[:2] == [0, 1]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(quota_state, "lent_rows", all_lent)
        assert played(tmp_path, "autopilot", declared, guest=8).violated == {"protected"}
