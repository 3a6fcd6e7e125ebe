"""Work that Kueue has admitted and that has no pods in this cluster: it does not wait for a start here."""

from __future__ import annotations

import json
from typing import Any

import pytest

from autopilot.contract.annotations import CHECK
from autopilot.core.model.codes import NOT_STARTED
from tests.kits.field_kit import FOLDER, Json, Played, made, objects_of, play, play_objects
from tests.kits.kube_objects import EPOCH_S, stamp

MANAGER = FOLDER / "08-multikueue" / "manager.yaml"


def _known(played: Played) -> bool:
    """Whether `far` is work of this cluster."""
    return "team/far" in played.snapshot.workloads.id.tolist()


def _proposed(played: Played) -> set[str]:
    """Names of the work for which anything is proposed."""
    return {each.subject.name for _, _, decision in played.ticks for each in decision.plan.proposals}


@pytest.mark.parametrize("more", [{"policy": "recommend"}, {"acts": True}])
def test_work_that_another_cluster_runs_is_no_work_of_this_one(more: dict[str, Any]) -> None:
    """A Job that MultiKueue has dispatched (kubernetes-sigs/kueue#1787, #8602)."""
    played = play("08-multikueue", "manager.yaml", **more)
    assert not _known(played)
    assert not _proposed(played)
    assert played.said("team/far multikueue MultiKueue has it run in the cluster .?worker1")


def test_our_check_in_a_queue_of_multikueue_is_named() -> None:
    """The work would stay out."""
    objects = objects_of(MANAGER)
    (workload,) = [each for each in objects if each["kind"] == "Workload"]
    workload["status"]["admissionChecks"].append({"name": CHECK, "state": "Pending", "message": ""})
    assert play_objects(objects, acts=True).said(f"team/far multikueue .*{CHECK} is not answered for it: take it out")


@pytest.mark.parametrize(
    ("paths", "since", "told"),
    [
        pytest.param(("Job.status.startTime",), "T-3500", True, id="no start in its cluster"),
        pytest.param(("Job.status.startTime",), "T-1790", True, id="it becomes late while nothing changes"),
        pytest.param(("Job.status.startTime",), "T-60", False, id="it has just been given away"),
        pytest.param((), "T-3500", False, id="it has started"),
        pytest.param(("Job.status.startTime", "Workload.status.clusterName"), "T-3500", True, id="no cluster takes it"),
    ],
)
def test_work_that_another_cluster_does_not_start_is_named_and_counted(
    paths: tuple[str, ...], since: str, *, told: bool
) -> None:
    """Its quota is held here, and its status shows no start there."""
    objects: list[Json] = json.loads(json.dumps(_without(objects_of(MANAGER), *paths)))
    (workload,) = [each for each in objects if each["kind"] == "Workload"]
    for each in workload["status"]["conditions"]:
        each["lastTransitionTime"] = stamp(EPOCH_S + float(since.removeprefix("T")))
    played = play_objects(objects, ticks=4)
    assert not _known(played)
    _, observation, _ = played.ticks[-1]
    last = [gap.signal for gap in observation.gaps if gap.object_id == "team/far"]
    assert last == [NOT_STARTED if told else "multikueue"]


def _without(objects: list[Json], *paths: str) -> list[Json]:
    """The objects without these fields of the Job and the Workload."""
    found: list[Json] = json.loads(json.dumps(objects))
    for each in found:
        for path in paths:
            kind, *inner, last = path.split(".")
            if each["kind"] == kind:
                at = each
                for name in inner:
                    at = at.get(name, {})
                at.pop(last, None)
    return found


@pytest.mark.parametrize("paths", [
    ("Workload.status.clusterName", "Job.spec.managedBy"),  # only the check says so
    ("Workload.status.clusterName", "Workload.status.admissionChecks", "Workload.status.conditions"),
    ("Workload.status.conditions", "Workload.status.admission"),
])  # fmt: skip
@pytest.mark.parametrize("acts", [True, False])
def test_each_trace_of_multikueue_counts(paths: tuple[str, ...], *, acts: bool) -> None:
    """Before the dispatch there is the check or the manager of the Job, for other kinds the name of the cluster."""
    played = play_objects(_without(objects_of(MANAGER), *paths), policy="recommend", acts=acts)
    assert not _known(played)
    assert not _proposed(played)


LOCAL = ("Workload.status.clusterName", "Workload.status.admissionChecks", "Job.spec.managedBy")


