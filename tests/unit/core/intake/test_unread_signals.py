"""A signal that nothing reads is one gap for each thing that the policy in force cannot do without it."""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np
import pytest

from autopilot.core.hardware import dcgm
from autopilot.core.hardware.xid_facts import REMAP_NONE, REMAP_UNKNOWN, UNKNOWN_XID
from autopilot.core.intake.ways_in import SIGNALS, unread
from autopilot.core.model.modes import Mode, Modes
from autopilot.core.model.policy import Policy
from autopilot.core.model.snapshot import ClusterSnapshot
from tests.kits.core_world import snapshot
from tests.kits.usage_world import measured

EVERY = Policy(name="every", modes=Modes(**{each.name: Mode.RECOMMEND for each in fields(Modes)}))


def told(snap: ClusterSnapshot, policy: Policy = EVERY) -> list[tuple[str, str]]:
    """Object and signal of each gap."""
    return [(gap.object_id, gap.signal) for gap in unread(snap, policy)]


def world(lacks: str = "", *, errors: bool = True) -> ClusterSnapshot:
    """A node of two GPUs; every signal but one is measured."""
    signals = {name: [0.5, 0.5] for name in dcgm.SIGNALS if name != lacks}
    snap = measured(snapshot("1x2"), signals)
    xid, remap = (0, REMAP_NONE) if errors else (UNKNOWN_XID, REMAP_UNKNOWN)
    return replace(snap, gpus=replace(snap.gpus, xid=np.full(2, xid, np.int32), remap=np.full(2, remap, np.int8)))


def test_nothing_is_said_while_all_is_read() -> None:
    """Nor is it of signals that nothing uses, and where there is no GPU."""
    assert told(world()) == []
    assert told(world("sm_occupancy_ratio")) == []
    assert told(snapshot("1x0")) == []


@pytest.mark.parametrize(
    ("lacks", "objects"),
    [
        ("power_w", ["modes.notify_idle", "modes.recover"]),
        ("tensor_active_ratio", ["modes.notify_idle"]),
        ("dram_active_ratio", ["modes.notify_idle", "modes.recover"]),
    ],
)
def test_each_use_of_a_missing_signal_is_named_once(lacks: str, objects: list[str]) -> None:
    """However many GPUs and actions there are."""
    assert told(world(lacks)) == [(each, lacks) for each in objects]
    (first, *_) = unread(world("power_w"), EVERY)
    assert first.reason == (
        "notify_idle, mark_idle, suspend_idle cannot tell idle GPUs from active ones: no source reads power_w "
        "(direct scrape DCGM_FI_DEV_POWER_USAGE, Prometheus DCGM_FI_DEV_POWER_USAGE, NVML nvmlDeviceGetPowerUsage)"
    )


def test_errors_that_no_way_reads_are_a_gap_of_recover() -> None:
    """XIDs and row remapping are one: both take a broken GPU out of use. A policy without the action lacks nothing."""
    assert told(world(errors=False)) == [("modes.recover", "xid_code")]
    off = replace(EVERY, modes=replace(EVERY.modes, recover=Mode.OFF))
    assert told(world(errors=False), off) == []


def test_the_actions_of_the_table_are_those_of_the_policy() -> None:
    """Each signal has one row."""
    names = {name for each in SIGNALS for use in each.uses for name in use.actions}
    assert names <= {each.name for each in fields(Modes)}
    assert len({each.name for each in SIGNALS}) == len(SIGNALS)
