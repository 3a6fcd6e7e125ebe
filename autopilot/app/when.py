"""Moments of a run: time since its start, and date and time if the start is known."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, tzinfo
from typing import Any

from autopilot.core.model.errors import InputError
from autopilot.core.model.units import EPOCH_FROM_S, format_duration, parse_duration_s


@dataclass(frozen=True, slots=True)
class When:
    """Formats times of one run; `start_s` is the start of the run since 1970, None: unknown."""

    start_s: float | None = None

    def stamp(self, at_s: float) -> str | None:
        """Date and time in UTC as ISO 8601, for JSON; None if the start is not known."""
        moment = self._moment(at_s)
        return None if moment is None else moment.isoformat(timespec="seconds").replace("+00:00", "Z")

    def words(self, at_s: float) -> str:
        """Date and time where known, else the time since the start of the run."""
        moment = self._moment(at_s)
        return format_duration(at_s) if moment is None else f"{moment:%Y-%m-%d %H:%M:%S}"

    def _moment(self, at_s: float) -> datetime | None:
        if self.start_s is None:
            return None
        try:
            return datetime.fromtimestamp(self.start_s + at_s, UTC)
        except (ValueError, OverflowError, OSError):  # infinite, or past the year 9999
            return None


def when_of(description: Mapping[str, Any], first_s: float) -> When:
    """The clock of a run, from its journal's description and the time of its first tick."""
    start_s = description.get("start_s")
    if isinstance(start_s, int | float) and not isinstance(start_s, bool):
        return When(float(start_s))
    return When(0.0) if first_s >= EPOCH_FROM_S else When()


def parse_moment_s(text: str, flag: str, when: When, last_s: float, zone: tzinfo = UTC) -> float:
    """A time of the run from a duration since its start (`2h`) or a date and time in `zone` (`2026-11-23T04:00`).

    A journal of a live cluster counts from 1970; there a duration counts back from the last decision, at `last_s`.
    Raises `InputError` naming `flag`.
    """
    try:
        moment = datetime.fromisoformat(text) if "-" in text else None
    except ValueError:
        moment = None
    if moment is None:
        duration_s = parse_duration_s(text, flag)
        return last_s - duration_s if when.start_s == 0.0 else duration_s
    if when.start_s is None:
        raise InputError(
            f"{flag}: {text!r} is a date, and this journal does not know the date of its start; write the "
            "time since the start of the run, for example 2h"
        )
    aware = moment if moment.tzinfo is not None else moment.replace(tzinfo=zone)
    return aware.timestamp() - when.start_s
