"""Tenants and queues: held, really used and requested GPUs of each, and its guarantee."""

from __future__ import annotations

from typing import Any

import numpy as np
from fastapi import APIRouter, Response

from autopilot.core.intake.usage.activity import Activity, entity_activity, work_activity
from autopilot.core.intake.usage.rollup import rollups
from autopilot.core.model.snapshot import F64, State
from autopilot.core.model.work import gpu_parts
from autopilot.http.answers import stated
from autopilot.http.auth import Viewer
from autopilot.http.desk import Asked
from autopilot.http.documents import json_answer
from autopilot.http.known import aged, seen_or_blank
from autopilot.http.routers.fleet import use_rows
from autopilot.http.view_answers import TenantsView
from autopilot.service.published import Published

router = APIRouter(prefix="/api/v1", tags=["tenants"])


@router.get("/tenants", responses=stated(TenantsView))
def tenants(desk: Asked, _caller: Viewer) -> Response:
    """Every tenant and queue that holds GPUs or waits, and every queue with a guarantee. null: not measured."""
    return json_answer(aged(desk.documents.body("tenants", desk.latest(), _tenants), desk.publisher.known))


def _tenants(latest: Published) -> dict[str, Any]:
    return seen_or_blank(latest, TenantsView, lambda: _seen(latest))


def _seen(latest: Published) -> dict[str, Any]:
    observation = latest.observation
    snapshot, levels = observation.snapshot, rollups(observation.snapshot)
    work, count = snapshot.workloads, len(snapshot.names.tenants)
    pending = np.flatnonzero(work.state == State.PENDING).astype(np.int32)
    gpus = work.gpus[pending] * gpu_parts(work, pending)
    waiting = _by(work.tenant[pending], gpus, count), _by(work.tenant[pending], np.ones(len(pending)), count)
    oldest_s = np.full(count + 1, np.nan)
    np.fmax.at(oldest_s, work.tenant[pending], observation.now_s - work.submit_s[pending])
    found = work_activity(snapshot, entity_activity(snapshot, latest.policy), observation.now_s)
    judged = found.activity != Activity.UNKNOWN
    idle_gpus = _by(work.tenant[judged], found.idle_gpus[judged], count)
    known = _by(work.tenant[judged], found.held_gpus[judged], count) > 0
    rows = [
        row
        | {
            "pending_gpus": waiting[0][place],
            "pending_workloads": int(waiting[1][place]),
            "oldest_pending_s": oldest_s[place],
            "idle_gpus": idle_gpus[place] if known[place] else None,
        }
        for place, row in enumerate(use_rows(levels["tenant"], count))
    ]
    held = levels["queue"]
    queues, use = snapshot.queues, use_rows(held, len(held.names) - 1)
    in_queue = _by(work.queue[pending], gpus, len(queues.id))
    return {
        "tenants": [row for row in rows if row["held_gpus"] or row["pending_workloads"]],
        "queues": [
            {
                "name": str(queues.id[row]),
                "parent": str(queues.id[queues.parent[row]]) if queues.parent[row] >= 0 else None,
                "guaranteed_gpus": float(queues.guarantee[row].sum()),
                "limit_gpus": int(queues.limit[row]) if queues.limit[row] >= 0 else None,
                "held_gpus": use[row]["held_gpus"],
                "active_gpus": use[row]["active_gpus"],
                "measured_ratio": use[row]["measured_ratio"],
                "pending_gpus": in_queue[row],
            }
            for row in range(1, len(queues.id))
        ],
    }


def _by(group: Any, values: F64, count: int) -> F64:
    """Sums by group; work without a group is left out. Shape [count]."""
    inside = group >= 0
    sums: F64 = np.bincount(group[inside], values[inside], count)[:count].astype(np.float64)
    return sums
