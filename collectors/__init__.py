"""Sources of telemetry, inventory and work. Importing this package imports none of them."""

from __future__ import annotations

from importlib import import_module
from typing import Any, NamedTuple

from autopilot.core.model.errors import InputError


class Row(NamedTuple):
    """One collector: its name, the path of its class, and what it provides."""

    name: str
    where: str
    brings: str


COLLECTORS = (
    Row("prometheus", "collectors.prometheus:PrometheusCollector", "windows that a Prometheus computes"),
    Row("exporter", "collectors.exporter:ExporterCollector", "windows from a direct scrape of GPU exporters"),
    Row("slo", "collectors.slo.collector:SloCollector", "latency and demand of services, from a Prometheus"),
    Row("kubernetes", "collectors.kubernetes.collector:KubernetesCollector", "inventory and work, from an API server"),
    Row("nvml", "collectors.nvml:NvmlCollector", "windows and inventory of this machine's GPUs, by its driver"),
)


def load(name: str) -> Any:
    """The class of the collector `name`. Raises `InputError` with the list for any other name."""
    for row in COLLECTORS:
        if row.name == name:
            module, _, attribute = row.where.partition(":")
            return getattr(import_module(module), attribute)
    known = ", ".join(row.name for row in COLLECTORS)
    raise InputError(f"collector: {name!r} is not one of {known}")
