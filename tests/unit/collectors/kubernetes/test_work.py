"""Work outside Kueue, and what all work has in common: gangs, contracts, priorities, budgets, queues."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from autopilot.contract.annotations import MANAGE
from autopilot.core.effects.admit import AdmitOperation
from autopilot.core.effects.evict import EvictOperation
from autopilot.core.model.objects import Subject, SubjectKind
from autopilot.core.model.records import Instruction
from autopilot.core.model.snapshot import Displace, Gate, SloClass, State, Topology
from autopilot.core.model.stops import Save, StopReason
from autopilot.core.model.verb import Operation
from tests.kits.kube_objects import (
    EPOCH_S,
    Json,
    cluster_queue,
    done,
    flavor,
    job,
    kueue,
    local_queue,
    meta,
    node,
    owner,
    pod,
    pod_spec,
    stamp,
    workload,
)
from tests.unit.collectors.kubernetes.view import Seen, held, reasons, row


def _named(kind: str, name: str, namespace: str = "", **more: Any) -> Json:
    return {"kind": kind, "metadata": meta(name, namespace), **more}


def _deployment(name: str, replicas: int, annotations: Json) -> Json:
    template = {"metadata": {"annotations": annotations, "labels": {"app": name}}, "spec": pod_spec(1)}
    status = {"replicas": replicas, "readyReplicas": replicas}
    return _named("Deployment", name, "team", spec={"replicas": replicas, "template": template}, status=status)


# --- gangs ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("labels", "reference", "name"),
    [
        (
            {"jobset.sigs.k8s.io/jobset-uid": "u", "jobset.sigs.k8s.io/jobset-name": "js"},
            owner("Job", "js-w-0", "j"),
            "js",
        ),
        ({"training.kubeflow.org/job-name": "pt"}, owner("PyTorchJob", "pt", "u"), "pt"),
        ({"ray.io/cluster": "ray"}, owner("RayCluster", "ray", "u"), "ray"),
        (
            {"leaderworkerset.sigs.k8s.io/name": "lws", "leaderworkerset.sigs.k8s.io/group-index": "2"},
            owner("StatefulSet", "lws-2", "u"),
            "lws-2",
        ),
        ({"scheduling.x-k8s.io/pod-group": "pg"}, None, "pg"),
        ({"pod-group.scheduling.sigs.k8s.io": "pg"}, None, "pg"),
    ],
)  # fmt: skip
def test_pods_of_one_owner_are_one_gang(labels: Json, reference: Json | None, name: str) -> None:
    """JobSet, PyTorchJob, RayCluster, LeaderWorkerSet and pod groups, through labels and owner references."""
    pods = [pod(f"{name}-{k}", 4, node="n1", labels=labels, owner=reference) for k in range(2)]
    seen = Seen(node("n1"), *pods).tables()
    found = row(seen[1], f"team/{name}")
    assert (found["gpus"], found["gpus_per_member"], found["state"]) == (8, 4, State.RUNNING)
    assert len(held(seen, f"team/{name}")) == 8


@pytest.mark.parametrize("key", ["scheduling.k8s.io/group-name", "scheduling.volcano.sh/group-name", "pod-group-name"])
def test_pods_of_a_group_by_annotation_are_one_gang(key: str) -> None:
    """As Volcano and KAI write it."""
    pods = [pod(f"pg-{k}", 4, node="n1", annotations={key: "pg"}) for k in range(2)]
    found = row(Seen(node("n1"), *pods).tables()[1], "team/pg")
    assert (found["gpus"], found["gpus_per_member"]) == (8, 4)


def test_a_replica_in_a_queue_declares_its_class_on_its_pod() -> None:
    """The Workload that Kueue makes for a pod has no annotations of the pod: without them it would be batch work."""
    notes = {"gpu-autopilot.io/slo-class": "latency-critical"}
    replica = pod("chat-0", 1, node="n1", annotations=notes, owner=owner("ReplicaSet", "chat-5", "r"))
    by = {**owner("Pod", "chat-0", replica["metadata"]["uid"]), "apiVersion": "v1"}
    made = workload("pod-chat-0", owner=by, admitted_to="q")
    _, work = Seen(*kueue(node("n1"), replica, made)).tables()
    found = row(work, "team/chat-0")
    assert (found["slo_class"], found["preemptible"]) == (SloClass.LATENCY_CRITICAL, False)


def test_members_that_differ_have_rows_of_their_own() -> None:
    """A leader with one GPU and two workers with four: the member table has their widths."""
    owned = owner("PyTorchJob", "pt", "u")
    pods = [pod("pt-m", 1, owner=owned), *[pod(f"pt-w{k}", 4, owner=owned) for k in range(2)]]
    _, work = Seen(node("n1"), *pods).tables()
    assert row(work, "team/pt")["gpus"] == 9
    assert sorted(work.members.gpus.tolist()) == [1, 4, 4]


def test_replicas_of_a_deployment_are_work_of_their_own() -> None:
    """One service with three replicas; the objective comes from its pods' contract."""
    replica = owner("ReplicaSet", "chat-6d4cf", "rs")
    labels = {"app": "chat", "pod-template-hash": "6d4cf"}
    notes = {"gpu-autopilot.io/objective-s": "300ms"}
    pods = [pod(f"chat-6d4cf-{k}", 1, node="n1", owner=replica, labels=labels, annotations=notes) for k in range(3)]
    _, work = Seen(node("n1"), _deployment("chat", 3, notes), *pods).tables()
    assert (work.services.id.tolist(), work.services.replicas.tolist()) == (["team/chat"], [3])
    assert work.services.objective_s.tolist() == [0.3]
    assert work.workloads.service.tolist() == [0, 0, 0]
    assert work.workloads.slo_class.tolist() == [SloClass.LATENCY_CRITICAL] * 3


