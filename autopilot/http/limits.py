"""Limits on requests, by caller for valid credentials, else by address. Health has none.

Each limit is a refilling bucket: `burst` requests at once, `per_s` in the long run. Beyond it the answer is 429 with
`Retry-After`.
"""

from __future__ import annotations

import math
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from ipaddress import IPv6Address, ip_address, ip_network

MOST_BUCKETS = 10_000


@dataclass(frozen=True, slots=True)
class Limit:
    """Allowed requests of one caller."""

    burst: float
    per_s: float


READING = Limit(300.0, 50.0)
CHANGING = Limit(60.0, 2.0)
DELIVERING = Limit(2000.0, 100.0)  # alerts, each delivery repeated until it is confirmed
UNKNOWN = Limit(200.0, 20.0)  # no valid credentials: the files of the page, and mistakes
SIGNING_IN = Limit(10.0, 1 / 6)
RETURNING = Limit(30.0, 1.0)  # from an OpenID Connect provider, of all people behind one address


def network_of(address: str) -> str:
    """The unit of one address: for IPv6 a /64 network, because one machine may have a whole one."""
    try:
        found = ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if not isinstance(found, IPv6Address):
        return address
    return str(found.ipv4_mapped or ip_network((found, 64), strict=False))


class Limits:
    """The buckets of all callers; the least recently used one is forgotten first."""

    def __init__(self, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._clock_s, self._lock = clock_s, threading.Lock()
        self._buckets: OrderedDict[tuple[str, Limit], tuple[float, float]] = OrderedDict()  # (left, at_s)

    def wait_s(self, who: str, limit: Limit) -> float:
        """Count one request; 0 if it is allowed, else the seconds until the next allowed one."""
        now_s, key = self._clock_s(), (who, limit)
        with self._lock:
            left, at_s = self._buckets.pop(key, (limit.burst, now_s))
            left = min(limit.burst, left + (now_s - at_s) * limit.per_s)
            allowed = left >= 1.0
            self._buckets[key] = (left - 1.0 if allowed else left, now_s)
            while len(self._buckets) > MOST_BUCKETS:
                self._buckets.popitem(last=False)
        return 0.0 if allowed else math.ceil((1.0 - left) / limit.per_s)
