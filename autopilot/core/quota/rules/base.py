"""The input and output types of rule sets.

A rule set knows quotas, priorities and shares. It never looks at nodes: to learn whether the newcomer fits after some
preemptions, it asks the caller (`Fits`), which answers from the what-if.
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
    """One gang, running or pending. A named tuple, because a tick makes thousands of them."""

    row: int  # of WorkloadTable
    queue: int
    gpus: float  # held; of a pending gang, requested at the width that is tried
    kinds: tuple[int, ...]  # kinds of the quota ledger that it counts in
    priority: int
    submit_s: float
    start_s: float  # NaN while it is pending
    preemptible: bool
    least_gpus: float  # its minimum: below this it stops or does not start
    member_gpus: float  # of one member: elastic gangs change by whole members
    over_quota: bool = False
    price_gpu_s: float = 0.0  # cost of evicting all of it
    shelter: int = 0  # protected work that yields by contract comes after others: 1 lent, 2 late (quota/protection.py)

    @property
    def elastic(self) -> bool:
        """True if it can lose members and continue."""
        return self.gpus - self.member_gpus >= self.least_gpus > 0

    @property
    def spare_gpus(self) -> float:
        """GPUs of the whole members that it can lose and still continue; 0.0 if it is not elastic."""
        return (self.gpus - self.least_gpus + EPSILON) // self.member_gpus * self.member_gpus if self.elastic else 0.0


class Step(NamedTuple):
    """One step of preempting a gang: first its members above the minimum, then the gang as a whole."""

    claim: Claim
    whole: bool

    @property
    def gpus(self) -> float:
        """GPUs that this step frees in addition to the previous one."""
        return self.claim.gpus - self.claim.spare_gpus if self.whole else self.claim.spare_gpus


class Running(list[Claim]):
    """Gangs that hold GPUs, for the searches of one tick. Never changed after its first use.

    A selection (`only`) takes the order of victims over from `source`, the list that it was selected from.
    """

    source: Running | None = None

    def only(self, keep: Sequence[bool]) -> Running:
        """These gangs, as far as `keep` [workloads] is true."""
        found = Running(claim for claim in self if keep[claim.row])
        found.source = self.source or self
        return found

    @cached_property
    def queues(self) -> frozenset[int]:
        """Queues of these gangs."""
        return frozenset(claim.queue for claim in self)

    @cached_property
    def lines(self) -> dict[tuple[int, tuple[int, ...]], list[Claim]]:
        """Preemptible gangs by queue and kinds, each list in victim order."""
        found: dict[tuple[int, tuple[int, ...]], list[Claim]] = {}
        for claim in self:
            if claim.preemptible:
                found.setdefault((claim.queue, claim.kinds), []).append(claim)
        for key, line in found.items():
            if self.source is None:
                line.sort(key=victim_order)
            else:
                here = {claim.row for claim in line}
                found[key] = [claim for claim in self.source.lines[key] if claim.row in here]
        return found

    @cached_property
    def steps(self) -> dict[tuple[int, tuple[int, ...]], list[Step]]:
        """Preemption steps by queue and kinds: in each priority, members above the minimum before whole gangs."""
        if self.source is not None:
            here = {claim.row for claim in self}
            keys = dict.fromkeys((claim.queue, claim.kinds) for claim in self if claim.preemptible)
            return {key: [step for step in self.source.steps[key] if step.claim.row in here] for key in keys}
        found = {}
        for key, line in self.lines.items():
            steps = [Step(claim, whole=True) for claim in line]
            elastic = [Step(claim, whole=False) for claim in line if claim.elastic]
            found[key] = (
                sorted(elastic + steps, key=lambda step: (step.claim.shelter, step.claim.priority, step.whole))
                if elastic
                else steps
            )
        return found


def victim_order(claim: Claim) -> tuple[float, float, float, float, int]:
    """Sort key of victims: least shelter, then lowest priority, then lowest price, then youngest.

    An unknown start counts as now.
    """
    started_s = inf if isnan(claim.start_s) else claim.start_s
    return (claim.shelter, claim.priority, claim.price_gpu_s, -started_s, claim.row)


class Target(NamedTuple):
    """The preemption of one running gang: all of it, or some members of an elastic one. A search makes thousands."""

    row: int
    gpus: float
    whole: bool


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a gang may not start or preempt: the code with its value and threshold (GPUs)."""

    code: Code
    value: float
    threshold: float


class RankedTarget(NamedTuple):
    """One candidate: its rank in the victim order (0 first) and its price in GPU-seconds."""

    target: Target
    rank: int
    price_gpu_s: float
    queue: int


Allowed = Callable[[Sequence[Target]], bool]
"""Whether the quotas allow these preemptions together."""

Fits = Callable[[Sequence[Target]], bool]
"""Whether the newcomer fits on the nodes after these preemptions. An empty sequence: whether it fits now."""


class Room(Protocol):
    """The nodes, as a rule set sees them: answers `Fits`, and finds victims."""

    def __call__(self, targets: Sequence[Target]) -> bool:
        """Whether the newcomer fits after these preemptions."""
        ...

    def cheapest(self, ranked_targets: Sequence[RankedTarget], allowed: Allowed) -> tuple[Target, ...] | None:
        """The cheapest allowed preemptions that make room, of the lowest ranks that suffice; None if none suffice.

        The cheapest set has the lowest price in the highest rank that is needed, then in the rank below it, and so on.
        """
        ...


MayStart = Callable[[QuotaLedger, Claim], Refusal | None]
"""Whether the quotas allow the pending gang to start on idle capacity; None if they do."""

Takes = Callable[[QuotaLedger, Claim, Sequence[Claim], Room], tuple[Target, ...] | Refusal]
"""The victims that make room for the pending gang, in victim order; or why it may not preempt.

The ledger is that of the moment and is left unchanged.
"""
