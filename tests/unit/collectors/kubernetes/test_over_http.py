"""List and watch against an API server over real HTTP, with every fault at once."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from apiserver.http.faults import ALL, QUIET
from apiserver.http.serve import Running, serve
from apiserver.server import Server
from apiserver.timeline import Timeline
from apiserver.users import ADMIN
from autopilot.kube.access import Access, Address
from collectors.kubernetes.kinds import NODES, PODS
from collectors.kubernetes.reflector import Timing
from collectors.kubernetes.source import Cluster
from collectors.kubernetes.transport import Transport
from tests.kits.tries import tries

CONVERGES_S = 5.0
"""After the end of the faults the view is whole and true within this time."""

SPEED = 3.0
"""Seconds of the server in a real one. Watches, silences, delays and changes are as much shorter in real time."""

Seen = dict[str, str]


def until(done: Callable[[], bool], what: str, deadline_s: float = 10.0) -> None:
    """Wait for something that threads bring about."""
    end_s = time.monotonic() + deadline_s
    while not done():
        assert time.monotonic() < end_s, what
        time.sleep(0.02)


@contextmanager
def beside(running: Running, folder: Path, timing: Timing) -> Iterator[tuple[Cluster, Callable[[], dict[str, Seen]]]]:
    """A cluster that is listed and watched; and what it holds: uid -> resourceVersion by kind."""
    path = folder / "kubeconfig"
    path.write_text(running.kubeconfig(), "utf-8")
    transport = Transport(Access(Address(path)))
    cluster = Cluster(transport, kinds=(NODES, PODS), timing=timing, rng=random.Random(1))
    held: dict[str, Seen] = {"nodes": {}, "pods": {}}
    lock = threading.Lock()

    def look() -> dict[str, Seen]:
        with lock:
            for kind in (NODES, PODS):
                changes = cluster.drain(kind)
                for each in changes.gone:
                    held[kind.name].pop(each.metadata.uid, None)
                for each in changes.there:
                    held[kind.name][each.metadata.uid] = each.metadata.resource_version
            return {name: dict(found) for name, found in held.items()}

    cluster.start()
    try:
        yield cluster, look
    finally:
        cluster.close()


def truth(running: Running) -> dict[str, Seen]:
    """What the server holds."""
    with running.clock.lock:
        client = running.shell.server.client(ADMIN, "test")
        return {
            plural: {each["metadata"]["uid"]: each["metadata"]["resourceVersion"] for each in client.list(plural)}
            for plural in ("nodes", "pods")
        }


def change(running: Running, rng: random.Random, number: int) -> None:
    """Create, label or delete a node or a pod."""
    with running.clock.lock:
        client: Any = running.shell.server.client(ADMIN, "test")
        name = f"n{rng.randrange(40)}"
        there = {each["metadata"]["name"] for each in client.list("nodes")}
        if name not in there:
            client.create("nodes", {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}})
        elif rng.random() < 0.3:
            client.delete("nodes", "", name)
        else:
            client.patch("nodes", "", name, {"metadata": {"labels": {"turn": str(number)}}})


@pytest.fixture
def running() -> Iterator[Running]:
    """A server without actors: only the test changes it."""
    server = Server(Timeline(datetime.now(UTC)), random.Random(3))
    with serve(server, speed=SPEED) as found:
        yield found


def test_the_view_follows_the_server(running: Running, tmp_path: Path) -> None:
    """Changes arrive while watches end and begin again, and nothing is listed twice."""
    rng = random.Random(5)
    with beside(running, tmp_path, Timing(watch_s=6)) as (cluster, look):
        for number in range(200):
            change(running, rng, number)
            time.sleep(0.01)
        until(lambda: look() == truth(running), "the view differs")
        assert all(each.synced and not each.problem for each in cluster.health())
        assert [each.lists for each in cluster._reflectors] == [1, 1]


@pytest.mark.seeds(10)
def test_after_all_faults_at_once_the_view_is_true_again(running: Running, tmp_path: Path, soak_seed: int) -> None:
    """Slow, dropped, 429, 500, duplicated, reordered: five seconds after their end everything is as on the server."""
    rng, length_s = random.Random(7 + soak_seed), tries(10, soak=60)
    timing = Timing(watch_s=2, silence_s=4.0 / SPEED, first_wait_s=0.2 / SPEED, longest_wait_s=4.0 / SPEED)
    with beside(running, tmp_path, timing) as (cluster, look):
        until(lambda: all(each.synced for each in cluster.health()), "not listed")
        running.shell.faults.plan = replace(ALL, slow_s=ALL.slow_s / SPEED)
        end_s, number = time.monotonic() + length_s, 0
        while time.monotonic() < end_s:
            change(running, rng, number := number + 1)
            time.sleep(0.01 / SPEED)
        running.shell.faults.plan = QUIET
        until(lambda: look() == truth(running), "the view differs", CONVERGES_S)
        until(lambda: not any(each.problem for each in cluster.health()), "still a problem", CONVERGES_S)
