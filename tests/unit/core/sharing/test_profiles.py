"""Lone profiles: what is learned of work alone, what never is, and how many are kept."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autopilot.core.hardware.dcgm import SIGNALS, Quality
from autopilot.core.model.kinds import kind_of
from autopilot.core.model.memory import ControllerMemory
from autopilot.core.model.memory.profiles import LoneProfile, ProfilesMemory
from autopilot.core.model.objects import Sharing
from autopilot.core.model.policy import Policy
from autopilot.core.model.signal_table import SignalTable
from autopilot.core.model.snapshot import ClusterSnapshot, State
from autopilot.core.sharing import follow
from autopilot.core.sharing.colocation import OLDEST_S
from autopilot.core.sharing.follow import LOOK_S, MOST_OF_OWNER, learned
from autopilot.records.journal.decisions import memory_bytes, read_memory
from autopilot.records.memory import memory_text, read_memory_text
from tests.kits.core_world import Item, holds, snapshot

NOW_S = 10_000.0
WORKS = {
    "sm_active_ratio": 0.3,
    "tensor_active_ratio": 0.1,
    "dram_active_ratio": 0.2,
    "duty_ratio": 0.6,
    "fb_used_mib": 30_000.0,
    "power_w": 200.0,
    "pcie_bytes_s": 1e8,
}


def measured(snap: ClusterSnapshot, gpus: dict[int, dict[str, float]] | None = None, **table: Any) -> ClusterSnapshot:
    """All GPUs work as `WORKS` says, but for the values named by row; the highest sample is a tenth higher."""
    count = len(snap.gpus.uuid) + len(snap.instances.id)
    mean = np.full((len(SIGNALS), 3, count), np.nan, np.float32)
    for row in range(count):
        for name, value in (WORKS | (gpus or {}).get(row, {})).items():
            mean[SIGNALS.index(name), :, row] = value
    columns: dict[str, Any] = {
        "samples": np.repeat(np.array([[2], [10], [60]], np.int32), count, axis=1),
        "age_s": np.full(count, 30.0, np.float32),
        "quality": np.full(count, Quality.SM_ACTIVE, np.int8),
        "maximum": mean * 1.1,
        **table,
    }
    return replace(snap, telemetry=SignalTable(SIGNALS, (60.0, LOOK_S, 1800.0), 0.0, mean, **columns))


def works(name: str, gpus: int = 1, on: Sequence[int] | None = None, **columns: Any) -> Item:
    """Running work under the name of its object."""
    item = holds(name, gpus, on, **columns)
    return replace(item, columns={"name": name, **item.columns})


def look(snap: ClusterSnapshot, now_s: float = NOW_S, known: ProfilesMemory | None = None) -> dict[str, LoneProfile]:
    """The profiles after a look, by name of the work."""
    kinds = learned(known or ProfilesMemory(), snap, now_s, Policy()).profiles
    return {kind.split("\n")[1]: each for found in kinds.values() for kind, each in found.items()}


CLEAN = "clean"
DEFECTS = (
    CLEAN, "shared", "assumed", "instance", "stale", "ahead", "no memory", "no activity", "impossible", "starting",
    "young", "leaving", "wide", "node shared", "two holders", "not measured",
)  # fmt: skip


@given(st.lists(st.sampled_from(DEFECTS), min_size=1, max_size=5))
@settings(max_examples=60, deadline=None)
def test_nothing_is_learned_but_from_trusted_telemetry_of_work_alone(defects: list[str]) -> None:
    """Work with any defect leaves no profile, and changes none of the others."""
    work, gpus, cuts = [], {}, {}
    for first, defect in enumerate(defects):
        name, own = f"w{chr(97 + first)}", dict[str, Any]()
        if defect == "starting":
            own = {"state": State.STARTING}
        if defect == "young":
            own = {"start_s": NOW_S - LOOK_S + 1.0}
        if defect == "leaving":
            own = {"state": State.CHECKPOINTING}
        if defect == "instance":
            cuts[first] = [("1g.10gb", 0)]
            work.append(works(name, 1, (len(cuts) - 1,), mig_profile=0))
        elif defect == "shared":
            work.append(works(name, 1, (first,), gpu_milli=500))
        else:
            work.append(works(name, 5 if defect == "wide" else 1, (first,), **own))
        if defect == "two holders":
            work.append(works(f"{name}-too", 1, (first,)))
        gpus[first] = {
            "no memory": {"fb_used_mib": math.nan},
            "no activity": {"sm_active_ratio": math.nan, "duty_ratio": math.nan},
            "impossible": {"dram_active_ratio": 80.0},
            "not measured": dict.fromkeys(WORKS, math.nan),
        }.get(defect, {})
    snap = measured(snapshot(f"{len(defects)}x1", work, cuts=cuts), gpus)
    for row, defect in enumerate(defects):
        snap.telemetry.age_s[row] = {"stale": 1e4, "ahead": -60.0}.get(defect, 30.0)
        snap.nodes.replicas[row] = 4 if defect == "node shared" else 1
        snap.placements.assumed[snap.placements.gpu == row] |= defect == "assumed"
    expected = {f"w{chr(97 + number)}" for number, defect in enumerate(defects) if defect == CLEAN}
    found = look(snap)
    assert found.keys() == expected
    for each in found.values():
        assert (each.sm_ratio, each.dram_ratio, each.duty_ratio) == pytest.approx((0.3, 0.2, 0.6))
        assert (each.power_ratio, each.peak_mib) == pytest.approx((0.5, 33_000.0))


@pytest.mark.parametrize(
    ("sharing", "beside", "left_s", "learns"),
    [
        (Sharing.TIME_SLICING, False, None, True),
        (Sharing.TIME_SLICING, True, None, False),
        (Sharing.TIME_SLICING, False, LOOK_S, False),  # telemetry of the neighbour is in the window still
        (Sharing.TIME_SLICING, False, 3 * LOOK_S, True),
        (Sharing.MPS, False, None, False),  # a client has a part of the threads
    ],
)
def test_work_alone_on_a_time_sliced_gpu_is_learned_from(
    sharing: Sharing, beside: bool, left_s: float | None, learns: bool
) -> None:
    """It has all of the GPU, once no neighbour was there during the window."""

    def view(*names: str) -> ClusterSnapshot:
        snap = measured(snapshot("1x1", [works(name, 1, (0,), start_s=0.0) for name in names]))
        snap.nodes.sharing[:], snap.nodes.replicas[:] = sharing, 4
        snap.placements.milli[:] = 250
        return snap

    known = ProfilesMemory()
    if left_s is not None:
        known = learned(known, view("a", "b"), NOW_S - left_s - 60.0, Policy())
        known = learned(known, view("a"), NOW_S - left_s, Policy())
    known = replace(known, look_s=NOW_S - LOOK_S, profiles={})
    assert ("a" in look(view("a", "b") if beside else view("a"), known=known)) is learns
    missed = replace(known, look_s=NOW_S - 3.0 * LOOK_S)
    assert not look(view("a"), known=missed)  # it is not known who was there


def test_a_coarser_counter_is_no_activity_of_the_sms() -> None:
    """Where the engine's time stands in for it, the duty is known and the SM activity is not."""
    snap = snapshot("1x1", [works("a")])
    found = look(measured(snap, quality=np.full(1, Quality.GR_ENGINE, np.int8)))["a"]
    assert math.isnan(found.sm_ratio)
    assert found.duty_ratio == pytest.approx(0.6)


