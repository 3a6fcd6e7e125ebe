"""The promises of executed actions and their outcomes (core/trust/follow_promises.py)."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from autopilot.core.model.times import Duration, Time


class Unknown(StrEnum):
    """The reason for a case without effect on the record."""

    NOBODY = "nobody"  # no work is named as the gainer
    NO_START = "no_start"  # the start without the action cannot be predicted
    NO_RUN_TIME = "no_run_time"  # the run time of the gaining work cannot be predicted
    NO_LOSS = "no_loss"  # the loss of a victim was not reported
    NOT_DONE = "not_done"  # no victim left, and nothing started


@dataclass(frozen=True, slots=True)
class Beneficiary:
    """Work started earlier by an action. `part`: GPUs in one of its GPUs, shares or instances."""

    workload: str
    uid: str
    without_s: Time  # predicted start without the action; inf: not within the horizon
    part: float = 1.0
    width: float = 0.0  # GPUs, shares or instances at its last sight
    counted_s: Time = float("-inf")  # its use is counted up to then
    used_gpu_s: float = 0.0
    ended: bool = False
    gpus: float = 0.0  # GPUs of its planned start, shares and instances as their part; 0: not known
    stopped: bool = False  # another action of the controller stopped it, or moved it, meanwhile
    waited_s: Duration = 0.0  # time without GPUs since then


@dataclass(frozen=True, slots=True)
class Promise:
    """An executed action until its horizon is over. With `unknown` it has no weight and no beneficiary."""

    proposal_id: str
    action: str
    at_s: Time
    until_s: Time
    promised_gpu_s: float  # expected use of the beneficiaries before `without_s`, less the expected loss of victims
    beneficiaries: tuple[Beneficiary, ...] = ()
    lost_gpu_s: float = 0.0
    done: bool = False  # a victim left, or something started
    unknown: str = ""


@dataclass(frozen=True, slots=True)
class Realised:
    """The outcome of one promise. `unknown`: the reason for an outcome without weight, else ""."""

    proposal_id: str
    action: str
    at_s: float
    promised_gpu_s: float
    used_gpu_s: float
    lost_gpu_s: float
    unknown: str = ""

    @property
    def gain_gpu_s(self) -> float:
        """The realised use less the loss."""
        return self.used_gpu_s - self.lost_gpu_s


@dataclass(frozen=True, slots=True)
class DayOfCases:
    """Sums of the displaced older cases of one day. `day`: days since the epoch."""

    day: int
    cases: int
    promised_gpu_s: float
    realised_gpu_s: float


@dataclass(frozen=True, slots=True)
class PromiseRecord:
    """The newest finished cases of one action, as (promised, realised) GPU-seconds; cases without weight are left out.
    `before` has the sums of the displaced ones by day.
    """

    cases: tuple[tuple[float, float], ...] = ()
    capped_s: Time = float("inf")  # start of the cap of the action; inf: none
    before: tuple[DayOfCases, ...] = ()

    @property
    def count(self) -> int:
        """The number of cases behind the judgement of the action."""
        return len(self.cases) + sum(each.cases for each in self.before)
