"""Facts of a tick before any planning: its clock, its commands, and the trust in its view.

`Controller.observe` asks them before it lets models learn, and `reconcile` asks them again to decide.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

from autopilot.core.capabilities.memory import CAPABILITIES
from autopilot.core.facts.table import Kept, Table, fact, root
from autopilot.core.intake.clock import Reading, read_clock
from autopilot.core.intake.commands import Obeyed, obey
from autopilot.core.intake.sight import Sight, look
from autopilot.core.model.memory import ControllerMemory
from autopilot.core.model.policy import Policy
from autopilot.core.model.records import Observation, Outcome, View
from autopilot.core.model.snapshot import ClusterSnapshot
from autopilot.core.quota.guarantees import policy_in_force

Value = TypeVar("Value")


def _root(read: Callable[[IntakeFacts], Value]) -> Value:
    return root(read)


def _settled(clock: Reading, outcomes: tuple[Outcome, ...], now_s: float, policy: Policy) -> ControllerMemory:
    """Memory after the outcomes that count in every tick."""
    memory = clock.memory
    for capability in CAPABILITIES:
        if capability.settle is not None:
            memory = capability.settle(memory, outcomes, now_s, policy)
    return memory


def _sight(obeyed: Obeyed, snapshot: ClusterSnapshot, views: tuple[View, ...], now_s: float, policy: Policy) -> Sight:
    """The trust in the view; a command of this tick may confirm a loss."""
    return look(obeyed.memory, snapshot, views, now_s, policy)


@dataclass(frozen=True)
class IntakeFacts(Table):
    """`memory` is that of the last tick."""

    memory: ControllerMemory
    observation: Observation
    policy: Policy
    kept: Kept = field(default_factory=Kept)

    _memory = _root(lambda own: own.memory)
    _policy = _root(lambda own: own.policy)
    _now_s = _root(lambda own: own.observation.now_s)
    _elapsed_s = _root(lambda own: own.observation.elapsed_s)
    _outcomes = _root(lambda own: own.observation.outcomes)
    _commands = _root(lambda own: own.observation.commands)
    _views = _root(lambda own: own.observation.views)
    _snapshot = _root(lambda own: own.observation.snapshot)
    _queues = _root(lambda own: own.observation.snapshot.queues)

    in_force = fact(policy_in_force, _policy, _queues)  # the policy with what the queues state
    clock = fact(read_clock, _memory, _now_s, _elapsed_s, _policy)
    settled = fact(_settled, clock, _outcomes, _now_s, _policy)
    obeyed = fact(obey, settled, _commands, _now_s, _policy)
    sight = fact(_sight, obeyed, _snapshot, _views, _now_s, _policy)
