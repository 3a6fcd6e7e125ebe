"""The forecaster of interference: who slowed down which replica or gang, from snapshots.

Replicas are judged by their latencies, gangs by their steps per second. Suspects are the workloads that come to the
same GPU, then to the same half of a node (its NUMA node), then to the node. One that comes is an arrival when it runs:
while it starts it does little. What was there when the forecaster began is none.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autopilot.core.model.forecast import Forecasts
from autopilot.core.model.neighbours import Interference, Measure, Nearness, Unjudged
from autopilot.core.model.snapshot import ClusterSnapshot, State
from models.interference_watch import Watch

NAME = "interference"
MINUTE_S = 60.0
JUMP_MIN = 10
"""Minutes between two looks above which the clock has jumped, or the process stood still: histories are forgotten."""
BOARD_GPUS = 4
"""GPUs of a half of a node, by their index: those of one socket of a server with eight [assumed]."""
STEPS_PER_MIN = 600.0
"""Stands for the requests of a gang: its pace is the mean of many steps."""
_NEARNESS = (Nearness.GPU, Nearness.NUMA, Nearness.NODE)
_RUNS = (State.RUNNING, State.CHECKPOINTING)

Pairs = dict[tuple[str, str], int]
"""(uid of a victim, uid of a suspect) -> place in `_NEARNESS`."""


@dataclass(slots=True)
class _Victim:
    id: str
    uid: str
    row: int
    measure: Measure
    run: tuple[int, str]  # incarnation and image
    buckets: int = 0
    taken_min: int = -1


class Interferences:
    """Keeps six hours of minutes of the work that shares hardware, and judges each arrival beside it."""

    name = NAME

    def __init__(self) -> None:
        """Nothing is known: what runs already is no arrival."""
        self._watch = Watch()
        self._victims: dict[str, _Victim] = {}
        self._pairs: Pairs = {}
        self._rows: dict[str, int] = {}  # of each victim in the present snapshot
        self._ids: dict[str, str] = {}  # id of each suspect by its uid
        self._services: dict[str, int] = {}
        self._minute = -1
        self._new = True

    def update(self, now_s: float, snapshot: ClusterSnapshot) -> None:
        """Take in the last whole minute, once."""
        minute = int(now_s // MINUTE_S) - 1
        if minute == self._minute:
            return
        if self._minute >= 0 and not 0 < minute - self._minute <= JUMP_MIN:
            self._watch.clear(minute)
            self._new = True
        self._minute = minute
        self._learn_victims(snapshot)
        self._learn_pairs(snapshot)
        self._push(snapshot)
        self._watch.judge()

    def forecast(self, now_s: float, snapshot: ClusterSnapshot) -> Forecasts:
        """What is open, and what is not judged, by victim."""
        by_row = {each.row: each for each in self._victims.values()}
        found = []
        for (row, suspect), each in self._watch.open.items():
            victim = by_row[row]
            near = self._pairs.get((victim.uid, suspect))
            if near is not None:
                found.append(
                    Interference(
                        victim.id,
                        victim.uid,
                        self._ids[suspect],
                        suspect,
                        victim.measure,
                        _NEARNESS[near],
                        math.exp(each.step.rise),
                        math.exp(each.now) if math.isfinite(each.now) else math.nan,
                        each.step.z,
                        each.confidence,
                        each.step.against,
                        each.minute * MINUTE_S,
                        (each.found_minute + 1) * MINUTE_S,
                    )
                )
        found.sort(key=lambda each: (each.victim, each.suspect))
        waits = sorted((by_row[row].id, reason) for row, reason in self._watch.unjudged.items() if row in by_row)
        return Forecasts(interference=tuple(found), unjudged=tuple(Unjudged(*each) for each in waits))

    # --- who ------------------------------------------------------------------------------------

    def _learn_victims(self, snapshot: ClusterSnapshot) -> None:
        """Rows for replicas with latencies and gangs with a pace; those that are gone are forgotten."""
        work = snapshot.workloads
        measured = set(snapshot.latencies.id.tolist())
        paced = np.isfinite(work.steps_per_s)
        runs = np.isin(work.state, _RUNS)
        known = self._victims
        both = enumerate(zip(work.uid.tolist(), work.id.tolist(), strict=True))
        rows = [at for at, (uid, name) in both if uid in known or name in measured] if measured or known else []
        self._rows = {str(work.uid[at]): at for at in {*rows, *np.flatnonzero(paced).tolist()} if runs[at]}
        for uid, at in self._rows.items():
            name = str(work.id[at])
            victim = known.get(uid)
            run = (int(work.incarnation[at]), str(work.image[at]))
            if victim is None:
                measure = Measure.LATENCY if name in measured else Measure.RATE
                service = f"service {work.service[at]}" if measure is Measure.LATENCY else uid
                code = self._services.setdefault(service, len(self._services))
                self._victims[uid] = _Victim(name, uid, self._watch.add(code), measure, run)
                self._watch.renew(self._victims[uid].row, self._minute)
            elif victim.run != run:
                victim.run = run
                self._watch.renew(victim.row, self._minute)
        for uid in [each for each in self._victims if each not in self._rows]:
            self._watch.drop(self._victims.pop(uid).row)

    def _learn_pairs(self, snapshot: ClusterSnapshot) -> None:
        """Who came beside a victim, and who left."""
        pairs = self._beside(snapshot)
        if not self._new:
            for victim, suspect in pairs.keys() - self._pairs.keys():
                self._watch.arrive(self._victims[victim].row, suspect, self._minute)
            for victim, suspect in self._pairs.keys() - pairs.keys():
                if victim in self._victims:
                    self._watch.leave(self._victims[victim].row, suspect, self._minute)
        self._pairs, self._new = pairs, False

    def _beside(self, snapshot: ClusterSnapshot) -> Pairs:
        """Every running workload beside a victim, with the nearest part that the two share."""
        work, placed = snapshot.workloads, snapshot.placements
        runs = np.isin(work.state, _RUNS)
        is_victim = np.zeros(len(runs), np.bool_)
        is_victim[list(self._rows.values())] = True
        nodes = np.unique(placed.node[is_victim[placed.workload]])
        kept = np.flatnonzero(runs[placed.workload] & np.isin(placed.node, nodes))
        gpu, of = placed.gpu[kept], placed.workload[kept]
        board = snapshot.gpus.index[gpu] // BOARD_GPUS + 1024 * placed.node[kept].astype(np.int64)
        found: Pairs = {}
        for near, part in enumerate((gpu, board, placed.node[kept])):
            for victim, suspect in _joined(part, of, is_victim):
                same = work.service[victim] >= 0 and work.service[victim] == work.service[suspect]
                if victim != suspect and not same:
                    found.setdefault((str(work.uid[victim]), str(work.uid[suspect])), near)
        self._ids = {str(work.uid[at]): str(work.id[at]) for at in np.unique(of).tolist()}
        return found

    # --- what -----------------------------------------------------------------------------------

    def _push(self, snapshot: ClusterSnapshot) -> None:
        """The latencies of the minutes that they are of, and the present paces."""
        work, latencies = snapshot.workloads, snapshot.latencies
        by_id = {each.id: each for each in self._victims.values() if each.measure is Measure.LATENCY}
        values = list[tuple[int, int, float, float]]()
        for place, name in enumerate(latencies.id.tolist()):
            victim = by_id.get(name)
            began = latencies.minute_s[place]
            minute = int(began // MINUTE_S) if math.isfinite(began) else -1
            if victim is None or not victim.taken_min < minute <= self._minute:
                continue
            buckets = int(latencies.buckets[place])
            if victim.buckets and buckets and buckets != victim.buckets:
                self._watch.unlike(victim.row, minute)
            victim.taken_min, victim.buckets = minute, buckets or victim.buckets
            values.append((victim.row, minute, latencies.mean_log_s[place], latencies.requests[place]))
        for at in np.flatnonzero(np.isfinite(work.steps_per_s) & (work.steps_per_s > 0.0)).tolist():
            victim = self._victims.get(str(work.uid[at]))
            if victim is not None and victim.measure is Measure.RATE:
                values.append((victim.row, self._minute, -math.log(work.steps_per_s[at]), STEPS_PER_MIN))
        rows, minutes, level, requests = (np.array(each) for each in zip(*values, strict=True)) if values else _NONE
        self._watch.push(self._minute, rows, level, requests, minutes)


_NONE: tuple[NDArray[Any], ...] = (np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0), np.empty(0))


def _joined(part: NDArray[Any], of: NDArray[Any], is_victim: NDArray[np.bool_]) -> set[tuple[int, int]]:
    """(victim, other) of all that hold something of one part; `of` are rows of workloads."""
    holders: dict[int, set[int]] = {}
    for where, row in zip(part.tolist(), of.tolist(), strict=True):
        holders.setdefault(where, set()).add(row)
    return {
        (victim, other)
        for there in holders.values()
        if len(there) > 1
        for victim in there
        if is_victim[victim]
        for other in there
    }
