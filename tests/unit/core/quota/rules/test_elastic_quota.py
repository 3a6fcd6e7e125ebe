"""Elastic quota: minimum and maximum of teams, what they may use of each other, and how it is taken back."""

import copy
import math
from collections.abc import Sequence
from typing import Any

import pytest

from autopilot.core.model.records import Code
from autopilot.core.quota.rules import elastic_quota
from autopilot.core.quota.rules.base import Refusal, Target
from tests.conftest import ROOT, find_shared_data
from tests.kits.rules_world import Gang, Row, cases, check, gang, row, waits, world

EXAMPLES = (find_shared_data() or ROOT).parent / "conformance" / "examples.json"

TEAMS = [row("a", 4), row("b", 2), row("c", 6)]


def over(name: str, queue: str, gpus: float, priority: int = 0, **more: Any) -> Gang:
    """A running gang that is marked as over quota."""
    return gang(name, queue, gpus, priority, over_quota=True, **more)


@pytest.mark.parametrize(
    ("rows", "gangs", "newcomer", "expected"),
    [
        pytest.param(TEAMS, [], waits("in", "b", 12), None, id="the minimum of all is open to each"),
        pytest.param(TEAMS, [gang("x", "a", 9)], waits("in", "b", 3), None, id="while nobody uses it"),
        pytest.param(TEAMS, [gang("x", "a", 9)], waits("in", "b", 4), Refusal(Code.QUOTA, 3, 4), id="and no further"),
        pytest.param(
            [row("a", 4, limit=5), row("b", 8)],
            [gang("x", "a", 3)],
            waits("in", "a", 3),
            Refusal(Code.LIMIT, 2, 3),
            id="the maximum",
        ),
        pytest.param(
            [row("a", 4), row("a1", 0, "a"), row("b", 2)],
            [gang("x", "a1", 3)],
            waits("in", "b", 4),
            Refusal(Code.QUOTA, 3, 4),
            id="a queue below a team counts for the team",
        ),
        pytest.param(TEAMS, [gang("x", "", 9)], waits("in", "a", 12), None, id="work in the root counts for no team"),
        pytest.param(TEAMS, [], waits("in", "", 99), None, id="and is under no quota"),
    ],
)
def test_what_may_start(rows: list[Row], gangs: list[Gang], newcomer: Gang, expected: Refusal | None) -> None:
    """Used and asked for within the maximum, and all that is used within the sum of all minima."""
    now = world(rows, gangs)
    assert elastic_quota.may_start(now.ledger, now.claim(newcomer)) == expected


def test_quota_holds_in_every_kind() -> None:
    """A minimum of one model is not paid in another."""
    now = world([row("a", 4, by_model=(2, 2)), row("b", 4, by_model=(0, 4))], models=2)
    assert elastic_quota.may_start(now.ledger, now.claim(waits("in", "a", 3, kinds=(0, 1)))) == Refusal(
        Code.QUOTA, 2, 3
    )
    assert elastic_quota.may_start(now.ledger, now.claim(waits("in", "a", 3, kinds=(0, 2)))) is None


CASES: list[tuple[str, list[Row], list[Gang], Gang, set[str] | Code]] = [
    ("nobody is needed", TEAMS, [over("x", "b", 5)], waits("in", "a", 4), set()),
    (
        "within its minimum: whoever is over quota, the lowest priority first",
        TEAMS,
        [over("low", "b", 2, 1, start_s=1), over("high", "b", 2, 2, start_s=2), gang("b", "b", 2), gang("c", "c", 6)],
        waits("in", "a", 2),
        {"low"},
    ),
    (
        "among equals the youngest",
        TEAMS,
        [over("old", "b", 2, start_s=1), over("young", "b", 2, start_s=2), gang("b", "b", 2), gang("c", "c", 6)],
        waits("in", "a", 2),
        {"young"},
    ),
    (
        "of any priority, when it has to be",
        TEAMS,
        [over("x", "b", 6, 99), gang("c", "c", 6)],
        waits("in", "a", 4),
        {"x"},
    ),
    ("never what is not marked", TEAMS, [gang("x", "b", 6), gang("c", "c", 6)], waits("in", "a", 4), Code.QUOTA),
    (
        "never below another's minimum",
        TEAMS,
        [over("b1", "b", 2), over("c1", "c", 6, 1), over("c2", "c", 4)],
        waits("in", "a", 4),
        {"c2"},
    ),
    (
        "not once the donor is back within it",
        TEAMS,
        [over("b1", "b", 3), over("b2", "b", 1, 1), over("c1", "c", 2, 2), over("c2", "c", 6, 3)],
        waits("in", "a", 4),
        {"b1", "c1"},
    ),
    (
        "unnecessary victims are put back",
        TEAMS,
        [over("small", "b", 1), over("wide", "b", 5, 1), gang("c", "c", 6)],
        waits("in", "a", 4),
        {"wide"},
    ),
    (
        "its part of what others leave: 4 / 12 of 6",
        TEAMS,
        [over("x", "b", 8), gang("a1", "a", 4)],
        waits("in", "a", 2),
        {"x"},
    ),
    ("but not more than its part", TEAMS, [over("x", "b", 8), gang("a1", "a", 4)], waits("in", "a", 3), Code.PRIORITY),
    (
        "its own unused minimum is no part of what others leave",
        TEAMS,
        [over("x", "c", 4), gang("c6", "c", 6)],
        waits("in", "a", 5),
        Code.QUOTA,
    ),
    (
        "within its minimum its own lower work is not for it",
        TEAMS,
        [gang("a1", "a", 1), gang("b", "b", 11)],
        waits("in", "a", 1, 5),
        Code.QUOTA,
    ),
    (
        "its own lower work beyond its minimum",
        TEAMS,
        [gang("a1", "a", 6), gang("b1", "b", 6)],
        waits("in", "a", 3, 5),
        {"a1"},
    ),
    ("not its equals", TEAMS, [gang("a1", "a", 6, 5), gang("b1", "b", 6)], waits("in", "a", 3, 5), Code.PRIORITY),
    (
        "within its minimum its own lower work is left alone",
        TEAMS,
        [gang("a1", "a", 1), over("x", "b", 5), gang("c", "c", 6)],
        waits("in", "a", 3, 5),
        {"x"},
    ),
    (
        "its own lower work under its maximum",
        [row("a", 4, limit=5), row("b", 8)],
        [gang("a1", "a", 3), gang("a2", "a", 2, 1)],
        waits("in", "a", 3, 5),
        {"a1"},
    ),
    (
        "a maximum that nobody can make room under",
        [row("a", 4, limit=5), row("b", 8)],
        [gang("a1", "a", 3, 9)],
        waits("in", "a", 3, 5),
        Code.LIMIT,
    ),
    (
        "only protected work stands in its way",
        TEAMS,
        [over("x", "b", 6, preemptible=False), gang("c", "c", 6)],
        waits("in", "a", 4),
        Code.PROTECTED,
    ),
    (
        "a team is a queue below the root with all below it",
        [row("a", 4), row("a1", 0, "a"), row("a2", 0, "a"), row("b", 2)],
        [gang("x", "a1", 4), over("y", "a1", 1, start_s=1), over("z", "b", 1)],
        waits("in", "a2", 1, 5),
        {"y"},
    ),
]


