"""Work that Kueue admits: from Workloads, Jobs and pods to rows of the snapshot."""

from __future__ import annotations

from typing import Any

import pytest

from autopilot.contract.annotations import CHECK
from autopilot.core.model.objects import SchedulerQuota
from autopilot.core.model.snapshot import Gate, State
from tests.kits.kube_api import Json
from tests.kits.kube_objects import (
    cluster_queue,
    done,
    flavor,
    job,
    kueue,
    local_queue,
    node,
    owner,
    pod,
    stamp,
    workload,
)
from tests.unit.collectors.kubernetes.view import Seen, held, row

OWNER = owner("Job", "a", "uid-team-a")


def _pods(count: int, **more: object) -> list[dict[str, object]]:
    return [pod(f"a-{k}", 4, node="n1", owner=OWNER, **more) for k in range(count)]  # type: ignore[arg-type]


def test_an_admitted_job_runs_on_the_gpus_of_its_pods() -> None:
    """Job, Workload and pods are one gang, with the uid of the Job and the queue that admits it."""
    running = workload("job-a", 4, count=2, owner=OWNER, admitted_to="gpus", priority=7)
    seen = Seen(node("n1"), job("a", 4, width=2), *kueue(running), *_pods(2)).tables()
    found = row(seen[1], "team/a")
    assert (found["uid"], found["state"], found["gpus"], found["gpus_per_member"]) == (
        "uid-team-a",
        State.RUNNING,
        8,
        4,
    )
    assert (found["priority"], seen[1].queues.id[found["queue"]]) == (7, "gpus")
    assert len(held(seen, "team/a")) == 8


def test_work_waits_in_the_queue_behind_its_local_queue() -> None:
    """A Workload without a reservation is pending in the ClusterQueue of its LocalQueue, and may be started."""
    _, work = Seen(node("n1"), *kueue(workload("job-b", 8, owner=owner("Job", "b", "u-b")))).tables()
    found = row(work, "team/b")
    assert (found["state"], found["gate"], work.queues.id[found["queue"]]) == (State.PENDING, Gate.OPEN, "gpus")


def test_a_workload_whose_job_is_gone_is_left_alone() -> None:
    """Kueue keeps it for a while, and nothing says any more whether its owner had opted out or protected it."""
    waits = kueue(workload("job-a", 4, owner=OWNER))
    with_job = Seen(node("n1"), job("a", 4), *waits).tables()[1]
    assert not row(with_job, "team/a")["excluded"]
    assert row(Seen(node("n1"), *waits).tables()[1], "team/a")["excluded"]


def test_a_waiting_check_holds_work_back() -> None:
    """Quota reserved and not admitted: an external check is awaited."""
    waits = workload("job-b", 8, owner=owner("Job", "b", "u-b"), conditions=[done("QuotaReserved", "QuotaReserved")])
    assert row(Seen(node("n1"), *kueue(waits)).tables()[1], "team/b")["gate"] == Gate.WAITING


@pytest.mark.parametrize(
    ("reason", "gate"),
    [
        ("PodsReadyTimeout", Gate.BACKOFF),
        ("AdmissionCheck", Gate.RETRY),
        ("ClusterQueueStopped", Gate.WAITING),
        ("LocalQueueStopped", Gate.WAITING),
        ("Deactivated", Gate.OPEN),
        ("DeactivatedDueToAdmissionCheck", Gate.REJECTED),
        ("DeactivatedDueToRequeuingLimitExceeded", Gate.REJECTED),
    ],
)
def test_what_kueue_keeps_out_of_its_queue_waits_for_no_room(reason: str, gate: Gate) -> None:
    """The Workload is active, and its condition Requeued says why it is not tried. `Deactivated` was taken back."""
    out = [done("Evicted", reason), done("QuotaReserved", "Pending", status="False")]
    out.append(done("Requeued", reason, status="False"))
    evicted = workload("job-b", 8, owner=owner("Job", "b", "u-b"), conditions=out)
    seen = Seen(node("n1"), *kueue(evicted)).tables()[1]
    assert row(seen, "team/b")["gate"] == gate


