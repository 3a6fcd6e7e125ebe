"""Evidence of an absent controller: its Lease is not renewed, and the API server is healthy all the time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from autopilot.service.leading.elector import Requests, steady_s
from autopilot.service.leading.lease import LeaseName, LeaseRecord, read_lease

NOT_FOUND = 404


@dataclass(frozen=True, slots=True)
class Seen:
    """Result of one look. `absent_s`: time without a renewal of the Lease under a healthy server."""

    absent_s: float
    problem: str = ""  # reason for an unhealthy server


class LeaseWatch:
    """Looks at the Lease. It writes nothing."""

    def __init__(
        self, api: Requests, name: LeaseName, every_s: float, monotonic_s: Callable[[], float] = steady_s
    ) -> None:
        """`every_s`: time between two looks; a longer pause of this process counts as an outage."""
        self._api, self.name, self._every_s, self._monotonic_s = api, name, every_s, monotonic_s
        self._last: LeaseRecord | None = None
        self._since_s = float("inf")  # of the last change, or of the return of the server
        self._looked_s = float("-inf")

    def look(self) -> Seen:
        """One look. A missing or returned Lease is not renewed."""
        answer, now_s = self._api.get(self.name.path), self._monotonic_s()
        paused = now_s - self._looked_s > 3 * self._every_s
        self._looked_s = now_s
        if answer.status not in {200, NOT_FOUND}:
            self._since_s = float("inf")
            return Seen(0.0, f"{self.name}: {answer.reason}")
        record = read_lease(answer.document)[0] if answer.status == 200 else LeaseRecord()
        if paused or record != self._last or self._since_s == float("inf"):
            self._last, self._since_s = record, now_s
        return Seen(now_s - self._since_s)