@pytest.mark.parametrize("acts", [True, False])
def test_quota_that_is_held_without_pods_is_no_wait_for_a_start(*, acts: bool) -> None:
    """Kueue has admitted a Job of this cluster, and its controller makes no pods."""
    played = play_objects(_without(objects_of(MANAGER), *LOCAL), policy="recommend", acts=acts)
    assert _known(played)
    assert not _proposed(played)


def test_a_job_that_waits_for_quota_is_proposed() -> None:
    """Without an admission it is work of this cluster that waits."""
    waits = _without(objects_of(MANAGER), *LOCAL, "Workload.status.conditions", "Workload.status.admission")
    (job,) = [each for each in waits if each["kind"] == "Job"]
    job["spec"]["suspend"], job["status"] = True, {}
    assert _proposed(play_objects(waits, policy="recommend")) == {"team/far"}


def _half(owner: tuple[str, str, str], labels: dict[str, str] | None = None, run: int = 4, wait: int = 4) -> list[Json]:
    """A gang of 8 pods of 8 GPUs: `run` of them have had nodes for two hours, and `wait` have none."""
    product = "NVIDIA-H100-80GB-HBM3"
    objects: list[Json] = [{"node": "n-{n}", "gpus": 8, "product": product, "copies": run}]
    bound = [{"type": each, "status": "True", "lastTransitionTime": "T-7200"} for each in ("PodScheduled", "Ready")]
    lost = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
    shared: Json = {"gpus": 8, "owner": list(owner), "labels": labels or {}}
    at: list[Json] = [{"at": f"n-{k}", "status": {"conditions": bound}} for k in range(run)]
    at += [{"status": {"conditions": [lost]}}] * wait
    objects += [{"pod": f"team/g-{k}", **shared, **each} for k, each in enumerate(at)]
    copied: list[Json] = json.loads(json.dumps(objects))
    return copied


def _quiet(run: int = 4, sm: float = 0.0) -> Json:
    """What the exporters of the nodes show."""
    values = {
        "PROF_SM_ACTIVE": sm,
        "PROF_DRAM_ACTIVE": sm,
        "DEV_GPU_UTIL": 100 * sm,
        "DEV_POWER_USAGE": 70,
        "DEV_FB_USED": 900,
    }
    nodes = [{"node": f"n-{k}", "id": k, "count": 8, "pod": f"team/g-{k}", "values": values} for k in range(run)]
    return {"gpus": nodes}


OWNERS = [
    (("kubeflow.org/v1", "PyTorchJob", "g"), {}),
    (("batch.volcano.sh/v1alpha1", "Job", "g"), {}),
    (("batch/v1", "Job", "g"), {"scheduling.k8s.io/group-name": "g"}),
    (("leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet", "g"), {"leaderworkerset.sigs.k8s.io/name": "g"}),
    (("example.org/v1", "Trainer", "g"), {"kai.scheduler/queue": "q"}),
]


@pytest.mark.parametrize(("owner", "labels"), OWNERS, ids=str)
def test_a_gang_that_is_half_started_is_named_and_not_started(
    owner: tuple[str, str, str], labels: dict[str, str]
) -> None:
    """32 GPUs that do nothing, and the rest of the gang has no node; nothing is proposed for it."""
    played = play_objects(made(*_half(owner, labels)), _quiet(), ticks=12, policy="recommend")
    notes = {each.code: each for each in played.notes() if each.subject.startswith("team/g")}
    facts = {each.name: each.value for each in notes["half_started"].facts}
    assert facts == {"held": 32, "lacking": 4}
    assert not _proposed(played)


@pytest.mark.parametrize(("sm", "run", "wait"), [(0.6, 4, 4), (0.0, 4, 0)])
def test_a_gang_that_works_or_is_whole_is_not_half_started(sm: float, run: int, wait: int) -> None:
    """Elastic work goes on with the pods that it has."""
    played = play_objects(made(*_half(OWNERS[0][0], run=run, wait=wait)), _quiet(run, sm), ticks=12)
    assert "half_started" not in {each.code for each in played.ticks[-1][2].notes}


def test_admitted_work_without_pods_has_a_reason_of_its_own() -> None:
    """It is no work that waits for a check."""
    played = play_objects(_without(objects_of(MANAGER), *LOCAL), policy="recommend")
    assert played.waits() == {"team/far": "no_pods"}


