"""Waiting work in the order of service, each with its reason."""

from __future__ import annotations

from collections import Counter
from typing import Annotated, Any

from fastapi import APIRouter, Query, Response

from autopilot.core.model.snapshot import GPU_MILLI, SLO_CLASS_NAMES, State
from autopilot.explain.neighbours import share_word, trust_word
from autopilot.explain.proposals import answer_of, code_words, proposal_words
from autopilot.http.answers import stated
from autopilot.http.auth import Viewer
from autopilot.http.desk import Asked
from autopilot.http.documents import encode, json_answer
from autopilot.http.known import aged, seen_or_blank
from autopilot.http.view_answers import QueueView
from autopilot.service.published import Published

router = APIRouter(prefix="/api/v1", tags=["queue"])


@router.get("/queue", responses=stated(QueueView))
def queue(
    desk: Asked,
    _caller: Viewer,
    limit: Annotated[int, Query(ge=1, le=2000)] = 200,
    find: Annotated[str, Query(max_length=200, description="part of a name, tenant, queue or reason")] = "",
) -> Response:
    """Pending workloads with why each waits: work with a proposal first, then the order of service."""
    latest = desk.latest()
    halted = latest.decision.halted or None
    found = seen_or_blank(latest, QueueView, lambda: _seen(latest, limit, find.casefold()), halted=halted)
    return json_answer(aged(encode(found), desk.publisher.known))


def _seen(latest: Published, limit: int, wanted: str) -> dict[str, Any]:
    every = waiting_rows(latest)
    rows = [
        row
        for row in every
        if not wanted or any(wanted in str(row[name]).casefold() for name in ("id", "tenant", "queue", "code", "words"))
    ]
    return {
        "in_total": len(every),
        "found": len(rows),
        "reasons": _reasons(every),
        "workloads": rows[:limit],
    }


def _reasons(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Waiting workloads counted by reason, the most frequent first; together they are all of them."""
    counts = Counter(row["code"] or "not_judged" for row in rows)
    return [{"code": code, "workloads": count} for code, count in counts.most_common()]


def waiting_rows(latest: Published) -> list[dict[str, Any]]:
    """Every pending workload: its facts, the reason for its wait, its proposal, and the start of its reservation."""
    observation, decision = latest.observation, latest.decision
    work, refusals = observation.snapshot.workloads, decision.plan.refusals
    proposals = {each.subject.name: each for each in decision.plan.proposals}
    row_of = {str(name): row for row, name in enumerate(work.id.tolist()) if work.state[row] == State.PENDING}
    start_s = {each.workload: each.start_s for each in decision.plan.reservations}
    refused = dict(zip(refusals.workload.tolist(), range(len(refusals.code)), strict=True))
    proposed = [row_of[name] for name in proposals if name in row_of]
    rest = [row for row in refused if row not in set(proposed)]
    others = [row for row in row_of.values() if row not in refused and row not in set(proposed)]
    out = []
    for row in (*proposed, *rest, *others):
        proposal = proposals.get(str(work.id[row]))
        code, words = ("halted", decision.halted) if decision.halted else ("", "not judged at this tick")
        if proposal is not None:
            code, words = str(answer_of(proposal, decision.halted)), proposal_words(proposal)
        elif row in refused:
            place = refused[row]
            reason = refusals.codes[int(refusals.code[place])]
            code = reason.value
            words = code_words(reason, float(refusals.value[place]), float(refusals.threshold[place]))
        out.append(
            basics(latest, row)
            | {
                "code": code,
                "words": words,
                "proposal": proposal.id if proposal else None,
                "expected_start_s": start_s.get(str(work.id[row])),
            }
        )
    return out


def basics(latest: Published, row: int) -> dict[str, Any]:
    """The identity, the request and the owner of a workload."""
    observation = latest.observation
    snapshot, work = observation.snapshot, observation.snapshot.workloads
    profile = int(work.mig_profile[row])
    members = max(int(work.gpus[row]) // max(int(work.gpus_per_member[row]), 1), 1)
    return {
        "id": str(work.id[row]),
        "tenant": _name(snapshot.names.tenants, int(work.tenant[row])),
        "queue": str(snapshot.queues.id[work.queue[row]]) if work.queue[row] >= 0 else "",
        "gpus": int(work.gpus[row]),
        "gpu_share": int(work.gpu_milli[row]) / GPU_MILLI or None,
        "profile": snapshot.names.profiles[profile] if profile >= 0 else None,
        "members": members,
        "class": SLO_CLASS_NAMES[int(work.slo_class[row])],
        "priority": int(work.priority[row]),
        "since_submission_s": observation.now_s - float(work.submit_s[row]),
        "restart": int(work.incarnation[row]),
        "trust": trust_word(snapshot, row),
        "share": share_word(snapshot, row),
    }


def _name(names: tuple[str, ...], code: int) -> str:
    return names[code] if 0 <= code < len(names) else ""
