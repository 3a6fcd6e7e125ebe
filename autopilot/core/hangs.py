"""Gangs that hold their GPUs and do nothing with them, by telemetry that is fresh and without gaps.

Two ways to be dead while all members look alive: every GPU idle (a member waits for something that never comes), or
every GPU busy with waiting, its SMs full and tensor cores, memory and links silent (the others spin in a collective
that one of them never entered; reference: DCGM facts, pitfalls). Whatever is not measured speaks for the gang: of one
GPU without a sample nothing is said.

A hang is a change: only a gang that was seen at work before (`at_work`) is hung. One that has done nothing since it started
mostly just holds its GPUs, and would do the same after a restart.
"""

from __future__ import annotations

import numpy as np

from autopilot.core.policy import Policy
from autopilot.core.snapshot import Bools, ClusterSnapshot, SloClass, State

COVERED = 0.9
"""Share of the samples of a window that must be there: a missing scrape is not idleness."""
BUSY_RATIO = 0.9
"""SM activity from which a GPU counts as full."""
SILENT_BYTES_S = 1e6
"""NVLink traffic of a GPU below which nobody talks to it: heartbeats of a library, never a collective."""


def doing_nothing(snapshot: ClusterSnapshot, policy: Policy) -> Bools:
    """Gangs of several whole GPUs, batch work that runs, whose GPUs all did nothing over the longest window. Shape [workloads]."""
    work, held = snapshot.workloads, snapshot.placements
    candidates = judged(snapshot)
    if not candidates.any():
        return candidates
    quiet = _quiet(snapshot, policy)
    gpus = np.bincount(held.workload, minlength=len(work.id))
    silent = np.bincount(held.workload, quiet[held.gpu] & (held.instance < 0), minlength=len(work.id))
    return np.asarray(candidates & (silent == gpus))


def at_work(snapshot: ClusterSnapshot, policy: Policy, now_s: float) -> Bools:
    """Gangs on whose GPUs something other than waiting was measured in the longest window, all of it theirs. Shape [workloads].

    Full SMs alone are not work: a collective that waits spins. The window must lie after the start of the gang, for
    the samples before it are of others.
    """
    work, held = snapshot.workloads, snapshot.placements
    with np.errstate(invalid="ignore"):
        candidates = judged(snapshot) & (now_s - work.start_s >= window_s(snapshot))
    if not candidates.any():
        return candidates
    ratio = policy.recovery.hung_ratio
    sm, dram, tensor, links, mean = _activity(snapshot)
    talked = links > SILENT_BYTES_S
    worked = (dram > ratio) | (tensor > ratio) | talked | ((sm > ratio) & (mean < BUSY_RATIO))
    return np.asarray(candidates & (np.bincount(held.workload, worked[held.gpu], minlength=len(work.id)) > 0))


def judged(snapshot: ClusterSnapshot) -> Bools:
    """Gangs that can be judged at all: batch work on several whole GPUs that runs, SM and memory activity measured. Shape [workloads]."""
    work, held, table = snapshot.workloads, snapshot.placements, snapshot.telemetry
    if (
        not table.windows_s
        or not len(held.gpu)
        or not {"sm_active_ratio", "dram_active_ratio"} <= set(table.signals)
    ):
        return np.zeros(len(work.id), np.bool_)
    candidates = ((work.state == State.RUNNING) & (work.slo_class == SloClass.BATCH) & (work.service < 0)
                  & (work.gpu_milli == 0) & (work.mig_profile < 0) & ~work.excluded)  # fmt: skip
    gpus = np.bincount(held.workload, minlength=len(work.id))
    return np.asarray(candidates & (gpus > 1))


def window_s(snapshot: ClusterSnapshot) -> float:
    """Length of the longest window; 0 without telemetry."""
    return max(snapshot.telemetry.windows_s, default=0.0)


def _quiet(snapshot: ClusterSnapshot, policy: Policy) -> Bools:
    """GPUs that are known to have done nothing over the longest window. Shape [gpus]."""
    table, count = snapshot.telemetry, len(snapshot.gpus.uuid)
    longest, shortest = int(np.argmax(table.windows_s)), int(np.argmin(table.windows_s))
    ratio = policy.recovery.hung_ratio
    sm, dram, tensor, links, mean = _activity(snapshot)
    wanted = table.samples[shortest, :count] * table.windows_s[longest] / table.windows_s[shortest] * COVERED
    fresh = ((table.age_s[:count] <= policy.freshness.telemetry_s) & (table.samples[shortest, :count] > 0)
             & (table.samples[longest, :count] >= wanted))  # fmt: skip
    idle = (sm <= ratio) & (dram <= ratio) & ~(tensor > ratio)
    spinning = (mean >= BUSY_RATIO) & (tensor <= ratio) & (dram <= ratio) & (links <= SILENT_BYTES_S)
    return np.asarray(fresh & (idle | spinning))


def _activity(snapshot: ClusterSnapshot) -> tuple[np.ndarray, ...]:
    """Over the longest window: most SM, memory and tensor activity, most NVLink traffic, mean SM activity. Each of shape [gpus]."""
    table, count = snapshot.telemetry, len(snapshot.gpus.uuid)
    longest = int(np.argmax(table.windows_s))

    def most(signal: str) -> np.ndarray:
        if signal not in table.signals:
            return np.full(count, np.nan)
        return np.asarray(table.maximum[table.signals.index(signal), longest, :count])

    signals = ("sm_active_ratio", "dram_active_ratio", "tensor_active_ratio", "nvlink_bytes_s")
    mean = np.asarray(table.mean[table.signals.index("sm_active_ratio"), longest, :count])
    return (*map(most, signals), mean)
