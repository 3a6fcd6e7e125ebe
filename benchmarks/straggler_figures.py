"""What models/stragglers.py finds on generated days, and the GPU-hours saved by moving gangs away where that pays."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from autopilot.core.model.neighbours import Straggler
from autopilot.core.stragglers.price import worth_gpu_s
from benchmarks.kit import judged
from benchmarks.straggler_days import LEAST_SLOW, MINUTES, Day, Slow, day_of
from models.stragglers import SURE, Stragglers

REPORTED = range(101, 121)
GANGS, SLOW_SHARE, HEALTHY_GANGS = 80, 0.3, 50
"""Of a day with slow ranks, their part in it, and of a day without any."""
LATE = 15
"""Minutes after the end of a slow rank in which its verdict still counts: the window of the detector."""
RESTART_S, LOST_S = 180.0, 300.0
"""Of a move: without progress, and half a checkpoint interval of ten minutes [assumed]."""
MARGIN = 1.2
"""Gain over price, as the guard `hysteresis` asks."""
GOAL_PRECISION, GOAL_RECALL = 0.95, 0.80


@dataclass(slots=True)
class Score:
    """The counts of one seed."""

    verdicts: int = 0
    right: int = 0
    slow: int = 0
    found: int = 0
    reported: int = 0  # slow ranks whose program reports the time of a step
    reported_found: int = 0
    named_gpu: int = 0  # right verdicts that name the GPU, which must be right too
    moves: int = 0
    saved_gpu_h: float = 0.0
    lost_gpu_h: float = 0.0  # doing nothing
    late_min: list[float] = field(default_factory=list)


def watched(day: Day) -> Iterable[tuple[int, tuple[Straggler, ...]]]:
    """The open verdicts of each minute."""
    model = Stragglers()
    for minute in range(MINUTES):
        members = day.at(minute)
        if members is not None:
            model.take(60.0 * minute, members)
            yield minute, model.verdicts()


def score(seed: int) -> Score:
    """One day with slow ranks."""
    day, found = day_of(seed, GANGS, SLOW_SHARE), Score()
    rng = np.random.default_rng([seed, 7])
    truth = {(each.uid, each.node): each for each in day.slow}
    ends = {str(each.members.gangs.uid[0]): each.end for each in day.gangs}
    sizes = {str(each.members.gangs.uid[0]): int(each.members.gangs.gpus[0]) for each in day.gangs}
    guess = {uid: float(np.exp(rng.normal(0.0, 0.5))) for uid in ends}  # error of the predicted run time
    seen, moved = set[tuple[str, str]](), set[str]()
    for minute, verdicts in watched(day):
        for each in verdicts:
            if each.gang_uid in moved:
                continue
            key = (each.gang_uid, each.node)
            slow = truth.get(key)
            right = slow is not None and slow.begin <= minute <= slow.end + LATE and each.gpu in ("", slow.gpu)
            if key not in seen:
                seen.add(key)
                found.verdicts += 1
                found.right += right
                found.named_gpu += right and bool(each.gpu)
                if right and slow is not None:
                    found.late_min.append(minute - slow.begin)
            left_s = 60.0 * (ends[each.gang_uid] - minute) * guess[each.gang_uid]
            worth = worth_gpu_s(each.cost_gpu_s_per_h, each.confidence, 60.0 * minute - each.since_s, left_s)
            price = sizes[each.gang_uid] * (RESTART_S + LOST_S)
            if each.confidence >= SURE and worth > MARGIN * price:
                moved.add(each.gang_uid)
                found.moves += 1
                found.saved_gpu_h += (_kept_gpu_s(slow, minute) - price) / 3600.0
    for key, slow in truth.items():
        found.slow += 1
        found.found += key in seen
        found.reported += slow.reported
        found.reported_found += slow.reported and key in seen
        found.lost_gpu_h += _kept_gpu_s(slow, slow.begin) / 3600.0
    return found


def _kept_gpu_s(slow: Slow | None, minute: int) -> float:
    """What is not lost if the gang is elsewhere from this minute on."""
    return 0.0 if slow is None else slow.gpus * slow.lost_ratio * 60.0 * max(slow.end - max(minute, slow.begin), 0)


def healthy(seed: int) -> tuple[float, int]:
    """Gang-days without a slow rank, and the verdicts in them."""
    day, seen = day_of(seed, HEALTHY_GANGS, 0.0), set[str]()
    for _, verdicts in watched(day):
        seen |= {each.gang_uid for each in verdicts}
    return sum(each.end - each.begin for each in day.gangs) / MINUTES, len(seen)


def measure(quick: bool) -> tuple[list[tuple[str, ...]], dict[str, Any]]:
    """The table, and its figures."""
    seeds = list(REPORTED)[:2] if quick else list(REPORTED)
    scores = [score(seed) for seed in seeds]

    def total(name: str) -> int:
        return int(sum(getattr(each, name) for each in scores))

    days, verdicts, seed = 0.0, 0, 1000
    while days < (50.0 if quick else 1000.0):
        more = healthy(seed)
        days, verdicts, seed = days + more[0], verdicts + more[1], seed + 1
    precision, recall = total("right") / max(total("verdicts"), 1), total("found") / max(total("slow"), 1)
    saved = [each.saved_gpu_h for each in scores]
    late = float(np.median([minutes for each in scores for minutes in each.late_min]))
    figures: dict[str, Any] = {
        "seeds": seeds,
        "precision": precision,
        "recall": recall,
        "recall_with_steps": total("reported_found") / max(total("reported"), 1),
        "recall_without": (total("found") - total("reported_found")) / max(total("slow") - total("reported"), 1),
        "gpu_named": total("named_gpu") / max(total("right"), 1),
        "healthy_gang_days": days,
        "healthy_verdicts": verdicts,
        "minutes_to_verdict": late,
        "saved_gpu_h": saved,
        "saved_ratio": sum(saved) / sum(each.lost_gpu_h for each in scores),
        "moves": total("moves"),
    }
    lines: list[tuple[str, ...]] = [
        ("figure", "measured"),
        ("precision", judged(precision, GOAL_PRECISION, least=True, digits=3)),
        (
            f"recall, slow by 1.1 and more for {LEAST_SLOW} min",
            judged(recall, GOAL_RECALL, least=True, digits=3),
        ),
        ("recall where the program reports the time of a step", f"{figures['recall_with_steps']:.3f}"),
        ("recall elsewhere", f"{figures['recall_without']:.3f}"),
        ("right verdicts that name the GPU", f"{figures['gpu_named']:.3f}"),
        (f"verdicts in {days:,.0f} healthy gang-days", judged(verdicts, 0, digits=0)),
        ("from its begin to the verdict, median, min", f"{late:.0f}"),
        ("GPU-h saved over doing nothing, least of the seeds", judged(min(saved), 0.0, least=True, digits=1)),
        ("GPU-h saved over doing nothing, median of the seeds", f"{np.median(saved):.1f}"),
        ("part of the lost GPU-hours that is saved", f"{figures['saved_ratio']:.3f}"),
    ]
    return lines, figures
