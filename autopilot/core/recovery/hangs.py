"""Hung gangs: inactive gangs on GPUs, according to fresh telemetry without gaps.

Theory of operation. A gang can hang in two ways while all of its members look alive. Either all GPUs are idle, because
a member waits without end. Or all GPUs are busy waiting: their SMs are full, while tensor cores, memory and links are
silent, because some members spin in a collective never entered by another member (reference: DCGM facts, pitfalls).

Missing measurements count in favour of the gang: a gang with a GPU without samples is not judged. The activity counters
are one family and can fail together. So power must be measured and agree with a hang, and no link may carry data.

A broken exporter may report fresh zeros for everything. A verdict therefore requires other active work in the same
source at the same time (`doubts`), and on each node of the gang with other work. If a larger share of the gangs of one
source is inactive at once than the policy allows, the telemetry is at fault.

A hang is a change: only a gang with activity before (`at_work`) can hang. A gang without any activity since its start
probably only holds its GPUs, and would do the same after a restart.
"""

from __future__ import annotations

import numpy as np

from autopilot.core.hardware.idle_power import WORKS_POWER
from autopilot.core.intake.sight import fresh_samples
from autopilot.core.intake.usage.contradiction import contradicted, copying, memory_changes, power_over_idle
from autopilot.core.model.policy import Policy
from autopilot.core.model.records import Evidence, NoteCode
from autopilot.core.model.snapshot import Bools, ClusterSnapshot, SloClass, State
from autopilot.core.model.work import on_shares, whole_gpus

COVERED = 0.9
"""Share of the samples of a window that must be present: a missing scrape is not idleness."""
BUSY_RATIO = 0.9
"""SM activity from which a GPU counts as full."""
SILENT_BYTES_S = 1e6
"""NVLink traffic of a GPU up to which it takes part in no collective: only heartbeats of a library."""

SPINS_POWER = 4.0
"""Power over that of a loaded GPU without work up to which full SMs may only wait. Dense work draws more."""


def doing_nothing(snapshot: ClusterSnapshot, policy: Policy) -> Bools:
    """Running batch gangs of several whole GPUs, all inactive over the longest window. Shape [workloads]."""
    work, held = snapshot.workloads, snapshot.placements
    candidates = judged(snapshot)
    if not candidates.any():
        return candidates
    quiet = _quiet(snapshot, policy)
    gpus = np.bincount(held.workload, minlength=len(work.id))
    silent = np.bincount(held.workload, quiet[held.gpu] & (held.instance < 0), minlength=len(work.id))
    return np.asarray(candidates & (silent == gpus))


def at_work(snapshot: ClusterSnapshot, policy: Policy, now_s: float) -> Bools:
    """Gangs with GPUs active, other than by waiting, in the longest window. Shape [workloads].

    Full SMs alone are not activity, because a waiting collective spins. The gang must have started before the window:
    earlier samples belong to other work.
    """
    work, held = snapshot.workloads, snapshot.placements
    with np.errstate(invalid="ignore"):
        candidates = judged(snapshot) & (now_s - work.start_s >= window_s(snapshot))
    if not candidates.any():
        return candidates
    worked = active_gpus(snapshot, policy, longest_window(snapshot))
    return np.asarray(candidates & (np.bincount(held.workload, worked[held.gpu], minlength=len(work.id)) > 0))


def judged(snapshot: ClusterSnapshot) -> Bools:
    """Gangs open to judgement: running batch work on several whole GPUs, if SM and memory activity are measured.

    Its GPUs must be known, and its own: DCGM copies the activity of a shared GPU to each sharer. Shape [workloads].
    """
    work, held, table = snapshot.workloads, snapshot.placements, snapshot.telemetry
    if not table.windows_s or not len(held.gpu) or not {"sm_active_ratio", "dram_active_ratio"} <= set(table.signals):
        return np.zeros(len(work.id), np.bool_)
    candidates = (
        (work.state == State.RUNNING)
        & (work.slo_class == SloClass.BATCH)
        & (work.service < 0)
        & whole_gpus(work)
        & ~on_shares(snapshot)
        & ~work.excluded
    )
    gpus = np.bincount(held.workload, minlength=len(work.id))
    candidates[held.workload[held.assumed]] = False
    return np.asarray(candidates & (gpus > 1))


