"""What changed since a person saw a recommendation, in words, and what an approval of it answers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from autopilot.core.effects.pipeline import PipelineChange
from autopilot.core.model.approvals import seen_of
from autopilot.core.model.policy import Mode, Policy
from autopilot.core.model.records import Proposal
from autopilot.service.changes import what_changed
from autopilot.service.deciding import digest_of
from autopilot.service.published import Published
from autopilot.service.settings import Role
from tests.kits.core_world import AUTO, Item, holds, observe, snapshot, waits
from tests.kits.http_kit import client, desk_over, published

ASKS: Policy = replace(AUTO, modes=replace(AUTO.modes, admit_gang=Mode.APPROVE))


def _tick(*items: Item) -> Published:
    """A tick on two nodes of 4 GPUs."""
    return published(observe(snapshot("2x4", items)), ASKS)


def _seen(tick: Published) -> Proposal:
    (proposal,) = tick.decision.plan.proposals
    return proposal


def test_another_amount_is_named() -> None:
    """The gang was shown on one node; now only two halves of nodes are free."""
    gang = waits("a", 4, gpus_per_member=2)
    halves = _tick(gang, holds("b", 2, on=[0, 1]), holds("c", 2, on=[4, 5]))
    assert "it takes 4 GPUs of 2 nodes instead of 4 GPUs of 1 node" in what_changed(_seen(_tick(gang)), halves)


def test_a_start_on_another_node_is_the_same_recommendation(tmp_path: Path) -> None:
    """The node that was shown is taken now. The approval of what was shown is stored."""
    first = _tick(waits("a", 4))
    (node,) = {slot.node for slot in _seen(first).slots}
    taken = _tick(waits("a", 4), holds("b", 4, on=[0, 1, 2, 3] if node.endswith("0") else [4, 5, 6, 7]))
    assert {slot.node for slot in _seen(taken).slots} != {node}
    desk = desk_over(tmp_path, first, taken)
    answer = client(desk, Role.APPROVER).post(f"/api/v1/recommendations/{_seen(first).recommendation}/approve")
    assert answer.json()["result"] == "stored"


def test_other_nodes_are_named_where_work_makes_room() -> None:
    """`4 GPUs of 1 node instead of 4 GPUs of 1 node` would say nothing."""
    tick = _tick(waits("a", 4))
    here = replace(_seen(tick), change=PipelineChange(slots=_seen(tick).slots, victims=()))
    (node,) = {slot.node for slot in here.slots}
    moved = tuple(replace(slot, node="elsewhere") for slot in here.slots)
    there = replace(here, change=PipelineChange(slots=moved, victims=()))
    now = replace(tick, decision=replace(tick.decision, plan=replace(tick.decision.plan, proposals=(there,))))
    assert f"it takes elsewhere x 4 instead of {node} x 4" in what_changed(here, now)


@pytest.mark.parametrize(
    ("now", "words"),
    [
        ((holds("a", 4),), "a is running now"),
        ((), "a is gone"),
        ((waits("a", 4), holds("b", 4, on=[0, 1, 2, 3]), holds("c", 4, on=[4, 5, 6, 7])), "a waits: "),
    ],
    ids=["started", "gone", "no room"],
)
def test_a_wish_that_is_gone_says_why(now: tuple[Item, ...], words: str) -> None:
    """It started, was withdrawn, or has no room any more."""
    assert what_changed(_seen(_tick(waits("a", 4))), _tick(*now))[0].startswith(words)


def test_an_approval_for_a_state_that_changed_is_refused_with_the_change(tmp_path: Path) -> None:
    """409 with the reason; an id that was never shown is 404; nothing reaches the inbox."""
    first, second = _tick(waits("a", 4)), _tick(holds("a", 4))
    desk = desk_over(tmp_path, first, second)
    ask = client(desk, Role.APPROVER)
    answer = ask.post(f"/api/v1/recommendations/{_seen(first).recommendation}/approve")
    assert answer.status_code == 409
    assert "is no longer what was shown: a is running now" in answer.json()["detail"]
    assert ask.post("/api/v1/recommendations/admit-x-00000000/approve").status_code == 404
    assert desk.inbox.drain(0.0) == ()


def test_an_approval_of_another_digest_is_refused(tmp_path: Path) -> None:
    """The recommendation is that of now, what the person names was never shown."""
    tick = _tick(waits("a", 4))
    desk = desk_over(tmp_path, tick)
    ask = client(desk, Role.APPROVER)
    path = f"/api/v1/recommendations/{_seen(tick).recommendation}/approve"
    assert ask.post(path, json={"digest": "other"}).status_code == 409
    assert ask.post(path, json={"digest": digest_of(_seen(tick))}).json()["result"] == "stored"
    (command,) = desk.inbox.drain(0.0)
    assert (command.subject, command.seen) == (_seen(tick).recommendation, seen_of(_seen(tick)))


def test_a_rejection_for_no_time_is_refused_with_what_to_write(tmp_path: Path) -> None:
    """Nothing reaches the inbox."""
    tick = _tick(waits("a", 4))
    desk = desk_over(tmp_path, tick)
    path = f"/api/v1/recommendations/{_seen(tick).recommendation}/reject"
    answer = client(desk, Role.APPROVER).post(path, json={"for": "soon"})
    assert (answer.status_code, "'soon' is not a duration" in answer.json()["detail"]) == (409, True)
    assert desk.inbox.drain(0.0) == ()
