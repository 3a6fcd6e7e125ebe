"""Use of the capacity of a simulated run, from the records of its observers."""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite

from autopilot.app.runs.recorder import StayRecorder
from autopilot.core.model.objects import Share
from autopilot.core.model.snapshot import SloClass
from simulator.outcome.idle_use import IdleUse, idle_use
from simulator.outcome.real_use import RealUse, real_use
from simulator.outcome.shared_use import SharedUse, shared_use
from simulator.outcome.spans import sums_of
from simulator.running.owners import Owners
from simulator.running.simulation import Simulated
from simulator.specs.clusterqueues import QueueSpec


def measured_idle_use(simulated: Simulated, stays: StayRecorder | None, owners: Owners) -> IdleUse | None:
    """GPU time left unused by absent owners, and its part used by others; None without absences."""
    if stays is None or not owners.absences:
        return None
    held = [(job, from_s, to_s, gpus) for job, from_s, to_s, _, gpus in stays.stays]
    until_s = min(simulated.run.last_submit_s, simulated.run.end_s)
    gpus = simulated.cluster.hardware.capacity_milli / 1000
    return idle_use(owners.absences, owners.suspensions, held, gpus, until_s)


def measured_real_use(simulated: Simulated, stays: StayRecorder | None, queues: Sequence[QueueSpec]) -> RealUse | None:
    """Use of the capacity; None without behaviours."""
    occupied = stays.occupancies() if stays is not None else []
    until_s = min(simulated.run.last_submit_s, simulated.run.end_s)
    if stays is None or not occupied or until_s <= 0:
        return None
    guarantees = {queue.name: float(sum(queue.guarantee.values())) for queue in queues}
    gpus = simulated.cluster.hardware.capacity_milli / 1000
    return real_use(occupied, sums_of(stays.waiting, until_s), stays.offers(), guarantees, gpus, until_s)


def measured_shared_use(simulated: Simulated, stays: StayRecorder | None) -> SharedUse | None:
    """GPUs held, and the slowdown of the work that shares them; None without records."""
    if stays is None:
        return None
    cluster, jobs = simulated.cluster, simulated.cluster.jobs
    mine = [job for job in range(len(jobs)) if jobs.service[job] < 0]
    owned = {job for job in mine if jobs.slo_class[job] == SloClass.INTERACTIVE or jobs.share[job] == Share.DEV}
    finished = {job for job in mine if isfinite(cluster.end_s[job])}
    return shared_use(stays.holds(), set(mine) - owned, owned, finished)
