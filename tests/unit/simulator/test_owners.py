"""Owners of interactive work: they leave, come back to parked work, and give it up."""

from __future__ import annotations

from math import inf
from typing import Any

import pytest

from autopilot.core.model.snapshot import State
from simulator.outcome.idle_use import idle_use
from simulator.running import owners as module
from simulator.running.engine import Engine
from simulator.running.owners import Absence, Owners, Suspension
from simulator.world.cluster import Cluster
from simulator.world.facts import Started
from simulator.world.physics import IDEAL, REAL, Physics
from tests.kits.cluster_kit import inventory, make_jobs


class Parker:
    """Starts everything that waits, and parks job 0 at the given times."""

    name = "parker"

    def __init__(self, parks_s: list[float]) -> None:
        self.parks_s = parks_s
        self.changes_s: list[float] = []

    def attach(self, cluster: Cluster) -> None:
        self.cluster = cluster

    def on_submit(self, job: int, now_s: float) -> None:
        pass

    on_end = on_requeue = on_submit

    def on_change(self, now_s: float) -> None:
        self.changes_s.append(now_s)

    def decide(self, now_s: float) -> float | None:
        for job in list(self.cluster.pending):
            self.cluster.start(job, [job], now_s)
        while self.parks_s and self.parks_s[0] <= now_s:
            self.parks_s.pop(0)
            assert self.cluster.evict(0, now_s, park=True) is None
        return self.parks_s[0] if self.parks_s else None


def played(
    monkeypatch: pytest.MonkeyPatch,
    gone: list[tuple[float, float]],
    parks_s: list[float],
    physics: Physics = IDEAL,
    **job: Any,
) -> tuple[Cluster, Owners, list[float]]:
    """A run of one interactive job whose owner leaves as given; its cluster, its owners, and its starts."""
    monkeypatch.setattr(module, "absences", lambda *_: tuple(gone))
    cluster = Cluster(inventory(), make_jobs([(0, 10_000, 1)], kind="intermittent", **job), physics)
    starts: list[float] = []
    cluster.hooks[Started].append(lambda fact: starts.append(fact.at_s))
    parker = Parker(parks_s)
    engine = Engine(cluster, parker)
    owners = Owners(cluster, seed=1)
    owners.arm(engine)
    engine.run()
    left_s = [each.from_s for each in owners.suspensions]
    assert set(left_s) <= set(parker.changes_s)  # the scheduler is called when the GPUs are free
    return cluster, owners, starts


def test_parked_work_waits_until_its_owner_is_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing else starts it, and it is not lost."""
    cluster, owners, starts = played(monkeypatch, [(1000.0, 5000.0)], [3000.0])
    assert starts == [0.0, 5000.0]
    assert owners.suspensions == [Suspension(0, 3000.0, 5000.0, returned=True)]
    assert (cluster.state[0], cluster.end_s[0]) == (State.SUCCEEDED, 12_000.0)


def test_an_owner_who_returns_while_his_work_saves_finds_it_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """The eviction is under way when he comes back: the work is parked afterwards, and goes on at once."""
    cluster, owners, starts = played(
        monkeypatch,
        [(1000.0, 3005.0)],
        [3000.0],
        REAL,
        saves_on_request=True,
        checkpoint_interval_s=600.0,
        checkpoint_gib=20.0,
    )
    [suspension] = owners.suspensions
    assert 3005.0 < suspension.from_s == suspension.to_s == starts[1]
    assert (suspension.returned, cluster.state[0]) == (True, State.SUCCEEDED)


def test_an_owner_who_was_never_away_returns_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wrongly parked work counts as the earliest of returns."""
    _, owners, _ = played(monkeypatch, [], [3000.0])
    assert owners.suspensions == [Suspension(0, 3000.0, 3000.0, returned=True)]


@pytest.mark.parametrize("park_s", [3000.0])
def test_an_owner_who_never_returns_gives_parked_work_up(monkeypatch: pytest.MonkeyPatch, park_s: float) -> None:
    """After the run time of the job it is withdrawn, and the run ends."""
    cluster, owners, starts = played(monkeypatch, [(1000.0, inf)], [park_s])
    assert starts == [0.0]
    assert owners.suspensions == [Suspension(0, park_s, 10_000.0, returned=False)]
    assert (cluster.state[0], cluster.end_s[0]) == (State.SUCCEEDED, 10_000.0)


def test_only_what_others_used_was_returned() -> None:
    """Free GPUs of the cluster are counted as those of suspended work first."""
    absences = [Absence(0, 100.0, 500.0), Absence(1, 0.0, inf)]
    suspensions = [Suspension(0, 200.0, 500.0, returned=True), Suspension(1, 600.0)]
    stays = [(0, 0.0, 200.0, 4.0), (0, 510.0, 900.0, 4.0), (1, 0.0, 600.0, 2.0), (2, 300.0, 800.0, 3.0)]
    found = idle_use(absences, suspensions, stays, 6.0, 1000.0)
    assert found.held_gpu_s == 100 * 4 + 600 * 2
    assert found.freed_gpu_s == 300 * 4 + 400 * 2
    # 200-300: 2 of 6 in use, 4 free; 300-500: 3 of 4 used; 600-800: 7 of 6 in use (a resize), 2 used; later: none
    assert found.returned_gpu_s == 200 * 3 + 200 * 2
    assert (found.suspensions, found.early_returns, found.returned_wait_s) == (2, 1, 10.0)
    assert found.returned_ratio == found.returned_gpu_s / (found.held_gpu_s + found.freed_gpu_s)