def test_means_peaks_and_times_follow_the_looks() -> None:
    """One look in five minutes, whatever ticks come; peaks never fall, and a lost signal leaves its mean."""
    snap = snapshot("1x2", [works("a-17"), works("a-18")])
    known = learned(ProfilesMemory(), measured(snap), NOW_S, Policy())
    assert learned(known, measured(snap), NOW_S + LOOK_S / 3, Policy()) is known
    after = {0: {"sm_active_ratio": 0.5, "fb_used_mib": 20_000.0, "duty_ratio": math.nan}}
    after[1] = after[0]
    found = look(measured(snap, after), NOW_S + LOOK_S, known)
    assert found.keys() == {"a-#"}
    assert (found["a-#"].sm_ratio, found["a-#"].duty_ratio) == pytest.approx((0.4, 0.6))
    assert (found["a-#"].peak_mib, found["a-#"].alone_s) == pytest.approx((33_000.0, 2 * LOOK_S))
    later = NOW_S + OLDEST_S + 2 * LOOK_S
    assert look(snap, later, known)  # without telemetry there is no look
    assert look(measured(replace_state(snap, 0)), later, known) == {}


def test_generated_names_push_out_those_of_their_owner_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """And the whole is bounded: the least recently seen go first."""
    names = [f"run-{chr(97 + n // 26)}{chr(97 + n % 26)}" for n in range(MOST_OF_OWNER + 20)]
    mine: list[Item] = [works(name, user="gen") for name in names]
    snap = measured(snapshot(f"{len(mine) + 1}x1", [works("old", user="ann"), *mine]))
    before = learned(ProfilesMemory(), replace_state(snap, 1), NOW_S, Policy())
    found = look(snap, NOW_S + LOOK_S, before)
    assert len(found) == MOST_OF_OWNER + 1
    assert "old" in found
    monkeypatch.setattr(follow, "MOST_PROFILES", 10)
    gone = learned(before, replace_state(snap, 1, others=True), NOW_S + LOOK_S, Policy())
    assert "old" not in {kind.split("\n")[1] for kinds in gone.profiles.values() for kind in kinds}


