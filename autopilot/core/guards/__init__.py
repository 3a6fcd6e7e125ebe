"""The guards: each one reason to hold a proposal, with a number.

Theory of operation. The planner builds a proposal and asks every guard in `GUARDS`, in order. A guard reads the
proposal, its draft and the context of the tick, and answers with a `Verdict`: allowed or refused, a reason code, a
value, its unit and a threshold. One refusal holds the proposal; the other guards answer all the same, and the record
keeps all verdicts. A guard changes nothing, so its place in the order decides the order of the words alone.

An eviction by contract returns GPUs to their owner. The guards on price and calm waive it: they allow it under the
code `waived_contract` and record the number. The guards on safety (protection, whole gangs, objectives of services)
bind contracts too.

The guards judge a proposal again at the moment of sending (core/decision/sending.py). `draft.resent` then names the
proposal of the first decision, and its own disruptions count once.
"""

from __future__ import annotations

from autopilot.core.guards import (
    blast_radius,
    budget,
    confidence,
    contract,
    freshness,
    gang,
    hysteresis,
    min_runtime,
    mode,
    promise,
    protected,
    regeometry,
    slo,
    stops,
    storm,
    telemetry,
)
from autopilot.core.guards.base import Check

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
    (confidence.NAME, confidence.check),  # a forecast worth its promise
    (storm.NAME, storm.check),  # the action does not reverse itself or fail again and again
    (promise.NAME, promise.check),  # the action realised enough of its promises
    (mode.NAME, mode.check),  # kill switch, pause, off .. auto
)
