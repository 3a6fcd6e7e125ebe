"""Notices: the time at which the cloud, or a controller of its nodes, takes a node.

The taints of aws-node-termination-handler (option `taintNode`), Karpenter and k8s-node-termination-handler of GKE have
no time. The node problem detector of AKS writes conditions with the time of the event in their message, and
cluster-autoscaler a taint with the time as its value.

For a source without a time, the first sight of the taint counts. A process that finds the taint at its start may be
late. It then counts from the cordon that comes with the notice, if the time of the cordon lies within the notice. The
node lifecycle controller writes that time (`timeAdded` of `node.kubernetes.io/unschedulable`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from math import isnan, nan

from collectors.kubernetes.wire import Condition, Node, Taint

AUTOSCALER = "ToBeDeletedByClusterAutoscaler"
UNSCHEDULABLE = "node.kubernetes.io/unschedulable"

TAINTS_S = {
    "aws-node-termination-handler/spot-itn": 120.0,
    "aws-node-termination-handler/asg-lifecycle-termination": 120.0,
    "karpenter.sh/disrupted": 120.0,
    "karpenter.sh/disruption": 120.0,
    "cloud.google.com/impending-node-termination": 30.0,
    AUTOSCALER: 0.0,
}
"""Taints that announce the end of a node, and the time from the taint to the end. Terms of the publishers."""

KARPENTER = ("karpenter.sh/disrupted", "karpenter.sh/disruption")
CAPACITY_TYPE = "karpenter.sh/capacity-type"
"""Karpenter writes its taint on a spot node that the cloud takes, and on any node that it means to replace. Then it
drains the node once another one is there, at no stated time, and takes the taint back if none comes.
"""

CONDITIONS = ("PreemptionScheduled", "PreemptScheduled", "TerminateScheduled")
"""Conditions of AKS for the same. The last two were conditions of their own before `EVENT` had all events."""

EVENT = "VMEventScheduled"
"""Condition of AKS for any scheduled event of the machine. Those of `_ENDS` in its message end the node or its work."""

_ENDS = re.compile(r"^(Preempt|Terminate|Redeploy) (?:Scheduled|Started)\b")
_AT = re.compile(r"Scheduled: *(\w{3}, \d{1,2} \w{3} \d{4} \d{2}:\d{2}:\d{2} GMT)")
"""Time of the end, the field NotBefore of the Scheduled Events of Azure."""

TERM_S = 30.0
"""Time from a condition without a time to the end: the least notice of Azure."""


def announced(node: Node) -> bool:
    """True if the end of the node is announced."""
    return any(each.key in TAINTS_S for each in node.spec.taints or ()) or any(_conditions(node))


@dataclass(slots=True)
class Notices:
    """First sight of each notice without a time, by the uid of its node."""

    _seen_s: dict[str, dict[tuple[str, str], float]] = field(default_factory=dict)
    _started: bool = False  # the first list is taken in

    def see(self, node: Node, now_s: float) -> None:
        """Take in a node. A notice that ends is forgotten."""
        if not announced(node):
            self.forget(node.metadata.uid)
            return
        before = self._seen_s.get(node.metadata.uid, {})
        found = {}
        for key, value, term_s in _timeless(node):
            first_s = now_s if self._started else _with_cordon_s(node, now_s, term_s)
            found[key, value] = before.get((key, value), first_s)
        self._seen_s[node.metadata.uid] = found

    def start(self) -> None:
        """End of the first list: notices seen from now on were not there before."""
        self._started = True

    def forget(self, uid: str) -> None:
        """The node of this uid is gone, or has no notice."""
        self._seen_s.pop(uid, None)

    def reclaim_at_s(self, node: Node) -> float:
        """The announced end of the node, the earliest; NaN: none."""
        seen_s = self._seen_s.get(node.metadata.uid, {})
        ends = [seen_s[key, value] + term_s for key, value, term_s in _timeless(node) if (key, value) in seen_s]
        return min([*ends, *_stated(node)], default=nan)


def _timeless(node: Node) -> Iterator[tuple[str, str, float]]:
    """Notices without a time: key, value, and the term in seconds."""
    for each in node.spec.taints or ():
        if _ends(node, each) and each.key != AUTOSCALER and each.time_added is None:
            yield each.key, each.value, TAINTS_S[each.key]
    for found in _conditions(node):
        if found.last_transition_time is None and isnan(_at_s(found)):
            yield found.type, "", TERM_S


def _stated(node: Node) -> Iterator[float]:
    """The ends of notices with a stated time."""
    for each in node.spec.taints or ():
        if each.key == AUTOSCALER and each.value.isdecimal():
            yield float(each.value)
        elif _ends(node, each) and each.time_added is not None:
            yield each.time_added.timestamp() + TAINTS_S[each.key]
    for found in _conditions(node):
        if not isnan(at_s := _at_s(found)):
            yield at_s
        elif found.last_transition_time is not None:
            yield found.last_transition_time.timestamp() + TERM_S


def _ends(node: Node, taint: Taint) -> bool:
    """True if a taint states the end of the node."""
    bought = node.metadata.label(CAPACITY_TYPE) if taint.key in KARPENTER else ""
    return taint.key in TAINTS_S and bought in {"", "spot"}


def _conditions(node: Node) -> Iterator[Condition]:
    """The conditions announcing the end of the node."""
    for found in node.status.conditions or ():
        if found.status == "True" and (
            found.type in CONDITIONS or (found.type == EVENT and _ENDS.match(found.message) is not None)
        ):
            yield found


def _at_s(found: Condition) -> float:
    """The time in the message of a condition; NaN for none."""
    match = _AT.search(found.message)
    try:
        return parsedate_to_datetime(match[1]).timestamp() if match is not None else nan
    except (ValueError, OverflowError):
        return nan


def _with_cordon_s(node: Node, now_s: float, term_s: float) -> float:
    """The time of a notice from before our start: that of the cordon, if it lies within the notice; else now."""
    cordons_s = [
        each.time_added.timestamp()
        for each in node.spec.taints or ()
        if each.key == UNSCHEDULABLE and each.time_added is not None
    ]
    return min((at_s for at_s in cordons_s if now_s - term_s < at_s <= now_s), default=now_s)