def test_states_of_pods() -> None:
    """Waiting, starting, running, stopping, ended: GPUs are held from binding until the containers have ended."""
    starting = pod("starting", 1, node="n1", phase="Pending")
    pods = [pod("waiting", 1), starting, pod("running", 1, node="n1"), pod("stopping", 1, node="n1", deleting=True)]
    over = pod("over", 1, node="n1", phase="Failed")
    seen = Seen(node("n1"), *pods, over).tables()
    states = {each.partition("/")[2]: row(seen[1], each)["state"] for each in seen[1].workloads.id.tolist()}
    assert states == {
        "waiting": State.PENDING,
        "starting": State.STARTING,
        "running": State.RUNNING,
        "stopping": State.CHECKPOINTING,
        "over": State.FAILED,
    }
    assert held(seen, "team/over") == []
    assert row(seen[1], "team/running")["start_s"] == EPOCH_S


def test_a_suspended_job_waits_for_the_person_who_suspended_it() -> None:
    """Without our label nobody handed it over; with the label it may be started, until a person suspends it later."""
    label: Json = {"f:metadata": {"f:labels": {f"f:{MANAGE}": {}}}}
    suspend: Json = {"f:spec": {"f:suspend": {}}}

    def handed_over(name: str, first: Json, *later: tuple[str, Json]) -> Json:
        found = job(name, 2, suspend=True)
        found["metadata"]["labels"] = {MANAGE: "true"}
        entries = [("kubectl-create", stamp(), first), *((who, stamp(EPOCH_S + 9), what) for who, what in later)]
        rows = [{"manager": who, "time": at, "fieldsType": "FieldsV1", "fieldsV1": what} for who, at, what in entries]
        found["metadata"]["managedFields"] = rows
        return found

    ours = handed_over("ours", label | suspend)
    back = handed_over("back", label, ("kubectl-patch", suspend))
    _, work = Seen(node("n1"), job("theirs", 2, suspend=True), ours, back).tables()
    gates = {name: row(work, f"team/{name}")["gate"] for name in ("theirs", "ours", "back")}
    assert gates == {"theirs": Gate.SUSPENDED, "ours": Gate.OPEN, "back": Gate.SUSPENDED}


def test_a_foreign_scheduling_gate_holds_work_back() -> None:
    """A gate of somebody else is an external check; ours is not."""
    _, work = Seen(
        node("n1"),
        pod("a", 1, schedulingGates=[{"name": "example.com/wait"}]),
        pod("b", 1, schedulingGates=[{"name": "gpu-autopilot.io/admission"}]),
    ).tables()
    assert (row(work, "team/a")["gate"], row(work, "team/b")["gate"]) == (Gate.WAITING, Gate.OPEN)


def test_restarts_are_counted() -> None:
    """A gang whose pods went and came back is another incarnation."""
    first = pod("pt-0", 1, node="n1", owner=owner("Job", "pt", "uid-team-pt"))
    view = Seen(node("n1"), job("pt", 1), first)
    assert row(view.tables()[1], "team/pt")["incarnation"] == 0
    assert row(view.tables(gone=(first,))[1], "team/pt")["incarnation"] == 1


