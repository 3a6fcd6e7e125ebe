"""A guest declares protection while its work runs on borrowed GPUs, and learns at once how far that goes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.kits.acting_kit import CHECKED
from tests.kits.deciding_kit import Deciding
from tests.kits.kueue_kit import JOBS
from tests.kits.playground_acting import policy_of

CONTRACT = "gpu-autopilot.io/"


class Guest(Deciding):
    """Two nodes that queue `owner` is guaranteed; two gangs of queue `guest` run on them."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, policy_of(), 2)
        cohort: dict[str, Any] = {"cohortName": "all", "admissionChecksStrategy": CHECKED}
        self.kueue.queue("owner", 16, preemption={"reclaimWithinCohort": "Any"}, **cohort)
        self.kueue.queue("guest", 0, **cohort)
        for name in ("g0", "g1"):
            self.ask("POST", JOBS, self.kueue.job_of(name, "guest", 8))
        self.until(lambda: self.hosts("g0") and self.hosts("g1"))

    def declare(self, name: str, **declared: str) -> None:
        """Its owner changes annotations of the Job that runs."""
        notes = {CONTRACT + key.replace("_", "-"): value for key, value in declared.items()}
        self.ask("PATCH", f"{JOBS}/{name}", {"metadata": {"annotations": notes}})
        self.wait(10.0)

    def told(self, name: str) -> int:
        """Events that say how far its protection goes."""
        return [reason for reason, _ in self.events(name)].count("ProtectionLent")

    def begin_again(self) -> None:
        """Another process takes over, with nothing in its memory."""
        with self.running.clock.lock:
            self._begin()
        self.wait(10.0)


def test_a_guest_that_declares_late_is_told_once_and_goes_when_the_owner_returns(tmp_path: Path) -> None:
    """For each declaration, and also by a new leader without memory; other work gets no Event."""
    cluster = Guest(tmp_path)
    assert cluster.told("g0") == 0
    cluster.declare("g0", preemptible="false")
    assert (cluster.told("g0"), cluster.told("g1")) == (1, 0)
    cluster.declare("g0", exclude="true")
    cluster.begin_again()
    assert (cluster.told("g0"), cluster.told("g1")) == (1, 0)
    for name in ("o0", "o1"):
        cluster.ask("POST", JOBS, cluster.kueue.job_of(name, "owner", 8))
    cluster.until(lambda: cluster.hosts("o0") and cluster.hosts("o1"))
    cluster.close()
