"""A batch Job under Kueue."""

from __future__ import annotations

import copy
from typing import Any

from apiserver.actors.job_status import parse_indexes
from apiserver.errors import StatusError
from apiserver.kueue import podsets
from apiserver.kueue.jobs import Busy, Job
from apiserver.kueue.names import (
    COMPLETIONS_EQUAL,
    JOBS,
    MAIN_POD_SET,
    MIN_PARALLELISM,
    STOPPING,
    annotations_of,
    key_of,
    pod_sets_of,
    spec_of,
)
from apiserver.kueue.podsets import Addition
from apiserver.kueue.webhook_rules import pods_count, suspended

Obj = dict[str, Any]
INDEX = "batch.kubernetes.io/job-completion-index"
NAME_LABEL = "batch.kubernetes.io/job-name"
MANAGED_LABELS = ("job-name", "controller-uid", NAME_LABEL, "batch.kubernetes.io/controller-uid")


class BatchJob(Job):
    """A Job of batch/v1."""

    reporter = "batch/job-kueue-controller"

    def suspended(self) -> bool:
        """spec.suspend, unless it is still being stopped."""
        return suspended(self.obj)

    def stopping(self) -> bool:
        """Its pods are not gone, or its template is not restored."""
        return STOPPING in annotations_of(self.obj)

    def active(self) -> bool:
        """status.active."""
        return bool(self._status().get("active"))

    def _status(self) -> Obj:
        found: Obj = self.obj.get("status") or {}
        return found

    def finished(self) -> tuple[str, bool] | None:
        """The condition Complete or Failed."""
        for each in self._status().get("conditions") or []:
            if each["type"] in {"Complete", "Failed"} and each["status"] == "True":
                return each.get("message", ""), each["type"] == "Complete"
        return None

    def pods_ready(self) -> bool:
        """Ready and succeeded pods are as many as run at once."""
        status = self._status()
        uncounted = (status.get("uncountedTerminatedPods") or {}).get("succeeded") or []
        return int(status.get("succeeded", 0) + status.get("ready", 0) + len(uncounted)) >= pods_count(self.obj)

    def reclaimable(self) -> dict[str, int]:
        """Pods beyond the remaining completions."""
        spec, status = spec_of(self.obj), self._status()
        parallelism = int(spec.get("parallelism", 1))
        done = int(status.get("succeeded", 0))
        if spec.get("completionMode") == "Indexed":
            texts = (status.get(name, "") for name in ("completedIndexes", "failedIndexes"))
            done = len(set[int]().union(*map(parse_indexes, texts)))
        left = max(0, int(spec.get("completions", parallelism)) - done)
        return {MAIN_POD_SET: parallelism - left} if parallelism > 1 and done and left < parallelism else {}

    def _least(self) -> int | None:
        text = annotations_of(self.obj).get(MIN_PARALLELISM, "")
        return int(text) if text.isdigit() else None

    def pod_sets(self) -> list[Obj]:
        """One pod set, `main`."""
        template = copy.deepcopy(self.obj["spec"]["template"])
        metadata = template.setdefault("metadata", {})
        metadata.pop("creationTimestamp", None)
        labels = {
            name: value
            for name, value in (metadata.get("labels") or {}).items()
            if name not in MANAGED_LABELS or name == NAME_LABEL
        }
        if labels:
            metadata["labels"] = labels
        found: Obj = {
            "count": pods_count(self.obj),
            "name": MAIN_POD_SET,
            "template": template,
            "topologyRequest": podsets.topology_request(metadata.get("annotations") or {}, INDEX),
        }
        least = self._least()
        return [found | {"minCount": least} if least is not None else found]

    def start(self, added: list[Addition]) -> list[Obj]:
        """Resume it with the additions of the admission."""
        template = self.obj["spec"]["template"]
        metadata, spec = template.get("metadata") or {}, template["spec"]
        patch: Obj = {"suspend": False}
        if added:
            change = podsets.template_patch(metadata, spec, podsets.merged(metadata, spec, added[0]))
            if change:
                patch["template"] = change
            if self._least() is not None:
                patch["parallelism"] = added[0].count
                if annotations_of(self.obj).get(COMPLETIONS_EQUAL) == "true":
                    patch["completions"] = added[0].count
        try:
            self.obj = self._client().patch(JOBS, *key_of(self.obj), {"spec": patch})
        except StatusError as error:
            raise Busy(str(error)) from error
        return [self.obj]

    def stop(self, workload: Obj | None, reason: str, message: str) -> list[Obj]:
        """Suspend it, forget its start, and restore its template once the server allows it."""
        key = key_of(self.obj)
        stopped = []
        try:
            if not self.suspended():
                patch = {"metadata": {"annotations": {STOPPING: "true"}}, "spec": {"suspend": True}}
                was = self.obj
                self.obj = self._client().patch(JOBS, *key, patch)
                if not spec_of(was).get("suspend") or STOPPING not in annotations_of(was):
                    stopped.append(self.obj)
                    return stopped  # the rest follows the event of this write, while the Job controller stops the pods
            if self._status().get("startTime"):
                self.obj = self._client().patch(JOBS, *key, {"status": {"startTime": None}}, "status")
            self._restore(key, workload)
        except (StatusError, Busy) as error:
            if stopped:
                for obj in stopped:
                    self.context.recorder.event(obj, "Normal", "Stopped", message, self.reporter)
            raise Busy(str(error)) from error
        return stopped

    def _restore(self, key: tuple[str, str], workload: Obj | None) -> None:
        patch: Obj = {}
        if self._status().get("active"):
            raise Busy("the Job controller has not stopped its pods yet")
        if STOPPING in annotations_of(self.obj):
            patch["metadata"] = {"annotations": {STOPPING: None}}
        if workload is not None:
            template = self.obj["spec"]["template"]
            metadata, spec = template.get("metadata") or {}, template["spec"]
            managed = {name: value for name, value in (metadata.get("labels") or {}).items() if name in MANAGED_LABELS}
            pod_set = pod_sets_of(workload)[0]
            change = podsets.template_patch(metadata, spec, podsets.as_created(pod_set, managed))
            if change:
                patch.setdefault("spec", {})["template"] = change
            if self._least() is not None and spec_of(self.obj).get("parallelism") != pod_set.get("count", 1):
                patch.setdefault("spec", {})["parallelism"] = pod_set.get("count", 1)
        if patch:
            self.obj = self._client().patch(JOBS, *key, patch)

    def _client(self) -> Any:
        return self.context.client()
