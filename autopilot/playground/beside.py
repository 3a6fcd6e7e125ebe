"""The Jobs of tenants without a queue of Kueue, with the autopilot acting.

Their pods exist while `suspend` is false, and are bound on nodes selected by the template, the whole gang at once.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import partial

from autopilot.playground import steps
from autopilot.playground.engine import Checked
from autopilot.playground.entries import Placement
from simulator.specs.clusterqueues import QueueSpec

SUSPENDED = "Suspended"


class Beside(Checked):
    """The engine of queues with our admission check, and of Jobs beside them."""

    def __init__(self, queues: Sequence[QueueSpec], without: Collection[str] = (), *, gate: bool = True) -> None:
        """`without`: tenants with their Jobs in no queue. `gate`: as in `Checked`."""
        super().__init__(queues, gate=gate)
        self.without = frozenset(without)

    def plain(self, job: int) -> bool:
        """True if a job is in no queue."""
        jobs = self._cluster.jobs
        return jobs.service[job] < 0 and jobs.tenants[jobs.tenant[job]] in self.without

    def open_plain(self, job: int, *, suspended: bool) -> None:
        """A person's Job in no queue."""
        self.open(job, "")
        self.entry(job).admitted = not suspended

    def suspend(self, job: int, now_s: float, *, suspended: bool, moving: bool = False, effect: str = "") -> None:
        """`spec.suspend` was written: true stops its pods, false makes them. `moving`: to start them elsewhere.

        `effect`: the instruction behind it.
        """
        cluster, entry = self._cluster, self.entry(job)
        held = cluster.held[job] is not None
        if suspended != entry.admitted or not (held or job in cluster.pending):
            return
        if not suspended:
            self._run(job, now_s)
            return
        entry.admitted = False
        self.tell(steps.Told(now_s, job, SUSPENDED, "The Job is suspended"))
        self._stop(job, now_s, moving=moving, effect=effect)

    def _run(self, job: int, now_s: float) -> None:
        """Its pods are made, and bound now or once there is room on their nodes."""
        spec = self.around.template(job)["spec"]
        placement = Placement(dict(spec.get("nodeSelector") or {}), tuple(spec.get("tolerations") or ()))
        self._resume(job, placement, now_s)

    # --- the life of work -------------------------------------------------------------------

    def on_submit(self, job: int, now_s: float) -> None:
        """It waits until its Job is not suspended."""
        if not self.plain(job):
            super().on_submit(job, now_s)
        elif self.entry(job).admitted:
            self._run(job, now_s)

    def on_requeue(self, job: int, now_s: float) -> None:
        """It has left its GPUs. Unless it was suspended, its Job controller makes other pods."""
        if not self.plain(job):
            super().on_requeue(job, now_s)
            return
        self.on_end(job, now_s)
        self.later(now_s, partial(self._made_again, job))  # after its pods were seen to be gone

    def _made_again(self, job: int, now_s: float) -> None:
        """Other pods of a Job without suspension."""
        if self.entry(job).admitted and job in self._cluster.pending:
            self._run(job, now_s)

    def _waits(self, job: int) -> bool:
        return not self.plain(job) and super()._waits(job)

    def _gates(self, job: int) -> str:
        return "" if self.plain(job) else super()._gates(job)
