"""What the scripts of Kueue's topics wrote between their steps; inferred from what the steps show."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tests.kube.replay.kueue_seen import Key, Seen, condition, parts_of
from tests.kube.replay.recording import Recording

Obj = dict[str, Any]
JOB_OF = re.compile(r"job-(.+)-[0-9a-f]{5}")
MISSING_QUEUE = re.compile(r"LocalQueue (\S+) doesn't exist")
QUEUE = "kueue.x-k8s.io/queue-name"
LEAD_S = 0.02  # from a write of the script to what shows it
GONE_S = 1.0  # from the deletion of a set of pods to that of the first of their Workloads


@dataclass(frozen=True)
class KueueWrite:
    """A write that no step holds. STATUS patches the status; STOP and START are of the manager itself."""

    t_s: float
    method: str
    resource: str
    namespace: str
    name: str
    body: Obj


class Edits:
    """The deletions and changes of one topic. `posted` are the objects that steps create, `local` the LocalQueues."""

    def __init__(
        self, recording: Recording, seen: list[Seen], posted: frozenset[Key], local: dict[tuple[str, str], str]
    ) -> None:
        self.recording = recording
        self.seen = seen
        self.workloads = [each for each in seen if each.key[0] == "workloads"]
        self.posted = sorted(posted)
        self.local = local

    def writes(self) -> Iterator[KueueWrite]:
        """All of them, in no order."""
        yield from self._deletions()
        yield from self._edits()
        yield from self._outage()

    def _deletions(self) -> Iterator[KueueWrite]:
        for each in self.seen:
            owner = each.key[0] in {"jobs", "deployments", "statefulsets"}
            if owner and each.change == "DELETED" and not self._stepped(each):
                yield KueueWrite(each.t_s - LEAD_S, "DELETE", *each.key, {"propagationPolicy": "Background"})
        for key in self.posted:
            gone_s = self._workloads_gone_s(key)
            if gone_s is not None:
                yield KueueWrite(gone_s, "DELETE", *key, {"propagationPolicy": "Background"})

    def _workloads_gone_s(self, key: Key) -> float | None:
        """When a set of pods was deleted that no watch shows: its Workloads are gone for good after that."""
        prefix = {"deployments": "pod", "statefulsets": "statefulset"}.get(key[0])
        last: dict[str, Seen] = {}
        alive_s = 0.0
        for each in self.workloads:
            if prefix is not None and each.key[1] == key[1] and each.key[2].startswith(f"{prefix}-{key[2]}-"):
                last[each.key[2]] = each
                alive_s = each.t_s if each.change != "DELETED" else alive_s
        if not last or any(each.change != "DELETED" for each in last.values()):
            return None
        return max(min(each.t_s for each in last.values()) - GONE_S, alive_s + LEAD_S)

    def _stepped(self, each: Seen) -> bool:
        """Whether a step wrote this object shortly before."""
        return any(
            parts_of(step.request.get("path", ""))[:3] == (each.key[1], each.key[0], each.key[2])
            and step.request.get("method") in {"PATCH", "PUT", "DELETE"}
            and step.t_s - 0.1 <= each.t_s <= step.t_s + step.latency_s + 0.3
            for step in self.recording.steps
        )

    def _edits(self) -> Iterator[KueueWrite]:
        """Workloads that are activated again, and jobs that are moved to a queue that exists."""
        last: dict[Key, Obj] = {}
        for each in self.workloads:
            before = last.get(each.key)
            last[each.key] = each.obj
            if before is None or "spec" not in each.obj or "spec" not in before:
                continue
            if each.obj["spec"].get("active") and before["spec"].get("active") is False and not self._stepped(each):
                yield KueueWrite(each.t_s - LEAD_S, "PATCH", *each.key, {"spec": {"active": True}})
            yield from self._reopened(each, before)
            match, text = JOB_OF.fullmatch(each.key[2]), _quota_text(before)
            if match and MISSING_QUEUE.search(text) and not MISSING_QUEUE.search(_quota_text(each.obj)):
                queue = next((local for (space, local) in self.local if space == each.key[1]), "q")
                body = {"metadata": {"labels": {QUEUE: queue}}}
                yield KueueWrite(each.t_s - 0.1, "PATCH", "jobs", each.key[1], match[1], body)

    def _reopened(self, each: Seen, before: Obj) -> Iterator[KueueWrite]:
        """A stopped queue that no step opened again: a workload says that it was restarted."""
        reason, was = (condition(obj, "Requeued").get("reason") for obj in (each.obj, before))
        resource = {"LocalQueueRestarted": "localqueues", "ClusterQueueRestarted": "clusterqueues"}.get(str(reason))
        if resource is None or was == reason:
            return
        opened = any(
            parts_of(step.request.get("path", ""))[1] == resource
            and step.request.get("method") in {"PATCH", "PUT"}
            and each.t_s - 1.0 <= step.t_s <= each.t_s
            for step in self.recording.steps
        )
        local = (each.key[1], each.obj["spec"].get("queueName") or next(iter(self.local))[1])
        if not opened and local in self.local:
            space, name = local if resource == "localqueues" else ("", self.local[local])
            yield KueueWrite(each.t_s - LEAD_S, "PATCH", resource, space, name, {"spec": {"stopPolicy": "None"}})

    def _outage(self) -> Iterator[KueueWrite]:
        """The manager is down from shortly before its webhooks fail until the next sign of it."""
        failed = [
            step
            for step in self.recording.steps
            if step.status in {500, 503} and "connection refused" in str(step.body) and step.events is None
        ]
        if failed:
            first, last = failed[0], failed[-1]
            after = [step.t_s for step in self.recording.steps if step.t_s > last.t_s + 1.0]
            yield KueueWrite(first.t_s - 0.5, "STOP", "", "", "", {})
            yield KueueWrite(min(after, default=last.t_s + 2.0) - 4.0, "START", "", "", "", {})


def _quota_text(workload: Obj) -> str:
    return str(condition(workload, "QuotaReserved").get("message", ""))
