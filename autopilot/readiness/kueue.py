"""Kueue: is it there, does it work, and do its queues lead to nodes?"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from autopilot.readiness.line import Asked, Line, Status, condition, items, labels_of, name_of, some
from autopilot.readiness.nodes import all_of, gpus_of

GROUP = "/apis/kueue.x-k8s.io"
VERSION = "v1beta2"
SELECTOR = {"labelSelector": "app.kubernetes.io/name=kueue,control-plane=controller-manager"}


def kueue(asked: Asked) -> Iterator[Line]:
    """Everything about Kueue; one skipped line without an installation."""
    answer = asked.cluster.get(GROUP)
    if answer.status == 404:
        yield Line("kueue", "API", Status.SKIPPED, "Kueue is not installed: queues are read from KAI or namespaces")
        return
    versions = [str(each.get("version", "")) for each in answer.document.get("versions") or []]
    if VERSION not in versions:
        served = ", ".join(versions) or answer.reason
        fix = f"upgrade Kueue to a release that serves {VERSION} (tested with 0.19)"
        yield Line("kueue", "API", Status.FAILED, f"kueue.x-k8s.io serves {served}, not {VERSION}", fix)
        return
    yield Line("kueue", "API", Status.OK, f"kueue.x-k8s.io/{VERSION} is served")
    yield from _manager(asked)
    yield from _webhooks(asked)
    yield from _queues(asked)
    yield from _flavors(asked)


def _manager(asked: Asked) -> Iterator[Line]:
    """Version and state of the manager: without it, every write of a Job or Pod is refused."""
    answer = asked.cluster.get("/apis/apps/v1/deployments", SELECTOR)
    found = items(answer)
    if not found:
        why = "no deployment has its labels" if answer.status == 200 else answer.reason
        yield Line("kueue", "manager", Status.UNKNOWN, f"not found: {why}", "check by hand that Kueue's manager runs")
        return
    for each in found:
        status, spec = each.get("status") or {}, each.get("spec") or {}
        containers = ((spec.get("template") or {}).get("spec") or {}).get("containers") or []
        image = str(next((one.get("image", "") for one in containers if one.get("name") == "manager"), ""))
        version = image.rpartition(":")[2] if ":" in image.rpartition("/")[2] else "version unknown"
        if status.get("readyReplicas", 0):
            yield Line("kueue", "manager", Status.OK, f"{name_of(each)}, {version}, runs")
        else:
            text = f"{name_of(each)}, {version}, has no ready replica: its webhooks refuse every write of a Job or Pod"
            yield Line("kueue", "manager", Status.FAILED, text, "read the manager's log, and restore it first")


def _webhooks(asked: Asked) -> Iterator[Line]:
    path = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations"
    answer = asked.cluster.get(path)
    if answer.status != 200:
        text = f"webhooks cannot be read: {answer.reason}"
        yield Line("kueue", "webhooks", Status.UNKNOWN, text, "apply deploy/observe.yaml")
        return
    ours = [each for each in items(answer) if "kueue" in name_of(each)]
    bare = [
        str(hook.get("name", ""))
        for each in ours
        for hook in each.get("webhooks") or []
        if not (hook.get("clientConfig") or {}).get("caBundle")
    ]
    if not ours:
        text = "no mutating webhook of Kueue: Jobs with a queue label start without admission"
        yield Line("kueue", "webhooks", Status.FAILED, text, "reinstall Kueue with its webhooks")
    elif bare:
        fix = "wait for Kueue's certificates, or restart its manager"
        yield Line("kueue", "webhooks", Status.FAILED, f"without a certificate: {some(bare)}", fix)
    else:
        count = sum(len(each.get("webhooks") or []) for each in ours)
        yield Line("kueue", "webhooks", Status.OK, f"{count} mutating webhooks with a certificate")


def _queues(asked: Asked) -> Iterator[Line]:
    queues, problem = all_of(asked, f"{GROUP}/{VERSION}/clusterqueues")
    local, local_problem = all_of(asked, f"{GROUP}/{VERSION}/localqueues")
    if problem or local_problem:
        text = f"queues cannot be listed: {problem or local_problem}"
        yield Line("kueue", "queues", Status.FAILED, text, "apply deploy/observe.yaml")
        return
    if not queues:
        yield Line("kueue", "queues", Status.FAILED, "there is no ClusterQueue", "create one, with a LocalQueue")
        return
    stopped = [f"{name_of(each)} ({condition(each, 'Active')[1]})" for each in queues if not _active(each)]
    if stopped:
        fix = "kubectl describe clusterqueue names the flavor, check or cohort that is missing"
        yield Line("kueue", "queues", Status.WARNING, f"not active: {some(stopped)}", fix)
    else:
        yield Line("kueue", "queues", Status.OK, f"{len(queues):,} ClusterQueues active, {len(local):,} LocalQueues")
    sharing = sorted(name_of(each) for each in queues if (each.get("status") or {}).get("fairSharing") is not None)
    text = "off: no ClusterQueue has status.fairSharing; the rules are cohort-classic"
    if sharing:
        text = f"on: ClusterQueue {sharing[0]} has status.fairSharing; the rules are cohort-fair"
    yield Line("kueue", "fair sharing", Status.OK, text)
    lost = sorted(
        {
            f"{(each.get('metadata') or {}).get('namespace', '')}/{name_of(each)}"
            for each in local
            if (each.get("spec") or {}).get("clusterQueue") not in {name_of(queue) for queue in queues}
        }
    )
    if lost:
        fix = "create the ClusterQueue that they name, or delete them"
        yield Line("kueue", "queues", Status.WARNING, f"LocalQueues without a ClusterQueue: {some(lost)}", fix)


def _active(queue: Mapping[str, Any]) -> bool:
    return condition(queue, "Active")[0] == "True"


def _flavors(asked: Asked) -> Iterator[Line]:
    """A flavor with labels of no GPU node can never run a pod."""
    flavors, problem = all_of(asked, f"{GROUP}/{VERSION}/resourceflavors")
    nodes, node_problem = all_of(asked, "/api/v1/nodes")
    if problem or node_problem:
        text = f"flavors cannot be compared with nodes: {problem or node_problem}"
        yield Line("kueue", "flavors", Status.UNKNOWN, text, "apply deploy/observe.yaml")
        return
    labels = [labels_of(node) for node in nodes if gpus_of(node, "capacity")]
    empty = [
        name_of(flavor)
        for flavor in flavors
        if (wanted := (flavor.get("spec") or {}).get("nodeLabels") or {})
        and not any(wanted.items() <= have.items() for have in labels)
    ]
    if empty:
        fix = "correct nodeLabels of the flavor, or label the nodes"
        yield Line("kueue", "flavors", Status.WARNING, f"no GPU node has the labels of: {some(empty)}", fix)
    else:
        yield Line("kueue", "flavors", Status.OK, f"the labels of {len(flavors):,} flavors match nodes")
