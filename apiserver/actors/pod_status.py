"""The status of a pod as a kubelet writes it, from the moment it takes the pod to its last state."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

Obj = dict[str, Any]
NOT_READY = "ContainersNotReady"
SIGKILL = 137
SIGTERM = 143


@dataclass(frozen=True, slots=True)
class Host:
    """The place of a pod: the address of its node, and its own."""

    node_ip: str
    pod_ip: str


def containers_of(pod: Obj) -> list[str]:
    """Names of the containers, init containers excluded."""
    return [container["name"] for container in pod["spec"]["containers"]]


def creating(pod: Obj, host: Host, now: str) -> Obj:
    """The pod was accepted; its containers do not run yet."""
    message = f"containers with unready status: [{' '.join(containers_of(pod))}]"
    status = _base(pod, "Pending", host, now)
    status.pop("podIP", None)
    status.pop("podIPs", None)
    status["conditions"] = _conditions(pod, now, ready=False, reason=NOT_READY, message=message, sandbox=False)
    status["containerStatuses"] = [
        _container(pod, container, {"waiting": {"reason": "ContainerCreating"}}, ready=False)
        for container in pod["spec"]["containers"]
    ]
    return status


def running(pod: Obj, host: Host, now: str) -> Obj:
    """All containers run and are ready."""
    status = _base(pod, "Running", host, now)
    status["conditions"] = _conditions(pod, now, ready=True)
    status["containerStatuses"] = [
        _container(pod, container, {"running": {"startedAt": now}}, ready=True)
        for container in pod["spec"]["containers"]
    ]
    return status


def finished(pod: Obj, host: Host, now: str, exit_code: int) -> Obj:
    """All containers ended with `exit_code`: the pod is Succeeded (0) or Failed."""
    good = exit_code == 0
    status = _base(pod, "Succeeded" if good else "Failed", host, now)
    status["conditions"] = _conditions(
        pod,
        now,
        ready=False,
        reason="PodCompleted" if good else "PodFailed",
        initialized="PodCompleted" if good else "",
    )
    started = _started(pod) or now
    state = {"exitCode": exit_code, "reason": "Completed" if good else "Error", "startedAt": started, "finishedAt": now}
    status["containerStatuses"] = [
        _container(pod, container, {"terminated": state | {"containerID": _container_id(pod)}}, ready=False)
        for container in pod["spec"]["containers"]
    ]
    return status


def rejected(pod: Obj, now: str, reason: str, message: str) -> Obj:
    """The node does not take the pod: Failed without a container."""
    status = dict(pod.get("status") or {})
    return status | {"phase": "Failed", "reason": reason, "message": message, "startTime": now}


def lost(pod: Obj, now: str) -> Obj:
    """The status after its node fell silent: Ready turns False, all else stays. The same object if it was not ready."""
    conditions = (pod.get("status") or {}).get("conditions") or []
    if not any(each["type"] == "Ready" and each["status"] == "True" for each in conditions):
        same: Obj = pod.get("status", {})
        return same
    changed = [
        each | {"status": "False", "lastTransitionTime": now} if each["type"] == "Ready" else each
        for each in conditions
    ]
    status: Obj = pod["status"]
    return status | {"conditions": changed}


def disrupted(pod: Obj, now: str, reason: str, message: str) -> list[Obj]:
    """The conditions of a pod about to be deleted."""
    new = {"type": "DisruptionTarget", "observedGeneration": pod["metadata"].get("generation", 1), "status": "True"}
    new |= {"lastProbeTime": None, "lastTransitionTime": now, "reason": reason, "message": message}
    return with_condition((pod.get("status") or {}).get("conditions") or [], new)


def is_ready(pod: Obj) -> bool:
    """True if the condition Ready is True."""
    return condition(pod, "Ready").get("status") == "True"


def phase_of(pod: Obj) -> str:
    """Its phase; "" if it has none."""
    return str((pod.get("status") or {}).get("phase", ""))


def is_terminal(pod: Obj) -> bool:
    """True if the pod succeeded or failed."""
    return phase_of(pod) in {"Succeeded", "Failed"}


def is_terminating(pod: Obj) -> bool:
    """True if the pod is deleted and still there."""
    return "deletionTimestamp" in pod["metadata"]


def is_active(pod: Obj) -> bool:
    """True if the pod runs or will run: neither over nor deleted."""
    return not is_terminal(pod) and not is_terminating(pod)


def condition(obj: Obj, name: str) -> Obj:
    """A condition of an object; empty if it has none of the type."""
    for each in (obj.get("status") or {}).get("conditions") or []:
        if each["type"] == name:
            found: Obj = each
            return found
    return {}


def with_condition(conditions: list[Obj], new: Obj) -> list[Obj]:
    """The list with one condition replaced in its place, or added at the end."""
    if any(each["type"] == new["type"] for each in conditions):
        return [new if each["type"] == new["type"] else each for each in conditions]
    return [*conditions, new]


def _base(pod: Obj, phase: str, host: Host, now: str) -> Obj:
    old = pod.get("status") or {}
    return dict(old) | {
        "observedGeneration": pod["metadata"].get("generation", 1),
        "phase": phase,
        "hostIP": host.node_ip,
        "hostIPs": [{"ip": host.node_ip}],
        "podIP": host.pod_ip,
        "podIPs": [{"ip": host.pod_ip}],
        "startTime": old.get("startTime", now),
    }


def _conditions(
    pod: Obj,
    now: str,
    *,
    ready: bool,
    reason: str = "",
    message: str = "",
    sandbox: bool | None = None,
    initialized: str = "",
) -> list[Obj]:
    """The kubelet's four conditions in front of those of others, or in their present places."""
    generation = pod["metadata"].get("generation", 1)

    def made(name: str, *, true: bool, why: str = "", text: str = "") -> Obj:
        value = "True" if true else "False"
        made = {"type": name, "observedGeneration": generation, "status": value, "lastProbeTime": None}
        old = condition(pod, name)
        made["lastTransitionTime"] = old["lastTransitionTime"] if old.get("status") == value else now
        if why:
            made["reason"] = why
        if text:
            made["message"] = text
        return made

    own = [
        made("PodReadyToStartContainers", true=ready if sandbox is None else sandbox),
        made("Initialized", true=True, why=initialized),
        made("Ready", true=ready, why=reason, text=message),
        made("ContainersReady", true=ready, why=reason, text=message),
    ]
    others = (pod.get("status") or {}).get("conditions") or []
    kept = {each["type"] for each in others}
    merged = list(others)
    for each in own:
        if each["type"] in kept:
            merged = with_condition(merged, each)
    return [each for each in own if each["type"] not in kept] + merged


def _container(pod: Obj, container: Obj, state: Obj, *, ready: bool) -> Obj:
    status: Obj = {"name": container["name"], "state": state, "lastState": {}, "ready": ready, "restartCount": 0}
    status |= {"image": container.get("image", ""), "imageID": ""}
    if "waiting" not in state:
        status["containerID"] = _container_id(pod)
    return status | {"started": ready}


def _container_id(pod: Obj) -> str:
    return f"fake://{pod['metadata']['uid']}"


def _started(pod: Obj) -> str:
    for each in (pod.get("status") or {}).get("containerStatuses") or []:
        if "running" in each["state"]:
            return str(each["state"]["running"]["startedAt"])
    return ""
