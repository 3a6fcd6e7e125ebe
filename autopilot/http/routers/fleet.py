"""The fleet now, by pool, and over the last day."""

from __future__ import annotations

from typing import Annotated, Any

import numpy as np
from fastapi import APIRouter, Query, Response

from autopilot.app.decisions.decision_rows import signals_document
from autopilot.core.intake.signals import ACTIVITY_WINDOW_S
from autopilot.core.intake.usage.rollup import ROOM, Rollup, ratios, rollups
from autopilot.core.model.records import Observation
from autopilot.http.answers import stated
from autopilot.http.auth import Viewer
from autopilot.http.desk import Asked
from autopilot.http.documents import json_answer
from autopilot.http.known import aged, seen_or_blank
from autopilot.http.view_answers import FleetView, HistoryView
from autopilot.service.published import Published

router = APIRouter(prefix="/api/v1", tags=["fleet"])


@router.get("/fleet", responses=stated(FleetView))
def fleet(desk: Asked, _caller: Viewer) -> Response:
    """Capacity, what is allocated, what is active, and the gap; of the fleet and of each pool. null: not measured."""
    return json_answer(aged(desk.documents.body("fleet", desk.latest(), _fleet), desk.publisher.known))


@router.get("/history", responses=stated(HistoryView))
def history(
    desk: Asked,
    _caller: Viewer,
    after_s: Annotated[float | None, Query(allow_inf_nan=False, description="only points after this time")] = None,
) -> Response:
    """The fleet over the last day, one point a minute, in GPUs. null: not measured."""
    return json_answer(desk.history.document(float("-inf") if after_s is None else after_s))


def use_rows(found: Rollup, count: int) -> list[dict[str, Any]]:
    """The first `count` groups of a level, in GPUs. Free and out of use are those of a pool, else of the fleet."""
    use, room = ratios(found, ACTIVITY_WINDOW_S), {name: found.gpus(name) for name in ROOM}
    return [
        {
            "name": found.names[row],
            **{name: column[row] for name, column in room.items()},
            "held_gpus": use.held_gpus[row],
            "active_gpus": use.active_gpus[row],
            "gap_gpus": use.gap_gpus[row],
            "measured_ratio": use.measured_ratio[row],
            "allocation_ratio": use.allocation_ratio[row],
            "hardware_ratio": use.hardware_ratio[row],
            "real_utilization_ratio": use.real_utilization_ratio[row],
            "workloads": int(found.workloads[row]),
        }
        for row in range(count)
    ]


def _fleet(latest: Published) -> dict[str, Any]:
    given = {"window_s": ACTIVITY_WINDOW_S, "gaps": len(latest.observation.gaps)}
    found = seen_or_blank(latest, FleetView, lambda: _seen(latest.observation), **given)
    return found | {"fleet": found["fleet"] | {"name": "fleet"}}


def _seen(observation: Observation) -> dict[str, Any]:
    snapshot, levels = observation.snapshot, rollups(observation.snapshot)
    pools = use_rows(levels["pool"], len(levels["pool"].names) - 1)
    nodes = np.bincount(snapshot.nodes.pool, minlength=len(pools)) if len(snapshot.nodes.pool) else np.zeros(len(pools))
    return {
        "signals": signals_document(observation),
        "fleet": use_rows(levels["fleet"], 1)[0],
        "pools": [row | {"nodes": int(count)} for row, count in zip(pools, nodes.tolist(), strict=True)],
        "nodes": len(snapshot.nodes.id),
        "gpus": len(snapshot.gpus.uuid),
        "workloads": {
            "running": int(levels["fleet"].workloads[0]),
            "pending": int((snapshot.workloads.state == 0).sum()),
        },
    }
