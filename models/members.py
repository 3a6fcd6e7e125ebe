"""Members of training gangs, one row for each GPU, with what a minute shows of them (for models/stragglers.py)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from autopilot.core.model.snapshot import F64, GPU_MILLI, I8, I32, I64, ClusterSnapshot, SloClass, State, Texts

OLD_S = 180.0
"""Signals whose newest sample is older are unknown."""

SHORT_S, LONG_S = 60.0, 300.0
"""Windows of the activity of a member, and of the counters of its hardware."""


@dataclass(frozen=True, slots=True)
class Gangs:
    """The gangs behind the rows of members."""

    id: Texts
    uid: Texts
    incarnation: I32
    gpus: I32
    steps_per_s: F64


@dataclass(frozen=True, slots=True)
class Members:
    """One row for each GPU of a gang, in the order of gang, node and GPU. NaN: unknown."""

    gangs: Gangs
    gang: I64  # row of `gangs`
    node: Texts
    gpu: Texts  # UUID
    rank: I32  # -1: unknown
    stage: I32  # of a pipeline; -1: unknown
    busy_s: F64  # time of a step in which the program computes, as it reports it
    tensor: F64  # means of the last minute
    sm: F64
    clock_mhz: F64  # means of the last five minutes
    thermal: F64  # part of the time throttled for its heat; no source reads it yet: its clock tells
    brake: F64  # the same for its power
    pcie_width: F64
    xid: I32
    remap: I8


def members_of(snapshot: ClusterSnapshot) -> Members:
    """Members of batch work that runs on two or more whole GPUs, each known for certain."""
    work, held, gpus, table = snapshot.workloads, snapshot.placements, snapshot.gpus, snapshot.telemetry
    trains = (work.state == State.RUNNING) & (work.service < 0) & (work.slo_class == SloClass.BATCH)
    whole = (held.instance < 0) & (held.milli == GPU_MILLI) & ~held.leaving & ~held.assumed
    rows = np.flatnonzero(trains[held.workload] & whole)
    counts = np.bincount(held.workload[rows], minlength=len(work.id))
    rows = rows[(counts >= 2)[held.workload[rows]] & (counts == work.gpus)[held.workload[rows]]]
    rows = rows[np.lexsort((held.gpu[rows], held.node[rows], held.workload[rows]))]
    known, gang = np.unique(held.workload[rows], return_inverse=True)
    at = held.gpu[rows]
    uuids, told = gpus.uuid[at], snapshot.ranks
    place = {uuid: row for row, uuid in enumerate(told.id.tolist())}
    told_at = np.array([place.get(uuid, -1) for uuid in uuids.tolist()] if place else [-1] * len(rows), np.int64)
    fresh = np.where(table.age_s[at] <= OLD_S, 1.0, np.nan) if len(table.age_s) else np.full(len(rows), np.nan)

    unknown = np.full(len(rows), np.nan)

    def mean(signal: str, window_s: float) -> F64:
        if window_s not in table.windows_s:
            return unknown
        return np.asarray(table.means(signal)[table.windows_s.index(window_s)][at] * fresh, float)

    return Members(
        Gangs(work.id[known], work.uid[known], work.incarnation[known], work.gpus[known], work.steps_per_s[known]),
        gang,
        snapshot.nodes.id[held.node[rows]],
        uuids,
        np.append(told.rank, -1)[told_at].astype(np.int32),
        np.append(told.stage, -1)[told_at].astype(np.int32),
        np.append(told.busy_s, np.nan)[told_at],
        mean("tensor_active_ratio", SHORT_S),
        mean("sm_active_ratio", SHORT_S),
        mean("sm_clock_mhz", LONG_S),
        unknown,
        unknown,
        mean("pcie_width", LONG_S),
        gpus.xid[at],
        gpus.remap[at],
    )
