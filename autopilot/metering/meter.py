"""Collects ticks into rows by interval, and hands each finished interval to a sink.

    meter = Meter(sink)                 # sink: autopilot.metering.segments.Segments, or any `Sink`
    meter.take(observation, sent)       # after every tick, with its instructions: `Wiring.on_step`
    meter.close(end_s)                  # at the end; the rows of the open interval are handed over

Nothing here reads a clock or a file.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Protocol

from autopilot.core.model.records import Instruction, Observation
from autopilot.metering.amounts import TICKS_PER_S, Row, no_amounts, to_ticks
from autopilot.metering.holdings import Seen, seen
from autopilot.metering.observed import NOTHING, Amounts, Extra, add_stops, between, gap_of

INTERVAL_S = 300
"""Length of an interval; intervals begin at whole multiples of it since 00:00 UTC."""


class Sink(Protocol):
    """The destination of finished intervals."""

    @property
    def end(self) -> int | None:
        """End of its last interval, in 1/1,024 s; None without one."""
        ...

    @property
    def shift(self) -> int:
        """Time of the day (UTC) at time 0, in 1/1,024 s."""
        ...

    def put(self, begin: int, end: int, rows: Sequence[Row]) -> None:
        """Keep the rows of the time from `begin` to `end`. Called in order, without overlap."""
        ...


class Meter:
    """The meter of one controller."""

    def __init__(
        self,
        sink: Sink,
        *,
        interval_s: int = INTERVAL_S,
        longest_gap_s: float = float("inf"),
        begin_s: float | None = None,
    ) -> None:
        """`longest_gap_s`: two ticks further apart were not observed between. Infinite if every change is a tick.

        `begin_s`: begin of a sink without intervals; None: with the first tick.
        """
        self._from = None if begin_s is None else to_ticks(begin_s)
        self._sink, self._long = sink, interval_s * TICKS_PER_S
        self._most = longest_gap_s * TICKS_PER_S
        self._last: Seen | None = None
        self._amounts: Amounts = {}
        self._begin = 0

    def take(self, observation: Observation, sent: Iterable[Instruction] = (), extra: Extra = NOTHING) -> None:
        """Take in one tick. Counted time is not counted again, even after the clock was set back."""
        before = self._last
        now = seen(observation, sent, before)
        if before is None:
            self._first(now)
            return
        if now.at < before.at:
            return
        self._last = now
        edges = self._edges(before.at, now.at)
        if now.at == before.at:
            add_stops(self._amounts, before, now, extra)
        elif now.at - before.at > self._most:
            self._add(edges, gap_of(before, edges, "no tick"))
        else:
            self._add(edges, between(before, now, edges, extra))

    def close(self, at_s: float | None = None) -> None:
        """Hand over the open interval; from the last tick to `at_s` nothing was observed."""
        last = self._last
        if last is None:
            return
        if at_s is not None and to_ticks(at_s) > last.at:
            edges = self._edges(last.at, to_ticks(at_s))
            self._last = replace(last, at=edges[-1])
            self._add(edges, gap_of(last, edges, "no tick"))
        if self._last is not None and self._last.at > self._begin:
            self._hand_over(self._last.at)

    def _first(self, now: Seen) -> None:
        """Begin at the end of the sink; the time up to the first tick is a gap."""
        ended = self._from if self._sink.end is None else self._sink.end
        if ended is not None and ended > now.at:
            return  # the clock is behind the counted time
        self._begin, self._last = now.at if ended is None else ended, now
        if self._begin < now.at:
            edges = self._edges(self._begin, now.at)
            self._add(edges, gap_of(now, edges, "not running"))

    def _edges(self, begin: int, end: int) -> list[int]:
        """Both, and the ends of intervals between them."""
        first = begin + self._long - (begin + self._sink.shift) % self._long
        return [begin, *range(first, end, self._long), end]

    def _add(self, edges: list[int], found: Sequence[Amounts]) -> None:
        """Add the amounts of each span, and hand over each ended interval."""
        for end, amounts in zip(edges[1:], found, strict=True):
            for key, values in amounts.items():
                into = self._amounts.setdefault(key, no_amounts())
                for place, value in enumerate(values):
                    into[place] += value
            if (end + self._sink.shift) % self._long == 0:
                self._hand_over(end)

    def _hand_over(self, end: int) -> None:
        rows = [Row(self._begin, end, key, tuple(values)) for key, values in sorted(self._amounts.items())]
        self._sink.put(self._begin, end, rows)
        self._begin, self._amounts = end, {}
