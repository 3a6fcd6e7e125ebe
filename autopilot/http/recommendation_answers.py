"""Answers of the API about recommendations, as in autopilot/http/answers.py."""

from __future__ import annotations

from typing import NotRequired

from typing_extensions import TypedDict

from autopilot.http.answers import DecisionRow, Fact, Number, Remark, SlotRow, VerdictRow


class RecommendationRow(DecisionRow):
    """One recommendation: `id` names its subject, `proposal` its present plan. The last five fields only with
    details.
    """

    proposal: str
    digest: str
    since_s: float
    since: str | None
    changed_s: float
    changed: str | None
    age_s: float
    group: str
    most_cost_gpu_s: Number
    approvable: bool
    why: str
    place: str | None
    mode: str
    restart: NotRequired[int]
    slots: NotRequired[list[SlotRow]]
    score: NotRequired[list[Fact]]
    evidence: NotRequired[list[Fact]]
    verdicts: NotRequired[list[VerdictRow]]


class GroupRow(TypedDict):
    """Recommendations of one card: their figures together. `covers`: the most cost covered by an approval."""

    group: str
    count: int
    gain: str
    cost: str
    loss: str
    covers: str


class AdviceRow(Remark):
    """Advice to a person, without a proposal: a smaller sufficient size, idle work of a service."""

    at_s: float
    at: str | None


class ApprovalRow(TypedDict):
    """A valid approval."""

    id: str
    who: str
    until_s: float
    exactly: bool
    carried_out: int


class RejectionRow(TypedDict):
    """A valid rejection; `until_s` is null for one without an end."""

    id: str
    scope: str
    action: str
    about: str
    who: str
    until_s: float | None
    words: str


class RejectionRows(TypedDict):
    """Rejections by people."""

    rejections: list[RejectionRow]


class RecommendationRows(TypedDict):
    """Recommendations waiting for a person, and approvals."""

    tick: int
    now_s: float
    halted: str | None
    in_total: int | None
    recommendations: list[RecommendationRow] | None
    groups: list[GroupRow] | None
    approvals: list[ApprovalRow]
    advice: list[AdviceRow]