@pytest.mark.parametrize("active", [True, False])
def test_a_group_without_pods_waits_for_its_owner(*, active: bool) -> None:
    """Kueue deleted them with its eviction, or its StatefulSet is scaled to zero. No room is found for it."""
    lacks = [done("Evicted", "AdmissionCheck"), done("Requeued"), done("WaitingForReplacementPods", "AdmissionCheck")]
    status = {"admissionChecks": [{"name": CHECK, "state": "Pending"}]}
    group = workload("group", 4, count=2, conditions=lacks, active=active, status=status)
    zero = workload("zero", 4, conditions=[done("QuotaReserved", "OnHold", status="False")], active=active)
    seen = Seen(node("n1"), *kueue(group, zero)).tables()[1]
    assert [row(seen, f"team/{name}")["gate"] for name in ("group", "zero")] == [Gate.SUSPENDED] * 2


def test_gpus_are_held_until_the_pods_are_gone() -> None:
    """Kueue releases the quota of an evicted job at once; its terminating pods keep their GPUs, and are leaving."""
    evicted = workload("job-a", 4, count=2, owner=OWNER, active=False, conditions=[done("Evicted", "Deactivated")])
    stopping = _pods(2, deleting=True)
    view = Seen(node("n1"), job("a", 4, width=2, suspend=True), *kueue(evicted), *stopping)
    seen = view.tables()
    assert row(seen[1], "team/a")["state"] == State.CHECKPOINTING
    assert len(held(seen, "team/a")) == 8
    assert seen[1].placements.leaving.all()
    seen = view.tables(gone=tuple(stopping))
    found = row(seen[1], "team/a")
    assert (found["state"], found["gate"], found["incarnation"]) == (State.PENDING, Gate.SUSPENDED, 1)
    assert held(seen, "team/a") == []


STOPS: dict[str, dict[str, Any]] = {
    "evicted by Kueue": {"conditions": [done("Evicted", "Preempted"), done("QuotaReserved"), done("Admitted")]},
    "deactivated, Kueue has not looked": {"active": False},
    "our check says Retry, Kueue is down": {"check": "Retry"},
    "another check says Rejected": {"check": "Rejected"},
    "suspended by a person": {"suspend": True},
    "deleted in the foreground": {"meta": {"deletionTimestamp": stamp(), "finalizers": ["foregroundDeletion"]}},
    "about to fail": {"job": [done("FailureTarget", "BackoffLimitExceeded")]},
}
STAYS: dict[str, dict[str, Any]] = {
    "it runs": {},
    "evicted earlier": {"conditions": [done("Evicted", status="False"), done("QuotaReserved"), done("Admitted")]},
    "deleted, and its pods stay": {"meta": {"deletionTimestamp": stamp(), "finalizers": ["orphan"]}},
}


@pytest.mark.parametrize(("why", "leaves"), [*((each, True) for each in STOPS), *((each, False) for each in STAYS)])
def test_pods_leave_from_the_moment_that_something_stops_them(why: str, leaves: bool) -> None:
    """Nothing needs to stop them a second time, though none of them has a deletionTimestamp yet (recording 35)."""
    said = (STOPS | STAYS)[why]
    checks = {"admissionChecks": [{"name": CHECK, "state": said.get("check", "Ready")}]}
    conditions = said.get("conditions", [done("QuotaReserved"), done("Admitted")])
    admitted = workload(
        "job-a", 4, count=2, owner=OWNER, conditions=conditions, active=said.get("active", True), status=checks
    )
    made = job("a", 4, width=2, suspend=said.get("suspend", False), conditions=said.get("job", []))
    made["metadata"] |= said.get("meta", {})
    view = Seen(node("n1"), made, *kueue(admitted), *_pods(2))
    _, work = view.tables()
    assert row(work, "team/a")["state"] == (State.CHECKPOINTING if leaves else State.RUNNING)
    assert work.placements.leaving.tolist() == [leaves] * 8


def test_pods_stay_once_kueue_has_their_quota_again() -> None:
    """The table of placements is made anew when an eviction begins, and when it has ended."""
    view = Seen(node("n1"), job("a", 4, width=2), *kueue(_admitted()), *_pods(2))
    for evicted in ("True", "False"):
        _, work = view.tables(_admitted(done("Evicted", "Preempted", status=evicted)))
        assert work.placements.leaving.all() == (evicted == "True")


