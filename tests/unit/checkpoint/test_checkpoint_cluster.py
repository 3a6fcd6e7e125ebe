"""A training program in a pod: request, acknowledgement, eviction and resume, over HTTP with the API server."""

from __future__ import annotations

import logging
import os
import random
import re
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from apiserver.cluster import cluster
from apiserver.http.serve import Running, serve
from apiserver.server import Server
from apiserver.timeline import Timeline
from apiserver.users import ADMIN
from autopilot.checkpoint import ACK, HEARTBEAT, LAST_CHECKPOINT, MODEL_FLOPS, REQUEST, Trainer, read_request
from examples.checkpoint_training import train
from tests.kits import kube_objects
from tests.kits.apiserver_kit import START
from tests.kits.podinfo_kit import PodInfo, request_text
from tests.tidy.tree import ROOT

Json = dict[str, Any]
STEPS = 40


@dataclass
class World:
    """A cluster on a socket whose time the test moves, with the manifests of docs/checkpoints.md."""

    server: Server
    running: Running
    timeline: Timeline
    podinfo: PodInfo
    folder: Path

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

    def pods(self) -> list[Json]:
        """Pods of the job that are not ending, newest last."""
        found = [
            pod for pod in self.server.store.objects("pods", "team") if "job-name" in pod["metadata"].get("labels", {})
        ]
        return [pod for pod in found if "deletionTimestamp" not in pod["metadata"]]

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
        return Trainer(settings, self.now_s)

    def annotations(self, pod: Json) -> dict[str, str]:
        """The annotations of a pod on the server."""
        found = self.server.store.get("pods", "team", pod["metadata"]["name"])
        assert found is not None
        return dict(found["metadata"].get("annotations") or {})


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """The cluster of this module."""
    server = cluster(Timeline(START), random.Random(1))
    client = server.client(ADMIN, "test")
    client = server.client(ADMIN, "test")
    client.create("namespaces", {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "team"}})
    node = kube_objects.node("node-0", gpus=8)
    node["metadata"].pop("resourceVersion")
    client.create("nodes", node)
    folder = tmp_path_factory.mktemp("checkpoints")
    podinfo = PodInfo(server, folder / "podinfo")
    blocks = re.findall(r"```yaml\n(.*?)```", (ROOT / "docs" / "checkpoints.md").read_text(encoding="utf-8"), re.DOTALL)
    with serve(server, tls=True) as running, running.clock.hold() as timeline:
        made = World(server, running, timeline, podinfo, folder)
        for obj in (each for block in blocks for each in yaml.safe_load_all(block)):
            kind = {"ValidatingAdmissionPolicy": "validatingadmissionpolicies"}.get(
                obj["kind"], f"{obj['kind'].lower()}s"
            )
            group = obj["apiVersion"].rpartition("/")[0]
            if obj["kind"] == "NetworkPolicy":
                continue  # the test server has no network
            made.as_admin("create", f"{kind}.{group}" if group else kind, obj)
        made.run_for(120.0)
        yield made


@pytest.fixture
def sigterm() -> Iterator[None]:
    """The handler of SIGTERM is as it was, afterwards."""
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


