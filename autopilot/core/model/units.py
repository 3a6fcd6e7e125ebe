"""Parsing and formatting of quantities.

Names carry their unit last (`wait_s`, `lost_gpu_s`, `memory_mib`, `busy_ratio`). Internally, a duration is a float in
seconds and memory an integer in MiB.
"""

from __future__ import annotations

import math
import re

from autopilot.core.model.errors import InputError, shown

SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}
MEBIBYTES = {"": 1.0 / 1048576, "Ki": 1.0 / 1024, "Mi": 1.0, "Gi": 1024.0, "Ti": 1048576.0}

LONGEST_DURATION = 100
"""Most characters of a duration or an amount; a longer text is refused without parsing."""

_DURATION_PART = re.compile(r"\s*([0-9]*\.?[0-9]+)\s*(ms|min|s|m|h|d|w)")
_MEMORY = re.compile(r"^\s*([0-9]*\.?[0-9]+)\s*(Ki|Mi|Gi|Ti)?B?\s*$")
_CLUSTER_SHAPE = re.compile(r"^(\d{1,6})x(\d{1,3})$")


def parse_duration_s(text: str | float, field: str = "duration") -> float:
    """Seconds from `90`, `"90"`, `"90s"`, `"1h30m"`, `"7d"`.

    Raises `InputError` naming `field` if the text is not a finite, non-negative duration.
    """
    if isinstance(text, int | float) and not isinstance(text, bool):
        value = float(text)
    else:
        value = _duration_from_text(str(text), field)
    if not math.isfinite(value) or value < 0:
        raise InputError(f"{field}: {shown(text)} is not a finite duration of 0 s or more")
    return value


def _duration_from_text(text: str, field: str) -> float:
    if len(text) > LONGEST_DURATION:
        raise InputError(f"{field}: {shown(text)} is not a duration; write for example 90s, 15m, 1h30m or 7d")
    try:
        return float(text)
    except ValueError:
        pass
    total, end = 0.0, 0
    for part in _DURATION_PART.finditer(text):
        if part.start() != end:
            break
        total += float(part[1]) * SECONDS[part[2]]
        end = part.end()
    if end == 0 or text[end:].strip():
        raise InputError(f"{field}: {shown(text)} is not a duration; write for example 90s, 15m, 1h30m or 7d")
    return total


def parse_memory_mib(text: str | int, field: str = "memory") -> int:
    """MiB from `"80Gi"`, `"512Mi"` or an integer already in MiB.

    Raises `InputError` naming `field` if the text is not an amount of memory.
    """
    if isinstance(text, int) and not isinstance(text, bool):
        return text
    match = _MEMORY.match(str(text)) if len(str(text)) <= LONGEST_DURATION else None
    if not match:
        raise InputError(f"{field}: {shown(text)} is not an amount of memory; write for example 80Gi or 512Mi")
    return int(float(match[1]) * MEBIBYTES[match[2] or ""])


def parse_cluster_shape(text: str) -> tuple[int, int] | None:
    """`(nodes, gpus per node)` from `"7x8"`; None if the text has another form."""
    match = _CLUSTER_SHAPE.match(text.strip())
    return (int(match[1]), int(match[2])) if match else None


def format_duration(value_s: float | None) -> str:
    """A duration in words: `45 s`, `12 min`, `3 h 20 min`, `2 d 3 h 5 min`; `-` for unknown.

    From two minutes on, seconds are left out.
    """
    if value_s is None or math.isnan(value_s):
        return "-"
    if math.isinf(value_s):
        return "never"
    sign, value = ("-" if value_s < 0 else ""), abs(value_s)
    if value < 120:
        return f"{sign}{value:.0f} s" if value >= 10 or value == int(value) else f"{sign}{value:.1f} s"
    if value < 3600:
        return f"{sign}{value / 60:.0f} min"
    minutes = int(value // 60)
    parts = ((minutes // 1440, "d"), (minutes // 60 % 24, "h"), (minutes % 60, "min"))
    return sign + " ".join(f"{count} {unit}" for count, unit in parts if count)


EPOCH_FROM_S = 1e9
"""Times of at least this size count from 1970: no simulation lasts thirty years."""

LATEST_DATE_S = 253_402_300_799.0
"""The end of the year 9999."""


def format_clock(at_s: float) -> str:
    """A time of a run in words: `18 h 9 min` since its start; where times count from 1970, date and time in UTC."""
    if not EPOCH_FROM_S <= at_s <= LATEST_DATE_S:
        return format_duration(at_s)
    days, second = divmod(int(at_s), 86_400)
    year, month, day = _date_of(days)
    return f"{year:04}-{month:02}-{day:02} {second // 3600:02}:{second // 60 % 60:02}:{second % 60:02} UTC"


def _date_of(days: int) -> tuple[int, int, int]:
    """Year, month and day of the Gregorian calendar; `days` since 1970-01-01, not negative."""
    year, month = 1970, 0
    while days >= (length := 366 if _is_leap(year) else 365):
        days -= length
        year += 1
    lengths = (31, 29 if _is_leap(year) else 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)
    while days >= lengths[month]:
        days -= lengths[month]
        month += 1
    return year, month + 1, days + 1


def _is_leap(year: int) -> bool:
    return year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)


def format_moment(at_s: float, now_s: float) -> str:
    """A time in words: `5 h 26 min after the start of the run`; where times count from 1970, `26 s ago` or `in 2 h`."""
    if math.isnan(at_s):
        return "at an unknown time"
    if now_s < EPOCH_FROM_S or math.isinf(at_s):
        return f"{format_duration(at_s)} after the start of the run"
    return f"{format_duration(now_s - at_s)} ago" if at_s <= now_s else f"in {format_duration(at_s - now_s)}"


GPU_TIME = (("GPU-h", 3600.0, 360.0), ("GPU-min", 60.0, 6.0), ("GPU-s", 1.0, 0.0))
"""Units of GPU time: name, GPU-seconds, and the least GPU-seconds that are told in it: a tenth of one."""


def format_gpu_s(value_gpu_s: float | None) -> str:
    """GPU time in words, three significant digits: `12.4 GPU-h`, from less than 0.1 on `5 GPU-min`; `-` for unknown."""
    if value_gpu_s is None or math.isnan(value_gpu_s):
        return "-"
    if value_gpu_s == 0:
        return "0 GPU-h"
    unit, size = next((name, size) for name, size, least in GPU_TIME if abs(value_gpu_s) >= least)
    return f"{rounded(value_gpu_s / size)} {unit}"


def rounded(value: float) -> str:
    """Three significant digits, without zeros at the end of a fraction: `8.8`, `0.0123`, `18,300`."""
    near = float(f"{value:.3g}")
    return f"{near:,.0f}" if abs(near) >= 1000 else f"{near:g}"


def format_ratio(value: float | None) -> str:
    """A ratio in [0, 1] as a percentage with one decimal; `-` for unknown."""
    return "-" if value is None or math.isnan(value) else f"{value * 100:.1f} %"


def number(value: float) -> str:
    """A count: whole with separators if it is large, else three significant digits."""
    return f"{value:,.0f}" if abs(value) >= 100 else rounded(value)


def counted(count: float, noun: str) -> str:
    """A count with its noun: `1 GPU`, `8 GPUs`. `noun` is a regular noun, or both forms: `GPU is|GPUs are`."""
    one, _, many = noun.partition("|")
    return f"{number(count)} {one if count == 1 else many or one + 's'}"
