"""Decisions where the nodes state MIG scopes other than `instance`, the one of the tests' hardware."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from autopilot.core.model.memory import ControllerMemory, Step
from autopilot.core.model.objects import MIG_SCOPES
from autopilot.core.model.policy import Policy
from autopilot.core.model.records import Observation
from tests.kits.core_world import decide


def bits(*scopes: str) -> int:
    """Scopes as bits over MIG_SCOPES."""
    return sum(1 << MIG_SCOPES.index(scope) for scope in scopes)


def stating(now: Observation, *scopes: str) -> Observation:
    """The same, where all nodes state these scopes, but those without any."""
    nodes = now.snapshot.nodes
    stated = np.where(nodes.mig_scopes > 0, bits(*scopes), 0).astype(np.int8)
    return replace(now, snapshot=replace(now.snapshot, nodes=replace(nodes, mig_scopes=stated)))


def decide_in_scope(now: Observation, policy: Policy, memory: ControllerMemory | None = None, **more: Any) -> Step:
    """A decision where the nodes state the scopes that the policy is named after (`gpu`, `instance+gpu`)."""
    scopes = policy.name.split("+")
    return decide(stating(now, *scopes) if set(scopes) <= set(MIG_SCOPES) else now, policy, memory, **more)
