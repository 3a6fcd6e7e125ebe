"""Takes away the marks by which work waits for the controller, and nothing else.

Our admission check in the queues (with the check inactive the queues would stop), our gate annotations, our scheduling
gates, and the stops of work that the controller would have started again. Idle services scaled down by it get the
number of replicas of their owner again. Each write names the uid and the version of its read. Running work is not
touched.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from actuators.kubernetes.api import listed
from actuators.kubernetes.changes import GATED_BY
from actuators.kubernetes.levers.kueue_gate import gates_of
from actuators.kubernetes.levers.service_ceiling import replicas_of
from actuators.kubernetes.objects import annotation
from autopilot.contract.annotations import CHECK, CONTROLLER, PLACEMENT, STOPPED, may_return
from autopilot.contract.scaling import CEILING, read_ceiling
from autopilot.contract.tree import PREFIX
from autopilot.contract.written import ACTIVE, SUSPEND, only_ours
from autopilot.kube.cluster_api import TOO_LARGE, Answer

Obj = dict[str, Any]
KUEUE, BATCH, APPS = "/apis/kueue.x-k8s.io/v1beta2", "/apis/batch/v1", "/apis/apps/v1"
QUEUES, WORK = f"{KUEUE}/clusterqueues", f"{KUEUE}/workloads"
PAGE = 500
Step = tuple[str, str, str, Mapping[str, str], Callable[[Obj], Obj | None], Callable[[Obj], str]]
"""Its name, its kind, the list with its query, the patch of an object (None: it is left alone), and its path."""
NOT_FOUND, CONFLICT = 404, 409


class Api(Protocol):
    """The API server (`ClusterApi`)."""

    def get(self, path: str, query: Mapping[str, str] | None = None) -> Answer:
        """Read."""
        ...

    def patch(self, path: str, body: Any) -> Answer:
        """Merge patch."""
        ...


class Stopped(Exception):  # noqa: N818 - it is no error
    """The removal goes on later, or not at all."""


@dataclass
class Removal:
    """One run. It may be repeated: removed marks are not looked for again."""

    api: Api
    goes_on: Callable[[], str]  # reason to stop the removal, "" while it may go on
    counts: dict[str, int] = field(default_factory=dict)  # added to
    unread: list[str] = field(default_factory=list)  # unreadable objects, left alone

    def run(self) -> str:
        """Remove everything; returns the reason for an incomplete removal, "" for a complete one."""
        left = ""
        for step in STEPS:
            try:
                left = self._remove(*step) or left
            except Stopped as reason:
                return str(reason)
        return left

    def _remove(
        self,
        what: str,
        kind: str,
        path: str,
        query: Mapping[str, str],
        patch_of: Callable[[Obj], Obj | None],
        place: Callable[[Obj], str],
    ) -> str:
        left = ""
        for found in self.found(kind, path, query):
            patch = patch_of(found)
            if patch is None:
                continue
            reason = self.goes_on()
            if reason:
                raise Stopped(reason)
            meta = found["metadata"]
            given = {**patch.pop("metadata", {}), "uid": meta["uid"], "resourceVersion": meta["resourceVersion"]}
            answer = self.api.patch(place(found), {**patch, "metadata": given})
            if answer.status in {200, NOT_FOUND}:
                self.counts[what] = self.counts.get(what, 0) + (answer.status == 200)
            elif answer.status in {0, 500, 502, 503, 504}:  # no answer of the server, or of a webhook
                raise Stopped(f"{what}: {answer.reason}")
            else:
                left = f"{what}: {place(found)}: {answer.reason}"  # written meanwhile: the next run reads it again
        return left

    def found(self, kind: str, path: str, query: Mapping[str, str]) -> Iterator[Obj]:
        """The objects of a list, page by page; none of a kind unknown to the cluster.

        If objects are so large that a page is too long, the pages get smaller.
        """
        following, page = "", PAGE
        while True:
            asked = {**query, "limit": str(page), **({"continue": following} if following else {})}
            answer = self.api.get(path, asked)
            if answer.status == NOT_FOUND:
                return
            if answer.status == TOO_LARGE and page > 1:
                page = max(page // 8, 1)
                continue
            document = answer.document
            if answer.status != 200 or "items" not in document or not isinstance(document["items"] or [], list):
                raise Stopped(f"{path}: {answer.reason}")
            read = listed(kind, document)
            self.unread += [each for each in read.unread if each not in self.unread]
            yield from read.items
            following = str((document.get("metadata") or {}).get("continue") or "")
            if not following:
                return


UNBOUND = {"fieldSelector": "spec.nodeName="}


def _path(plural: str) -> Callable[[Obj], str]:
    return lambda found: f"{KUEUE}/{plural}/{found['metadata']['name']}"


def in_namespace(group: str, plural: str) -> Callable[[Obj], str]:
    """The path of an object of a namespace."""
    return lambda found: f"{group}/namespaces/{found['metadata']['namespace']}/{plural}/{found['metadata']['name']}"


def scale_of(plural: str) -> Callable[[Obj], str]:
    """The path of its scale subresource."""
    place = in_namespace(APPS, plural)
    return lambda found: f"{place(found)}/scale"


def _without_check(queue: Obj) -> Obj | None:
    """Patch of a ClusterQueue without our check; the checks of others stay."""
    held = ((queue.get("spec") or {}).get("admissionChecksStrategy") or {}).get("admissionChecks") or []
    rest = [each for each in held if each.get("name") != CHECK]
    if len(rest) == len(held):
        return None
    return {"spec": {"admissionChecksStrategy": {"admissionChecks": rest} if rest else None}}


def _without_gate(found: Obj) -> Obj | None:
    gates = gates_of(found)
    if CONTROLLER not in gates:
        return None
    rest = ",".join(name for name in gates if name != CONTROLLER)
    return {"metadata": {"annotations": {GATED_BY: rest or None}}}


def _ungated(pod: Obj) -> Obj | None:
    held = (pod.get("spec") or {}).get("schedulingGates") or []
    rest = [each for each in held if each.get("name") != CONTROLLER]
    return None if len(rest) == len(held) else {"spec": {"schedulingGates": rest or None}}


def _resumed(job: Obj) -> Obj | None:
    """Start a Job suspended by the controller again, unless a person has suspended it since.

    The node selector of its last placement goes: those nodes are not marked any more.
    """
    if not (job.get("spec") or {}).get("suspend") or not _ours(job, SUSPEND):
        return None
    held = job["spec"]["template"]["spec"].get("nodeSelector") or {}
    gone = {key: None for key in held if key.startswith(PLACEMENT)}
    spec: Obj = {"suspend": False}
    if gone:
        spec["template"] = {"spec": {"nodeSelector": gone}}
    return {"metadata": {"annotations": {STOPPED: None}}, "spec": spec}


def _reactivated(workload: Obj) -> Obj | None:
    if (workload.get("spec") or {}).get("active", True) is not False or not _ours(workload, ACTIVE):
        return None
    return {"metadata": {"annotations": {STOPPED: None}}, "spec": {"active": True}}


def _raised(service: Obj) -> Obj | None:
    """The owner's number of replicas for an idle service, if the present one is ours.

    The record of the ceiling stays. The next controller finds another number than its own, and removes it.
    """
    ceiling = read_ceiling(annotation(service, PREFIX + CEILING))
    if ceiling is None or ceiling.ours == ceiling.owner or replicas_of(service) != ceiling.ours:
        return None
    return {"spec": {"replicas": ceiling.owner}}


def _ours(found: Obj, path: tuple[str, ...]) -> bool:
    """True if the controller stopped this very object, wants it back, and was the last to write the field."""
    meta = found["metadata"]
    return may_return(annotation(found, STOPPED), meta["uid"]) and only_ours(meta.get("managedFields") or (), path)


STEPS: tuple[Step, ...] = (
    ("admission checks of ClusterQueues", "ClusterQueue", QUEUES, {}, _without_check, _path("clusterqueues")),
    ("gate annotations of Jobs", "Job", f"{BATCH}/jobs", {}, _without_gate, in_namespace(BATCH, "jobs")),
    ("gate annotations of Workloads", "Workload", WORK, {}, _without_gate, in_namespace(KUEUE, "workloads")),
    ("scheduling gates of pods", "Pod", "/api/v1/pods", UNBOUND, _ungated, in_namespace("/api/v1", "pods")),
    ("suspensions of Jobs", "Job", f"{BATCH}/jobs", {}, _resumed, in_namespace(BATCH, "jobs")),
    ("deactivated Workloads", "Workload", WORK, {}, _reactivated, in_namespace(KUEUE, "workloads")),
    ("ceilings of Deployments", "Deployment", f"{APPS}/deployments", {}, _raised, scale_of("deployments")),
    ("ceilings of StatefulSets", "StatefulSet", f"{APPS}/statefulsets", {}, _raised, scale_of("statefulsets")),
)
"""In this order."""
