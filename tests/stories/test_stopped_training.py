"""A Job that is stopped before its last step is resumed, however it is stopped; one that exits with 0 is not.

The Job is that of docs/checkpoints.md and its program is the example. The kubelet reports the exit status that the
program had.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from autopilot.checkpoint import EXIT_STOPPED, Trainer
from examples.checkpoint_training import train
from tests.kits.trainer_kit import World, world_of_the_docs

STEPS = 30
JOBS = "jobs.batch"


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """The cluster of this module."""
    with world_of_the_docs(tmp_path_factory.mktemp("stopped")) as made:
        yield made


def stopped_at_ten(world: World, pod: dict[str, Any], folder: Path) -> tuple[object, list[int]]:
    """Train in the pod until SIGTERM comes after step 10; the exit status, and the steps."""
    steps: list[int] = []

    def after_step(step: int) -> None:
        steps.append(step)
        if step == 10:
            os.kill(os.getpid(), signal.SIGTERM)

    job = world.trainer(pod)
    with pytest.raises(SystemExit) as ended, job.stoppable(STEPS, grace_s=120.0):
        train(job, folder, STEPS, every=1000, after_step=after_step)
    return ended.value.code, steps


def stop(world: World, how: str, pod: dict[str, Any], code: object) -> None:
    """Evict the pod, or suspend its Job, and let it end with that exit status."""
    name, job = pod["metadata"]["name"], pod["metadata"]["labels"]["job-name"]
    status = {"metadata": {"annotations": {"kubelet.playground/stop-exit-code": str(code)}}}
    world.as_admin("patch", "pods", "team", name, status)
    if how == "evicted":
        eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name, "namespace": "team"}}
        world.as_admin("call", "pods", "team", name, "eviction", eviction)
    else:
        world.as_admin("patch", JOBS, "team", job, {"spec": {"suspend": True}})
    world.run_for(180.0)


@pytest.mark.parametrize("how", ["evicted", "suspended"])
def test_a_stopped_job_goes_on_where_it_was(world: World, how: str, tmp_path: Path) -> None:
    """The program exits with 143: the Job is not complete, its next pod does the rest, and no step is repeated."""
    (pod,) = world.start(how)
    code, steps = stopped_at_ten(world, pod, tmp_path)
    assert code == EXIT_STOPPED
    stop(world, how, pod, code)
    if how == "suspended":
        assert world.pods(how) == []
        world.as_admin("patch", JOBS, "team", how, {"spec": {"suspend": False}})
        world.run_for(60.0)
    assert world.conditions(how) == {}
    (successor,) = world.pods(how)
    with world.trainer(successor).stoppable(STEPS) as job:
        model = train(job, tmp_path, STEPS, every=1000, after_step=steps.append)
    assert steps == list(range(STEPS))
    assert model.state_dict() == train(Trainer({}, world.now_s), tmp_path / "whole", STEPS, 1000).state_dict()


def test_an_evicted_pod_that_exits_with_0_completes_its_job(world: World) -> None:
    """Why the status matters: the same eviction is then the end of the Job, with a fraction of its steps."""
    (pod,) = world.start("zero")
    stop(world, "evicted", pod, 0)
    assert world.conditions("zero")["Complete"] == "True"
