"""Annotations and labels of pods for the bill of their work: reported model FLOP/s, and the owner's labels."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from math import isfinite

from autopilot.contract.annotations import HEARTBEAT, HEARTBEAT_OLD_S, MODEL_FLOPS
from collectors.kubernetes.gangs import Gang, PodFacts, uid_of

MOST_FLOPS_S = 5e16
"""Of one GPU: far above the peak of any at any precision."""


def reported_flops(gangs: Iterable[Gang], now_s: float) -> dict[str, float]:
    """Model FLOP/s by uid of gangs, if all their pods on GPUs report them now; others are absent."""
    found = {}
    for gang in gangs:
        rates = [_rate(each, now_s) for each in gang.pods.values() if each.holds and each.ask.gpus > 0]
        if rates and None not in rates:
            found[uid_of(gang)] = sum(each for each in rates if each is not None)
    return found


def _rate(facts: PodFacts, now_s: float) -> float | None:
    """The rate of one pod; None: absent, old, or no such rate."""
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


def owner_labels(gangs: Iterable[Gang], keys: Sequence[str]) -> dict[str, str]:
    """JSON object of the labels named `keys` by uid of each gang with one of them: those of its first pod.

    Pods with GPUs come first; work that started and ended since the last look has others alone.
    """
    found = {}
    for gang in gangs if keys else ():
        pods = sorted(
            ((not each.holds, each.pod.metadata.name, each.pod.metadata.labels or {}) for each in gang.pods.values()),
            key=lambda each: each[:2],
        )
        mine = {key: pods[0][2][key] for key in keys if pods and pods[0][2].get(key)}
        if mine:
            found[uid_of(gang)] = json.dumps(mine, sort_keys=True)
    return found
