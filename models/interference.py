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
from autopilot.core.model.snapshot import ClusterSnapshot, State, Texts
from models.interference_watch import Watch

NAME = "interference"
MINUTE_S = 60.0
JUMP_MIN = 10
"""Minutes between two looks above which the clock has jumped, or the process stood still: histories are forgotten."""
SCAN_MIN = 10
"""Minutes between two looks at all work; in between, unchanged victims are found where they were."""
BOARD_GPUS = 4
"""GPUs of a half of a node, by their index: those of one socket of a server with eight [assumed]."""
STEPS_PER_MIN = 600.0
"""Stands for the requests of a gang: its pace is the mean of many steps."""
_NEARNESS = (Nearness.GPU, Nearness.NUMA, Nearness.NODE)
_RUNS = (State.RUNNING, State.CHECKPOINTING)


@dataclass(slots=True)
class _Victim:
    id: str
    uid: str
    row: int
    measure: Measure
    run: tuple[int, str]  # incarnation and image


@dataclass(frozen=True, slots=True)
class _Suspect:
    id: str
    uid: str
    near: dict[str, int]  # uid of each victim -> place in `_NEARNESS`


_NONE: NDArray[np.int64] = np.empty(0, np.int64)
_UNJOINED: tuple[Texts, NDArray[np.int64]] = (np.empty(0, object), _NONE)
"""Ids of replicas with latencies, and their rows."""


