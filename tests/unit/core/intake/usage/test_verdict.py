"""Whether GPUs and the work on them are idle: what counts as activity, what is unknown, and what is weak evidence."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from autopilot.core.hardware.dcgm import SIGNALS, Quality
from autopilot.core.intake.usage.activity import Activity, entity_activity, work_activity
from autopilot.core.model.policy import Policy
from autopilot.core.model.snapshot import ClusterSnapshot, State
from tests.kits.core_world import holds, snapshot
from tests.kits.idle_world import NOW_S, measured


def verdicts(snap: ClusterSnapshot, now_s: float = NOW_S) -> list[int]:
    """The verdict on each workload."""
    found: list[int] = work_activity(snap, entity_activity(snap, Policy()), now_s).activity.tolist()
    return found


ONE = [holds("a", 1, start_s=0.0)]


@pytest.mark.parametrize(
    ("signals", "found"),
    [
        pytest.param({}, Activity.IDLE, id="loaded, no work"),
        pytest.param({"sm_active_ratio": 0.03}, Activity.IDLE, id="a kernel that keeps it warm"),
        pytest.param({"sm_active_ratio": 0.06}, Activity.BUSY, id="light work"),
        pytest.param({"sm_active_ratio": 0.01, "dram_active_ratio": 0.06}, Activity.BUSY, id="bound by memory"),
        pytest.param({"tensor_active_ratio": 0.002}, Activity.BUSY, id="tensor cores"),
        pytest.param({"pcie_bytes_s": 2e8}, Activity.BUSY, id="loading data"),
        pytest.param({"nvlink_bytes_s": 1e9}, Activity.BUSY, id="in a collective"),
        pytest.param({"sm_active_ratio": 0.995, "power_w": 200.0}, Activity.BUSY, id="spinning"),
        pytest.param({"power_w": 180.0}, Activity.BUSY, id="power contradicts the counters"),
        pytest.param({"sm_active_ratio": np.nan}, Activity.UNKNOWN, id="no SM activity"),
        pytest.param({"dram_active_ratio": np.nan}, Activity.ESTIMATED, id="no DRAM activity"),
        pytest.param({"power_w": np.nan}, Activity.ESTIMATED, id="no power"),
        pytest.param({"fb_used_mib": np.nan}, Activity.UNKNOWN, id="no memory"),
    ],
)
def test_idle_takes_every_signal(signals: dict[str, float], found: Activity) -> None:
    """One busy signal is enough to be busy; a missing one is unknown or weak, never idle."""
    assert verdicts(measured(snapshot("1x8", ONE), {0: signals})) == [found]


@pytest.mark.parametrize(
    ("lacking", "found"),
    [
        (("video_ratio",), Activity.IDLE),
        (("video_ratio", "sm_occupancy_ratio"), Activity.IDLE),
        (("power_w",), Activity.ESTIMATED),
        (("tensor_active_ratio", "dram_active_ratio"), Activity.ESTIMATED),
        (("fb_used_mib",), Activity.UNKNOWN),
        (("sm_active_ratio",), Activity.UNKNOWN),
        (SIGNALS, Activity.UNKNOWN),
    ],
)
def test_a_recording_with_fewer_signals_is_judged_by_those_it_has(lacking: tuple[str, ...], found: Activity) -> None:
    """In whatever order they stand: a signal that is not there is one that is not measured."""
    full = measured(snapshot("1x8", ONE), {})
    kept = [row for row in reversed(range(len(SIGNALS))) if SIGNALS[row] not in lacking]
    names = tuple(SIGNALS[row] for row in kept)
    table = replace(full.telemetry, signals=names, mean=full.telemetry.mean[kept], maximum=full.telemetry.maximum[kept])
    assert verdicts(replace(full, telemetry=table)) == [found]


@pytest.mark.parametrize(
    ("table", "found"),
    [
        pytest.param({"age_s": np.full(8, 900.0, np.float32)}, Activity.UNKNOWN, id="stale"),
        pytest.param({"age_s": np.full(8, -900.0, np.float32)}, Activity.UNKNOWN, id="from the future"),
        pytest.param({"samples": np.array([[2] * 8, [50] * 8], np.int32)}, Activity.UNKNOWN, id="blackout"),
        pytest.param({"quality": np.full(8, Quality.GPU_UTIL, np.int8)}, Activity.ESTIMATED, id="duty cycle only"),
    ],
)
def test_it_takes_a_whole_fresh_window_of_good_counters(table: dict[str, Any], found: Activity) -> None:
    """Unknown is not idle, and a duty cycle says less."""
    assert verdicts(measured(snapshot("1x8", ONE), {}, **table)) == [found]


def test_an_exporter_that_repeats_itself_is_not_believed() -> None:
    """The power of a real board moves from sample to sample."""
    snap = measured(snapshot("1x8", ONE), {})
    stuck = replace(snap, telemetry=replace(snap.telemetry, maximum=snap.telemetry.mean))
    assert verdicts(stuck) == [Activity.UNKNOWN]


@pytest.mark.parametrize(
    "columns",
    [
        pytest.param({"state": State.STARTING}, id="starting"),
        pytest.param({"state": State.CHECKPOINTING}, id="saving to leave"),
        pytest.param({"start_s": 9_000.0}, id="younger than the window"),
        pytest.param({"runs_since_s": 0.0, "start_s": 9_000.0}, id="resized within the window"),
        pytest.param({"stale_since_s": 9_000.0}, id="waiting for a member of its gang"),
        pytest.param({"last_checkpoint_s": NOW_S + 10.0}, id="writing a checkpoint"),
    ],
)
def test_who_is_not_judged(columns: dict[str, Any]) -> None:
    """Low activity has a reason other than a forgotten job."""
    columns = {"start_s": 0.0, **columns}
    assert verdicts(measured(snapshot("1x8", [holds("a", 1, **columns)]), {})) == [Activity.UNKNOWN]


def test_a_gang_is_idle_as_a_whole_and_its_idle_part_is_counted() -> None:
    """One busy GPU makes it busy, one unknown GPU unknown; the other GPUs are idle all the same."""
    snap = snapshot("2x8", [holds("a", 8, start_s=0.0), holds("b", 8, start_s=0.0)])
    snap = measured(snap, {0: {"sm_active_ratio": 0.9, "power_w": 350.0}, 8: {"sm_active_ratio": np.nan}})
    found = work_activity(snap, entity_activity(snap, Policy()), NOW_S)
    assert found.activity.tolist() == [Activity.BUSY, Activity.UNKNOWN]
    assert (found.held_gpus.tolist(), found.idle_gpus.tolist()) == ([8.0, 8.0], [7.0, 7.0])


def test_a_shared_gpu_is_weak_evidence() -> None:
    """Counters cannot tell the workloads on it apart."""
    snap = snapshot(
        "1x8", [holds("a", 1, [0], gpu_milli=500, start_s=0.0), holds("b", 1, [0], gpu_milli=500, start_s=0.0)]
    )
    assert verdicts(measured(snap, {})) == [Activity.ESTIMATED, Activity.ESTIMATED]


@pytest.mark.parametrize(
    ("holders", "busy", "found"),
    [
        ("ab", True, [Activity.UNKNOWN, Activity.UNKNOWN]),
        ("ab", False, [Activity.ESTIMATED, Activity.ESTIMATED]),
        ("a", True, [Activity.BUSY]),
    ],
)
def test_the_activity_of_a_shared_gpu_is_that_of_no_sharer(holders: str, busy: bool, found: list[Activity]) -> None:
    """DCGM copies it to each of them, also where they requested whole GPUs; alone on its share work is at work."""
    snap = snapshot("1x8", [holds(name, 1, [0], start_s=0.0) for name in holders])
    snap = replace(snap, placements=replace(snap.placements, milli=np.full(len(holders), 500, np.int32)))
    assert verdicts(measured(snap, {0: {"sm_active_ratio": 0.9, "power_w": 350.0}} if busy else {})) == found


def test_without_telemetry_nothing_is_known() -> None:
    """An empty table is no evidence."""
    assert verdicts(snapshot("1x8", ONE)) == [Activity.UNKNOWN]
