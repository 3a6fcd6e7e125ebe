"""The base of every checker: an observer of facts and reporter of violations, independent of any planner."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from math import inf
from typing import NamedTuple

from autopilot.core.model.hours import Hours, parse_hours
from autopilot.core.model.policy import Effect, GuaranteeRule, Mode, Policy, RuleSetName
from autopilot.core.model.records import Inventory
from autopilot.core.model.snapshot import SLO_CLASS_NAMES, ServiceTable
from simulator.specs.advance_spec import AdvanceSpec
from simulator.specs.clusterqueues import QueueSpec
from simulator.world.facts import Evicting
from simulator.world.physics import Physics
from simulator.world.sharing import Loads
from simulator.world.work import Jobs

TICK_S = 5.0
"""The longest interval between two ticks of a controller on a live cluster: it ticks every few seconds."""

HOLDING_MODES = frozenset({Mode.OFF, Mode.OBSERVE, Mode.RECOMMEND})
"""Modes in which an action has no effect, even if a person approves it."""


class Violation(NamedTuple):
    """A violated rule."""

    checker: str
    at_s: float
    object: str
    message: str


@dataclass(frozen=True, slots=True)
class Rules:
    """The limits of a run, as the checkers define them. None: no such limit."""

    sheltered_classes: tuple[int, ...] = (0,)
    min_runtime_s: float | None = None
    dwell_s: float | None = None
    window_s: float = 3600.0
    per_cluster: int | None = None
    per_tenant: int | None = None
    per_node: int | None = None
    concurrent: int | None = None
    excluded: frozenset[int] = frozenset()  # jobs that opted out
    held_actions: frozenset[str] = frozenset()  # actions that are decided and shown, but not carried out
    cool_down_s: float | None = None  # disrupted work is not disrupted again for this long
    most_stops: int | None = None  # weighed evictions of one job for other work
    blast_ratio: float | None = None  # GPUs taken per GPU that starts on them
    landing_s: float = 600.0  # after this long the taking is no longer awaited
    grace_s: float = 0.0  # evicted work has to leave within this time
    guarantee_within_s: float | None = None  # an owner regains its guarantee within this time
    # the same for queues that may run short for longer, by name; inf: for any time
    guarantee_later_s: Mapping[str, float] = field(default_factory=dict)
    recover_within_s: float | None = None  # work on a condemned GPU is evicted within this time
    floor_dwell_s: float | None = None  # a service's floor is not lowered within this time of its latest increase
    floor_lease_s: float | None = None  # and ends after this long at the latest
    room_dwell_s: float | None = None  # room that was made for foreseen replicas is kept for this long
    room_reversal_s: float | None = None  # and returned once within this time; work is stopped for it once
    ahead_dwell_s: float | None = None  # work is not moved ahead for this long after a restart
    peak_hours: Hours | None = None  # in which nothing is moved ahead
    recuts_per_hour: int | None = None  # changes of MIG geometry that begin in a pool within any hour
    recut_dwell_s: float = 0.0  # a GPU keeps a geometry for this long
    recut_return_s: float = 0.0  # and does not return to the one before for this long
    advance: tuple[AdvanceSpec, ...] = ()  # advance reservations
    queues: tuple[QueueSpec, ...] = ()  # guaranteed to the tenants of the same names, and to those below them

    @staticmethod
    def of_policy(
        policy: Policy,
        excluded: frozenset[int] = frozenset(),
        queues: tuple[QueueSpec, ...] = (),
        *,
        effects_fail: bool = False,
        advance: tuple[AdvanceSpec, ...] = (),
    ) -> Rules:
        """The limits of `policy` for the tenants of `queues`.

        A guarantee is restored within one grace period and two ticks (of `TICK_S`), if the policy reclaims on its
        own under our rules; an elastic one later by `tenancy.elastic_within_s`, and one not kept never. While effects
        may fail or come late (`effects_fail`) this time is not promised.
        """
        within_s = policy.preemption.grace_s + 2 * TICK_S
        modes = policy.modes
        takes_back = (
            policy.rules is RuleSetName.HIERARCHICAL_FAIR_SHARE
            and modes.auto(Effect.RECLAIM)
            and modes.auto(Effect.ADMIT)
            and not effects_fail
        )
        return Rules(
            sheltered_classes=tuple(SLO_CLASS_NAMES.index(name) for name in policy.protection.classes),
            min_runtime_s=policy.protection.min_runtime_s,
            dwell_s=policy.hysteresis.dwell_s,
            window_s=policy.budget.window_s,
            per_cluster=policy.budget.per_cluster,
            per_tenant=policy.budget.per_tenant,
            per_node=policy.budget.per_node,
            concurrent=policy.budget.concurrent,
            excluded=excluded,
            cool_down_s=policy.hysteresis.cool_down_s,
            most_stops=policy.protection.most_stops,
            blast_ratio=policy.preemption.blast_ratio,
            landing_s=policy.preemption.pipelined_timeout_s,
            grace_s=policy.preemption.grace_s,
            guarantee_within_s=within_s if takes_back else None,
            guarantee_later_s=_later_s(policy, queues, within_s),
            floor_dwell_s=policy.scale_ahead.dwell_s,
            floor_lease_s=policy.scale_ahead.lease_s,
            room_dwell_s=policy.room.dwell_s,
            room_reversal_s=policy.room.reversal_s,
            ahead_dwell_s=policy.defragment_ahead.dwell_s,
            peak_hours=parse_hours(policy.defragment_ahead.peak_hours, "defragment_ahead.peak_hours"),
            recover_within_s=2 * TICK_S if modes.auto(Effect.STOP) and not effects_fail else None,
            recuts_per_hour=policy.regeometry.per_pool_hour,
            recut_dwell_s=policy.regeometry.dwell_s,
            recut_return_s=policy.regeometry.return_s,
            queues=queues,
            advance=advance if modes.auto(Effect.ADMIT) and not effects_fail else (),
            held_actions=frozenset(
                mode.name for mode in fields(policy.modes) if getattr(policy.modes, mode.name) in HOLDING_MODES
            ),
        )


def _later_s(policy: Policy, queues: tuple[QueueSpec, ...], within_s: float) -> dict[str, float]:
    """Time for queues to regain guarantees that are not strict (s)."""
    tenancy, found = policy.tenancy, dict[str, GuaranteeRule]()
    for spec in queues:  # parents precede their children
        above = found.get(spec.parent, tenancy.guarantee)
        found[spec.name] = GuaranteeRule(spec.guarantee_kept) if spec.guarantee_kept else above
    later_s = {GuaranteeRule.ELASTIC: tenancy.elastic_within_s + within_s, GuaranteeRule.NONE: inf}
    by_index = {spec.name for spec in queues if spec.order in {None, "index"}}
    return {
        name: later_s[rule]
        for name, rule in found.items()
        if rule in later_s and (name in by_index or rule is GuaranteeRule.NONE)
    }


@dataclass(frozen=True, slots=True)
class World:
    """The material of a checker besides the facts: the hardware at the start, the jobs, the limits.

    `services` returns the services as seen by their users at a time; None: there are none. `physics`: durations of
    operations in this world; None: they are not checked. `ill`: True for a job that lacks a member, hangs, or is
    leaving. `works`: True if the GPUs of a job worked in the half hour before a time; None: unknown. `loads`: the true
    activity and footprints of work; None: unknown.
    """

    inventory: Inventory
    jobs: Jobs
    rules: Rules = field(default_factory=Rules)
    services: Callable[[float], ServiceTable] | None = None
    physics: Physics | None = None
    ill: Callable[[int], bool] | None = None
    works: Callable[[int, float], bool] | None = None
    loads: Loads | None = None


def weighed(fact: Evicting) -> bool:
    """True for an eviction in need of a net benefit: not by contract, and not because of a failure."""
    return not fact.contract


class Checker:
    """Base: counts checks and keeps violations. Subclasses have `on_...` methods (facts.HOOKS)."""

    name = ""

    def __init__(self, world: World) -> None:
        """Nothing has happened yet."""
        self.world = world
        self.jobs = world.jobs
        self.checked = 0
        self.violations: list[Violation] = []

    def violate(self, at_s: float, subject: str, message: str) -> None:
        """Report a violation."""
        self.violations.append(Violation(self.name, at_s, subject, message))

    def job(self, job: int) -> str:
        """The display name of a job."""
        return f"job {self.jobs.id[job]}"

    def node(self, node: int) -> str:
        """The display name of a node."""
        return f"node {self.world.inventory.nodes.id[node]}"

    def gpu(self, gpu: int) -> str:
        """The display name of a GPU."""
        return f"GPU {self.world.inventory.gpus.uuid[gpu]}"

    def at_end(self, end_s: float) -> None:
        """The run is over."""