def window_s(snapshot: ClusterSnapshot) -> float:
    """Length of the longest window; 0 without telemetry."""
    return max(snapshot.telemetry.windows_s, default=0.0)


Doubt = tuple[NoteCode, tuple[Evidence, ...]]
"""Why the telemetry of a gang is not trusted: the code of the note, and the facts that its words name."""


def doubts(snapshot: ClusterSnapshot, policy: Policy, suspects: Bools, known: Bools) -> dict[int, Doubt]:
    """The reasons for distrust in the telemetry of some suspects, by row.

    `known` [workloads] are gangs known to be inactive. They are no evidence for or against their exporter.
    """
    rules, work, held = policy.recovery, snapshot.workloads, snapshot.placements
    if not suspects.any():
        return {}
    fresh = _fresh(snapshot, policy)
    # by placement: running work on a GPU with fresh samples, and whether it was active in the shortest window
    counts = (work.state == State.RUNNING)[held.workload] & ~known[held.workload] & fresh[held.gpu]
    alive = counts & active_gpus(snapshot, policy, shortest_window(snapshot))[held.gpu]
    source = _sources(snapshot)[held.gpu]
    named = snapshot.telemetry.sources or ("telemetry",)
    found: dict[int, Doubt] = {}
    faulty = {
        number: facts
        for number in np.unique(source[suspects[held.workload]]).tolist()
        if (facts := _fault(snapshot, policy, suspects, counts & (source == number)))
    }
    for row in np.flatnonzero(suspects).tolist():
        mine = held.workload == row
        for number in np.unique(source[mine]).tolist():
            beside = counts & ~mine & (source == number)
            at_work = int((alive & beside).sum())
            by = Evidence("source", named[number] if 0 <= number < len(named) else "telemetry")
            if number in faulty:
                found[row] = NoteCode.HANG_TOO_MANY, (*faulty[number], by)
            elif not at_work or at_work < rules.alive_share * int(beside.sum()):
                others = Evidence("at_work", at_work, "GPUs"), Evidence("others", int(beside.sum()), "GPUs")
                found[row] = NoteCode.HANG_FEW_AT_WORK, (*others, by)
            else:
                dark = _dark_nodes(snapshot, mine, beside, alive)
                if dark:
                    found[row] = NoteCode.HANG_DARK_NODE, (Evidence("node", dark[0]), by)
    return found


def _fault(snapshot: ClusterSnapshot, policy: Policy, suspects: Bools, counts: Bools) -> tuple[Evidence, ...]:
    """The numbers if too many gangs of one source are inactive at once for a hang; () otherwise."""
    gangs = np.zeros(len(suspects), np.bool_)
    gangs[snapshot.placements.workload[counts]] = True
    gangs &= judged(snapshot)
    total, quiet = int(gangs.sum()), int((gangs & suspects).sum())
    if quiet <= max(1.0, policy.recovery.hung_share * total):
        return ()
    return Evidence("quiet", quiet, "gangs"), Evidence("gangs", total, "gangs")


def _dark_nodes(snapshot: ClusterSnapshot, mine: Bools, beside: Bools, alive: Bools) -> list[str]:
    """Nodes of a gang with other work, none of it active."""
    held = snapshot.placements
    others, lit = held.node[beside], held.node[beside & alive]
    return [
        str(snapshot.nodes.id[node])
        for node in np.unique(held.node[mine]).tolist()
        if node in others and node not in lit
    ]


def _sources(snapshot: ClusterSnapshot) -> np.ndarray:
    """The source of the measurements of each GPU. Shape [gpus]; 0 if the table names no source."""
    table, count = snapshot.telemetry, len(snapshot.gpus.uuid)
    return table.source[:count] if len(table.source) else np.zeros(count, np.int8)