@pytest.mark.parametrize(
    ("operation", "there", "counted"),
    [
        (AdmitOperation(slots=()), (), 3),
        (EvictOperation(reason=StopReason.PREEMPT, grace_s=0.0, save=Save.TRY), (), 4),
        (EvictOperation(reason=StopReason.PREEMPT, grace_s=0.0, save=Save.TRY), ("n1",), 3),
    ],
    ids=["still waiting", "stopped meanwhile", "still running"],
)
def test_restarts_are_counted_on_after_a_takeover(operation: Operation, there: tuple[str, ...], counted: int) -> None:
    """An effect under way holds for the revision that the process before counted."""
    pods = [pod("pt-0", 1, node=each, owner=owner("Job", "pt", "uid-team-pt")) for each in there]
    view = Seen(node("n1"), job("pt", 1), *pods)
    subject = Subject(SubjectKind.WORKLOAD, "team/pt", "uid-team-pt", 3)
    view.collector.recall([Instruction("1/p/pt", subject, operation, 0.0, 1, "p")])
    assert row(view.tables()[1], "team/pt")["incarnation"] == counted
    assert row(view.tables()[1], "team/pt")["incarnation"] == counted


def test_a_deleted_gang_is_reported_by_its_uid() -> None:
    """The core can tell a deletion from a list that shrank."""
    gone = pod("p", 1)
    view = Seen(node("n1"), gone, pod("q", 1))
    view.tables()
    assert view.batch(gone=(gone,)).work_list.deleted == ("uid-team-p",)


def test_a_pod_that_was_created_anew_under_its_name_is_new_work() -> None:
    """The old uid is gone, the new one waits."""
    old = pod("p", 1, node="n1", uid="old")
    view = Seen(node("n1"), old)
    view.tables()
    batch = view.batch(pod("p", 1, uid="new"), gone=(old,))
    assert batch.work is not None
    assert (batch.work_list.deleted, batch.work.workloads.uid.tolist()) == (("old",), ["new"])


# --- declarations ---------------------------------------------------------------------------------


def test_the_contract_is_read_from_annotations_and_labels() -> None:
    """Class, least width, checkpoints and topology of a Job; Kueue's topology request for one without."""
    notes = {
        "gpu-autopilot.io/min-members": "2",
        "gpu-autopilot.io/checkpoint-interval-s": "30m",
        "gpu-autopilot.io/topology": "leaf",
        "gpu-autopilot.io/gpu-type": "H100-80GB",
    }
    _, work = Seen(node("n1"), job("j", 8, width=4, annotations=notes)).tables()
    found = row(work, "team/j")
    assert (found["gpus"], found["min_gpus"], found["checkpoint_interval_s"]) == (32, 16, 1800.0)
    assert (found["topology"], found["gpu_models"], found["excluded"]) == (Topology.LEAF, 1, False)


@pytest.mark.parametrize("value", ["4 GPUs", "<script>alert(1)</script>", "9" * 262_144, "\u202e\x00\n", "-1"])
def test_a_refused_contract_leaves_its_work_alone(value: str) -> None:
    """Garbage, markup and 256 KiB: one short gap names the annotation, and nothing is decided about the work."""
    batch = Seen(node("n1"), pod("p", 2, annotations={"gpu-autopilot.io/members": value})).batch()
    assert batch.work is not None
    found = row(batch.work, "team/p")
    assert (found["excluded"], found["gpus"]) == (True, 2)
    (reason,) = reasons(batch, "contract")
    assert reason.startswith("team/p: its workload contract is refused, and it is left alone: gpu-autopilot.io/members")
    assert len(reason) < 600


def test_priorities_come_from_where_they_are_known() -> None:
    """A pod has its value; a Job without pods gets that of its class, and the global default without one."""
    classes = [
        _named("PriorityClass", "high", value=1000),
        _named("PriorityClass", "usual", value=10, globalDefault=True),
    ]
    jobs = [job("named", 1, priorityClassName="high"), job("plain", 1)]
    _, work = Seen(node("n1"), *classes, *jobs, pod("p", 1, priority=7)).tables()
    assert [row(work, f"team/{name}")["priority"] for name in ("named", "plain", "p")] == [1000, 10, 7]


def test_a_budget_that_forbids_evictions_makes_work_not_preemptible() -> None:
    """Its eviction would be refused with 429. When the budget allows it again, it is preemptible again."""
    budget = _named(
        "PodDisruptionBudget",
        "b",
        "team",
        spec={"selector": {"matchLabels": {"app": "x"}}},
        status={"disruptionsAllowed": 0},
    )
    view = Seen(node("n1"), budget, pod("p", 1, node="n1", labels={"app": "x"}), pod("q", 1, node="n1"))
    _, work = view.tables()
    assert (row(work, "team/p")["preemptible"], row(work, "team/q")["preemptible"]) == (False, True)
    _, work = view.tables({**budget, "status": {"disruptionsAllowed": 1}})
    assert row(work, "team/p")["preemptible"]


