"""Advance reservations: nodes kept for some users or accounts from one time to another."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from simulator.baselines.slurm.model import Job


@dataclass(frozen=True, slots=True)
class Reservation:
    """Nodes (a bit set) from `start_s` to `end_s`; known to the scheduler from `since_s` on."""

    name: str
    start_s: float
    end_s: float
    nodes: int
    users: frozenset[str] = frozenset()
    accounts: frozenset[str] = frozenset()
    since_s: float = float("-inf")

    def admits(self, job: Job) -> bool:
        """Whether the job may use it."""
        return job.user in self.users or job.account in self.accounts


def open_to(job: Job, reservations: Iterable[Reservation], start_s: float, now_s: float) -> int | None:
    """The nodes that a job may use when it starts then and takes its whole limit; None where it waits for its own
    reservation to begin. A bit set, -1 for all.
    """
    known = [each for each in reservations if each.since_s <= now_s < each.end_s]
    if job.reservation:
        own = next((each for each in known if each.name == job.reservation and each.admits(job)), None)
        return own.nodes if own is not None and own.start_s <= start_s < own.end_s else None
    allowed = -1
    for each in known:
        if start_s <= each.end_s and start_s + job.limit_s > each.start_s:
            allowed &= ~each.nodes
    return allowed
