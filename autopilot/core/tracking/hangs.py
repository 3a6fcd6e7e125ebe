"""Gangs that hold their GPUs and do nothing with them, by telemetry that is fresh and without gaps.

Two ways to be dead while all members look alive: every GPU idle (a member waits for something that never comes), or
every GPU busy with waiting, its SMs full and tensor cores, memory and links silent (the others spin in a collective
that one of them never entered; reference: DCGM facts, pitfalls). Whatever is not measured speaks for the gang: of one
GPU without a sample nothing is said.

A broken exporter may say zero of everything, freshly. So a verdict needs the same exporter to show other work alive at
the same time (`doubts`): of the same source, and on each node of the gang as far as other work runs there. Where more
gangs of one source than policy's share do nothing at once, the telemetry is at fault.

A hang is a change: only a gang that was seen at work before (`at_work`) is hung. One that has done nothing since it
started mostly just holds its GPUs, and would do the same after a restart.
"""

from __future__ import annotations

import numpy as np

from autopilot.core.model.policy import Policy
from autopilot.core.model.snapshot import Bools, ClusterSnapshot, SloClass, State
from autopilot.core.model.work import whole_gpus

COVERED = 0.9
"""Share of the samples of a window that must be there: a missing scrape is not idleness."""
BUSY_RATIO = 0.9
"""SM activity from which a GPU counts as full."""
SILENT_BYTES_S = 1e6
"""NVLink traffic of a GPU below which nobody talks to it: heartbeats of a library, never a collective."""


def doing_nothing(snapshot: ClusterSnapshot, policy: Policy) -> Bools:
    """Gangs of several whole GPUs, batch work that runs, whose GPUs all did nothing over the longest window. Shape
    [workloads].
    """
    work, held = snapshot.workloads, snapshot.placements
    candidates = judged(snapshot)
    if not candidates.any():
        return candidates
    quiet = _quiet(snapshot, policy)
    gpus = np.bincount(held.workload, minlength=len(work.id))
    silent = np.bincount(held.workload, quiet[held.gpu] & (held.instance < 0), minlength=len(work.id))
    return np.asarray(candidates & (silent == gpus))


def at_work(snapshot: ClusterSnapshot, policy: Policy, now_s: float) -> Bools:
    """Gangs on whose GPUs something other than waiting was measured in the longest window, all of it theirs. Shape
    [workloads].

    Full SMs alone are not work: a collective that waits spins. The window must lie after the start of the gang, for
    the samples before it are of others.
    """
    work, held = snapshot.workloads, snapshot.placements
    with np.errstate(invalid="ignore"):
        candidates = judged(snapshot) & (now_s - work.start_s >= window_s(snapshot))
    if not candidates.any():
        return candidates
    worked = _worked(snapshot, policy, longest_window(snapshot))
    return np.asarray(candidates & (np.bincount(held.workload, worked[held.gpu], minlength=len(work.id)) > 0))


def judged(snapshot: ClusterSnapshot) -> Bools:
    """Gangs that can be judged at all: batch work on several whole GPUs that runs, SM and memory activity measured.
    Shape [workloads].
    """
    work, held, table = snapshot.workloads, snapshot.placements, snapshot.telemetry
    if not table.windows_s or not len(held.gpu) or not {"sm_active_ratio", "dram_active_ratio"} <= set(table.signals):
        return np.zeros(len(work.id), np.bool_)
    candidates = (
        (work.state == State.RUNNING)
        & (work.slo_class == SloClass.BATCH)
        & (work.service < 0)
        & whole_gpus(work)
        & ~work.excluded
    )
    gpus = np.bincount(held.workload, minlength=len(work.id))
    return np.asarray(candidates & (gpus > 1))


def window_s(snapshot: ClusterSnapshot) -> float:
    """Length of the longest window; 0 without telemetry."""
    return max(snapshot.telemetry.windows_s, default=0.0)


def doubts(snapshot: ClusterSnapshot, policy: Policy, suspects: Bools, known: Bools) -> dict[int, str]:
    """Why the telemetry of some suspects is not believed, by row. `known` [workloads]: gangs that are known to do
    nothing.

    Work that is known to do nothing says nothing of its exporter, neither for nor against it.
    """
    rules, work, held = policy.recovery, snapshot.workloads, snapshot.placements
    if not suspects.any():
        return {}
    fresh = _fresh(snapshot, policy)
    # by placement: work that runs on a GPU with fresh samples, and whether it is seen at work in the last minute
    speaks = (work.state == State.RUNNING)[held.workload] & ~known[held.workload] & fresh[held.gpu]
    alive = speaks & _worked(snapshot, policy, shortest_window(snapshot))[held.gpu]
    source = _sources(snapshot)[held.gpu]
    named = snapshot.telemetry.sources or ("telemetry",)
    found: dict[int, str] = {}
    faulty = {
        number: why
        for number in np.unique(source[suspects[held.workload]]).tolist()
        if (why := _fault(snapshot, policy, suspects, speaks & (source == number)))
    }
    for row in np.flatnonzero(suspects).tolist():
        mine = held.workload == row
        for number in np.unique(source[mine]).tolist():
            beside = speaks & ~mine & (source == number)
            at_work = int((alive & beside).sum())
            name = named[number] if 0 <= number < len(named) else "telemetry"
            if number in faulty:
                found[row] = f"{faulty[number]} by {name}"
            elif not at_work or at_work < rules.alive_share * int(beside.sum()):
                found[row] = f"{name} shows {at_work} of {int(beside.sum())} other GPUs in use at work"
            else:
                dark = _dark_nodes(snapshot, mine, beside, alive)
                if dark:
                    found[row] = f"{name} shows nothing else at work on {dark[0]}, where other work runs"
    return found


