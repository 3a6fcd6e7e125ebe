"""A cluster with Kueue, and the objects that its tests need."""

from __future__ import annotations

import random
from datetime import datetime
from typing import Any

from apiserver.cluster import cluster
from apiserver.kueue.config import Config
from apiserver.kueue.install import install
from apiserver.timeline import US, Timeline
from tests.kits.apiserver_kit import START, Asker

Obj = dict[str, Any]
API_VERSION = "kueue.x-k8s.io/v1beta2"
ROOT = f"/apis/{API_VERSION}"
SPACE = f"{ROOT}/namespaces/default"
JOBS = "/apis/batch/v1/namespaces/default/jobs"
GPU = "nvidia.com/gpu"


class KueueCluster:
    """A cluster with Kueue; `ask` sends requests as its administrator."""

    def __init__(self, config: Config | None = None, start: datetime = START) -> None:
        self.server = cluster(Timeline(start), random.Random(1))
        self.kueue = install(self.server, config)
        self.ask = Asker(self.server)

    def run(self, seconds: float) -> None:
        """Let time pass."""
        timeline = self.server.timeline
        timeline.run_until_us(timeline.now_us + round(seconds * US))

    def create(self, kind: str, plural: str, name: str, spec: Obj | None = None, **fields: Any) -> None:
        """A cluster-scoped object of Kueue's."""
        body = {"apiVersion": API_VERSION, "kind": kind, "metadata": {"name": name}, **fields}
        self.ask("POST", f"{ROOT}/{plural}", body if spec is None else body | {"spec": spec})

    def queue(self, name: str, gpus: int, local: str = "", **spec: Any) -> None:
        """A ClusterQueue over flavor `h100`, and its LocalQueue."""
        if self.ask.response("GET", f"{ROOT}/resourceflavors/h100").status == 404:
            self.create("ResourceFlavor", "resourceflavors", "h100", {"nodeLabels": {"gpu": "h100"}})
        quota = [{"name": "cpu", "nominalQuota": "100"}, {"name": GPU, "nominalQuota": str(gpus)}]
        flavors = [{"name": "h100", "resources": quota}]
        groups = [{"coveredResources": ["cpu", GPU], "flavors": flavors}]
        self.create("ClusterQueue", "clusterqueues", name, {"namespaceSelector": {}, "resourceGroups": groups, **spec})
        body = {"apiVersion": API_VERSION, "kind": "LocalQueue", "metadata": {"name": local or name}}
        self.ask("POST", f"{SPACE}/localqueues", body | {"spec": {"clusterQueue": name}})

    def node(self, name: str, gpus: int = 8, **spec: Any) -> None:
        """A ready node that pods of the flavor run on."""
        labels = {"gpu": "h100", "kubernetes.io/hostname": name}
        body = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels}, "spec": spec}
        self.ask("POST", "/api/v1/nodes", body)
        amounts = {"cpu": "64", "memory": "512Gi", "pods": "110", GPU: str(gpus)}
        ready = {"type": "Ready", "status": "True", "reason": "KubeletReady", "message": ""}
        status = {"capacity": amounts, "allocatable": amounts, "conditions": [ready]}
        self.ask("PATCH", f"/api/v1/nodes/{name}/status", {"status": status})

    def priority(self, name: str, value: int) -> None:
        """A WorkloadPriorityClass."""
        self.create("WorkloadPriorityClass", "workloadpriorityclasses", name, value=value)

    def job(self, name: str, queue: str, gpus: int, pods: int = 1, priority: str = "", gate: str = "") -> Obj:
        """A Job; the Job as it was created."""
        created: Obj = self.ask("POST", JOBS, self.job_of(name, queue, gpus, pods, priority, gate))
        return created

    def job_of(self, name: str, queue: str, gpus: int, pods: int = 1, priority: str = "", gate: str = "") -> Obj:
        """A Job that is not created yet."""
        labels = {"kueue.x-k8s.io/queue-name": queue}
        labels |= {"kueue.x-k8s.io/priority-class": priority} if priority else {}
        annotations = {"kueue.x-k8s.io/admission-gated-by": gate} if gate else {}
        resources = {"cpu": "1", GPU: str(gpus)}
        container = {"name": "main", "image": "app:1", "resources": {"requests": resources, "limits": resources}}
        return {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": {"name": name, "labels": labels, "annotations": annotations},
            "spec": {
                "parallelism": pods,
                "completions": pods,
                "template": {"spec": {"restartPolicy": "Never", "containers": [container]}},
            },
        }

    def workload(self, job: str) -> Obj:
        """The Workload of a Job."""
        found: list[Obj] = self.ask("GET", f"{SPACE}/workloads")["items"]
        return next(each for each in found if each["metadata"]["ownerReferences"][0]["name"] == job)

    def condition(self, job: str, kind: str) -> tuple[str, str, str]:
        """Status, reason and message of a condition of the Workload of a Job; "" for what is absent."""
        rows = self.workload(job).get("status", {}).get("conditions", [])
        found: Obj = next((each for each in rows if each["type"] == kind), {})
        return found.get("status", ""), found.get("reason", ""), found.get("message", "")

    def admitted(self) -> set[str]:
        """Jobs whose Workloads are admitted."""
        found = self.ask("GET", f"{SPACE}/workloads")["items"]
        names = [each["metadata"]["ownerReferences"][0]["name"] for each in found]
        return {name for name in names if self.condition(name, "Admitted")[0] == "True"}
