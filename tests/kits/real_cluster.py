"""A cluster named by a kubeconfig, with objects of our own in it: a namespace, nodes without a machine, their kubelet.

Everything that is created carries the label `e2e.gpu-autopilot.io/run` with the id of the run, and is removed by
`close`. Nothing else in the cluster is changed. The nodes have a taint that only pods of the run tolerate, and pods
of the run select these nodes, so no real node runs them. `close` raises `AssertionError` naming what could not be
removed.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import uuid4

from actuators.kubernetes.actuator import KubernetesActuator
from actuators.kubernetes.api import MERGE, Answer, Api, Refusal
from autopilot.contract.annotations import CHECK, CONTROLLER, PLACEMENT
from autopilot.core.model.objects import Subject, SubjectKind
from autopilot.core.model.records import Instruction
from autopilot.core.model.verb import Operation
from autopilot.kube.access import Access, Address
from tests.kits.acting_kit import Found, Identity

Obj = dict[str, Any]
E2E = "e2e.gpu-autopilot.io/run"
GPU = "nvidia.com/gpu"
CORE, BATCH, POLICY = "/api/v1", "/apis/batch/v1", "/apis/policy/v1"
KUEUE = "/apis/kueue.x-k8s.io/v1beta2"
FOUND = {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3", "nvidia.com/gpu.replicas": "1"}
"""Labels that GPU feature discovery gives to nodes of this model."""
READY = {"status": "True", "reason": "KubeletReady"}
LEAVES_S = 2
"""For this long a pod of the run stays on a node that is not ready; 300 s unless a pod states it."""
LOOK_S, BEAT_S, LONGEST_S, REMOVED_S = 0.3, 10.0, 240.0, 60.0
"""Time between two looks at the cluster, between two heartbeats of a node, the longest wait for anything that happens,
and for the end of what is removed.
"""


class Patient(Api):
    """Asks again where the server says so: a kind that has just been defined answers 429 for a moment."""

    def _ask(self, *words: Any, **more: Any) -> Answer:
        end_s = time.monotonic() + LONGEST_S
        while (answer := super()._ask(*words, **more)).refusal == Refusal.BUSY and time.monotonic() < end_s:
            time.sleep(LOOK_S)
        return answer


class RealCluster:
    """The objects of one run; the port `Objects` of the actuator that acts on them."""

    def __init__(self, kubeconfig: Path, nodes: int = 2, gpus: int = 8) -> None:
        """Create the namespace and the nodes. What is created is removed again where that fails."""
        self.run = uuid4().hex[:8]
        self.space = f"gpu-autopilot-e2e-{self.run}"
        self.kubeconfig = kubeconfig
        self.api = Patient(Access(Address(kubeconfig)))
        self.nodes = tuple(f"{self.space}-{number}" for number in range(nodes))
        self.cut = f"{self.space}-cut"
        """Name of a node of MIG instances, which a story may add."""
        self._beats = set(self.nodes)  # nodes whose kubelet the test is
        self.broken: set[str] = set()
        """Nodes that report that they are not ready."""
        self._made: list[str] = []  # paths, in the order of creation
        self._stop = threading.Event()
        self._kubelet = threading.Thread(target=self._keep, name="e2e-kubelet", daemon=True)
        try:
            self.create(f"{CORE}/namespaces", {"apiVersion": "v1", "kind": "Namespace"}, self.space)
            for name in self.nodes:
                self.add_node(name, FOUND, {GPU: str(gpus)})
        except BaseException:
            self.close()
            raise
        self._kubelet.start()

    # --- objects ------------------------------------------------------------------------------

    def create(self, path: str, body: Obj, name: str, **meta: Any) -> Obj:
        """Create an object with the label of the run; it is removed at the end."""
        labels = {E2E: self.run, **meta.pop("labels", {})}
        self._made.append(f"{path}/{name}")
        whole = {**body, "metadata": {"name": name, "labels": labels, **meta}}
        answer = self.api.post(path, whole, {"fieldManager": "e2e"})
        assert answer.ok, f"{path}/{name} cannot be created: {answer.message}"
        return answer.body

    def get(self, path: str) -> Obj:
        """An object; {} where there is none. A connection that the server has closed meanwhile is opened again."""
        answer = self.api.get(path)
        if answer.refusal == Refusal.UNREACHABLE:
            answer = self.api.get(path)
        assert answer.ok or answer.refusal == Refusal.GONE, f"{path}: {answer.message}"
        return answer.body if answer.ok else {}

    def items(self, path: str) -> list[Obj]:
        """The objects of a list; none where the cluster does not know the kind."""
        found: list[Obj] = self.get(path).get("items", [])
        return found

    def has_kueue(self) -> bool:
        """Whether the cluster serves Kueue in the version that we write."""
        return bool(self.get(KUEUE))

    def job(
        self,
        name: str,
        pods: int = 1,
        gpus: int = 8,
        *,
        labels: Obj | None = None,
        notes: Obj | None = None,
        resource: str = GPU,
        **spec: Any,
    ) -> str:
        """A Job whose pods run on the nodes of the run only; its uid.

        `gpus`: of each pod, in units of `resource`. `notes`: its annotations.
        """
        template = {"spec": self.pod_spec(gpus, resource)}
        body = {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "spec": {"parallelism": pods, "completions": pods, "template": template, **spec},
        }
        made = self.create(self.inside(BATCH, "jobs"), body, name, labels=labels or {}, annotations=notes or {})
        uid: str = made["metadata"]["uid"]
        return uid

    def pod(self, name: str, gpus: int = 8, **labels: str) -> str:
        """A pod on the nodes of the run; its uid."""
        body = {"apiVersion": "v1", "kind": "Pod", "spec": self.pod_spec(gpus)}
        uid: str = self.create(self.inside(CORE, "pods"), body, name, labels=labels)["metadata"]["uid"]
        return uid

    def pod_spec(self, gpus: int, resource: str = GPU) -> Obj:
        """One container with GPUs, for the nodes of the run. It leaves a node that is not ready at once."""
        resources = {resource: str(gpus)}
        lost = [{"key": f"node.kubernetes.io/{each}", "effect": "NoExecute"} for each in ("not-ready", "unreachable")]
        container = {"name": "main", "image": "busybox", "resources": {"requests": resources, "limits": resources}}
        return {
            "restartPolicy": "Never",
            "nodeSelector": {E2E: self.run},
            "tolerations": [
                {"key": E2E, "operator": "Exists"},
                *({**each, "operator": "Exists", "tolerationSeconds": LEAVES_S} for each in lost),
            ],
            "terminationGracePeriodSeconds": 1,
            "containers": [container],
        }

    def inside(self, root: str, plural: str) -> str:
        """The path of a kind in the namespace of the run."""
        return f"{root}/namespaces/{self.space}/{plural}"

    def pods(self, job: str = "") -> list[Obj]:
        """Pods of the run, those of a Job or all."""
        found = self.items(self.inside(CORE, "pods"))
        return [each for each in found if not job or each["metadata"].get("labels", {}).get("job-name") == job]

    def hosts(self, job: str = "") -> list[str]:
        """The nodes of running pods, sorted."""
        running = [each for each in self.pods(job) if each.get("status", {}).get("phase") == "Running"]
        return sorted(each["spec"]["nodeName"] for each in running)

    def patch(self, path: str, body: Obj) -> Obj:
        """A merge patch; the object."""
        answer = self.api.patch(path, body, MERGE)
        assert answer.ok, f"{path} cannot be changed: {answer.message}"
        return answer.body

    def ran_for(self, job: str, seconds: float) -> Obj:
        """Its pod was bound this long ago, as its kubelet says; the pod."""
        (pod,) = self.pods(job)
        at = datetime.fromtimestamp(time.time() - seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        conditions = [{**each, "lastTransitionTime": at} for each in pod["status"]["conditions"]]
        path = f"{self.inside(CORE, 'pods')}/{pod['metadata']['name']}/status"
        return self.patch(path, {"status": {"startTime": at, "conditions": conditions}})

    def finish(self, job: str) -> None:
        """Its pods end well, as their kubelet says."""
        for each in self.pods(job):
            path = f"{self.inside(CORE, 'pods')}/{each['metadata']['name']}/status"
            self.patch(path, {"status": {"phase": "Succeeded"}})

    def workload(self, job: str) -> Obj:
        """The Workload of a Job; {} while there is none."""
        for each in self.items(self.inside(KUEUE, "workloads")):
            if each["metadata"].get("ownerReferences", [{}])[0].get("name") == job:
                return each
        return {}

    def events(self, name: str) -> list[tuple[str, str]]:
        """Reason and note of the Events of ours on an object."""
        found = self.items(self.inside("/apis/events.k8s.io/v1", "events"))
        ours = (each for each in found if each.get("reportingController", "").startswith("gpu-autopilot"))
        return [(each["reason"], each["note"]) for each in ours if each["regarding"]["name"] == name]

    def until(self, what: Callable[[], Any], wanted: str) -> Any:
        """Wait for something; what it was. Raises `AssertionError` saying what did not come."""
        end_s = time.monotonic() + LONGEST_S
        while not (found := what()):
            assert time.monotonic() < end_s, f"not within {LONGEST_S:g} s: {wanted}"
            time.sleep(LOOK_S)
        return found

    # --- the nodes ----------------------------------------------------------------------------

    def add_node(self, name: str, labels: Obj, gpus: Obj) -> None:
        """A node with these labels and GPU resources, whose kubelet the test is."""
        known = {"kubernetes.io/hostname": name, "type": "gpu-autopilot-e2e"}
        taint = {"key": E2E, "value": self.run, "effect": "NoSchedule"}
        node = {"apiVersion": "v1", "kind": "Node", "spec": {"taints": [taint]}}
        self.create(f"{CORE}/nodes", node, name, labels=known | labels)
        amounts = {"cpu": "64", "memory": "512Gi", "pods": "110", **gpus}
        self._beat(name, capacity=amounts, allocatable=amounts)
        self._beats = self._beats | {name}

    def report(self, name: str, *, ready: bool) -> None:
        """The kubelet of a node says from now on that it is ready, or that it is not."""
        self.broken = self.broken - {name} if ready else self.broken | {name}
        self._beat(name)

    def offer(self, name: str, gpus: Obj) -> None:
        """The device plugin of a node announces these amounts."""
        self.patch(f"{CORE}/nodes/{name}/status", {"status": {"capacity": gpus, "allocatable": gpus}})

    def _beat(self, name: str, **status: Any) -> None:
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        state = {"status": "False", "reason": "KubeletNotReady"} if name in self.broken else READY
        ready = {"type": "Ready", "message": "of an end-to-end test", **state}
        ready |= {"lastHeartbeatTime": now, "lastTransitionTime": now}
        self.api.patch(f"{CORE}/nodes/{name}/status", {"status": {"conditions": [ready], **status}}, MERGE)

    def _keep(self) -> None:
        """What a kubelet does: heartbeats, pods that run, pods that stop."""
        beat_s = 0.0
        while not self._stop.wait(LOOK_S):
            if time.monotonic() >= beat_s:
                beat_s = time.monotonic() + BEAT_S
                for name in sorted(self._beats):
                    self._beat(name)
            answer = self.api.get(self.inside(CORE, "pods"))
            for pod in answer.body.get("items", ()) if answer.ok else ():
                self._keep_pod(pod)

    def _keep_pod(self, pod: Obj) -> None:
        if pod["spec"].get("nodeName") not in self._beats:
            return
        path = f"{self.inside(CORE, 'pods')}/{pod['metadata']['name']}"
        if pod["metadata"].get("deletionTimestamp"):
            if pod.get("status", {}).get("phase") in {"Pending", "Running"}:
                self.api.patch(f"{path}/status", {"status": {"phase": "Failed"}}, MERGE)
            self.api.delete(path, {"gracePeriodSeconds": 0})
        elif pod.get("status", {}).get("phase") == "Pending":
            now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
            true = {"status": "True", "lastTransitionTime": now}
            conditions = [{"type": each, **true} for each in ("PodScheduled", "ContainersReady", "Ready")]
            status = {"phase": "Running", "startTime": now, "conditions": conditions}
            self.api.patch(f"{path}/status", {"status": status}, MERGE)

    # --- acting -------------------------------------------------------------------------------

    def actuator(self, **more: Any) -> KubernetesActuator:
        """The actuator that ships; it finds objects of the run only."""
        return KubernetesActuator(Api(Access(Address(self.kubeconfig))), self, **more)

    def instruction(self, uid: str, operation: Operation, number: str) -> Instruction:
        """An instruction about work of the run, due in a minute."""
        subject = Subject(SubjectKind.WORKLOAD, f"{self.space}/{number}", uid, 0)
        return Instruction(f"1/e2e-{self.run}/{number}", subject, operation, time.time() + 60.0, 1, "e2e")

    def find(self, kind: str, uid: str) -> Found | None:
        """The objects of a Job, of its Workload, or of a group of pods (port `Objects`)."""
        found = []
        places = (("Job", BATCH, "jobs"), ("Pod", CORE, "pods"), ("Workload", KUEUE, "workloads"))
        for title, root, plural in places:
            for each in self.items(self.inside(root, plural)):
                meta = each["metadata"]
                owners = {owner["uid"] for owner in meta.get("ownerReferences", ())}
                group = meta.get("labels", {}).get("group")
                if uid in {meta["uid"], *owners} or (group and uid == f"group/{self.space}/{group}"):
                    found.append(Identity(title, self.space, meta["name"], meta["uid"]))
        return Found(0, tuple(found)) if found else None

    def changing(self) -> Iterator[tuple[Identity, str]]:
        """No node changes."""
        return iter(())

    def ceiled(self) -> Iterator[tuple[Identity, str]]:
        """No service has a ceiling."""
        yield from ()

    def offered(self) -> Iterator[Identity]:
        """No node is offered back."""
        yield from ()

    def left_over(self) -> Iterator[Identity]:
        """No Retry is left over."""
        yield from ()

    def reservations(self, uids: Sequence[str]) -> Iterator[Identity]:
        """No quota is taken."""
        yield from ()

    def taken(self) -> Iterator[Identity]:
        """No quota is given back."""
        yield from ()

    def placed(self) -> Iterator[tuple[str, str, str]]:
        """Labels of placements on the nodes of the run."""
        for name in self.nodes:
            meta = self.get(f"{CORE}/nodes/{name}").get("metadata", {})
            for key in meta.get("labels", {}):
                if key.startswith(PLACEMENT):
                    yield name, meta["uid"], key

    def uids(self) -> Iterator[str]:
        """Uids of the Jobs of the run."""
        return (each["metadata"]["uid"] for each in self.items(self.inside(BATCH, "jobs")))

    # --- Kueue --------------------------------------------------------------------------------

    def queue(self, name: str, gpus: int, **more: Any) -> None:
        """Our AdmissionCheck, a flavor of the nodes of the run, a ClusterQueue with the check, and its LocalQueue.

        `more`: further fields of the ClusterQueue.
        """
        version = {"apiVersion": "kueue.x-k8s.io/v1beta2"}
        cluster_name = f"{self.space}-{name}"
        check = {**version, "kind": "AdmissionCheck", "spec": {"controllerName": CONTROLLER}}
        self.create(f"{KUEUE}/admissionchecks", check, CHECK)
        flavor = {**version, "kind": "ResourceFlavor", "spec": {"nodeLabels": {E2E: self.run}}}
        self.create(f"{KUEUE}/resourceflavors", flavor, self.space)
        quota = [{"name": GPU, "nominalQuota": str(gpus)}]
        groups = [{"coveredResources": [GPU], "flavors": [{"name": self.space, "resources": quota}]}]
        only = {"matchLabels": {"kubernetes.io/metadata.name": self.space}}
        spec = {"namespaceSelector": only, "resourceGroups": groups, **more}
        spec["admissionChecksStrategy"] = {"admissionChecks": [{"name": CHECK}]}
        self.create(f"{KUEUE}/clusterqueues", {**version, "kind": "ClusterQueue", "spec": spec}, cluster_name)
        local = {**version, "kind": "LocalQueue", "spec": {"clusterQueue": cluster_name}}
        self.create(self.inside(KUEUE, "localqueues"), local, name)

    # --- the end ------------------------------------------------------------------------------

    def made(self) -> int:
        """How many objects were created: what `remove` leaves alone."""
        return len(self._made)

    def remove(self, since: int = 0) -> None:
        """Remove what was created after the first `since` objects, the newest first; pods may take their grace.

        Raises `AssertionError` naming what is still there after a minute.
        """
        left = [path for path in reversed(self._made[since:]) if not self._removed(path)]
        end_s = time.monotonic() + REMOVED_S
        while left and time.monotonic() < end_s:
            time.sleep(LOOK_S)
            left = [path for path in left if not self._removed(path)]
        assert not left, f"not removed: {', '.join(left)}; delete them with kubectl (label {E2E}={self.run})"
        del self._made[since:]

    def close(self) -> None:
        """Remove everything that was created."""
        try:
            self.remove()
        finally:
            self._stop.set()
            if self._kubelet.is_alive():
                self._kubelet.join()

    def _removed(self, path: str) -> bool:
        """Ask for the removal of an object of this run; True where there is none. Others of its name are left alone."""
        found = self.api.get(path)
        meta = found.body.get("metadata", {})
        if found.refusal == Refusal.GONE or (found.ok and meta.get("labels", {}).get(E2E) != self.run):
            return True
        if found.ok and not meta.get("deletionTimestamp"):
            self.api.delete(path, {"propagationPolicy": "Background", "preconditions": {"uid": meta["uid"]}})
        return False


def is_true(found: Obj, kind: str) -> bool:
    """Whether a condition of an object is True."""
    rows = found.get("status", {}).get("conditions") or ()
    return any(each["type"] == kind and each["status"] == "True" for each in rows)
