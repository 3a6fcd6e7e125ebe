"""What changed since a person saw a recommendation, in words, and what an approval of it answers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from autopilot.core.model.policy import Mode, Policy
from autopilot.core.model.records import Proposal
from autopilot.service.changes import what_changed
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


def test_another_place_is_named() -> None:
    """The GPUs that were shown are taken now."""
    before = _seen(_tick(waits("a", 4)))
    words = what_changed(before, _tick(waits("a", 4), holds("b", 4, on=[0, 1, 2, 3])))
    assert any("it takes" in each and "instead of" in each for each in words), words


def test_a_place_of_the_same_size_is_named_by_its_nodes_or_gpus() -> None:
    """`1 GPU of 1 node instead of 1 GPU of 1 node` would say nothing."""
    before = _seen(_tick(waits("a", 4)))
    (node,) = {slot.node for slot in before.slots}
    taken = _tick(waits("a", 4), holds("b", 4, on=[0, 1, 2, 3] if node.endswith("0") else [4, 5, 6, 7]))
    (words,) = [each for each in what_changed(before, taken) if "it takes" in each]
    assert f"{_seen(taken).slots[0].node} x 4 instead of {node} x 4" in words
    narrow = _seen(_tick(waits("a", 1)))
    other = _tick(waits("a", 1), holds("b", 1, on=[0]))
    (words,) = [each for each in what_changed(narrow, other) if "it takes" in each]
    new, old = words.removeprefix("it takes ").split(" instead of ")
    assert new != old


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
    answer = ask.post(f"/api/v1/recommendations/{_seen(first).id}/approve")
    assert answer.status_code == 409
    assert "is no longer what was shown: a is running now" in answer.json()["detail"]
    assert ask.post("/api/v1/recommendations/admit-x-00000000/approve").status_code == 404
    assert desk.inbox.drain(0.0) == ()


def test_an_approval_of_another_digest_is_refused(tmp_path: Path) -> None:
    """The id is that of now, the state that the person names is not."""
    tick = _tick(waits("a", 4))
    desk = desk_over(tmp_path, tick)
    ask = client(desk, Role.APPROVER)
    path = f"/api/v1/recommendations/{_seen(tick).id}/approve"
    assert ask.post(path, json={"state_digest": "other"}).status_code == 409
    assert ask.post(path, json={"state_digest": _seen(tick).state_digest}).json()["result"] == "stored"
    (command,) = desk.inbox.drain(0.0)
    assert (command.subject, command.state_digest) == (_seen(tick).id, _seen(tick).state_digest)
