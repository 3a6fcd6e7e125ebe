"""A placement as node selectors: the scheduler binds the pods, and the selectors limit it to the chosen nodes.

A gang on one node selects the hostname of that node, if somebody else takes the selector back: Kueue, or the end of the
pod. A gang on several nodes, one with a changeable width, and a Job without Kueue select a label of their own; the
nodes carry it as long as the gang needs it. Our parts of a template are ours by their name.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from actuators.kubernetes.api import Answer, Api, Obj, Ref, Refusal, unread
from actuators.kubernetes.objects import Target
from actuators.kubernetes.writing import Stop, Writer, each
from autopilot.contract.annotations import PLACEMENT
from autopilot.core.model.objects import Slot

HOSTNAME = "kubernetes.io/hostname"
DIGITS = 10


def label_of(uid: str) -> str:
    """The label of the nodes of one gang."""
    return PLACEMENT + hashlib.sha256(uid.encode()).hexdigest()[:DIGITS]


@dataclass(frozen=True, slots=True)
class Place:
    """The nodes of a gang as read, and the selector that keeps its pods on them."""

    nodes: Mapping[str, Obj]  # by name
    selector: Mapping[str, str]
    label: str = ""  # of several nodes; it must be set before pods are released

    def lacks(self, selector: Mapping[str, str]) -> str:
        """Reason for a node without a label that the pods select anyway; "" for none."""
        for name, node in self.nodes.items():
            labels = node["metadata"].get("labels") or {}
            for key, value in selector.items():
                if labels.get(key) != value:
                    return f"node {name} does not have the label {key}={value}"
        return ""


def place_of(api: Api, uid: str, slots: Sequence[Slot], *, labelled: bool = False) -> Place | Answer:
    """The place for the slots of an instruction, or the answer of a node that is unreadable or unusable.

    `labelled`: a label of its own also on one node. Other nodes may come later and the selector of running pods cannot
    change; or the selector is taken back later, and must be told from those of others.
    """
    nodes: dict[str, Obj] = {}
    for name in dict.fromkeys(slot.node for slot in slots):
        answer = api.read(Ref("Node", "", name))
        if not answer.ok:
            return answer
        if answer.body.get("spec", {}).get("unschedulable"):
            return Answer(answer.body, Refusal.GONE, f"node {name} was cordoned meanwhile", 409)
        nodes[name] = answer.body
    if len(nodes) == 1 and not labelled:
        ((name, node),) = nodes.items()
        host = (node["metadata"].get("labels") or {}).get(HOSTNAME, name)
        return Place(nodes, {HOSTNAME: host})
    label = label_of(uid)
    return Place(nodes, {label: "true"}, label)


def mark(writer: Writer, place: Place, epoch: int) -> Answer:
    """Let exactly the nodes of the place carry its label."""
    if not place.label:
        return Answer()
    carrying = writer.api.list("Node", query={"labelSelector": place.label})
    if isinstance(carrying, Answer):
        return carrying
    for why in carrying.unread:
        return Answer({}, Refusal.UNFIT, why)
    for node in carrying.items:
        name, uid = node["metadata"]["name"], node["metadata"]["uid"]
        if name not in place.nodes:
            answer = set_label(writer, Ref("Node", "", name, uid), place.label, None, epoch)
            if not answer.ok:
                return answer
    for name, node in place.nodes.items():
        if (node["metadata"].get("labels") or {}).get(place.label) == "true":
            continue
        answer = set_label(writer, Ref("Node", "", name, node["metadata"]["uid"]), place.label, "true", epoch)
        if not answer.ok:
            return answer
    return Answer()


def set_label(writer: Writer, node: Ref, key: str, value: str | None, epoch: int) -> Answer:
    """Set a label of a node; None removes it."""

    def decide(found: Obj) -> Obj | Stop:
        if (found["metadata"].get("labels") or {}).get(key) == value:
            return Stop("it is so already", done=True)
        return {"metadata": {"labels": {key: value}}}

    return writer.change(node, decide, epoch)


def bound(api: Api, target: Target) -> bool | Answer:
    """True if a pod of the target has a node; the failed request if none is seen to, and one is unreadable."""
    pods, failed = bound_pods(api, target)
    return bool(pods) or failed or False


def started(api: Api, target: Target) -> tuple[int, int] | Answer:
    """Pods of the target with a node, and all its pods; the failed request if one is unreadable."""
    answers = each(target.of("Pod"), api.read)
    failed = unread(answers)
    if failed is not None:
        return failed
    there = sum(answer.ok and bool(answer.body["spec"].get("nodeName")) for answer in answers)
    return there, max(_asked(target), there)


def _asked(target: Target) -> int:
    """Number of pods of a subject after its start."""
    if target.workload:
        admission = (target.workload.get("status") or {}).get("admission") or {}
        sets = admission.get("podSetAssignments") or target.workload["spec"].get("podSets") or ()
        return sum(int(one.get("count", 1)) for one in sets)
    if target.job:
        spec = target.job["spec"]
        wide = int(spec.get("parallelism", 1))
        return min(wide, int(spec.get("completions") or wide))
    return len(target.of("Pod"))


def bound_pods(api: Api, target: Target) -> tuple[list[Obj], Answer | None]:
    """Its pods with a node that have not ended, and the failed request if another one is unreadable."""
    answers, over = each(target.of("Pod"), api.read), {"Succeeded", "Failed"}
    failed = unread(answers)
    pods = [answer.body for answer in answers if answer.ok and answer.body["spec"].get("nodeName")]
    return [pod for pod in pods if pod.get("status", {}).get("phase") not in over], failed


def by_node(slots: Sequence[Slot]) -> Counter[str]:
    """Slots of each node."""
    return Counter(slot.node for slot in slots)


def shown(slots: Sequence[Slot]) -> str:
    """The nodes of a placement in words: `n1 (8), n2 (8)`."""
    return ", ".join(f"{name} ({count})" for name, count in by_node(slots).items())[:300]
