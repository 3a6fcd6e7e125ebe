"""The response of an exporter on a simulated node: the text format of dcgm-exporter, with its peculiarities.

One `NodeExporter` per node. The numbers come from `simulator.signals.telemetry`; this module only formats them, so that
a simulation which reads text and one which reads arrays see the same values.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import compress

import numpy as np
from numpy.typing import NDArray

from autopilot.core.hardware.dcgm import FIELDS, Field, Quality
from autopilot.core.model.errors import invariant
from autopilot.core.model.records import Inventory
from simulator.signals.behaviours import board_of
from simulator.signals.telemetry import METRICS, TelemetryGenerator
from simulator.signals.telemetry_entities import Entities, GpuState, TelemetryFaults

F64 = NDArray[np.float64]

DRIVER_VERSION = "570.133.20"
_MEMORY_ROW = METRICS.index(252)
_PROF_IDS = frozenset(range(1001, 1013))
_NOT_BY_DEFAULT = frozenset((1002, 1003, 1011, 1012))  # absent from the default counters files
_WHOLE = frozenset((1009, 1010, 1011, 1012, 203, 252, 251, 253, 230, 395))  # printed without decimals


@dataclass(frozen=True, slots=True)
class PodLabels:
    """The pod that holds a device, as kubelet reports it to the exporter."""

    namespace: str
    pod: str
    container: str = "main"


Pods = Sequence[Sequence[PodLabels]]
"""Pods by entity of a node: none, one, or several that share it."""


class NodeExporter:
    """The exporter of one node. Label texts are rebuilt only when the pods change."""

    def __init__(self, generator: TelemetryGenerator, inventory: Inventory, entities: Entities, node: int) -> None:
        self.rows = entities.rows_of(node)
        """Rows of this node's entities in the tables of the whole cluster."""
        self._generator = generator
        self._entities = entities.take(self.rows)
        self._node = node
        self._hardware = _hardware_labels(inventory, self.rows, node, generator.faults)
        quality = Quality(int(generator.counters(self._entities)[0])) if len(self.rows) else Quality.NONE
        self._fields = [(row, FIELDS[number]) for row, number in enumerate(METRICS) if _listed(number, quality)]
        self._pods: tuple[tuple[PodLabels, ...], ...] | None = None
        self._labels: list[list[str]] = []

    def render(self, slot: int, state: GpuState, pods: Pods) -> bytes | None:
        """The response to the scrape of `slot`; None when the scrape fails.

        `state` is the whole cluster's, `pods` this node's, in the order of `rows`.
        """
        own = GpuState(*(getattr(state, name)[self.rows] for name in GpuState.__slots__))
        if self._generator.lost(np.array([slot]), np.array([self._node]))[0, 0]:
            return None
        return self.text(self._generator.metrics(np.array([slot]), self._entities, own)[:, 0], pods)

    def text(self, metrics: F64, pods: Pods) -> bytes:
        """Exposition text of `metrics`, [METRICS, entities of this node], from the generator."""
        invariant(metrics.shape == (len(METRICS), len(self.rows)), "metrics are not those of this node")
        labels = self._labels_with(pods)
        # memory is known for every reported entity: without it, it is a partitioned GPU, or one that does not exist yet
        reported = ~np.isnan(metrics[_MEMORY_ROW])
        metrics, labels = metrics[:, reported], list(compress(labels, reported))
        lines: list[str] = []
        new = self._generator.faults.names == "new"
        for row, field in self._fields:
            name = field.names[1] if new and len(field.names) > 2 else field.names[0]
            lines.append(f"# HELP {name} {field.help}\n# TYPE {name} {field.kind.value}\n")
            values = _printed(field, metrics[row], self._generator.faults.blank_style)
            for texts, value in zip(labels, values, strict=True):
                if value:
                    lines.extend([f"{name}{{{text}}} {value}\n" for text in texts])
        return "".join(lines).encode()

    def _labels_with(self, pods: Pods) -> list[list[str]]:
        present = tuple(map(tuple, pods))
        if present != self._pods:
            invariant(len(present) == len(self.rows), "pods are not those of this node's entities")
            faults = self._generator.faults
            self._labels = [
                [hardware + tail for tail in _pod_tails(holders, faults)]
                for hardware, holders in zip(self._hardware, present, strict=True)
            ]
            self._pods = present
        return self._labels


def _listed(number: int, quality: Quality) -> bool:
    if quality == Quality.GPU_UTIL:
        return number not in _PROF_IDS
    return quality == Quality.SM_ACTIVE or number not in _NOT_BY_DEFAULT


def _printed(field: Field, values: F64, blank_style: str) -> list[str]:
    """Values as text; "" where no sample is printed."""
    layout = "%d" if field.id in _WHOLE else "%.6f"
    texts = [layout % value if value == value else "" for value in values.tolist()]  # noqa: PLR0124
    if blank_style == "absent" or field.id not in _PROF_IDS:
        return texts
    stand_in = "NaN" if blank_style == "nan" else _sentinel(field)
    return [text or stand_in for text in texts]


def _sentinel(field: Field) -> str:
    """DCGM's "no value" as old exporters print it: int64 for rates of bytes, else fp64."""
    return "9223372036854775794" if field.unit == "B/s" else f"{field.blank + 1:.6f}"


def _hardware_labels(inventory: Inventory, rows: NDArray[np.intp], node: int, faults: TelemetryFaults) -> list[str]:
    gpus, instances, names, nodes = inventory.gpus, inventory.instances, inventory.names, inventory.nodes
    model_code = int(nodes.gpu_model[node])
    product = board_of(names.gpu_models[model_code] if model_code >= 0 else "").product
    host = f',{faults.hostname_label}="{_escaped(str(nodes.id[node]))}"' if faults.hostname_label else ""
    labels = []
    for row in rows:
        instance = int(row) - len(gpus.uuid)
        gpu = int(row) if instance < 0 else int(instances.gpu[instance])
        index = int(gpus.index[gpu])
        mig = ""
        if instance >= 0:
            profile = names.profiles[int(instances.profile[instance])]
            mig = f',GPU_I_PROFILE="{profile}",GPU_I_ID="{int(instances.gi_id[instance])}"'
        labels.append(
            f'gpu="{index}",UUID="{_escaped(str(gpus.uuid[gpu]))}",'
            f'pci_bus_id="{index // 20:08X}:{0x0F + 0x0C * (index % 20):02X}:00.0",'
            f'device="nvidia{index}",modelName="{_escaped(product)}"{mig}{host},'
            f'DCGM_FI_DRIVER_VERSION="{DRIVER_VERSION}"'
        )
    return labels


def _pod_tails(holders: tuple[PodLabels, ...], faults: TelemetryFaults) -> list[str]:
    """Label texts that name the pods of one device: one for each sample printed for it."""
    if not holders:
        return [',container="",namespace="",pod=""' if faults.empty_pod_labels else ""]
    if faults.vgpu and len(holders) > 1:
        copies = [f'{_pod_text(pod)},vgpu="{number}"' for number, pod in enumerate(holders)]
        return ["", *copies]  # the device's own sample is printed as well
    return [_pod_text(holders[-1])]  # without vgpu the exporter's map keeps the last pod


def _pod_text(pod: PodLabels) -> str:
    names = _escaped(pod.container), _escaped(pod.namespace), _escaped(pod.pod)
    return ',container="{}",namespace="{}",pod="{}"'.format(*names)


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
