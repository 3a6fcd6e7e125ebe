"""A noisy neighbour on the simulated cluster: it is paused, confirmed and moved, or cleared; every checker agrees."""

from __future__ import annotations

from dataclasses import replace
from math import nan
from pathlib import Path

import numpy as np
import pytest

from autopilot.controller import Controller
from autopilot.core.model.forecast import Forecasts
from autopilot.core.model.neighbours import Interference
from autopilot.core.model.objects import Pausing
from autopilot.core.model.snapshot import ClusterSnapshot
from autopilot.core.model.work import holding_mask
from simulator.running.simulation import Simulation
from simulator.world.facts import Evicting, Paused
from tests.kits.noisy_world import record
from tests.simulation.kit import Ran, Setup, run, scenario

FOUND_S = 1800.0
WORLD = """
name: small-noisy
horizon: 4h
cluster:
  pools:
    - {name: h100, nodes: 2, gpus_per_node: 2, gpu_model: H100-80GB}
jobs:
  groups:
    - {kind: train, count: 2, tenants: [red], gpus: [1], duration: 3h, to: 1s}
physics: charged
telemetry: "off"
durations: exact
policies: [autopilot]
"""


class Detector:
    """It says that the one job slows the other while both are on one node; `cause`: a pause ends that."""

    name = "detector"

    def __init__(self, *, cause: bool) -> None:
        self._cause, self._since_s = cause, nan
        self.apart_s = nan

    def update(self, now_s: float, snapshot: ClusterSnapshot) -> None:
        """Follow the pause."""
        paused = bool((snapshot.workloads.pausing == Pausing.PAUSED).any())
        self._since_s = (now_s if np.isnan(self._since_s) else self._since_s) if paused else nan

    def forecast(self, now_s: float, snapshot: ClusterSnapshot) -> Forecasts:
        """One record."""
        work, held = snapshot.workloads, snapshot.placements
        rows = np.flatnonzero(holding_mask(work)).tolist()
        if now_s < FOUND_S or len(rows) < 2:
            return Forecasts()
        victim, suspect = rows[:2]
        if not np.isin(held.node[held.workload == suspect], held.node[held.workload == victim]).any():
            self.apart_s = now_s if np.isnan(self.apart_s) else self.apart_s
            return Forecasts()
        quiet = self._cause and now_s - self._since_s >= 120.0
        return Forecasts(interference=(self._record(snapshot, victim, suspect, 1.0 if quiet else 1.6),))

    def _record(self, snapshot: ClusterSnapshot, victim: int, suspect: int, now_ratio: float) -> Interference:
        one, other = (str(snapshot.workloads.id[row]) for row in (victim, suspect))
        mine, its = (str(snapshot.workloads.uid[row]) for row in (victim, suspect))
        found = record(victim=one, suspect=other, rise_ratio=1.6, now_ratio=now_ratio)
        return replace(found, victim_uid=mine, suspect_uid=its)


class Watched:
    """Pauses and evictions of a run, in order."""

    def __init__(self) -> None:
        self.facts: list[tuple[float, str]] = []

    def on_paused(self, fact: Paused) -> None:
        """Keep it."""
        word = "paused" if fact.on else "goes on"
        if [each for _, each in self.facts[-1:]] != [word]:  # also where it is asked again
            self.facts.append((fact.at_s, word))

    def on_evicting(self, fact: Evicting) -> None:
        """Keep it."""
        self.facts.append((fact.at_s, "moved" if fact.apart else "evicted"))


@pytest.mark.parametrize(("cause", "words"), [(True, ["paused", "goes on", "moved"]), (False, ["paused", "goes on"])])
def test_a_neighbour_is_confirmed_and_moved_or_cleared(cause: bool, words: list[str], tmp_path: Path) -> None:
    """Within ten minutes; the pause of moved work ends with its stop, and nothing is violated."""
    detector, watched = Detector(cause=cause), Watched()

    def watch(simulation: Simulation, _controller: Controller) -> None:
        simulation.cluster.observe(watched)
        for each in range(60):  # a minute passes also where nothing happens
            simulation.engine.at(FOUND_S + 60.0 * each, lambda _: None)

    ran: Ran = run(scenario(WORLD, tmp_path), Setup(demand=detector, change=watch))
    assert ran.simulated.found.violations == ()
    assert [word for _, word in watched.facts] == words
    assert watched.facts[0][0] <= FOUND_S + 60.0
    assert watched.facts[-1][0] <= FOUND_S + 600.0
    assert bool(detector.apart_s > 0) == cause
