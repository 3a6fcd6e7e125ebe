"""Collects the decisions of a run for its page: each decision once, and the reasons for waiting."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

import numpy as np

from autopilot.app.decisions.decision_rows import Fresh
from autopilot.app.when import When
from autopilot.core.model.records import Decision, Loss, Observation
from autopilot.core.model.snapshot import GPU_MILLI
from autopilot.explain.proposals import Answer, code_words, loss_words, proposal_words
from autopilot.explain.view import ProposalView, explain_proposal
from autopilot.report.data import DecisionRow


class DecisionLog:
    """Keeps every decision as text, and by queue and reason code the GPU time of waiting work."""

    def __init__(self, when: When | None = None) -> None:
        self._rows: list[DecisionRow] = []
        self._losses: dict[str, list[Loss]] = defaultdict(list)  # by proposal
        self.waited_gpu_s: dict[tuple[str, str], float] = defaultdict(float)
        self._when = when or When()
        self._fresh = Fresh()
        self._waiting: dict[tuple[str, str], float] = {}  # GPUs requested since the last tick, by queue and code
        self._last_s = 0.0

    def take_in(self, observation: Observation, decision: Decision) -> None:
        """The next tick."""
        self._until(observation.now_s)
        self._waiting = _waiting_gpus(observation, decision)
        for loss in decision.losses:
            self._losses[loss.proposal_id].append(loss)
        self._rows += [self._row(row) for row in self._fresh.of(decision)]

    def rows(self) -> tuple[DecisionRow, ...]:
        """All decisions, with the actual losses of their victims if later decisions show them."""
        return tuple(self._settled(row) for row in self._rows)

    def _settled(self, row: DecisionRow) -> DecisionRow:
        losses = self._losses.get(row.id, []) if row.answer == Answer.ACCEPTED else []
        if not losses:
            return row
        case = (*row.case, *(f"  {loss.workload} {loss_words(loss)}" for loss in losses))
        return replace(row, case=case, really_lost_gpu_s=sum(loss.lost_gpu_s for loss in losses))

    def _until(self, now_s: float) -> None:
        """Count waiting work from the last tick until now."""
        for key, gpus in self._waiting.items():
            self.waited_gpu_s[key] += gpus * (now_s - self._last_s)
        self._last_s = now_s

    def _row(self, row: ProposalView) -> DecisionRow:
        proposal, figures = row.proposal, row.figures
        return DecisionRow(
            at=self._when.words(row.at_s),
            id=proposal.id,
            action=proposal.action,
            workload=proposal.subject.name,
            tenant=proposal.tenant,
            gpus=figures.gpus,
            answer=row.answer.value,
            refusals=tuple(
                (each.guard, each.code.value, code_words(each.code, each.value, each.threshold))
                for each in proposal.verdicts
                if not each.allowed
            ),
            why=proposal_words(proposal),
            benefit_gpu_s=proposal.benefit_gpu_s,
            lost_gpu_s=figures.lost_gpu_s,
            case=tuple(explain_proposal(row)),
        )


def _waiting_gpus(observation: Observation, decision: Decision) -> dict[tuple[str, str], float]:
    """GPUs requested by waiting work, by its queue and the code of its wait; a share counts as its part of a GPU."""
    refusals, work, queues = decision.plan.refusals, observation.snapshot.workloads, observation.snapshot.queues
    rows, codes = refusals.workload, refusals.codes
    if not len(rows):
        return {}
    milli = work.gpu_milli[rows]
    gpus = work.gpus[rows] * np.where(milli > 0, milli / GPU_MILLI, 1.0)
    asked = np.bincount(work.queue[rows] * len(codes) + refusals.code, weights=gpus)
    return {
        (queues.id[key // len(codes)], codes[key % len(codes)].value): float(asked[key])
        for key in np.flatnonzero(asked).tolist()
    }
