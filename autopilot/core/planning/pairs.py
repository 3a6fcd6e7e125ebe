"""Pairs of kinds of work that were found to disturb each other: how probable harm is, and which pairs are kept apart.

A pair is a kind of victim beside a kind of neighbour, on one model of GPU, under one mechanism: how software shares the
GPU, or what else they have in common. A kind has its image in it, so another image begins anew. The probability of harm
is the mean of a Beta distribution: what confirmations have found, halved every 14 days, on a prior of one count by the
rule of shared GPUs.
"""

from __future__ import annotations

from math import isnan

from autopilot.core.model.memory.neighbours import NeighboursMemory, PairRecord
from autopilot.core.model.policy.bounds import DAY_S

HALF_LIFE_S = 14 * DAY_S
LEAST_CONFIRMED = 2
"""Confirmations before a pair is kept apart: one may be chance."""
APART_RATIO = 0.5
"""A pair whose probability of harm is above this is kept apart."""
UNKNOWN_PRIOR = 0.25
"""Part of arrivals that do harm where no rule says anything (study of sharing, section 5)."""
_KEY = "\t"


def pair_key(victim: str, neighbour: str, mechanism: str, gpu_model: str) -> str:
    """The key of a pair of kinds (core/model/kinds.py) in the memory."""
    return _KEY.join(part.replace(_KEY, " ") for part in (victim, neighbour, mechanism, gpu_model))


def uid_pair(victim_uid: str, suspect_uid: str) -> str:
    """The key of two objects in the memory."""
    return f"{victim_uid}{_KEY}{suspect_uid}"


def kept_part(record: PairRecord, now_s: float) -> float:
    """The part of its counts that is not forgotten yet."""
    return float(0.5 ** (max(now_s - record.at_s, 0.0) / HALF_LIFE_S))


def with_result(record: PairRecord | None, now_s: float, *, harmful: bool) -> PairRecord:
    """The record of a pair with one confirmation more."""
    record = record or PairRecord(0.0, 0.0, 0, now_s)
    part = kept_part(record, now_s)
    return PairRecord(
        round(record.harmful * part + harmful, 6),
        round(record.harmless * part + (not harmful), 6),
        record.confirmed + harmful,
        now_s,
    )


def harm_ratio(record: PairRecord, rate_by_rule: float, now_s: float) -> float:
    """The probability that the victim is harmed. `rate_by_rule`: its predicted rate; NaN: unknown."""
    prior = UNKNOWN_PRIOR if isnan(rate_by_rule) else min(max(1.0 - rate_by_rule, 0.0), 1.0)
    part = kept_part(record, now_s)
    return (prior + record.harmful * part) / (1.0 + (record.harmful + record.harmless) * part)


def kept_apart(memory: NeighboursMemory, key: str, rate_by_rule: float, now_s: float) -> float | None:
    """The probability of harm of a pair that is kept apart; None for every other."""
    record = memory.pairs.get(key)
    if record is None or record.confirmed < LEAST_CONFIRMED:
        return None
    harm = harm_ratio(record, rate_by_rule, now_s)
    return harm if harm > APART_RATIO else None
