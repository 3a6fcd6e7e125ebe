"""Facts of one snapshot that measuring, judging telemetry and planning share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

from autopilot.core.facts.table import Kept, Table, fact, root
from autopilot.core.hardware.takes_work import takes_work
from autopilot.core.intake.usage.contradiction import contradicted
from autopilot.core.intake.usage.parts import parts_of
from autopilot.core.intake.usage.plausibility import doubts, gaps_of
from autopilot.core.intake.usage.rollup import strays
from autopilot.core.model.policy import Policy
from autopilot.core.model.records import Observation
from autopilot.core.placement.whatif import WhatIf

Value = TypeVar("Value")


def _root(read: Callable[[SnapshotFacts], Value]) -> Value:
    return root(read)


@dataclass(frozen=True, kw_only=True)
class SnapshotFacts(Table):
    """Nearly all of them read placements or telemetry, which are new in every tick: their input is the snapshot."""

    observation: Observation
    policy: Policy
    kept: Kept = field(default_factory=Kept)

    snapshot = _root(lambda own: own.observation.snapshot)
    _nodes = _root(lambda own: own.observation.snapshot.nodes)
    _gpus = _root(lambda own: own.observation.snapshot.gpus)
    _stale_s = _root(lambda own: own.policy.freshness.telemetry_s)

    takes_work = fact(takes_work, _nodes, _gpus)  # nodes and GPUs that do: they change rarely
    books = fact(WhatIf, snapshot, takes_work)  # never changed: planning opens a copy (`WhatIf.opened`)
    parts = fact(parts_of, snapshot)  # what workloads hold
    contradicted = fact(contradicted, snapshot)  # GPUs, then instances, whose counters contradict each other
    strays = fact(strays, snapshot, parts)  # busy ones that no workload holds
    gaps = fact(gaps_of, snapshot, contradicted, strays)  # what telemetry does not say
    doubts = fact(doubts, snapshot, parts, contradicted, _stale_s)  # indices of plausibility.DOUBTS