def test_a_stop_after_the_acknowledgement_loses_nothing(world: World, tmp_path: Path, sigterm: None) -> None:
    """The controller asks, the program saves and answers, the pod is evicted; its successor has the same model."""
    (pod,) = world.pods()
    name, uid = pod["metadata"]["name"], pod["metadata"]["uid"]
    steps: list[int] = []

    def controller(step: int) -> None:
        """The requesting side: after step 10 it asks, and evicts when it sees the answer."""
        steps.append(step)
        if step == 10:
            asks = {"metadata": {"uid": uid, "annotations": {REQUEST: request_text("r-1", world.now_s() + 300.0)}}}
            world.as_admin("patch", "pods", "team", name, asks)
        world.run_for(7.0)
        answer = world.annotations(pod).get(ACK)
        if answer is not None:
            assert read_request(answer).id == "r-1"
            eviction = {
                "apiVersion": "policy/v1",
                "kind": "Eviction",
                "metadata": {"name": name, "namespace": "team"},
                "deleteOptions": {"preconditions": {"uid": uid}},
            }
            world.as_admin("call", "pods", "team", name, "eviction", eviction)
            os.kill(os.getpid(), signal.SIGTERM)  # the kubelet's first act

    job = world.trainer(pod)
    job.watch_sigterm(120.0)
    train(job, tmp_path, STEPS, every=1000, after_step=controller)
    assert 10 < steps[-1] <= 20, "the file of annotations is refreshed within a minute, 7 s a step"
    found = world.annotations(pod)
    assert f'"step": {steps[-1]}' in found[ACK]
    assert {HEARTBEAT, LAST_CHECKPOINT} <= found.keys()

    world.run_for(300.0)
    (successor,) = world.pods()
    assert successor["metadata"]["name"] != name
    resumed: list[int] = []
    model = train(world.trainer(successor), tmp_path, STEPS, every=1000, after_step=resumed.append)
    assert steps + resumed == list(range(STEPS)), "no step is lost and none is repeated"
    whole = train(Trainer({}, world.now_s), tmp_path / "whole", STEPS, every=1000)
    assert model.state_dict() == whole.state_dict()


def test_an_acknowledgement_never_reaches_another_pod(world: World) -> None:
    """A pod that was replaced under its name is not annotated: the uid is in the patch."""
    (pod,) = world.pods()
    job = world.trainer(pod | {"metadata": pod["metadata"] | {"uid": "another"}})
    assert not job.acknowledge(99, "elsewhere")
    assert "elsewhere" not in str(world.annotations(pod))


def test_the_policy_of_the_docs_keeps_a_trainer_to_its_own_pod(world: World) -> None:
    """With the token of one pod another one cannot be changed, nor other annotations of its own."""
    (pod,) = world.pods()
    other = world.as_admin(
        "create",
        "pods",
        {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "other", "namespace": "team"}, "spec": pod["spec"]},
    )
    stranger = world.trainer(pod)
    stranger._pod.name, stranger._pod._uid = "other", other["metadata"]["uid"]
    problem = stranger._pod.annotate({ACK: "{}"})
    assert "403" in problem
    assert "a trainer changes its own pod only" in problem
    own = world.trainer(pod)._pod
    assert "annotations of its checkpoints only" in own.annotate({"gpu-autopilot.io/approve": "x"})
    assert not own.annotate({HEARTBEAT: "{}"})


def test_without_the_right_the_answer_is_a_metric(world: World, caplog: pytest.LogCaptureFixture) -> None:
    """The reason is logged once, the file has the answer, and it is written to the pod when the right is there."""
    (pod,) = world.pods()
    binding = world.as_admin("get", "rolebindings.rbac.authorization.k8s.io", "team", "checkpoint-ack")
    assert binding is not None
    world.as_admin("delete", "rolebindings.rbac.authorization.k8s.io", "team", "checkpoint-ack")
    job = world.trainer(pod)
    with caplog.at_level(logging.WARNING):
        assert not job.acknowledge(41, "/data/41")
        assert not job.acknowledge(42, "/data/42")
    assert [record.message for record in caplog.records if "cannot patch resource" in record.message][1:] == []
    name = pod["metadata"]["name"]
    own = f'namespace="team",pod="{name}"'
    assert f'path="/data/42",{own}}} 42' in (world.folder / f"{name}.prom").read_text()
    fields = {key: binding[key] for key in ("apiVersion", "kind", "roleRef", "subjects")}
    world.as_admin(
        "create",
        "rolebindings.rbac.authorization.k8s.io",
        fields | {"metadata": {"name": "checkpoint-ack", "namespace": "team"}},
    )
    world.run_for(6.0)
    job.should_checkpoint()
    assert float(world.annotations(pod)[HEARTBEAT]) == pytest.approx(world.now_s() - 6.0, abs=1.0)
    job.heartbeat(43, model_flops_s=4.1e14)
    assert float(world.annotations(pod)[MODEL_FLOPS]) == 4.1e14
