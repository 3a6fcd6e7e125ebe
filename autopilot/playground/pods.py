"""Pods of simulated work: gated, starting, running, leaving, ended."""

from __future__ import annotations

from typing import Any

from autopilot.playground.times import stamp

Obj = dict[str, Any]
GRACE_S = 30
IMAGE = "playground.invalid/simulated:1"


def container(requests: dict[str, str]) -> Obj:
    """The one container of a pod."""
    return {
        "name": "main",
        "image": IMAGE,
        "imagePullPolicy": "IfNotPresent",
        "resources": {"requests": requests, "limits": {name: value for name, value in requests.items() if "/" in name}},
    }


def pod(metadata: Obj, spec: Obj) -> Obj:
    """A pod, without status."""
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def _conditions(at_s: dict[str, float | None]) -> list[Obj]:
    """`at_s`: time from which each condition is true; None if it is false since the pod's creation."""
    created_s = at_s["created"] or 0.0
    reasons = {
        "PodScheduled": ("SchedulingGated", "Scheduling is blocked due to non-empty scheduling gates"),
        "Ready": ("ContainersNotReady", "containers with unready status: [main]"),
        "ContainersReady": ("ContainersNotReady", "containers with unready status: [main]"),
    }
    found = []
    for kind in ("PodScheduled", "Initialized", "ContainersReady", "Ready"):
        since_s = at_s.get(kind)
        if kind != "PodScheduled" and at_s.get("PodScheduled") is None:
            continue
        condition: Obj = {
            "type": kind,
            "status": "False" if since_s is None else "True",
            "lastTransitionTime": stamp(created_s if since_s is None else since_s),
        }
        if since_s is None and kind in reasons:
            condition["reason"], condition["message"] = reasons[kind]
        found.append(condition)
    return found


def waiting(created_s: float) -> Obj:
    """The status of a pod behind a scheduling gate."""
    return {"phase": "Pending", "qosClass": "Burstable", "conditions": _conditions({"created": created_s})}


def unplaced(created_s: float) -> Obj:
    """The status of a pod without room on any node now."""
    condition = {
        "type": "PodScheduled",
        "status": "False",
        "lastTransitionTime": stamp(created_s),
        "reason": "Unschedulable",
        "message": "0 nodes are available: the nodes that it selects have too few free GPUs.",
    }
    return {"phase": "Pending", "qosClass": "Burstable", "conditions": [condition]}


def starting(created_s: float, bound_s: float) -> Obj:
    """The status of a pod on its node during the pull of its image and the start of its program."""
    at_s = {"created": created_s, "PodScheduled": bound_s, "Initialized": bound_s}
    return _bound("Pending", at_s, bound_s, {"waiting": {"reason": "ContainerCreating"}})


def running(created_s: float, bound_s: float, ready_s: float) -> Obj:
    """The status of a working pod."""
    at_s = {
        "created": created_s,
        "PodScheduled": bound_s,
        "Initialized": bound_s,
        "ContainersReady": ready_s,
        "Ready": ready_s,
    }
    return _bound("Running", at_s, bound_s, {"running": {"startedAt": stamp(ready_s)}}, ready=True)


def ended(created_s: float, bound_s: float, ready_s: float, end_s: float, *, exit_code: int) -> Obj:
    """The status of a pod after the end of its program."""
    at_s = {"created": created_s, "PodScheduled": bound_s, "Initialized": bound_s}
    state = {
        "terminated": {
            "exitCode": exit_code,
            "reason": "Error" if exit_code else "Completed",
            "startedAt": stamp(min(ready_s, end_s)),
            "finishedAt": stamp(end_s),
        }
    }
    status = _bound("Failed" if exit_code else "Succeeded", at_s, bound_s, state)
    for condition in status["conditions"]:
        if condition["type"] in {"ContainersReady", "Ready"}:
            condition["lastTransitionTime"] = stamp(end_s)
            condition["reason"], condition["message"] = "PodCompleted", ""
    return status


def _bound(phase: str, at_s: dict[str, Any], bound_s: float, state: Obj, *, ready: bool = False) -> Obj:
    return {
        "phase": phase,
        "qosClass": "Burstable",
        "startTime": stamp(bound_s),
        "conditions": _conditions(at_s),
        "containerStatuses": [
            {
                "name": "main",
                "image": IMAGE,
                "imageID": "" if "waiting" in state else IMAGE,
                "ready": ready,
                "started": ready,
                "restartCount": 0,
                "state": state,
            }
        ],
    }
