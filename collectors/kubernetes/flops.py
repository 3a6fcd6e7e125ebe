"""The operations that work reports: model FLOP/s, an annotation of its pods beside their heartbeat."""

from __future__ import annotations

from collections.abc import Iterable
from math import isfinite

from autopilot.contract.annotations import HEARTBEAT, HEARTBEAT_OLD_S, MODEL_FLOPS
from collectors.kubernetes.gangs import Gang, PodFacts, uid_of

MOST_FLOPS_S = 5e16
"""Of one GPU: far above the peak of any at any precision."""


def reported_flops(gangs: Iterable[Gang], now_s: float) -> dict[str, float]:
    """Model FLOP/s by uid of the gangs whose pods on GPUs all report them now; others are not in it."""
    found = {}
    for gang in gangs:
        rates = [_rate(each, now_s) for each in gang.pods.values() if each.holds and each.ask.gpus > 0]
        if rates and None not in rates:
            found[uid_of(gang)] = sum(each for each in rates if each is not None)
    return found


def _rate(facts: PodFacts, now_s: float) -> float | None:
    """The rate of one pod; None for none, an old one, and a text that is no such rate."""
    meta = facts.pod.metadata
    text = meta.note(MODEL_FLOPS)
    if not text:
        return None
    try:
        rate, beat_s = float(text), float(meta.note(HEARTBEAT) or "nan")
    except ValueError:
        return None
    good = isfinite(rate) and 0.0 <= rate <= MOST_FLOPS_S * facts.ask.gpus
    return rate if good and abs(now_s - beat_s) <= HEARTBEAT_OLD_S else None
