"""The lifetime of one workload in a journal: its waits with their reasons, its stays on GPUs, its end."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import isfinite, nan
from typing import Any

import numpy as np

from autopilot.core.model.objects import SubjectKind
from autopilot.core.model.records import Decision, Observation
from autopilot.core.model.snapshot import State
from autopilot.core.model.units import format_duration
from autopilot.explain.story import unlisted, width_words
from autopilot.records.journal import JournalReader

ENDED = (State.SUCCEEDED, State.FAILED)
UNDER_WAY = "start under way"
"""The reason at a tick of waiting without a refusal: its start is already decided."""


@dataclass(slots=True)
class Stretch:
    """An interval in one condition: waiting, by reason; or on GPUs."""

    waits: bool
    from_s: float
    to_s: float
    gpus: int = 0
    by_code: dict[str, float] = field(default_factory=lambda: defaultdict(float))  # seconds


@dataclass(slots=True)
class Life:
    """Follows one workload from its submission."""

    workload: str
    submit_s: float = nan
    end_s: float = nan
    end_state: State | None = None  # None: it was gone at `end_s`
    gpus: int = 0
    width: str = ""  # its request in words
    stretches: list[Stretch] = field(default_factory=list)
    unknown: str = ""  # why it is not known whether it is there, at the latest tick that does not show it
    _code: str = UNDER_WAY

    @property
    def ended(self) -> bool:
        """True if it has left."""
        return isfinite(self.end_s)

    def take_in(self, observation: Observation, decision: Decision) -> None:
        """The next tick."""
        work, now_s = observation.snapshot.workloads, observation.now_s
        found = np.flatnonzero(work.id == self.workload)
        if self.ended or (not len(found) and not self.stretches):
            return
        self.unknown = "" if len(found) else unlisted(observation, decision)
        if self.unknown:
            return
        if not len(found):
            self._lasts(now_s)
            self.end_s = now_s
            return
        row = int(found[0])
        state = State(int(work.state[row]))
        if not self.stretches:
            self.submit_s, self.gpus = float(work.submit_s[row]), int(work.gpus[row])
            self.width = width_words(observation.snapshot, row)
        if state in ENDED:
            ended_s = float(work.ended_s[row])
            self.end_s, self.end_state = ended_s if isfinite(ended_s) else now_s, state
            self._lasts(self.end_s)
            return
        waits = state == State.PENDING
        start_s = self.submit_s if waits else float(work.start_s[row])
        self._lasts(now_s)
        if not self.stretches or self.stretches[-1].waits != waits:
            from_s = start_s if not self.stretches and isfinite(start_s) else now_s
            self.stretches.append(Stretch(waits, from_s, now_s, int(work.gpus[row])))
            self._lasts(now_s)
        if waits:
            self._code = _reason(self.workload, row, decision)

    def _lasts(self, until_s: float) -> None:
        """Extend the present condition to now."""
        if not self.stretches:
            return
        latest = self.stretches[-1]
        if latest.waits:
            latest.by_code[self._code] += until_s - latest.to_s
        latest.to_s = until_s

    def waited_s(self) -> float:
        """Total time without GPUs."""
        return sum(each.to_s - each.from_s for each in self.stretches if each.waits)

    def ran_s(self) -> float:
        """Total time on GPUs."""
        return sum(each.to_s - each.from_s for each in self.stretches if not each.waits)

    def events(self) -> list[tuple[float, str]]:
        """(time, text) of events without a decision: submitted, waited with the reason, off its GPUs, ended."""
        if not self.stretches:
            return []
        found = [(self.submit_s, f"submitted, for {self.width}")]
        for place, each in enumerate(self.stretches):
            lasted_s = each.to_s - each.from_s
            over = place + 1 < len(self.stretches)
            if each.waits and lasted_s > 0 and (over or self.ended):
                found.append((each.to_s, f"waited {format_duration(lasted_s)}{_by_code(each.by_code)}"))
            elif not each.waits and over:
                found.append((each.to_s, f"off its GPUs after {format_duration(lasted_s)}"))
        if self.ended:
            found.append(
                (
                    self.end_s,
                    f"{self.end_words()}, {format_duration(self.end_s - self.submit_s)} after it was submitted",
                )
            )
        return found

    def end_words(self) -> str:
        """The words for its end."""
        if self.end_state is None:
            ran = bool(self.stretches) and not self.stretches[-1].waits
            return "finished, or was withdrawn" if ran else "withdrawn before it ran to its end"
        return "finished" if self.end_state == State.SUCCEEDED else "failed"

    def document(self) -> dict[str, Any]:
        """The same for JSON; null: unknown, or not yet."""
        return {
            "submit_s": self.submit_s if isfinite(self.submit_s) else None,
            "end_s": self.end_s if self.ended else None,
            "end": None if self.end_state is None else self.end_state.name.lower(),
            "unknown": self.unknown or None,
            "gpus": self.gpus,
            "waited_s": self.waited_s(),
            "ran_s": self.ran_s(),
            "stretches": [
                {"waits": each.waits, "from_s": each.from_s, "to_s": each.to_s, "waited_s_by_code": dict(each.by_code)}
                for each in self.stretches
            ],
        }


def life_of(reader: JournalReader, workload: str, submit_s: float) -> Life:
    """The lifetime of a workload submitted at `submit_s`, up to the end of the journal."""
    life = Life(workload)
    for tick in reader.ticks(reader.first_at(submit_s)):
        life.take_in(tick.observation, tick.decided.decision)
        if life.ended:
            break
    return life


def _reason(workload: str, row: int, decision: Decision) -> str:
    """The code of a workload's wait at this tick: of its refusal, or of the guard against its start."""
    refusals = decision.plan.refusals
    place = np.flatnonzero(refusals.workload == row)
    if len(place):
        return refusals.codes[int(refusals.code[place[0]])].value
    for proposal in decision.plan.proposals:
        if (
            proposal.subject.kind == SubjectKind.WORKLOAD
            and proposal.subject.name == workload
            and not proposal.accepted
        ):
            return next((each.code.value for each in proposal.verdicts if not each.allowed), UNDER_WAY)
    return UNDER_WAY


def _by_code(by_code: Mapping[str, float]) -> str:
    """`: capacity 1 h 20 min, fairness 40 min`, the longest first."""
    parts = [
        f"{code} {format_duration(lasted_s)}"
        for code, lasted_s in sorted(by_code.items(), key=lambda each: -each[1])[:4]
        if lasted_s > 0
    ]
    return f": {', '.join(parts)}" if parts else ""
