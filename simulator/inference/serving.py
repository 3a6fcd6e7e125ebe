"""Services of the simulated cluster: latency from a queue of single requests, and replica control.

A service has c ready replicas of `slots` requests each (the batch an engine decodes at once).
A request takes the slot that gets free first, in order of arrival, and holds it for

    input_tokens / prefill_tokens_per_s + output_tokens / decode_tokens_per_s   seconds;

its latency is the wait for the slot plus that. Between two changes of its replicas a service is
advanced by array operations, window by window, with no event per request. Results do not depend
on how the calls to `advance` cut the time: outcomes are equal to the last bit, sums are kept in
whole microseconds.

The slots of a replica that shares its GPUs go at its rate (`set_rates`): a request holds one for longer.

What this leaves out: a slot's decode rate does not fall as the batch fills (give the rate of a
full batch), routing is ideal (one queue for all replicas), no prefix cache. Times of tokens take
no notice of slower slots beyond the wait for one.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import fields
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from autopilot.core.model.errors import InputError, invariant
from simulator.inference.log_latencies import LogLatencies
from simulator.inference.requests import ArrivalSource, Floats, Ints
from simulator.inference.serving_queue import LatencyCounts, fcfs_starts, starts_at_rates
from simulator.inference.serving_records import Counters, Served, ServiceSpec, ServingTotals, Windows
from simulator.inference.token_times import TokenFigures, TokenTimes

RECENT_WINDOWS = 60  # closed windows whose latencies stay available to `recent_latency_s`
TOKEN_WINDOWS = 5  # closed windows that the figures of tokens cover


class _Waiting(NamedTuple):
    seq: Ints
    arrival_s: Floats
    service_s: Floats


class _Running(NamedTuple):
    seq: Ints
    arrival_s: Floats
    service_s: Floats
    start_s: Floats
    end_s: Floats
    draining: NDArray[np.bool_]
    alone_s: Floats  # service at full speed

    def at(self, rows: NDArray[np.bool_] | NDArray[np.intp]) -> _Running:
        return _Running._make(column[rows] for column in self)


def _microseconds(times_s: Floats | float) -> int:
    """Sum in whole microseconds, so that it does not depend on the order of adding."""
    if isinstance(times_s, float):
        return round(times_s * 1e6)
    return int(np.rint(times_s * 1e6).astype(np.int64).sum())


_NO_TIMES: Floats = np.empty(0)
_NO_BINS: Ints = np.empty(0, dtype=np.int64)
_NOTHING_RUNS = _Running(
    np.empty(0, np.int64), _NO_TIMES, _NO_TIMES, _NO_TIMES, _NO_TIMES, np.empty(0, dtype=np.bool_), _NO_TIMES
)


class ServiceSim:
    """One service in virtual time; `advance` it, then change its replicas.

    Invariant: arrived = completed + queue_depth + in_service. Waiting requests are kept in order of arrival, whether
    they are new or returned by a lost replica.
    """

    def __init__(
        self,
        spec: ServiceSpec,
        arrivals: ArrivalSource,
        *,
        replicas: int = 0,
        start_s: float = 0.0,
        window_s: float = 60.0,
        on_served: Callable[[Served], None] | None = None,
    ) -> None:
        """`on_served` receives every completed request once, in batches."""
        if not (np.isfinite(window_s) and window_s > 0):
            raise InputError(f"service {spec.name}: window_s = {window_s!r} must be a finite number above 0")
        self.spec, self.now_s, self.replicas = spec, float(start_s), replicas
        self.arrived = self.completed = self.violations = self.requeued = 0
        self._source, self._on_served = arrivals, on_served
        self._free_s: Floats = np.full(replicas * spec.slots, start_s)
        self._rate: Floats | None = None  # of each slot, as `_free_s`; None: all at full speed
        self._waiting: deque[_Waiting] = deque()
        self._queue_depth = 0
        self._changed_s = start_s  # no waiting request may start before the latest change
        self._running = _NOTHING_RUNS
        self._drained_s = _NO_TIMES
        self._net_start_us = 0  # sum of starts minus sum of ends
        self._capacity_us = 0
        self._start_s, self._window_s = start_s, window_s
        self._rows = array("d")
        self._closed = 0  # windows
        self._tokens = 0
        self._window_from = (0, 0, 0, 0, 0, 0)
        self._latencies = LatencyCounts()  # of closed windows
        self._window_latencies = LatencyCounts()
        self._recent: deque[tuple[Ints, Ints]] = deque(maxlen=RECENT_WINDOWS)  # bins and their counts
        promises_tokens = spec.ttft_objective_s is not None or spec.itl_objective_s is not None
        self.logs: LogLatencies | None = None  # of requests at full speed; None: they are not asked for
        self._token_times = TokenTimes(spec, TOKEN_WINDOWS) if promises_tokens else None

    # --- what it shows --------------------------------------------------------------------

    @property
    def queue_depth(self) -> int:
        """Requests that arrived and hold no slot."""
        return self._queue_depth

    @property
    def in_service(self) -> int:
        """Requests that hold a slot, including those on draining replicas."""
        return len(self._running.seq)

    def counters(self) -> Counters:
        """Counts and slot-seconds from the start to now."""
        return Counters(
            self.now_s,
            self.arrived,
            self.completed,
            self.violations,
            self.requeued,
            self._busy_us() / 1e6,
            self._capacity_us / 1e6,
        )

    def windows(self) -> Windows:
        """Every window closed so far."""
        columns = len(fields(Windows))
        return Windows(*np.array(self._rows, dtype=np.float64).reshape(-1, columns).T)

    def latencies(self) -> LatencyCounts:
        """Every completed request so far; a copy."""
        merged = LatencyCounts()
        merged.merge(self._latencies)
        merged.merge(self._window_latencies)
        return merged

    def recent_latency_s(self, ratio: float, windows: int) -> float:
        """Quantile over the last closed windows (at most 60); NaN when none completed in them."""
        merged = LatencyCounts()
        for bins, counts in list(self._recent)[-windows:]:
            merged.counts[bins] += counts
            merged.total += int(counts.sum())
        return merged.quantiles_s(ratio)[0]

    def tokens(self) -> TokenFigures:
        """Times of tokens over the last closed windows; unknown for a service that promises none."""
        return self._token_times.figures() if self._token_times is not None else TokenFigures()

    def overdue(self) -> int:
        """Unfinished requests that already exceed the objective."""
        if self.spec.objective_s is None:
            return 0
        limit_s = self.now_s - self.spec.objective_s
        unfinished = [self._running.arrival_s, *(part.arrival_s for part in self._waiting)]
        return sum(int((arrival_s < limit_s).sum()) for arrival_s in unfinished)

    # --- time -----------------------------------------------------------------------------

    def advance(self, to_s: float) -> None:
        """Arrivals, starts and completions up to and including `to_s`."""
        invariant(to_s >= self.now_s, f"service {self.spec.name}: time went back from {self.now_s} to {to_s}")
        to_s = float(to_s)
        while True:
            window_end_s = self._start_s + (self._closed + 1) * self._window_s
            edge_s = min(window_end_s, to_s)
            self._step(edge_s)
            if edge_s == window_end_s:
                self._close_window()
            if edge_s == to_s:
                return

    def _step(self, to_s: float) -> None:
        """One part of `advance`, within one window."""
        new = self._source.upto(to_s)
        if len(new.t_s):
            seq = np.arange(self.arrived, self.arrived + len(new.t_s))
            service_s = self.spec.service_s(new.input_tokens, new.output_tokens)
            self._waiting.append(_Waiting(seq, new.t_s, service_s))
            self.arrived += len(seq)
            self._queue_depth += len(seq)
            self._tokens += int(new.input_tokens.sum()) + int(new.output_tokens.sum())
            if self._token_times is not None:
                self._token_times.arrived(new.input_tokens, new.output_tokens)
        self._count_capacity(to_s)
        self.now_s = to_s
        if self._waiting and len(self._free_s) and self._free_s[0] <= to_s:
            self._start(to_s)
        if self.in_service:
            self._complete(to_s)

    def _count_capacity(self, to_s: float) -> None:
        from_us, to_us = _microseconds(self.now_s), _microseconds(to_s)
        self._capacity_us += len(self._free_s) * (to_us - from_us)
        if len(self._drained_s):
            until_s = np.minimum(self._drained_s, to_s)
            self._capacity_us += _microseconds(until_s) - len(until_s) * from_us
            self._drained_s = self._drained_s[self._drained_s > to_s]

    def _start(self, to_s: float) -> None:
        parts = [self._running]
        while self._waiting:
            head = self._waiting.popleft()
            eligible_s = np.maximum(head.arrival_s, self._changed_s)
            hold_s = head.service_s
            if self._rate is None:
                start_s, self._free_s = fcfs_starts(eligible_s, hold_s, self._free_s, to_s)
            else:
                start_s, hold_s, self._free_s, self._rate = starts_at_rates(
                    eligible_s, hold_s, self._free_s, self._rate, to_s
                )
            count = len(start_s)
            first = _Waiting._make(column[:count] for column in head)
            hold_s, draining = hold_s[:count], np.zeros(count, dtype=bool)
            end_s = start_s + hold_s
            parts.append(_Running(first.seq, first.arrival_s, hold_s, start_s, end_s, draining, first.service_s))
            self._net_start_us += _microseconds(start_s)
            self._queue_depth -= count
            if count < len(head.seq):
                self._waiting.appendleft(_Waiting._make(column[count:] for column in head))
                break
        self._running = _Running._make(map(np.concatenate, zip(*parts, strict=True)))

    def _complete(self, to_s: float) -> None:
        ended = self._running.end_s <= to_s
        count = int(np.count_nonzero(ended))
        if count == 0:
            return
        done = self._running.at(ended)
        self._running = self._running.at(~ended)
        # Not end - arrival: that could round to less than the service time.
        latency_s = (done.start_s - done.arrival_s) + done.service_s
        self._net_start_us -= _microseconds(done.end_s)
        self.completed += count
        self._window_latencies.add(latency_s)
        if self.logs is not None:
            self.logs.add((done.start_s - done.arrival_s) + done.alone_s)
        if self.spec.objective_s is not None:
            self.violations += int(np.count_nonzero(latency_s > self.spec.objective_s))
        if self._token_times is not None:
            self._token_times.completed(done.seq, done.start_s - done.arrival_s)
        if self._on_served is not None:
            self._on_served(Served(done.seq, done.arrival_s, done.start_s, done.service_s, latency_s))

    def _busy_us(self) -> int:
        return self.in_service * _microseconds(self.now_s) - self._net_start_us

    def _close_window(self) -> None:
        nan = float("nan")
        busy, capacity = self._busy_us(), self._capacity_us
        now = (self.arrived, self.completed, self.violations, busy, capacity, self._tokens)
        arrived, completed, violations, busy_us, capacity_us, tokens = map(int.__sub__, now, self._window_from)
        self._window_from = now
        self._closed += 1
        p50_s, p99_s = self._window_latencies.quantiles_s(0.5, 0.99) if completed else (nan, nan)
        self._rows.extend(
            (
                self.now_s,
                arrived,
                arrived / self._window_s,
                completed,
                p50_s,
                p99_s,
                violations if self.spec.objective_s is not None else nan,
                self._queue_depth,
                busy_us / capacity_us if capacity_us else nan,
                tokens,
            )
        )
        if self.logs is not None:
            self.logs.close()
        if self._token_times is not None:
            self._token_times.close(busy_us / capacity_us * self.spec.slots if capacity_us else 0.0)
        bins = np.flatnonzero(self._window_latencies.counts) if completed else _NO_BINS
        self._recent.append((bins, self._window_latencies.counts[bins]))
        if completed:
            self._latencies.merge(self._window_latencies)
            self._window_latencies.clear()

    # --- changes --------------------------------------------------------------------------

    def set_replicas(self, now_s: float, ready: int) -> Floats:
        """`ready` replicas take requests from `now_s` on; returns when each removed one is idle.

        New slots are free at once. Removed slots are those that get free first: they take no further request and finish
        the one they hold.
        """
        invariant(ready >= 0, f"service {self.spec.name}: {ready} replicas")
        self._change(now_s)
        slots, removed = self.spec.slots, self.replicas - ready
        self.replicas = ready
        if removed <= 0:
            self._set_slots(np.append(self._free_s, np.full(-removed * slots, now_s)), self._rates(-removed * slots))
            self._step(self.now_s)
            return _NO_TIMES
        leaving_s, left_s = np.split(self._free_s, [removed * slots])
        self._set_slots(left_s, self._rates()[removed * slots :])
        busy_s = leaving_s[leaving_s > now_s]
        self._drained_s = np.concatenate([self._drained_s, busy_s])
        self._running.draining[self._on_ready_replicas()[: len(busy_s)]] = True
        return np.maximum(leaving_s[slots - 1 :: slots], now_s)

    def lose(self, now_s: float, replicas: int = 1) -> int:
        """Lose `replicas` ready ones; their requests return to the head of the queue.

        These restart, but their latency still counts from their arrival. Running requests are assumed to be spread
        evenly: sorted by end, a lost replica held every c-th of them. Returns how many were returned to the queue.
        """
        invariant(0 <= replicas <= self.replicas, f"service {self.spec.name}: {replicas} of {self.replicas} lost")
        self._change(now_s)
        if replicas == 0:
            return 0
        on_ready = self._on_ready_replicas()
        gone = np.arange(len(on_ready)) % self.replicas < replicas
        hit, kept = on_ready[gone], on_ready[~gone]
        idle = len(self._free_s) - len(on_ready)
        idle_gone = replicas * self.spec.slots - len(hit)
        rate = self._rates()
        rate = np.append(rate[idle_gone:idle], rate[idle:][~gone])
        self._set_slots(np.append(self._free_s[idle_gone:idle], self._running.end_s[kept]), rate)
        self.replicas -= replicas
        lost = self._running.at(np.sort(hit))
        self._running = self._running.at(np.delete(np.arange(self.in_service), hit))
        self._net_start_us -= len(hit) * _microseconds(self.now_s)
        self._put_back(_Waiting(lost.seq, lost.arrival_s, lost.alone_s))
        self._step(self.now_s)
        return len(hit)

    def set_rates(self, now_s: float, rates: Sequence[float]) -> None:
        """Each ready replica goes at its rate (above 0, over its full speed) from `now_s` on.

        Slots of each replica are assumed to be spread evenly, as in `lose`: sorted by the time at which they get free.
        """
        invariant(len(rates) == self.replicas, f"service {self.spec.name}: {len(rates)} rates")
        before = self._rates()
        after = np.resize(np.array(rates, np.float64), len(before))
        if (np.sort(before) == np.sort(after)).all():
            return
        self._change(now_s)
        before = self._rates()
        slower = before / after
        rows = self._on_ready_replicas()
        idle = len(before) - len(rows)
        free_s = np.append(self._free_s[:idle], now_s + (self._free_s[idle:] - now_s) * slower[idle:])
        self._running.service_s[rows] += free_s[idle:] - self._running.end_s[rows]
        self._running.end_s[rows] = free_s[idle:]
        self._set_slots(free_s, after)
        self._step(self.now_s)

    def _rates(self, more: int = 0) -> Floats:
        """Rates of all slots, with this number of further slots at full speed."""
        known = np.ones(len(self._free_s)) if self._rate is None else self._rate
        return np.append(known, np.ones(more))

    def _set_slots(self, free_s: Floats, rate: Floats) -> None:
        order = np.lexsort((-rate, free_s))
        self._free_s = free_s[order]
        self._rate = None if (rate == 1.0).all() else rate[order]

    def _change(self, now_s: float) -> None:
        self.advance(now_s)
        self._changed_s = now_s

    def _on_ready_replicas(self) -> NDArray[np.intp]:
        """Rows of `_running` that hold slots of ready replicas, first to end first."""
        rows = np.flatnonzero(~self._running.draining)
        return rows[np.argsort(self._running.end_s[rows], kind="stable")]

    def _put_back(self, lost: _Waiting) -> None:
        """Insert into the queue in order of arrival, before requests that never started."""
        if len(lost.seq) == 0:
            return
        parts = [lost]
        while self._waiting and self._waiting[0].seq[0] < lost.seq.max():
            parts.append(self._waiting.popleft())
        merged = _Waiting._make(map(np.concatenate, zip(*parts, strict=True)))
        order = np.argsort(merged.seq, kind="stable")
        self._waiting.appendleft(_Waiting._make(column[order] for column in merged))
        self._queue_depth += len(lost.seq)
        self.requeued += len(lost.seq)


def serving_totals(services: Sequence[ServiceSim]) -> ServingTotals:
    """All services together: violations cover only services with an objective."""
    latencies = LatencyCounts()
    for service in services:
        latencies.merge(service.latencies())
    judged = [service for service in services if service.spec.objective_s is not None]
    asked = sum(service.arrived for service in judged)
    over = sum(service.violations + service.overdue() for service in judged)
    return ServingTotals(
        requests=sum(service.arrived for service in services),
        p99_latency_s=latencies.quantiles_s(0.99)[0] if latencies.total else None,
        violation_ratio=over / asked if asked else None,
    )
