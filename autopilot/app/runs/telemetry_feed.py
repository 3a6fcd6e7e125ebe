"""Telemetry of the simulated cluster through the shipped collectors.

`full` renders every scrape as exporter text and passes it to the shipped exporter collector; `windowed` puts the same
numbers into the same ring buffer without the text. The occupants of the GPUs follow the cluster's facts.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from autopilot.core.hardware.dcgm import WINDOWS_S
from autopilot.core.model.records import Batch, Gap
from autopilot.core.model.snapshot import SLO_CLASS_NAMES, InstanceTable
from collectors.exporter import ExporterCollector, Target
from collectors.window import WindowBuffer
from simulator.signals.behaviours import F32, I8, draw_jobs
from simulator.signals.dcgm_text import NodeExporter, PodLabels
from simulator.signals.telemetry import TelemetryGenerator
from simulator.signals.telemetry_entities import GpuState, entities_of, idle_state
from simulator.world.cluster import Cluster
from simulator.world.facts import Recut, Recutting, Started, Stopped, Why
from simulator.world.work import Jobs


def behaviours_of(seed: int, jobs: Jobs, first: int = 0) -> tuple[I8, F32]:
    """(archetype, level of SM activity) of each job from row `first` on, by its id: the same under every policy."""
    classes = [SLO_CLASS_NAMES[code] for code in jobs.slo_class[first:]]
    return draw_jobs(seed, jobs.id[first:], jobs.kind[first:], classes, jobs.name[first:])


class Occupants:
    """The occupant of each GPU and instance, in the form that the telemetry generator needs."""

    def __init__(self, cluster: Cluster, seed: int) -> None:
        self._cluster, self._seed = cluster, seed
        self.inventory = cluster.inventory
        self.entities = entities_of(cluster.inventory)
        self.state: GpuState = idle_state(len(self.entities.id))
        self._gpus = len(cluster.inventory.gpus.uuid)
        self.archetype, self.level = np.empty(0, np.int8), np.empty(0, np.float32)
        self.pods: list[tuple[PodLabels, ...]] = [()] * len(self.entities.id)
        self._recut = False
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

    def on_started(self, fact: Started) -> None:
        """Its GPUs are busy from the end of its start-up."""
        self.behaviours()
        self.refresh(fact.at_s)
        rows = [self._gpus + row for row in fact.instances] or list(fact.gpus)
        state, jobs = self.state, self._cluster.jobs
        state.job_code[rows] = fact.job
        state.archetype[rows] = self.archetype[fact.job]
        state.level[rows] = self.level[fact.job]
        state.since_s[rows] = self._cluster.ready_s[fact.job]
        state.gpus[rows] = len(fact.gpus)
        for row in rows:
            self.pods[row] = (PodLabels(jobs.tenants[jobs.tenant[fact.job]], jobs.id[fact.job]),)

    def on_stopped(self, fact: Stopped) -> None:
        """Its GPUs are idle again. At the end of a run nothing has stopped: what `autopilot plan` shows runs on."""
        if fact.why == Why.CUT:
            return
        rows = np.flatnonzero(self.state.job_code == fact.job)
        idle = idle_state(1)
        for name in ("job_code", "archetype", "level", "gpus"):
            getattr(self.state, name)[rows] = getattr(idle, name)[0]
        self.state.since_s[rows] = fact.at_s
        for row in rows.tolist():
            self.pods[row] = ()


class TelemetryFeed:
    """Collector of the simulated telemetry: every scrape since the last call, in order."""

    name = "simulated-telemetry"

    def __init__(self, occupants: Occupants, generator: TelemetryGenerator, *, full: bool) -> None:
        self._occupants, self._generator = occupants, generator
        self._next_slot = 0
        inventory = occupants.inventory
        self._nodes = len(inventory.nodes.id)
        self._buffer = WindowBuffer(slot_s=generator.scrape_interval_s / 2)
        self._exporters = self._all_exporters() if full else []
        self._targets = [Target(f"http://{name}:9400/metrics", str(name)) for name in inventory.nodes.id.tolist()]
        self._collector = ExporterCollector(slot_s=generator.scrape_interval_s / 2) if full else None

    def _all_exporters(self) -> list[NodeExporter]:
        inventory, entities = self._occupants.inventory, self._occupants.entities
        return [NodeExporter(self._generator, inventory, entities, node) for node in range(self._nodes)]

    def collect(self, now_s: float) -> Batch:
        """Windows at `now_s`; only scrapes that fall into a window are made."""
        generator = self._generator
        if self._occupants.refresh(now_s) and self._exporters:
            self._exporters = self._all_exporters()
        last = generator.known_slot(now_s)
        first = max(self._next_slot, last - int(max(WINDOWS_S) / generator.scrape_interval_s))
        self._next_slot = max(self._next_slot, last + 1)
        if self._collector is None:
            return self._windowed(now_s, first, last)
        gaps = [gap for slot in range(first, last + 1) for gap in self._scrape(self._collector, slot)]
        batch = self._collector.collect(now_s)
        return Batch(self.name, now_s, telemetry=batch.telemetry, gaps=(*gaps, *batch.gaps))

    def _scrape(self, collector: ExporterCollector, slot: int) -> list[Gap]:
        """Parse the text of every exporter for one scrape; an exporter that does not answer is a gap."""
        gaps = []
        for target, exporter in zip(self._targets, self._exporters, strict=True):
            pods = [self._occupants.pods[row] for row in exporter.rows.tolist()]
            text = exporter.render(slot, self._occupants.state, pods)
            if text is None:
                gaps.append(Gap(self.name, target.node, "", "the scrape got no answer"))
            else:
                collector.ingest(self._generator.slot_time_s(slot), text, target)
        return gaps

    def _windowed(self, now_s: float, first: int, last: int) -> Batch:
        entities = self._occupants.entities
        if last >= first:
            values, quality = self._generator.values(np.arange(first, last + 1), entities, self._occupants.state)
            for place, slot in enumerate(range(first, last + 1)):
                seen = ~np.isnan(values[6, place])
                ids = entities.id if seen.all() else entities.id[seen]
                part = values[:, place] if seen.all() else values[:, place, seen]
                grade = quality[place] if seen.all() else quality[place, seen]
                self._buffer.put(self._generator.slot_time_s(slot), ids, part, grade)
        return Batch(self.name, now_s, telemetry=self._buffer.windowed(now_s))
