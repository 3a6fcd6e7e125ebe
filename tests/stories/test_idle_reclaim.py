"""Idle work gives its GPUs to work that waits, and goes on when its owner is back.

The telemetry of the exporters shows a job that holds eight GPUs and does nothing. Its owner is notified by an Event,
and has time to answer. After that the work is marked, and as soon as other work needs the GPUs it is suspended: it
saves first, then its Workload is deactivated. The owner sets `spec.active` to true at any time, and the work goes on
from its checkpoint when GPUs are free.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace

import pytest

from autopilot.contract.annotations import STOPPED
from autopilot.core.model.snapshot import State
from tests.kits.acting_story import WORKLOADS, Story
from tests.kits.playground_acting import policy_of
from tests.kits.standing import WORST

WINDOW_S, GRACE_S = 1800.0, 600.0
"""For how long nothing was done before the notice, and how long its owner has to answer it."""


@pytest.mark.parametrize("begin", [WORST], indirect=True, ids=str)
def test_idle_work_yields_and_its_owner_brings_it_back(begin: Callable[..., Story]) -> None:
    """Notice, mark, checkpoint, suspension, return: in this order; nothing is lost."""
    policy = policy_of()
    idle = replace(policy.idle, window_s=WINDOW_S, scan_s=60.0, batch_grace_s=GRACE_S, gone_s=GRACE_S)
    story = begin(nodes=2, policy=replace(policy, idle=idle))
    story.create("hoard", lasts="6h", preemptible="true", checkpoint_on_request="true", checkpoint_write_s="20")
    story.create("prefill", namespace="product", lasts="6h", preemptible="false")
    story.wait(WINDOW_S - 60.0)
    assert "GpusIdle" not in story.told("hoard")
    story.wait(240.0)  # its memory changed in its first minutes
    assert "GpusIdle" in story.told("hoard")
    assert "GpusIdle" not in story.told("prefill", "product")
    story.create("waiting", lasts="15m")
    story.wait(GRACE_S - 120.0)
    assert story.state("hoard") == State.RUNNING
    story.wait(GRACE_S + 240.0)  # after the grace of the notice, that of the mark
    assert story.actions["mark_idle"] == story.actions["suspend_idle"] == 1
    assert story.workload("hoard")["spec"]["active"] is False
    assert json.loads(story.workload("hoard")["metadata"]["annotations"][STOPPED])["reason"] == "idle"
    assert story.says("hoard")["Evicted"] == "True/Deactivated"
    assert story.state("waiting") in {State.STARTING, State.RUNNING}
    assert story.lost_gpu_s("hoard") == 0.0

    story.client.patch(WORKLOADS, "research", story.workload("hoard")["metadata"]["name"], {"spec": {"active": True}})
    story.wait(300.0)
    assert story.state("hoard") == State.PENDING
    story.wait(900.0)
    assert story.state("waiting") == State.SUCCEEDED
    assert story.state("hoard") in {State.STARTING, State.RUNNING}
