"""A small GPU exporter in memory: the text of one node, with the oddities of real ones."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from autopilot.core.hardware import dcgm

BUSY = {
    1002: 0.62,
    1003: 0.31,
    1001: 0.97,
    1004: 0.28,
    1005: 0.44,
    1011: 3.5e10,
    1012: 3.25e10,
    1009: 2.5e9,
    1010: 1.5e9,
    203: 99.0,
    252: 61440.0,
    251: 19000.0,
    253: 600.0,
    155: 512.5,
    156: 9.1e14,
    230: 0.0,
    395: 0.0,
}
"""A training GPU: field id -> number on the wire. Energy is beyond the blank of a gauge, as in life."""


@dataclass(frozen=True)
class Device:
    """One GPU, or one MIG instance when `gi_id` is given, and what it sends."""

    uuid: str
    index: int = 0
    values: dict[int, float | str] = field(default_factory=lambda: dict(BUSY))
    gi_id: str = ""
    profile: str = ""
    model: str = "NVIDIA H100 80GB HBM3"
    pod: str = ""
    vgpu: str = ""

    def but(self, **changes: object) -> Device:
        """The same device with some attributes changed."""
        return replace(self, **changes)  # type: ignore[arg-type]

    def reading(self, values: Mapping[int, float | str | None]) -> Device:
        """The same device with some fields changed; None takes a field away."""
        merged = {number: v for number, v in {**self.values, **values}.items() if v is not None}
        return replace(self, values=merged)


def render(
    devices: Iterable[Device],
    *,
    node: str = "node-a",
    new_names: bool = False,
    host_label: str = "hostname",
    exported: bool = False,
    empty_pod_labels: bool = False,
    timestamps: bool = False,
) -> str:
    """The text that an exporter on `node` would send."""
    lines: list[str] = []
    devices = list(devices)
    for number, known in dcgm.FIELDS.items():
        name = known.names[1] if new_names and len(known.names) > 1 and known.names[1].isupper() else known.names[0]
        samples = [(device, device.values[number]) for device in devices if number in device.values]
        if samples:
            lines += [f"# HELP {name} {known.help}", f"# TYPE {name} {known.kind.value}"]
        for device, value in samples:
            labels = {"gpu": str(device.index), "UUID": device.uuid, "pci_bus_id": "00000000:0F:00.0"}
            labels |= {"device": f"nvidia{device.index}", "modelName": device.model}
            if device.gi_id:
                labels |= {"GPU_I_PROFILE": device.profile, "GPU_I_ID": device.gi_id}
            if host_label:
                labels[host_label] = node
            prefix = "exported_" if exported else ""
            if device.pod:
                labels |= {
                    f"{prefix}container": "main",
                    f"{prefix}namespace": "team-a",
                    f"{prefix}pod": device.pod,
                }
            elif empty_pod_labels:
                labels |= {"container": "", "namespace": "", "pod": ""}
            if exported:
                labels |= {"container": "exporter", "namespace": "gpu-operator", "pod": f"exporter-{node}"}
            if device.vgpu:
                labels["vgpu"] = device.vgpu
            if number == 230 and value:
                labels |= {"err_code": str(value), "err_msg": 'GPU has fallen off the bus, "79"\\'}
            written = value if isinstance(value, str) else f"{value:.6f}"
            stamp = " 1732154400000" if timestamps else ""
            lines.append(f"{name}{{{_labels(labels)}}} {written}{stamp}")
    return "\n".join(lines) + "\n"


def _labels(labels: dict[str, str]) -> str:
    escaped = {k: v.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") for k, v in labels.items()}
    return ",".join(f'{name}="{value}"' for name, value in escaped.items())