def test_the_shortest_limit_counts() -> None:
    """The deadline of the Job and that of its pods."""
    found = job("j", 1, activeDeadlineSeconds=7200)
    found["spec"]["activeDeadlineSeconds"] = 3600
    assert row(Seen(node("n1"), found).tables()[1], "team/j")["limit_s"] == 3600.0


# --- queues ---------------------------------------------------------------------------------------


def test_kueues_queues_are_our_tree() -> None:
    """Cohorts above ClusterQueues, quotas by GPU model, limits of borrowing and lending, preemption, order."""
    cohort = _named("Cohort", "all", spec={"parentName": "org"})
    queue = cluster_queue(
        "a",
        8,
        cohort="all",
        resource={"borrowingLimit": "4", "lendingLimit": "6"},
        queueingStrategy="StrictFIFO",
        preemption={
            "withinClusterQueue": "LowerPriority",
            "reclaimWithinCohort": "Any",
            "borrowWithinCohort": {"policy": "LowerPriority", "maxPriorityThreshold": 100},
        },
        fairSharing={"weight": "2500m"},
    )
    _, work = Seen(node("n1"), cohort, flavor(), queue, cluster_queue("b", 4)).tables()
    queues = work.queues
    at = {name: place for place, name in enumerate(queues.id.tolist())}
    a, b = at["a"], at["b"]
    assert [queues.id[queues.parent[at[name]]] for name in ("cohort/org", "cohort/all", "a", "b")] == [
        "root",
        "cohort/org",
        "cohort/all",
        "root",
    ]
    assert (queues.guarantee[a].tolist(), queues.borrow_limit[a], queues.lend_limit[a]) == ([8], 4, 6)
    assert (queues.strict[a], queues.weight[a], queues.while_borrowing_priority[a]) == (True, 2.5, 100)
    assert (queues.within_queue[a], queues.reclaim[a], queues.while_borrowing[a]) == (
        Displace.LOWER,
        Displace.ANY,
        Displace.LOWER,
    )
    assert (queues.borrow_limit[b], queues.reclaim[b]) == (0, Displace.NEVER)


def test_fair_sharing_is_known_by_the_status_that_only_a_fair_manager_writes() -> None:
    """A weight alone says nothing: Kueue accepts it where fair sharing is off."""
    weighted = cluster_queue("a", 8, fairSharing={"weight": "2"})
    view = Seen(node("n1"), flavor(), weighted, cluster_queue("b", 8))
    view.tables()
    assert view.collector.fair_sharing == ""
    fair = cluster_queue("b", 8)
    fair["status"]["fairSharing"] = {"weightedShare": 250}
    view = Seen(node("n1"), flavor(), weighted, fair)
    view.tables()
    assert view.collector.fair_sharing == "ClusterQueue b has status.fairSharing"


def test_a_cycle_of_cohorts_is_contained() -> None:
    """The queue below it starts nothing and has no guarantee; the others are not touched."""
    cohorts = [_named("Cohort", one, spec={"parentName": other}) for one, other in (("x", "y"), ("y", "x"))]
    view = Seen(node("n1"), *cohorts, flavor(), cluster_queue("a", 8, cohort="x"), cluster_queue("b", 8))
    snapshot = view.snapshot()
    at = {name: place for place, name in enumerate(snapshot.queues.id.tolist())}
    assert snapshot.queues.guarantee[at["b"]].tolist() == [8]
    assert 0 in snapshot.queues.limit[[at["cohort/x"], at["cohort/y"]]]


def test_work_of_a_stopped_queue_is_held_back() -> None:
    """StopPolicy of the ClusterQueue or of the LocalQueue, or a queue that Kueue calls inactive."""
    inactive = cluster_queue("c", 8)
    inactive["status"]["conditions"] = [done("Active", "FlavorNotFound", status="False", message="missing flavor")]
    objects = [
        flavor(),
        cluster_queue("a", 8, stopPolicy="Hold"),
        cluster_queue("b", 8),
        inactive,
        local_queue("la", "a"),
        local_queue("lb", "b", stopPolicy="HoldAndDrain"),
        local_queue("lc", "c"),
        local_queue("ok", "b"),
    ]
    waiting = [workload(f"w-{name}", 1, queue=name) for name in ("la", "lb", "lc", "ok")]
    _, work = Seen(node("n1"), *objects, *waiting).tables()
    gates = [row(work, f"team/w-{name}")["gate"] for name in ("la", "lb", "lc", "ok")]
    assert gates == [Gate.WAITING, Gate.WAITING, Gate.WAITING, Gate.OPEN]


