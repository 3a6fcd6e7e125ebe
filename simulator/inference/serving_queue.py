"""The exact queue behind a service: first come, first served, over c equal servers.

`fcfs_starts` solves the Kiefer-Wolfowitz recursion: each request starts when it has arrived and
the server that gets free first is free. Because starts never decrease, this equals the fixed
point  start = max(eligible, sort(free + ends)[:n]),  ends = start + service,  which is found by
a few vectorised passes when requests rarely wait or servers are many; else a heap walks through
the requests. Both add the same two numbers per request and otherwise only compare, so they agree
to the last bit, and so does any way of cutting the requests into calls.

`LatencyCounts` holds latencies as counts in log-linear bins of bounded relative error.
"""

from __future__ import annotations

from heapq import heapify, heapreplace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

_PASSES = 6  # vectorised passes over a block before the settled part is taken and the rest retried
_LARGEST_BLOCK = 32768
_SMALLEST_BLOCK = 256  # below this the fixed cost of a vectorised pass exceeds the heap's
_FEW = 64  # this few requests on this few servers always use the heap
_HEAP_STRETCH = 4096  # requests that the heap serves before vectorised passes are tried again
_SHORTEST_S = 1e-6  # shorter services could vanish in rounding, which would invalidate the fixed point
_PASS_COST = 8  # elements that one vectorised pass handles in the time the heap serves a request


class Started(NamedTuple):
    """`start_s` of the first requests, and the sorted times at which each server is free then."""

    start_s: Floats
    free_s: Floats


def fcfs_starts(eligible_s: Floats, service_s: Floats, free_s: Floats, to_s: float) -> Started:
    """Starts of the requests that start at or before `to_s`, in their order.

    `eligible_s` (n, never decreasing) is when each may start, `service_s` (n, >= 0) how long it holds its server,
    `free_s` (c, sorted) when each server gets free. Requests not returned have not started; later arrivals cannot
    change those returned.
    """
    count, servers = len(eligible_s), len(free_s)
    if count == 0 or servers == 0 or max(eligible_s[0], free_s[0]) > to_s:
        return Started(np.empty(0), free_s)
    parts: list[Floats] = []
    done, block = 0, max(servers, _SMALLEST_BLOCK)
    heap_until = count if service_s.min() < _SHORTEST_S else 0
    while done < count:
        if done < heap_until or (servers < _FEW and count - done < _FEW):
            stop = min(count, max(heap_until, done + _FEW))
            part = _by_heap(eligible_s[done:stop], service_s[done:stop], free_s, to_s)
        else:
            stop = min(count, done + block)
            part, passes = _by_passes(eligible_s[done:stop], service_s[done:stop], free_s, to_s)
            settled = len(part.start_s)
            if passes * (servers + stop - done) > _PASS_COST * max(settled, 1):
                heap_until = done + settled + _HEAP_STRETCH
                block = max(servers, _SMALLEST_BLOCK)
            elif passes <= 2:
                block = min(2 * block, max(_LARGEST_BLOCK, servers))
            elif passes == _PASSES:
                block = max(settled, _SMALLEST_BLOCK)
        parts.append(part.start_s)
        free_s = part.free_s
        done += len(part.start_s)
        if done < count and max(eligible_s[done], free_s[0]) > to_s:
            break
    return Started(np.concatenate(parts), free_s)


class StartedAtRates(NamedTuple):
    """The same with slots of several speeds: `hold_s` is how long each request holds its server; `rate` goes with
    `free_s`.
    """

    start_s: Floats
    hold_s: Floats
    free_s: Floats
    rate: Floats


def starts_at_rates(eligible_s: Floats, service_s: Floats, free_s: Floats, rate: Floats, to_s: float) -> StartedAtRates:
    """Starts on servers that go at these rates of their full speed; of those that get free at once the fastest takes
    the request.
    """
    heap = [(free, -speed) for free, speed in zip(free_s.tolist(), rate.tolist(), strict=True)]
    heapify(heap)
    starts: list[float] = []
    holds: list[float] = []
    for eligible, service in zip(eligible_s.tolist(), service_s.tolist(), strict=True):
        free, slow = heap[0]
        start = max(eligible, free)
        if start > to_s:
            break
        starts.append(start)
        holds.append(service / -slow)
        heapreplace(heap, (start + holds[-1], slow))
    left = np.array(sorted(heap)).reshape(-1, 2)
    return StartedAtRates(np.array(starts), np.array(holds), left[:, 0].copy(), -left[:, 1])


