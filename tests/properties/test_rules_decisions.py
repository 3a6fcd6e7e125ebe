"""What holds of every decision, under every rule set: with nodes, elastic gangs and MIG instances."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import pytest
from hypothesis import event, given
from hypothesis import strategies as st

from tests.conformance.cases import Case, Gang, parse_case
from tests.conformance.compare import members_of
from tests.conformance.outcome import Outcome, decide

DECISIONS = [
    ("hierarchical-fair-share", "preempt"),
    ("hierarchical-fair-share", "reclaim"),
    ("hierarchical-fair-share", "consolidate"),
    ("cohort-classic", "admit"),
    ("cohort-fair", "admit"),
    ("elastic-quota", "elastic_quota"),
]
SIZES = ("1g.5gb", "1g.10gb")
HOW = st.sampled_from(["never", "lower", "any", "any"])


@st.composite
def cases(draw: st.DrawFn, rules: str, action: str) -> Case:
    """Up to three nodes with work on them, and one or two gangs that wait."""
    mig = draw(st.integers(0, 3)) == 0
    nodes: list[dict[str, Any]] = []
    free: dict[tuple[str, str], int] = {}  # by node and size, "" for whole GPUs
    for number in range(draw(st.sampled_from([1, 2, 2, 3]))):
        name = f"n{number}"
        amounts = {size: draw(st.integers(1, 3)) for size in SIZES} if mig else {"": draw(st.integers(1, 4))}
        nodes.append({"name": name, "mig_instances": amounts} if mig else {"name": name, "gpus": amounts[""]})
        free |= {(name, size): count for size, count in amounts.items()}
    queues = [_queue(draw, f"q{number}", rules) for number in range(draw(st.integers(2, 4)))]
    gangs = []
    for number in range(draw(st.integers(2, 6))):
        tasks = []
        for _ in range(draw(st.integers(1, 4))):
            open_places = sorted(place for place, count in free.items() if count)
            if open_places:
                place = draw(st.sampled_from(open_places))
                free[place] -= 1
                tasks.append({"state": "running", "node": place[0], **_asks(place[1], 1)})
        if tasks:
            gangs.append(_gang(draw, f"g{number}", queues, tasks, draw(st.integers(0, 4)) > 0))
    for number in range(draw(st.sampled_from([1, 1, 2]))):
        sizes = SIZES if mig else ("",)
        tasks = [
            {"state": "pending", **_asks(draw(st.sampled_from(sizes)), draw(st.sampled_from([1, 2, 2, 3])))}
            for _ in range(draw(st.sampled_from([1, 1, 2])))
        ]
        waits = _gang(draw, f"w{number}", queues, tasks, draw(st.integers(0, 2)) > 0)
        gangs.append(waits | {"priority": draw(st.sampled_from([3, 3, 1]))})
    for order, gang in enumerate(gangs):
        gang["submit_order"] = order
    return parse_case(
        {
            "id": "drawn",
            "kind": "schedule",
            "policy": rules,
            "action": action,
            "nodes": nodes,
            "queues": queues,
            "gangs": gangs,
            "expect": {},
        }
    )


def _queue(draw: st.DrawFn, name: str, rules: str) -> dict[str, Any]:
    queue: dict[str, Any] = {
        "name": name,
        "guaranteed": draw(st.integers(0, 4)),
        "over_quota_weight": draw(st.sampled_from([0.0, 1.0, 2.0])),
    }
    if rules.startswith("cohort"):
        borrowing = {
            "policy": draw(st.sampled_from(["never", "lower"])),
            "max_priority": draw(st.integers(0, 2)),
        }
        queue |= {
            "parent": "co",
            "preempt": {"within_queue": draw(HOW), "reclaim_in_cohort": draw(HOW), "while_borrowing": borrowing},
        }
    return queue


def _asks(size: str, count: int) -> dict[str, Any]:
    return {"mig": {size: count}} if size else {"gpus": count}


def _gang(
    draw: st.DrawFn, name: str, queues: list[dict[str, Any]], tasks: list[dict[str, Any]], preemptible: bool
) -> dict[str, Any]:
    return {
        "name": name,
        "queue": draw(st.sampled_from(queues))["name"],
        "priority": draw(st.integers(0, 2)),
        "preemptible": preemptible,
        "min_member": draw(st.integers(1, len(tasks))),
        "over_quota": draw(st.booleans()),
        "tasks": [{"name": f"{name}.{number}", **task} for number, task in enumerate(tasks)],
    }


def _gpus(gang: Gang, names: tuple[str, ...]) -> list[float]:
    """GPUs or instances of these members."""
    return [task.gpus + sum(task.mig.values()) for task in gang.tasks if task.name in names]


def _steps(gang: Gang, outcome: Outcome, rules: str) -> list[float]:
    """What was taken of a gang, step by step: members above its minimum one by one, then the rest of it.

    Only the hierarchical rules shrink; the others, like their engines, take a gang as one.
    """
    each = members_of(gang, outcome)
    gone = sorted(_gpus(gang, each.evicted))
    if rules != "hierarchical-fair-share":
        return [sum(gone)]
    if each.stays or each.moved or len(gone) <= gang.least:
        return gone if each.stays or each.moved else [sum(gone)]
    spare = len(gone) - gang.least
    return [*gone[:spare], sum(gone[spare:])]


@pytest.mark.parametrize(("rules", "action"), DECISIONS)
@given(st.data())
def test_nobody_is_disturbed_in_vain(rules: str, action: str, data: st.DataObject) -> None:
    """Where somebody leaves or moves, a gang that waits starts, whole; what is protected stays where it is."""
    case = data.draw(cases(rules, action))
    _, outcome = decide(case)
    assert outcome.problems == []
    members = {gang.name: members_of(gang, outcome) for gang in case.gangs}
    started = [gang for gang in case.gangs if not members[gang.name].running and members[gang.name].started]
    assert all(len(members[gang.name].started) >= gang.least for gang in started)
    disturbed = [gang for gang in case.gangs if members[gang.name].running and members[gang.name].fate != "keep"]
    assert started or not disturbed
    assert all(gang.preemptible for gang in disturbed)
    for gang in disturbed:
        each = members[gang.name]
        left = len(each.stays) + len(each.moved)
        assert left == 0 or left >= gang.least
        assert action != "consolidate" or not each.evicted
    event(f"{len(disturbed)} disturbed")


@pytest.mark.parametrize(("rules", "action"), [each for each in DECISIONS if each[1] != "consolidate"])
@given(st.data())
def test_nothing_is_taken_from_a_queue_inside_its_guarantee(rules: str, action: str, data: st.DataObject) -> None:
    """A queue holds more than its guarantee before each step that is taken from it for others, the largest last."""
    case = data.draw(cases(rules, action))
    _, outcome = decide(case)
    own = {gang.queue for gang in case.gangs if members_of(gang, outcome).started}
    steps: dict[str, list[float]] = defaultdict(list)
    use: dict[str, float] = defaultdict(float)
    for gang in case.gangs:
        each = members_of(gang, outcome)
        use[gang.queue] += sum(_gpus(gang, each.running))
        if each.evicted:
            steps[gang.queue] += _steps(gang, outcome, rules)
    for queue in case.queues:
        taken = sorted(steps[queue.name])
        if taken and queue.name not in own:
            event("a queue gives")
            assert use[queue.name] - sum(taken[:-1]) > queue.guaranteed
