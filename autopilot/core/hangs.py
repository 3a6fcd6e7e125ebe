"""Gangs that hold their GPUs and do nothing with them, by telemetry that is fresh and without gaps.

Two ways to be dead while all members look alive: every GPU idle (a member waits for something that never comes), or
every GPU busy with waiting, its SMs full and tensor cores, memory and links silent (the others spin in a collective
that one of them never entered; reference: DCGM facts, pitfalls). Whatever is not measured speaks for the gang: of one
GPU without a sample nothing is said.
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
    work, held, table = snapshot.workloads, snapshot.placements, snapshot.telemetry
    none = np.zeros(len(work.id), np.bool_)
    if (
        not table.windows_s
        or not len(held.gpu)
        or not {"sm_active_ratio", "dram_active_ratio"} <= set(table.signals)
    ):
        return none
    candidates = ((work.state == State.RUNNING) & (work.slo_class == SloClass.BATCH) & (work.service < 0)
                  & (work.gpu_milli == 0) & (work.mig_profile < 0) & ~work.excluded)  # fmt: skip
    if not candidates.any():
        return none
    quiet = _quiet(snapshot, policy)
    gpus = np.bincount(held.workload, minlength=len(work.id))
    silent = np.bincount(held.workload, quiet[held.gpu] & (held.instance < 0), minlength=len(work.id))
    return np.asarray(candidates & (gpus > 1) & (silent == gpus))


def window_s(snapshot: ClusterSnapshot) -> float:
    """Length of the longest window; 0 without telemetry."""
    return max(snapshot.telemetry.windows_s, default=0.0)


def _quiet(snapshot: ClusterSnapshot, policy: Policy) -> Bools:
    """GPUs that are known to have done nothing over the longest window. Shape [gpus]."""
    table, count = snapshot.telemetry, len(snapshot.gpus.uuid)
    longest, shortest = int(np.argmax(table.windows_s)), int(np.argmin(table.windows_s))
    ratio = policy.recovery.hung_ratio

    def most(signal: str) -> np.ndarray:
        if signal not in table.signals:
            return np.full(count, np.nan)
        return np.asarray(table.maximum[table.signals.index(signal), longest, :count])

    sm, dram, tensor, links = map(
        most, ("sm_active_ratio", "dram_active_ratio", "tensor_active_ratio", "nvlink_bytes_s")
    )
    mean = table.mean[table.signals.index("sm_active_ratio"), longest, :count]
    wanted = table.samples[shortest, :count] * table.windows_s[longest] / table.windows_s[shortest] * COVERED
    fresh = ((table.age_s[:count] <= policy.freshness.telemetry_s) & (table.samples[shortest, :count] > 0)
             & (table.samples[longest, :count] >= wanted))  # fmt: skip
    idle = (sm <= ratio) & (dram <= ratio) & ~(tensor > ratio)
    spinning = (mean >= BUSY_RATIO) & (tensor <= ratio) & (dram <= ratio) & (links <= SILENT_BYTES_S)
    return np.asarray(fresh & (idle | spinning))