def _by_heap(eligible_s: Floats, service_s: Floats, free_s: Floats, to_s: float) -> Started:
    heap = free_s.tolist()
    heapify(heap)
    starts: list[float] = []
    for eligible, service in zip(eligible_s.tolist(), service_s.tolist(), strict=True):
        free = heap[0]
        start = eligible if eligible > free else free  # noqa: FURB136 - max() takes twice the time of the loop
        if start > to_s:
            break
        starts.append(start)
        heapreplace(heap, start + service)
    return Started(np.array(starts, dtype=np.float64), np.sort(np.array(heap, dtype=np.float64)))


def _by_passes(eligible_s: Floats, service_s: Floats, free_s: Floats, to_s: float) -> tuple[Started, int]:
    """The settled first part of a block, at least one request of it, and the passes it took.

    Guess and result never decrease and services are not zero, so every end guessed for request n
    or a later one is after the start guessed for n. Where guess and result agree up to n, that
    start was therefore found among the ends of earlier requests alone: the part before the first
    difference is exact.
    """
    servers, count = len(free_s), len(eligible_s)
    if eligible_s[0] >= free_s[0]:
        starts = eligible_s  # a server idles: guess that no request waits
    else:
        starts = np.maximum(eligible_s, free_s[np.minimum(np.arange(count), servers - 1)])
    settled, passes = 0, 0
    ends = np.empty(servers + count)
    while settled < count and passes < _PASSES:
        ends[:servers] = free_s
        np.add(starts, service_s, out=ends[servers:])
        ends.sort()
        better = np.maximum(eligible_s, ends[:count])
        passes += 1
        differs = starts != better
        settled = int(differs.argmax()) if differs.any() else count
        starts = better
    taken = int(np.searchsorted(starts[:settled], to_s, side="right"))
    if taken < count:
        ends = np.concatenate([free_s, starts[:taken] + service_s[:taken]])
        ends.sort()
    return Started(starts[:taken], ends[taken:].copy()), passes


# --- latencies -------------------------------------------------------------------------------

_BIN_BITS = 7  # 128 bins of equal width per factor of two: at most 1/256 = 0.39 % off the middle
_SHIFT = 52 - _BIN_BITS
_LOWEST_EXPONENT, _HIGHEST_EXPONENT = -14, 24  # 61 microseconds to 194 days
_FIRST = (1023 + _LOWEST_EXPONENT) << _BIN_BITS
BINS = (_HIGHEST_EXPONENT - _LOWEST_EXPONENT) << _BIN_BITS
RELATIVE_ERROR = 0.5 / (1 << _BIN_BITS)
_LOWER_S: Floats = ((np.arange(BINS + 1, dtype=np.int64) + _FIRST) << _SHIFT).view(np.float64)


class LatencyCounts:
    """Number of latencies in each bin: bounded memory (4,864 counts), integer sums.

    The bin is the exponent and the first 7 bits of the mantissa of the IEEE 754 number, so that counting is exact and
    the same on every machine. A quantile is the middle of its bin: within `RELATIVE_ERROR` = 0.39 % of the nearest-rank
    quantile between 61 us and 194 days; values outside are counted in the first or last bin.
    """

    def __init__(self) -> None:
        self.counts: Ints = np.zeros(BINS, dtype=np.int64)
        self.total = 0

    def add(self, latency_s: Floats, times: int = 1) -> None:
        """Count every one of `latency_s` (finite, >= 0), each so many times."""
        bins = (np.ascontiguousarray(latency_s).view(np.int64) >> _SHIFT) - _FIRST
        self.counts += np.bincount(np.clip(bins, 0, BINS - 1), minlength=BINS) * times
        self.total += len(latency_s) * times

    def merge(self, other: LatencyCounts) -> None:
        """Add the counts of `other`."""
        self.counts += other.counts
        self.total += other.total

    def clear(self) -> None:
        """Reset all counts."""
        self.counts[:] = 0
        self.total = 0

    def quantiles_s(self, *ratios: float) -> tuple[float, ...]:
        """Nearest-rank quantiles (`0.99` for p99); NaN when nothing was counted."""
        if self.total == 0:
            return tuple(float("nan") for _ in ratios)
        reached = np.cumsum(self.counts)
        ranks = [max(1, int(np.ceil(ratio * self.total - 1e-9))) for ratio in ratios]
        bins = np.searchsorted(reached, ranks, side="left")
        return tuple(float(0.5 * (_LOWER_S[b] + _LOWER_S[b + 1])) for b in bins)

    def below(self, edges_s: Floats) -> Ints:
        """Count of latencies below each edge, like a cumulative histogram.

        Exact for edges on a bin (1, 1.5, 2.5, 5, 10, 20, 60 s ...), otherwise the bin that holds the edge is excluded.
        """
        reached = np.concatenate([[0], np.cumsum(self.counts)])
        at = np.searchsorted(_LOWER_S, edges_s, side="right") - 1
        return np.asarray(reached[np.clip(at, 0, BINS)])
