"""Telemetry of the simulated cluster through the shipped collectors.

`full` renders every scrape as exporter text and passes it to the shipped exporter collector; `windowed` puts the same
numbers into the same ring buffer without the text.
"""

from __future__ import annotations

import numpy as np

from autopilot.core.hardware.dcgm import WINDOWS_S
from autopilot.core.model.records import Batch, Gap
from collectors.exporter import ExporterCollector, Target
from collectors.window import WindowBuffer
from simulator.signals.dcgm_text import NodeExporter
from simulator.signals.occupants import Occupants
from simulator.signals.signal_faults import SignalFaults
from simulator.signals.telemetry import TelemetryGenerator


class TelemetryFeed:
    """Collector of the simulated telemetry: every scrape since the last call, in order."""

    name = "simulated-telemetry"

    def __init__(
        self, occupants: Occupants, generator: TelemetryGenerator, *, full: bool, faults: SignalFaults | None = None
    ) -> None:
        """`faults` change the text of exporters; they need `full`."""
        self._faults = faults
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
        """Windows at `now_s`; only scrapes inside a window are made."""
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
        """Parse the text of every exporter for one scrape; an exporter without an answer is a gap."""
        gaps, texts = [], []
        for exporter in self._exporters:
            pods = [self._occupants.pods[row] for row in exporter.rows.tolist()]
            texts.append(exporter.render(slot, self._occupants.state, pods))
        if self._faults is not None:
            texts = self._faults.texts(self._generator.slot_time_s(slot), texts)
        for target, text in zip(self._targets, texts, strict=True):
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