def _admitted(*more: Json) -> Json:
    conditions = [done("QuotaReserved"), done("Admitted"), *more]
    return workload("job-a", 4, count=2, owner=OWNER, conditions=conditions)


def test_finished_work_is_shown_as_ended_for_a_minute() -> None:
    """Its run time can be learned; afterwards it is hidden, and was not lost."""
    over = workload("job-a", 4, count=2, owner=OWNER, admitted_to="gpus", conditions=[done("Finished", "Succeeded")])
    view = Seen(node("n1"), *kueue(over))
    assert row(view.tables()[1], "team/a")["state"] == State.SUCCEEDED
    view.now_s += 61
    assert len(view.tables()[1].workloads.id) == 0


def _waits(name: str, *true: str, queue: str = "local", check: str = "Pending", **more: Any) -> list[Json]:
    """A Job of Kueue that waits, with our check and these conditions."""
    notes, status = more.pop("annotations", {}), {"admissionChecks": [{"name": CHECK, "state": check}]}
    conditions = [done(kind, kind) for kind in true]
    uid = f"uid-team-{name}"
    made = workload(name, 4, owner=owner("Job", name, uid), queue=queue, conditions=conditions, status=status, **more)
    return [job(name, 4, suspend=True, annotations=notes), made]


def _reservations(*others: list[Json]) -> list[str]:
    """Names of the Workloads whose quota may be taken, of all these."""
    view = Seen(
        node("n1"),
        flavor(),
        cluster_queue("gpus", 16),
        local_queue("local", "gpus"),
        *(each for pair in others for each in pair),
    )
    view.tables()
    return [each.name for each in view.collector.objects.reservations(tuple(view.collector.objects.uids()))]


QUOTA = {
    "holds it": (_waits("a", "QuotaReserved"), SchedulerQuota.TAKEABLE),
    "has none": (_waits("a"), SchedulerQuota.LACKING),
    "is admitted": (_waits("a", "QuotaReserved", "Admitted", check="Ready"), SchedulerQuota.STAYS),
    "waits for another check": (_waits("a", "QuotaReserved", check="Ready"), SchedulerQuota.STAYS),
    "is deactivated": (_waits("a", "QuotaReserved", active=False), SchedulerQuota.LACKING),
    "has no check": ([_waits("a")[0], workload("a", 4, owner=OWNER)], SchedulerQuota.NOT_ASKED),
    "waits for pods": (kueue(workload("a", 4, owner=owner("Pod", "a", "u"))), SchedulerQuota.NOT_ASKED),
}


@pytest.mark.parametrize("which", QUOTA)
def test_the_quota_of_waiting_work_is_known(which: str) -> None:
    """Whether Kueue has reserved it, and whether a start of other work can take it."""
    objects, state = QUOTA[which]
    seen = Seen(node("n1"), flavor(), cluster_queue("gpus", 16), local_queue("local", "gpus"), *objects).tables()
    assert seen[1].workloads.scheduler_quota.tolist() == [state]


def test_quota_is_taken_from_work_that_waits_for_our_check() -> None:
    """Not from work that has none, or that runs."""
    assert _reservations(_waits("held", "QuotaReserved"), _waits("waits")) == ["held"]
    assert _reservations(_waits("runs", "QuotaReserved", "Admitted", check="Ready")) == []
    assert _reservations(_waits("out", "QuotaReserved", active=False)) == []


def test_the_quota_of_an_elastic_job_that_runs_and_is_to_grow_stays() -> None:
    """Kueue has ended its earlier Workload, and the wider one waits for our check: deactivation would stop the Job."""
    runs = pod("grows-0", 4, node="n1", owner=owner("Job", "grows", "uid-team-grows"))
    assert _reservations([*_waits("grows", "QuotaReserved"), runs]) == []


def test_the_quota_of_work_that_opted_out_stays() -> None:
    """It is left alone, whatever waits for its quota."""
    assert _reservations(_waits("alone", "QuotaReserved", annotations={"gpu-autopilot.io/exclude": "true"})) == []


