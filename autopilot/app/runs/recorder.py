"""Data for plots and accounts of a run beyond its figures: the stays of work on GPUs, with their activity."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from math import inf

import numpy as np

from autopilot.app.decisions.decision_log import DecisionLog
from autopilot.app.runs.fragmentation_means import FragmentationMeans
from autopilot.core.model.forecast import REQUESTS, Forecast
from autopilot.core.model.records import Decision, Observation
from autopilot.core.model.snapshot import F64
from autopilot.core.model.units import format_duration
from autopilot.core.model.verb import START
from autopilot.report.data import HEAT_NODES, HEAT_TIMES, Heat, Series, resample
from simulator.outcome.real_use import Occupancy
from simulator.outcome.results import Reservations
from simulator.outcome.shareable import ALONE, Piece, Sharable, sharable_work
from simulator.outcome.shared_use import Hold
from simulator.running.owners import Absence
from simulator.running.simulation import width_gpus
from simulator.signals.behaviours import effective_level
from simulator.world.cluster import Cluster
from simulator.world.facts import Paced, Paused, Resumed, Started, Stopped, Submitted, Why

KEPT_TOLERANCE_S = 1.0
"""Longest delay of a start after its promised time that counts as on time."""


class StayRecorder:
    """Observes a cluster: every stay of work on GPUs, and the waiting demand."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._archetype: np.ndarray | None = None
        self._level: np.ndarray | None = None
        self._open: dict[int, tuple[float, tuple[int, ...], float]] = {}
        self.stays: list[tuple[int, float, float, tuple[int, ...], float]] = []  # job, from, to, gpus, width
        self._away: dict[int, list[tuple[float, float]]] = {}  # absences of its owner, and pauses
        self._paused_s: dict[int, float] = {}
        self._ready_s: list[float] = []  # end of start-up, by stay: before it the GPUs do no work
        self._paces: list[Paced | None] = []  # by stay; None: it has its GPUs alone. A stay ends where its pace changes
        self._pace: dict[int, Paced] = {}  # of work on shared GPUs
        self.waiting: list[tuple[float, float]] = []  # (time, change of the GPUs requested)
        self._width: dict[int, float] = {}
        self._cluster.observe(self)

    def _width_of(self, job: int) -> float:
        code = self._cluster.jobs.shape[job]
        if code not in self._width:
            self._width[code] = width_gpus(self._cluster.hardware, self._cluster.jobs.shapes[code])
        return self._width[code]

    def on_submitted(self, fact: Submitted) -> None:
        """More demand."""
        self.waiting.append((fact.at_s, self._width_of(fact.job)))

    def on_started(self, fact: Started) -> None:
        """Demand met; a stay begins."""
        width = self._width_of(fact.job)
        self.waiting.append((fact.at_s, -width))
        held = fact.milli / 1000 if not fact.instances else width
        self._open[fact.job] = (fact.at_s, fact.gpus, held)

    def on_paced(self, fact: Paced) -> None:
        """Work on shared GPUs goes on at another pace: another stay."""
        if fact.job not in self._open:
            return
        gpus = self._open[fact.job][1]
        self._close(fact.job, fact.at_s, self._cluster.ready_s[fact.job])
        self._open[fact.job], self._pace[fact.job] = (fact.at_s, gpus, fact.held_gpus), fact

    def _close(self, job: int, at_s: float, ready_s: float) -> None:
        from_s, gpus, held = self._open.pop(job)
        pace = self._pace.pop(job, None)
        if pace is None or at_s > from_s:
            self.stays.append((job, from_s, at_s, gpus, held))
            self._ready_s.append(min(ready_s, at_s))
            self._paces.append(pace)

    def on_stopped(self, fact: Stopped) -> None:
        """A stay ends; stopped work waits again."""
        if fact.job in self._paused_s:
            self._wait(fact.job, fact.at_s)
        if fact.job not in self._open:
            return
        self._close(fact.job, fact.at_s, fact.ready_s)
        again = self._cluster.state[fact.job] == 0 and fact.why != Why.PARK
        if again or fact.why == Why.RESIZE:  # a resize: it starts again at once
            self.waiting.append((fact.at_s, self._width_of(fact.job)))

    def on_paused(self, fact: Paused) -> None:
        """Work with GPUs of its own does nothing while it waits."""
        if fact.on:
            self._paused_s.setdefault(fact.job, fact.at_s)
        elif fact.job in self._paused_s:
            self._wait(fact.job, fact.at_s)

    def _wait(self, job: int, at_s: float) -> None:
        since_s = self._paused_s.pop(job)
        if job not in self._pace:
            self._away.setdefault(job, []).append((since_s, at_s))

    def on_resumed(self, fact: Resumed) -> None:
        """Parked work waits again."""
        self.waiting.append((fact.at_s, self._width_of(fact.job)))

    # --- results --------------------------------------------------------------------------

    def know(self, archetype: np.ndarray, level: np.ndarray, absences: Sequence[Absence] = ()) -> None:
        """Set the behaviour of each job (by row) on its GPUs; without it the true SM activity is unknown.

        While the owner of a job is away, its GPUs do no work worth counting.
        """
        self._archetype, self._level = archetype, level
        for each in absences:
            self._away.setdefault(each.job, []).append((each.from_s, each.to_s))

    def active_gpu_s(self, until_s: float = inf) -> float | None:
        """Expected SM-active GPU-seconds up to `until_s`, stay by stay; None without behaviours.

        The samples of the telemetry average to this (simulator/signals/behaviours.py, `sm_active_gpu_s`).
        """
        if self._archetype is None or not self.stays:
            return None
        return float(self.held_and_active(until_s)[1].sum())

    def useful_gpu_s(self, until_s: float = inf) -> float | None:
        """The same with the activity of the work alone, times its relative progress; None without behaviours."""
        if self._archetype is None or not self.stays:
            return None
        begin_s, end_s, rate, _ = self._active(self._useful()).T
        return float((rate * np.maximum(np.minimum(end_s, until_s) - begin_s, 0.0)).sum())

    def occupancies(self) -> list[Occupancy]:
        """Every stay, with the queue, the activity and the absences of its work; empty without behaviours."""
        if self._archetype is None or self._level is None:
            return []
        jobs, levels, sharable = self._cluster.jobs, self.level_of(), self._sharable()
        found = []
        for (job, from_s, to_s, gpus, held), ready_s, pace in zip(self.stays, self._ready_s, self._paces, strict=True):
            away, queue = self._away.get(job, ()), jobs.tenants[jobs.tenant[job]]
            active = useful = None
            if pace is not None:
                active, useful = pace.active_gpus, levels[job] * pace.rate * len(gpus)
            rule = sharable[job].rule
            stay = Occupancy(queue, from_s, ready_s, to_s, held, levels[job], away, active, useful, rule)
            found.append(stay)
        return found

    def holds(self) -> list[Hold]:
        """Every stay, with its GPUs and the pace of its work."""
        return [
            Hold(job, gpus, from_s, ready_s, to_s, None if pace is None else pace.rate, self._away.get(job, ()))
            for (job, from_s, to_s, gpus, _), ready_s, pace in zip(self.stays, self._ready_s, self._paces, strict=True)
        ]

    def _sharable(self) -> list[Sharable]:
        """What the rules of sharing say of each job, on the GPUs of most nodes."""
        models = Counter(self._cluster.hardware.model_of)
        if not models:
            return [ALONE] * len(self._cluster.jobs)
        model = self._cluster.inventory.names.gpu_models[models.most_common(1)[0][0]]
        return sharable_work(self._cluster.jobs, self._cluster.sharings.loads, model)

    def offers(self) -> list[Piece]:
        """Work as it would run from its arrival on, without the absences of owners; replicas as they ran."""
        cluster, jobs, levels = self._cluster, self._cluster.jobs, self.level_of()
        sharable = self._sharable()
        found = [
            Piece(from_s, to_s, held, levels[job])
            for job, from_s, to_s, _, held in self.stays
            if jobs.service[job] >= 0
        ]
        for job, state in enumerate(cluster.state):
            if state < 0 or jobs.service[job] >= 0 or np.isnan(self._width_of(job)):
                continue
            at_s, end_s = jobs.submit_s[job], jobs.submit_s[job] + jobs.duration_s[job]
            early_s = cluster.first_start_s[job] - at_s
            for from_s, to_s in self._away.get(job, ()):
                until_s = min(from_s - early_s, end_s)
                found.append(Piece(at_s, until_s, self._width_of(job), levels[job], sharable[job]))
                at_s = min(to_s - early_s, end_s)
            found.append(Piece(at_s, end_s, self._width_of(job), levels[job], sharable[job]))
        return found

    def level_of(self) -> list[float]:
        """SM activity of each job while it works; NaN without behaviours."""
        if self._archetype is None or self._level is None:
            return [np.nan] * len(self._cluster.jobs)
        levels: list[float] = effective_level(self._archetype, self._level).tolist()
        return levels

    def held_and_active(self, until_s: float = inf) -> tuple[F64, F64]:
        """GPU-seconds allocated, and the SM-active ones among them, of each stay; NaN without behaviours."""
        begins_s, ends_s = (np.minimum([stay[at] for stay in self.stays], until_s) for at in (1, 2))
        held_gpu_s = (ends_s - begins_s) * np.array([stay[4] for stay in self.stays])
        begin_s, end_s, rate, stay = self._active(self._rates()).T
        active_gpu_s = rate * np.maximum(np.minimum(end_s, until_s) - begin_s, 0.0)
        return held_gpu_s, np.bincount(stay.astype(int), active_gpu_s, len(self.stays)).astype(float)

    def _active(self, rates: F64) -> np.ndarray:
        """(begin, end, rate, number of the stay) of each stretch of work: stays without absences."""
        rows = []
        for number, (stay, ready_s, rate) in enumerate(zip(self.stays, self._ready_s, rates.tolist(), strict=True)):
            at_s = max(ready_s, stay[1])
            for from_s, to_s in self._away.get(stay[0], ()):
                if to_s > at_s and from_s < stay[2]:
                    rows.append((at_s, max(from_s, at_s), rate, number))
                    at_s = min(to_s, stay[2])
            rows.append((at_s, stay[2], rate, number))
        return np.array(rows, float).reshape(-1, 4)

    def _rates(self) -> F64:
        """SM-active GPUs during each stay."""
        levels, pairs = self.level_of(), zip(self.stays, self._paces, strict=True)
        return np.array(
            [levels[stay[0]] * stay[4] if pace is None else pace.active_gpus for stay, pace in pairs], float
        )

    def _useful(self) -> F64:
        """The SM-active GPUs of the work alone x its relative progress, during each stay."""
        levels, pairs = self.level_of(), zip(self.stays, self._paces, strict=True)
        return np.array(
            [levels[stay[0]] * (stay[4] if pace is None else len(stay[3]) * pace.rate) for stay, pace in pairs], float
        )

    def series(self, until_s: float, capacity_gpus: float, stranded: list[tuple[float, float]]) -> Series:
        """The cluster over time; `stranded` are (time, GPUs) steps, empty when not measured."""
        at = np.array([(s[1], s[4]) for s in self.stays] + [(s[2], -s[4]) for s in self.stays]).reshape(-1, 2)
        used = _steps(at)
        active = self._active(self._rates())
        busy = np.concatenate([active[:, [0, 2]], active[:, [1, 2]] * (1.0, -1.0)])
        t_s, allocation = resample(*used, until_s)
        working = (
            resample(*_steps(busy), until_s)[1] if len(busy) and not np.isnan(busy).any() else np.full(len(t_s), np.nan)
        )
        with np.errstate(invalid="ignore", divide="ignore"):
            hardware = np.where(allocation > 1e-9, working / allocation, np.nan)
        pending = resample(*_steps(np.array(self.waiting).reshape(-1, 2)), until_s)[1]
        lost = (
            resample(np.array([s[0] for s in stranded]), np.array([s[1] for s in stranded]), until_s)[1]
            if stranded
            else np.full(len(t_s), np.nan)
        )
        return Series(
            t_s=t_s,
            allocation_ratio=allocation / max(capacity_gpus, 1),
            hardware_ratio=hardware,
            pending_gpus=pending if len(pending) == len(t_s) else np.zeros(len(t_s)),
            stranded_gpus=lost,
        )

    def heat(self, until_s: float) -> Heat:
        """Share of each node (or group of neighbours) allocated, by time."""
        inventory = self._cluster.inventory
        nodes = len(inventory.nodes.id)
        group = int(np.ceil(nodes / HEAT_NODES)) or 1
        rows = int(np.ceil(nodes / group))
        edges = np.linspace(0.0, max(until_s, 1.0), HEAT_TIMES + 1)
        busy = np.zeros((rows, HEAT_TIMES))
        width = edges[1] - edges[0]
        node_of = inventory.gpus.node
        for _, from_s, to_s, gpus, held in self.stays:
            found, counts = np.unique(node_of[list(gpus)] // group, return_counts=True)
            overlap = np.clip(np.minimum(to_s, edges[1:]) - np.maximum(from_s, edges[:-1]), 0.0, width) / width
            first, last = np.searchsorted(edges, (from_s, to_s))
            span = slice(max(first - 1, 0), max(last, 1))
            busy[found, span] += (counts * held / max(len(gpus), 1))[:, None] * overlap[span]
        size = np.bincount(np.arange(nodes) // group, inventory.nodes.gpus)
        names = tuple(str(name) for name in inventory.nodes.id[::group].tolist())
        return Heat(t_edges_s=edges, node_ids=names, busy_ratio=busy / np.maximum(size, 1)[:, None])


def _steps(changes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """A step function from (time, change) pairs in any order."""
    if not len(changes):
        return np.zeros(1), np.zeros(1)
    order = np.argsort(changes[:, 0], kind="stable")
    times, values = changes[order, 0], np.cumsum(changes[order, 1])
    last = np.append(np.diff(times) > 0, True)
    return np.append(0.0, times[last]), np.append(0.0, values[last])


class DecisionRecorder:
    """Follows a controller's decisions: reservations kept or late, stranded GPUs, and for a page all decisions
    as text.
    """

    def __init__(self, log: DecisionLog | None = None) -> None:
        """`log` keeps the decisions as text."""
        self.log = log
        self.stranded: list[tuple[float, float]] = []
        self.fragmentation = FragmentationMeans()
        self._promised: dict[str, float] = {}
        self._foreseen: dict[str, list[tuple[float, float]]] = {}
        self._band = ""
        self._read: Forecast | None = None
        self.made = self.kept = self.late = self.released = 0

    def on_tick(self, observation: Observation, decision: Decision) -> None:
        """Take in one decision."""
        self.fragmentation.on_tick(observation)
        stranded = observation.signals.stranded_gpus
        if not self.stranded or self.stranded[-1][1] != stranded:
            self.stranded.append((observation.now_s, stranded))
        for forecast in observation.forecasts.demand:
            if forecast.kind == REQUESTS and forecast is not self._read:
                self._foresee(forecast)
        for workload in decision.plan.released:
            self.released += self._promised.pop(workload, None) is not None
        for proposal in decision.plan.proposals:
            start_s = proposal.change.start_s
            if start_s is not None and proposal.accepted:
                self.made += proposal.subject.name not in self._promised
                self._promised.setdefault(proposal.subject.name, max(start_s, observation.now_s))
            elif proposal.change.wish == START and proposal.accepted and proposal.subject.name in self._promised:
                on_time = observation.now_s <= self._promised.pop(proposal.subject.name) + KEPT_TOLERANCE_S
                self.kept += on_time
                self.late += not on_time
        if self.log is not None:
            self.log.take_in(observation, decision)

    def _foresee(self, forecast: Forecast) -> None:
        """Keep the highest level at the nearest horizon, as forecast."""
        self._read = forecast
        self._band = f"{forecast.levels[-1]:g} of the peaks within {format_duration(forecast.horizons_s[0])}"
        for name, value in zip(forecast.series, forecast.values[:, 0, -1].tolist(), strict=True):
            self._foreseen.setdefault(name, []).append((forecast.made_s, value))

    def foreseen(self, service: str, t_s: F64) -> tuple[F64 | None, str]:
        """(the upper bound of a service's demand in force at these times, its definition); None: there was none."""
        made = np.array(self._foreseen.get(service, ()), float).reshape(-1, 2)
        if not len(made):
            return None, ""
        at = np.searchsorted(made[:, 0], t_s, side="right") - 1
        return np.where(at >= 0, made[np.maximum(at, 0), 1], np.nan), self._band

    def reservations(self) -> Reservations:
        """Counts over the run; an open reservation counts as made only."""
        return Reservations(self.made, self.kept, self.late, self.released)

    def stranded_gpu_s(self, end_s: float) -> float | None:
        """Integral of the stranded GPUs."""
        if not self.stranded:
            return None
        times = np.array([at for at, _ in self.stranded] + [max(end_s, self.stranded[-1][0])])
        return float((np.array([gpus for _, gpus in self.stranded]) * np.diff(times)).sum())
