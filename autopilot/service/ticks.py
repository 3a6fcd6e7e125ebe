"""Joins the controller's output during a tick with the loop's knowledge after it, and hands both on."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

from autopilot.controller import Controller
from autopilot.core.model.memory import Step
from autopilot.core.model.policy import Policy
from autopilot.core.model.ports import PolicySource
from autopilot.core.model.records import Decision, Observation
from autopilot.service.exposed import Exposed
from autopilot.service.kill_switch import KillSwitch
from autopilot.service.metered import ServiceMeter
from autopilot.service.published import CollectorHealth, Published, Publisher, WatchedCollector
from autopilot.service.pulse import Pulse
from autopilot.service.record import Record
from autopilot.service.spending import DailySpend
from autopilot.service.tick_log import TickLog
from autopilot.settings import policy_digest


class Stopwatch:
    """Wall time of each stage of the last tick."""

    def __init__(self) -> None:
        self.stages_s: dict[str, float] = {}
        self._stage, self._since_s = "", 0.0

    def enter(self, stage: str) -> None:
        """A stage begins, and the one before it ends."""
        now_s = time.perf_counter()
        if self._stage:
            self.stages_s[self._stage] = self.stages_s.get(self._stage, 0.0) + now_s - self._since_s
        elif stage:
            self.stages_s = {}
        self._stage, self._since_s = stage, now_s


class Ticks:
    """Joins the controller's output during a tick with the loop's knowledge after it, and publishes both."""

    def __init__(
        self,
        publisher: Publisher,
        policy: PolicySource,
        kill: KillSwitch,
        watch: Stopwatch,
        exposed: Exposed,
        record: Record,
    ) -> None:
        self._publisher, self._policy, self._kill, self._watch = publisher, policy, kill, watch
        self._exposed, self._record = exposed, record
        self._digest: tuple[Policy, str] | None = None
        self._shown: tuple[Observation, Decision] | None = None
        self._log = TickLog()
        self.collectors: tuple[WatchedCollector, ...] = ()
        self.health_of: list[Callable[[], CollectorHealth]] = []  # of readers and writers beside the collectors
        self.concluded: Callable[[], None] | None = None
        self.consents: Callable[[Published], None] | None = None  # of owners, by annotation
        self.tell: Callable[[Decision], None] | None = None  # the news for owners
        self.led: Callable[[], None] | None = None  # called after each tick of a leader
        self.pulse: Pulse | None = None  # told of each ended tick
        self.controller: Controller | None = None
        self.meter: ServiceMeter | None = None
        self.spending: DailySpend | None = None
        self.held_back: Callable[[], str] = str  # what an upgrade holds back of the policy

    def on_decision(self, observation: Observation, decision: Decision) -> None:
        """The tick is recorded and its effects are sent."""
        self._shown = (observation, decision)
        if self.tell is not None:
            self.tell(decision)
        if self.spending is not None:
            self.spending.look(observation.now_s)
        if self.concluded is not None:
            self.concluded()

    def on_step(self, observation: Observation, step: Step) -> None:
        """Meter the tick with its instructions."""
        if self.meter is not None:
            self.meter.take(observation, step.instructions)

    def after_tick(self, step: Step | None, took_s: float) -> None:
        """Publish the tick; while another controller leads, the last one of this process stays."""
        self._publish(step, took_s)
        if self.pulse is not None:
            views = self._shown[0].views if self._shown is not None else ()
            self.pulse.beat(listed=bool(views) and all(view.complete for view in views))

    def _publish(self, step: Step | None, took_s: float) -> None:
        if step is None or self._shown is None or self.controller is None:
            latest = self._publisher.latest
            if latest is not None and latest.leads:
                self._publisher.publish(replace(latest, leads=False))
            return
        if self.led is not None:
            self.led()
        observation, decision = self._shown
        published = Published(
            observation=observation,
            decision=decision,
            memory=step.memory,
            policy=self._policy.current(),
            wake_at_s=self.controller.wake_at_s,
            took_s=took_s,
            stages_s=dict(self._watch.stages_s),
            collectors=(*(each.health for each in self.collectors), *(health() for health in self.health_of)),
            policy_problem=getattr(self._policy, "problem", None) or "",
            policy_note=self.held_back(),
            kill_reason=self._kill.reason(),
            spend_ratios=self.spending.ratios if self.spending is not None else {},
            budget_ratios=self.spending.budgets if self.spending is not None else {},
        )
        self._publisher.publish(published)
        if self.consents is not None:
            self.consents(published)
        self._log.tick(published)
        self._exposed.tick(published)
        self._keep(published.policy)

    def _keep(self, policy: Policy) -> None:
        """Record a changed policy, and seal the audit log if that is due."""
        if self._digest is None or self._digest[0] is not policy:
            self._digest = (policy, policy_digest(policy))
            self._record.policy(policy.name, self._digest[1])
        self._record.seal_when_due()
