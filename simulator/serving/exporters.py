"""The GPU exporters of a served cluster: one target per node, in the format of dcgm-exporter."""

from __future__ import annotations

from collections.abc import Mapping

from simulator.signals.dcgm_text import NodeExporter
from simulator.signals.occupants import Occupants
from simulator.signals.telemetry import TelemetryGenerator


class Exporters:
    """The texts of all nodes, for whatever scrapes them, at any time and in any order."""

    def __init__(self, occupants: Occupants, generator: TelemetryGenerator) -> None:
        self._occupants, self._generator = occupants, generator
        nodes = occupants.inventory.nodes.id.tolist()
        self._row = {str(name): row for row, name in enumerate(nodes)}
        self._exporters: dict[int, NodeExporter] = {}

    def targets(self) -> Mapping[str, Mapping[str, str]]:
        """The nodes."""
        return {name: {"node": name} for name in self._row}

    def text(self, target: str, now_s: float) -> bytes | None:
        """The answer of one node to a scrape; None where the scrape fails."""
        occupants = self._occupants
        if occupants.refresh(now_s):
            self._exporters.clear()
        node = self._row[target]
        exporter = self._exporters.get(node)
        if exporter is None:
            exporter = NodeExporter(self._generator, occupants.inventory, occupants.entities, node)
            self._exporters[node] = exporter
        pods = occupants.pods_now(exporter.rows.tolist())
        return exporter.render(self._generator.known_slot(now_s), occupants.state, pods)
