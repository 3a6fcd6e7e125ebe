"""An idle service goes to zero while training waits, and has its replicas back when requests arrive.

The service has two replicas that nobody asks for. Its owner allowed three things on the Deployment: that the autopilot
scales it, that it may go to zero, and that the gateway in front of it shows whether it is asked for. The owner is
notified first. After the grace of the notice, as soon as other work needs the GPUs, the ceiling is recorded on the
Deployment and its replicas go. The gateway shows the next request within seconds: the ceiling is taken back, and the
service has the number of replicas that its owner had set.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from autopilot.contract.scaling import CEILING, read_ceiling
from autopilot.contract.tree import PREFIX
from autopilot.core.model.policy import Policy
from autopilot.core.model.snapshot import State
from tests.kits.acting_story import Begin, Story
from tests.kits.killing import MortalRun
from tests.kits.playground_acting import policy_of
from tests.kits.standing import WORST

Obj = dict[str, Any]
DEPLOYMENTS = "deployments.apps"
WINDOW_S, GRACE_S = 1800.0, 600.0
"""For how long nothing was done before the notice, and how long its owner has to answer it."""
CONSENT = {"scale": "true", "min-replicas": "0", "wake-signal": "gateway"}
SERVICE = """
services:
  - name: hoard-chat
    tenant: product
    slots: 8
    prefill_tokens_per_s: 8000
    decode_tokens_per_s: 60
    objective: 20s
    load_time: 2m
    gpus_per_replica: 4
    slo_class: batch
    preemptible: true
    replicas: {initial: 2, min: 2, max: 2}
    requests: {mean_rps: 0.5, shape: azure, swing: 0, from: ASKED}
"""
ASKED_S = 4800.0
"""When it is asked for again."""


def _policy() -> Policy:
    policy = policy_of()
    idle = replace(policy.idle, window_s=WINDOW_S, scan_s=60.0, batch_grace_s=GRACE_S, gone_s=GRACE_S)
    return replace(policy, idle=idle)


def _deployment(story: Story) -> Obj:
    found = story.client.get(DEPLOYMENTS, "product", "hoard-chat")
    assert found is not None
    return found


def _notes(story: Story) -> Obj:
    return _deployment(story)["metadata"].get("annotations") or {}


def _declare(story: Story, declared: dict[str, str]) -> None:
    notes = {PREFIX + name: value for name, value in declared.items()}
    story.client.patch(DEPLOYMENTS, "product", "hoard-chat", {"metadata": {"annotations": notes}})


def _told(story: Story) -> set[str]:
    events = story.client.list("events", "product")
    return {each["reason"] for each in events if each["involvedObject"]["name"] == "hoard-chat"}


def _services(asked_s: float) -> str:
    return SERVICE.replace("ASKED", f"{asked_s:g}s")


@pytest.mark.parametrize("begin", [WORST], indirect=True, ids=str)
def test_an_idle_service_makes_room_until_it_is_asked_for(begin: Begin) -> None:
    """Notice, ceiling, return: in this order, and with the owner's number at the end."""
    asked_s = ASKED_S + begin.standing.late_s  # what waits has ended by then
    story = begin(nodes=2, policy=_policy(), services=_services(asked_s))
    story.wait(60.0)
    _declare(story, CONSENT)
    story.create("training", lasts="6h")
    story.wait(WINDOW_S + 120.0)
    story.create("waiting", lasts="20m")
    assert story.actions["notify_idle"] == 2
    assert _deployment(story)["spec"]["replicas"] == 2

    story.wait(2 * GRACE_S + 240.0)  # after the grace of the notice, that of the mark
    assert _deployment(story)["spec"]["replicas"] == 0
    record = read_ceiling(_notes(story)[PREFIX + CEILING])
    assert record is not None
    assert (record.replicas, record.owner) == (0, 2)
    # what has come about while nobody led is not told by an Event
    assert isinstance(story.run, MortalRun) or _told(story) == {"CeilingBegun", "CeilingDone"}
    assert story.state("waiting") in {State.STARTING, State.RUNNING}

    story.wait(asked_s - story.run.now_s + 180.0)
    assert PREFIX + CEILING not in _notes(story)
    assert _deployment(story)["spec"]["replicas"] == 2
    story.wait(600.0)
    assert _deployment(story)["status"]["readyReplicas"] == 2


def test_without_the_consent_of_its_owner_it_stays_as_it_is(begin: Begin) -> None:
    """No notice, no ceiling: only a person may act, and a note says what is missing."""
    story = begin(nodes=2, policy=_policy(), services=_services(ASKED_S))
    story.wait(60.0)
    _declare(story, {"min-replicas": "0", "wake-signal": "gateway"})
    story.create("training", lasts="6h")
    story.wait(WINDOW_S + 120.0)
    story.create("waiting", lasts="20m")
    story.wait(2 * GRACE_S + 240.0)
    assert _deployment(story)["spec"]["replicas"] == 2
    assert story.actions["shrink_idle"] == story.actions["notify_idle"] == 0
    assert PREFIX + CEILING not in _notes(story)
    assert story.state("waiting") == State.PENDING
