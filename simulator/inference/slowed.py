"""Replicas that work on their node slows down, and the latencies of each replica.

A deployment names the work that slows it (`slowed_by`): while a job of that name runs on the node of a replica, its
slots go at a fraction of their speed. It stands for contention that no share of a GPU shows: host memory, PCIe, CPUs.

Requests have one queue over all replicas, so those of one replica are not told apart. Its latencies are drawn from
those of the service at full speed, over its rate; its part of the requests is in proportion to its rate.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import log, sqrt
from statistics import NormalDist

import numpy as np

from autopilot.core.model.latencies import ReplicaLatency
from autopilot.core.model.snapshot import State, empty
from simulator.inference.service_state import WINDOW_S, Service
from simulator.world.cluster import Cluster
from simulator.world.interference.rates import draw

LOOK_S = 15.0
"""Time between two looks at the work beside the replicas."""
_NORMAL = NormalDist()


def slowed(cluster: Cluster, service: Service) -> dict[int, float]:
    """How many times as slow each ready replica is; those that nothing slows are left out."""
    named, found = service.deployment.slowed_by, dict[int, float]()
    for job in service.ready:
        held = cluster.held[job]
        nodes = {cluster.hardware.node_of[gpu] for gpu in held.gpus} if held is not None else set()
        beside = (other for node in nodes for other in cluster.hardware.node_holders(node))
        slow = max(
            (named.get(cluster.jobs.name[other], 1.0) for other in beside if _works(cluster, other)), default=1.0
        )
        if slow > 1.0:
            found[job] = slow
    return found


def _works(cluster: Cluster, job: int) -> bool:
    halted = job in cluster.leaving or job in cluster.stale or job in cluster.paused
    return cluster.state[job] == State.RUNNING and not halted


def latency_table(services: Iterable[Service], ids: list[str], now_s: float) -> ReplicaLatency:
    """The last whole minute of each replica of a service that something may slow. `ids` are those of the jobs."""
    rows = list[tuple[str, float, float]]()
    closed = int(now_s // WINDOW_S)
    for service in services:
        logs = service.sim.logs
        if logs is None or not closed:
            continue
        service.sim.advance(max(now_s, service.sim.now_s))
        rates = {job: service.rate(job) for job in service.ready}
        last, total = logs.last(), sum(rates.values())
        for job, rate in rates.items():
            count = last.requests * rate / total
            noise = _NORMAL.inv_cdf(min(max(draw(f"latency/{ids[job]}/{closed}"), 1e-9), 1.0 - 1e-9))
            level = last.mean - log(rate) + last.spread / sqrt(count) * noise if count else float("nan")
            rows.append((ids[job], count, level))
    if not rows:
        none: ReplicaLatency = empty(ReplicaLatency)
        return none
    names, counts, levels = zip(*rows, strict=True)
    return ReplicaLatency(
        id=np.array(names, object),
        minute_s=np.full(len(rows), (closed - 1) * WINDOW_S),
        requests=np.array(counts),
        mean_log_s=np.array(levels),
        buckets=np.ones(len(rows), np.int64),
        age_s=np.full(len(rows), now_s - closed * WINDOW_S),
    )