def longest_window(snapshot: ClusterSnapshot) -> int:
    """Index of the longest window."""
    return int(np.argmax(snapshot.telemetry.windows_s))


def shortest_window(snapshot: ClusterSnapshot) -> int:
    """Index of the shortest window."""
    return int(np.argmin(snapshot.telemetry.windows_s))


def _fresh(snapshot: ClusterSnapshot, policy: Policy) -> Bools:
    """GPUs with a sample in the shortest window, neither stale nor in the future. Shape [gpus]."""
    table, count = snapshot.telemetry, len(snapshot.gpus.uuid)
    young = fresh_samples(table.age_s[:count], policy.freshness.telemetry_s, policy.clock.max_skew_s)
    return np.asarray(young & (table.samples[shortest_window(snapshot), :count] > 0))


def active_gpus(snapshot: ClusterSnapshot, policy: Policy, window: int) -> Bools:
    """GPUs active in a window, other than by waiting. Shape [gpus]."""
    ratio = policy.recovery.hung_ratio
    sm, dram, tensor, links, mean, _ = _activity(snapshot, window)
    talked = links > SILENT_BYTES_S
    return np.asarray((dram > ratio) | (tensor > ratio) | talked | ((sm > ratio) & (mean < BUSY_RATIO)))


def _quiet(snapshot: ClusterSnapshot, policy: Policy) -> Bools:
    """GPUs known to be inactive over the longest window. Shape [gpus].

    A hung process holds memory and neither takes nor returns any. A GPU without memory in use is not counted.
    """
    table, count = snapshot.telemetry, len(snapshot.gpus.uuid)
    longest, shortest = longest_window(snapshot), shortest_window(snapshot)
    ratio = policy.recovery.hung_ratio
    sm, dram, tensor, links, mean, memory = _activity(snapshot, longest)
    power = power_over_idle(snapshot, longest)
    wanted = table.samples[shortest, :count] * table.windows_s[longest] / table.windows_s[shortest] * COVERED
    covered = _fresh(snapshot, policy) & (table.samples[longest, :count] >= wanted)
    with np.errstate(invalid="ignore"):
        idle = (sm <= ratio) & (dram <= ratio) & ~(tensor > ratio) & ~(links > SILENT_BYTES_S)
        idle &= ~copying(snapshot, longest) & (power <= WORKS_POWER)
        idle &= ~contradicted(snapshot)[:count] & ~(_most(snapshot, "video_ratio", longest) > ratio)
        spinning = (mean >= BUSY_RATIO) & (tensor <= ratio) & (dram <= ratio) & (links <= SILENT_BYTES_S)
        spinning &= power <= SPINS_POWER
    return np.asarray(covered & (idle | spinning) & ~(memory <= 0) & ~memory_changes(snapshot)[:count])


def _activity(snapshot: ClusterSnapshot, window: int) -> tuple[np.ndarray, ...]:
    """Over a window: maxima of SM, memory and tensor activity and of NVLink traffic, mean SM activity, memory in use.

    Each has shape [gpus].
    """
    table, count = snapshot.telemetry, len(snapshot.gpus.uuid)
    signals = ("sm_active_ratio", "dram_active_ratio", "tensor_active_ratio", "nvlink_bytes_s")
    mean = np.asarray(table.mean[table.signals.index("sm_active_ratio"), window, :count])
    return (*(_most(snapshot, signal, window) for signal in signals), mean, _most(snapshot, "fb_used_mib", window))


def _most(snapshot: ClusterSnapshot, signal: str, window: int) -> np.ndarray:
    """The maximum of a signal in a window; NaN without a measurement. Shape [gpus]."""
    table, count = snapshot.telemetry, len(snapshot.gpus.uuid)
    if signal not in table.signals:
        return np.full(count, np.nan)
    return np.asarray(table.maximum[table.signals.index(signal), window, :count])
