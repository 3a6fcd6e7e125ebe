"""The forecaster of interference: from snapshots of a node to records of who slowed down whom."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from autopilot.core.model.forecast import Forecasts
from autopilot.core.model.latencies import ReplicaLatency
from autopilot.core.model.neighbours import Measure, Nearness
from autopilot.core.model.snapshot import ClusterSnapshot, empty
from models.interference import Interferences
from tests.kits.core_world import Item, holds, snapshot

CAME = 40
NOISE = np.random.default_rng(3).normal(0.0, 0.05, (6, 300))
REPLICAS = tuple(holds(f"web/{at}", 1, on=(at,), service=0) for at in range(4))


def seen(minute: int, items: tuple[Item, ...], slower: dict[str, float], first_s: float = 0.0) -> ClusterSnapshot:
    """The cluster at the end of a minute: replicas with latencies, or work with a pace, some slower by a factor."""
    found = snapshot("1x8", list(items))
    names = found.workloads.id.tolist()
    factor = [math.log(slower.get(each, 1.0)) for each in names]
    level = np.array([0.5 + factor[at] + NOISE[at % 6, minute] for at in range(len(names))])
    paced = np.isfinite(found.workloads.steps_per_s)
    found.workloads.steps_per_s[:] = np.where(paced, np.exp(-level), np.nan)
    rows = [at for at, each in enumerate(names) if each.startswith("web/")]
    if not rows:
        return found
    columns: dict[str, Any] = {"id": found.workloads.id[rows], "mean_log_s": level[rows]}
    columns |= {"minute_s": np.full(len(rows), first_s + 60.0 * minute), "requests": np.full(len(rows), 120.0)}
    columns |= {"buckets": np.ones(len(rows), np.int64), "age_s": np.zeros(len(rows))}
    return replace(found, latencies=ReplicaLatency(**columns))


def after(
    items: tuple[Item, ...], newcomer: Item, slower: dict[str, float], minutes: int = CAME + 18, gone: int = 1000
) -> Forecasts:
    """What is forecast after a newcomer, who leaves at minute `gone`."""
    watcher, found = Interferences(), Forecasts()
    for minute in range(minutes):
        there = (*items, newcomer) if CAME <= minute < gone else items
        shot = seen(minute, there, slower if CAME <= minute < gone else {})
        for tick_s in (60.0, 75.0):
            watcher.update(60.0 * minute + tick_s, shot)
            found = watcher.forecast(60.0 * minute + tick_s, shot)
    return found


@pytest.mark.parametrize(("gpu", "nearness"), [(0, Nearness.GPU), (2, Nearness.NUMA), (7, Nearness.NODE)])
def test_a_replica_names_who_came_and_what_they_share(gpu: int, nearness: Nearness) -> None:
    """On its GPU, its half of the node, or its node; what is never slower names nobody."""
    newcomer = holds("batch/job", 1, on=(gpu,))
    (found,) = (
        after(REPLICAS[:3], newcomer, {"web/0": 1.6}).interference
        if gpu != 2
        else after((REPLICAS[0], REPLICAS[1], REPLICAS[3]), newcomer, {"web/0": 1.6}).interference
    )
    assert (found.victim, found.suspect, found.nearness) == ("web/0", "batch/job", nearness)
    assert (found.measure, found.suspect_uid) == (Measure.LATENCY, "batch/job")
    assert found.rise_ratio == pytest.approx(1.6, abs=0.1)
    assert found.now_ratio == pytest.approx(1.6, abs=0.15)
    assert found.arrived_s == 60.0 * CAME
    assert not after(REPLICAS, newcomer, {}).interference


def test_a_record_ends_when_its_suspect_is_gone() -> None:
    """What it did is over, whatever the level is then."""
    newcomer = holds("batch/job", 1, on=(7,))
    assert not after(REPLICAS, newcomer, {"web/0": 1.6}, CAME + 30, gone=CAME + 24).interference


def test_a_gang_whose_pace_falls_when_a_neighbour_comes_is_a_victim_too() -> None:
    """By its steps per second; one that does not report them is not judged."""
    gang = (holds("train", 4, on=(0, 1, 2, 3), steps_per_s=1.0),)
    newcomer = holds("loader", 2, on=(6, 7))
    (found,) = after(gang, newcomer, {"train": 1.5}).interference
    assert (found.victim, found.measure, found.against) == ("train", Measure.RATE, "load")
    assert found.rise_ratio == pytest.approx(1.5, abs=0.1)
    assert not after((holds("quiet", 4, on=(0, 1, 2, 3)),), newcomer, {"quiet": 1.5}).interference


def test_a_clock_that_jumps_and_a_restart_are_abstained_from() -> None:
    """Histories are forgotten; what is there is no arrival, and one that comes soon after is not judged."""
    newcomer = holds("batch/job", 1, on=(7,))
    watcher = Interferences()
    for minute in range(CAME + 18):
        items = (*REPLICAS, newcomer) if minute >= CAME else REPLICAS
        jump_s = 0.0 if minute < CAME - 2 else 86_400.0
        shot = seen(minute, items, {"web/0": 1.6} if minute >= CAME else {}, jump_s)
        watcher.update(60.0 * minute + 60.0 + jump_s, shot)
        found = watcher.forecast(0.0, shot)
    assert not found.interference
    assert {(each.victim, each.reason) for each in found.unjudged} == {(f"web/{at}", "clock") for at in range(4)}
    empty_world = replace(shot, latencies=empty(ReplicaLatency))
    assert not Interferences().forecast(0.0, empty_world).unjudged


def test_a_replica_that_starts_again_is_followed_in_its_new_row() -> None:
    """Its old minutes are not its new ones, and what it reports goes to it and to no other."""
    watcher = Interferences()
    for minute in range(30):
        gone = 10 <= minute < 12
        shot = seen(minute, REPLICAS[1:] if gone else REPLICAS, {"web/0": 3.0})
        watcher.update(60.0 * minute + 60.0, shot)
    rows = {each.id: each.row for each in watcher._victims.values()}
    assert len(set(rows.values())) == 4
    levels = np.exp(watcher._watch.level[:, 29])
    assert levels[rows["web/0"]] / levels[rows["web/1"]] == pytest.approx(3.0, rel=0.3)
    assert np.isnan(watcher._watch.level[rows["web/0"], :12]).all()
