"""Replicas that a neighbour slows down: what is found of them, and what is taken for one.

Parts: `interference`, services with four replicas, 8 a seed (benchmarks/neighbour_days.py); `placebo`, latencies of a
real image service (`../shared/data/gentd26`), where arrivals are made up: nothing came, or from then on it is 1.5 times
as slow. A neighbour that comes in the first hour or the last 45 minutes of a day is not counted as missed.

A verdict is confirmed by a pause, by the rule and within the budgets of `isolate` (core/neighbours/): one suspect of a
victim is paused at a time, the likeliest first, while its victim is still slow. A confirmed suspect stays away. A
paused suspect that is innocent is counted.
"""

from __future__ import annotations

import math
import sys
from collections import Counter, defaultdict
from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy as np

from autopilot.core.neighbours.follow import FALLEN_RATIO, JUDGE_S, LEAST_S, MOST_S
from autopilot.core.neighbours.isolate import MOST_INNOCENT
from benchmarks.kit import FIGURE, data_folder, judged
from benchmarks.neighbour_days import DAY_MIN, EDGES_S, REPLICAS, Coming, Day, made
from collectors.slo.mean_log import mean_log
from models.interference_watch import Found, Watch

SERVICES = 8
FIRST_MIN, LAST_MIN = 60, DAY_MIN - 45
CLEAR, BUSY_RPS = math.log(1.4), 1.0
Key = tuple[int, str]


@dataclass(slots=True)
class Verdict:
    """A finding, and what the pause of its suspect showed."""

    found: Found
    paused_min: int = -1
    at_pause: float = math.nan
    confirmed: bool | None = None


def play(day: Day, seed: int) -> dict[Key, Verdict]:
    """Watch one day, with pauses of the suspects."""
    rng, watch = np.random.default_rng(seed + 10_000), Watch()
    rows = np.array([watch.add(int(each)) for each in day.service])
    comes, leaves, renews = (
        defaultdict[int, list[Coming]](list),
        defaultdict[int, list[Coming]](list),
        dict(day.renewals),
    )
    for each in day.comings:
        comes[each.minute].append(each)
        leaves[each.until].append(each)
    verdicts: dict[Key, Verdict] = {}
    for at in range(DAY_MIN):
        for each in comes[at]:
            watch.arrive(each.row, each.name, at)
        for each in leaves[at]:
            watch.leave(each.row, each.name, at)
        for row, minute in renews.items():
            if minute == at:
                watch.renew(row, at)
        paused = frozenset(key[1] for key, each in verdicts.items() if _paused(each))
        counts, requests = day.minute(at, rng, paused)
        watch.push(at, rows, mean_log(counts, EDGES_S), requests)
        watch.judge()
        for key, found in watch.open.items():
            verdicts.setdefault(key, Verdict(found))
        _confirm(verdicts, watch, at)
    return verdicts


def _paused(verdict: Verdict) -> bool:
    """It is tried, or was confirmed and is gone."""
    return verdict.paused_min >= 0 and verdict.confirmed is not False


def _confirm(verdicts: dict[Key, Verdict], watch: Watch, at: int) -> None:
    """End the pauses that show enough, and begin the next ones."""
    for key, each in verdicts.items():
        if each.paused_min >= 0 and each.confirmed is None:
            found, paused_s = watch.open.get(key), 60.0 * (at - each.paused_min)
            now = math.nan if found is None else found.now
            fell = each.at_pause - now >= FALLEN_RATIO * each.found.step.rise
            known = math.isfinite(now) and paused_s >= LEAST_S
            if known and (fell or paused_s >= JUDGE_S):
                each.confirmed = fell
            elif paused_s >= MOST_S:
                each.confirmed = False
    spent = Counter(int(watch.service[row]) for (row, _), each in verdicts.items() if each.confirmed is False)
    busy = {key[0] for key, each in verdicts.items() if each.paused_min >= 0 and each.confirmed is None}
    for key, found in sorted(watch.open.items(), key=lambda each: -each[1].confidence):
        verdict, slow = verdicts[key], not found.now < FALLEN_RATIO * found.step.rise
        allowed = key[0] not in busy and spent[int(watch.service[key[0]])] < MOST_INNOCENT
        if verdict.paused_min < 0 and slow and allowed:
            verdict.paused_min = at
            verdict.at_pause = found.now if math.isfinite(found.now) else found.step.rise
            busy.add(key[0])


def days(first: int, count: int) -> dict[str, float]:
    """Figures over the days of several seeds."""
    right = wrong = asked = hit = clear_asked = clear_hit = 0
    confirmed, innocent, waits = [0, 0], 0, list[int]()
    for seed in range(first, first + count):
        day = made(seed, SERVICES)
        truth, verdicts = day.truth(), play(day, seed)
        for key, each in truth.items():
            if each.rise and FIRST_MIN <= each.minute < LAST_MIN:
                clear = each.rise >= CLEAR and day.rps[each.row] >= BUSY_RPS
                asked, hit = asked + 1, hit + (key in verdicts)
                clear_asked, clear_hit = clear_asked + clear, clear_hit + (clear and key in verdicts)
        for key, verdict in verdicts.items():
            good, stopped = truth[key].rise > 0, verdict.paused_min >= 0
            right, wrong = right + good, wrong + (not good)
            confirmed[good] += bool(verdict.confirmed)
            innocent += stopped and not good
            if good and stopped:
                waits.append(verdict.paused_min - truth[key].minute)
        print(f"  seed {seed}: {len(verdicts)} verdicts", file=sys.stderr, flush=True)
    service_days = count * SERVICES
    return {
        "service_days": float(service_days),
        "precision": right / max(right + wrong, 1),
        "recall": hit / max(asked, 1),
        "recall_clear": clear_hit / max(clear_asked, 1),
        "false_per_day": wrong / service_days,
        "confirmed_precision": confirmed[1] / max(sum(confirmed), 1),
        "confirmed_false_per_day": confirmed[0] / service_days,
        "confirmed_of_right": confirmed[1] / max(right, 1),
        "innocent_pauses_per_day": innocent / service_days,
        "minutes_to_pause": float(median(waits)) if waits else math.nan,
    }


