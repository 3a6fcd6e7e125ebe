"""One waiting gang as the story sees it, and words common to several parts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from autopilot.core.model.records import Code, Decision, Proposal, Verdict
from autopilot.core.model.units import counted, format_duration
from autopilot.core.placement.shapes import Miss, Shape
from autopilot.core.planning.context import Context
from autopilot.core.quota.rules.base import Claim

QUOTA_CODES = frozenset({Code.LIMIT, Code.GUARANTEE, Code.QUOTA, Code.KEPT})
"""Reasons of the queue tree, given before any question of room."""

NO_TURN_CODES = frozenset(
    {
        Code.EXCLUDED,
        Code.CHECK,
        Code.NO_PODS,
        Code.SUSPENDED,
        Code.WORKERS,
        Code.ORDER,
        Code.BOUND,
        Code.GATED,
        Code.DELAY,
    }
)
"""Reasons without an explanation of possible victims."""

SHOWN_NAMES = 4
"""Gangs named in one line."""


@dataclass(frozen=True, slots=True)
class Waiting:
    """One waiting gang without a start in this plan, with the context after the plan."""

    ctx: Context
    at: int
    row: int
    shape: Shape  # at its least width
    claim: Claim
    why: Miss  # as the decision has it
    quota: Miss | None  # quota's reason against its start on any GPU, idle or not
    use_before: Sequence[Sequence[float]]

    @property
    def name(self) -> str:
        """The workload's id."""
        return str(self.ctx.observation.snapshot.workloads.id[self.row])


def refusing(gang: Waiting, decision: Decision) -> list[tuple[Proposal, Verdict]]:
    """Guards' verdicts against proposals for it."""
    return [
        (proposal, verdict)
        for proposal in decision.plan.proposals
        if proposal.subject.name == gang.name
        for verdict in proposal.verdicts
        if not verdict.allowed
    ]


def waiting_before(gang: Waiting) -> list[int]:
    """Waiting rows with an earlier turn, in that order."""
    ctx = gang.ctx
    turn = ctx.plan.turn
    before = np.flatnonzero(~ctx.plan.taken & (turn < turn[gang.at]))
    rows: list[int] = ctx.pending[before[np.argsort(turn[before], kind="stable")]].tolist()
    return rows


def gangs(ctx: Context, rows: Sequence[int]) -> str:
    """`a (8 GPUs), b (16 GPUs) and 3 more (40 GPUs)`, at their full widths."""
    work = ctx.observation.snapshot.workloads
    words = [f"{work.id[row]} ({counted(int(work.gpus[row]), 'GPU')})" for row in rows[:SHOWN_NAMES]]
    rest = rows[SHOWN_NAMES:]
    more = f" and {len(rest)} more ({counted(int(work.gpus[list(rest)].sum()), 'GPU')})" if rest else ""
    return ", ".join(words) + more


def soon(ctx: Context, at_s: float) -> str:
    """`in 2 h`, or `now` for a time already past."""
    return "now" if at_s <= ctx.now_s else f"in {format_duration(at_s - ctx.now_s)}"
