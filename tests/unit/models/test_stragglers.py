"""Members that hold up their gang are named with their evidence; healthy gangs, and doubtful ones, never."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import nan
from typing import Any

import numpy as np
import pytest

from autopilot.core.model.neighbours import Straggler
from autopilot.core.model.ranks import RankTable
from autopilot.core.model.signal_table import SignalTable
from autopilot.core.model.snapshot import make
from benchmarks.straggler_days import joined
from models import stragglers
from models.members import Gangs, Members, members_of
from models.stragglers import SURE, Stragglers
from tests.kits.core_world import holds, snapshot

RNG = np.random.default_rng(3)
SLOW = 5
"""The member with a fault; members 0 to 3 are stage 0, 4 to 7 stage 1."""


def gang(uid: str = "g", gpus: int = 8, **columns: Any) -> Members:
    """Members in two stages, alike but for noise; a column of one number is that of member SLOW alone."""
    plain: dict[str, Any] = {
        "rank": np.arange(gpus, dtype=np.int32),
        "stage": np.arange(gpus, dtype=np.int32) // 4,
        "busy_s": 1.0 + RNG.normal(0.0, 0.008, gpus),
        "tensor": 0.4 + RNG.normal(0.0, 0.004, gpus),
        "sm": 0.7 + RNG.normal(0.0, 0.004, gpus),
        "clock_mhz": np.full(gpus, 1755.0),
        "thermal": np.zeros(gpus),
        "brake": np.zeros(gpus),
        "pcie_width": np.full(gpus, 16.0),
        "xid": np.zeros(gpus, np.int32),
        "remap": np.zeros(gpus, np.int8),
    }
    for name, value in columns.items():
        if np.ndim(value):
            plain[name] = np.asarray(value, plain[name].dtype)
        else:
            plain[name][SLOW] = value
    names = np.array([f"GPU-{row}" for row in range(gpus)], object)
    nodes = np.array([f"n{row // 4}" for row in range(gpus)], object)
    one = np.array([f"team/{uid}"], object), np.array([uid], object)
    return Members(
        Gangs(*one, np.zeros(1, np.int32), np.array([gpus], np.int32), np.array([nan])),
        np.zeros(gpus, np.int64),
        nodes,
        names,
        **plain,
    )


def watched(*minutes: tuple[int, Mapping[str, Any]], model: Stragglers | None = None, **same: Any) -> Stragglers:
    """A detector after these minutes of each kind, one kind after another."""
    model, now = model or Stragglers(), 0
    for count, columns in minutes:
        for _ in range(count):
            model.take(60.0 * now, gang(**{**same, **columns}))
            now += 1
    return model


def evidence(found: tuple[Straggler, ...]) -> tuple[str, ...]:
    """The codes of the only verdict; () without one."""
    assert len(found) <= 1, found
    return found[0].evidence if found else ()


UNNUMBERED = {"stage": [-1] * 8}
SILENT = {"busy_s": [nan] * 8}
STAGES = {"busy_s": [1.0] * 4 + [1.6] * 4, "tensor": [0.3] * 4 + [0.48] * 4, "sm": [0.4] * 4 + [0.64] * 4}
BUSY = {"tensor": 0.5, "sm": 0.8}


CASES: list[tuple[list[tuple[int, Mapping[str, Any]]], tuple[str, ...]]] = [
    ([(40, {})], ()),
    ([(40, STAGES)], ()),  # by design
    ([(20, {"busy_s": 1.2, "clock_mhz": 1400.0})], ("step-time", "clocks")),
    ([(20, {"busy_s": 1.2, **BUSY, "thermal": 0.5})], ("step-time", "waits", "thermal")),
    ([(20, {**SILENT, **BUSY, "brake": 0.5})], ("waits", "power-brake")),
    ([(20, {"busy_s": 1.1, "pcie_width": 8.0})], ("step-time", "pcie-width")),
    ([(20, {"busy_s": 1.1, "remap": 1, "xid": 63})], ("step-time", "xid", "remap")),
    ([(20, {"busy_s": 1.3})], ("step-time",)),
    ([(20, {"busy_s": 1.1})], ()),  # its work may just be larger
    ([(40, {}), (20, {"busy_s": 1.1})], ("step-time",)),  # it was not from the start
    ([(40, {}), (20, {"busy_s": 1.1, "tensor": 0.44, "sm": 0.77})], ("step-time", "waits")),
    ([(20, {**SILENT, **BUSY})], ()),  # the activity alone, without a cause
    ([(20, {"thermal": 0.9, "clock_mhz": 1600.0, "xid": 63})], ()),  # throttled, and not slow
    ([(20, {**SILENT, "tensor": 0.5, "thermal": 0.5})], ()),  # its SMs do not agree
    ([(30, {}), (8, {"busy_s": 1.4}), (10, {})], ()),  # some minutes of slow storage
    ([(40, {**STAGES, **UNNUMBERED})], ()),
    ([(20, {"busy_s": 1.3, "clock_mhz": 1400.0, **UNNUMBERED})], ()),
    (
        [(40, STAGES | UNNUMBERED), (20, STAGES | UNNUMBERED | {"busy_s": [1.0] * 4 + [1.6, 1.9, 1.6, 1.6]})],
        ("step-time",),
    ),
    ([(20, {"busy_s": [1.0, 1.0, 1.0, 1.0, 1.3, 1.3, 1.0, 1.0], "clock_mhz": 1400.0})], ()),  # unequal by design
    ([(9, {"busy_s": 1.5, "clock_mhz": 1400.0})], ()),
]


@pytest.mark.parametrize(("minutes", "expected"), CASES)
def test_a_slow_member_is_named_by_what_it_shows(
    minutes: list[tuple[int, Mapping[str, Any]]], expected: tuple[str, ...]
) -> None:
    """Each kind of evidence has its code; a difference of stages, a short fault and one counter are no verdict."""
    found = watched(*minutes).verdicts()
    assert evidence(found) == expected
    for each in found:
        assert (each.gang_uid, each.node, each.gpu, each.rank) == ("g", "n1", f"GPU-{SLOW}", SLOW)
        assert (each.confidence >= SURE) == (len(expected) > 1)
        assert 1.08 <= each.slow_ratio < 1.35
        assert each.cost_gpu_s_per_h > 0


@pytest.mark.parametrize(
    ("minutes", "reason"),
    [
        ([(5, {})], stragglers.SHORT),
        ([(20, UNNUMBERED)], stragglers.STAGES),
        ([(20, {**SILENT, "tensor": nan, "sm": nan})], stragglers.SILENT),
        ([(20, {"busy_s": [1.0, 1.0, 1.0, 1.0, 1.3, 1.3, 1.0, 1.0]})], stragglers.UNEQUAL),
    ],
)
def test_a_gang_that_is_not_judged_has_a_reason(minutes: list[tuple[int, Mapping[str, Any]]], reason: str) -> None:
    """Young gangs, unknown stages, a member without signals, and members that differ in numbers."""
    model = watched(*minutes)
    assert [each.reason for each in model.unjudged] == [reason]
    assert reason in stragglers.REASONS
    assert not model.verdicts()


def test_histories_begin_anew_with_another_gang_width_or_clock() -> None:
    """A resized gang, a restarted one and a jump of the clock leave nothing of before; a rename changes nothing."""
    slow: dict[str, Any] = {"busy_s": 1.3, "clock_mhz": 1400.0}
    model = watched((20, slow))
    assert model.verdicts()
    renamed = gang(**slow)
    model.take(1200.0, replace(renamed, gangs=replace(renamed.gangs, id=np.array(["team/other"], object))))
    assert [each.gang for each in model.verdicts()] == ["team/other"]
    model.take(1260.0, gang(gpus=12, **slow))
    assert not model.verdicts()
    assert [each.reason for each in model.unjudged] == [stragglers.SHORT]
    snap = snapshot("2x8", [])
    for now_s in (1200.0, 600.0, 1500.0):  # back, and a gap
        model = watched((20, slow))
        model.update(1140.0, snap)
        model = watched((20, slow), model=model)
        model.update(now_s, snap)
        assert not model.verdicts(), now_s


def test_a_gpu_slow_in_two_gangs_is_a_suspect() -> None:
    """One gang after another on the same GPU; a verdict keeps the time at which it was found."""
    slow: dict[str, Any] = {"busy_s": 1.3, "clock_mhz": 1400.0}
    model = watched((30, slow), uid="a")
    assert [each.found_s for each in model.verdicts()] == [11 * 60.0]
    assert not model.forecast(0.0, snapshot("1x8", [])).slow_gpus
    suspects = watched((20, slow), model=model, uid="b").forecast(0.0, snapshot("1x8", [])).slow_gpus
    assert [(each.gpu, each.node, each.gangs) for each in suspects] == [(f"GPU-{SLOW}", "n1", 2)]


def test_gangs_do_not_mix() -> None:
    """A slow member of one gang is compared with its own gang alone, whatever its neighbours in the table do."""
    model = Stragglers()
    for minute in range(20):
        model.take(60.0 * minute, joined([gang("a"), gang("b", busy_s=1.3, xid=63), gang("c", busy_s=[4.0] * 8)]))
    assert [(each.gang_uid, each.gpu) for each in model.verdicts()] == [("b", f"GPU-{SLOW}")]


def test_members_are_read_from_a_snapshot() -> None:
    """Whole gangs of batch work on known GPUs; reports join by GPU; old telemetry is unknown."""
    items = [holds("g", 4), holds("one", 1), holds("serves", 2, slo_class=0), holds("short", 2)]
    snap = snapshot("2x8", items)
    snap.workloads.gpus[3] = 4  # two of its members are not seen
    uuids = snap.gpus.uuid
    count = len(uuids)
    mean = np.full((2, 2, count), 0.5, np.float32)
    age_s = np.where(np.arange(count) == 1, 500.0, 5.0).astype(np.float32)
    names, samples, quality = (
        ("tensor_active_ratio", "sm_clock_mhz"),
        np.ones((2, count), np.int32),
        np.zeros(count, np.int8),
    )
    table = SignalTable(names, (60.0, 300.0), 0.0, mean, mean, samples, age_s, quality)
    told: RankTable = make(RankTable, id=uuids[[2]], rank=[7], stage=[1], busy_s=[0.4])
    found = members_of(replace(snap, telemetry=table, ranks=told))
    assert found.gangs.id.tolist() == ["g"]
    assert found.gpu.tolist() == uuids[:4].tolist()
    assert found.rank.tolist() == [-1, -1, 7, -1]
    assert found.stage.tolist() == [-1, -1, 1, -1]
    assert found.busy_s.tolist() == pytest.approx([nan, nan, 0.4, nan], nan_ok=True)
    assert found.tensor.tolist() == pytest.approx([0.5, nan, 0.5, 0.5], nan_ok=True)
    assert np.isnan(found.thermal).all()
