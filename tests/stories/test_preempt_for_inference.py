"""Inference takes GPUs of training, which saves first.

Research has borrowed what product is guaranteed. A latency-critical service of product arrives. The pods of the
victim get the annotation checkpoint-request, the trainer writes a checkpoint and acknowledges it, then the check of
the victim says Retry or its Workload is deactivated. The service starts at once on the GPUs that became free. Nothing
was lost.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace

from autopilot.contract.annotations import CHECKPOINT_ACK, CHECKPOINT_REQUEST
from autopilot.core.model.snapshot import State
from tests.kits.acting_story import Story
from tests.kits.playground_acting import policy_of

GRACE_S = 300.0
"""Above 180 s, so that the request goes by annotation; work with a shorter grace gets SIGTERM alone."""


def test_a_victim_saves_before_it_leaves(begin: Callable[..., Story]) -> None:
    """Request, acknowledgement, eviction, start of the service: in this order."""
    policy = policy_of()
    story = begin(policy=replace(policy, preemption=replace(policy.preemption, grace_s=GRACE_S)))
    for name in ("one", "two", "three"):
        story.create(name, lasts="4h", checkpoint_on_request="true", checkpoint_write_s="20")
    story.wait(3600.0)
    assert len({host for name in ("one", "two", "three") for host in story.hosts(name)}) == 3
    story.create("chat", namespace="product", lasts="30m", slo_class="latency-critical")
    story.wait(30.0)
    asked = [each for name in ("one", "two", "three") for each in story.pods(name) if CHECKPOINT_REQUEST in notes(each)]
    assert len(asked) == 1
    victim = asked[0]["metadata"]["labels"]["job-name"]
    assert story.state("chat", "product") == State.PENDING
    story.wait(110.0)  # the program sees the request within a minute, and then writes its checkpoint
    told = [notes(each) for each in story.pods(victim)]
    if told:  # it still leaves; the request goes when it has been answered
        requests = [each[CHECKPOINT_REQUEST] for each in (notes(asked[0]), *told) if CHECKPOINT_REQUEST in each]
        assert json.loads(told[0][CHECKPOINT_ACK])["id"] in {json.loads(each)["id"] for each in requests}
    story.wait(100.0)
    assert story.state(victim) == State.PENDING
    assert story.state("chat", "product") in {State.STARTING, State.RUNNING}
    assert story.lost_gpu_s(victim) <= 8 * 30.0  # what it did between its checkpoint and its end
    assert "EvictBegun" in story.told(victim)


def notes(pod: dict[str, dict[str, dict[str, str]]]) -> dict[str, str]:
    """The annotations of a pod."""
    return pod["metadata"].get("annotations", {})
