"""Training programs in pods of the API server, with the manifests of docs/checkpoints.md."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from apiserver.cluster import cluster
from apiserver.http.serve import Running, serve
from apiserver.server import Server
from apiserver.timeline import Timeline
from apiserver.users import ADMIN
from autopilot.checkpoint import Trainer
from tests.kits import kube_objects
from tests.kits.apiserver_kit import START
from tests.kits.podinfo_kit import PodInfo
from tests.tidy.tree import ROOT

Json = dict[str, Any]


@dataclass
class World:
    """A cluster on a socket whose time the test moves, with the manifests of docs/checkpoints.md."""

    server: Server
    running: Running
    timeline: Timeline
    podinfo: PodInfo
    folder: Path
    trainers: list[Trainer] = field(default_factory=list)

    def run_for(self, length_s: float) -> None:
        """Move the time of the cluster."""
        with self.running.clock.lock:
            self.timeline.run_for(length_s)

    def as_admin(self, method: str, *args: Any, **more: Any) -> Json:
        """A request of an administrator, between two of others."""
        with self.running.clock.lock:
            found: Json = getattr(self.server.client(ADMIN, "test"), method)(*args, **more)
            self.running.clock.catch_up()
            return found

    def now_s(self) -> float:
        return self.timeline.now.timestamp()

    def pods(self, job: str = "pretrain") -> list[Json]:
        """Pods of a Job that are not ending or ended."""
        found = self.server.store.objects("pods", "team")
        return [
            pod
            for pod in found
            if pod["metadata"].get("labels", {}).get("job-name") == job
            and "deletionTimestamp" not in pod["metadata"]
            and pod["status"]["phase"] == "Running"
        ]

    def start(self, name: str) -> list[Json]:
        """The Job of the page under another name, and its pod."""
        (job,) = (each for each in objects_of_the_docs() if each["kind"] == "Job")
        self.as_admin("create", "jobs.batch", job | {"metadata": job["metadata"] | {"name": name}})
        self.run_for(60.0)
        return self.pods(name)

    def conditions(self, job: str) -> dict[str, str]:
        """The conditions of a Job that are True."""
        found = self.as_admin("get", "jobs.batch", "team", job)["status"].get("conditions", [])
        return {each["type"]: each["status"] for each in found if each["status"] == "True"}

    def trainer(self, pod: Json) -> Trainer:
        """The helper in a pod, with the token and the files that a kubelet gives it."""
        name, uid = pod["metadata"]["name"], pod["metadata"]["uid"]
        account = self.folder / f"account-{name}"
        account.mkdir(exist_ok=True)
        bound = {"kind": "Pod", "apiVersion": "v1", "name": name, "uid": uid}
        review = {"spec": {"audiences": ["https://kubernetes.default.svc"], "boundObjectRef": bound}}
        token = self.as_admin("call", "serviceaccounts", "team", "trainer", "token", review)["status"]["token"]
        (account / "token").write_text(token)
        (account / "namespace").write_text("team")
        assert self.running.certificate is not None
        (account / "ca.crt").write_bytes(self.running.certificate)
        settings = {
            "KUBERNETES_SERVICE_HOST": self.running.host,
            "KUBERNETES_SERVICE_PORT": str(self.running.port),
            "GPU_AUTOPILOT_ACCOUNT_FOLDER": str(account),
            "GPU_AUTOPILOT_ANNOTATIONS": str(self.podinfo.path(name)),
            "GPU_AUTOPILOT_METRICS_FILE": str(self.folder / f"{name}.prom"),
            "POD_NAME": name,
            "POD_UID": uid,
        }
        self.trainers.append(Trainer(settings, self.now_s))
        return self.trainers[-1]

    def annotations(self, pod: Json) -> dict[str, str]:
        """The annotations of a pod on the server."""
        found = self.server.store.get("pods", "team", pod["metadata"]["name"])
        assert found is not None
        return dict(found["metadata"].get("annotations") or {})


def objects_of_the_docs() -> Iterator[Json]:
    """The manifests of the page."""
    page = (ROOT / "docs" / "checkpoints.md").read_text(encoding="utf-8")
    for block in re.findall(r"```yaml\n(.*?)```", page, re.DOTALL):
        yield from yaml.safe_load_all(block)


@contextmanager
def world_of_the_docs(folder: Path) -> Iterator[World]:
    """A cluster with one node of eight GPUs, after two minutes of the objects of the page."""
    server = cluster(Timeline(START), random.Random(1))
    client = server.client(ADMIN, "test")
    client.create("namespaces", {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "team"}})
    node = kube_objects.node("node-0", gpus=8)
    node["metadata"].pop("resourceVersion")
    client.create("nodes", node)
    podinfo = PodInfo(server, folder / "podinfo")
    with serve(server, tls=True) as running, running.clock.hold() as timeline:
        made = World(server, running, timeline, podinfo, folder)
        for obj in objects_of_the_docs():
            kind = {"ValidatingAdmissionPolicy": "validatingadmissionpolicies"}.get(
                obj["kind"], f"{obj['kind'].lower()}s"
            )
            group = obj["apiVersion"].rpartition("/")[0]
            if obj["kind"] == "NetworkPolicy":
                continue  # the test server has no network
            made.as_admin("create", f"{kind}.{group}" if group else kind, obj)
        made.run_for(120.0)
        yield made
        for each in made.trainers:
            each._writer._queue.clear()  # nothing is tried again after this
