"""What rule sets see of a gang, and what they answer.

A rule set knows quotas, priorities and shares. It never looks at nodes: whether there is room once somebody
has gone is a question that it asks of the caller (`Fits`), who answers from the what-if.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import inf, isnan
from typing import NamedTuple, Protocol

from autopilot.core.model.records import Code
from autopilot.core.quota.ledger import EPSILON, QuotaLedger


class Claim(NamedTuple):
    """One gang: what it holds when it runs, what it asks for when it waits. A plain tuple: there are thousands a
    tick.
    """

    row: int  # of WorkloadTable
    queue: int
    gpus: float  # held; asked for at the width that is tried
    kinds: tuple[int, ...]  # of Books, that it draws on
    priority: int
    submit_s: float
    start_s: float  # NaN while it waits
    preemptible: bool
    least_gpus: float  # below this it stops or does not start
    member_gpus: float  # of one member: elastic gangs change by members
    over_quota: bool = False
    price_gpu_s: float = 0.0  # work that evicting it whole would lose

    @property
    def elastic(self) -> bool:
        """True when it can give up members and go on."""
        return self.gpus - self.member_gpus >= self.least_gpus > 0

    @property
    def spare_gpus(self) -> float:
        """GPUs of the whole members that it can give up and go on; 0.0 when it is not elastic."""
        return (self.gpus - self.least_gpus + EPSILON) // self.member_gpus * self.member_gpus if self.elastic else 0.0


class Step(NamedTuple):
    """One step of taking a gang: its members above its minimum, or, after them, the gang as a whole."""

    claim: Claim
    whole: bool

    @property
    def gpus(self) -> float:
        """GPUs that this step takes beyond the one before it."""
        return self.claim.gpus - self.claim.spare_gpus if self.whole else self.claim.spare_gpus


class Running(list[Claim]):
    """Gangs that hold GPUs, as the searches of one tick see them. Never changed once it was shown."""

    @cached_property
    def lines(self) -> dict[tuple[int, tuple[int, ...]], list[Claim]]:
        """Those that may be preempted by queue and kinds, each line in the order of mercy."""
        found: dict[tuple[int, tuple[int, ...]], list[Claim]] = {}
        for claim in self:
            if claim.preemptible:
                found.setdefault((claim.queue, claim.kinds), []).append(claim)
        for line in found.values():
            line.sort(key=mercy)
        return found

    @cached_property
    def steps(self) -> dict[tuple[int, tuple[int, ...]], list[Step]]:
        """The same lines step by step: in each priority, members above the minimum of their gangs before whole
        gangs.
        """
        found = {}
        for key, line in self.lines.items():
            steps = [Step(claim, whole=True) for claim in line]
            elastic = [Step(claim, whole=False) for claim in line if claim.elastic]
            found[key] = (
                sorted(elastic + steps, key=lambda step: (step.claim.priority, step.whole)) if elastic else steps
            )
        return found


def mercy(claim: Claim) -> tuple[float, float, float, int]:
    """Lowest priority first, in it the cheapest, then the youngest; a start that is not known counts as just now."""
    started_s = inf if isnan(claim.start_s) else claim.start_s
    return (claim.priority, claim.price_gpu_s, -started_s, claim.row)


@dataclass(frozen=True, slots=True)
class Target:
    """What is taken from one running gang: all of it, or some members of an elastic one."""

    row: int
    gpus: float
    whole: bool


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a gang may not start or displace: the code, what it would take, and what it has."""

    code: Code
    value: float
    threshold: float


@dataclass(frozen=True, slots=True)
class RankedTarget:
    """One possible taking: its class in the order of mercy (0 first) and its price in lost GPU-seconds."""

    target: Target
    rank: int
    price_gpu_s: float
    queue: int


Allowed = Callable[[Sequence[Target]], bool]
"""May these be taken together, as far as quotas go?"""

Fits = Callable[[Sequence[Target]], bool]
"""Is there room for the newcomer once these were taken? An empty sequence asks about now."""


class Room(Protocol):
    """Where the newcomer could go: answers `Fits`, and finds whom to take."""

    def __call__(self, targets: Sequence[Target]) -> bool:
        """Is there room for the newcomer once these were taken?"""
        ...

    def cheapest(self, ranked_targets: Sequence[RankedTarget], allowed: Allowed) -> tuple[Target, ...] | None:
        """The cheapest allowed takings that make room, of the lowest ranks that suffice; None when none do.

        Cheapest: least lost work in the highest rank that is needed, then in the one below it, and so on.
        """
        ...


MayStart = Callable[[QuotaLedger, Claim], Refusal | None]
"""May the waiting gang start on idle capacity, as far as quotas go?"""

Takes = Callable[[QuotaLedger, Claim, Sequence[Claim], Room], tuple[Target, ...] | Refusal]
"""Whom the waiting gang displaces so that it fits, least merciful last; or why it may displace nobody.

`Books` are those of the moment; they are left as they were.
"""
