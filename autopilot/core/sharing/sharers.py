"""Work that holds shares of GPUs by software: who is together, how, and what its progress says of each pair."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from autopilot.core.model.colocation import MECHANISMS, Mechanism, Pair
from autopilot.core.model.kinds import kind_of, without_image
from autopilot.core.model.memory.profiles import LoneProfile, ProfilesMemory
from autopilot.core.model.objects import Sharing
from autopilot.core.model.snapshot import GPU_MILLI, ClusterSnapshot, State
from autopilot.core.sharing.colocation import WHOLE, Abstention, Part, profile_of

PACE_S = 300.0
"""The time that `WorkloadTable.steps_per_s` covers: so long must work have been together for it to tell of that."""

MOST_SPREAD_RATIO = 0.1
"""A lone pace that varies by more is no yardstick: jobs of one name then do unlike work."""


@dataclass(frozen=True, slots=True)
class Observed:
    """What one sharer did beside another, or on an instance (`other` None): `rate` relative to alone, clipped to 1.

    `family` and `other_family` are what is held out together: programs of one kind in other sizes.
    """

    pair: Pair
    own: LoneProfile
    other: LoneProfile | None
    rate: float
    family: str
    other_family: str = ""
    part: Part = WHOLE
    at_s: float = 0.0


class Together(NamedTuple):
    """How work is together on a GPU. `mechanism` None: not proven. `sure`: all on it are known to hold that GPU."""

    mechanism: Mechanism | None
    part: Part
    gpu_model: str
    sure: bool


@dataclass(slots=True)
class Sharers:
    """All holders of shares in one snapshot, without those that leave, by row."""

    snapshot: ClusterSnapshot
    profiles: ProfilesMemory
    now_s: float
    gpus: dict[int, list[int]]  # of each workload with shares
    rows: dict[int, tuple[int, ...]]  # workloads on each of these GPUs
    unsure: frozenset[int]  # GPUs that a holder may not hold
    _kinds: dict[int, str] = field(default_factory=dict)
    _ways: dict[int, Together] = field(default_factory=dict)

    def kind(self, row: int) -> str:
        """The kind of a workload."""
        if row not in self._kinds:
            self._kinds[row] = kind_of(self.snapshot, row)
        return self._kinds[row]

    def profile(self, row: int, gpu_model: str) -> LoneProfile | Abstention:
        """What a workload does alone on a model of GPU, or why that is not known."""
        return profile_of(self.profiles, gpu_model, self.kind(row), self.now_s)

    def way(self, gpu: int) -> Together:
        """How the work on a GPU is together. The device plugin's MPS gives each client an equal part."""
        if gpu not in self._ways:
            nodes, node = self.snapshot.nodes, int(self.snapshot.gpus.node[gpu])
            mechanism = MECHANISMS.get(Sharing(int(nodes.sharing[node])))
            part = 1.0 / int(nodes.replicas[node]) if mechanism is Mechanism.MPS else 1.0
            code, names = int(nodes.gpu_model[node]), self.snapshot.names.gpu_models
            model = names[code] if 0 <= code < len(names) else ""
            self._ways[gpu] = Together(mechanism, Part(part, part), model, gpu not in self.unsure)
        return self._ways[gpu]

    def settled(self, row: int) -> bool:
        """True for work that has run for as long as its pace covers."""
        work = self.snapshot.workloads
        return bool(work.state[row] == State.RUNNING and self.now_s - work.start_s[row] >= PACE_S)


def sharers_of(snapshot: ClusterSnapshot, profiles: ProfilesMemory, now_s: float) -> Sharers:
    """All work on shares of GPUs."""
    held, nodes = snapshot.placements, snapshot.nodes
    shares = (held.instance < 0) & (held.milli < GPU_MILLI) & ~held.leaving
    rows = np.flatnonzero(shares & (nodes.replicas[held.node] > 1))
    gpus: dict[int, list[int]] = {}
    on: dict[int, list[int]] = {}
    for gpu, row in zip(held.gpu[rows].tolist(), held.workload[rows].tolist(), strict=True):
        gpus.setdefault(row, []).append(gpu)
        on.setdefault(gpu, []).append(row)
    unsure = frozenset(held.gpu[rows[held.assumed[rows]]].tolist())
    return Sharers(snapshot, profiles, now_s, gpus, {gpu: tuple(each) for gpu, each in on.items()}, unsure)


def measured_rate(sharers: Sharers, row: int) -> float:
    """The pace of a workload over that of its kind alone on the same model of GPU; NaN: unknown."""
    models = {sharers.way(gpu).gpu_model for gpu in sharers.gpus[row]}
    lone = sharers.profile(row, min(models)) if len(models) == 1 and sharers.settled(row) else None
    if not isinstance(lone, LoneProfile) or not lone.steps_hz > 0.0 or lone.steps_spread_ratio > MOST_SPREAD_RATIO:
        return float("nan")
    return float(sharers.snapshot.workloads.steps_per_s[row]) / lone.steps_hz


def observed_pairs(snapshot: ClusterSnapshot, profiles: ProfilesMemory, now_s: float) -> tuple[Observed, ...]:
    """What each workload did beside the one kind of work that shares its GPUs, where its progress is measured.

    With more than two on a GPU, or different neighbours on its GPUs, the cause of a slow rate is unknown.
    """
    sharers = sharers_of(snapshot, profiles, now_s)
    found = []
    for row, gpus in sharers.gpus.items():
        beside = {other for gpu in gpus for other in sharers.rows[gpu] if other != row}
        way = sharers.way(gpus[0])
        if way.mechanism is None or not all(len(sharers.rows[gpu]) == 2 and sharers.way(gpu) == way for gpu in gpus):
            continue
        kinds = {sharers.kind(other) for other in beside}
        if len(kinds) != 1 or not way.sure or not all(map(sharers.settled, beside)):
            continue
        own, other = sharers.profile(row, way.gpu_model), sharers.profile(min(beside), way.gpu_model)
        rate, mine, theirs = measured_rate(sharers, row), sharers.kind(row), min(kinds)
        if isinstance(own, LoneProfile) and isinstance(other, LoneProfile) and np.isfinite(rate):
            pair = Pair(mine, theirs, way.mechanism, way.gpu_model)
            families = without_image(mine), without_image(theirs)
            found.append(Observed(pair, own, other, min(rate, 1.0), *families, way.part, now_s))
    return tuple(found)
