"""Counters and durations since the start of the process, from tick to tick."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf, isfinite

import numpy as np

from autopilot.core.capabilities.verbs import OPERATIONS
from autopilot.core.effects.lifecycle import ENDED, followed
from autopilot.core.intake.signals import sees_the_cluster
from autopilot.core.model.memory import ControllerMemory
from autopilot.core.model.policy import Policy
from autopilot.core.model.records import Cause, Decision, Observation, OutcomeKind
from autopilot.explain.proposals import answer_of
from autopilot.metrics.samples import Labels
from autopilot.metrics.table import BUCKETS_S, EFFECT_BUCKETS_S, MOST_QUEUES, OTHER_QUEUES, WAIT_BUCKETS_S

AT_START: dict[str, tuple[Labels, ...]] = {
    "ticks_total": (("decided",), ("halted",)),
    "disruptions_total": (("true",), ("false",)),
    "lost_gpu_seconds_total": ((),),
    "effects_total": tuple(
        (operation, result) for operation in OPERATIONS for result in ("done", "conflict", "failed")
    ),
}
"""Counters that are 0 from the start, so that their first increase is seen."""


@dataclass(slots=True)
class Histogram:
    """Counts by bucket (the last one is unbounded), and their sum."""

    bounds: Sequence[float]
    counts: list[int] = field(default_factory=list)
    total: float = 0.0

    def add(self, value: float) -> None:
        """One observed value."""
        if not self.counts:
            self.counts = [0] * (len(self.bounds) + 1)
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value


class Tally:
    """What has been counted. `memory` is that with which the process started."""

    def __init__(self, memory: ControllerMemory) -> None:
        self._memory = memory
        self._began_s = {key: entry.since_s for key, entry in memory.effects.in_flight.items()}
        self.counters: dict[str, dict[Labels, float]] = {name: dict.fromkeys(at, 0.0) for name, at in AT_START.items()}
        self.histograms: dict[str, dict[Labels, Histogram]] = {}
        self._queues: set[str] = set()
        self._looked_s = inf

    def tick(self, observation: Observation, decision: Decision, memory: ControllerMemory, policy: Policy) -> None:
        """Count one tick; `memory` is that after it."""
        self._add("ticks_total", 1, "halted" if decision.halted else "decided")
        work = observation.snapshot.workloads
        for proposal in decision.plan.proposals:
            self._add("decisions_total", 1, proposal.action, str(answer_of(proposal, decision.halted)))
            for verdict in proposal.verdicts:
                if not verdict.allowed:
                    self._add("refusals_total", 1, verdict.guard, str(verdict.code))
            if proposal.accepted and not decision.halted:
                self._add("accepted_gain_gpu_seconds_total", max(proposal.benefit_gpu_s, 0.0), proposal.action)
                self._add("accepted_cost_gpu_seconds_total", max(proposal.cost_gpu_s, 0.0), proposal.action)
                for victim in proposal.victims:
                    self._add("disruptions_total", 1, str(victim.contract).lower())
                    for row in np.flatnonzero(work.uid == victim.uid)[:1].tolist():
                        self._add("queue_evictions_total", 1, self._queue(observation, row))
        for loss in decision.losses:
            self._add("lost_gpu_seconds_total", max(loss.lost_gpu_s, 0.0) if isfinite(loss.lost_gpu_s) else 0.0)
        for case in decision.realised:
            self._add("promise_unknown_cases_total", float(bool(case.unknown)), case.action)
        for outcome in observation.outcomes:
            if outcome.kind not in {OutcomeKind.DONE, OutcomeKind.ACCEPTED}:
                entry = self._memory.effects.in_flight.get(outcome.instruction_id)
                operation = entry.instruction.kind if entry is not None else "ended"
                self._add("effect_failures_total", 1, operation, str(outcome.cause or Cause.OTHER))
        self._waits(observation)
        self._effects(observation, memory, policy)

    def stages(self, durations_s: Mapping[str, float]) -> None:
        """Durations of the stages of one tick."""
        for stage, duration_s in durations_s.items():
            self._observe("tick_stage_duration_seconds", BUCKETS_S, duration_s, stage)

    def _waits(self, observation: Observation) -> None:
        """Jobs that have started for the first time since the last tick with a view; each start is in one such time."""
        if not sees_the_cluster(observation):
            return
        work, since_s = observation.snapshot.workloads, self._looked_s
        self._looked_s = observation.now_s
        with np.errstate(invalid="ignore"):
            started = (work.start_s >= since_s) & (work.start_s < observation.now_s)
        started &= (work.incarnation == 0) & (work.service < 0)
        for row in np.flatnonzero(started & np.isfinite(work.submit_s)).tolist():
            waited_s = max(float(work.start_s[row] - work.submit_s[row]), 0.0)
            self._observe("queue_wait_seconds", WAIT_BUCKETS_S, waited_s, self._queue(observation, row))

    def _queue(self, observation: Observation, row: int) -> str:
        """The name of the queue of a workload, as it is counted."""
        snapshot = observation.snapshot
        name = str(snapshot.queues.id[int(snapshot.workloads.queue[row])])
        if name not in self._queues and len(self._queues) >= MOST_QUEUES:
            return OTHER_QUEUES
        self._queues.add(name)
        self.counters.setdefault("queue_evictions_total", {}).setdefault((name,), 0.0)  # its first increase is seen
        return name

    def _effects(self, observation: Observation, memory: ControllerMemory, policy: Policy) -> None:
        """Effects that ended at this tick, with their result and their time since the instruction."""
        before, self._memory, now_s = self._memory, memory, observation.now_s
        gone = {key: entry for key, entry in before.effects.in_flight.items() if key not in memory.effects.in_flight}
        if gone:
            for entry in followed(
                replace(before, effects=replace(before.effects, in_flight=gone)), observation, policy
            ):
                result = entry.state if entry.state in ENDED else "done"
                began_s = self._began_s.pop(entry.instruction.id, entry.since_s)
                self._add("effects_total", 1, entry.instruction.kind, result)
                self._observe("effect_duration_seconds", EFFECT_BUCKETS_S, now_s - began_s, entry.instruction.kind)
        for key in memory.effects.in_flight.keys() - before.effects.in_flight.keys():
            self._began_s[key] = now_s

    def _add(self, name: str, value: float, *labels: str) -> None:
        of = self.counters.setdefault(name, {})
        of[labels] = of.get(labels, 0.0) + value

    def _observe(self, name: str, bounds: Sequence[float], value: float, *labels: str) -> None:
        self.histograms.setdefault(name, {}).setdefault(labels, Histogram(bounds)).add(value)
