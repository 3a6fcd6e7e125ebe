"""Useful and lost time are what was observed: each way of being wrong about them is found out."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest

from simulator.baselines import BASELINES
from simulator.checkers import CheckerSet, World
from simulator.running.accounting import Accounts
from simulator.running.engine import Engine
from simulator.world.cluster import Cluster
from simulator.world.facts import Stopped, Why
from simulator.world.physics import CHARGED, IDEAL, REAL, Physics
from simulator.world.progress import Checkpoints, Write
from simulator.world.work import Jobs
from tests.kits.cluster_kit import gang, inventory


class NothingLost(Cluster):
    """Every stop keeps all progress."""

    def _lost_s(self, _job: int, _now_s: float, _gain_s: float) -> float:
        return 0.0


class HalfLost(Cluster):
    """Every stop loses half of what it should."""

    def _lost_s(self, job: int, now_s: float, gain_s: float) -> float:
        return super()._lost_s(job, now_s, gain_s) / 2


class FaultsKeepAll(Cluster):
    """Work on a node that fails loses nothing."""

    def fail(self, job: int, now_s: float, *, final: bool = False) -> Any:
        usual, self._lost_s = self._lost_s, lambda *_: 0.0  # type: ignore[method-assign]
        refused = super().fail(job, now_s, final=final)
        self._lost_s = usual  # type: ignore[method-assign]
        return refused


class LosesOnResize(Cluster):
    """Says that a resize stands still for no time at all."""

    def resize(self, job: int, *rest: Any, **more: Any) -> Any:
        usual, self.physics = self.physics, replace(self.physics, resize_s=0.0)
        refused = super().resize(job, *rest, **more)
        self.physics = usual
        return refused


class FreeRestarts(Cluster):
    """Work that was stopped goes on at once."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        usual = self._startups.startup_s

        def startup_s(job: int, nodes: Any, *, again: bool) -> float:
            return 0.0 if again else usual(job, nodes, again=again)

        self._startups.startup_s = startup_s  # type: ignore[method-assign]


class CachedImages(Cluster):
    """No node ever pulls an image."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self._startups.pull = lambda job, nodes: bool(nodes) or job >= 0  # type: ignore[method-assign]


class WorksWhileLeaving(Cluster):
    """Progress goes on while the checkpoint is written."""

    def _halt_s(self, job: int, now_s: float) -> float:
        return min(now_s, self.stale.get(job, now_s))


class InstantSaves(Cluster):
    """A checkpoint is complete as soon as it is asked for."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.checkpoints = InstantWrites(self.jobs, self.physics)


class InstantWrites(Checkpoints):
    """See there."""

    def ask(self, job: int, now_s: float, within_s: float | None = None) -> Write:
        asked = super().ask(job, now_s, within_s)
        return asked if asked.done_s == float("inf") else Write(now_s + 1 / 1024, now_s + 1 / 1024)


class HidesWork(Cluster):
    """States a second less of progress than was made when work is stopped, and repeats it."""

    def _gain_s(self, job: int, now_s: float) -> float:
        return max(super()._gain_s(job, now_s) - 1.0, 0.0)


class LostIsUseful(Accounts):
    """Books what was lost as useful."""

    def _lose(self, *_: Any) -> None:
        """Nothing is taken off."""


class OverheadIsUseful(Accounts):
    """Books the start-up as useful."""

    def on_stopped(self, fact: Stopped) -> None:
        super().on_stopped(fact)
        share = self.shares[self._tenant[fact.job]]
        units = int((fact.ready_s - fact.start_s) * 1024) * fact.milli
        share.useful, share.overhead = share.useful + units, share.overhead - units


class LosesTwice(Accounts):
    """Books every loss twice."""

    def _lose(self, share: Any, kept: Any, fact: Stopped) -> None:
        super()._lose(share, [*kept], fact)
        super()._lose(share, kept, fact)


def _resize(cluster: Cluster, now_s: float) -> None:
    """Shrink every elastic gang that runs wide, and widen those that run narrow."""
    for job in list(cluster.holding):
        held = cluster.held[job]
        if held is not None and cluster.jobs.shape_of(job).min_gpus < len(held.gpus):
            cluster.resize(job, held.gpus[: cluster.jobs.shape_of(job).min_gpus], now_s)


