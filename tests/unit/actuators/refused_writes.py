"""Writes of our accounts that the policies of the fields must refuse."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from autopilot.contract.annotations import CHECK, CONDEMNED, CONTROLLER, EFFECT, EPOCH, PLACEMENT, STOPPED
from autopilot.contract.tree import PREFIX

Obj = dict[str, Any]
CORE, APPS, BATCH = "/api/v1", "/apis/apps/v1", "/apis/batch/v1"
KUEUE = "/apis/kueue.x-k8s.io/v1beta2"
SCALING, REQUESTS = "/apis/autoscaling/v2", "/apis/autoscaling.x-k8s.io/v1"
POD, SYSTEM_POD = f"{CORE}/namespaces/team/pods/p", f"{CORE}/namespaces/kube-system/pods/p"
JOB, SYSTEM_JOB = f"{BATCH}/namespaces/team/jobs/j", f"{BATCH}/namespaces/kube-system/jobs/j"
LONE, RUNNING = f"{BATCH}/namespaces/team/jobs/lone", f"{BATCH}/namespaces/team/jobs/running"
SERVICE, SYSTEM_SERVICE = f"{APPS}/namespaces/team/deployments/s", f"{APPS}/namespaces/kube-system/deployments/s"
SET = f"{APPS}/namespaces/team/statefulsets/s"
AUTOSCALER = f"{SCALING}/namespaces/team/horizontalpodautoscalers/s"
WORKLOAD, QUEUE, NODE = f"{KUEUE}/namespaces/team/workloads/w", f"{KUEUE}/clusterqueues/q", f"{CORE}/nodes/n1"
MAPS, MIG_MAP = (
    f"{CORE}/namespaces/gpu-autopilot/configmaps",
    f"{CORE}/namespaces/gpu-operator/configmaps/gpu-autopilot-mig",
)
GATED_BY = "kueue.x-k8s.io/admission-gated-by"
OWNER = [{"apiVersion": "v1", "kind": "Node", "name": "n1", "uid": "u"}]
GATES = [{"name": CONTROLLER}, {"name": "example.com/other"}]
TOLERATION = {"key": "any", "operator": "Exists"}
HOST = "kubernetes.io/hostname"


class Write(NamedTuple):
    """One write; `ours`: by the account of the controller, else by that of the watchdog."""

    does: str
    path: str
    body: Any
    method: str = "PATCH"
    ours: bool = True
    media: str = ""  # merge patch where it is a patch


STRATEGIC, JSON_PATCH = "application/strategic-merge-patch+json", "application/json-patch+json"


def meta(**fields: Any) -> Obj:
    """A patch of metadata."""
    return {"metadata": fields}


def notes(**values: str | None) -> Obj:
    """A patch of annotations; `__` stands for `/` and `_` for `-`."""
    return meta(annotations={key.replace("__", "/").replace("_", "-"): value for key, value in values.items()})


def template(**spec: Any) -> Obj:
    """A patch of the pods of a template."""
    return {"spec": {"template": {"spec": spec}}}


def image(name: str = "main") -> Obj:
    """A patch of containers, with another image."""
    return {"containers": [{"name": name, "image": "evil:1"}]}


def _pods() -> list[Write]:
    spec = [
        ("an early end", {"spec": {"activeDeadlineSeconds": 1}}),
        ("the gate of others away", {"spec": {"schedulingGates": [{"name": CONTROLLER}]}}),
        ("all gates away", {"spec": {"schedulingGates": None}}),
        ("a selector that is no place", {"spec": {"nodeSelector": {"pool": "cheap"}}}),
    ]
    metadata = [
        ("a foreign label", meta(labels={"app": "other"})),
        ("a label away", meta(labels={"app": None})),
        ("a foreign annotation", notes(example_com__x="1")),
        ("a declaration of its owner", notes(gpu_autopilot_io__exclude="true")),
        ("an approval", notes(gpu_autopilot_io__approve="yes")),
        ("an answer for the program", notes(gpu_autopilot_io__checkpoint_ack='{"id": "1"}')),
        ("the stop mark of a Job", notes(gpu_autopilot_io__stopped="{}")),
        ("a finalizer", meta(finalizers=["example.com/keep"])),
        ("an owner", meta(ownerReferences=OWNER)),
    ]
    found = [Write(f"pod: {does}", POD, body) for does, body in (*spec, *metadata)]
    more = [{"op": "add", "path": "/spec/tolerations/-", "value": TOLERATION}]
    for where, path in (("pod", POD), ("pod in kube-system", SYSTEM_POD)):
        found.append(Write(f"{where}: another image", path, {"spec": image()}, media=STRATEGIC))
        found.append(Write(f"{where}: a toleration", path, more, media=JSON_PATCH))
    found.append(Write("pod in kube-system: our own annotation", SYSTEM_POD, meta(annotations={EFFECT: "{}"})))
    evict = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "p"}}
    exact = {"preconditions": {"uid": "UID"}}
    found += [
        Write("eviction: of any pod of the name", f"{POD}/eviction", evict, "POST"),
        Write(
            "eviction: without grace",
            f"{POD}/eviction",
            {**evict, "deleteOptions": {**exact, "gracePeriodSeconds": 0}},
            "POST",
        ),
        Write("eviction: in kube-system", f"{SYSTEM_POD}/eviction", {**evict, "deleteOptions": exact}, "POST"),
    ]
    return found


def _jobs() -> list[Write]:
    record = json.dumps({"id": "1", "selector": {"pool": "cheap", HOST: "n2"}})
    bodies = [
        ("the selector of its owner away", template(nodeSelector={"pool": None})),
        ("the selector of its owner changed", template(nodeSelector={"pool": "dear"})),
        (
            "a forged record with the selector away",
            {**meta(annotations={EFFECT: record}), **template(nodeSelector={"pool": None})},
        ),
        ("a foreign selector", template(nodeSelector={"zone": "a"})),
        ("the host of its owner changed", template(nodeSelector={HOST: "n3"})),
        ("the host of its owner away", template(nodeSelector={HOST: None})),
        ("a toleration", template(tolerations=[TOLERATION])),
        ("an affinity", template(affinity={"nodeAffinity": {}})),
        ("a gate in its template", template(schedulingGates=[{"name": CONTROLLER}])),
        ("a label of its template", {"spec": {"template": {"metadata": {"labels": {"a": "b"}}}}}),
        ("an annotation of its template", {"spec": {"template": {"metadata": {"annotations": {"a": "b"}}}}}),
        ("more pods than its owner allows", {"spec": {"parallelism": 9}}),
        ("no pods", {"spec": {"parallelism": 0}}),
        ("more retries", {"spec": {"backoffLimit": 1000}}),
        ("an early end", {"spec": {"activeDeadlineSeconds": 1}}),
        ("an early removal", {"spec": {"ttlSecondsAfterFinished": 0}}),
        ("another queue", meta(labels={"kueue.x-k8s.io/queue-name": "rich"})),
        ("a foreign label", meta(labels={"team": "b"})),
        ("the label that hands it over", meta(labels={f"{PREFIX}manage": None})),
        ("a foreign annotation", notes(example_com__x="1")),
        ("a declaration of its owner", notes(gpu_autopilot_io__members="64")),
        ("the gate of others away", meta(annotations={GATED_BY: None})),
        ("the gate of others changed", meta(annotations={GATED_BY: f"{CONTROLLER},example.com/third"})),
        ("a gate more", meta(annotations={GATED_BY: f"{CONTROLLER},example.com/other,example.com/third"})),
        ("a finalizer", meta(finalizers=["example.com/keep"])),
        ("an owner", meta(ownerReferences=OWNER)),
    ]
    found = [Write(f"Job: {does}", JOB, body) for does, body in bodies]
    found.append(Write("Job: a start that nobody handed over", LONE, {"spec": {"suspend": False}}))
    found.append(Write("Job: more pods where its owner declares nothing", RUNNING, {"spec": {"parallelism": 2}}))
    found.append(Write("Job in kube-system: suspended", SYSTEM_JOB, {"spec": {"suspend": True}}))
    return found


def _services() -> list[Write]:
    privileged = [{"name": "main", "image": "app:1", "securityContext": {"privileged": True}}]
    templates = [
        ("another image", template(**image())),
        ("a privileged container", template(containers=privileged)),
        ("the processes of the host", template(hostPID=True)),
        ("another service account", template(serviceAccountName="admin")),
        ("a volume of the host", template(volumes=[{"name": "h", "hostPath": {"path": "/"}}])),
        ("a toleration", template(tolerations=[TOLERATION])),
        ("an annotation of its template", {"spec": {"template": {"metadata": {"annotations": {"a": "b"}}}}}),
    ]
    others = [
        ("replicas beside its scale", {"spec": {"replicas": 3}}),
        ("a foreign label", meta(labels={"a": "b"})),
        ("a foreign annotation", notes(example_com__x="1")),
        ("a declaration of its owner", notes(gpu_autopilot_io__scale="true")),
        ("a finalizer", meta(finalizers=["example.com/keep"])),
        ("an owner", meta(ownerReferences=OWNER)),
    ]
    found = [Write(f"Deployment: {does}", SERVICE, body) for does, body in (*templates, *others)]
    found += [Write(f"Deployment in kube-system: {does}", SYSTEM_SERVICE, body) for does, body in templates[:4]]
    found += [Write(f"StatefulSet: {does}", SET, body) for does, body in (*templates[:4], others[0])]
    found += [
        Write("Deployment: paused", SERVICE, {"spec": {"paused": True}}),
        Write("Deployment: more replicas than can be declared", f"{SERVICE}/scale", {"spec": {"replicas": 100_001}}),
        Write("StatefulSet: more replicas than can be declared", f"{SET}/scale", {"spec": {"replicas": 2**31 - 1}}),
        Write("Deployment in kube-system: its scale", f"{SYSTEM_SERVICE}/scale", {"spec": {"replicas": 0}}),
        Write("HPA: more replicas", AUTOSCALER, {"spec": {"maxReplicas": 100}}),
        Write("HPA: another target", AUTOSCALER, {"spec": {"scaleTargetRef": {"name": "other"}}}),
        Write("HPA: no metrics", AUTOSCALER, {"spec": {"metrics": []}}),
        Write("HPA: a foreign annotation", AUTOSCALER, notes(example_com__x="1")),
    ]
    return found


def _nodes() -> list[Write]:
    kept = {"key": "example.com/kept", "effect": "NoSchedule"}
    bodies = [
        (
            "a taint that drives work away",
            {"spec": {"taints": [kept, {"key": "example.com/x", "effect": "NoExecute"}]}},
        ),
        (
            "our taint driving work away",
            {"spec": {"taints": [kept, {"key": CONDEMNED, "value": "true", "effect": "NoExecute"}]}},
        ),
        ("the taint of others away", {"spec": {"taints": None}}),
        ("the taint of others changed", {"spec": {"taints": [{**kept, "effect": "PreferNoSchedule"}]}}),
        ("another provider id", {"spec": {"providerID": "x://1"}}),
        ("a foreign label", meta(labels={"node-role.kubernetes.io/control-plane": ""})),
        ("the label of a pool away", meta(labels={"pool": None})),
        ("a placement with another value", meta(labels={f"{PLACEMENT}0123456789": "no"})),
        ("the report of the MIG manager", meta(labels={"nvidia.com/mig.config.state": "success"})),
        ("a GPU client off", meta(labels={"nvidia.com/gpu.deploy.driver": "false"})),
        ("a foreign annotation", notes(example_com__x="1")),
        ("the NUMA policy of a person", meta(labels={f"{PREFIX}numa-policy": "none"})),
        ("a finalizer", meta(finalizers=["example.com/keep"])),
        ("an owner", meta(ownerReferences=OWNER)),
    ]
    return [Write(f"node: {does}", NODE, body) for does, body in bodies]


def check_state(state: str = "Ready", name: str = CHECK, **more: Any) -> Obj:
    """One entry of a Workload."""
    return {
        "name": name,
        "state": state,
        "message": "epoch 1: x: y",
        "lastTransitionTime": "2026-11-23T00:00:00Z",
        **more,
    }


def _kueue() -> list[Write]:
    theirs = check_state("Pending", "budget")

    def states(*given: Obj) -> Obj:
        return {"status": {"admissionChecks": list(given)}}

    def updates(**fields: Any) -> Obj:
        return states(check_state(podSetUpdates=[{"name": "main", **fields}]), theirs)

    status = [
        ("the check of others", states(check_state("Pending"), check_state("Ready", "budget"))),
        ("the check of others away", states(check_state("Ready"))),
        ("a check more", states(check_state("Ready"), theirs, check_state("Ready", "third"))),
        ("its end", states(check_state("Rejected"), theirs)),
        ("tolerations for its pods", updates(tolerations=[TOLERATION])),
        ("labels for its pods", updates(labels={"a": "b"})),
        ("annotations for its pods", updates(annotations={"a": "b"})),
        ("a selector that is no place", updates(nodeSelector={"pool": "dear"})),
        ("a requeue state", {"status": {"requeueState": {"count": 1}}}),
        (
            "a condition",
            {
                "status": {
                    "conditions": [
                        {
                            "type": "Admitted",
                            "status": "True",
                            "reason": "x",
                            "message": "",
                            "lastTransitionTime": "2026-11-23T00:00:00Z",
                        }
                    ]
                }
            },
        ),
    ]
    found = [Write(f"Workload status: {does}", f"{WORKLOAD}/status", body) for does, body in status]
    bodies = [
        ("a higher priority", {"spec": {"priority": 1000}}),
        ("another queue", {"spec": {"queueName": "rich"}}),
        ("a foreign label", meta(labels={"a": "b"})),
        ("a foreign annotation", notes(example_com__x="1")),
        ("a finalizer", meta(finalizers=["example.com/keep"])),
        ("an owner", meta(ownerReferences=OWNER)),
    ]
    return found + [Write(f"Workload: {does}", WORKLOAD, body) for does, body in bodies]


def _own() -> list[Write]:
    template_body = {
        "metadata": {"name": "gpu-autopilot-x"},
        "template": {"spec": {"containers": [{"name": "m", "image": "a"}]}},
    }
    found = [
        Write(f"our namespace: creates {name}", MAPS, {"metadata": {"name": name}, "data": {"kill": "off"}}, "POST")
        for name in (
            "gpu-autopilot-policy",
            "gpu-autopilot-kill-switch",
            "gpu-autopilot-watchdog",
            "any",
            "gpu-autopilot-memory-x",
        )
    ]
    found += [
        Write("MIG file: another file", MIG_MAP, {"data": {"other.yaml": "x"}}),
        Write("MIG file: the file of others away", MIG_MAP, {"data": {"theirs.yaml": None}}),
        Write("MIG file: a label", MIG_MAP, meta(labels={"a": "b"})),
        Write("PodTemplate: that nobody asked for", f"{CORE}/namespaces/team/podtemplates", template_body, "POST"),
        Write("PodTemplate: in kube-system", f"{CORE}/namespaces/kube-system/podtemplates", template_body, "POST"),
        Write(
            "request for nodes: without our label",
            f"{REQUESTS}/namespaces/team/provisioningrequests",
            {
                "metadata": {"name": "gpu-autopilot-x", "ownerReferences": OWNER},
                "spec": {"provisioningClassName": "c", "podSets": [{"count": 1, "podTemplateRef": {"name": "t"}}]},
            },
            "POST",
        ),
        Write(
            "request for nodes: that of a tenant deleted",
            f"{REQUESTS}/namespaces/team/provisioningrequests/theirs",
            {},
            "DELETE",
        ),
    ]
    return found


def _watchdog() -> list[Write]:
    both = [{"name": CHECK}, {"name": "budget"}]

    def checks(*given: Obj) -> Obj:
        return {"spec": {"admissionChecksStrategy": {"admissionChecks": list(given)}}}

    bodies = [
        ("a gate of others away", POD, {"spec": {"schedulingGates": [{"name": CONTROLLER}]}}),
        ("an annotation on a pod", POD, meta(annotations={EFFECT: "{}"})),
        ("a label on a pod", POD, meta(labels={"a": "b"})),
        ("a selector on a pod", POD, {"spec": {"nodeSelector": {HOST: "n1"}}}),
        ("a Job stopped", RUNNING, {"spec": {"suspend": True}}),
        ("a Job started that it did not stop", LONE, {"spec": {"suspend": False}}),
        ("a Job started by a forged mark", LONE, {**meta(annotations={STOPPED: "{}"}), "spec": {"suspend": False}}),
        ("more pods", JOB, {"spec": {"parallelism": 4}}),
        ("a selector of a Job away", JOB, template(nodeSelector={"pool": None})),
        ("an effect", JOB, meta(annotations={EFFECT: "{}"})),
        ("an epoch", JOB, meta(annotations={EPOCH: "9"})),
        ("a label on a Job", JOB, meta(labels={"a": "b"})),
        ("a Workload stopped", WORKLOAD, {"spec": {"active": False}}),
        ("another priority", WORKLOAD, {"spec": {"priority": 9}}),
        ("the check of others away", QUEUE, checks(both[0])),
        ("a check more", QUEUE, checks(*both, {"name": "third"})),
        ("more quota", QUEUE, {"spec": {"cohortName": "rich"}}),
        ("another preemption", QUEUE, {"spec": {"preemption": {"withinClusterQueue": "LowerPriority"}}}),
        ("a queue stopped", QUEUE, {"spec": {"stopPolicy": "Hold"}}),
        ("fewer replicas", f"{SERVICE}/scale", {"spec": {"replicas": 0}}),
        ("replicas in kube-system", f"{SYSTEM_SERVICE}/scale", {"spec": {"replicas": 5}}),
    ]
    found = [Write(f"watchdog: {does}", path, body, ours=False) for does, path, body in bodies]
    for where, path in (("another image", POD), ("another image in kube-system", SYSTEM_POD)):
        found.append(Write(f"watchdog: {where}", path, {"spec": image()}, ours=False, media=STRATEGIC))
    body = {"metadata": {"name": "gpu-autopilot-memory"}}
    return [*found, Write("watchdog: the memory of the leader", MAPS, body, "POST", ours=False)]


REFUSED = [*_pods(), *_jobs(), *_services(), *_nodes(), *_kueue(), *_own(), *_watchdog()]
"""All of them; the objects are those of `test_field_policy.world`."""
