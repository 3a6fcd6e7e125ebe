"""What the tests of `explain` share: a tree of queues with guarantees, an eager policy, the story of one tick."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from autopilot.core.intake.signals import measure
from autopilot.core.model.memory import ControllerMemory, Step
from autopilot.core.model.policy import Mode, Modes, Policy
from autopilot.core.model.records import Observation
from autopilot.core.model.snapshot import QueueTable
from autopilot.core.placement.whatif import WhatIf
from autopilot.explain.story import Watch, tell
from tests.kits.core_world import AUTO, decide, queue_tree, with_policy

EAGER = with_policy(
    replace(AUTO, modes=Modes(*[Mode.AUTO] * len(Modes.__dataclass_fields__))),
    hysteresis={"dwell_s": 0.0},
    protection={"min_runtime_s": 0.0},
)
"""Every action on, and what it wishes it does at once."""


def tree(*rows: tuple[str, int, int, int], **columns: Any) -> QueueTable:
    """Queues of (name, parent row, limit, guarantee of A100s) below the root; `columns` replace whole columns."""
    table = queue_tree(*[(name, parent, limit) for name, parent, limit, _ in rows], order=0)
    guarantee = table.guarantee.copy()
    guarantee[1:, 0] = [owed for *_, owed in rows]
    given = {name: np.array(values, getattr(table, name).dtype) for name, values in columns.items()}
    return replace(table, guarantee=guarantee, **given)


def with_columns(observation: Observation, **columns: Any) -> Observation:
    """The same with columns of the workload table set to one value for all: what a gang asks for beside what it
    holds.
    """
    work = observation.snapshot.workloads
    given = {name: np.full_like(getattr(work, name), value) for name, value in columns.items()}
    snapshot = replace(observation.snapshot, workloads=replace(work, **given))
    return replace(observation, snapshot=snapshot, signals=measure(snapshot, WhatIf(snapshot)))


def story(
    observation: Observation, workload: str, policy: Policy = EAGER, memory: ControllerMemory | None = None
) -> tuple[str, Step]:
    """What is told of a workload at one tick, and the decision."""
    watch = Watch()
    step = decide(observation, policy, memory, actions=watch.actions)
    return "\n".join(tell(workload, observation, step.decision, watch)), step


def lines(said: str, start: str) -> list[str]:
    """Lines of a story that begin with `start`."""
    return [line.strip() for line in said.splitlines() if line.strip().startswith(start)]
