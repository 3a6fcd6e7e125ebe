"""Jobs whose pods have ended: they do not wait for a start in the moment before their controller says so."""

from __future__ import annotations

from typing import Any

import pytest

from autopilot.core.model.snapshot import State
from tests.kits.kube_objects import done, job, node, pod
from tests.unit.collectors.kubernetes.view import Seen, row

OWNER = {"apiVersion": "batch/v1", "kind": "Job", "name": "g", "uid": "uid-team-g", "controller": True}


def member(place: int, **more: Any) -> dict[str, Any]:
    """A pod of the gang, on a node of its own."""
    return pod(f"g-{place}", 8, owner=OWNER, node=f"n{place}", **more)


def state_of(completions: int | None, *phases: str) -> State:
    """The state of a Job of two pods at a time, and these completions, whose pods are in these phases."""
    made = job("g", 8, width=2)
    made["spec"]["completions"] = completions
    pods = [member(place, phase=phase) for place, phase in enumerate(phases)]
    work = Seen(node("n0"), node("n1"), node("n2"), made, *pods).batch().work
    assert work is not None
    return State(row(work, "team/g")["state"])


@pytest.mark.parametrize(
    ("completions", "phases", "state"),
    [
        (2, ("Succeeded", "Succeeded"), State.SUCCEEDED),
        (2, ("Succeeded", "Failed"), State.PENDING),
        (2, ("Failed", "Failed"), State.PENDING),
        (2, ("Failed", "Succeeded", "Succeeded"), State.SUCCEEDED),
        (3, ("Succeeded", "Succeeded"), State.PENDING),
        (None, ("Succeeded", "Succeeded"), State.PENDING),
        (0, (), State.PENDING),
    ],
)
def test_a_job_has_ended_when_as_many_pods_as_it_wants_ended_well(
    completions: int | None, phases: tuple[str, ...], state: State
) -> None:
    """Not before, and not where it states no number: then another pod may follow."""
    assert state_of(completions, *phases) == state


@pytest.mark.parametrize(
    ("kind", "suspended", "state"),
    [
        ("FailureTarget", True, State.FAILED),
        ("SuccessCriteriaMet", True, State.SUCCEEDED),
        ("FailureTarget", False, State.PENDING),  # its controller is about to say so itself
    ],
)
def test_a_job_suspended_while_it_ended_has_ended(kind: str, *, suspended: bool, state: State) -> None:
    """Its controller never says so, and it would wait for a start for ever."""
    made = job("g", 8, suspend=suspended)
    made["status"] = {"conditions": [done(kind)]}
    work = Seen(node("n0"), made).batch().work
    assert work is not None
    assert State(row(work, "team/g")["state"]) == state
