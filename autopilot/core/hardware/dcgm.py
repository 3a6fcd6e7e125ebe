"""Facts of the DCGM vocabulary: names of fields, the meaning of their numbers, and codes for missing values.

Collectors read with this table, the simulator writes with it, and dashboards are generated from it. The facts are those
of NVIDIA DCGM 4.6 (dcgm_fields.h, dcgm_structs.h) and dcgm-exporter 4.8. Two properties shape the table. The counters
file of the exporter determines the name of a field on the wire; the names changed with DCGM 4.6, the ids did not. On a
GPU in MIG mode, some fields are measured per instance, and others repeat the value of the board on every instance.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum, StrEnum

import numpy as np
from numpy.typing import NDArray

from autopilot.core.hardware.mig_profiles import find_profile_name

F64 = NDArray[np.float64]
Bools = NDArray[np.bool_]

RATIO_SLACK = 0.01
"""A ratio may exceed 1 by this, because two counters are not sampled at the same instant; it is clipped to 1."""


class Reach(StrEnum):
    """The part of a signal known to an instance of a GPU in MIG mode."""

    OWN = "own"
    GPU = "gpu"  # the value of the whole GPU; the instance has a share of it
    NONE = "none"


@dataclass(frozen=True, slots=True)
class Signal:
    """One column of every telemetry table. A value above `highest`, of a GPU or an instance, is a fault of its source.

    `optional`: a site may lack it without a gap, because few GPUs show any.
    """

    name: str
    highest: float
    reach: Reach = Reach.OWN
    optional: bool = False


TELEMETRY = (
    Signal("sm_active_ratio", 1.0 + RATIO_SLACK),
    Signal("sm_occupancy_ratio", 1.0 + RATIO_SLACK),
    Signal("tensor_active_ratio", 1.0 + RATIO_SLACK),
    Signal("dram_active_ratio", 1.0 + RATIO_SLACK),
    Signal("nvlink_bytes_s", 1e13, Reach.NONE),  # tx + rx; NVLink 5: 1.8e12 B/s
    Signal("pcie_bytes_s", 1e12, Reach.NONE),  # tx + rx; PCIe 6 x16: 2.6e11 B/s
    Signal("fb_used_mib", 1 << 20),
    Signal("power_w", 3000.0, Reach.GPU),  # twice the limit of the largest board
    Signal("video_ratio", 1.0 + RATIO_SLACK, Reach.NONE, optional=True),  # of the busier video engine
    Signal("duty_ratio", 1.0 + RATIO_SLACK, optional=True),  # time in which the engine is busy
    Signal("sm_clock_mhz", 1e4, Reach.GPU, optional=True),
    Signal("pcie_width", 64.0, Reach.NONE, optional=True),  # lanes in use
)
"""The signals of the product. A further one is a row here and in `_TABLE`, and its use: every reader asks by name."""

SIGNALS = tuple(each.name for each in TELEMETRY)
"""Their names, in the order of the rows of a telemetry array."""

EXTRAS = ("xid_code", "row_remap_failure", "row_remap_pending", "energy_mj")
"""Health and metering facts beside the signals: the latest value counts, not a mean."""

ALIKE = ("dcgm", "nvidia", "nvml", "gpu")
"""Parts of the names of metrics of GPUs, for messages about a source without a known field."""
WINDOWS_S = (60.0, 300.0, 1800.0)
"""Sliding windows of every telemetry array, in seconds."""


class Level(StrEnum):
    """The object of a field on a GPU in MIG mode. Board-level values repeat on every instance."""

    BOARD = "board"
    GPU_INSTANCE = "gpu-instance"
    COMPUTE_INSTANCE = "compute-instance"


class Kind(StrEnum):
    """Prometheus type. A gauge in bytes per second is a rate already: never `rate()` it."""

    GAUGE = "gauge"
    COUNTER = "counter"


class Quality(IntEnum):
    """The counter behind the SM activity of an entity, worst first."""

    NONE = 0
    GPU_UTIL = 1  # some kernel ran: says little about how busy the GPU was
    GR_ENGINE = 2  # the engine was busy: time, not depth
    SM_ACTIVE = 3


BLANK_INT32 = 2147483632.0
BLANK_INT64 = 9223372036854775792.0  # reads 9.223372036854776e18 as a float
BLANK_FP64 = 140737488355328.0  # 2**47
"""Lowest code for "no value"; the next three say not found, not supported, not permitted."""

_COUNTER_MAX = BLANK_INT64
_BYTES_S_MAX = 1e14  # NVLink 5 moves under 2e12 B/s


@dataclass(frozen=True, slots=True)
class Field:
    """One DCGM field.

    `names`: today's name in exporters, the name since DCGM 4.6, and the one of exporter 1.x. `blank` is the lowest code
    for "no value", `highest` the largest plausible number. `scale` converts the number on the wire to the unit of
    `signal`; `signal` is "" for a field without one.
    """

    id: int
    names: tuple[str, ...]
    unit: str  # on the wire
    level: Level
    kind: Kind
    blank: float
    highest: float
    signal: str = ""
    scale: float = 1.0
    help: str = ""


_BOARD, _GI, _CI = Level.BOARD, Level.GPU_INSTANCE, Level.COMPUTE_INSTANCE
_G, _C = Kind.GAUGE, Kind.COUNTER
_PROF, _DEV = "DCGM_FI_PROF_", "DCGM_FI_DEV_"


def _ratio(number: int, old: str, new: str, level: Level, signal: str, text: str) -> Field:
    names = (_PROF + old, _PROF + new, ("dcgm_fi_prof_" + old).lower())
    return Field(number, names, "ratio", level, _G, BLANK_FP64, 1.0 + RATIO_SLACK, signal, 1.0, text)


def _rate(number: int, name: str, signal: str, text: str) -> Field:
    names = (_PROF + name, ("dcgm_fi_prof_" + name).lower())
    return Field(number, names, "B/s", _BOARD, _G, BLANK_FP64, _BYTES_S_MAX, signal, 1.0, text)


def _mib(number: int, name: str, signal: str, text: str) -> Field:
    names = (_DEV + name, "dcgm_" + name.lower())
    return Field(number, names, "MiB", _CI, _G, BLANK_INT32, BLANK_INT32, signal, 1.0, text)


_TABLE = (
    _ratio(1002, "SM_ACTIVE", "SM_UTIL_RATIO", _CI, "sm_active_ratio", "cycles an SM has a warp"),
    _ratio(1003, "SM_OCCUPANCY", "SM_OCCUPANCY_RATIO", _CI, "sm_occupancy_ratio", "resident warps / most warps"),
    _ratio(1001, "GR_ENGINE_ACTIVE", "GR_ENGINE_UTIL_RATIO", _CI, "duty_ratio", "time the engine is busy"),
    _ratio(1004, "PIPE_TENSOR_ACTIVE", "TENSOR_UTIL_RATIO", _CI, "tensor_active_ratio", "cycles of tensor pipes"),
    _ratio(1005, "DRAM_ACTIVE", "DRAM_UTIL_RATIO", _GI, "dram_active_ratio", "memory interface busy"),
    _rate(1011, "NVLINK_TX_BYTES", "nvlink_bytes_s", "NVLink sent"),
    _rate(1012, "NVLINK_RX_BYTES", "nvlink_bytes_s", "NVLink received"),
    _rate(1009, "PCIE_TX_BYTES", "pcie_bytes_s", "PCIe device to host"),
    _rate(1010, "PCIE_RX_BYTES", "pcie_bytes_s", "PCIe host to device"),
    # its new name says ratio, its value is still a percentage
    Field(203, (_DEV + "GPU_UTIL", _DEV + "GPU_UTIL_RATIO", "dcgm_gpu_utilization"),
          "percent", _BOARD, _G, BLANK_INT32, 100.0, "sm_active_ratio", 0.01, "time some kernel ran"),
    _mib(252, "FB_USED", "fb_used_mib", "frame buffer used"),
    _mib(251, "FB_FREE", "", "frame buffer free"),
    _mib(253, "FB_RESERVED", "", "frame buffer reserved"),
    Field(155, (_DEV + "POWER_USAGE", _DEV + "BOARD_POWER_WATTS", "dcgm_power_usage"),
          "W", _BOARD, _G, BLANK_INT32, 1e5, "power_w", 1.0, "board power"),
    Field(100, (_DEV + "SM_CLOCK", "dcgm_sm_clock"),
          "MHz", _BOARD, _G, BLANK_INT32, 1e4, "sm_clock_mhz", 1.0, "clock of the SMs"),
    Field(238, (_DEV + "PCIE_LINK_WIDTH",),
          "lanes", _BOARD, _G, BLANK_INT32, 64.0, "pcie_width", 1.0, "PCIe lanes in use"),
    Field(156, (_DEV + "TOTAL_ENERGY_CONSUMPTION", "dcgm_total_energy_consumption"),
          "mJ", _BOARD, _C, BLANK_INT64, _COUNTER_MAX, "energy_mj", 1.0, "energy since the driver was loaded"),
    Field(206, (_DEV + "ENC_UTIL", "dcgm_enc_utilization"),
          "percent", _BOARD, _G, BLANK_INT32, 100.0, "video_ratio", 0.01, "time the video encoder is busy"),
    Field(207, (_DEV + "DEC_UTIL", "dcgm_dec_utilization"),
          "percent", _BOARD, _G, BLANK_INT32, 100.0, "video_ratio", 0.01, "time the video decoder is busy"),
    Field(230, (_DEV + "XID_ERRORS", _DEV + "XID_ERROR", "dcgm_xid_errors"),
          "code", _CI, _G, BLANK_INT32, 1e4, "xid_code", 1.0, "code of the last XID, 0 for none"),
    Field(395, (_DEV + "ROW_REMAP_FAILURE",),
          "bool", _BOARD, _G, BLANK_INT32, 1.0, "row_remap_failure", 1.0, "a memory row could not be remapped"),
    Field(396, (_DEV + "ROW_REMAP_PENDING",),
          "bool", _BOARD, _G, BLANK_INT32, 1.0, "row_remap_pending", 1.0, "a memory row is remapped by the next reset"),
)  # fmt: skip

FIELDS: dict[int, Field] = {field.id: field for field in _TABLE}
"""Every field of the product, by DCGM field id."""

BY_NAME: dict[str, Field] = {name: field for field in _TABLE for name in field.names}
"""The same fields by each of their names."""

XID_COUNTS = ("DCGM_EXP_XID_ERRORS_COUNT", "DCGM_EXP_XID_ERRORS_TOTAL")
"""Counters of dcgm-exporter with one series for each code (label `xid`): those of the last 5 min by default, and from
4.8.3 on those since its start. Both are off by default. A count above 0 tells a code hidden in field 230 by a later
one; 0 says nothing of the codes before.
"""

ACTIVITY: tuple[tuple[int, Quality], ...] = (
    (1002, Quality.SM_ACTIVE),
    (1001, Quality.GR_ENGINE),
    (203, Quality.GPU_UTIL),
)
"""Fields in place of SM activity, best first."""

MOST_SMS = 200.0
"""More SMs than any GPU has. A kernel that runs keeps at least one SM active, so SM activity is at least GPU_UTIL over
this number.
"""

KERNELS_RATIO = 0.5
"""Least GPU_UTIL of certain kernels: it is coarse, and one sample of it may lie in another second."""

SUMS: dict[str, tuple[int, ...]] = {"nvlink_bytes_s": (1011, 1012), "pcie_bytes_s": (1009, 1010)}
"""Signals made as the sum of two fields; unknown if either is."""

OPTIONAL = frozenset(each.name for each in TELEMETRY if each.optional)
"""Signals that a site may lack without a gap."""


def fields_of(signal: str) -> tuple[Field, ...]:
    """Fields that feed `signal`: in order of preference, or the parts of its sum or of its largest."""
    if signal == SIGNALS[0]:
        return tuple(FIELDS[number] for number, _ in ACTIVITY)
    return tuple(field for field in _TABLE if field.signal == signal)


def joined(signal: str, parts: Sequence[F64]) -> F64:
    """A signal from the columns of its fields, in their order; NaN for unknown. Not for the SM activity."""
    if signal == "video_ratio":
        return np.asarray(np.fmax.reduce(parts))
    return np.asarray(np.sum(parts, axis=0) if signal in SUMS else parts[0])


def is_blank(field: Field, value: F64) -> Bools:
    """True for a DCGM code of "no value". Any shape.

    The test is `>=`, not equality: the codes after the base state the reason. A gauge also counts as blank at the fp64
    base, because some exporter versions print it for integer fields.
    """
    base = field.blank if field.kind is Kind.COUNTER else min(field.blank, BLANK_FP64)
    return np.asarray(np.asarray(value, float) >= base)


def in_range(field: Field, value: F64) -> Bools:
    """True for a plausible `value` (on the wire): finite, at least 0 and at most the field's highest."""
    given = np.asarray(value, float)
    with np.errstate(invalid="ignore"):
        return np.asarray((given >= 0.0) & (given <= field.highest) & ~is_blank(field, given))


