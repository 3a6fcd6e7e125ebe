"""Writes of our accounts that prepare what the policies refuse, or that only another kind of instructions needs."""

from __future__ import annotations

from typing import Any

from autopilot.contract.annotations import APPROVE, CORDONED, EFFECT, EPOCH, PLACEMENT, REJECT, REQUEST, STOPPED
from tests.unit.actuators.refused_writes import (
    CORE,
    HOST,
    JOB,
    LONE,
    MAPS,
    NODE,
    OWNER,
    POD,
    REQUESTS,
    RUNNING,
    WORKLOAD,
    Obj,
    Write,
    check_state,
    meta,
    template,
)

CLOSED = f"{CORE}/nodes/closed"
HALTED = WORKLOAD.rpartition("/")[0] + "/halted"
ADVICE = "/apis/gpu-autopilot.io/v1alpha1/recommendations"
MARK = {STOPPED: '{"uid": "u", "id": "1", "reason": "reclaim", "returns": true}'}
PLACED = f"{PLACEMENT}0123456789"
TAKEN = '{"id": "1", "reason": "x", "cordoned": true}'


def event(space: str, reporter: str = "gpu-autopilot.io/controller") -> Obj:
    """An Event in a namespace."""
    return {
        "metadata": {"name": "e", "namespace": space},
        "eventTime": "2026-11-23T00:00:00.000000Z",
        "reportingController": reporter,
        "reportingInstance": "i",
        "action": "Evict",
        "reason": "x",
        "regarding": {"kind": "Pod", "namespace": space, "name": "p"},
        "type": "Normal",
    }


def advice(**notes: str) -> Obj:
    """A Recommendation, with annotations by the last part of their name."""
    return {
        "metadata": {"name": "new", "annotations": {f"gpu-autopilot.io/{key}": value for key, value in notes.items()}},
        "spec": dict.fromkeys(("id", "digest", "action", "workload"), "x"),
    }


def request(kind: str, **metadata: Any) -> Obj:
    """A request for nodes with our label, or one of its templates."""
    owner = [{"apiVersion": "batch/v1", "kind": "Job", "name": "j", "uid": "u"}]
    found = {"name": "gpu-autopilot-y", "labels": {REQUEST: "true"}, "ownerReferences": owner, **metadata}
    if kind == "PodTemplate":
        return {"metadata": found, "template": {"spec": {"containers": [{"name": "m", "image": "a"}]}}}
    pod_sets = [{"count": 1, "podTemplateRef": {"name": "t"}}]
    return {"metadata": found, "spec": {"provisioningClassName": "c", "podSets": pod_sets}}


def _work() -> list[Write]:
    evict = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "p"}}
    exact = {"preconditions": {"uid": "UID"}}
    jobs = [
        ("our mark on what its owner suspended", LONE, meta(annotations=MARK)),
        ("our mark on what runs", RUNNING, meta(annotations=MARK)),
        ("a placement without a start", LONE, template(nodeSelector={PLACED: "true"})),
        ("a placement without a start, handed over", JOB, template(nodeSelector={PLACED: "true"})),
        (
            "a start at another value",
            JOB,
            {"spec": {"suspend": False, **template(nodeSelector={PLACED: "no"})["spec"]}},
        ),
        ("fewer pods where its owner declares nothing", f"{JOB}-wide", {"spec": {"parallelism": 1}}),
        ("fewer pods than its owner declares", JOB, {"spec": {"parallelism": 1}}),
        ("a start with other pods in one write", JOB, {"spec": {"suspend": False, "parallelism": 3}}),
    ]
    workloads = [
        ("our mark on what somebody deactivated", HALTED, meta(annotations=MARK)),
        ("our mark on what is active", WORKLOAD, meta(annotations=MARK)),
        ("active, although somebody deactivated it", HALTED, {"spec": {"active": True}}),
    ]
    states: list[tuple[str, Obj]] = [
        ("a wait before its next start", {"requeueAfterSeconds": 1_000_000}),
        ("a count of retries", {"retryCount": 1000}),
        (
            "a placement with a Retry",
            {"state": "Retry", "podSetUpdates": [{"name": "main", "nodeSelector": {HOST: "n1"}}]},
        ),
    ]
    theirs = check_state("Pending", "budget")
    found = [Write(f"Job: {does}", path, body) for does, path, body in jobs]
    found += [Write(f"Workload: {does}", path, body) for does, path, body in workloads]
    for does, fields in states:
        given = {**check_state("Pending"), **fields}
        found.append(
            Write(f"Workload status: {does}", f"{WORKLOAD}/status", {"status": {"admissionChecks": [given, theirs]}})
        )
    return [
        *found,
        Write("pod: a node while our gate stays", POD, {"spec": {"nodeSelector": {HOST: "n1"}}}),
        Write(
            "eviction: with orphans",
            f"{POD}/eviction",
            {**evict, "deleteOptions": {**exact, "propagationPolicy": "Orphan"}},
            "POST",
        ),
    ]