def interference(quick: bool) -> tuple[list[tuple[str, ...]], dict[str, Any]]:
    """Generated days: the figures of seeds 101 to 120."""
    found = days(101, 1 if quick else 20)
    lines: list[tuple[str, ...]] = [
        FIGURE,
        ("verdicts: precision", judged(found["precision"], 0.93, least=True, digits=3)),
        (
            "recall of 1.4 times and more, 1 request/s and more",
            judged(found["recall_clear"], 0.90, least=True, digits=3),
        ),
        ("recall of all", f"{found['recall']:.3f}"),
        ("false verdicts per service-day", judged(found["false_per_day"], 0.4)),
        ("confirmed: precision", judged(found["confirmed_precision"], 0.98, least=True, digits=3)),
        ("confirmed: false per service-day", judged(found["confirmed_false_per_day"], 0.05, digits=3)),
        ("confirmed of those that are right", f"{found['confirmed_of_right']:.3f}"),
        ("pauses of the innocent per service-day", judged(found["innocent_pauses_per_day"], 0.3)),
        ("minutes from arrival to first pause, median", judged(found["minutes_to_pause"], 20.0, digits=0)),
    ]
    return lines, found


RISE, PSEUDO = math.log(1.5), 24
"""The planted rise; made-up arrivals in a service-day of four pods."""
STEP_S = 57.0


def real_latencies() -> np.ndarray | None:
    """[pods, steps of 57 s]: log latency of the pods with enough of them; None without the data."""
    path = data_folder() / "gentd26" / "service_metrics.parquet"
    if not path.exists():
        return None
    import pandas as pd

    frame: Any = pd.read_parquet(path)
    frame = frame[(frame["metric"] == "e2e_latency_ms") & (frame["value"] > 0)].dropna(subset=["pod"])
    pods = [name for name, count in frame.groupby("pod").size().items() if count > 100]
    table = np.full((len(pods), int(frame["t_s"].max() / STEP_S) + 1), np.nan)
    rows = frame["pod"].map({name: place for place, name in enumerate(pods)})
    for row, at_s, value in zip(rows, frame["t_s"], frame["value"], strict=True):
        if not math.isnan(row):  # a pod with enough
            table[int(row), int(at_s / STEP_S)] = math.log(value / 1000.0)
    return table


def placebo(latencies: np.ndarray, rounds: int, rise: float) -> dict[str, float]:
    """Made-up arrivals at pods in services of four: how many are found, and how many abstained from."""
    found = abstained = asked = service_days = 0
    for seed in range(rounds):
        rng = np.random.default_rng(seed)
        level = latencies[rng.permutation(len(latencies))[: len(latencies) // REPLICAS * REPLICAS]].copy()
        watch = Watch()
        rows = np.array([watch.add(row // REPLICAS) for row in range(len(level))])
        each_pod = PSEUDO / REPLICAS * level.shape[1] / DAY_MIN
        comes = defaultdict[int, list[int]](list)
        for row in rows:
            for at in rng.integers(FIRST_MIN, level.shape[1] - 60, rng.poisson(each_pod)):
                comes[int(at)].append(int(row))
        unknown, seen, reasons = np.full(len(rows), np.nan), set[Key](), dict[Key, str]()
        for at in range(level.shape[1]):
            for row in comes[at]:
                watch.arrive(row, f"{row}-{at}", at)
                level[row, at : at + 60] += rise
            there = np.isfinite(level[:, at])
            watch.push(at, rows, level[:, at], np.where(there, unknown, 0.0))
            watch.judge()
            seen |= watch.open.keys()
            reasons |= {(each.row, each.suspect): each.reason for each in watch.waiting if each.reason}
        asked += sum(len(each) for each in comes.values())
        found, abstained = found + len(seen), abstained + len(reasons.keys() - seen)
        service_days += len(rows) / REPLICAS * level.shape[1] / DAY_MIN
    return {
        "found": found / asked,
        "found_of_judged": found / max(asked - abstained, 1),
        "abstained": abstained / asked,
        "per_service_day": found / service_days,
    }


def on_real_latencies(quick: bool) -> tuple[list[tuple[str, ...]], dict[str, Any]]:
    """Real latencies, with made-up arrivals."""
    latencies = real_latencies()
    if latencies is None:
        print(f"SKIPPED: placebo: {data_folder() / 'gentd26'} is absent")
        return [FIGURE], {}
    rounds = 1 if quick else 5
    none, planted = placebo(latencies, rounds, 0.0), placebo(latencies, rounds, RISE)
    lines: list[tuple[str, ...]] = [
        FIGURE,
        ("nobody came: verdicts per service-day", judged(none["per_service_day"], 0.2, digits=3)),
        ("rises of 1.5: found of those that are judged", judged(planted["found_of_judged"], 0.33, least=True)),
        ("rises of 1.5: abstained, with a reason", f"{planted['abstained']:.2f}"),
        ("rises of 1.5: found of all, also where no request came", f"{planted['found']:.2f}"),
    ]
    return lines, {"nobody": none, "planted": planted}