@pytest.mark.parametrize(
    ("state", "text", "conditions", "listed"),
    [
        ("Retry", "", [], True),
        ("Retry", "", [done("Evicted"), done("QuotaReserved")], True),
        ("Retry", "", [done("QuotaReserved"), done("Admitted")], False),  # Kueue is about to act on it
        ("Pending", "epoch 1: repair: x", [done("Evicted")], True),
        ("Pending", "epoch 1: repair: x", [done("QuotaReserved")], False),
        ("Pending", "epoch 1: 1/p/w: x", [], False),
    ],
)
def test_a_leftover_retry_is_listed(state: str, text: str, conditions: list[Json], *, listed: bool) -> None:
    """Where no eviction begins for it, and until Kueue has reserved quota again."""
    check = {"name": CHECK, "state": state, "message": text}
    found = workload("job-a", 4, owner=OWNER, conditions=conditions, status={"admissionChecks": [check]})
    seen = Seen(node("n1"), job("a", 4, suspend=True), *kueue(found))
    seen.batch()
    assert [each.name for each in seen.collector.objects.left_over()] == ["job-a"] * listed


@pytest.mark.parametrize(
    ("reason", "gate"), [("Deactivated", Gate.SUSPENDED), ("DeactivatedDueToAdmissionCheck", Gate.REJECTED)]
)
def test_who_keeps_a_workload_out_is_known(reason: str, gate: Gate) -> None:
    """Its owner, or a check that rejected it: Kueue says so."""
    out = workload("job-a", 4, owner=OWNER, active=False, conditions=[done("Evicted", reason)])
    work = Seen(node("n1"), job("a", 4, suspend=True), *kueue(out)).tables()[1]
    assert row(work, "team/a")["gate"] == gate


def _jobset(*, uid: str = "") -> list[Json]:
    """The pods of two Jobs of one JobSet, as its versions label them: the uid since 0.9."""
    labels = {"jobset.sigs.k8s.io/jobset-name": "js"} | ({"jobset.sigs.k8s.io/jobset-uid": uid} if uid else {})
    return [
        pod(f"js-w-{k}-0", 4, node="n1", labels=labels, owner=owner("Job", f"js-w-{k}", f"uid-of-job-{k}"))
        for k in range(2)
    ]


@pytest.mark.parametrize("uid", ["", "uid-js"], ids=["before 0.9", "since 0.9"])
@pytest.mark.parametrize("late", [True, False], ids=["Workload later", "Workload first"])
def test_a_jobset_and_its_workload_are_one_gang(uid: str, *, late: bool) -> None:
    """Its Jobs are no gangs of their own, whatever is seen first."""
    admitted = workload("jobset-js", 4, count=2, owner=owner("JobSet", "js", "uid-js"), admitted_to="gpus")
    first, then = [_jobset(uid=uid), [*kueue(admitted)]] if late else [[*kueue(admitted)], _jobset(uid=uid)]
    view = Seen(node("n1"), *first)
    before = view.tables()[1].workloads.uid.tolist()
    batch = view.batch(*then)
    work = batch.work
    assert work is not None
    assert work.workloads.id.tolist() == ["team/js"]
    assert batch.work_list is not None
    assert not {*batch.work_list.deleted} & ({"uid-js"} if "uid-js" in before else set())
    assert (row(work, "team/js")["gpus"], row(work, "team/js")["state"]) == (8, State.RUNNING)


def test_a_jobset_without_kueue_is_one_gang() -> None:
    """Known by its name before 0.9."""
    assert Seen(node("n1"), *_jobset()).tables()[1].workloads.id.tolist() == ["team/js"]


def test_pods_that_name_their_workload_leave_the_gang_of_their_owner() -> None:
    """Kueue's annotation tells their Workload, which may be seen after them."""
    notes = {"kueue.x-k8s.io/workload": "appwrapper-a"}
    pods = [pod(f"p-{k}", 4, node="n1", owner=owner("Job", "inner", "u-inner"), annotations=notes) for k in range(2)]
    view = Seen(node("n1"), *pods)
    assert view.tables()[1].workloads.id.tolist() == ["team/inner"]
    outer = workload("appwrapper-a", 4, count=2, owner=owner("AppWrapper", "a", "u-a"), admitted_to="gpus")
    _, work = view.tables(*kueue(outer))
    assert work.workloads.id.tolist() == ["team/a"]
    assert row(work, "team/a")["gpus"] == 8
