"""The decisions of a journal as rows: filtered, each once, and as plain values for JSON."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from math import isfinite
from typing import Any

import numpy as np

from autopilot.app.when import When, when_of
from autopilot.core.intake.signals import sees_the_cluster
from autopilot.core.model.records import Decision, Evidence, Note, Observation, Verdict, Victim
from autopilot.explain.notes import note_words
from autopilot.explain.proposals import LOSES, Answer, code_words, proposal_words, refusing_codes
from autopilot.explain.view import ProposalView, figure_words, view_of
from autopilot.records.journal import JournalReader


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """Filters for decisions; None: any."""

    action: str | None = None
    workload: str | None = None
    tenant: str | None = None
    answer: Answer | None = None
    since_s: float = float("-inf")
    until_s: float = float("inf")

    def takes(self, row: ProposalView) -> bool:
        """True if the decision matches. A decision for another workload matches if it takes GPUs from this one."""
        proposal = row.proposal
        names = {proposal.subject.name, *(victim.workload for victim in proposal.victims)}
        return (
            (self.action is None or proposal.action == self.action)
            and (self.tenant is None or proposal.tenant == self.tenant)
            and (self.answer is None or row.answer == self.answer)
            and (self.workload is None or self.workload in names)
            and self.since_s <= row.at_s <= self.until_s
        )


class Fresh:
    """Passes on the new proposals of a tick: those absent from the tick before."""

    def __init__(self) -> None:
        self._before: set[tuple[object, ...]] = set()

    def of(self, decision: Decision) -> list[ProposalView]:
        """The new decisions of the next tick."""
        rows = [view_of(each, decision) for each in decision.plan.proposals]
        keys = [row.key for row in rows]
        fresh = [row for row, key in zip(rows, keys, strict=True) if key not in self._before]
        self._before = set(keys)
        return fresh


def rows_of(reader: JournalReader, wanted: Wanted) -> Iterator[ProposalView]:
    """The matching decisions of a journal, in order; one tick at a time is held in memory."""
    fresh = Fresh()
    first = reader.first_at(wanted.since_s) if isfinite(wanted.since_s) else None
    for record in reader.decisions(first, refusals=False):
        yield from filter(wanted.takes, fresh.of(record.decision))


def clock_of(reader: JournalReader) -> tuple[When, float]:
    """The clock of a journal (that of its last run), and the time of its last decision."""
    bounds = reader.tick_bounds()
    number = None if bounds is None else reader.find_tick(bounds[1])
    if number is None:
        return When(), 0.0
    last_s = next(record.now_s for record in reader.decisions(number, refusals=False))
    return when_of(reader.runs[-1].description, last_s), last_s


# --- JSON -------------------------------------------------------------------------------------------


def row_document(row: ProposalView, when: When) -> dict[str, Any]:
    """One decision as a line of `decisions --json` (docs/output.md); fields are only ever added."""
    proposal, figures = row.proposal, row.figures
    return {
        "id": proposal.id,
        "tick": row.tick,
        "at_s": row.at_s,
        "at": when.stamp(row.at_s),
        "action": proposal.action,
        "kind": proposal.kind,
        "workload": proposal.subject.name,
        "tenant": proposal.tenant,
        "queue": proposal.queue,
        "gpus": figures.gpus,
        "answer": row.answer.value,
        "codes": [code.value for code in refusing_codes(proposal)],
        "halted": row.halted or None,
        "benefit_gpu_s": known(figures.gain_gpu_s),
        "cost_gpu_s": known(figures.cost_gpu_s),
        "worst_cost_gpu_s": known(figures.worst_cost_gpu_s),
        "lost_gpu_s": known(figures.lost_gpu_s),
        **figure_words(figures),
        "victims": [_victim(victim) for victim in proposal.victims],
        "side_effects": [asdict(each) | {"loses": LOSES[each.what]} for each in proposal.change.side_effects],
        "refused_by": [_verdict(each) for each in proposal.verdicts if not each.allowed],
        "words": proposal_words(proposal),
    }


def case_document(row: ProposalView, when: When) -> dict[str, Any]:
    """One decision with placement, evidence and the verdict of every guard."""
    proposal = row.proposal
    return row_document(row, when) | {
        "restart": proposal.subject.revision,
        "slots": [asdict(slot) for slot in proposal.slots],
        "score": [_number(term) for term in proposal.change.score_terms],
        "evidence": [_number(each) for each in proposal.evidence],
        "verdicts": [_verdict(each) for each in proposal.verdicts],
    }


def tick_document(decision: Decision, when: When) -> dict[str, Any]:
    """All decisions of one tick, and the other waiting work by reason."""
    refusals = decision.plan.refusals
    waiting = []
    for code, count in Counter(refusals.code.tolist()).most_common():
        first = int(np.flatnonzero(refusals.code == code)[0])
        numbers = float(refusals.value[first]), float(refusals.threshold[first])
        waiting.append(
            {
                "code": refusals.codes[code].value,
                "workloads": count,
                "words": code_words(refusals.codes[code], *numbers),
            }
        )
    return {
        "tick": decision.tick,
        "at_s": decision.now_s,
        "at": when.stamp(decision.now_s),
        "halted": decision.halted or None,
        "notes": [note_document(note) for note in decision.notes],
        "decisions": [case_document(view_of(each, decision), when) for each in decision.plan.proposals],
        "waiting": waiting,
        "reservations": [
            {name: known(value) if isinstance(value, float) else value for name, value in asdict(held).items()}
            for held in decision.plan.reservations
        ],
    }


def signals_document(observation: Observation) -> dict[str, Any]:
    """Measures of one snapshot; null: not measured."""
    found = observation.signals
    plain = asdict(found)
    plain["stranded_by_cause"] = dict(found.stranded_by_cause) if sees_the_cluster(observation) else None
    plain["largest_gang_gpus"] = found.largest_gang_gpus if found.largest_gang_gpus >= 0 else None
    return {name: known(value) if isinstance(value, float) else value for name, value in plain.items()}


def known(value: float) -> float | None:
    """A number, None if it is not finite."""
    return value if isfinite(value) else None


def _victim(victim: Victim) -> dict[str, Any]:
    """A victim with all numbers of its record."""
    plain = {name: value for name, value in asdict(victim).items() if name != "keeps"}
    return {name: known(value) if isinstance(value, float) else value for name, value in plain.items()}


def _verdict(verdict: Verdict) -> dict[str, Any]:
    return {
        "guard": verdict.guard,
        "allowed": verdict.allowed,
        "code": verdict.code.value,
        "value": known(verdict.value),
        "unit": verdict.unit,
        "threshold": known(verdict.threshold),
        "at_least": verdict.at_least,
        "words": code_words(verdict.code, verdict.value, verdict.threshold),
    }


def note_document(note: Note) -> dict[str, Any]:
    """A note as plain values, with its words."""
    return {
        "code": str(note.code),
        "about": note.about.value,
        "subject": note.subject,
        "value": note.value if note.value is None else known(note.value),
        "unit": note.unit,
        "facts": [_number(fact) for fact in note.facts],
        "words": note_words(note),
    }


def _number(evidence: Evidence) -> dict[str, Any]:
    value = evidence.value
    return {"name": evidence.name, "value": known(value) if isinstance(value, float) else value, "unit": evidence.unit}
