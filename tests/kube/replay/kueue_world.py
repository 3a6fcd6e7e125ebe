"""What Kueue's topics had prepared: queues, flavors, checks, nodes, jobs; inferred from what the steps show."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

from apiserver.kueue.names import API_VERSION
from tests.kube.replay.kueue_edits import JOB_OF, LEAD_S, MISSING_QUEUE, QUEUE, Edits, KueueWrite
from tests.kube.replay.kueue_quota import Quotas
from tests.kube.replay.kueue_seen import Key, Seen, condition, parts_of, pending_in, seen_in, values
from tests.kube.replay.recording import Recording, Step

Obj = dict[str, Any]
PRIORITY = "kueue.x-k8s.io/priority-class"


class KueueWorld:
    """The preparations of one topic."""

    def __init__(self, recording: Recording) -> None:
        self.recording = recording
        self.seen = seen_in(recording)
        self.posted = self._posted()
        self.raw = [step.raw for step in recording.steps]
        self.workloads = [each for each in self.seen if each.key[0] == "workloads"]
        self.queues = self._cluster_queues()
        self.local = self._local_queues()
        self.summaries = pending_in(recording)
        waiting = {(space, row["localQueueName"]) for (space, _), row in self.summaries.items()}
        self.quotas = Quotas(
            [(each.t_s, each.key[2], each.obj) for each in self.workloads],
            self._queue_states(),
            frozenset(self.local[each] for each in waiting if each in self.local),
        )

    def _posted(self) -> dict[Key, Step]:
        found: dict[Key, Step] = {}
        for step in self.recording.steps:
            body = step.request.get("body")
            if step.status == 201 and isinstance(body, dict) and "dryRun" not in (step.request.get("query") or {}):
                namespace, resource, _, _ = parts_of(step.request["path"])
                found.setdefault((resource, namespace, body.get("metadata", {}).get("name", "")), step)
        return found

    def _queue_states(self) -> list[tuple[str, Obj]]:
        return [(each.key[2], each.obj) for each in self.seen if each.key[0] == "clusterqueues"]

    def _cluster_queues(self) -> list[str]:
        found = [each["clusterQueue"] for each in values(self.raw, "admission") if isinstance(each, dict)]
        found += [each.key[2] for each in self.seen if each.key[0] == "clusterqueues"]
        found += [str(each) for each in values(self.raw, "kueue.x-k8s.io/cluster-queue-name")]
        for step in self.recording.steps:
            _, resource, name, _ = parts_of(step.request.get("path", ""))
            if resource == "clusterqueues" and name and step.status in {200, 503}:
                found.append(name)
        jobs = {JOB_OF.fullmatch(each) for each in found}
        names = [each for each in dict.fromkeys(found) if JOB_OF.fullmatch(each) not in jobs - {None}]
        return [each for each in names if ("clusterqueues", "", each) not in self.posted]

    def _local_queues(self) -> dict[tuple[str, str], str]:
        """Namespace and name of each LocalQueue that was there: its ClusterQueue."""
        found: dict[tuple[str, str], str] = {}
        for each in self.seen:
            for labels in (each.obj["metadata"].get("labels"), *values(each.obj.get("spec"), "labels")):
                names = labels or {}
                local, queue = (names.get(f"kueue.x-k8s.io/{kind}-queue-name") for kind in ("local", "cluster"))
                if local and queue:
                    found[each.key[1], local] = queue
            admission = (each.obj.get("status") or {}).get("admission") or {}
            name = (each.obj.get("spec") or {}).get("queueName")
            if admission and name:
                found[each.key[1], name] = admission["clusterQueue"]
        missing = {name for text in values(self.raw, "message") for name in MISSING_QUEUE.findall(str(text))}
        asked: dict[tuple[str, str], None] = {}
        for (resource, namespace, _), step in self.posted.items():
            if resource in {"jobs", "pods", "deployments", "statefulsets"}:
                for name in values(step.request["body"], QUEUE):
                    asked.setdefault((namespace, str(name)))
        for step in self.recording.steps:
            namespace, resource, name, _ = parts_of(step.request.get("path", ""))
            if resource == "localqueues" and name and step.status == 200:
                asked.setdefault((namespace, name))
        free = [each for each in self.queues if each not in found.values()] or self.queues
        for number, key in enumerate(each for each in asked if each not in found and each[1] not in missing):
            if free and ("localqueues", *key) not in self.posted:
                found[key] = free[min(number, len(free) - 1)]
        if not found and self.queues:
            spaces = {each.key[1] for each in self.workloads} or {_space(self.recording)}
            found = {(space, "q"): self.queues[0] for space in spaces}
        return {key: queue for key, queue in found.items() if ("localqueues", *key) not in self.posted}

    # what it writes

    def writes(self) -> list[KueueWrite]:
        """All of them, in order of time."""
        before = [*self._nodes(), *self._flavors(), *self._checks(), *self._classes(), *self._queue_objects()]
        found = [
            KueueWrite(-9.9 + 0.01 * number, "POST" if "metadata" in body else "STATUS", resource, space, name, body)
            for number, (resource, space, name, body) in enumerate(before)
        ]
        return sorted([*found, *self._jobs(), *self._edits()], key=lambda e: e.t_s)

    def _nodes(self) -> Iterator[tuple[str, str, str, Obj]]:
        labels: dict[str, dict[str, str]] = defaultdict(dict)
        for each in self.seen:
            spec = each.obj.get("spec") or {}
            if each.key[0] == "pods" and spec.get("nodeName"):
                labels[spec["nodeName"]] |= spec.get("nodeSelector") or {}
        for name in values(self.raw, "kubernetes.io/hostname"):
            labels[str(name)] |= {}
        if not labels and any(condition(each.obj, "PodsReady").get("status") == "True" for each in self.workloads):
            labels |= {name: {} for name in ("node-1", "node-2")}  # pods ran, on nodes that no answer names
        shared: dict[str, str] = {}
        for name in self._flavor_names():
            if not any(self._tolerations(name)):
                shared |= self._node_labels(name)
        for number, name in enumerate(sorted(each for each in labels if ("nodes", "", each) not in self.posted), 1):
            own = {"kubernetes.io/hostname": name, "example.com/fakelet": "true"}
            place = {"topology.example.com/block": "b1", "topology.example.com/rack": f"r{number}"}
            capacity = {"cpu": "64", "memory": "512Gi", "pods": "110", "nvidia.com/gpu": "8"}
            yield (
                "nodes",
                "",
                name,
                {
                    "apiVersion": "v1",
                    "kind": "Node",
                    "metadata": {"name": name, "labels": place | shared | labels[name] | own},
                    "spec": {},
                    "status": {"capacity": capacity, "allocatable": capacity},
                },
            )

    def _flavor_names(self) -> list[str]:
        names = [name for each in values(self.raw, "flavors") if isinstance(each, dict) for name in each.values()]
        for _, obj in self._queue_states():
            names += [each["name"] for each in (obj.get("status") or {}).get("flavorsReservation") or []]
        for queue in self.queues:  # also one that no answer names, so that the queue is active
            names += [flavor["name"] for group in self.quotas.groups(queue) for flavor in group["flavors"]]
        return [each for each in dict.fromkeys(names) if ("resourceflavors", "", each) not in self.posted]

    def _placed(self, flavor: str) -> Iterator[tuple[Obj, Obj]]:
        """Pod specs of what was admitted to a flavor: as asked, and as started."""
        for each in self.workloads:
            admission = (each.obj.get("status") or {}).get("admission") or {}
            used = {name for row in admission.get("podSetAssignments") or [] for name in row["flavors"].values()}
            match = JOB_OF.fullmatch(each.key[2])
            if flavor not in used or match is None:
                continue
            post = self.posted.get(("jobs", each.key[1], match[1]))
            asked = post.request["body"]["spec"]["template"]["spec"] if post is not None else {}
            for job in self.seen:
                running = job.obj.get("spec", {}).get("suspend") is False
                if job.key == ("jobs", each.key[1], match[1]) and running and job.t_s >= each.t_s:
                    yield asked, job.obj["spec"].get("template", {}).get("spec") or {}
                    break

    def _node_labels(self, flavor: str) -> dict[str, str]:
        found: dict[str, str] | None = None
        for asked, started in self._placed(flavor):
            given = (asked.get("nodeSelector") or {}).items()
            added = {
                name: each for name, each in (started.get("nodeSelector") or {}).items() if (name, each) not in given
            }
            found = added if found is None else dict(found.items() & added.items())
        if found is None:
            pods = [each.obj["spec"]["nodeSelector"] for each in self.seen if _is_placed(each)]
            found = dict(set.intersection(*(set(each.items()) for each in pods))) if pods else {}
        return {name: each for name, each in found.items() if not name.startswith(("topology.", "kubernetes.io/"))}

    def _tolerations(self, flavor: str) -> list[Obj]:
        common: list[Obj] | None = None
        for asked, started in self._placed(flavor):
            added = [each for each in started.get("tolerations") or [] if each not in (asked.get("tolerations") or [])]
            common = added if common is None else [each for each in common if each in added]
        return common or []

    def _flavors(self) -> Iterator[tuple[str, str, str, Obj]]:
        for name in self._flavor_names():
            spec: Obj = {"nodeLabels": self._node_labels(name)}
            if self._tolerations(name):
                spec["tolerations"] = self._tolerations(name)
            yield "resourceflavors", "", name, _object("ResourceFlavor", name, spec)

    def _check_names(self, queue: str) -> list[str]:
        of_queue = {each for (_, each), target in self.local.items() if target == queue}
        found: list[str] = []
        for each in self.workloads:
            status = each.obj.get("status") or {}
            target = (status.get("admission") or {}).get("clusterQueue")
            local = (each.obj.get("spec") or {}).get("queueName")
            if target == queue or (target is None and local in of_queue):
                found += [row["name"] for row in status.get("admissionChecks") or []]
        return list(dict.fromkeys(found))

    def _checks(self) -> Iterator[tuple[str, str, str, Obj]]:
        names = dict.fromkeys(name for queue in self.queues for name in self._check_names(queue))
        for name in names:
            if ("admissionchecks", "", name) in self.posted:
                continue
            body = _object("AdmissionCheck", name, {"controllerName": "autopilot.example.com/check"})
            yield "admissionchecks", "", name, body
            active = {"type": "Active", "status": "True", "reason": "Active", "message": "ready"}
            yield "admissionchecks", "", name, {"status": {"conditions": [active | {"lastTransitionTime": EPOCH}]}}

    def _classes(self) -> Iterator[tuple[str, str, str, Obj]]:
        found: dict[str, int] = {}
        for each in self.workloads:
            spec = each.obj.get("spec") or {}
            reference = spec.get("priorityClassRef") or {}
            if reference.get("kind") == "WorkloadPriorityClass":
                found.setdefault(reference["name"], spec.get("priority", 0))
        for row in self.summaries.values():
            if row["priority"]:
                found.setdefault(_class_of(row["priority"]), row["priority"])
        for name, value in found.items():
            if ("workloadpriorityclasses", "", name) not in self.posted:
                yield (
                    "workloadpriorityclasses",
                    "",
                    name,
                    _object("WorkloadPriorityClass", name, None) | {"value": value},
                )

    def _queue_objects(self) -> Iterator[tuple[str, str, str, Obj]]:
        text = [str(each) for each in values(self.raw, "reason")]
        preempted = {reason for reason in text if reason.startswith("InC")}
        shared = self.quotas.borrows() or any(reason.startswith("InCohort") for reason in preempted)
        preemption: Obj = {}
        if "InClusterQueue" in preempted:
            preemption["withinClusterQueue"] = "LowerPriority"
        if any(reason.startswith("InCohort") for reason in preempted):
            preemption["reclaimWithinCohort"] = "Any"
        posted = [step.request["body"]["spec"] for (each, _, _), step in self.posted.items() if each == "clusterqueues"]
        paths = re.findall(r"path: /([^/ ;]+)/", " ".join(str(each) for each in values(self.raw, "message")))
        cohort = next((each["cohortName"] for each in posted if each.get("cohortName")), (paths or [""])[0])
        shared = shared or bool(cohort)
        for name in self.queues:
            spec: Obj = {"namespaceSelector": {}, "resourceGroups": self.quotas.groups(name)}
            spec |= {"cohortName": cohort or "shared"} if shared else {}
            spec |= {"preemption": preemption} if preemption else {}
            checks = self._check_names(name)
            if checks:
                spec["admissionChecksStrategy"] = {"admissionChecks": [{"name": each} for each in checks]}
            yield "clusterqueues", "", name, _object("ClusterQueue", name, spec)
        for (space, name), queue in self.local.items():
            body = _object("LocalQueue", name, {"clusterQueue": queue})
            body["metadata"]["namespace"] = space
            yield "localqueues", space, name, body

    # what the topic's script did between its steps

    def _edits(self) -> Iterator[KueueWrite]:
        return Edits(self.recording, self.seen, frozenset(self.posted), self.local).writes()

    def _jobs(self) -> Iterator[KueueWrite]:
        hidden: dict[Key, tuple[float, Obj]] = {}
        for each in self.seen:
            if each.key[0] == "jobs" and each.change == "ADDED" and each.key not in self.posted:
                hidden.setdefault(each.key, (each.t_s, each.obj))
        for at_s, space, workload in self._workloads_named():
            match = JOB_OF.fullmatch(workload)
            key = ("jobs", space, match[1] if match is not None else "")
            if key[2] and key not in self.posted and key not in hidden:
                hidden[key] = (at_s, {})
        for number, ((_, space, name), (t_s, obj)) in enumerate(hidden.items()):
            body = self._job_body(space, name, obj)
            yield KueueWrite(t_s - LEAD_S + 0.001 * number, "POST", "jobs", space, name, body)

    def _workloads_named(self) -> Iterator[tuple[float, str, str]]:
        """Workloads of jobs that no watch shows: when they were there at the latest."""
        for number, (space, name) in enumerate(self.summaries):
            yield -3.0 + number, space, name
        for each in self.seen:
            if JOB_OF.fullmatch(each.key[2]):
                shown = each.change == "ADDED"
                yield (
                    (each.t_s if shown else max(-2.0, min(each.t_s - 3.0, 60.0))),
                    each.key[1] or _space(self.recording),
                    each.key[2],
                )
        for step in self.recording.steps:
            namespace, resource, name, _ = parts_of(step.request.get("path", ""))
            if resource == "workloads" and JOB_OF.fullmatch(name) and step.status != 404:
                yield max(-2.0, step.t_s - 3.0), namespace, name

    def _job_body(self, space: str, name: str, obj: Obj) -> Obj:
        shown = obj.get("spec") or {}
        template = shown.get("template") or {}
        count, requests, spec = self.quotas.job(name)
        queue = next((local for (each, local) in self.local if each == space), "q")
        for each in self.seen:
            if each.key == ("jobs", space, name):
                labels = (each.obj["spec"].get("template") or {}).get("metadata", {}).get("labels") or {}
                queue = labels.get("kueue.x-k8s.io/local-queue-name", queue)
        labels = {QUEUE: spec.get("queueName", queue)}
        if (spec.get("priorityClassRef") or {}).get("kind") == "WorkloadPriorityClass":
            labels[PRIORITY] = spec["priorityClassRef"]["name"]
        for (home, workload), summary in self.summaries.items():
            match = JOB_OF.fullmatch(workload)
            if home == space and match is not None and match[1] == name:
                labels[QUEUE] = summary["localQueueName"]
                labels |= {PRIORITY: _class_of(summary["priority"])} if summary["priority"] else {}
        pods = shown.get("parallelism") or count or 1
        if not count:  # requests of all pods together
            requests = {each: str(max(1, int(value) // pods)) for each, value in requests.items()}
        metadata: Obj = {"name": name, "namespace": space, "labels": labels}
        if (obj.get("metadata") or {}).get("annotations"):
            metadata["annotations"] = obj["metadata"]["annotations"]
        annotations = (template.get("metadata") or {}).get("annotations")
        container = {"name": "main", "image": "app:1", "resources": {"requests": requests, "limits": requests}}
        return {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": metadata,
            "spec": {
                "parallelism": pods,
                "completions": pods,
                "backoffLimit": 0,
                "template": ({"metadata": {"annotations": annotations}} if annotations else {})
                | {"spec": (template.get("spec") or {}) | {"restartPolicy": "Never", "containers": [container]}},
            },
        }


EPOCH = "2026-01-01T00:00:00Z"


def _object(kind: str, name: str, spec: Obj | None) -> Obj:
    body: Obj = {"apiVersion": API_VERSION, "kind": kind, "metadata": {"name": name}}
    return body if spec is None else body | {"spec": spec}


def _space(recording: Recording) -> str:
    spaces = [parts_of(step.request.get("path", ""))[0] for step in recording.steps]
    return max((each for each in spaces if each), key=spaces.count, default="default")


def _class_of(priority: int) -> str:
    """A name for the class that gave a priority, which a summary does not name."""
    return f"priority-{priority}"


def _is_placed(each: Seen) -> bool:
    return each.key[0] == "pods" and bool((each.obj.get("spec") or {}).get("nodeSelector"))
