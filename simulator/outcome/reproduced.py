"""The agreement of a policy with the starts of a job file: the check before any what-if is believed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from itertools import pairwise
from math import inf
from typing import Any

import numpy as np
import numpy.typing as npt

from autopilot.core.model.units import counted, format_duration, format_ratio
from simulator.outcome.differences import Differences
from simulator.outcome.recorded import Recorded
from simulator.traces.job_trace import Floats, Texts

TOLERANCE_RATIO = 0.1
LEAST_S, MOST_S, OF_RUN_TIME = 3.0, 120.0, 0.05
"""A start is reproduced where it is off by at most a tenth of the recorded wait, or by a twentieth of the median run
time (3 s to 2 min) where that is longer.
"""
BELIEVED = (0.8, 0.25)
"""Least share of starts reproduced, and most relative error of the mean wait, with which a what-if is believed."""
LARGE_ONLY = (0.5, 0.5)
"""The same, with which large differences are believed."""
LEAST_WAITED = 10
"""Jobs that waited, recorded or simulated, without which nothing is said of a what-if."""
MOST_GROUPS = 10
"""Partitions with rows of their own: those with the most jobs."""
DAY_S, HOUR_S = 86_400.0, 3600.0

Stay = tuple[float, float, float]
"""From, to and GPUs of one stay on GPUs."""


def tolerance_s(recorded: Recorded) -> float:
    """The least tolerance: a part of the median run time, in whole seconds."""
    ran_s = (recorded.end_s - recorded.start_s)[recorded.known & np.isfinite(recorded.end_s)]
    middle_s = float(np.median(ran_s)) if len(ran_s) else inf
    return round(min(max(OF_RUN_TIME * middle_s, LEAST_S), MOST_S))


def reproduced(recorded: Recorded, start_s: Floats, stays: Sequence[Stay] | None = None) -> dict[str, Any]:
    """The distance of simulated starts from the recorded ones. `start_s`: NaN for a job that never started."""
    rows = np.flatnonzero(recorded.known)
    wait_s = (recorded.start_s - recorded.submit_s)[rows]
    got_s = (start_s - recorded.submit_s)[rows]
    error_s = np.where(np.isnan(got_s), inf, np.abs(got_s - wait_s))
    least_s = tolerance_s(recorded)
    near = error_s <= np.maximum(least_s, TOLERANCE_RATIO * wait_s)
    waited = (wait_s > least_s) | (got_s > least_s)
    differences = Differences(recorded)
    widths = _width_classes(recorded.gpus[rows], recorded.node_gpus)
    groups = {"width": (widths[0], widths[1])} | _partitions(recorded, rows)
    return {
        **_block(wait_s, got_s, error_s, near),
        "waited": {"jobs": int(waited.sum()), "within_tolerance_ratio": _mean(near[waited])},
        "never_started": int(np.isnan(got_s).sum()),
        "by": {
            kind: {
                name: _block(*(each[names == name] for each in (wait_s, got_s, error_s, near)))
                for name in ordered
                if (names == name).any()
            }
            for kind, (names, ordered) in groups.items()
        },
        "busy_by_day": None if stays is None else _busy(recorded, stays),
        "causes": differences.causes(rows[~near], start_s),
    }


def _block(wait_s: Floats, got_s: Floats, error_s: Floats, near: npt.NDArray[np.bool_]) -> dict[str, Any]:
    """The figures of some jobs; a never started job counts in the share and in no wait."""
    finite = np.sort(error_s[np.isfinite(error_s)])
    there = np.isfinite(got_s)
    return {
        "jobs": len(wait_s),
        "within_tolerance_ratio": _mean(near),
        "wait_error_s_p50": float(np.quantile(finite, 0.5)) if len(finite) else None,
        "wait_error_s_p90": float(np.quantile(finite, 0.9)) if len(finite) else None,
        "wait_s_mean_recorded": _mean(wait_s[there]),
        "wait_s_mean": _mean(got_s[there]),
    }


def _mean(values: npt.NDArray[Any]) -> float | None:
    return float(values.mean()) if len(values) else None


def _width_classes(gpus: Floats, node: int) -> tuple[Texts, list[str]]:
    """The class of each width: one GPU or less, part of a node, a node, more than one."""
    part = f"2 to {node - 1} GPUs" if node > 3 else "2 GPUs"
    names = ["1 GPU or less", part, f"{node} GPUs", f"more than {node} GPUs"]
    place = np.where(gpus <= 1, 0, np.where(gpus < node, 1, np.where(gpus == node, 2, 3)))
    return np.array(names, object)[place], names


def _partitions(recorded: Recorded, rows: npt.NDArray[np.intp]) -> dict[str, tuple[Texts, list[str]]]:
    mine = recorded.groups["partition"][rows]
    names, counts = np.unique(mine.astype(str), return_counts=True)
    ordered = [str(names[k]) for k in np.argsort(-counts, kind="stable") if names[k]][:MOST_GROUPS]
    return {"partition": (mine, ordered)} if len(ordered) > 1 else {}


def _busy(recorded: Recorded, stays: Sequence[Stay]) -> list[dict[str, Any]]:
    """GPU-hours held on each day, recorded and simulated; days are of UTC if the file has dates."""
    theirs = recorded.held()[:, 1:]
    ours = np.array(stays, float).reshape(-1, 3)
    offset_s = recorded.first_s % DAY_S if np.isfinite(recorded.first_s) else 0.0
    last_s = max(theirs[:, 1].max(initial=0.0), ours[:, 1].max(initial=0.0))
    edges = np.arange(0.0, last_s + offset_s + DAY_S, DAY_S) - offset_s
    held = [[_held(each, a, b) for a, b in pairwise(edges.tolist())] for each in (theirs, ours)]
    return [
        {"day": _day(recorded, day), "recorded_gpu_h": a, "gpu_h": b}
        for day, (a, b) in enumerate(zip(*held, strict=True))
        if a or b
    ]


def _day(recorded: Recorded, day: int) -> str:
    """The date of a day, or its number from 1."""
    if not np.isfinite(recorded.first_s):
        return f"day {day + 1}"
    return f"{datetime.fromtimestamp(recorded.first_s + day * DAY_S, UTC):%Y-%m-%d}"


def _held(stays: npt.NDArray[np.float64], from_s: float, to_s: float) -> float:
    inside = np.minimum(stays[:, 1], to_s) - np.maximum(stays[:, 0], from_s)
    return float((np.maximum(inside, 0.0) * stays[:, 2]).sum() / HOUR_S)


def reproduction(by_policy: Mapping[str, Mapping[str, Any]], recorded: Recorded) -> dict[str, Any]:
    """The report over several policies: the closest one, and the belief in a what-if, in one sentence."""
    closest = max(by_policy, key=lambda name: _closeness(by_policy[name]))
    mine = by_policy[closest]
    least_s = tolerance_s(recorded)
    belief, why = _belief(mine, least_s)
    tolerance = f"the longer of {format_duration(least_s)} and a tenth of the recorded wait"
    words = (
        f"closest to the recorded starts is {closest}: {format_ratio(mine['within_tolerance_ratio'])} of "
        f"{counted(mine['jobs'], 'start')} within {tolerance}; {why}"
    )
    if mine["causes"]:
        words += f". The largest cause of difference seems to be {mine['causes'][0]['words']}"
    return {
        "tolerance_s": least_s,
        "tolerance_ratio": TOLERANCE_RATIO,
        "closest": closest,
        "believed": belief,
        "words": words,
        "policies": dict(by_policy),
    }


def _closeness(block: Mapping[str, Any]) -> tuple[float, float]:
    """More is closer: first the share of starts, then the error of the mean wait."""
    return (block["within_tolerance_ratio"] or 0.0, -_off_s(block))


def _off_s(block: Mapping[str, Any]) -> float:
    ours, theirs = block["wait_s_mean"], block["wait_s_mean_recorded"]
    return inf if ours is None or theirs is None else abs(ours - theirs)


def _belief(block: Mapping[str, Any], least_s: float) -> tuple[str, str]:
    """`yes`, `large` (differences only), `no` or `unknown`, and the words."""
    waited = block["waited"]["jobs"]
    if waited < LEAST_WAITED:
        return "unknown", f"{counted(waited, 'job')} waited, too few to judge a what-if by"
    off_s, ratio = _off_s(block), block["within_tolerance_ratio"] or 0.0
    theirs = block["wait_s_mean_recorded"] or 0.0
    waits = (
        f"the mean wait is {format_duration(block['wait_s_mean'])} and was "
        f"{format_duration(block['wait_s_mean_recorded'])}"
    )

    def good(bounds: tuple[float, float]) -> bool:
        return ratio >= bounds[0] and off_s <= max(bounds[1] * theirs, least_s)

    if good(BELIEVED):
        return "yes", f"{waits}, so a what-if can be believed where it changes that by more than {_at_least(off_s)}"
    if good(LARGE_ONLY):
        return "large", f"{waits}, so believe only a what-if that changes that by much more than {_at_least(off_s)}"
    return "no", f"{waits}, so no what-if on this file can be believed yet"


def _at_least(off_s: float) -> str:
    return format_duration(max(off_s, 1.0))
