"""The occupant of each GPU and instance of a simulated cluster, in the form that the telemetry generator needs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from autopilot.core.hardware.dcgm import WINDOWS_S
from autopilot.core.model.policy.idle import Idle
from autopilot.core.model.snapshot import InstanceTable, State
from simulator.signals.behaviours import Archetype, absent_look, effective_level
from simulator.signals.dcgm_text import PodLabels
from simulator.signals.programs import behaviours_of, footprint_mib
from simulator.signals.telemetry import DRAM, NVLINK, PCIE, SM, TENSOR, TelemetryGenerator
from simulator.signals.telemetry_entities import GpuState, entities_of, idle_state
from simulator.world.cluster import Cluster
from simulator.world.facts import Paced, Paused, Recut, Recutting, Started, Stopped, Why

CLOCK_MHZ = 1755.0
"""SM clock of an H100 SXM5 at work; other models are not told apart."""


class Occupants:
    """The occupant of each GPU and instance, in the form that the telemetry generator needs."""

    def __init__(self, cluster: Cluster, seed: int, labels: Callable[[int, int], PodLabels] | None = None) -> None:
        """`labels(job, row)`: the pod that holds a GPU or instance of a job; None: one pod with the name of the job."""
        self._cluster, self._seed = cluster, seed
        self._label = labels
        self.inventory = cluster.inventory
        self.entities = entities_of(cluster.inventory)
        self.state: GpuState = idle_state(len(self.entities.id))
        self._gpus = len(cluster.inventory.gpus.uuid)
        self._away: set[int] = set()  # jobs whose owner is away
        self.archetype, self.level = np.empty(0, np.int8), np.empty(0, np.float32)
        self.pods: list[tuple[PodLabels, ...]] = [()] * len(self.entities.id)
        self._recut = False
        for gpu, ratio in cluster.sharings.loads.slow.items():  # a slow GPU shows a lower clock
            self.state.clock_mhz[np.isnan(self.state.clock_mhz)] = CLOCK_MHZ
            self.state.clock_mhz[gpu] = CLOCK_MHZ / ratio
        self._parts: dict[int, float] = {}  # SM activity that work on shared GPUs adds to each of them
        cluster.observe(self)

    def on_recut(self, _fact: Recut) -> None:
        """Instances were created or destroyed."""
        self._recut = True

    def on_recutting(self, _fact: Recutting) -> None:
        """Nothing of a GPU is measured while its geometry changes."""
        self._recut = True

    def refresh(self, now_s: float) -> bool:
        """Follow the present geometries; True when they changed since the last call."""
        if not self._recut:
            return False
        self._recut = False
        hardware, names = self._cluster.hardware, self._cluster.inventory.names
        rows = hardware.instances[len(self.entities.id) - self._gpus :]
        more = idle_state(len(rows))
        for column in GpuState.__slots__:
            setattr(self.state, column, np.concatenate([getattr(self.state, column), getattr(more, column)]))
        self.pods += [()] * len(rows)
        there = {row for cut in hardware.cut.values() for row in cut}
        profiles = {name: code for code, name in enumerate(names.profiles)}
        cuts = hardware.instances
        instances = InstanceTable(
            np.array([""] * len(cuts), object),
            np.array([cut.gpu for cut in cuts], np.int32),
            np.array([profiles[cut.profile] if row in there else -1 for row, cut in enumerate(cuts)], np.int32),
            np.array([cut.start for cut in cuts], np.int32),
            np.array([cut.gi_id for cut in cuts], np.int32),
        )
        gpu = np.concatenate([np.arange(self._gpus), instances.gpu])
        changing = np.array([self._cluster.recuts.changing(each) for each in range(self._gpus)], np.bool_)[gpu]
        gone = np.concatenate([np.zeros(self._gpus, np.bool_), instances.profile < 0])
        born = np.concatenate([self.entities.since_s, np.full(len(rows), now_s)])
        born = np.where(gone | changing, np.inf, np.where(np.isinf(born) & (born > 0), now_s, born))
        self.inventory = replace(self._cluster.inventory, instances=instances)
        self.entities = entities_of(self.inventory, born)
        return True

    def behaviours(self) -> None:
        """Draw the behaviour of each job known so far; a job's behaviour does not depend on when it is drawn."""
        jobs, known = self._cluster.jobs, len(self.archetype)
        if len(jobs) > known:
            archetype, level = behaviours_of(self._seed, jobs, known)
            self.archetype = np.concatenate([self.archetype, archetype])
            self.level = np.concatenate([self.level, level])

    def on_owner(self, job: int, now_s: float, away: bool) -> None:
        """The owner of a job left or came back: its GPUs change what they do."""
        (self._away.add if away else self._away.discard)(job)
        self._look_again(job, now_s)

    def on_paused(self, fact: Paused) -> None:
        """It waits at a step boundary, or goes on."""
        self._look_again(fact.job, fact.at_s)

    def _look_again(self, job: int, now_s: float) -> None:
        if job in self._parts:
            return  # its pace tells what its GPUs do
        rows = np.flatnonzero(self.state.job_code == job)
        self.state.archetype[rows], self.state.level[rows] = self._look(job)
        self.state.since_s[rows] = np.maximum(self.state.since_s[rows], now_s)

    def _look(self, job: int) -> tuple[int, float]:
        """(archetype, level) of the GPUs of a job at present."""
        if job in self._cluster.paused:
            return int(Archetype.HOARDER), 0.0  # memory alone
        if job in self._away:
            return absent_look(self._seed, self._cluster.jobs.id[job])
        return int(self.archetype[job]), float(self.level[job])

    def on_started(self, fact: Started) -> None:
        """Its GPUs are busy from the end of its start-up."""
        self.behaviours()
        self.refresh(fact.at_s)
        if self._cluster.hardware.split.concerns(fact.gpus):
            return
        rows = [self._gpus + row for row in fact.instances] or list(fact.gpus)
        state, jobs = self.state, self._cluster.jobs
        state.job_code[rows] = fact.job
        state.archetype[rows], state.level[rows] = self._look(fact.job)
        state.since_s[rows] = self._cluster.ready_s[fact.job]
        state.gpus[rows] = len(fact.gpus)
        if not fact.instances and jobs.shape_of(fact.job).whole:
            state.memory_mib[rows] = self._footprint_mib(fact.job, rows[0])
        for row in rows:
            self.pods[row] = (self._pod(fact.job),)

    def _pod(self, job: int) -> PodLabels:
        jobs = self._cluster.jobs
        return PodLabels(jobs.tenants[jobs.tenant[job]], jobs.id[job])

    def _footprint_mib(self, job: int, gpu: int, *, drawn: bool = False) -> float:
        """Memory of a job on a GPU; NaN where its behaviour on it says so, unless `drawn`."""
        jobs, hardware = self._cluster.jobs, self._cluster.hardware
        stated = jobs.image[job] or not np.isnan(jobs.peak_memory_gib[job])
        if not stated and not drawn:
            return np.nan
        model = hardware.inventory.names.gpu_models[hardware.model_of[hardware.node_of[gpu]]]
        return footprint_mib(self._seed, jobs, job, int(self.archetype[job]), model)

    def on_paced(self, fact: Paced) -> None:
        """Work on shared GPUs changes what they do: the device's values are those of all work on it."""
        held = self._cluster.held[fact.job]
        if held is None:
            return
        if not self._cluster.hardware.split.concerns(held.gpus):  # a member is slow: it works while the others wait
            rows, slow = list(held.gpus), self._cluster.sharings.loads.slow
            level = self._look(fact.job)[1] * fact.rate
            self.state.level[rows] = [min(level * slow.get(gpu, 1.0), 1.0) for gpu in rows]
            return
        self._parts[fact.job] = fact.active_gpus / len(held.gpus)
        for gpu in held.gpus:
            self._blend(gpu)

    def _blend(self, gpu: int) -> None:
        """A shared GPU: the activity and memory of all on it, and the signals of the most active beside them."""
        cluster, state = self._cluster, self.state
        jobs = [job for job in cluster.hardware.split.on[gpu] if job in self._parts]
        main = max(jobs, key=lambda job: (self._parts[job], -job))
        state.job_code[gpu], state.archetype[gpu] = main, self._look(main)[0]
        state.level[gpu] = min(sum(self._parts[job] for job in jobs), 1.0)
        state.since_s[gpu] = min(cluster.ready_s[job] for job in jobs)
        state.gpus[gpu] = cluster.jobs.gpus[main]
        loaded = [job for job in jobs if cluster.state[job] != State.STARTING]
        state.memory_mib[gpu] = sum(self._footprint_mib(job, gpu, drawn=True) for job in loaded or jobs)
        self.pods[gpu] = tuple(self._pod(job) for job in jobs)

    def worked(self, job: int, now_s: float) -> bool:
        """True if any GPU of a job worked in the half hour before, by the readings themselves.

        The shipped bounds of idle GPUs decide (core/model/policy/idle.py).
        """
        if job in self._parts:
            active = float(effective_level(self.archetype[job : job + 1], self.level[job : job + 1])[0])
            return job not in self._away and active > Idle().sm_ratio
        truth, rules = TelemetryGenerator(self._seed, scrape_interval_s=30.0), Idle()
        slots = np.arange(max(truth.known_slot(now_s - WINDOWS_S[-1]), 0), truth.known_slot(now_s) + 1)
        rows = np.flatnonzero(self.state.job_code == job)
        values = truth.values(slots, self.entities, self.state)[0][:, :, rows]
        sm, tensor, dram, nvlink, pcie = (values[row] for row in (SM, TENSOR, DRAM, NVLINK, PCIE))
        active = (sm > rules.sm_ratio) | (dram > rules.dram_ratio) | (tensor > rules.tensor_ratio)
        moved = np.nan_to_num(np.stack([nvlink, pcie])).mean(axis=1) > rules.link_bytes_s
        return bool(active.any() or moved.any())

    def pods_now(self, rows: Sequence[int]) -> list[tuple[PodLabels, ...]]:
        """The pods on these entities, as kubelet names them now."""
        if self._label is None:
            return [self.pods[row] for row in rows]
        on, found = self._cluster.hardware.split.on, list[tuple[PodLabels, ...]]()
        for row in rows:
            jobs = on.get(row) or ([int(self.state.job_code[row])] if self.pods[row] else [])
            found.append(tuple(self._label(job, row - self._gpus if row >= self._gpus else row) for job in jobs))
        return found

    def on_stopped(self, fact: Stopped) -> None:
        """Its GPUs are idle again. At the end of a run nothing has stopped: what `autopilot plan` shows runs on."""
        if fact.why == Why.CUT:
            return
        rows = np.flatnonzero(self.state.job_code == fact.job)
        idle = idle_state(1)
        self._parts.pop(fact.job, None)
        for name in ("job_code", "archetype", "level", "gpus", "memory_mib"):
            getattr(self.state, name)[rows] = getattr(idle, name)[0]
        self.state.since_s[rows] = fact.at_s
        for row in rows.tolist():
            self.pods[row] = ()
