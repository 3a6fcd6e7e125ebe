"""Notices of nodes: when the cloud takes a node, by what the publishers write."""

from __future__ import annotations

from email.utils import formatdate
from typing import Any

import numpy as np
import pytest

from tests.kits.kube_objects import node, stamp
from tests.unit.collectors.kubernetes.view import NOW_S, Seen

ITN = {"key": "aws-node-termination-handler/spot-itn", "value": "interruption-1", "effect": "NoSchedule"}


def _ends_s(seen: Seen, *objects: Any) -> float:
    """The announced end of the only node, after more objects; NaN for none."""
    (found,) = seen.tables(*objects)[0].nodes.reclaim_at_s.tolist()
    return float(found)


def _cordoned(at_s: float) -> dict[str, Any]:
    return {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule", "timeAdded": stamp(at_s)}


@pytest.mark.parametrize(
    ("taint", "term_s"),
    [
        (ITN, 120),
        ({"key": "karpenter.sh/disrupted", "effect": "NoSchedule"}, 120),
        ({"key": "karpenter.sh/disruption", "value": "disrupting", "effect": "NoSchedule"}, 120),
        ({"key": "cloud.google.com/impending-node-termination", "effect": "NoSchedule"}, 30),
        ({"key": "aws-node-termination-handler/asg-lifecycle-termination", "effect": "NoSchedule"}, 120),
    ],
)  # fmt: skip
def test_a_notice_without_a_time_counts_from_its_first_sight(taint: Any, term_s: float) -> None:
    """No handler writes `timeAdded`. What is written to the node later does not move the end."""
    seen = Seen(node("n1"))
    assert np.isnan(_ends_s(seen))
    seen.now_s = NOW_S + 10
    assert _ends_s(seen, node("n1", taints=[taint])) == NOW_S + 10 + term_s
    seen.now_s = NOW_S + 40
    assert _ends_s(seen, node("n1", taints=[taint, _cordoned(NOW_S + 11)], unschedulable=True)) == NOW_S + 10 + term_s
    assert np.isnan(_ends_s(seen, node("n1")))
    seen.now_s = NOW_S + 50
    assert _ends_s(seen, node("n1", taints=[taint])) == NOW_S + 50 + term_s


@pytest.mark.parametrize(
    ("taints", "end_s"),
    [
        ([ITN], 120),
        ([ITN, _cordoned(NOW_S - 50)], 70),
        ([ITN, _cordoned(NOW_S - 3600)], 120),
        ([ITN, _cordoned(NOW_S + 3600)], 120),
        ([{**ITN, "timeAdded": stamp(NOW_S - 50)}], 70),
        ([{"key": "ToBeDeletedByClusterAutoscaler", "value": str(int(NOW_S) + 5), "effect": "NoSchedule"}], 5),
        ([ITN, {"key": "ToBeDeletedByClusterAutoscaler", "value": str(int(NOW_S) + 5), "effect": "NoSchedule"}], 5),
    ],
)  # fmt: skip
def test_a_notice_at_the_start_counts_from_the_cordon_that_came_with_it(taints: Any, end_s: float) -> None:
    """A process that starts during a notice knows the cordon's time. An older cordon has another cause."""
    assert _ends_s(Seen(node("n1", taints=taints))) == NOW_S + end_s


def test_another_node_of_the_same_name_has_no_notice() -> None:
    """The notice was of the machine that is gone."""
    seen = Seen(node("n1", taints=[ITN]))
    _ends_s(seen)
    seen.now_s = NOW_S + 60
    later = node("n1", taints=[ITN])
    later["metadata"]["uid"] = "another"
    assert _ends_s(seen, later) == NOW_S + 180


def _aks(kind: str, message: str, status: str = "True") -> dict[str, Any]:
    """A condition of the node problem detector of AKS, 20 s old."""
    at = stamp(NOW_S - 20)
    return {"type": kind, "status": status, "lastTransitionTime": at, "reason": kind, "message": message}


def _event(name: str, at_s: float) -> str:
    """The message of AKS about a scheduled event of Azure."""
    at = formatdate(at_s, usegmt=True)
    return (
        f"{name} Scheduled: {at}. DurationInSeconds: -1. For more information, see https://aka.ms/aks/scheduledevents."
    )


@pytest.mark.parametrize(("condition", "end_s"), [
    (_aks("VMEventScheduled", _event("Preempt", NOW_S + 25)), 25),
    (_aks("VMEventScheduled", _event("Terminate", NOW_S + 600)), 600),
    (_aks("VMEventScheduled", _event("Redeploy", NOW_S + 600)), 600),
    (_aks("VMEventScheduled", _event("Reboot", NOW_S + 600)), np.nan),
    (_aks("VMEventScheduled", _event("Freeze", NOW_S + 600)), np.nan),
    (_aks("VMEventScheduled", "Preempt Scheduled: soon"), 10),
    (_aks("VMEventScheduled", "Preempt Scheduled: Sat, 99 Feb 2025 10:13:13 GMT."), 10),
    (_aks("VMEventScheduled", "VM has no scheduled event", "False"), np.nan),
    (_aks("PreemptionScheduled", _event("Preempt", NOW_S + 25)), 25),
    (_aks("PreemptScheduled", ""), 10),
    (_aks("TerminateScheduled", ""), 10),
    (_aks("PreemptScheduled", "VM has no scheduled Preempt event", "False"), np.nan),
    (_aks("RebootScheduled", ""), np.nan),
])  # fmt: skip
def test_the_node_problem_detector_of_aks_states_the_time(condition: dict[str, Any], end_s: float) -> None:
    """The message has the time of the event; without it the cloud takes the node 30 s after the condition. A node stays
    through a freeze, and is the same after a reboot.
    """
    found = node("n1")
    found["status"]["conditions"].append(condition)
    inventory, _ = Seen(found).tables()
    np.testing.assert_array_equal(inventory.nodes.reclaim_at_s, [NOW_S + end_s])
    assert inventory.nodes.cordoned.tolist() == [not np.isnan(end_s)]
