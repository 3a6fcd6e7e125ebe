"""Predicted rates of all sharers of one GPU, relative to their rates alone.

Theory of operation. Memory comes first: the peaks must fit. Then a rule without a fitted parameter gives the rate of
each sharer from the lone profiles, by mechanism:

- MPS runs kernels side by side. u1 u2 is the chance that both want the same resource, and then each has half of it:
  1 - u1 u2 / 2, for the scarcest of SMs, memory and engine time.
- Time slicing runs them in turns. Work that waits for its turn wants the GPU for longer, so that twice as much is lost
  of the time in which both are active: 1 - u1 u2, which for saturated work is 1 - the neighbour's duty.
- A MIG instance has a part f of the GPU, and no neighbours. Amdahl: 1 / ((1 - a) + a / f), where a is the part of the
  time that shrinks with the GPU.

With more than two sharers the losses multiply. What was learned of a pair is added to its rate. Nothing is predicted
without a fresh profile of each sharer: the reason is the answer. p99 latencies are not predicted: they followed neither
duty nor memory activity (study of sharing, finding 5).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from math import isfinite, sqrt

from autopilot.core.model.colocation import RULE, Colocation, Mechanism, Pair
from autopilot.core.model.kinds import without_image
from autopilot.core.model.memory.profiles import LoneProfile, ProfilesMemory
from autopilot.core.model.policy.bounds import DAY_S

LEAST_ALONE_S = 1800.0
"""A profile observed alone for less is too young (study, section 7: at least 30 min)."""

OLDEST_S = 14 * DAY_S
"""A profile not seen alone for longer is too old (study, section 7, bad input)."""

MEMORY_RATIO = 0.92
"""Part of a GPU's memory that the peaks may fill: 8 % in hand (study, section 2, signals by worth)."""

DRAM_FULL_RATIO = 0.9
"""DRAM activity at which the memory is saturated (study, section 2: max(SM, DRAM / 0.9) sums under MPS)."""

ADMIT_RATE = 0.85
ADMIT_LOAD = 1.0
"""All sharers keep this rate, and their sum of use is at most this. Of Lucid's pairs under the second bound 93 % keep
the first, and 75 % of those that do are found (study, section 2, as a decision).
"""

LEAST_RATE = 0.05
"""No correction makes a rate lower: work that runs goes on."""


class Reason(StrEnum):
    """Why nothing is predicted."""

    NO_PROFILE = "no-profile"
    OTHER_IMAGE = "other-image"
    TOO_YOUNG = "profile-too-young"
    TOO_OLD = "profile-too-old"
    MEMORY_UNKNOWN = "memory-unknown"
    SIGNAL_UNKNOWN = "signal-unknown"


WORDS: dict[Reason, str] = {
    Reason.NO_PROFILE: "it was not measured alone on a GPU of this model",
    Reason.OTHER_IMAGE: "it was measured alone with another image only",
    Reason.TOO_YOUNG: "it was measured alone for less than 30 min",
    Reason.TOO_OLD: "it was last measured alone more than 14 days ago",
    Reason.MEMORY_UNKNOWN: "its peak of memory, or the memory of the GPU, is unknown",
    Reason.SIGNAL_UNKNOWN: "a signal that the mechanism needs was not measured",
}


@dataclass(frozen=True, slots=True)
class Abstention:
    """Nothing is predicted, because of this kind of work."""

    reason: Reason
    kind: str

    @property
    def words(self) -> str:
        """The reason as text."""
        return WORDS[self.reason]


@dataclass(frozen=True, slots=True)
class Part:
    """What one sharer may use at most, of the compute and of the memory of the GPU: a MIG instance, or a client of the
    device plugin's MPS, which caps each at 1 / replicas of both.
    """

    compute_ratio: float = 1.0
    memory_ratio: float = 1.0


WHOLE = Part()


@dataclass(frozen=True, slots=True)
class Sharer:
    """One kind of work that is to share: its profile, or why there is none (`profile_of`)."""

    kind: str
    profile: LoneProfile | Abstention
    part: Part = WHOLE


@dataclass(frozen=True, slots=True)
class Prediction:
    """Relative rates in the order of the sharers. `load_ratio`: the highest sum of their uses of one resource; of
    instances 0. `memory_ratio`: the fullest memory, by peaks.
    """

    rates: tuple[float, ...]
    load_ratio: float
    memory_ratio: float

    @property
    def fits(self) -> bool:
        """True if the peaks leave the margin of memory."""
        return self.memory_ratio <= MEMORY_RATIO

    @property
    def admitted(self) -> bool:
        """True if the sharers may be put together."""
        return self.fits and min(self.rates) >= ADMIT_RATE and self.load_ratio <= ADMIT_LOAD


def profile_of(known: ProfilesMemory, gpu_model: str, kind: str, now_s: float) -> LoneProfile | Abstention:
    """The usable profile of a kind of work on a model of GPU, or the reason that there is none."""
    kinds = known.profiles.get(gpu_model, {})
    found = kinds.get(kind)
    if found is None:
        stem = without_image(kind)
        reason = Reason.OTHER_IMAGE if any(without_image(each) == stem for each in kinds) else Reason.NO_PROFILE
        return Abstention(reason, kind)
    if found.alone_s < LEAST_ALONE_S:
        return Abstention(Reason.TOO_YOUNG, kind)
    return Abstention(Reason.TOO_OLD, kind) if not 0.0 <= now_s - found.seen_s <= OLDEST_S else found


