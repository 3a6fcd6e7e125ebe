"""The DCGM vocabulary."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from autopilot.core.hardware import dcgm
from autopilot.core.hardware.dcgm import FIELDS, Fault, Kind, Level, Quality


def fault(number: int, value: float) -> Fault:
    """Why this number is no value of the field."""
    return Fault(int(dcgm.clean(FIELDS[number], np.array(value))[1]))


def test_old_and_new_names_mean_one_field() -> None:
    """Names of either side of the rename in DCGM 4.6, and of exporter 1.x, lead to the same id."""
    pairs = {
        "DCGM_FI_PROF_SM_ACTIVE": "DCGM_FI_PROF_SM_UTIL_RATIO",
        "DCGM_FI_PROF_SM_OCCUPANCY": "DCGM_FI_PROF_SM_OCCUPANCY_RATIO",
        "DCGM_FI_PROF_GR_ENGINE_ACTIVE": "DCGM_FI_PROF_GR_ENGINE_UTIL_RATIO",
        "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE": "DCGM_FI_PROF_TENSOR_UTIL_RATIO",
        "DCGM_FI_PROF_DRAM_ACTIVE": "DCGM_FI_PROF_DRAM_UTIL_RATIO",
        "DCGM_FI_DEV_GPU_UTIL": "DCGM_FI_DEV_GPU_UTIL_RATIO",
        "DCGM_FI_DEV_POWER_USAGE": "DCGM_FI_DEV_BOARD_POWER_WATTS",
        "DCGM_FI_DEV_XID_ERRORS": "DCGM_FI_DEV_XID_ERROR",
        "dcgm_fb_used": "DCGM_FI_DEV_FB_USED",
    }
    for old, new in pairs.items():
        assert dcgm.BY_NAME[old] is dcgm.BY_NAME[new]


def test_no_name_is_used_twice_and_ids_are_those_of_dcgm() -> None:
    """The table is a bijection of names, with the ids that DCGM gives."""
    names = [name for field in FIELDS.values() for name in field.names]
    assert len(names) == len(set(names))
    known = {
        "DCGM_FI_PROF_SM_ACTIVE": 1002,
        "DCGM_FI_PROF_NVLINK_TX_BYTES": 1011,
        "DCGM_FI_DEV_FB_USED": 252,
        "DCGM_FI_DEV_POWER_USAGE": 155,
        "DCGM_FI_DEV_ROW_REMAP_FAILURE": 395,
    }
    assert {name: dcgm.BY_NAME[name].id for name in known} == known


def test_every_signal_has_a_field_and_every_field_a_known_signal() -> None:
    """No signal is without a source; nothing feeds a signal that does not exist."""
    assert all(dcgm.fields_of(signal) for signal in (*dcgm.SIGNALS, *dcgm.EXTRAS))
    assert {f.signal for f in FIELDS.values()} <= {*dcgm.SIGNALS, *dcgm.EXTRAS, ""}


@pytest.mark.parametrize("offset", range(4))
def test_blanks_are_recognised_by_their_base(offset: int) -> None:
    """Every code from the base on is blank: at int32, int64 and fp64 width."""
    for number in (252, 155, 230, 203):
        assert fault(number, 2147483632.0 + offset) is Fault.BLANK
        assert fault(number, 9223372036854775792.0 + offset) is Fault.BLANK
    for number in (1002, 1011):
        assert fault(number, 140737488355328.0 + offset) is Fault.BLANK
    assert fault(156, 9223372036854775792.0 + offset) is Fault.BLANK


def test_large_values_of_wide_fields_are_no_blanks() -> None:
    """A byte rate passes the int32 base and a counter the fp64 base every day."""
    assert fault(1011, 4.5e11) is Fault.OK
    assert fault(1009, 2147483632.0) is Fault.OK
    assert FIELDS[156].kind is Kind.COUNTER
    assert fault(156, 9.1e14) is Fault.OK


def test_implausible_values_are_out_of_range() -> None:
    """Ratios above one, percentages above a hundred, negatives and infinities are no values."""
    assert fault(1002, 1.2) is Fault.RANGE
    assert fault(203, 100.5) is Fault.RANGE
    assert fault(155, -1.0) is Fault.RANGE
    assert fault(1002, float("inf")) is Fault.RANGE
    assert fault(1002, float("-inf")) is Fault.RANGE
    assert fault(1002, float("nan")) is Fault.NAN


def test_units_of_the_signal() -> None:
    """GPU_UTIL is per cent on the wire whatever its name says; a ratio a hair above one is one."""
    assert float(dcgm.clean(FIELDS[203], np.array(37.0))[0]) == pytest.approx(0.37)
    assert float(dcgm.clean(FIELDS[1002], np.array(1.004))[0]) == 1.0
    assert float(dcgm.clean(FIELDS[252], np.array(61440.0))[0]) == 61440.0


def test_levels_on_mig() -> None:
    """What belongs to the instance and what to the board is as in DCGM's field table."""
    levels = {
        1002: Level.COMPUTE_INSTANCE,
        1004: Level.COMPUTE_INSTANCE,
        252: Level.COMPUTE_INSTANCE,
        230: Level.COMPUTE_INSTANCE,
        1005: Level.GPU_INSTANCE,
        203: Level.BOARD,
        155: Level.BOARD,
        156: Level.BOARD,
        1009: Level.BOARD,
        1011: Level.BOARD,
    }
    assert {number: FIELDS[number].level for number in levels} == levels


