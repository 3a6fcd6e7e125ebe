"""Results of a replay, as records."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

OPEN_LOOP = (
    "Each tick shows the cluster as the recorded decisions left it: a difference is what this policy "
    "would have proposed at that moment, not where it would have led. Simulate both policies to see that."
)


@dataclass(frozen=True, slots=True)
class Difference:
    """The first difference of a replayed decision from the recorded one."""

    tick: int
    now_s: float
    field: str  # path of the field, e.g. `decision.plan.proposals[0].slots[1].gpu`
    recorded: str
    replayed: str


@dataclass(frozen=True, slots=True)
class TickDiff:
    """One tick at which two policies propose different things. Proposals are (action, kind, workload)."""

    tick: int
    now_s: float
    only_recorded: tuple[tuple[str, str, str], ...]
    only_candidate: tuple[tuple[str, str, str], ...]


@dataclass(frozen=True, slots=True)
class Shift:
    """When one workload was first admitted under each policy; None: never."""

    workload: str
    recorded_s: float | None
    candidate_s: float | None

    @property
    def earlier_s(self) -> float | None:
        """By how much the candidate is earlier; negative when later, None when only one admits it."""
        if self.recorded_s is None or self.candidate_s is None:
            return None
        return self.recorded_s - self.candidate_s


@dataclass(frozen=True, slots=True)
class Counts:
    """The proposals of one policy over the whole record."""

    proposals: Mapping[str, int]  # by "action kind"
    accepted: int
    reserved: int  # workloads that held a reservation at some time
    evictions: int


@dataclass(frozen=True, slots=True)
class PolicyDiff:
    """The recorded policy and another one on the same observations."""

    recorded: Counts
    candidate: Counts
    ticks_that_differ: int
    ticks: tuple[TickDiff, ...]  # the first ones, up to `keep`
    shifts: tuple[Shift, ...]  # workloads whose first admission differs
    reserved_only_recorded: tuple[str, ...]
    reserved_only_candidate: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ReplayResult:
    """The result of a replay."""

    path: str
    ticks: int
    first_tick: int | None
    last_tick: int | None
    policies: tuple[str, ...]  # names of the recorded policies, in the order of their first use
    candidate: str = ""  # name of the other policy; "" for a plain replay
    difference: Difference | None = None  # the first one of a plain replay
    diff: PolicyDiff | None = None

    @property
    def identical(self) -> bool:
        """True when every tick was decided as recorded."""
        return self.difference is None and (self.diff is None or self.diff.ticks_that_differ == 0)
