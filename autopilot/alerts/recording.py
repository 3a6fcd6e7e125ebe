"""Recording rules: what dashboards and alerts ask often, named `level:metric:operations`.

Every expression keeps the label `cluster`, and takes the maximum over processes: only the leader exposes the cluster,
and for a moment two processes may.
"""

from __future__ import annotations

from dataclasses import dataclass

SHAPE_CAUSES = "mig_geometry|gpu_remainder|node_remainder|topology"
"""Causes of stranding that are about the shape of free capacity, not about who may use it."""


@dataclass(frozen=True, slots=True)
class Recording:
    """One recording rule. Durations are those of speed 1."""

    record: str
    expr: str


def _late(window: str) -> Recording:
    """The share of late requests of each service over a window."""
    late, every = (
        f"max by (cluster, service) (avg_over_time(gpu_autopilot_service_{name}_per_second[{window}]))"
        for name in ("late_requests", "requests")
    )
    return Recording(f"service:gpu_autopilot_late_requests:ratio_{window}", f"{late} / {every}")


FLEET: tuple[Recording, ...] = tuple(
    Recording(f"cluster:gpu_autopilot_{name}:max", f"max by (cluster) (gpu_autopilot_fleet_{name})")
    for name in (
        "capacity_gpus",
        "held_gpus",
        "free_gpus",
        "out_of_use_gpus",
        "measured_ratio",
        "active_gpus",
        "gap_gpus",
        "allocation_ratio",
        "hardware_ratio",
        "real_utilization_ratio",
    )
)

RECORDINGS: dict[str, tuple[Recording, ...]] = {
    "fleet": (
        *FLEET,
        Recording(
            "cluster:gpu_autopilot_pending_gpus:sum",
            "sum by (cluster) (max by (cluster, reason) (gpu_autopilot_pending_gpus))",
        ),
    ),
    "shape": (
        Recording(
            "pool:gpu_autopilot_pending_stranded_gpus:sum",
            "sum by (cluster, pool) (max by (cluster, pool, cause) "
            f'(gpu_autopilot_stranded_gpus{{demand="pending", cause=~"{SHAPE_CAUSES}"}}))',
        ),
        Recording(
            "pool:gpu_autopilot_pending_stranded:ratio",
            "pool:gpu_autopilot_pending_stranded_gpus:sum / max by (cluster, pool) (gpu_autopilot_pool_capacity_gpus)",
        ),
        Recording(
            "pool:gpu_autopilot_fragmentation_ratio:max", "max by (cluster, pool) (gpu_autopilot_fragmentation_ratio)"
        ),
    ),
    "owners": (
        Recording(
            "tenant:gpu_autopilot_hoarding_ratio:max", "max by (cluster, tenant) (gpu_autopilot_tenant_hoarding_ratio)"
        ),
        Recording(
            "tenant:gpu_autopilot_idle_gpus:product",
            "tenant:gpu_autopilot_hoarding_ratio:max * max by (cluster, tenant) (gpu_autopilot_tenant_held_gpus)",
        ),
        Recording(
            "queue:gpu_autopilot_borrowed_idle_gpus:max",
            "max by (cluster, queue) (gpu_autopilot_queue_borrowed_idle_gpus)",
        ),
    ),
    "services": (_late("5m"), _late("30m"), _late("1h"), _late("6h")),
    "telemetry": (
        Recording(
            "cluster:gpu_autopilot_telemetry_missing:ratio",
            'sum by (cluster) (max by (cluster, quality) (gpu_autopilot_telemetry_gpus{quality="none"})) / '
            "sum by (cluster) (max by (cluster, quality) (gpu_autopilot_telemetry_gpus))",
        ),
        Recording(
            "cluster:gpu_autopilot_telemetry_coarse:ratio",
            'sum by (cluster) (max by (cluster, quality) (gpu_autopilot_telemetry_gpus{quality=~"gr_engine|gpu_util"}))'
            " / sum by (cluster) (max by (cluster, quality) (gpu_autopilot_telemetry_gpus))",
        ),
    ),
}
"""Recording rules by group, in the order of evaluation."""
