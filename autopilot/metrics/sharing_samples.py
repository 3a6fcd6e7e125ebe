"""Samples about shared GPUs, noisy neighbours and slow members, by pool: no name of work or pair is a label."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from autopilot.core.model.memory import ControllerMemory
from autopilot.core.model.neighbours import SlowGpu, Straggler
from autopilot.core.model.records import Observation
from autopilot.core.model.snapshot import F64, I32
from autopilot.core.neighbours.facts import Standing, disturbed
from autopilot.core.sharing.facts import shared_rates
from autopilot.core.sharing.sharers import sharers_of
from autopilot.core.sharing.useful import useful_utilization_ratio
from autopilot.metrics.samples import Samples

SHOWN = (Standing.SUSPECTED, Standing.PAUSED, Standing.CONFIRMED)
"""Work whose suspect was cleared counts no more."""


def put_sharing(out: Samples, observation: Observation, memory: ControllerMemory) -> None:
    """GPUs with several sharers, the mean rates of work on shares, and the largest shortfall; absent where unknown."""
    snapshot = observation.snapshot
    sharers = sharers_of(snapshot, memory.profiles, observation.now_s)
    if not sharers.rows:
        return
    pools, pool_of = snapshot.names.pools, snapshot.nodes.pool[snapshot.gpus.node]
    shared = np.array([gpu for gpu, rows in sharers.rows.items() if len(rows) > 1], np.int64)
    out.column("pool_shared_gpus", np.bincount(pool_of[shared], minlength=len(pools)).tolist(), pools)
    rows = np.array(list(sharers.gpus), np.int64)
    at = pool_of[[gpus[0] for gpus in sharers.gpus.values()]]
    found = shared_rates(snapshot, memory.profiles, observation.forecasts.colocation, observation.now_s)
    for kind, rates in (("predicted", found.predicted[rows]), ("measured", found.measured[rows])):
        for code, values in _known(rates, at).items():
            out.put("pool_shared_rate_ratio", float(values.mean()), pools[code], kind)
    out.put("fleet_useful_utilization_ratio", useful_utilization_ratio(sharers, found))
    for code, values in _known(found.predicted[rows] - found.measured[rows], at).items():
        out.put("pool_shared_shortfall_ratio", float(values.max()), pools[code])


def put_neighbours(out: Samples, observation: Observation, memory: ControllerMemory) -> None:
    """Work that a neighbour slows down, by how far the neighbour is known; absent where no detector reports any."""
    snapshot = observation.snapshot
    found = disturbed(snapshot, observation.forecasts.interference, memory.neighbours)
    if not found:
        return
    held = snapshot.placements
    pool_of = dict(zip(held.workload.tolist(), snapshot.nodes.pool[held.node].tolist(), strict=True))
    victims = {standing: set[int]() for standing in SHOWN}
    for each in found:
        if each.lasts and each.standing in victims:
            victims[each.standing].add(each.row)
    for code in sorted({pool_of[each.row] for each in found if each.row in pool_of}):
        for standing, rows in victims.items():
            count = sum(pool_of.get(row) == code for row in rows)
            out.put("pool_disturbed_workloads", float(count), snapshot.names.pools[code], standing.value)


def put_slow(out: Samples, observation: Observation) -> None:
    """Members that hold up their gang, and suspected GPUs, by pool; absent where a pool has neither."""
    nodes, forecasts = observation.snapshot.nodes, observation.forecasts
    pool_of = dict(zip(nodes.id.tolist(), nodes.pool.tolist(), strict=True))
    kinds: dict[str, Sequence[Straggler | SlowGpu]] = {"member": forecasts.stragglers, "suspect": forecasts.slow_gpus}
    pools = {pool_of[each.node] for found in kinds.values() for each in found if each.node in pool_of}
    for code in sorted(pools):
        for kind, found in kinds.items():
            count = sum(pool_of.get(each.node) == code for each in found)
            out.put("pool_slow_members", float(count), observation.snapshot.names.pools[code], kind)


def _known(values: F64, pool: I32) -> dict[int, F64]:
    """The known values of each pool that has any."""
    known = ~np.isnan(values)
    return {code: values[known & (pool == code)] for code in np.unique(pool[known]).tolist()}
