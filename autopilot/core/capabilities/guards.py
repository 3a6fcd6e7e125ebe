"""The guards, in the order of their words. One row each."""

from __future__ import annotations

from autopilot.core.geometry import guard as regeometry
from autopilot.core.guards import (
    blast_radius,
    budget,
    contract,
    freshness,
    gang,
    hysteresis,
    min_runtime,
    mode,
    protected,
    slo,
    stops,
)
from autopilot.core.guards.base import Check
from autopilot.core.replicas import guard as confidence
from autopilot.core.sharing import guard as sharing
from autopilot.core.trust import promise_guard as promise
from autopilot.core.trust import storm_guard as storm
from autopilot.core.trust import telemetry_guard as telemetry

GUARDS: tuple[tuple[str, Check], ...] = (
    (freshness.NAME, freshness.check),  # do we know enough, recently enough?
    (telemetry.NAME, telemetry.check),  # can the measurements be true?
    (protected.NAME, protected.check),  # classes, opt-outs, work declared not preemptible
    (gang.NAME, gang.check),  # all or none
    (slo.NAME, slo.check),  # no service beyond its objective
    (blast_radius.NAME, blast_radius.check),  # GPUs taken against GPUs needed
    (min_runtime.NAME, min_runtime.check),  # no victim younger than its guarantee
    (stops.NAME, stops.check),  # no victim with too many stops
    (hysteresis.NAME, hysteresis.check),  # margin, dwell, cool-down
    (budget.NAME, budget.check),  # disruptions per window and at once
    (contract.NAME, contract.check),  # GPUs by contract for one beneficiary
    (regeometry.NAME, regeometry.check),  # MIG geometries: legal, rare, and never under running work
    (sharing.NAME, sharing.check),  # shared GPUs: consent, memory, rates; no node is turned under work
    (confidence.NAME, confidence.check),  # a forecast worth its promise
    (storm.NAME, storm.check),  # the action does not reverse itself or fail again and again
    (promise.NAME, promise.check),  # the action realised enough of its promises
    (mode.NAME, mode.check),  # kill switch, pause, off .. auto
)
