"""The sources under every fault at once: refused, slow, cut, repeated, reordered. The view finds back to the truth."""

from __future__ import annotations

import os
import random
import threading
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from apiserver.cluster import cluster as new_cluster
from apiserver.http.faults import QUIET, FaultPlan, Faults
from apiserver.http.serve import Running, serve
from apiserver.timeline import Timeline
from apiserver.users import ADMIN
from autopilot.kube.access import Access, Address
from collectors.kubernetes.collector import KubernetesCollector
from collectors.kubernetes.kinds import JOBS, NODES, PODS, Kind
from collectors.kubernetes.reflector import Timing
from collectors.kubernetes.source import Cluster
from collectors.kubernetes.transport import Transport
from tests.kits import kube_objects

SPEED = 3.0
"""Seconds of the server in a real one. Watches, silences, delays and changes are as much shorter in real time."""
EVERY = FaultPlan(
    slow=0.1, slow_s=0.5 / SPEED, dropped=0.4, too_many=0.05, conflict=0.05, error=0.1, duplicated=0.2, reordered=0.4
)
CONVERGES_S = 5.0
NODE_COUNT, POD_COUNT = 20, 200
MOST_PODS, MOST_EVENTS = 2 * POD_COUNT, 5_000  # the world does not grow, so that growth of the sources shows
HOT = 4  # pods that most changes are about, so that events of one object follow each other
FOLLOWED = (NODES, PODS, JOBS)
STORED = {NODES.title: "nodes", PODS.title: "pods", JOBS.title: "jobs.batch"}
TIMING = Timing(watch_s=3, silence_s=6.0 / SPEED, first_wait_s=0.2 / SPEED, longest_wait_s=1.0 / SPEED)


class Users:
    """People and controllers that create, change, replace and delete objects, by a seed."""

    def __init__(self, running: Running, seed: int) -> None:
        self._running, self._rng = running, random.Random(seed)
        self._client = running.shell.server.client(ADMIN, "users")
        self._count = 0
        self.names: list[str] = []

    def furnish(self) -> None:
        """Nodes and pods before anything goes wrong."""
        with self._running.clock.lock:
            self._client.create("namespaces", {"metadata": {"name": "team"}})
            for number in range(NODE_COUNT):
                self._client.create("nodes", _bare(kube_objects.node(f"node-{number}")))
            for _ in range(POD_COUNT):
                self._create(f"pod-{self._count}")

    def act(self) -> None:
        """Some changes at once, so that streams have several events to repeat and reorder."""
        with self._running.clock.lock:
            for _ in range(self._rng.randrange(1, 8)):
                self._change()
            store = self._running.shell.server.store
            for event in store.objects("events") if len(store.objects("events")) > MOST_EVENTS else ():
                store.remove("events", event["metadata"]["namespace"], event["metadata"]["name"])

    def _change(self) -> None:
        draw = self._rng.random()
        name = self._rng.choice(self.names[-HOT:]) if self.names else ""
        if draw < 0.3 and len(self.names) > MOST_PODS:
            self._delete(name)
        elif draw < 0.3 or not name:
            self._create(f"pod-{self._count}")
        elif draw < 0.6:
            labels = {"metadata": {"labels": {"seen": str(self._rng.randrange(1000))}}}
            self._client.patch("pods", "team", name, labels)
        elif draw < 0.75:
            self._delete(name)
        elif draw < 0.9:
            self._delete(name)  # another object under the same name, at once
            self._create(name)
        else:
            mark = {"metadata": {"annotations": {"mark": str(self._rng.randrange(1000))}}}
            self._client.patch("nodes", "", f"node-{self._rng.randrange(NODE_COUNT)}", mark)

    def _create(self, name: str) -> None:
        self._count += 1
        pod = _bare(kube_objects.pod(name, 1))
        pod["spec"]["containers"][0]["image"] = "trainer"
        self._client.create("pods", pod)
        self.names.append(name)

    def _delete(self, name: str) -> None:
        self._client.delete("pods", "team", name, {"gracePeriodSeconds": 0})
        self.names.remove(name)


def _bare(found: dict[str, Any]) -> dict[str, Any]:
    """An object as a client creates it."""
    kept = {name: found["metadata"][name] for name in ("name", "namespace", "labels") if name in found["metadata"]}
    return {**found, "metadata": kept}


def _truth(running: Running, kind: Kind) -> dict[str, str]:
    """Version by uid in the store."""
    with running.clock.lock:
        found = running.shell.server.store.objects(STORED[kind.title], None)
        return {each["metadata"]["uid"]: each["metadata"]["resourceVersion"] for each in found}


def _view(source: Cluster, kind: Kind) -> dict[str, str]:
    """The same in the cache."""
    (cache,) = source._caches[kind.title]
    with cache._lock:
        return {uid: each.metadata.resource_version for uid, each in cache._objects.items()}


def _agrees(running: Running, source: Cluster, within_s: float) -> bool:
    end_s = time.monotonic() + within_s
    while any(_truth(running, kind) != _view(source, kind) for kind in FOLLOWED):
        if time.monotonic() > end_s:
            return False
        threading.Event().wait(0.02)
    return True


def _play(folder: Path, seed: int, during_s: float) -> None:
    server = new_cluster(Timeline(datetime.now(UTC)), random.Random(seed))
    faults = Faults(seed=seed)
    with serve(server, speed=SPEED, faults=faults) as running:
        users = Users(running, seed)
        users.furnish()
        path = folder / "kubeconfig"
        path.write_text(running.kubeconfig())
        transport = Transport(Access(Address(path)))
        source = Cluster(transport, kinds=FOLLOWED, timing=TIMING, rng=random.Random(seed))
        collector = KubernetesCollector(source)
        source.start()
        try:
            assert source.wait_synced(120.0)
            assert _agrees(running, source, CONVERGES_S)
            threads = threading.active_count()
            faults.plan = EVERY
            end_s = time.monotonic() + during_s
            while time.monotonic() < end_s:
                users.act()
                collector.collect(time.time())  # never raises, whatever arrives
                threading.Event().wait(0.05 / SPEED)
            faults.plan = QUIET
            assert _agrees(running, source, CONVERGES_S), "the view has not found back to the truth"
            batch = collector.collect(time.time())
            assert batch.work is not None
            assert all(thread.is_alive() for thread in source._threads), "a watch died"
            assert threading.active_count() <= threads + 2, "threads pile up"
        finally:
            source.close()


def test_the_view_finds_back_after_every_fault_at_once(tmp_path: Path) -> None:
    """Thirty seconds of faults by the server's clock; then the caches equal the store, and every watch still runs."""
    _play(tmp_path, 1, 10.0)


@pytest.mark.soak
@pytest.mark.seeds(10)
def test_the_view_finds_back_after_a_minute_of_faults(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, soak_seed: int
) -> None:
    """The same for longer, and memory does not grow with the number of failures."""
    monkeypatch.setattr(
        "apiserver.store.HISTORY", 5_000
    )  # the server is in this process: its memory is not the subject
    _play(tmp_path, 1, 10.0)  # what grows once
    before_mib = _resident_mib()
    _play(tmp_path, 2 + soak_seed, 60.0)
    assert _resident_mib() < before_mib + 100.0


def _resident_mib() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / (1 << 20)