def _fail(cluster: Cluster, node: int, now_s: float) -> None:
    cluster.fail_node(node, now_s)


def _run(physics: Physics, kind: type[Cluster] = Cluster, accounts: type[Accounts] = Accounts) -> list[str]:
    """What `conservation` says of a day with preemptions, elastic gangs that shrink and nodes that fail."""
    rng = np.random.default_rng(3)
    jobs = Jobs()
    for number in range(80):
        width = int(rng.choice([1, 2, 4, 8, 16]))
        jobs.add(
            f"j{number}",
            "ab"[number % 2],
            gang(width, min_gpus=max(width // 2, 1)),
            200.0 * number,
            float(rng.integers(600, 12_000)),
            kind="train",
            saves_on_request=number % 3 > 0,
        )
    cluster = kind(inventory(4, 8), jobs, physics)
    booked = accounts(cluster, max(jobs.submit_s))
    checkers = CheckerSet(World(cluster.inventory, jobs, physics=physics), ["conservation"])
    for observer in (booked, *checkers.checkers):
        cluster.observe(observer)
    engine = Engine(cluster, BASELINES["las"](), horizon_s=1e6)
    for at_s in range(1000, 16_000, 1500):
        engine.at(float(at_s), partial(_resize, cluster))
        if at_s % 4000 == 0:
            engine.at(float(at_s), partial(_fail, cluster, at_s // 4000 % 4))
            engine.at(at_s + 600.0, partial(cluster.restore_node, at_s // 4000 % 4))
    ran = engine.run()
    totals = booked.totals(ran.end_s)
    found = checkers.close(ran.end_s, totals.capacity, totals.idle, totals.by_tenant)
    assert booked.preemptions
    assert booked.resizes
    assert booked.faults
    return [violation.message for violation in found.violations]


@pytest.mark.parametrize("physics", [IDEAL, CHARGED, REAL], ids=lambda physics: physics.name)
def test_a_sound_run_violates_nothing(physics: Physics) -> None:
    """Preemptions, resizes and faults, under every physics."""
    assert _run(physics) == []


@pytest.mark.parametrize(
    ("kind", "physics", "words"),
    [
        (NothingLost, CHARGED, "lost 0 s of progress by its stop, not 60 s"),
        (NothingLost, REAL, "lost 0 s of progress"),
        (HalfLost, CHARGED, "lost 30 s of progress by its stop, not 60 s"),
        (FaultsKeepAll, CHARGED, "lost 0 s of progress"),
        (FreeRestarts, CHARGED, "was ready 0 s after its start, which takes 30 s"),
        (FreeRestarts, REAL, "was ready 0 s after its start"),
        (CachedImages, REAL, "after its start, which takes"),
        (LosesOnResize, CHARGED, "was ready 0 s after its start, which takes 30 s"),
        (LosesOnResize, REAL, "after its start, which takes"),
        (WorksWhileLeaving, REAL, "after its eviction"),
        (InstantSaves, REAL, "lost 0 s of progress"),
        (HidesWork, CHARGED, "made only"),
    ],
)
def test_a_cluster_that_lies_about_its_time_is_found_out(kind: type[Cluster], physics: Physics, words: str) -> None:
    """The checker follows the facts, and knows what things take."""
    assert any(words in message for message in _run(physics, kind))


@pytest.mark.parametrize(
    ("accounts", "words"),
    [
        (LostIsUseful, "booked as useful"),
        (OverheadIsUseful, "booked as useful"),
        (LosesTwice, "booked as lost"),
    ],
)
def test_accounts_that_lie_are_found_out(accounts: type[Accounts], words: str) -> None:
    """Each amount of each tenant is held against what was seen."""
    assert any(words in message for message in _run(CHARGED, accounts=accounts))


def test_only_what_goes_on_may_lose_earlier_work() -> None:
    """The reasons that the accounts and the checker take a stop to be followed by another start."""
    from simulator.checkers.conservation import GOES_ON
    from simulator.running.accounting import _GOES_ON

    assert set(GOES_ON) == set(_GOES_ON)
    assert Why.END not in GOES_ON