def replace_state(snap: ClusterSnapshot, until: int, *, others: bool = False) -> ClusterSnapshot:
    """Only the first `until` works run, or with `others` only those after them."""
    state = snap.workloads.state.copy()
    state[slice(0, until) if others else slice(until, None)] = State.STARTING
    return replace(snap, workloads=replace(snap.workloads, state=state))


def test_images_owners_and_models_are_kinds_of_their_own() -> None:
    """A name says nothing about another image, user or tenant."""
    snap = snapshot("1x4", [works(name, user=user) for name, user in zip("abcd", "uuvv", strict=True)])
    snap = replace(snap, workloads=replace(snap.workloads, name=np.array(["n"] * 4, object)))
    images = np.array(["x", "y", "x", "x"], object)
    snap = replace(snap, workloads=replace(snap.workloads, image=images, tenant=np.array([0, 0, 0, 1], np.int32)))
    assert len({kind_of(snap, row) for row in range(4)}) == 4


def test_a_memory_keeps_profiles_and_reads_what_had_none() -> None:
    """By file and by journal; a memory of schema 3 begins without, and keeps its bytes."""
    known = {"A100-80GB": {"t/u\nn\n": LoneProfile(1.0, 2.0, 3.0, sm_ratio=0.5)}}
    memory = replace(ControllerMemory(), profiles=ProfilesMemory(known, 9.0))
    text = memory_text(memory)
    for again in (read_memory_text(text, "m"), read_memory(memory_bytes(memory))):
        assert repr(again.profiles) == repr(memory.profiles)
    body = json.loads(text)["memory"]
    del body["profiles"]
    old = read_memory(msgspec.msgpack.encode(body | {"schema": 3}))
    assert old.profiles == ProfilesMemory()
    assert memory_bytes(old) == memory_bytes(replace(memory, schema=3))


def test_the_pace_alone_is_kept_with_its_spread() -> None:
    """Work that holds also a shared GPU has none; a kind whose works differ has a wide spread; silence keeps it."""
    both = works("b", 2, (2, 3))
    snap = measured(snapshot("5x1", [works("a1", 1, (0,)), works("a2", 1, (1,)), both, works("c", 1, (4,))]))
    snap.workloads.steps_per_s[:] = [2.0, 3.0, 4.0, np.nan]
    snap.nodes.replicas[3] = 2
    found = look(snap)
    assert (found["a#"].steps_hz, found["a#"].steps_spread_ratio) == (2.5, 0.2)
    assert math.isnan(found["b"].steps_hz)
    assert math.isnan(found["c"].steps_hz)
    known = learned(ProfilesMemory(), snap, NOW_S, Policy())
    snap.workloads.steps_per_s[:] = np.nan
    assert look(snap, NOW_S + LOOK_S, known)["a#"].steps_hz == 2.5
    snap.workloads.steps_per_s[:2] = 3.5
    again = look(snap, NOW_S + LOOK_S, known)["a#"]
    assert again.steps_hz == 3.0
    assert again.steps_spread_ratio == pytest.approx(math.sqrt(0.5 * (0.04 + 0.5 * 0.16)), abs=1e-4)
