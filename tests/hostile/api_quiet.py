"""What is left to do on the server once it is quiet."""

from __future__ import annotations

from typing import Any

from apiserver.server import Server
from tests.hostile.api_watch import EXCLUDE


def left_waiting(server: Server, nodes: int, gpus_each: int) -> str:
    """Work that could run and does not; "" where there is none."""
    free = {f"n{number}": gpus_each for number in range(nodes)}
    for pod in server.store.objects("pods"):
        node_name = pod["spec"].get("nodeName")
        if node_name in free and pod.get("status", {}).get("phase") not in {"Succeeded", "Failed"}:
            free[node_name] -= int(pod["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpu"])
    waiting, fits = [], []
    for workload in server.store.objects("workloads.kueue.x-k8s.io"):
        true = _true(workload)
        owner = workload["metadata"]["ownerReferences"][0]
        stored = server.store.get("jobs.batch", "default", owner["name"])
        out = stored is None or EXCLUDE in stored["metadata"].get("annotations", {})
        if out or true & {"Admitted", "Finished"} or not workload["spec"].get("active", True):
            continue
        (part,) = workload["spec"]["podSets"]
        gpus = int(part["template"]["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpu"])
        waiting.append(owner["name"])
        if sum(each // gpus for each in free.values()) >= part.get("count", 1):
            fits.append(owner["name"])
    if waiting and waiting == fits:  # where some do not fit, room may be kept for them
        return f"{fits} wait, each of them fits, and {free} are free"
    return ""


def _true(workload: dict[str, Any]) -> set[str]:
    """Its conditions that are true."""
    return {each["type"] for each in workload["status"].get("conditions", ()) if each["status"] == "True"}