@pytest.mark.parametrize(
    ("rows", "gangs", "newcomer", "expected"), [pytest.param(*case[1:], id=case[0]) for case in CASES]
)
def test_whom_it_displaces(rows: list[Row], gangs: list[Gang], newcomer: Gang, expected: set[str] | Code) -> None:
    """Names, or the reason; the books stay as they were."""
    now = world(rows, gangs)
    before = copy.deepcopy((now.ledger.use, now.ledger.sheltered))
    assert now.ask(elastic_quota, newcomer) == expected
    assert (now.ledger.use, now.ledger.sheltered) == before


def test_room_may_lack_where_quota_does_not() -> None:
    """On a cluster smaller than all minima together: first the marked gangs, in the end none."""
    now = world(TEAMS, [over("x", "b", 3), over("y", "b", 1, start_s=1), gang("c", "c", 4)])

    def room(gpus: float) -> Any:
        return lambda targets: 8 - sum(target.gpus for target in targets) + 2 <= gpus

    assert now.ask(elastic_quota, waits("in", "a", 2), room(9)) == {"y"}
    assert now.ask(elastic_quota, waits("in", "a", 2), room(7)) == {"x"}
    assert now.ask(elastic_quota, waits("in", "a", 2), room(5)) == Code.CAPACITY
    assert now.ask(elastic_quota, waits("in", "c", 2), room(5)) == Code.CAPACITY


def test_nothing_is_taken_from_a_team_within_its_minimum_and_part() -> None:
    """C leaves 2 of its 6: b may use 2 + 2 * 2 / 12, and a 4 + 2 * 4 / 12."""
    now = world(TEAMS, [over("x", "b", 2.25), gang("c1", "c", 4), gang("a1", "a", 4)])
    assert now.ask(elastic_quota, waits("in", "a", 0.5), lambda targets: len(targets) > 0) == Code.FAIRNESS
    now.start(over("y", "b", 0.25))
    assert now.ask(elastic_quota, waits("in", "a", 0.5), lambda targets: len(targets) > 0) == {"x"}


def test_work_of_no_team_displaces_only_its_like() -> None:
    """Lower priorities in the root, and no work over quota of other queues."""
    now = world(TEAMS, [over("x", "b", 3), gang("low", "", 3), gang("high", "", 3, 9)])
    taken: list[Sequence[Target]] = []

    def room(targets: Sequence[Target]) -> bool:
        taken.append(targets)
        return len(targets) > 0

    assert now.ask(elastic_quota, waits("in", "", 2, 5), room) == {"low"}
    assert now.ask(elastic_quota, waits("in", "", 2), lambda targets: len(targets) > 0) == Code.PRIORITY


def test_heads_come_by_priority_then_age_and_keep_nothing() -> None:
    """A team takes back what it lends when it needs it."""
    now = world(TEAMS)
    heads = [
        waits("late", "a", 1, 1, submit_s=2),
        waits("first", "b", 9, 2, submit_s=9),
        waits("early", "c", 1, 1, submit_s=1),
    ]
    keys = {each.name: elastic_quota.head_key(now.ledger, now.claim(each)) for each in heads}
    assert sorted(keys, key=lambda name: keys[name]) == ["first", "early", "late"]
    assert math.isclose(elastic_quota.keeps(now.ledger, now.claim(heads[0])), 0.0)


@pytest.mark.parametrize("case", cases(EXAMPLES, elastic_quota.NAME), ids=lambda case: f"{case['id']} {case['title']}")
def test_conformance_of_elastic_quota(case: dict[str, Any]) -> None:
    """The published cases are decided as expected."""
    check(case)
