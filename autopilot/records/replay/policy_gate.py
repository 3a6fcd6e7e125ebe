"""The gate for policies: compares a candidate with recorded decisions and their outcomes.

A recorded journal is decided again under the candidate. Each tick shows the cluster as the recorded decisions left it,
so that proposals are compared: what the candidate would have evicted, admitted later or never, and which recorded
effects, done or failed, it would have proposed too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from autopilot.core.decision.reconciler import reconcile
from autopilot.core.model.memory import ControllerMemory, Step
from autopilot.core.model.policy import Policy
from autopilot.core.model.records import Decision, Observation, OutcomeKind
from autopilot.core.model.snapshot import SLO_CLASS_NAMES
from autopilot.records.journal.reader import JournalReader
from autopilot.records.replay import Progress, replay

RULES_VERSION = "2"
EVERYONE = "*"
GROUP_MIN_WORKLOADS = 20
"""For a group with fewer admissions the result is only advice: one of them is more than a few percent."""


_EFFECTS = {"pipeline": "admit", "grow": "resize", "move": "evict"}
"""The effect of a kind of proposal, where their names differ."""


@dataclass(frozen=True, slots=True)
class Rule:
    """By how much a measure may be worse: the larger of an absolute number and a fraction of its base."""

    measure: str
    absolute: float
    relative: float
    blocking: bool
    words: str


RULES: tuple[Rule, ...] = (
    Rule("halted", 0.0, 0.0, True, "ticks at which everything was blocked"),
    Rule("evictions", 2.0, 0.10, True, "workloads preempted"),
    Rule("never", 1.0, 0.01, True, "workloads that only the record admits"),
    Rule("later_s", 60.0, 0.05, True, "mean wait until the first proposal to admit, in seconds"),
    Rule("unwished", 1.0, 0.02, True, "effects that were done and would not have been proposed"),
    Rule("failed", 0.0, 0.0, False, "effects that failed and would have been proposed"),
)
"""The measures. A tenth more evictions, a hundredth of the work and a twentieth of the wait are within the noise
between two runs of one policy under redrawn durations; single cases never decide.
"""


@dataclass(frozen=True, slots=True)
class Measured:
    """The result of one rule for one group."""

    measure: str
    recorded: float
    candidate: float
    limit: float
    passed: bool
    blocking: bool
    words: str


@dataclass(frozen=True, slots=True)
class PolicyCase:
    """One journal under one candidate: the results for all (`*`) and for each tenant and class."""

    journal: str
    candidate: str
    ticks: int
    ticks_that_differ: int
    passed: bool
    groups: Mapping[str, tuple[Measured, ...]]
    reasons: tuple[str, ...]


@dataclass(slots=True)
class _Side:
    """The proposals of one side, by workload."""

    admitted_s: dict[str, float] = field(default_factory=dict)
    evicted: set[tuple[str, int]] = field(default_factory=set)  # (workload, restart)
    proposed: set[tuple[str, str]] = field(default_factory=set)  # (kind of effect, workload)
    halted: int = 0

    def add(self, decision: Decision) -> None:
        """Count the proposals of one tick that pass their guards."""
        self.halted += bool(decision.halted)
        for proposal in decision.plan.proposals:
            if not proposal.accepted:
                continue
            kind = _EFFECTS.get(proposal.kind, proposal.kind)
            if kind == "admit":
                self.admitted_s.setdefault(proposal.subject.name, decision.now_s)
            self.proposed.add((kind, proposal.subject.name))
            for victim in proposal.victims:
                # the recorded state ignores the candidate: an open proposal recurs at every tick, and counts once
                self.evicted.add((victim.workload, victim.incarnation))
                self.proposed.add(("resize" if victim.how == "shrink" else "evict", victim.workload))


@dataclass(slots=True)
class _People:
    """Attributes of a workload: (tenant, class, submit time)."""

    known: dict[str, tuple[str, str, float]] = field(default_factory=dict)

    def learn(self, decision: Decision, observation: Observation) -> None:
        """Remember the workloads of a decision."""
        work = observation.snapshot.workloads
        for proposal in decision.plan.proposals:
            for name in (proposal.subject.name, *(victim.workload for victim in proposal.victims)):
                if name in self.known:
                    continue
                for row in np.flatnonzero(work.id == name).tolist():
                    tenant = observation.snapshot.names.tenants[int(work.tenant[row])]
                    slo_class = SLO_CLASS_NAMES[int(work.slo_class[row])]
                    self.known[name] = (f"tenant {tenant}", f"class {slo_class}", float(work.submit_s[row]))

    def of(self, workload: str) -> tuple[str, ...]:
        """The groups that a workload counts in."""
        tenant, slo_class, _ = self.known.get(workload, (EVERYONE, EVERYONE, 0.0))
        return tuple(dict.fromkeys((EVERYONE, tenant, slo_class)))


def judge_policy(path: Path, candidate: Policy, progress: Progress | None = None) -> PolicyCase:
    """Judge `candidate` on the journal at `path`. Raises `InputError` when the record cannot be read."""
    sides = _Side(), _Side()
    people = _People()
    with JournalReader(path) as reader:
        effects: dict[str, tuple[str, str]] = {}
        done: dict[tuple[str, str], OutcomeKind] = {}
        for record in reader.decisions():
            sides[0].add(record.decision)
            effects |= {each.id: (each.kind, each.subject.name) for each in record.instructions}
            for outcome in record.outcomes:
                if outcome.instruction_id in effects:
                    done[effects[outcome.instruction_id]] = outcome.kind

    def decide(memory: ControllerMemory, observation: Observation, policy: Policy) -> Step:
        step = reconcile(memory, observation, policy)
        people.learn(step.decision, observation)
        if policy is candidate:
            sides[1].add(step.decision)
        return step

    result = replay(path, candidate, progress, keep=0, decide=decide)
    groups = _groups(sides, people, done)
    reasons = tuple(
        f"{'all' if group == EVERYONE else group}: {each.words}: {each.candidate:g} against {each.recorded:g} "
        f"in the record, at most {each.limit:g}"
        for group, measured in groups.items()
        for each in measured
        if each.blocking and not each.passed
    )
    differs = result.diff.ticks_that_differ if result.diff is not None else 0
    return PolicyCase(path.name, candidate.name, result.ticks, differs, not reasons, groups, reasons)


def _groups(
    sides: tuple[_Side, _Side], people: _People, done: Mapping[tuple[str, str], OutcomeKind]
) -> dict[str, tuple[Measured, ...]]:
    recorded, candidate = sides
    victims = {name for side in sides for name, _ in side.evicted}
    names = {*recorded.admitted_s, *candidate.admitted_s, *victims}
    groups = sorted({group for name in names for group in people.of(name)} | {EVERYONE})
    found: dict[str, tuple[Measured, ...]] = {}
    for group in groups:
        ours = [name for name in sorted(recorded.admitted_s) if group in people.of(name)]
        both = [name for name in ours if name in candidate.admitted_s]
        waits = [
            [side.admitted_s[name] - people.known[name][2] for name in both if name in people.known] for side in sides
        ]
        mean = [float(np.mean(each)) if each else 0.0 for each in waits]
        effects = [key for key in sorted(done) if group in people.of(key[1])]
        completed = [key for key in effects if done[key] in {OutcomeKind.DONE, OutcomeKind.ACCEPTED}]
        failed = [key for key in effects if done[key] in {OutcomeKind.FAILED, OutcomeKind.CONFLICT}]
        evictions = [sum(group in people.of(name) for name, _ in side.evicted) for side in sides]
        halted = (recorded.halted, candidate.halted) if group == EVERYONE else (0, 0)
        values = {
            "halted": (*halted, halted[0]),
            "evictions": (*evictions, evictions[0]),
            "never": (0, len(ours) - len(both), len(ours)),
            "later_s": (*mean, mean[0]),
            "unwished": (0, sum(key not in candidate.proposed for key in completed), len(completed)),
            "failed": (len(failed), sum(key in candidate.proposed for key in failed), len(failed)),
        }
        heavy = group == EVERYONE or len(ours) >= GROUP_MIN_WORKLOADS
        found[group] = tuple(_measured(rule, values[rule.measure], heavy) for rule in RULES)
    return found


def _measured(rule: Rule, values: tuple[float, ...], heavy: bool) -> Measured:
    recorded, candidate, base = (float(value) for value in values)
    limit = recorded + max(rule.absolute, rule.relative * abs(base))
    return Measured(rule.measure, recorded, candidate, limit, candidate <= limit, rule.blocking and heavy, rule.words)