class Interferences:
    """Keeps six hours of minutes of the work that shares hardware, and judges each arrival beside it."""

    name = NAME

    def __init__(self) -> None:
        """Nothing is known: what runs already is no arrival."""
        self._watch = Watch()
        self._victims: dict[str, _Victim] = {}
        self._rows: dict[str, int] = {}  # of each victim in the present snapshot
        self._there = set[str]()  # uids of the work on the nodes of victims, with their incarnations
        self._beside: dict[str, _Suspect] = {}  # those that came
        self._runs: tuple[list[str], list[int], list[str]] = ([], [], [])  # uids, incarnations and images of the rows
        self._services: dict[str, int] = {}
        self._joined = _UNJOINED
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
        self._learn_suspects(snapshot)
        self._push(snapshot)
        self._watch.judge()

    def forecast(self, now_s: float, snapshot: ClusterSnapshot) -> Forecasts:
        """What is open, and what is not judged, by victim."""
        by_row = {each.row: each for each in self._victims.values()}
        found = []
        for (row, suspect), each in self._watch.open.items():
            victim = by_row[row]
            other = self._beside.get(suspect)
            if other is not None:
                found.append(
                    Interference(
                        victim.id,
                        victim.uid,
                        other.id,
                        other.uid,
                        victim.measure,
                        _NEARNESS[other.near[victim.uid]],
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
        work, known = snapshot.workloads, self._victims
        self._rows, before = self._found(snapshot), len(known)
        at_rows = list(self._rows.values())
        runs = list(self._rows), work.incarnation[at_rows].tolist(), work.image[at_rows].tolist()
        for uid, at in self._rows.items() if runs != self._runs else ():
            victim, run = known.get(uid), (int(work.incarnation[at]), str(work.image[at]))
            if victim is None:
                measure = Measure.RATE if np.isfinite(work.steps_per_s[at]) else Measure.LATENCY
                service = f"service {work.service[at]}" if measure is Measure.LATENCY else uid
                code = self._services.setdefault(service, len(self._services))
                known[uid] = _Victim(str(work.id[at]), uid, self._watch.add(code), measure, run)
                self._watch.renew(known[uid].row, self._minute)
            elif victim.run != run:
                victim.run = run
                self._watch.renew(victim.row, self._minute)
        self._runs = runs
        gone = [each for each in known if each not in self._rows] if len(known) > len(self._rows) else []
        for uid in gone:
            self._watch.drop(known.pop(uid).row)
        if gone or len(known) != before:
            self._joined = _UNJOINED

    def _found(self, snapshot: ClusterSnapshot) -> dict[str, int]:
        """The row of each victim by its uid."""
        work, measured = snapshot.workloads, snapshot.latencies.id
        runs, paced = np.isin(work.state, _RUNS), np.flatnonzero(np.isfinite(work.steps_per_s))
        before = np.fromiter(self._rows.values(), np.int64, len(self._rows))
        fits = self._minute % SCAN_MIN != 0 and len(before) > 0
        if fits and before.max() < len(work.uid) and np.array_equal(measured, self._joined[0]):
            same = runs[before].all() and work.uid[before].tolist() == list(self._rows)
            if same and np.isin(paced, before).all():
                return self._rows
        names, known = set(measured.tolist()), self._victims
        both = enumerate(zip(work.uid.tolist(), work.id.tolist(), strict=True))
        rows = [at for at, (uid, name) in both if uid in known or name in names] if names or known else []
        return {str(work.uid[at]): at for at in dict.fromkeys((*rows, *paced.tolist())) if runs[at]}

    def _learn_suspects(self, snapshot: ClusterSnapshot) -> None:
        """Who came beside a victim, and who left."""
        work, placed = snapshot.workloads, snapshot.placements
        runs, is_victim = np.isin(work.state, _RUNS), np.zeros(len(work.state), np.bool_)
        is_victim[list(self._rows.values())] = True
        own = is_victim[placed.workload]
        on = np.zeros(len(snapshot.nodes.id), np.bool_)
        on[placed.node[own]] = True
        rows = np.unique(placed.workload[on[placed.node] & runs[placed.workload]])
        again = work.incarnation[rows]
        keys = [
            uid if not count else f"{uid}#{count}"
            for uid, count in zip(work.uid[rows].tolist(), again.tolist(), strict=True)
        ]
        there = set(keys)
        came = there - self._there if not self._new else set[str]()
        for key in self._beside.keys() - there:
            for victim in self._beside.pop(key).near:
                if victim in self._victims:
                    self._watch.leave(self._victims[victim].row, key, self._minute)
        for key, row in zip(keys, rows.tolist(), strict=True) if came else ():
            if key in came:
                self._arrive(snapshot, key, row, np.flatnonzero(own))
        self._there, self._new = there, False

    def _arrive(self, snapshot: ClusterSnapshot, key: str, row: int, held: NDArray[Any]) -> None:
        """One that came, and what it shares with each victim; `held` are the placements of victims."""
        work, placed, gpus = snapshot.workloads, snapshot.placements, snapshot.gpus
        mine = np.flatnonzero(placed.workload == row)
        beside = held[np.isin(placed.node[held], placed.node[mine])]
        near: dict[str, int] = {}
        board = placed.node.astype(np.int64) * 1024 + gpus.index[placed.gpu] // BOARD_GPUS
        for place, same in enumerate(
            (np.isin(placed.gpu[beside], placed.gpu[mine]), np.isin(board[beside], board[mine]), beside >= 0)
        ):
            for victim in placed.workload[beside[same]].tolist():
                sibling = work.service[victim] >= 0 and work.service[victim] == work.service[row]
                if victim != row and not sibling:
                    near.setdefault(str(work.uid[victim]), place)
        if near:
            self._beside[key] = _Suspect(str(work.id[row]), str(work.uid[row]), near)
        for victim_uid in near:
            self._watch.arrive(self._victims[victim_uid].row, key, self._minute)

    # --- what -----------------------------------------------------------------------------------

    def _push(self, snapshot: ClusterSnapshot) -> None:
        """The latencies of the minutes that they are of, and the present paces."""
        work, latencies = snapshot.workloads, snapshot.latencies
        if not np.array_equal(latencies.id, self._joined[0]):
            by_id = {each.id: each.row for each in self._victims.values() if each.measure is Measure.LATENCY}
            self._joined = latencies.id, np.array([by_id.get(each, -1) for each in latencies.id.tolist()], np.int64)
        rows, minutes = self._joined[1], np.nan_to_num(latencies.minute_s // MINUTE_S, nan=-1.0).astype(np.int64)
        taken = np.flatnonzero((rows >= 0) & (minutes >= 0) & (minutes <= self._minute))
        for row in self._watch.told(rows[taken], latencies.buckets[taken]):
            self._watch.unlike(row, self._minute)
        paced = [(each.row, self._rows[uid]) for uid, each in self._victims.items() if each.measure is Measure.RATE]
        gangs, at = (np.array(each, np.int64) for each in zip(*paced, strict=True)) if paced else (_NONE, _NONE)
        with np.errstate(divide="ignore"):
            pace = -np.log(np.where(work.steps_per_s[at] > 0.0, work.steps_per_s[at], np.nan))
        self._watch.push(
            self._minute,
            np.concatenate([rows[taken], gangs]),
            np.concatenate([latencies.mean_log_s[taken], pace]),
            np.concatenate([latencies.requests[taken], np.where(np.isfinite(pace), STEPS_PER_MIN, np.nan)]),
            np.concatenate([minutes[taken], np.full(len(gangs), self._minute)]),
        )