def _nodes() -> list[Write]:
    bodies = [
        ("opened, although a person closed it", CLOSED, {"spec": {"unschedulable": None}}),
        ("our record of its cordon, although a person closed it", CLOSED, meta(annotations={CORDONED: TAKEN})),
        ("our record of a change, although a person closed it", CLOSED, meta(annotations={EFFECT: TAKEN})),
        (
            "opened with its record in one write",
            CLOSED,
            {**meta(annotations={CORDONED: TAKEN}), "spec": {"unschedulable": None}},
        ),
        ("closed without a record", NODE, {"spec": {"unschedulable": True}}),
    ]
    return [Write(f"node: {does}", path, body) for does, path, body in bodies]


def _own() -> list[Write]:
    memory = {"name": "gpu-autopilot-memory"}
    owners = [{"apiVersion": "v1", "kind": "Namespace", "name": "team", "uid": "u"}]
    return [
        Write("Recommendation: approved by ourselves", f"{ADVICE}/known", meta(annotations={APPROVE: "yes"})),
        Write("Recommendation: rejected by ourselves", f"{ADVICE}/known", meta(annotations={REJECT: "yes"})),
        Write("Recommendation: another approval", f"{ADVICE}/asked", meta(annotations={APPROVE: "other"})),
        Write("Recommendation: created with an approval", ADVICE, advice(approve="yes"), "POST"),
        Write("Recommendation: a finalizer", f"{ADVICE}/known", meta(finalizers=["example.com/keep"])),
        Write("Recommendation: a foreign label", f"{ADVICE}/known", meta(labels={"a": "b"})),
        Write(
            "Epoch: of another name",
            "/apis/gpu-autopilot.io/v1alpha1/namespaces/gpu-autopilot/epochs",
            {"metadata": {"name": "other"}, "spec": {"epoch": 1}},
            "POST",
        ),
        Write(
            "Event: in kube-system",
            "/apis/events.k8s.io/v1/namespaces/kube-system/events",
            event("kube-system"),
            "POST",
        ),
        Write(
            "Event: as another reporter",
            "/apis/events.k8s.io/v1/namespaces/team/events",
            event("team", "kubelet"),
            "POST",
        ),
        Write("memory: that nobody can change again", MAPS, {"metadata": memory, "immutable": True}, "POST"),
        Write("memory: with a finalizer", MAPS, {"metadata": {**memory, "finalizers": ["example.com/keep"]}}, "POST"),
        Write("memory: with an owner", MAPS, {"metadata": {**memory, "ownerReferences": OWNER}}, "POST"),
        *(
            Write(f"{kind}: with {does}", f"{path}/{kind.lower()}s", request(kind, **more), "POST")
            for kind, path in (
                ("PodTemplate", f"{CORE}/namespaces/team"),
                ("ProvisioningRequest", f"{REQUESTS}/namespaces/team"),
            )
            for does, more in (
                ("a finalizer", {"finalizers": ["example.com/keep"]}),
                ("a foreign owner", {"ownerReferences": owners}),
            )
        ),
    ]


def _watchdog() -> list[Write]:
    marked = f"{JOB}-marked"
    bodies = [
        ("a placement in a template", JOB, template(nodeSelector={PLACED: "true"})),
        (
            "a start at a place",
            marked,
            {"spec": {"suspend": False, **template(nodeSelector={PLACED: "true"})["spec"]}},
        ),
        ("our mark away from what stays stopped", marked, meta(annotations={STOPPED: None})),
        ("an epoch on a pod", POD, meta(annotations={EPOCH: "1"})),
    ]
    return [Write(f"watchdog: {does}", path, body, ours=False) for does, path, body in bodies]


STEPS = [*_work(), *_nodes(), *_own(), *_watchdog()]
"""All of them; the objects are those of `test_field_policy.world`."""