def _job(**spec: Any) -> Json:
    pods = {"containers": [{"name": "main", "resources": {"limits": {"nvidia.com/gpu": "8"}}}]}
    data = {"name": "far", "namespace": "team", "uid": "job-team-far"}
    given = {"parallelism": 2, "completions": 2, "template": {"spec": pods}} | spec
    return {"kind": "Job", "apiVersion": "batch/v1", "metadata": data, "spec": given, "status": {}}


def _workload(job: Json, count: int, admitted: int, **status: Any) -> Json:
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": "far", "uid": "job-team-far", "controller": True}
    sets = [{"name": "main", "count": count, "template": job["spec"]["template"]}]
    reached = [{"type": each, "status": "True"} for each in ("QuotaReserved", "Admitted")]
    assigned = [{"name": "main", "count": admitted, "flavors": {"nvidia.com/gpu": "f"}}]
    given = {"conditions": reached, "admission": {"clusterQueue": "cq", "podSetAssignments": assigned}}
    data = {"name": "far", "namespace": "team", "ownerReferences": [owner]}
    spec = {"queueName": "lq", "active": True, "podSets": sets}
    return {"kind": "Workload", "metadata": data, "spec": spec, "status": given | status}


def _here(*nodes: str, gates: tuple[str, ...] = ()) -> list[Json]:
    """Two nodes, and pods of the Job on those that are named; one that is gated has none."""
    shared: Json = {"gpus": 8, "owner": ["batch/v1", "Job", "far"]}
    found: list[Json] = [{"node": "n-{n}", "gpus": 8, "product": "NVIDIA-H100-80GB-HBM3", "copies": 2}]
    found += [{"pod": f"team/far-{each}", "at": each, **shared} for each in nodes]
    return found + [{"pod": "team/far-g", "spec": {"schedulingGates": [{"name": gate}]}, **shared} for gate in gates]


@pytest.mark.parametrize(("pods", "known"), [((), False), (("n-0",), True)])
@pytest.mark.parametrize("policy", ["recommend", "autopilot"])
def test_a_job_that_another_controller_runs_is_no_wait_for_a_start(
    policy: str, pods: tuple[str, ...], *, known: bool
) -> None:
    """`spec.managedBy` names it. Where it makes pods here they count, and elsewhere a gap says so."""
    job = _job(managedBy="example.org/runner", parallelism=1, completions=1)
    played = play_objects(made(job, *_here(*pods)), policy=policy)
    assert _known(played) == known
    assert not _proposed(played)
    assert played.said("team/far managed-by the controller .example.org/runner. runs it") != known


def test_a_suspended_job_of_another_controller_waits() -> None:
    """It has not been started yet. A Job that names Kubernetes itself as its manager is like any other."""
    job = _job(managedBy="example.org/runner", suspend=True)
    assert play_objects(made(job, *_here())).waits() == {"team/far": "suspended"}
    assert _proposed(play_objects(made(_job(managedBy="kubernetes.io/job-controller"), *_here()))) == {"team/far"}


@pytest.mark.parametrize("policy", ["recommend", "autopilot"])
def test_pods_that_kueue_gates_after_their_admission_wait_for_kueue(policy: str) -> None:
    """With topology-aware scheduling it chooses the nodes."""
    job = _job(parallelism=1, completions=1)
    objects = made(job, _workload(job, 1, 1), *_here(gates=("kueue.x-k8s.io/topology",)))
    played = play_objects(objects, policy=policy)
    assert not _proposed(played)
    assert played.waits() == {"team/far": "check"}


def test_a_gang_that_kueue_admits_in_part_is_as_wide_as_that() -> None:
    """Two of four pods (kubernetes-sigs/kueue#1163)."""
    job = _job(completions=4)
    played = play_objects(made(job, _workload(job, 4, 2), *_here("n-0", "n-1")))
    assert played.snapshot.workloads.gpus.tolist() == [16]
    assert played.held() == {"team/far": 16}


@pytest.mark.parametrize("way", ["job", "workload"])
def test_pods_that_ended_and_are_deleted_are_not_lacking(way: str) -> None:
    """The counts of the Job and of Kueue stay; the gang is not half started."""
    job = _job(parallelism=3, completions=3)
    job["status"] = {"succeeded": 1} if way == "job" else {}
    freed = {"reclaimablePods": [{"name": "main", "count": 1}]} if way == "workload" else {}
    played = play_objects(made(job, _workload(job, 3, 3, **freed), *_here("n-0", "n-1")))
    assert played.snapshot.workloads.lacking_pods.tolist() == [0]
