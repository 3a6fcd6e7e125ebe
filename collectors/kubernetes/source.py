"""The caches of a cluster, each kept up to date by a thread of its own."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Sequence

from collectors.kubernetes.cache import Cache, Changes, Health
from collectors.kubernetes.kinds import KINDS, URGENT, Kind
from collectors.kubernetes.reflector import OnChange, Reflector, Timing
from collectors.kubernetes.transport import Requests

REVIVE_S = 5.0
"""Least time between two restarts of ended threads."""


class Cluster:
    """Every kind of `kinds`, in all namespaces or only in those given."""

    def __init__(
        self,
        requests: Requests,
        now_s: Callable[[], float] = time.time,
        *,
        namespaces: Sequence[str] = (),
        kinds: Sequence[Kind] = KINDS,
        urgent: Sequence[Kind] = URGENT,
        timing: Timing | None = None,
        rng: random.Random | None = None,
    ) -> None:
        """`now_s` is the controller's clock, `rng` draws the delays after failures.

        `urgent`: the kinds with changes reported to `on_change`.
        """
        given, seed = timing or Timing(), rng or random.Random()  # noqa: S311 - delays
        self.now_s = now_s
        self.on_change: OnChange | None = None  # called after changes of urgent kinds, by other threads
        self._stop = threading.Event()
        self._caches: dict[str, list[Cache]] = {}
        self._reflectors: list[Reflector] = []
        self._threads: list[threading.Thread] = []
        self._revived_s = float("-inf")
        for kind in kinds:
            for namespace in namespaces if kind.namespaced and namespaces else ("",):
                cache = Cache(kind, namespace)
                self._caches.setdefault(kind.title, []).append(cache)
                own = random.Random(seed.random())  # noqa: S311 - delays
                told = self._changed if kind in urgent else None
                self._reflectors.append(Reflector(cache, requests, now_s, given, own, told))

    def start(self) -> None:
        """Begin to list and watch."""
        self._threads = [self._started(each) for each in self._reflectors]

    def _started(self, reflector: Reflector) -> threading.Thread:
        thread = threading.Thread(target=reflector.run, args=(self._stop,), name="watch", daemon=True)
        thread.start()
        return thread

    def supervise(self) -> None:
        """Start watches with an ended thread again, at most every `REVIVE_S`."""
        if self._stop.is_set() or self.now_s() - self._revived_s < REVIVE_S:
            return
        for place, thread in enumerate(self._threads):
            if not thread.is_alive():
                self._revived_s = self.now_s()
                self._reflectors[place].died()
                self._threads[place] = self._started(self._reflectors[place])

    def counts(self) -> dict[str, dict[tuple[str, ...], float]]:
        """Number of restarts of the watch of each kind, as a metric."""
        found: dict[tuple[str, ...], float] = {}
        for each in self._reflectors:
            found[(each.kind.title,)] = found.get((each.kind.title,), 0.0) + each.restarts
        return {"watch_restarts_total": found}

    def close(self, timeout_s: float = 2.0) -> None:
        """End all watches."""
        self._stop.set()
        for each in self._reflectors:
            each.close()
        end_s = time.monotonic() + timeout_s
        for thread in self._threads:
            thread.join(max(end_s - time.monotonic(), 0.0))

    def wait_synced(self, timeout_s: float) -> bool:
        """Wait until every kind was listed or is known to be absent; False after `timeout_s`."""
        end_s = time.monotonic() + timeout_s
        while not all(each.synced for each in self.health()):
            if self._stop.wait(0.02) or time.monotonic() > end_s:
                return False
        return True

    def step_all(self) -> None:
        """One exchange of each kind in this thread, for a caller without threads."""
        for each in self._reflectors:
            each.step()

    def health(self) -> list[Health]:
        """State of each list."""
        return [cache.health for caches in self._caches.values() for cache in caches]

    def sign(self, now_s: float) -> None:
        """Every list that is kept up to date is known to be as the server's at `now_s`."""
        for cache in (each for caches in self._caches.values() for each in caches):
            if not cache.health.off and not cache.health.problem:
                cache.sign(now_s)

    def versions(self) -> list[tuple[Kind, int]]:
        """The resourceVersion up to which each list is current; -1: not known yet."""
        return [(each.kind, each.version) for each in self._reflectors]

    def drain(self, kind: Kind) -> Changes:
        """Changes of one kind since the last call."""
        caches = self._caches.get(kind.title, [])
        if len(caches) == 1:
            return caches[0].drain()
        every = Changes()
        for cache in caches:
            found = cache.drain()
            every.there += found.there
            every.gone += found.gone
            every.deleted += found.deleted
            every.unread = {} if found.unread is not None else every.unread
        if every.unread is not None:
            every.unread = {uid: each for cache in caches for uid, each in cache.unread.items()}
        return every

    def _changed(self, hurry: bool) -> None:
        if self.on_change is not None:
            self.on_change(hurry)
