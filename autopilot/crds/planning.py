"""Writes that bring the Recommendations of a cluster to the state of the latest tick: the most important first."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

from autopilot.core.model.records import Proposal
from autopilot.crds.definitions import LONG_TEXT
from autopilot.crds.documents import State, cut, spec_of, state_of, state_without, status_of, with_failure
from autopilot.crds.names import object_name
from autopilot.explain.proposals import Answer, answer_of
from autopilot.service.deciding import OPEN
from autopilot.service.published import FailedEffect, Published

Obj = dict[str, Any]

MOVED_S, DETAIL_S = 60.0, 600.0
"""Least time between two writes of one object after a move of its gain, cost or message, and of details only."""
MOVED_RATIO = 0.1
"""A difference of gain or cost below this part of the shown one is a detail."""
KEPT_S = 600.0
"""An object is removed this long after its end."""
SLACK = 1.2
"""An object stays until it is beyond the bound by this factor, so that it does not come and go at the edge."""


class Kind(IntEnum):
    """Writes in their order."""

    STATE = 0  # the state changed
    CREATE = 1
    STATUS = 2  # the shown state changed
    DELETE = 3


@dataclass(frozen=True, slots=True)
class Write:
    """One write. `gain_gpu_s` orders those of a kind."""

    kind: Kind
    name: str
    uid: str = ""
    spec: Obj = field(default_factory=dict)
    status: Obj = field(default_factory=dict)
    gain_gpu_s: float = 0.0


@dataclass(slots=True)
class There:
    """One object as the API server last told. Times by a steady clock."""

    name: str
    uid: str
    spec: Obj
    status: Obj
    annotations: Mapping[str, str]
    written_s: float  # last write of its status, or its first sight
    ended_s: float | None = None
    answered: object = None  # the last answered annotation, with its verdict


def plan(
    latest: Published,
    there: Mapping[str, There],
    most: int,
    now_s: float,
    shown: Callable[[str], Proposal | None],
    failed: Callable[[str], FailedEffect | None] = lambda _: None,
) -> list[Write]:
    """The due writes. `most`: kept objects of open recommendations.

    `shown` and `failed`: a proposal in its last form, and its last failed effect, by its id.
    """
    proposals = {object_name(each.recommendation): each for each in latest.decision.plan.proposals}
    if latest.decision.halted and not proposals:
        return []  # nothing is known about proposals
    ranked = _ranked(proposals)
    kept = {name for name in ranked[: round(most * SLACK)] if name in there} | set(ranked[:most])
    writes = []
    for name, found in there.items():
        proposal = proposals.get(name)
        if proposal is not None:
            state = with_failure(state_of(proposal, latest), failed(proposal.id))
            beyond = state.open and name not in kept
            shows = status_of(latest.view(proposal), state)
            writes += [Write(Kind.DELETE, name, found.uid)] if beyond else _update(found, proposal, state, shows, now_s)
        else:
            id_ = str(found.spec.get("id", ""))
            before = shown(id_)
            state = state_without(id_, before, latest)
            writes += _end(found, with_failure(state, failed(before.id if before is not None else id_)), now_s)
    for name in ranked[:most]:
        if name not in there:
            each = proposals[name]
            state = with_failure(state_of(each, latest), failed(each.id))
            status = status_of(latest.view(each), state)
            writes.append(Write(Kind.CREATE, name, spec=spec_of(each), status=status, gain_gpu_s=each.benefit_gpu_s))
    return sorted(writes, key=lambda each: (each.kind, -each.gain_gpu_s, each.name))


def _ranked(proposals: Mapping[str, Proposal]) -> list[str]:
    """Open ones: those that take an approval first, the highest gain first."""
    answers = {name: answer_of(each) for name, each in proposals.items()}
    found = [name for name, answer in answers.items() if answer in OPEN]
    return sorted(found, key=lambda name: (answers[name] == Answer.RECOMMENDED, -proposals[name].benefit_gpu_s, name))


def _update(found: There, proposal: Proposal, state: State, status: Obj, now_s: float) -> list[Write]:
    before = found.status
    if state.name != "Ended":
        found.ended_s = None
    elif found.ended_s is None:
        found.ended_s = now_s
    if found.ended_s is not None and now_s - found.ended_s >= KEPT_S:
        return [Write(Kind.DELETE, found.name, found.uid)]
    if before.get("state") != state.name:
        return [Write(Kind.STATE, found.name, found.uid, status=status, gain_gpu_s=proposal.benefit_gpu_s)]
    age_s = now_s - found.written_s
    moved = (
        any(before.get(name) != status.get(name) for name in ("digest", "changed"))
        or _moved(before.get("gainGPUSeconds"), status.get("gainGPUSeconds"))
        or _moved(before.get("costGPUSeconds"), status.get("costGPUSeconds"))
        or (state.name == "Approved" and before.get("message") != status["message"])
    )
    if state.news and before.get("message") != status["message"] and before.get("state") == "UnderWay":
        return [Write(Kind.STATE, found.name, found.uid, status=status, gain_gpu_s=proposal.benefit_gpu_s)]
    changed = any(before.get(key) != value for key, value in status.items())
    if (moved and age_s >= MOVED_S) or (changed and age_s >= DETAIL_S):
        return [Write(Kind.STATUS, found.name, found.uid, status=status, gain_gpu_s=proposal.benefit_gpu_s)]
    return []


def _moved(before: Any, now: Any) -> bool:
    if not isinstance(before, int | float) or not isinstance(now, int | float):
        return bool(before != now)
    return abs(now - before) > MOVED_RATIO * max(abs(before), 1.0)


def cut_message(state: State) -> str:
    """The message of a state as it is stored."""
    return cut(state.message, LONG_TEXT)


def _end(found: There, state: State, now_s: float) -> list[Write]:
    """An object with a proposal absent from the latest tick."""
    if state.name != "Ended":
        found.ended_s = None
    else:
        found.ended_s = now_s if found.ended_s is None else found.ended_s
        if now_s - found.ended_s >= KEPT_S:
            return [Write(Kind.DELETE, found.name, found.uid)]
    told = found.status.get("state") == state.name
    if told and not (state.news and state.name == "UnderWay" and found.status.get("message") != cut_message(state)):
        return []  # the first words about its end stay
    return [Write(Kind.STATE, found.name, found.uid, status={"state": state.name, "message": cut_message(state)})]
