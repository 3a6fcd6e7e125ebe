"""A proposal as every face shows it: page, command line, object Recommendation, metrics, report and journal.

`ProposalView` holds the knowledge of it at one tick, with its figures in base units. `figure_words` is the one
rendering of the figures, `explain_proposal` the whole case.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import isfinite, nan

import numpy as np

from autopilot.core.model.memory.people import OpenProposal
from autopilot.core.model.objects import SubjectKind, Taken
from autopilot.core.model.records import Decision, Proposal
from autopilot.core.model.units import counted, format_clock, format_gpu_s
from autopilot.explain.cases import contract_words, with_worst
from autopilot.explain.proposals import (
    Answer,
    answer_of,
    answer_words,
    by_node,
    evidence_words,
    expected_loss_words,
    fields_of,
    proposal_words,
    refusing_codes,
    taken_words,
    verdict_words,
    victim_words,
)


@dataclass(frozen=True, slots=True)
class Figures:
    """Gain and cost of a proposal, or of several together (docs/glossary.md). NaN: not known.

    An unweighed gain is NaN: every victim leaves by contract. `cost_gpu_s` is the expected cost; `worst_cost_gpu_s`
    counts the worst case of its victims in place of the expected loss. `gpus` are assigned, or taken if nothing starts.
    """

    gain_gpu_s: float
    cost_gpu_s: float
    worst_cost_gpu_s: float
    lost_gpu_s: float
    worst_lost_gpu_s: float
    gpus: int
    victims: int


def figures_of(proposals: Iterable[Proposal]) -> Figures:
    """The figures of proposals together."""
    found = list(proposals)
    victims = [each for proposal in found for each in proposal.victims]
    cost_gpu_s = sum((each.cost_gpu_s for each in found), 0.0)
    lost_gpu_s = sum((each.lost_gpu_s for each in victims), 0.0)
    worst_gpu_s = float(sum((np.fmax(each.worst_gpu_s, each.lost_gpu_s) for each in victims), 0.0))
    return Figures(
        nan if found and all(map(_unweighed, found)) else sum((each.benefit_gpu_s for each in found), 0.0),
        cost_gpu_s,
        cost_gpu_s + worst_gpu_s - lost_gpu_s,
        lost_gpu_s,
        worst_gpu_s,
        sum(len(each.slots) or sum(victim.gpus for victim in each.victims) for each in found),
        len(victims),
    )


def _unweighed(proposal: Proposal) -> bool:
    """True if its gain was never computed: a contract decides."""
    return not proposal.benefit_gpu_s and any(each.contract for each in proposal.victims)


def figure_words(figures: Figures) -> dict[str, str]:
    """The figures in words, by name."""
    return {
        "gain": format_gpu_s(figures.gain_gpu_s) if isfinite(figures.gain_gpu_s) else "not weighed",
        "cost": with_worst(figures.cost_gpu_s, figures.worst_cost_gpu_s),
        "loss": with_worst(figures.lost_gpu_s, figures.worst_lost_gpu_s),
    }


@dataclass(frozen=True, slots=True)
class ProposalView:
    """A proposal at one tick; of equal ones in a row, the first. Times by the clock of the cluster."""

    proposal: Proposal
    answer: Answer
    tick: int
    at_s: float
    halted: str = ""
    since_s: float = nan  # it has been recommended without a break; NaN: it is no recommendation, or this is not known
    changed_s: float = nan  # its plan and figures have stood since

    @property
    def key(self) -> tuple[object, ...]:
        """Key of a decision, equal for its views at two ticks."""
        return (self.proposal.id, self.answer, refusing_codes(self.proposal))

    @property
    def figures(self) -> Figures:
        """Its gain and cost."""
        return figures_of([self.proposal])


def view_of(proposal: Proposal, decision: Decision, opened: Mapping[str, OpenProposal] | None = None) -> ProposalView:
    """The view of a proposal of a decision. `opened`: the recommendations in memory after the decision, if known."""
    found = (opened or {}).get(proposal.recommendation)
    since_s, changed_s = (found.since_s, found.changed_s) if found is not None else (nan, nan)
    answer = answer_of(proposal, decision.halted)
    return ProposalView(proposal, answer, decision.tick, decision.now_s, decision.halted, since_s, changed_s)


def _whose(proposal: Proposal) -> str:
    """The subject of a proposal with its revision, and its owner."""
    subject = proposal.subject
    if whose := proposal.change.whose(subject):
        return whose
    if subject.kind == SubjectKind.NODE:
        return f"node {subject.name}"
    about = f"{subject.kind} {subject.name} ({_REVISION[subject.kind]} {subject.revision})"
    return f"{about} of tenant {proposal.tenant}, queue {proposal.queue}"


_REVISION = {SubjectKind.WORKLOAD: "restart", SubjectKind.SERVICE: "generation"}


def explain_proposal(view: ProposalView) -> list[str]:
    """One proposal in full: its effect, workload, gain and cost, evidence, and every guard."""
    proposal, words = view.proposal, figure_words(view.figures)
    lines = [
        f"{proposal.id}: {answer_words(view.answer)} at {format_clock(view.at_s)} (tick {view.tick})",
        f"  {proposal.action}: {proposal_words(proposal)}",
        f"  {_whose(proposal)}",
        f"  gain {words['gain']}, cost {words['cost']}",
    ]
    if isfinite(view.since_s):
        changed = f", changed at {format_clock(view.changed_s)}" if view.changed_s > view.since_s else ""
        lines.append(f"  recommended since {format_clock(view.since_s)}{changed}")
    if view.halted:
        lines.append(f"  everything was held: {view.halted}")
    if proposal.slots:
        lines.append(f"  place: {by_node(proposal.slots)}")
    lines += [f"  score {evidence_words(term)}" for term in proposal.change.score_terms]
    lines += _victim_lines(view)
    lines += [
        f"  {each.workload} loses {taken_words(each)}"
        + (f", at most {format_gpu_s(each.wait_gpu_s)} of waiting" if each.what != Taken.TURN else "")
        for each in proposal.change.side_effects
    ]
    lines += [f"  {evidence_words(each)}" for each in proposal.evidence]
    lines += [f"  guard {verdict_words(verdict)}" for verdict in proposal.verdicts]
    return lines


def _victim_lines(view: ProposalView) -> list[str]:
    """Every victim, the workload that preempts it, and the sum over all victims."""
    proposal, figures = view.proposal, view.figures
    if not proposal.victims:
        return []
    own = all(victim.workload == proposal.subject.name for victim in proposal.victims)
    lines = [] if own else [f"  for {proposal.subject.name}:"]
    lines += [f"  victim {victim_words(victim)} (restart {victim.incarnation})" for victim in proposal.victims]
    gpus = sum(victim.gpus for victim in proposal.victims)
    lost = expected_loss_words(figures.lost_gpu_s, figures.worst_lost_gpu_s)
    lines.append(f"  in all {counted(gpus, 'GPU')} of {counted(figures.victims, 'gang')}, {lost}")
    if any(victim.contract for victim in proposal.victims):
        why = contract_words(proposal, fields_of(proposal))
        lines.append(f"  by contract, hence neither weighed nor budgeted: {why}")
    return lines