def test_fallback_order() -> None:
    """SM_ACTIVE, then GR_ENGINE_ACTIVE, then GPU_UTIL, each with its quality."""
    assert dcgm.ACTIVITY == ((1002, Quality.SM_ACTIVE), (1001, Quality.GR_ENGINE), (203, Quality.GPU_UTIL))
    assert [f.id for f in dcgm.fields_of("sm_active_ratio")] == [1002, 1001, 203]


@pytest.mark.parametrize(
    ("profile", "slices"),
    [
        ("1g.10gb", 1),
        ("7g.80gb", 7),
        ("1c.3g.40gb", 3),
        ("1g.10gb+me", 1),
        ("1g.24gb.me.all", 1),
        ("2g.48gb+me.all", 2),
        ("1g.24gb-me", 1),
        ("3G.40GB", 3),
        ("MIG 3g.40gb", 3),
        ("", None),
        ("h100", None),
    ],
)
def test_profile_names(profile: str, slices: int | None) -> None:
    """Compute slices come from the profile's name in each spelling; anything else is unknown."""
    assert dcgm.profile_slices(profile) == slices


def test_a_board_has_seven_compute_slices_or_four() -> None:
    """Four on A30 and RTX PRO 6000."""
    assert dcgm.board_slices("NVIDIA A30") == 4
    assert dcgm.board_slices("NVIDIA RTX PRO 6000 Blackwell Server Edition") == 4
    assert dcgm.board_slices("NVIDIA A300") == 7
    assert dcgm.board_slices("NVIDIA H100 80GB HBM3") == 7


SHOWN = {"DCGM_FI_DEV_GPU_TEMP"}
"""Read by no decision, and shown on the dashboard of a job."""


def test_the_shipped_counters_file_brings_every_signal() -> None:
    """Each line has the exporter's three columns, a known field and its type; no signal is left out."""
    path = Path(__file__).resolve().parents[4] / "deploy" / "dcgm-exporter-counters.csv"
    lines = [line for line in path.read_text().splitlines() if line and not line.startswith("#")]
    named: list[dcgm.Field] = []
    shown: set[str] = set()
    for line in lines:
        assert line.count(",") == 2, line
        name, kind, text = (part.strip() for part in line.split(","))
        assert text
        if kind == "label":
            continue
        if name in SHOWN:
            shown.add(name)
            continue
        assert name == dcgm.BY_NAME[name].names[0], "exporters print the first name"
        assert kind == dcgm.BY_NAME[name].kind.value
        named.append(dcgm.BY_NAME[name])
    assert {f.id for f in named} == set(FIELDS)
    assert shown == SHOWN
    assert len(named) + len(shown) <= 23, "series cost the exporter and the Prometheus"
