"""kube-scheduler: binds pods to nodes, states failures with reasons, and removes pods of lower priority.

It knows resources, taints, node selectors and node affinity, priorities and budgets, nominated nodes and missing volume
claims. Affinity between pods, topology spread, ports and device claims are not looked at.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from apiserver.actors.base import Actor
from apiserver.actors.fit import (
    Milli,
    Misfit,
    NodeView,
    holds_node,
    misfit,
    preference,
    reasons_text,
    requests_milli,
    view_of,
)
from apiserver.actors.objects import Name, delete, name_of, patch
from apiserver.actors.pod_status import condition, is_terminal, is_terminating, with_condition
from apiserver.actors.preemption import Candidate, preempt, priority_of, waits_for_victims
from apiserver.actors.recorder import Recorder
from apiserver.actors.timing import BACKOFF_FIRST_S, BACKOFF_LAST_S, PREEMPT_S, SCHEDULE_EACH_S, SCHEDULE_S
from apiserver.errors import StatusError
from apiserver.server import Server
from apiserver.store import Event
from apiserver.timeline import US, Timer, stamp
from apiserver.users import User

Obj = dict[str, Any]
NAME = "default-scheduler"
ALL_BELOW = 100  # minFeasibleNodesToFind
NEVER = "not eligible due to preemptionPolicy=Never."
WAITS = "not eligible due to a terminating pod on the nominated node."
PREEMPTING = f"{NAME}: preempting to accommodate a higher priority pod"


@dataclass(slots=True)
class _Waiting:
    """A pod without a node: its arrival in the queue, its number of attempts, and the end of its backoff."""

    pod: Obj
    asked: Milli
    since_us: int
    attempts: int = 0
    rest_until_us: int = 0
    active: bool = True
    timer: Timer | None = None


class Scheduler(Actor):
    """Binds the pods of the scheduler `name`, one after the other: higher priorities first, then by arrival."""

    user = User("system:kube-scheduler")
    manager = "kube-scheduler"
    process = "kube-scheduler"

    def __init__(self, server: Server, name: str = NAME, host: str = "vm") -> None:
        self._name = name
        self._host = host
        super().__init__(server)

    def start(self) -> None:
        """Follow nodes and pods."""
        self._store = self.server.store
        self._timeline = self.clock
        self._events = Recorder(self.client, self._timeline, self._name, modern=True, host=self._host)
        self._views: dict[str, NodeView] = {}
        self._waiting: dict[Name, _Waiting] = {}
        self._bound: dict[Name, str] = {}  # node by pod, of those that hold their node
        self._promised: dict[Name, str] = {}  # node by pod, of those that were nominated
        self._names: list[str] = []  # of the nodes, in order
        self._turn = 0
        self._loop: Timer | None = None
        self.follow("nodes", self._on_node)
        self.follow("pods", self._on_pod)

    def _on_node(self, event: Event) -> None:
        name = event.obj["metadata"]["name"]
        if event.type == "DELETED":
            self._views.pop(name, None)
            self._names = sorted(self._views)
            return
        old, view = self._views.get(name), view_of(event.obj)
        if old is not None:
            for held in old.pods.values():
                view.take(held)
        else:
            for key, node in self._bound.items():
                pod = self._store.get("pods", *key)
                if node == name and pod is not None:
                    view.take(pod)
        self._views[name] = view
        if old is None:
            self._names = sorted(self._views)
        if old is None or _offer(old.node) != _offer(event.obj):
            self._room(view)

    def _on_pod(self, event: Event) -> None:
        pod, key = event.obj, name_of(event.obj)
        node = self._bound.get(key)
        holds = event.type != "DELETED" and holds_node(pod)
        if node is not None and not holds:
            del self._bound[key]
            if (view := self._views.get(node)) is not None:
                view.give(pod)
                self._room(view)
        elif holds:
            self._bound[key] = pod["spec"]["nodeName"]
            if (view := self._views.get(pod["spec"]["nodeName"])) is not None:
                view.give(pod)
                view.take(pod)
        if event.type == "DELETED" or not self._is_mine(pod):
            self._promised.pop(key, None)
            held = self._waiting.pop(key, None)
            if held is not None and held.timer is not None:
                held.timer.cancel()
            return
        if nominated := (pod.get("status") or {}).get("nominatedNodeName"):
            self._promised[key] = nominated
        held = self._waiting.get(key)
        if held is None or held.pod["metadata"]["uid"] != pod["metadata"]["uid"]:
            self._waiting[key] = _Waiting(pod, requests_milli(pod), self._timeline.now_us)
            self._wake(SCHEDULE_S)
            return
        changed = held.pod["spec"] != pod["spec"] or held.pod["metadata"].get("labels") != pod["metadata"].get("labels")
        held.pod, held.asked = pod, requests_milli(pod) if changed else held.asked
        if changed and not held.active:
            self._again(held)

    def _is_mine(self, pod: Obj) -> bool:
        spec = pod["spec"]
        waits = not spec.get("nodeName") and not is_terminal(pod) and not is_terminating(pod)
        return waits and not spec.get("schedulingGates") and spec.get("schedulerName") == self._name

    def _room(self, view: NodeView) -> None:
        """Try again the waiting pods that now fit a node."""
        for held in self._waiting.values():
            if not held.active and self._misfit(held.pod, view, held.asked) is None:
                self._again(held)

    def _again(self, held: _Waiting) -> None:
        """Try a pod again once it has rested."""
        if held.timer is not None:
            return
        if held.rest_until_us > self._timeline.now_us:
            held.timer = self._timeline.at_us(held.rest_until_us, lambda: self._activate(held))
        else:
            self._activate(held)

    def _activate(self, held: _Waiting) -> None:
        held.timer = None
        held.active = True
        held.since_us = self._timeline.now_us
        self._wake(SCHEDULE_S)

    def _wake(self, delay_s: float) -> None:
        if self._loop is None:
            self._loop = self._timeline.at(delay_s, self._next)

    def _next(self) -> None:
        """Schedule the next pod of the queue."""
        self._loop = None
        ready = [held for held in self._waiting.values() if held.active]
        if not ready:
            return
        held = min(ready, key=lambda each: (-priority_of(each.pod), each.since_us))
        held.active = False
        if len(ready) > 1:
            self._wake(SCHEDULE_EACH_S)
        self._try(held)

    def _try(self, held: _Waiting) -> None:
        pod = held.pod
        missing = self._missing_claim(pod)
        if missing:
            # The filters that would state more did not run: the text ends as the real one does.
            self._fail(
                held,
                f'0/{len(self._views)} nodes are available: persistentvolumeclaim "{missing}" not found. not found',
            )
            return
        asked = held.asked
        misfits: dict[str, Misfit] = {}
        fitting: list[NodeView] = []
        nominated = (pod.get("status") or {}).get("nominatedNodeName")
        for name in self._in_turn(nominated):
            found = self._misfit(pod, self._views[name], asked)
            if found is not None:
                misfits[name] = found
                continue
            fitting.append(self._views[name])
            if len(fitting) >= enough(len(self._views)):
                break
        self._turn += len(fitting) + len(misfits)
        if not fitting:
            self._make_room(held, misfits)
            return
        self._bind(held, self._best(pod, asked, fitting, nominated))

    def _best(self, pod: Obj, asked: Milli, fitting: Sequence[NodeView], nominated: str | None) -> str:
        """The promised node, else one of those with the most points."""
        if any(view.name == nominated for view in fitting):
            return str(nominated)
        points = {view.name: preference(pod, view, asked) for view in fitting}
        most = max(points.values())
        return self.server.pick(pod, sorted(name for name, each in points.items() if each == most))

    def _in_turn(self, first: str | None) -> list[str]:
        """The nodes in order of search: by name; of many, from the end of the last search on."""
        names = self._names
        if len(names) > ALL_BELOW:
            start = self._turn % len(names)
            names = names[start:] + names[:start]
        return [first, *names] if first in self._views else names

    def _misfit(self, pod: Obj, view: NodeView, asked: Milli) -> Misfit | None:
        """As `misfit`, less the room promised on the node to other pods of equal or higher priority."""
        found = misfit(pod, view, asked)
        if found is not None or not self._promised:
            return found
        promised = [
            other.pod
            for key, node in self._promised.items()
            if node == view.name
            and (other := self._waiting.get(key)) is not None
            and other.pod["metadata"]["uid"] != pod["metadata"]["uid"]
            and priority_of(other.pod) >= priority_of(pod)
        ]
        if not promised:
            return None
        full = view.copy()
        for each in promised:
            full.take(each)
        return misfit(pod, full, asked)

    def _missing_claim(self, pod: Obj) -> str:
        """The first missing volume claim of a pod; "" if all exist."""
        namespace = pod["metadata"]["namespace"]
        for volume in pod["spec"].get("volumes") or []:
            name = (volume.get("persistentVolumeClaim") or {}).get("claimName", "")
            if name and self._store.get("persistentvolumeclaims", namespace, name) is None:
                return str(name)
        return ""

    def _bind(self, held: _Waiting, node: str) -> None:
        namespace, name = name_of(held.pod)
        binding = {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {"name": name, "namespace": namespace, "uid": held.pod["metadata"]["uid"]},
            "target": {"kind": "Node", "name": node},
        }
        try:
            self.client.call("pods", namespace, name, "binding", binding)
        except StatusError:
            self._rest(held)
            self._again(held)
            return
        self._events.normal(held.pod, "Scheduled", f"Successfully assigned {namespace}/{name} to {node}", "Binding")

    def _make_room(self, held: _Waiting, misfits: dict[str, Misfit]) -> None:
        """Nominate a node and remove pods there, or state the reasons for a miss."""
        pod, count = held.pod, len(self._views)
        text = reasons_text(count, (reason for each in misfits.values() for reason in each.reasons))
        if not misfits:
            self._fail(held, "no nodes available to schedule pods")
            return
        nominated = self._views.get((pod.get("status") or {}).get("nominatedNodeName", ""))
        if pod["spec"].get("preemptionPolicy") == "Never":
            answer: Candidate | str = NEVER
        elif waits_for_victims(pod, nominated):
            answer = WAITS
        else:
            budgets = self._store.objects("poddisruptionbudgets.policy")
            answer = preempt(pod, held.asked, list(self._views.values()), misfits, budgets)
        if isinstance(answer, str):
            self._fail(held, f"{text} no new claims to deallocate, preemption: {answer}")
            return
        self._fail(held, text, answer.view.name)
        victims, node = answer.victims, answer.view.name
        self._timeline.at(PREEMPT_S, lambda: self._remove(pod, victims, node))

    def _remove(self, pod: Obj, victims: Iterable[Obj], node: str) -> None:
        for victim in victims:
            current = self._store.get("pods", *name_of(victim))
            if current is None or current["metadata"]["uid"] != victim["metadata"]["uid"] or is_terminating(current):
                continue
            target = {"type": "DisruptionTarget", "observedGeneration": current["metadata"].get("generation", 1)}
            target |= {"status": "True", "lastProbeTime": None, "lastTransitionTime": stamp(self._timeline.now)}
            target |= {"reason": "PreemptionByScheduler", "message": PREEMPTING}
            self._set_condition(current, target)
            delete(self.client, "pods", current)
            text = f"Preempted by pod {pod['metadata']['uid']} on node {node}"
            self._events.normal(victim, "Preempted", text, "Preempting")

    def _fail(self, held: _Waiting, message: str, nominated: str = "") -> None:
        """State in the pod the reason of its missing node, and leave it alone for a while."""
        pod = held.pod
        old = condition(pod, "PodScheduled")
        new: Obj = {"type": "PodScheduled", "observedGeneration": pod["metadata"].get("generation", 1)}
        new |= {"status": "False", "lastProbeTime": None, "reason": "Unschedulable", "message": message}
        same = old.get("status") == "False"
        new["lastTransitionTime"] = old["lastTransitionTime"] if same else stamp(self._timeline.now)
        self._events.warning(pod, "FailedScheduling", message, "Scheduling")
        status = pod.get("status") or {}
        if old != new or (nominated and status.get("nominatedNodeName") != nominated):
            self._set_condition(pod, new, nominated)
        self._rest(held)

    def _rest(self, held: _Waiting) -> None:
        held.attempts += 1
        rest_s = min(BACKOFF_FIRST_S * 2 ** (held.attempts - 1), BACKOFF_LAST_S)
        held.rest_until_us = self._timeline.now_us + round(rest_s * US)

    def _set_condition(self, pod: Obj, new: Obj, nominated: str = "") -> None:
        status: Obj = {"conditions": with_condition((pod.get("status") or {}).get("conditions") or [], new)}
        if nominated:
            status["nominatedNodeName"] = nominated
        patch(self.client, "pods", pod, {"status": status}, "status")


def enough(nodes: int) -> int:
    """Number of fitting nodes to compare (numFeasibleNodesToFind): all of up to 100, a share of more."""
    if nodes <= ALL_BELOW:
        return nodes
    return max(nodes * max(50 - nodes // 125, 5) // 100, ALL_BELOW)


def _offer(node: Obj) -> Obj:
    """The fields of a node that decide the fit of a pod."""
    spec = node["spec"]
    return {
        "labels": node["metadata"].get("labels"),
        "taints": spec.get("taints"),
        "unschedulable": spec.get("unschedulable"),
        "allocatable": (node.get("status") or {}).get("allocatable"),
    }
