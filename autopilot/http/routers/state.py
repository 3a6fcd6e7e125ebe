"""The state of the controller and the fleet at the last tick."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from fastapi import APIRouter

from autopilot.app.decisions.decision_rows import known, signals_document, tick_document
from autopilot.core.intake.sight import key_of
from autopilot.core.model.records import Cause
from autopilot.http.answers import ControllerState, stated
from autopilot.http.auth import Viewer
from autopilot.http.desk import Asked
from autopilot.http.known import stale

router = APIRouter(prefix="/api/v1", tags=["state"])

MOST_GAPS = 200


@router.get("/state", responses=stated(ControllerState))
def state(desk: Asked, caller: Viewer) -> dict[str, Any]:
    """What the controller knows, whether it may act, and how its sources answer."""
    latest = desk.latest()
    memory, observation = latest.memory, latest.observation
    tick, ages = tick_document(latest.decision, desk.when), desk.publisher.known.ages()
    return {
        "tick": latest.decision.tick,
        "now_s": observation.now_s,
        "at": desk.when.stamp(observation.now_s),
        "leads": latest.leads,
        "halted": latest.decision.halted or None,
        "kill_switch": desk.kill_switch.reason() or None,
        "killed": memory.halt.killed,
        "paused": memory.halt.paused_reason or None,
        "policy": {"name": latest.policy.name, "problem": latest.policy_problem or None},
        "signals": signals_document(observation),
        "waiting": tick["waiting"] if latest.sees else None,
        "reservations": tick["reservations"] if latest.sees else None,
        "notes": tick["notes"],
        "in_flight": len(memory.effects.in_flight),
        "failed_effects": [
            {
                "at_s": each.outcome.at_s,
                "at": desk.when.stamp(each.outcome.at_s),
                "instruction": each.instruction.id,
                "proposal": each.instruction.proposal_id,
                "operation": each.instruction.kind,
                "object": each.instruction.subject.name,
                "outcome": each.outcome.kind.value,
                "cause": each.outcome.cause.value or Cause.OTHER.value,
                "reason": each.outcome.reason,
                "retried": each.outcome.retryable,
            }
            for each in desk.publisher.failed()
        ],
        "denied_requests": [{"at": desk.when.stamp(each.at_s), **asdict(each)} for each in list(desk.record.by_role)],
        "collectors": [
            {key: known(value) if isinstance(value, float) else value for key, value in asdict(each).items()}
            | {"age_s": ages.collectors_s.get(each.name)}
            for each in latest.collectors
        ],
        "lists": [
            {
                "kind": each.kind,
                "source": each.source,
                "age_s": ages.views_s.get(key_of(each)),
                "objects": each.count if each.complete else None,
                "problem": "" if each.complete else each.reason or "it is not complete",
            }
            for each in observation.views
        ],
        "stale": list(stale(latest, desk.publisher.known)),
        "gaps": [asdict(gap) for gap in observation.gaps[:MOST_GAPS]],
        "gaps_in_total": len(observation.gaps),
        "took_s": latest.took_s,
        "stages_s": dict(latest.stages_s),
        "caller": {"name": caller.name, "role": caller.role.value},
    }
