"""Facts of work on GPUs shared by software: its rate relative to alone, as predicted and as its program reports it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from autopilot.core.facts.table import fact, root
from autopilot.core.intake.usage.facts import SnapshotFacts
from autopilot.core.model.colocation import Colocation
from autopilot.core.model.memory import ControllerMemory
from autopilot.core.model.memory.profiles import ProfilesMemory
from autopilot.core.model.snapshot import F64, ClusterSnapshot
from autopilot.core.planning.context import Context
from autopilot.core.planning.facts import gpu_memory_mib
from autopilot.core.sharing.colocation import Prediction, Sharer, predicted_rates
from autopilot.core.sharing.sharers import Sharers, Together, measured_rate, sharers_of

Value = TypeVar("Value")


@dataclass(frozen=True, slots=True, eq=False)
class SharedRates:
    """Rates relative to alone of work that holds shares. NaN: unknown, and for all other work. Shape [workloads].

    `predicted`: beside all that hold shares of its GPUs now, on the slowest of them, while all work. `measured`: its
    pace over the last five minutes, over that alone.
    """

    predicted: F64
    measured: F64


def shared_rates(snapshot: ClusterSnapshot, profiles: ProfilesMemory, learned: Colocation, now_s: float) -> SharedRates:
    """The rates of all work that holds shares."""
    count = len(snapshot.workloads.id)
    predicted, measured = np.full(count, np.nan), np.full(count, np.nan)
    sharers = sharers_of(snapshot, profiles, now_s)
    known: dict[tuple[Together, tuple[str, ...]], tuple[float, ...]] = {}
    for row, gpus in sharers.gpus.items():
        rates = []
        for gpu in gpus:
            rows, way = sharers.rows[gpu], sharers.way(gpu)
            key = way, tuple(sharers.kind(each) for each in rows)
            if key not in known:
                known[key] = _rates(sharers, rows, way, learned)
            rates.append(known[key][rows.index(row)])
        predicted[row] = min(rates) if not np.isnan(rates).any() else np.nan
        measured[row] = measured_rate(sharers, row)
    return SharedRates(predicted, measured)


def _rates(sharers: Sharers, rows: tuple[int, ...], way: Together, learned: Colocation) -> tuple[float, ...]:
    unknown = (float("nan"),) * len(rows)
    if way.mechanism is None or not way.sure:
        return unknown
    work = [Sharer(sharers.kind(row), sharers.profile(row, way.gpu_model), way.part) for row in rows]
    found = predicted_rates(work, way.mechanism, way.gpu_model, gpu_memory_mib(way.gpu_model), learned)
    return found.rates if isinstance(found, Prediction) else unknown


def _root(read: Callable[[SharingFacts], Value]) -> Value:
    return root(read)


@dataclass(frozen=True, kw_only=True)
class SharingFacts(SnapshotFacts):
    """The facts of one tick."""

    recalled: ControllerMemory  # memory as planning began from it

    _profiles = _root(lambda own: own.recalled.profiles)
    _learned = _root(lambda own: own.observation.forecasts.colocation)
    _now_s = _root(lambda own: own.observation.now_s)

    rates = fact(shared_rates, SnapshotFacts.snapshot, _profiles, _learned, _now_s)


def rates_of(ctx: Context) -> SharedRates:
    """The rates of work on shares in this tick."""

    def table() -> SharingFacts:
        return SharingFacts(observation=ctx.observation, policy=ctx.policy, kept=ctx.kept, recalled=ctx.recalled)

    return ctx.once(SharingFacts, table).rates
