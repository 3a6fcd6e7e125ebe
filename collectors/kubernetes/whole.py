"""Completeness of the view of a cluster: kinds that are not up to date, a clock that differs, contained objects."""

from __future__ import annotations

from collections.abc import Iterable

from autopilot.core.model.records import UNNAMED, Gap
from collectors.kubernetes.cache import Health

SKEW_S = 30.0
"""A server's clock may differ by this much from ours; with more, ages and waits would be wrong."""
MOST_GAPS = 200
"""Gaps of single objects named in one batch; the others are counted."""


def clock_gaps(source: str, skew_s: float) -> list[Gap]:
    """A gap if the server's clock differs too much from ours."""
    return [Gap(source, "", "clock", _clock_reason(skew_s))] if abs(skew_s) > SKEW_S else []


def incomplete(health: Iterable[Health], skew_s: float) -> str:
    """Reason for an incomplete view; "" for none. Single unreadable objects do not make it incomplete."""
    if abs(skew_s) > SKEW_S:
        return _clock_reason(skew_s)
    for each in health:
        if each.partial:
            return each.partial
        if not each.synced:
            return each.problem or f"{each.kind.title} are not listed yet"
    return ""


def health_gaps(source: str, health: Iterable[Health], now_s: float) -> list[Gap]:
    """A gap for each kind that is not up to date."""
    gaps = []
    for each in health:
        if each.problem:
            age = f"; last current {now_s - each.sign_s:.0f} s ago" if each.synced and not each.off else ""
            gaps.append(Gap(source, "", each.kind.title, each.problem + age))
        elif not each.synced:
            gaps.append(Gap(source, "", each.kind.title, f"{each.kind.title} are not listed yet"))
        gaps += [Gap(source, bad.partition(": ")[0], each.kind.title, f"cannot be read: {bad}") for bad in each.bad]
    return gaps


def first_gaps(source: str, gaps: list[Gap]) -> list[Gap]:
    """The first gaps, and the number of the others."""
    if len(gaps) <= MOST_GAPS:
        return gaps
    rest = f"{len(gaps) - MOST_GAPS} more objects are contained, the first: {gaps[MOST_GAPS].object_id}"
    return [*gaps[:MOST_GAPS], Gap(source, "", UNNAMED, rest)]


def _clock_reason(skew_s: float) -> str:
    side = "ahead of" if skew_s > 0 else "behind"
    return f"the clock of the API server is {abs(skew_s):.0f} s {side} that of this machine; synchronize the clocks"
