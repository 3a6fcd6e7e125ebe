"""The meter of the service: every tick is metered beside the journal, and a disk that fails does not fail a tick."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import structlog

from autopilot.core.model.errors import InputError
from autopilot.core.model.records import Instruction, Observation
from autopilot.metering.amounts import Row
from autopilot.metering.meter import INTERVAL_S, Meter
from autopilot.metering.observed import Extra
from autopilot.metering.segments import Segments, metering_folder

log: Any = structlog.get_logger("metering")

LONGEST_GAP_S = 600.0
"""Two ticks further apart, in the time of the cluster: the time between them was not observed."""
REAL_S = 60.0
"""Real time between two files, and two ticks, under a fast clock of a simulated cluster."""


@runtime_checkable
class CountsEnergy(Protocol):
    """A source of the energy counters of GPUs."""

    def counted_w(self, now_s: float) -> dict[str, float]:
        """Mean watts by GPU UUID, by the energy counter; GPUs without a reading are absent."""
        ...


@runtime_checkable
class ReportsFlops(Protocol):
    """A source of the operations reported by work."""

    def reported_flops(self, now_s: float) -> dict[str, float]:
        """Model FLOP/s by uid of reporting work; other work is absent."""
        ...


@runtime_checkable
class KnowsLabels(Protocol):
    """A source of the labels of work."""

    def owner_labels(self, keys: Sequence[str]) -> dict[str, str]:
        """JSON object of the labels named `keys`, by uid of work with one of them."""
        ...


class ServiceMeter:
    """Takes in ticks (`Wiring.on_step`). A failed write waits in memory for the next interval."""

    def __init__(self, journal: Path, start_s: float | None, speed: float, interval_s: float) -> None:
        """`start_s`: time 0 of the cluster since 1970; `interval_s`: between two ticks, in the time of the cluster.

        Raises `InputError` if the folder beside the journal is unusable.
        """
        every = max(round(REAL_S * speed / INTERVAL_S), 1)
        self._segments = Segments(metering_folder(journal), start_s=start_s, every=every)
        self._meter = Meter(self, longest_gap_s=max(LONGEST_GAP_S, 3 * interval_s, REAL_S * speed))
        self._failing = False
        self.counters: tuple[CountsEnergy, ...] = ()  # the first one with a GPU counts
        self.reports: tuple[ReportsFlops, ...] = ()
        self.labelled: tuple[KnowsLabels, ...] = ()
        self.labels: Sequence[str] = ()  # keys of the metered labels
        self._known: dict[str, str] = {}  # labels at the last tick, by uid: some work has ended since

    def join(self, sources: Sequence[object], labels: Sequence[str]) -> None:
        """Read energy, operations and the labels named `labels` from their sources."""
        self.counters = tuple(each for each in sources if isinstance(each, CountsEnergy))
        self.reports = tuple(each for each in sources if isinstance(each, ReportsFlops))
        self.labelled, self.labels = tuple(each for each in sources if isinstance(each, KnowsLabels)), labels

    def take(self, observation: Observation, sent: Iterable[Instruction] = ()) -> None:
        """Meter one tick."""
        counted_w: dict[str, float] = {}
        for each in self.counters:
            counted_w = each.counted_w(observation.now_s) | counted_w
        flops = {uid: rate for each in self.reports for uid, rate in each.reported_flops(observation.now_s).items()}
        labels = {uid: text for each in self.labelled for uid, text in each.owner_labels(self.labels).items()}
        self._meter.take(observation, sent, Extra(counted_w, flops, self._known | labels))
        self._known = labels

    @property
    def end(self) -> int | None:
        """End of the last interval."""
        return self._segments.end

    @property
    def shift(self) -> int:
        """Time of the day (UTC) at time 0."""
        return self._segments.shift

    def put(self, begin: int, end: int, rows: Sequence[Row]) -> None:
        """Keep one interval; the first failure of a series is logged."""
        try:
            self._segments.put(begin, end, rows)
            self._failing = False
        except (InputError, OSError) as error:
            if not self._failing:
                log.warning("metering cannot be written", reason=str(error))
            self._failing = True

    def close(self) -> None:
        """Write the open part."""
        self._meter.close()
        try:
            self._segments.close()
        except (InputError, OSError) as error:
            log.warning("metering cannot be written", reason=str(error))
