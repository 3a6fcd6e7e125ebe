"""The steps that training programs report, from the true pace of their work (`WorkloadTable.steps_per_s`).

Batch work that saves on request has the helper that reports steps, and so has half of the other batch work [assumed].
Runs of one program take steps alike, at its own pace.
"""

from __future__ import annotations

import numpy as np

from autopilot.core.model.ranks import RankTable
from autopilot.core.model.snapshot import F64, SloClass, State, empty, make
from simulator.signals.programs import program_of
from simulator.world.cluster import Cluster
from simulator.world.facts import Paced, Stopped
from simulator.world.interference.rates import draw
from simulator.world.sharing import COMPUTES

WINDOW_S = 300.0
"""Steps are counted over this time, as by the collector of a cluster."""
REPORTING = 0.5
"""Part of the programs without saves on request that report steps [assumed]."""
NOISE = 0.03
"""A report is off by at most this part, uniformly [assumed]."""
REPORT_S = 60.0
BUSY_NOISE = 0.02
"""Ranks differ by this part at most, half of it for good (those of real jobs: simulator/signals/rank_times.py)."""
NOBODY: RankTable = empty(RankTable)


class Paces:
    """Steps per second of the work of one run."""

    def __init__(self, cluster: Cluster, seed: int) -> None:
        """Nothing has run yet."""
        self._cluster, self._seed = cluster, seed
        self._alone: dict[int, float] = {}  # steps per second of a job alone; 0: it reports none
        self._told: tuple[float, RankTable] = (-1.0, NOBODY)  # minute, and the ranks in it
        self._paced: dict[int, list[tuple[float, float]]] = {}  # job -> since when at which rate
        cluster.observe(self)

    def on_paced(self, fact: Paced) -> None:
        """Work on shared GPUs goes at another rate from now on."""
        begins_s = max(fact.at_s, self._cluster.ready_s[fact.job])
        past = [each for each in self._paced.get(fact.job, ()) if each[0] < begins_s]
        first = max((at for at, each in enumerate(past) if each[0] <= begins_s - WINDOW_S), default=0)
        self._paced[fact.job] = [*past[first:], (begins_s, fact.rate)]

    def on_stopped(self, fact: Stopped) -> None:
        """It starts anew, or has ended."""
        self._paced.pop(fact.job, None)

    def steps_per_s(self, rows: np.ndarray, now_s: float) -> F64:
        """Of each of these jobs; NaN where nothing is reported, or not for long enough."""
        cluster, found = self._cluster, np.full(len(rows), np.nan)
        for place, job in enumerate(rows.tolist()):
            works = cluster.state[job] == State.RUNNING and job not in cluster.stale and job not in cluster.leaving
            works = works and job not in cluster.paused
            if works and now_s - cluster.ready_s[job] >= WINDOW_S and (alone := self._lone(job)):
                late = draw(f"report/{self._seed}/{job}/{now_s // REPORT_S}")
                found[place] = alone * self._rate(job, now_s) * (1.0 + NOISE * (2.0 * late - 1.0))
        return found

    def ranks(self, now_s: float) -> RankTable:
        """Busy times of the ranks of gangs on whole GPUs, in a world with slow GPUs; made once a minute."""
        cluster, slow, minute = self._cluster, self._cluster.sharings.loads.slow, now_s // REPORT_S
        if not slow:
            return NOBODY
        if self._told[0] != minute:
            uuids, rows = cluster.inventory.gpus.uuid, list[tuple[str, int, float]]()
            for job in sorted(cluster.holding):
                held, alone = cluster.held[job], self._lone(job)
                works = cluster.state[job] == State.RUNNING and job not in cluster.leaving and alone
                if works and held is not None and len(held.gpus) > 1 and not held.instances:
                    for rank, gpu in enumerate(held.gpus):
                        late = draw(f"busy/{self._seed}/{job}/{rank}/{minute}") + draw(f"own/{self._seed}/{job}/{rank}")
                        busy_s = COMPUTES / alone * slow.get(gpu, 1.0) * (1.0 + BUSY_NOISE * (late - 1.0))
                        rows.append((str(uuids[gpu]), rank, busy_s))
            self._told = (minute, _rank_table(rows))
        return self._told[1]

    def _lone(self, job: int) -> float:
        known = self._alone.get(job)
        if known is None:
            jobs, program = self._cluster.jobs, f"steps/{self._seed}/{program_of(self._cluster.jobs, job)}"
            reports = jobs.saves_on_request[job] or draw(f"{program}/reports") < REPORTING
            batch = jobs.slo_class[job] == SloClass.BATCH and jobs.service[job] < 0
            known = self._alone[job] = 0.2 * 50.0 ** draw(program) if batch and reports else 0.0  # 0.2 to 10
        return known

    def _rate(self, job: int, now_s: float) -> float:
        """Progress over that of the whole work alone, over the last `WINDOW_S`."""
        paced, held = self._paced.get(job), self._cluster.held[job]
        if paced is None:
            return len(held.gpus) / self._cluster.jobs.gpus[job] if held is not None else 0.0
        begin_s, done = now_s - WINDOW_S, 0.0
        for at, (since_s, rate) in enumerate(paced):
            until_s = paced[at + 1][0] if at + 1 < len(paced) else now_s
            done += max(until_s - max(since_s, begin_s), 0.0) * rate
        return done / WINDOW_S


def _rank_table(rows: list[tuple[str, int, float]]) -> RankTable:
    if not rows:
        return NOBODY
    ids, ranks, busy_s = zip(*rows, strict=True)
    table: RankTable = make(RankTable, id=ids, rank=ranks, stage=[0] * len(rows), busy_s=busy_s)
    return table
