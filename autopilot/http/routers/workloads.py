"""Work on GPUs and waiting work: its activity, nodes, start and expected end; and the story of one workload."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Annotated, Any, Literal

import numpy as np
from fastapi import APIRouter, HTTPException, Path, Query, Response

from autopilot.app.decisions.answers import meant
from autopilot.core.intake.signals import ACTIVITY_WINDOW_S
from autopilot.core.intake.usage.table import UsageTable, usage_of
from autopilot.core.model.errors import InputError
from autopilot.core.model.snapshot import F64, Bools, ClusterSnapshot, State
from autopilot.core.model.work import holding_mask
from autopilot.core.neighbours.facts import disturbed
from autopilot.core.planning.ordering.predicted_ends import look_out, predicted_ends, review_start
from autopilot.core.sharing.facts import SharedRates, shared_rates
from autopilot.explain.neighbours import neighbours, rate_of
from autopilot.explain.story.telling import tell
from autopilot.explain.use import known
from autopilot.http.answers import stated
from autopilot.http.auth import Viewer
from autopilot.http.desk import Asked
from autopilot.http.documents import encode, json_answer
from autopilot.http.known import aged, seen_or_blank
from autopilot.http.routers.queue import basics, waiting_rows
from autopilot.http.view_answers import WorkloadStory, WorkloadsView
from autopilot.service.published import Published

router = APIRouter(prefix="/api/v1", tags=["workloads"])

Row = dict[str, Any]
ORDERS: dict[str, Callable[[Row], Any]] = {
    "activity": lambda row: row["activity_ratio"],
    "since": lambda row: row["since_s"],
    "expected_end": lambda row: row["expected_end_s"],
    "gpus": lambda row: -row["gpus"],
    "owner": lambda row: (row["tenant"], row["queue"]),
    "name": lambda row: row["id"],
}
"""Orders of the list: the least active, the longest, the soonest, the largest first. Unknown values come last."""


@router.get("/workloads", responses=stated(WorkloadsView))
def workloads(
    desk: Asked,
    _caller: Viewer,
    limit: Annotated[int, Query(ge=1, le=2000)] = 200,
    find: Annotated[
        str, Query(max_length=200, description="part of a name, tenant, queue, state, node or reason")
    ] = "",
    sort: Literal["activity", "since", "expected_end", "gpus", "owner", "name"] = "activity",
) -> Response:
    """Workloads that hold GPUs or wait. `expected_end_s` is a quantile of the run times, at most the time limit.

    Without a forecast of the run time it is the time limit (`end_by_limit`).
    """
    latest = desk.latest()
    always = {"window_s": ACTIVITY_WINDOW_S, "level": latest.policy.reservation.level}
    found = seen_or_blank(latest, WorkloadsView, lambda: _seen(latest, limit, find.casefold(), ORDERS[sort]), **always)
    return json_answer(aged(encode(found), desk.publisher.known))


@router.get("/workloads/{workload_id:path}", responses=stated(WorkloadStory))
def workload(desk: Asked, _caller: Viewer, workload_id: Annotated[str, Path(max_length=500)]) -> dict[str, Any]:
    """What happens to one workload and why, in words."""
    latest = desk.seen()
    names = latest.observation.snapshot.workloads.id.tolist()
    try:
        workload_id = meant(names, workload_id)
    except InputError as error:
        raise HTTPException(404, str(error)) from error
    if workload_id not in names:
        raise HTTPException(404, f"{workload_id}: no such workload now; `autopilot explain` reads the journal")
    lines = tell(workload_id, latest.observation, latest.decision, memory=latest.memory)
    return {"id": workload_id, "lines": lines}


def _seen(latest: Published, limit: int, wanted: str, order: Callable[[Row], Any]) -> Row:
    rows = _rows(latest)
    found = [row for row in rows if not wanted or any(wanted in text.casefold() for text in _texts(row))]
    found.sort(key=lambda row: ((value := order(row)) is None, value, row["id"]))
    return {"in_total": len(rows), "found": len(found), "workloads": found[:limit]}


def _texts(row: Row) -> list[str]:
    named = ("id", "tenant", "queue", "state", "code", "words")
    return [*(row[name] or "" for name in named), *row["nodes"]]


def _rows(latest: Published) -> list[Row]:
    observation, policy = latest.observation, latest.policy
    snapshot, work = observation.snapshot, observation.snapshot.workloads
    review_s = review_start(observation.now_s, policy)
    outlook = look_out(work, observation.forecasts.runtimes, policy, review_s)
    end_s = predicted_ends(work, policy, outlook, review_s, policy.reservation.level)
    foretold = outlook.foretold(policy.reservation.level)
    use, nodes, beside = usage_of(snapshot, observation.now_s), _nodes(snapshot), neighbours(snapshot)
    activity, measured_ratio, estimated = _measured(use)
    rates = shared_rates(snapshot, latest.memory.profiles, observation.forecasts.colocation, observation.now_s)
    slowed, held_up = _slowed(latest), _held_up(latest)
    pending = work.state == State.PENDING
    since_s = np.where(pending, work.submit_s, np.where(np.isnan(work.runs_since_s), work.start_s, work.runs_since_s))
    waits = {each["id"]: each for each in waiting_rows(latest)}
    calm = {"code": None, "words": None, "proposal": None, "expected_start_s": None}
    return [
        (waits.get(str(work.id[row])) or basics(latest, row) | calm)
        | {
            "state": State(int(work.state[row])).name.lower(),
            "held_gpus": None if pending[row] else float(use.held_gpus[row]),
            "nodes": nodes.get(row, []),
            "beside": [_neighbour(snapshot, *each) for each in beside.get(row, Counter()).most_common()],
            "slowed_by": slowed.get(row, []),
            "held_up_by": held_up.get(str(work.uid[row]), []),
            **_rate(rates, row),
            "activity_ratio": known(float(activity[row])),
            "activity_estimated": bool(estimated[row]),
            "measured_ratio": None if pending[row] else known(float(measured_ratio[row])),
            "since_s": known(float(since_s[row])),
            "expected_end_s": known(float(end_s[row])),
            "end_by_limit": bool(np.isfinite(end_s[row]) and not foretold[row]),
        }
        for row in np.flatnonzero(pending | holding_mask(work)).tolist()
    ]


def _rate(rates: SharedRates, row: int) -> Row:
    rate, basis = rate_of(rates, row)
    predicted = known(float(rates.predicted[row]))
    return {"rate_ratio": known(rate), "rate_basis": basis or None, "predicted_rate_ratio": predicted}


def _slowed(latest: Published) -> dict[int, list[Row]]:
    """The neighbours that slow down a workload, as detectors found them and as far as they are known."""
    found: dict[int, list[Row]] = {}
    snapshot, records = latest.observation.snapshot, latest.observation.forecasts.interference
    for row, record, standing, _ in disturbed(snapshot, records, latest.memory.neighbours):
        ratios = {"rise_ratio": record.rise_ratio, "now_ratio": known(record.now_ratio)}
        each = {"id": record.suspect, "near": record.nearness.value, "state": standing.value, **ratios}
        found.setdefault(row, []).append(each)
    return found


def _held_up(latest: Published) -> dict[str, list[Row]]:
    """The members that hold up a gang, by its uid."""
    forecasts = latest.observation.forecasts
    suspects, found = {each.gpu: each.gangs for each in forecasts.slow_gpus}, dict[str, list[Row]]()
    for each in forecasts.stragglers:
        member = {"node": each.node, "gpu": each.gpu, "rank": each.rank, "slow_ratio": each.slow_ratio}
        known = {"evidence": list(each.evidence), "confidence": each.confidence}
        costs = {"lost_gpu_s_per_h": each.cost_gpu_s_per_h, "suspect_gangs": suspects.get(each.gpu, 0)}
        found.setdefault(each.gang_uid, []).append(member | known | costs)
    return found


def _neighbour(snapshot: ClusterSnapshot, row: int, gpus: int) -> Row:
    work, names = snapshot.workloads, snapshot.names.tenants
    tenant = int(work.tenant[row])
    return {"id": str(work.id[row]), "tenant": names[tenant] if tenant >= 0 else "", "gpus": gpus}


def _measured(use: UsageTable) -> tuple[F64, F64, Bools]:
    """SM activity of each workload over the short window, the measured share of its GPUs, and the mask of estimated
    values.
    """
    if ACTIVITY_WINDOW_S not in use.windows_s:
        unknown = np.full(len(use.held_units), np.nan)
        return unknown, unknown, np.zeros(len(unknown), np.bool_)
    window, signal = use.windows_s.index(ACTIVITY_WINDOW_S), "sm_active_ratio"
    return use.values(signal)[window], use.measured_ratio[window], use.estimates(signal)[window]


def _nodes(snapshot: ClusterSnapshot) -> dict[int, list[str]]:
    """The nodes of each workload on GPUs."""
    held, out = snapshot.placements, dict[int, list[str]]()
    for row, node in np.unique(np.stack([held.workload, held.node], axis=1), axis=0).tolist():
        out.setdefault(row, []).append(str(snapshot.nodes.id[node]))
    return out
