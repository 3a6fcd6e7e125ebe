"""A training program in a pod: request, acknowledgement, eviction and resume, over HTTP with the API server."""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from autopilot.checkpoint import (
    ACK,
    BUSY,
    HEARTBEAT,
    LAST_CHECKPOINT,
    MODEL_FLOPS,
    REQUEST,
    STEP,
    Trainer,
    read_request,
)
from collectors.kubernetes.rank_times import rank_time
from examples.checkpoint_training import train
from tests.kits.podinfo_kit import request_text
from tests.kits.trainer_kit import World, world_of_the_docs
from tests.kits.training_kit import own_sigterm

STEPS = 40


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """The cluster of this module."""
    with world_of_the_docs(tmp_path_factory.mktemp("checkpoints")) as made:
        yield made


@pytest.fixture
def sigterm() -> Iterator[None]:
    """The handler of SIGTERM is as it was, afterwards."""
    with own_sigterm():
        yield


def test_a_stop_after_the_acknowledgement_loses_nothing(world: World, tmp_path: Path, sigterm: None) -> None:
    """The controller asks, the program saves and answers, the pod is evicted; its successor has the same model."""
    (pod,) = world.pods()
    name, uid = pod["metadata"]["name"], pod["metadata"]["uid"]
    steps: list[int] = []

    def controller(step: int) -> None:
        """The requesting side: after step 10 it asks, and evicts when it sees the answer."""
        steps.append(step)
        job.flush()
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
    assert not job.acknowledge(99, "elsewhere", wait_s=5.0)
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
        assert not job.acknowledge(41, "/data/41", wait_s=5.0)
        assert not job.acknowledge(42, "/data/42", wait_s=5.0)
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
    assert job.flush()
    assert float(world.annotations(pod)[HEARTBEAT]) == pytest.approx(world.now_s(), abs=1.0)
    assert world.annotations(pod)[STEP] == "42"
    job.heartbeat(43, model_flops_s=4.1e14, busy_s=0.4, stage=1, rank=5)
    assert job.flush()
    assert float(world.annotations(pod)[MODEL_FLOPS]) == 4.1e14
    assert rank_time(world.annotations(pod)[BUSY]) == (0.4, 1, 5)
