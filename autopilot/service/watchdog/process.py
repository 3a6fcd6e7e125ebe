"""The loop of the watchdog."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import structlog

from autopilot.core.model.units import counted, format_duration
from autopilot.service.watchdog.marker import Marker
from autopilot.service.watchdog.removal import Removal
from autopilot.service.watchdog.watch import LeaseWatch

log: Any = structlog.get_logger("watchdog")


class Watchdog:
    """Looks at the Lease, and acts once in each absence. It takes no lead and reads nothing else before."""

    def __init__(
        self,
        api: Any,
        watch: LeaseWatch,
        marker: Marker,
        absence_s: float,
        wall_s: Callable[[], float] = time.time,
    ) -> None:
        self._api, self._watch, self._marker, self._absence_s, self._wall_s = api, watch, marker, absence_s, wall_s
        self._done = False  # everything is removed in this absence
        self._since = ""
        self._removed: dict[str, int] = {}  # by all passes of this absence
        self._said = ""

    def step(self) -> str:
        """One look and its consequences; returns the state in words."""
        seen = self._watch.look()
        if seen.problem:
            return self._say(f"the API server counts as not healthy: {seen.problem}")
        if seen.absent_s < self._absence_s:
            self._done, self._since = False, ""
            return self._say(
                "the Lease is renewed" if seen.absent_s < self._absence_s / 2 else "the Lease is not renewed"
            )
        if self._done:
            return self._said
        reason = f"{self._watch.name} was not renewed for {format_duration(self._absence_s)}"
        if not self._since:
            now = datetime.fromtimestamp(self._wall_s(), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
            begun, self._removed = self._marker.begun()
            self._since = begun or now
        problem = self._marker.write("removing", self._since, reason, self._removed)
        if problem:
            return self._say(f"nothing is removed yet: {problem}")
        removal = Removal(self._api, self._returned, self._removed)
        left = removal.run()
        if left:
            return self._say(f"the removal goes on at the next look: {left}")
        self._done = True
        self._marker.write("removed", self._since, reason, self._removed)
        shown = ", ".join(f"{count} {what}" for what, count in self._removed.items() if count) or "nothing was there"
        unread = removal.unread
        alone = f"; left alone: {counted(len(unread), 'object')}, first {unread[0]}" if unread else ""
        return self._say(f"{reason}; removed: {shown}{alone}")

    def _returned(self) -> str:
        seen = self._watch.look()
        if seen.problem or seen.absent_s < self._absence_s:
            return seen.problem or "the controller is back"
        return ""

    def _say(self, text: str) -> str:
        if text != self._said:
            self._said = text
            log.info(text)
        return text
