"""Keeps the pods of gangs as the world is: waiting for room, starting, working, leaving, ended; with their reports."""

from __future__ import annotations

from functools import partial
from typing import Any

from apiserver.server import Server
from autopilot.core.model.snapshot import State
from autopilot.playground.gangs import PODS, Gang, GangObjects
from autopilot.playground.mirror import Key, Mirror
from autopilot.playground.pods import ended as ended_status
from simulator.world.cluster import Cluster
from simulator.world.facts import Stopped, Why

Obj = dict[str, Any]


class GangPods:
    """The pods of all gangs."""

    def __init__(self, cluster: Cluster, server: Server, mirror: Mirror, objects: GangObjects) -> None:
        self._cluster, self._server, self._mirror, self._objects = cluster, server, mirror, objects
        self._start_s = server.timeline.now_s

    def show(self, gang: Gang, now_s: float) -> None:
        """The pods of an admitted gang, as the world is."""
        mirror, wanted = self._mirror, self._objects.pods(gang, now_s)
        for key in gang.shown.keys() - wanted.keys():
            mirror.delete(key)
        for key, pod in wanted.items():
            before = gang.shown.get(key)
            kept = before["metadata"]["annotations"] if before is not None else {}
            found = pod | {"metadata": pod["metadata"] | {"annotations": kept | pod["metadata"]["annotations"]}}
            if gang.leaving and before is not None:
                mirror.delete(key, at_once=False)
            else:
                if before is not None and "nodeName" in pod["spec"] and "nodeName" not in before["spec"]:
                    self._bind(key, before, pod)
                mirror.put(PODS, found)
            gang.shown[key] = found
        gang.shown = {key: gang.shown[key] for key in wanted}
        self._follow_checkpoints(gang)

    def _bind(self, key: Key, before: Obj, pod: Obj) -> None:
        """The scheduler found a node; a pod with another share of the gang is created anew."""
        if before["spec"]["containers"] == pod["spec"]["containers"]:
            self._mirror.bind(key, pod["spec"]["nodeName"])
        else:
            self._mirror.delete(key)

    def drop(self, gang: Gang) -> None:
        """The pods are gone."""
        for key in gang.shown:
            self._mirror.delete(key)
        gang.shown = {}

    def end(self, gang: Gang, fact: Stopped, now_s: float) -> None:
        """The pods have ended, and stay with their Job."""
        code = 0 if fact.why == Why.END else 1
        real = self._objects.real_s
        status = ended_status(real(fact.start_s), real(fact.start_s), real(fact.ready_s), real(now_s), exit_code=code)
        for key, pod in gang.shown.items():
            gang.shown[key] = pod | {"status": status}
            self._mirror.put(PODS, gang.shown[key])

    def _follow_checkpoints(self, gang: Gang) -> None:
        """Work reports its checkpoints as it makes them: the first pod writes the time of the newest."""
        cluster, job = self._cluster, gang.job
        interval_s = cluster.checkpoints.interval_s(job)
        if cluster.state[job] != State.RUNNING or gang.leaving or not 0 < interval_s < float("inf"):
            return
        number = cluster.incarnation[job]
        now_s = self._server.timeline.now_s - self._start_s
        made = max(int((now_s - cluster.ready_s[job]) / interval_s), 0)
        next_s = cluster.ready_s[job] + (made + 1) * interval_s
        self._server.timeline.at(max(next_s - now_s, 0.0), partial(self._checkpoint, gang, number, next_s))

    def _checkpoint(self, gang: Gang, number: int, at_s: float) -> None:
        cluster = self._cluster
        if cluster.incarnation[gang.job] != number or cluster.held[gang.job] is None or gang.leaving or not gang.shown:
            return
        self.report(gang, self._objects.annotations(gang, at_s))
        interval_s = cluster.checkpoints.interval_s(gang.job)
        self._server.timeline.at(interval_s, partial(self._checkpoint, gang, number, at_s + interval_s))

    def report(self, gang: Gang, notes: dict[str, str], key: Key | None = None) -> None:
        """A pod writes annotations on itself: by default the first one."""
        if key is None:
            key = next(iter(gang.shown))
        pod = gang.shown[key]
        gang.shown[key] = pod | {"metadata": pod["metadata"] | {"annotations": pod["metadata"]["annotations"] | notes}}
        self._mirror.put(PODS, gang.shown[key])
