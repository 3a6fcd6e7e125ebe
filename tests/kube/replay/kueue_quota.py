"""Quotas of ClusterQueues and requests of jobs, from what workloads and queues show."""

from __future__ import annotations

import re
from collections import defaultdict
from typing import Any

from apiserver.quantity import parse

Obj = dict[str, Any]
Slot = tuple[str, str, str]  # queue, flavor, resource
CAPACITY = re.compile(r"insufficient quota for (\S+) in flavor (\S+?), .*> maximum capacity \((\w+)\)")
MORE = re.compile(r"insufficient unused quota for (\S+) in flavor (\S+?), (\w+) more needed")
JOB_OF = re.compile(r"job-(.+)-[0-9a-f]{5}")
GPU = "nvidia.com/gpu"


class Quotas:
    """Facts from the states of workloads (time, name, object) and of queues (name, object), in order of time.

    `full` are the queues in which workloads waited. A queue of which nothing else is shown gets no GPU if it is full.
    """

    def __init__(
        self, workloads: list[tuple[float, str, Obj]], queues: list[tuple[str, Obj]], full: frozenset[str] = frozenset()
    ) -> None:
        self._full = full
        self._jobs: dict[str, tuple[int, dict[str, int], Obj]] = {}
        self._flavors: dict[str, dict[str, dict[str, int]]] = defaultdict(dict)  # queue, flavor, resource: most used
        self._stated: dict[tuple[str, str], int] = {}  # flavor, resource: capacity
        self._nominal: dict[Slot, int] = {}
        self._borrowed: dict[Slot, int] = {}
        held: dict[str, dict[Slot, int]] = {}
        for _, name, obj in workloads:
            self._workload(name, obj, held)
        for name, obj in queues:
            self._queue(name, obj)

    def _workload(self, name: str, obj: Obj, held: dict[str, dict[Slot, int]]) -> None:
        status = obj.get("status") or {}
        admission = status.get("admission")
        requests = {row["name"]: row["resources"] for row in status.get("resourceRequests") or []}
        match = JOB_OF.fullmatch(name)
        known = self._jobs.get(match[1] if match else name, (0, {}, {}))
        spec = known[2] | (obj.get("spec") or {})
        self._jobs[match[1] if match else name] = (known[0], known[1], spec)
        held.pop(name, None)
        if admission:
            mine: dict[Slot, int] = {}
            for row in admission["podSetAssignments"]:
                for resource, flavor in row["flavors"].items():
                    used = int(parse(row["resourceUsage"][resource]))
                    mine[admission["clusterQueue"], flavor, resource] = used
                each = {name: int(parse(text)) // row["count"] for name, text in row["resourceUsage"].items()}
                self._jobs[match[1] if match else name] = (row["count"], each, spec)
            held[name] = mine
        elif requests and known[0] == 0:
            total = next(iter(requests.values()))
            self._jobs[match[1] if match else name] = (0, {k: int(parse(v)) for k, v in total.items()}, spec)
        usage: dict[Slot, int] = defaultdict(int)
        for each in held.values():
            for slot, value in each.items():
                usage[slot] += value
        for (queue, flavor, resource), value in usage.items():
            most = self._flavors[queue].setdefault(flavor, {})
            most[resource] = max(most.get(resource, 0), value)
        for row in status.get("conditions") or []:
            text = str(row.get("message", ""))
            for resource, flavor, capacity in CAPACITY.findall(text):
                self._stated[flavor, resource] = int(parse(capacity))
            for resource, flavor, more in MORE.findall(text):
                asked = sum(int(parse(each[resource])) for each in requests.values() if resource in each)
                used = sum(value for (_, f, r), value in usage.items() if (f, r) == (flavor, resource))
                if asked and used:
                    self._stated.setdefault((flavor, resource), used + asked - int(parse(more)))

    def _queue(self, name: str, obj: Obj) -> None:
        for flavor in (obj.get("status") or {}).get("flavorsReservation") or []:
            for row in flavor["resources"]:
                slot = (name, flavor["name"], row["name"])
                total, borrowed = int(parse(row["total"])), int(parse(row.get("borrowed", "0")))
                most = self._flavors[name].setdefault(flavor["name"], {})
                most[row["name"]] = max(most.get(row["name"], 0), total)
                if borrowed:
                    self._nominal[slot] = total - borrowed
                    self._borrowed[slot] = max(borrowed, self._borrowed.get(slot, 0))

    def borrows(self) -> bool:
        """Whether a queue used more than its own quota."""
        return bool(self._borrowed)

    def groups(self, queue: str) -> list[Obj]:
        """Resource groups of a queue."""
        flavors = self._flavors.get(queue) or {"h100": {"cpu": 0, GPU: 0}}
        resources = sorted({resource for each in flavors.values() for resource in each})
        rows = []
        for flavor in flavors:
            quotas = [{"name": each, "nominalQuota": str(self._quota(queue, flavor, each))} for each in resources]
            rows.append({"name": flavor, "resources": quotas})
        return [{"coveredResources": resources, "flavors": rows}]

    def _quota(self, queue: str, flavor: str, resource: str) -> int:
        slot = (queue, flavor, resource)
        if resource != GPU:
            return 1000
        if slot in self._nominal:
            return self._nominal[slot]
        lent = [value for (_, f, r), value in self._borrowed.items() if (f, r) == (flavor, resource)]
        usual = 8 if queue in self._flavors or queue not in self._full else 0
        return max(lent) if lent else self._stated.get((flavor, resource), usual)

    def job(self, name: str) -> tuple[int, dict[str, str], Obj]:
        """Pods, requests of one pod, and the spec of the Workload, of a job."""
        count, requests, spec = self._jobs.get(name, (0, {}, {}))
        found = requests or {"cpu": 1, GPU: 2}
        return (count if requests else 1), {each: str(value) for each, value in found.items()}, spec
