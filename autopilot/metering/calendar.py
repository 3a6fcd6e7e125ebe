"""Days and months of bills: calendar days of a time zone, in the time of a store (1/1,024 s)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta, tzinfo
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError, available_timezones

from autopilot.core.model.errors import InputError, nearest, shown
from autopilot.metering.amounts import TICKS_PER_S, to_ticks


def zone_of(name: str, where: str) -> tzinfo:
    """A time zone of the IANA database. Raises `InputError` naming `where`."""
    if name == "UTC":
        return UTC
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:
        near = nearest(name, available_timezones()) or "write UTC, or a name as Europe/Berlin"
        raise InputError(f"{where}: {shown(name)} is no time zone; {near}") from error


def moment_s(text: str, zone: tzinfo, where: str) -> float:
    """Seconds since 1970 of a date (00:00 in the zone) or an ISO 8601 time. Raises `InputError` naming `where`."""
    try:
        found = datetime.fromisoformat(text)
    except ValueError as error:
        raise InputError(
            f"{where}: {shown(text)} is no date; write 2026-02-01, or 2026-02-01T06:00 with or without +01:00"
        ) from error
    return (found if found.tzinfo is not None else found.replace(tzinfo=zone)).timestamp()


@dataclass(frozen=True, slots=True)
class Calendar:
    """Time 0 of a store since 1970 (None: not known, then days begin 24 h apart from it), and the zone of its days."""

    start_s: float | None = None
    zone: tzinfo = field(default=UTC)

    def moment(self, at: int) -> datetime:
        """A time of the store; without a known start it counts from 1970."""
        return datetime.fromtimestamp((self.start_s or 0.0) + at / TICKS_PER_S, self.zone)

    def ticks(self, moment: datetime | float) -> int:
        """The reverse; a float counts seconds since 1970."""
        since_s = moment if isinstance(moment, int | float) else moment.timestamp()
        return to_ticks(since_s - (self.start_s or 0.0))

    def day_of(self, at: int) -> datetime:
        """00:00 of the day of a moment."""
        return self.moment(at).replace(hour=0, minute=0, second=0, microsecond=0, fold=0)

    def month_of(self, at: int) -> tuple[datetime, datetime]:
        """00:00 of the first day of the month of a moment, and of the next month."""
        first = self.day_of(at).replace(day=1)
        return first, (first + timedelta(days=32)).replace(day=1)

    def edges(self, begin: int, end: int, more: Iterable[int] = ()) -> list[int]:
        """00:00 of each day from the day of `begin` to the first at or after `end`, with `more` moments
        between them.
        """
        day = self.day_of(begin)
        found: list[int] = []
        while not found or found[-1] < end:
            found.append(self.ticks(day))
            day += timedelta(days=1)  # the wall clock of the zone: 23 or 25 h later at a change
        return sorted({*found, *(at for at in more if found[0] < at < found[-1])})

    @property
    def name(self) -> str:
        """The name of the zone."""
        return str(self.zone)
