"""Work that slows its neighbours: what was tried, what was found, and the pairs that are kept apart."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from autopilot.core.model.times import Time


@dataclass(frozen=True, slots=True)
class PairRecord:
    """What came of one kind of work beside another (core/planning/pairs.py). The counts are halved every 14 days."""

    harmful: float  # pauses after which the victim recovered
    harmless: float  # pauses that changed nothing
    confirmed: int  # the first ones, not halved
    at_s: Time  # of the counts


@dataclass(frozen=True, slots=True)
class Trial:
    """A suspect that is paused to see whether its victim recovers (core/neighbours/follow.py)."""

    victim: str  # id and uid of the victim
    victim_uid: str
    incarnation: int  # of the suspect
    pair: str  # key of the pair
    budget: str  # whose pauses of the innocent it may count to: the service of the victim, or the victim
    rise_ratio: float  # of the victim, when it was found
    before_ratio: float  # of the victim, when the pause was asked for
    paused_s: Time  # since when the view shows the pause; NaN: not yet
    until_s: Time  # it goes on then, whatever was found
    judged: bool = False  # its victim has recovered: it stays paused until it is moved


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a trial has found about one victim and one suspect, both as objects."""

    harmful: bool
    rise_ratio: float
    paused_ratio: float  # of the victim, while the suspect was paused
    at_s: Time


@dataclass(frozen=True, slots=True)
class NeighboursMemory:
    """Trials by uid of the suspect, verdicts by both uids (core/planning/pairs.py, `pair_of_uids`)."""

    pairs: Mapping[str, PairRecord] = field(default_factory=dict)
    trials: Mapping[str, Trial] = field(default_factory=dict)
    verdicts: Mapping[str, Verdict] = field(default_factory=dict)
    innocent_s: Mapping[str, tuple[Time, ...]] = field(default_factory=dict)
    """By service: when pauses ended that found nothing, of the last day."""
    lapses_s: Mapping[str, Time] = field(default_factory=dict)
    """By uid of work that we asked to pause, and that does not go on yet: when it goes on by itself."""