class Fault(IntEnum):
    """The defect of a number on the wire."""

    OK = 0
    BLANK = 1
    NAN = 2
    RANGE = 3
    TWICE = 4
    CONTRADICTED = 5


FAULT_TEXT = {
    Fault.BLANK: "blank: DCGM has no value (not found, not supported or profiling paused)",
    Fault.NAN: "not a number",
    Fault.RANGE: "out of range",
    Fault.CONTRADICTED: "stands at 0 while GPU_UTIL shows running kernels on this GPU or on others of its "
    "node: the activity is unknown; restart the exporter of its node",
    Fault.TWICE: "there twice in one text, with different values",
}


def clean(field: Field, value: F64) -> tuple[F64, NDArray[np.int8]]:
    """`(values in the unit of the signal, Fault codes)`; a faulty value becomes NaN. Any shape."""
    given = np.asarray(value, float)
    faults = np.where(in_range(field, given), Fault.OK, Fault.RANGE)
    blank = is_blank(field, given) & np.isfinite(given)
    faults = np.where(np.isnan(given), Fault.NAN, np.where(blank, Fault.BLANK, faults))
    cleaned = np.where(faults == Fault.OK, given * field.scale, np.nan)
    if field.unit == "ratio":
        cleaned = np.minimum(cleaned, 1.0)
    return cleaned, faults.astype(np.int8)


# --- MIG ---------------------------------------------------------------------------------------


_FOUR_SLICES = ("A30", "RTX PRO 6000")


def profile_slices(profile: str) -> int | None:
    """Compute slices of a MIG profile name; None for any other text."""
    found = find_profile_name(profile)
    return found.slices if found is not None else None


def board_slices(model: str) -> int:
    """Compute slices of a whole GPU by its model name: 4 on A30 and RTX PRO 6000, else 7."""
    spaced = model.replace("-", " ")
    return 4 if any(re.search(rf"\b{name}\b", spaced) for name in _FOUR_SLICES) else 7


def entity_id(uuid: str, gi_id: str = "") -> str:
    """`<UUID>` of a GPU, `<UUID>/<GPU instance id>` of a MIG instance."""
    return f"{uuid}/{gi_id}" if gi_id else uuid
