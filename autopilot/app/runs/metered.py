"""The meter of a simulated run, with its segments beside the journal."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from autopilot.metering.meter import Meter
from autopilot.metering.segments import Segments, metering_folder

INTERVALS_IN_A_FILE = 288
"""A day: a crashed simulation is run again."""


@dataclass(frozen=True, slots=True)
class Metered:
    """A meter and the store of its rows."""

    meter: Meter
    segments: Segments

    @classmethod
    def of(cls, journal: Path | None, start_s: float | None) -> Metered | None:
        """The meter of the run with this journal; None for a run without one. Raises `InputError`."""
        if journal is None:
            return None
        segments = Segments(metering_folder(journal), start_s=start_s, every=INTERVALS_IN_A_FILE, replace=True)
        return cls(Meter(segments, begin_s=0.0), segments)

    def close(self, end_s: float) -> None:
        """Write everything up to the end of the run."""
        self.meter.close(end_s)
        self.segments.close()