def predicted_rates(
    sharers: Sequence[Sharer],
    mechanism: Mechanism,
    gpu_model: str,
    memory_mib: float,
    learned: Colocation = RULE,
) -> Prediction | Abstention:
    """Rates of all `sharers` (at least one) on one GPU with `memory_mib` (NaN or 0: unknown), relative to alone."""
    profiles: list[LoneProfile] = []
    for each in sharers:
        if isinstance(each.profile, Abstention):
            return each.profile
        if not (isfinite(each.profile.peak_mib) and each.profile.peak_mib > 0.0 and memory_mib > 0.0):
            return Abstention(Reason.MEMORY_UNKNOWN, each.kind)
        if not all(isfinite(ratio) for ratio in _needed(each, each.profile, mechanism)):
            return Abstention(Reason.SIGNAL_UNKNOWN, each.kind)
        profiles.append(each.profile)
    uses = [_uses(profile, mechanism) for profile in profiles]
    beside = _in_turns if mechanism is Mechanism.TIME_SLICING else _side_by_side
    rates = []
    for at, own in enumerate(sharers):
        rate = _on_part(profiles[at], own.part)
        if mechanism is Mechanism.MIG:
            pair = Pair(own.kind, "", mechanism, gpu_model)
            rate += learned.added(pair, *compared_uses(profiles[at], None, mechanism, own.part))
        for other, their in enumerate(sharers):
            if other != at and uses[at]:
                pair = Pair(own.kind, their.kind, mechanism, gpu_model)
                added = learned.added(pair, *compared_uses(profiles[at], profiles[other], mechanism, own.part))
                rate *= _clipped(_scarcest(beside, uses[at], uses[other]) + added)
        rates.append(_clipped(rate))
    own_memory = max(
        profile.peak_mib / (each.part.memory_ratio * memory_mib)
        for profile, each in zip(profiles, sharers, strict=True)
    )
    shared = 0.0 if mechanism is Mechanism.MIG else sum(each.peak_mib for each in profiles) / memory_mib
    load = max((sum(column) for column in zip(*uses, strict=True)), default=0.0)
    return Prediction(tuple(rates), load, max(own_memory, shared))


def compared_uses(
    own: LoneProfile, other: LoneProfile | None, mechanism: Mechanism, part: Part = WHOLE
) -> tuple[float, float]:
    """The uses of a pair that a model may learn from: of the scarcest resource, or of what an instance leaves out."""
    if other is None:
        return _shrinking(own) * (1.0 - part.compute_ratio), 1.0 - part.compute_ratio
    return max(_uses(own, mechanism)), max(_uses(other, mechanism))


def _needed(sharer: Sharer, profile: LoneProfile, mechanism: Mechanism) -> tuple[float, ...]:
    """The ratios without which nothing is predicted."""
    bound = (profile.dram_ratio, profile.power_ratio) if sharer.part.compute_ratio < 1.0 else ()
    if mechanism is Mechanism.TIME_SLICING:
        return (profile.duty_ratio, *bound)
    return (profile.sm_ratio, profile.dram_ratio, *bound) if mechanism is Mechanism.MPS else bound


def _uses(profile: LoneProfile, mechanism: Mechanism) -> tuple[float, ...]:
    """Use of each resource that sharers compete for, 0 to 1; an unknown duty does not bind under MPS.

    Duty alone is what every public table of pairs has. SM activity would allow more under MPS on newer GPUs, which no
    table shows yet: where the two disagree, the more cautious counts (study, section 2).
    """
    if mechanism is Mechanism.MIG:
        return ()
    if mechanism is Mechanism.TIME_SLICING:
        return (profile.duty_ratio,)
    duty = profile.duty_ratio if isfinite(profile.duty_ratio) else 0.0
    return (profile.sm_ratio, min(profile.dram_ratio / DRAM_FULL_RATIO, 1.0), duty)


def _scarcest(beside: Callable[[float, float], float], own: Sequence[float], other: Sequence[float]) -> float:
    return min((beside(mine, theirs) for mine, theirs in zip(own, other, strict=True)), default=1.0)


def _side_by_side(own: float, other: float) -> float:
    """Study, section 2: MAE 0.067 on Lucid's pairs and 0.073 on Tally's under MPS."""
    return 1.0 - own * other / 2.0


def _in_turns(own: float, other: float) -> float:
    """Study, section 2: 1 - the service's duty for saturated trainings under time slicing (Tally, MAE 0.047). There
    1 - u1 u2 / 2 is too optimistic by more than 0.15 in every row; on light work the two differ by less than 0.08.
    """
    return 1.0 - own * other


def _on_part(profile: LoneProfile, part: Part) -> float:
    """Amdahl on a part of the GPU."""
    if part.compute_ratio >= 1.0:
        return 1.0
    shrinks = _shrinking(profile)
    return 1.0 / ((1.0 - shrinks) + shrinks / part.compute_ratio)


def _shrinking(profile: LoneProfile) -> float:
    """The part of its time that grows as its part of the GPU shrinks.

    The power follows the SMs, the root of the memory activity the bandwidth; the greater counts (study, section 2,
    MISO).
    """
    greater = max(profile.power_ratio, sqrt(profile.dram_ratio))
    return min(greater, 1.0) if isfinite(greater) else 0.0


def _clipped(rate: float) -> float:
    return min(max(rate, LEAST_RATE), 1.0)