def _fault(snapshot: ClusterSnapshot, policy: Policy, suspects: Bools, speaks: Bools) -> str:
    """Too many suspects at once for a hang, among the gangs that a source speaks of; "" where they are few enough."""
    gangs = np.zeros(len(suspects), np.bool_)
    gangs[snapshot.placements.workload[speaks]] = True
    gangs &= judged(snapshot)
    total, quiet = int(gangs.sum()), int((gangs & suspects).sum())
    return (
        f"{quiet} of {total} gangs do nothing at once" if quiet > max(1.0, policy.recovery.hung_share * total) else ""
    )


def _dark_nodes(snapshot: ClusterSnapshot, mine: Bools, beside: Bools, alive: Bools) -> list[str]:
    """Nodes of a gang on which other work runs, none of it seen at work."""
    held = snapshot.placements
    others, lit = held.node[beside], held.node[beside & alive]
    return [
        str(snapshot.nodes.id[node])
        for node in np.unique(held.node[mine]).tolist()
        if node in others and node not in lit
    ]


def _sources(snapshot: ClusterSnapshot) -> np.ndarray:
    """Which source measured each GPU. Shape [gpus]; 0 where the table names none."""
    table, count = snapshot.telemetry, len(snapshot.gpus.uuid)
    return table.source[:count] if len(table.source) else np.zeros(count, np.int8)


def longest_window(snapshot: ClusterSnapshot) -> int:
    """Its number."""
    return int(np.argmax(snapshot.telemetry.windows_s))


def shortest_window(snapshot: ClusterSnapshot) -> int:
    """Its number."""
    return int(np.argmin(snapshot.telemetry.windows_s))


def _fresh(snapshot: ClusterSnapshot, policy: Policy) -> Bools:
    """GPUs with a sample in the shortest window that is young enough, and not of the future. Shape [gpus]."""
    table, count = snapshot.telemetry, len(snapshot.gpus.uuid)
    age_s = table.age_s[:count]
    young = (age_s <= policy.freshness.telemetry_s) & (age_s >= -policy.clock.max_skew_s)
    return np.asarray(young & (table.samples[shortest_window(snapshot), :count] > 0))


def _worked(snapshot: ClusterSnapshot, policy: Policy, window: int) -> Bools:
    """GPUs on which something other than waiting was measured in a window. Shape [gpus]."""
    ratio = policy.recovery.hung_ratio
    sm, dram, tensor, links, mean, _ = _activity(snapshot, window)
    talked = links > SILENT_BYTES_S
    return np.asarray((dram > ratio) | (tensor > ratio) | talked | ((sm > ratio) & (mean < BUSY_RATIO)))


def _quiet(snapshot: ClusterSnapshot, policy: Policy) -> Bools:
    """GPUs that are known to have done nothing over the longest window. Shape [gpus].

    A process that hangs holds its memory: a GPU that shows none in use is not known to be held by one.
    """
    table, count = snapshot.telemetry, len(snapshot.gpus.uuid)
    longest, shortest = longest_window(snapshot), shortest_window(snapshot)
    ratio = policy.recovery.hung_ratio
    sm, dram, tensor, links, mean, memory = _activity(snapshot, longest)
    wanted = table.samples[shortest, :count] * table.windows_s[longest] / table.windows_s[shortest] * COVERED
    covered = _fresh(snapshot, policy) & (table.samples[longest, :count] >= wanted)
    idle = (sm <= ratio) & (dram <= ratio) & ~(tensor > ratio)
    spinning = (mean >= BUSY_RATIO) & (tensor <= ratio) & (dram <= ratio) & (links <= SILENT_BYTES_S)
    return np.asarray(covered & (idle | spinning) & ~(memory <= 0))


def _activity(snapshot: ClusterSnapshot, window: int) -> tuple[np.ndarray, ...]:
    """Over a window: most SM, memory and tensor activity, most NVLink traffic, mean SM activity, memory in use. Each
    of shape [gpus].
    """
    table, count = snapshot.telemetry, len(snapshot.gpus.uuid)

    def most(signal: str) -> np.ndarray:
        if signal not in table.signals:
            return np.full(count, np.nan)
        return np.asarray(table.maximum[table.signals.index(signal), window, :count])

    signals = ("sm_active_ratio", "dram_active_ratio", "tensor_active_ratio", "nvlink_bytes_s")
    mean = np.asarray(table.mean[table.signals.index("sm_active_ratio"), window, :count])
    return (*map(most, signals), mean, most("fb_used_mib"))
