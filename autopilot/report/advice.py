"""What to change next, by rule from what held work back."""

from __future__ import annotations

from autopilot.core.records import Code

FIELD_OF: dict[Code, str] = {
    Code.STALE_INVENTORY: "freshness.inventory_s",
    Code.STALE_WORK: "freshness.work_s",
    Code.STALE_TELEMETRY: "freshness.telemetry_s",
    Code.PAUSED: "pause.length_s",
    Code.PROTECTED_CLASS: "protection.classes",
    Code.MIN_RUNTIME: "protection.min_runtime_s",
    Code.DWELL: "hysteresis.dwell_s",
    Code.COOL_DOWN: "hysteresis.cool_down_s",
    Code.MARGIN: "hysteresis.margin_ratio",
    Code.GIVEN_UP: "preemption.landing_timeout_s",
    Code.BUDGET_CLUSTER: "budget.per_cluster",
    Code.BUDGET_TENANT: "budget.per_tenant",
    Code.BUDGET_NODE: "budget.per_node",
    Code.BUDGET_CONCURRENT: "budget.concurrent",
    Code.BUDGET_CHECKPOINT: "preemption.checkpoint_writers",
    Code.BLAST_RADIUS: "preemption.blast_ratio",
    Code.WITHOUT_CHECKPOINT: "preemption.without_checkpoint",
    Code.FORECAST_STALE: "scale_ahead.forecast_age_s",
    Code.FORECAST_UNPROVEN: "scale_ahead.least_outcomes",
    Code.FORECAST_UNCALIBRATED: "scale_ahead.coverage_slack",
    Code.RESERVED: "reservation.depth",
    Code.BOUND: "limits.proposals_per_tick",
}
"""The policy field that sets the limit behind a code; codes without one follow from the cluster, the queues or the work."""
MODE_CODES = frozenset({Code.MODE_OFF, Code.MODE_OBSERVE, Code.MODE_RECOMMEND, Code.NEEDS_APPROVAL})
"""Codes that the mode of the action decides (`modes.ACTION`)."""
