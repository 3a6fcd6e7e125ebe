"""Forecasts with their bands and their record: demand of services, and the expected mix of work."""

from __future__ import annotations

from typing import Any

import numpy as np
from fastapi import APIRouter, Response

from autopilot.core.model.forecast import ExpectedMix, Forecast, kind_words, pool_words
from autopilot.core.model.objectives import missed_ratio, promised_s
from autopilot.core.model.objects import ServingRole
from autopilot.core.model.snapshot import F64
from autopilot.http.answers import stated
from autopilot.http.auth import Viewer
from autopilot.http.desk import Asked, Desk
from autopilot.http.documents import json_answer
from autopilot.http.known import aged, seen_or_blank
from autopilot.http.view_answers import ForecastsView
from autopilot.service.published import Published

router = APIRouter(prefix="/api/v1", tags=["forecasts"])

PAST_S = 3 * 3600.0
MOST_SERVICES = 200


@router.get("/forecasts", responses=stated(ForecastsView))
def forecasts(desk: Asked, _caller: Viewer) -> Response:
    """Each service with its objective, demand forecast and past rate; the expected mix; run times. null: unknown."""
    body = desk.documents.body("forecasts", desk.latest(), lambda latest: _forecasts(desk, latest))
    return json_answer(aged(body, desk.publisher.known))


def _forecasts(desk: Desk, latest: Published) -> dict[str, Any]:
    return seen_or_blank(latest, ForecastsView, lambda: _seen(desk, latest))


def _seen(desk: Desk, latest: Published) -> dict[str, Any]:
    observation = latest.observation
    given, table = observation.forecasts, observation.snapshot.services
    runtimes, jobs = given.runtimes, observation.snapshot.workloads.service < 0
    promised, (missed, _) = promised_s(table), missed_ratio(table)
    known = None
    if runtimes is not None and len(runtimes.known) == len(jobs) and jobs.any():
        known = float(runtimes.known[jobs].mean())
    return {
        "services": [
            _service(desk, latest, row, promised[:, row], missed[row])
            for row in range(min(len(table.id), MOST_SERVICES))
        ],
        "services_in_total": len(table.id),
        "mix": None if given.mix is None else _mix(given.mix),
        "runtimes": None if runtimes is None else {"model": runtimes.model, "known_ratio": known},
    }


def _service(desk: Desk, latest: Published, row: int, promised: F64, missed: float) -> dict[str, Any]:
    observation = latest.observation
    table, name = observation.snapshot.services, str(observation.snapshot.services.id[row])
    at_s, rates_rps = desk.history.rates(name, observation.now_s - PAST_S)
    return {
        "name": name,
        "objective_s": table.objective_s[row],
        "p99_s": table.p99_s[row],
        "role": ServingRole(int(table.role[row])).name.lower(),
        "ttft_objective_s": promised[1],
        "ttft_p99_s": table.ttft_p99_s[row],
        "itl_objective_s": promised[2],
        "itl_p99_s": table.itl_p99_s[row],
        "late_ratio": missed,
        "rate": table.recent_rps[row],
        "queued": table.queue_depth[row],
        "replicas": int(table.replicas[row]),
        "ready_replicas": int(table.ready_replicas[row]),
        "floor": int(table.floor[row]),
        "past": {"at_s": at_s, "requests_per_s": rates_rps},
        "demand": [found for each in observation.forecasts.demand if (found := _demand(each, name)) is not None],
    }


def _demand(forecast: Forecast, service: str) -> dict[str, Any] | None:
    """The forecast of one service; None if the forecast has no row for it."""
    if service not in forecast.series:
        return None
    row = forecast.series.index(service)
    return {
        "kind": forecast.kind,
        "model": forecast.chosen[row] if len(forecast.chosen) > row else forecast.model,
        "made_s": forecast.made_s,
        "horizons_s": forecast.horizons_s,
        "levels": forecast.levels,
        "values": forecast.values[row].tolist(),
        "coverage": forecast.coverage[row].tolist() if forecast.coverage.size else None,
        "outcomes": forecast.outcomes[row].tolist() if forecast.outcomes.size else None,
        "drifting": bool(forecast.drifting[row]) if len(forecast.drifting) else None,
        "abstains": (forecast.reasons[row] if len(forecast.reasons) > row else "") or None,
    }


def _mix(mix: ExpectedMix) -> dict[str, Any]:
    """The expected kinds of gangs, the most GPUs first."""
    if mix.reason or not mix.kinds:
        return {"reason": mix.reason or "it expects nothing", "kinds": [], "horizons_s": mix.horizons_s}
    order = np.argsort(-mix.expected[:, -1] * np.array([kind.gpus for kind in mix.kinds]), kind="stable")[:20]
    return {
        "reason": None,
        "made_s": mix.made_s,
        "watched_h": mix.watched_h,
        "horizons_s": mix.horizons_s,
        "levels": mix.levels,
        "kinds": [
            {
                "words": kind_words(mix.kinds[row]),
                "models": pool_words(mix.kinds[row]),
                "expected": mix.expected[row].tolist(),
                "counts": mix.counts[row].tolist(),
            }
            for row in order.tolist()
        ],
    }
