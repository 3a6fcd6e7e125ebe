"""The rights of the service beside a cluster, as one table.

`autopilot check` asks the server for each of them, and `scripts/generate_observe.py` writes them into
`deploy/observe.yaml`. All of them read, and a token review asks a question: none can change anything in the cluster.
"""

from __future__ import annotations

from collections.abc import Iterator

from autopilot.readiness.line import Asked, Line, Right, Status, some

KUEUE, REGISTRATION = "kueue.x-k8s.io", "admissionregistration.k8s.io"
RIGHTS: tuple[Right, ...] = (
    Right("", "nodes", "capacity, labels and taints", needed=True),
    Right("", "namespaces", "what people keep the autopilot away from"),
    Right("", "pods", "what runs and what waits", needed=True),
    Right("", "resourcequotas", "limits of plain namespaces"),
    Right("", "services", "which pods serve requests"),
    Right("apps", "deployments", "replicas of services, and Kueue's manager", needed=True),
    Right("apps", "statefulsets", "replicas of services", needed=True),
    Right("autoscaling", "horizontalpodautoscalers", "bounds of services, and the replicas that their load needs"),
    Right("batch", "jobs", "gangs, and Jobs that are suspended", needed=True),
    Right("policy", "poddisruptionbudgets", "what must not be disturbed"),
    Right("scheduling.k8s.io", "priorityclasses", "priorities of waiting Jobs"),
    Right(KUEUE, "workloads", "admission and quota of gangs", needed=True),
    Right(KUEUE, "clusterqueues", "guarantees and limits", needed=True),
    Right(KUEUE, "cohorts", "quota that queues share", needed=True),
    Right(KUEUE, "localqueues", "the queue of a namespace", needed=True),
    Right(KUEUE, "resourceflavors", "the nodes of a quota", needed=True),
    Right(KUEUE, "topologies", "islands and racks"),
    Right(KUEUE, "admissionchecks", "what else admission waits for"),
    Right("gateway.networking.k8s.io", "httproutes", "which Services serve requests"),
    Right("gateway.networking.k8s.io", "grpcroutes", "which Services serve requests"),
    Right("inference.networking.k8s.io", "inferencepools", "which pods serve models"),
    Right("inference.networking.x-k8s.io", "inferencepools", "which pods serve models, before v1"),
    Right("scheduling.run.ai", "queues", "queues of KAI"),
    Right("resource.k8s.io", "resourceslices", "GPUs that a DRA driver offers"),
    Right("resource.k8s.io", "resourceclaims", "GPUs that DRA has allocated"),
    Right("resource.k8s.io", "resourceclaimtemplates", "GPUs that pods will ask DRA for"),
    Right("resource.k8s.io", "deviceclasses", "the devices of a class of DRA"),
    Right(REGISTRATION, "mutatingwebhookconfigurations", "the state of Kueue, for `autopilot check`", verbs=("list",)),
    Right(
        REGISTRATION,
        "validatingadmissionpolicies",
        "the limits of our accounts, for `autopilot check`",
        verbs=("list",),
    ),
    Right(REGISTRATION, "validatingadmissionpolicybindings", "whether these policies refuse anything", verbs=("list",)),
    Right("authentication.k8s.io", "tokenreviews", "sign-in with tokens of the cluster", verbs=("create",)),
    Right("", "configmaps", "policy and kill switch", verbs=("get",), own_namespace=True),
)


def permissions(asked: Asked) -> Iterator[Line]:
    """Ask the server for each right; one line for all granted ones, one for each resource with a missing one."""
    granted, wanted = 0, (*RIGHTS, *asked.rights)
    for right in wanted:
        missing: list[str] = []
        problem = ""
        for verb in right.verbs:
            allowed, problem = _allowed(asked, right, verb)
            if problem:
                break
            if not allowed:
                missing.append(verb)
        if problem:
            text = f"cannot be asked: {problem}"
            yield Line("permissions", right.shown, Status.UNKNOWN, text, right.fix)
        elif missing:
            status = Status.FAILED if right.needed else Status.WARNING
            text = f"no right to {some(missing)} {right.shown} ({right.why})"
            yield Line("permissions", right.shown, status, text, right.fix)
        else:
            granted += 1
    if granted:
        yield Line(
            "permissions", "granted", Status.OK, f"all that is asked for on {granted} of {len(wanted)} resources"
        )


def _allowed(asked: Asked, right: Right, verb: str) -> tuple[bool, str]:
    """True for a granted verb, and the reason for a failed question ("" for none)."""
    resource, _, part = right.resource.partition("/")
    attributes = {"group": right.group, "resource": resource, "verb": verb}
    attributes |= {key: value for key, value in (("subresource", part), ("name", right.name)) if value}
    if right.own_namespace:
        attributes["namespace"] = asked.namespace
    body = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectAccessReview",
        "spec": {"resourceAttributes": attributes},
    }
    answer = asked.cluster.post("/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", body)
    status = answer.document.get("status")
    if answer.status not in {200, 201} or not isinstance(status, dict):
        return False, answer.reason
    return bool(status.get("allowed")), ""