def test_work_of_an_unknown_queue_is_left_alone() -> None:
    """A LocalQueue that does not exist is named."""
    batch = Seen(node("n1"), *kueue(workload("w", 1, queue="nowhere"))).batch()
    assert batch.work is not None
    assert row(batch.work, "team/w")["excluded"]
    assert reasons(batch, "queue") == ["team/w: its queue does not exist; it is left alone"]


def test_a_flavor_without_nodes_gives_no_quota() -> None:
    """Its GPUs do not exist, and the gap names the flavor."""
    objects = [flavor("ghost", {"gpu": "none"}), cluster_queue("a", 8, flavor="ghost")]
    batch = Seen(node("n1"), *objects).batch()
    assert batch.work is not None
    assert batch.work.queues.guarantee.sum() == 0
    assert reasons(batch, "flavor") == ["ghost: no node with GPUs has its labels; its quota does not count"]


def test_kais_queues_are_our_tree() -> None:
    """A quota of GPUs of any model is divided over the models; -1 is no limit."""
    gpu = {"quota": 6, "overQuotaWeight": 2, "limit": -1}
    queues = [
        _named("Queue", "dept", spec={"resources": {"gpu": {"quota": -1, "limit": 12}}}),
        _named("Queue", "team-a", spec={"parentQueue": "dept", "priority": 3, "resources": {"gpu": gpu}}),
    ]
    nodes = [node("n1", 8), node("n2", 4, product="NVIDIA-L40S")]
    view = Seen(*nodes, *queues, pod("p", 1, labels={"kai.scheduler/queue": "team-a"}))
    _, work = view.tables()
    assert view.collector.engine == "kai"
    at = {name: place for place, name in enumerate(work.queues.id.tolist())}
    assert work.queues.guarantee[at["team-a"]].tolist() == [4, 2]
    assert (work.queues.limit[at["team-a"]], work.queues.limit[at["dept"]]) == (-1, 12)
    assert row(work, "team/p")["queue"] == at["team-a"]


def test_plain_namespaces_are_queues() -> None:
    """Without any queueing engine a namespace is a queue, limited by its ResourceQuota."""
    quota = _named("ResourceQuota", "q", "team", spec={"hard": {"requests.nvidia.com/gpu": "16"}})
    _, work = Seen(node("n1"), quota, pod("p", 1), pod("r", 1, namespace="other")).tables()
    assert work.queues.id.tolist() == ["root", "other", "team"]
    assert work.queues.limit.tolist() == [-1, -1, 16]
    assert work.queues.id[row(work, "team/p")["queue"]] == "team"


# --- how whole the view is ------------------------------------------------------------------------


def test_a_clock_an_hour_off_is_named_and_freezes() -> None:
    """Ages and waits would be wrong, so the view is not whole."""
    batch = Seen(node("n1"), pod("p", 1), skew_s=lambda: 3600.0).batch()
    assert reasons(batch, "clock") == [
        ": the clock of the API server is 3600 s ahead of that of this machine; synchronize the clocks"
    ]
    assert not batch.work_list.complete


def test_a_missing_right_freezes_and_names_the_role() -> None:
    """Without the Workloads nobody knows what Kueue admitted: the view is not whole."""
    from collectors.kubernetes.transport import ApiError

    view = Seen(node("n1"), pod("p", 1))
    view.tables()
    for name in ("workloads", "poddisruptionbudgets"):
        view.api.refuse[f"list {name}"] = ApiError(403, "403 forbidden")
        view.api.scripts[name] = [[ApiError(0, "cut")]]
    batch = view.batch()
    assert not batch.work_list.complete
    assert "no permission to list workloads.kueue.x-k8s.io" in batch.work_list.reason
    view.api.refuse.pop("list workloads")
    batch = view.batch()
    assert batch.work_list.complete
    (gap,) = reasons(batch, "poddisruptionbudgets.policy")
    assert "no permission to list poddisruptionbudgets.policy" in gap


def test_rows_follow_their_gangs_when_others_go() -> None:
    """A table that lost rows still shows each gang with its own placements."""
    pods = [pod(f"p{k}", 1, node="n1") for k in range(6)]
    view = Seen(node("n1"), *pods)
    before = {each: held(view.tables(), f"team/{each}") for each in ("p1", "p4", "p5")}
    seen = view.tables(gone=(pods[0], pods[3]))
    assert {each: held(seen, f"team/{each}") for each in before} == before
    assert np.unique(seen[1].placements.workload).tolist() == [0, 1, 2, 3]
