"""An engine in charge of the simulated cluster, and the autopilot beside it, for recommendations only."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace

from autopilot.app.runs.named import PolicyValues
from autopilot.app.runs.wiring import Managed, Running, manage
from autopilot.core.model.errors import InputError
from autopilot.core.model.policy import Mode, Policy, RuleSetName
from autopilot.core.model.policy.names import ClusterNames, check_names
from autopilot.core.model.records import Decision, Observation
from simulator.baselines import BASELINES
from simulator.baselines.kueue import Kueue, cohort_specs
from simulator.running.turn import AdvisedScheduler
from simulator.specs.clusterqueues import QueueSpec
from simulator.world.cluster import Cluster

DEFAULT_ADVICE = "recommend"
"""The default policy beside an engine."""


@dataclass(slots=True)
class Advice:
    """The autopilot's recommendations during a run: ticks, and new proposals by action.

    A proposal repeated by the next tick is one proposal.
    """

    ticks: int = 0
    proposals: Counter[str] = field(default_factory=Counter)
    _before: frozenset[tuple[object, ...]] = frozenset()

    def on_tick(self, _observation: Observation, decision: Decision) -> None:
        """Count one tick."""
        self.ticks += 1
        now = {(each.action, each.subject, each.change): each.action for each in decision.plan.proposals}
        self.proposals.update(action for key, action in now.items() if key not in self._before)
        self._before = frozenset(now)

    def result(self) -> dict[str, object]:
        """The entry `advice` of a policy in the result."""
        return {
            "ticks": self.ticks,
            "proposals": sum(self.proposals.values()),
            "by_action": dict(sorted(self.proposals.items())),
        }


def check_advisors(
    names: tuple[str, ...], there: ClusterNames | None = None, values: PolicyValues | None = None
) -> dict[str, Policy]:
    """The policies beside an engine, by their shown names.

    Raises `InputError` for a baseline, and for an acting policy: beside an engine nothing is carried out, so the next
    decision would not find the effects of the last one.
    """
    found: dict[str, Policy] = {}
    for name in dict.fromkeys(names):
        if name in BASELINES:
            raise InputError(
                f"--policy: {name} is a baseline and cannot recommend beside an engine; write --policy {DEFAULT_ADVICE}"
            )
        policy = (values or PolicyValues()).of(name)
        acting = [each for each in policy.modes.__slots__ if getattr(policy.modes, each) == Mode.AUTO]
        if acting:
            raise InputError(
                f"--policy: {name}: modes.{acting[0]}: {Mode.AUTO} would act, and beside an engine the autopilot only "
                f"recommends; it must be at most {Mode.APPROVE} (a policy file with `base: {DEFAULT_ADVICE}` has it)"
            )
        if there is not None:
            check_names(policy, there, f"--policy: {name}")
        found[name if policy.name in found else policy.name] = policy
    return found


def advise(
    engine: str, queues: tuple[QueueSpec, ...], cluster: Cluster, managed: Managed, interval_s: float
) -> tuple[AdvisedScheduler, Running]:
    """The engine in charge of `cluster`, with the controller beside it every `interval_s`.

    The controller sees the queues as the engine holds them, and judges by the engine's rules in place of its policy's
    rule set.
    """
    policy = replace(managed.policy, rules=RuleSetName.COHORT_CLASSIC)
    seen = replace(managed, name=engine, policy=policy, queues=cohort_specs(queues, cluster), acts=False)
    _, running = manage(cluster, seen)
    return AdvisedScheduler(Kueue(queues), running.controller, interval_s), running
