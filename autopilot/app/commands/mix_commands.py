"""Implementation of `autopilot forecast --mix`: learn arrivals from a journal, and forecast those of the next hours."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from autopilot.app.commands.ask_commands import check_place
from autopilot.app.commands.json_out import STDOUT, write_json
from autopilot.app.commands.run_commands import out, print_rows, progress_bar
from autopilot.core.model.errors import InputError
from autopilot.core.model.forecast import ExpectedMix, kind_words, pool_words
from autopilot.core.model.records import Observation
from autopilot.core.model.snapshot import TOPOLOGY_NAMES, Names
from autopilot.core.model.units import counted, format_duration, parse_duration_s
from autopilot.records.journal import JournalReader
from autopilot.records.replay.again import Progress
from models.mix import HOUR_S, DemandMix, MixForecast, gang_sizes, size_kind

HOURS_AHEAD = 6
ANY = "any model"
SHARE = "share of a GPU"
LEVELS = (0.05, 0.5, 0.95)
"""The 0.9 interval and the median."""


@dataclass(slots=True)
class Arrivals:
    """Gangs in the order of their first appearance in a journal, without replicas of services: those are not
    submitted.
    """

    from_s: float = float("nan")
    to_s: float = float("nan")
    at_s: list[float] = field(default_factory=list)
    pool: list[str] = field(default_factory=list)
    kind: list[str] = field(default_factory=list)
    seen: set[str] = field(default_factory=set)
    expected: ExpectedMix | None = None  # the forecast of the latest decision

    def see(self, observation: Observation) -> None:
        """Take in one tick. Work present at the first tick was submitted before the journal began, unless it has a
        submit time.
        """
        if np.isnan(self.from_s):
            self.from_s = observation.now_s
        self.to_s = max(observation.now_s, self.from_s)
        self.expected = observation.forecasts.mix
        work, names = observation.snapshot.workloads, observation.snapshot.names
        for row in np.flatnonzero(work.service < 0).tolist():
            job = str(work.id[row])
            if job not in self.seen:
                self.seen.add(job)
                if float(work.submit_s[row]) >= self.from_s:
                    self.at_s.append(float(work.submit_s[row]))
                    self.pool.append(_pool(int(work.gpu_models[row]), names))
                    self.kind.append(
                        _kind(int(work.gpus[row]), int(work.gpu_milli[row]), int(work.mig_profile[row]), names)
                    )


def _pool(models: int, names: Names) -> str:
    """GPU models allowed to a gang, as one name."""
    allowed = [name for place, name in enumerate(names.gpu_models) if models >> place & 1]
    return " or ".join(allowed) if allowed and len(allowed) < len(names.gpu_models) else ANY


def _kind(gpus: int, gpu_milli: int, mig_profile: int, names: Names) -> str:
    """Size of a gang of whole GPUs, the profile of one on MIG instances, or a share."""
    if mig_profile >= 0:
        return names.profiles[mig_profile]
    if gpu_milli > 0:
        return SHARE
    size = gang_sizes()[int(size_kind(np.array([gpus], np.int32))[0])]
    return counted(size, "GPU")


def read_arrivals(path: Path, at_s: float | None, progress: Progress | None = None) -> Arrivals:
    """The arrivals in the journal at `path` up to `at_s`."""
    found = Arrivals()
    with JournalReader(path) as reader:
        total = len(reader)
        for done, record in enumerate(reader.ticks(), 1):
            if at_s is not None and record.observation.now_s > at_s and done > 1:
                break
            found.see(record.observation)
            if progress is not None:
                progress(done, total)
    return found


def foreseen_mix(arrivals: Arrivals, hours: int = HOURS_AHEAD) -> tuple[tuple[str, ...], list[MixForecast]]:
    """(pools, a forecast for each of the next `hours`). Raises `InputError` if the journal is too short."""
    if not arrivals.at_s or arrivals.to_s - arrivals.from_s < HOUR_S:
        raise InputError(
            f"the mix of demand: this journal shows {len(arrivals.at_s)} submissions in "
            f"{format_duration(max(arrivals.to_s - arrivals.from_s, 0.0))}; at least one submission and "
            "one hour are needed: name a longer run with --journal, or a later time with --at"
        )
    pools, kinds = tuple(sorted(set(arrivals.pool))), tuple(sorted(set(arrivals.kind), key=_size_order))
    mix = DemandMix(len(pools), kinds)
    # the journal starts here
    mix.learn(arrivals.from_s, np.empty(0), np.empty(0, np.int32), np.empty(0, np.int32))
    mix.learn(
        arrivals.to_s,
        np.array(arrivals.at_s),
        np.array([pools.index(each) for each in arrivals.pool], np.int32),
        np.array([kinds.index(each) for each in arrivals.kind], np.int32),
    )
    start_s = arrivals.to_s
    return pools, [
        mix.forecast(start_s + number * HOUR_S, start_s + (number + 1) * HOUR_S, LEVELS) for number in range(hours)
    ]


def _size_order(kind: str) -> tuple[int, str]:
    """Order: whole GPUs by size, then MIG instances and shares."""
    number = kind.split(maxsplit=1)[0]
    return (int(number), kind) if number.isdigit() else (1 << 20, kind)


def run_mix(path: Path, at: str | None, json_out: Path | None) -> None:
    """Print the expected arrivals in each of the next hours, by pool and kind of gang."""
    at_s = None if at is None else parse_duration_s(at, "--at")
    check_place(json_out, (path,))
    with progress_bar() as show:
        arrivals = read_arrivals(
            path, at_s, lambda done, total: show("reading", done, total, f"{done:,}/{total:,} ticks")
        )
    pools, hours = foreseen_mix(arrivals)
    if json_out is not None:
        write_json(
            json_out, mix_document(pools, hours, len(arrivals.at_s)) | {"decision": mix_values(arrivals.expected)}
        )
        if json_out == STDOUT:
            return
    watched = format_duration(arrivals.to_s - arrivals.from_s)
    out.print(
        f"expected arrivals, from {len(arrivals.at_s)} submissions in {watched}: gangs per hour, mean (0.9 "
        "interval), and share of all"
    )
    for place, pool in enumerate(pools):
        out.print(f"on {pool}:")
        print_rows(("hour", *hours[0].kinds), [_row(hour, place) for hour in hours], figures=True)
    out.print("an hour of the day without data is assumed to be average")
    _print_expected(arrivals.expected)
    if json_out is not None:
        out.print(f"result: {json_out}")


def _print_expected(mix: ExpectedMix | None) -> None:
    """The controller's forecast at that time."""
    if mix is None or mix.reason:
        out.print(f"the controller had no forecast of the mix: {mix.reason if mix else 'none was recorded'}")
        return
    out.print(
        f"the controller's forecast, made at {format_duration(mix.made_s)} from "
        f"{format_duration(mix.watched_h * HOUR_S)} of data: gangs submitted within, mean (quantile {mix.levels[-1]:g})"
    )
    print_rows(
        ("kind", "on", *(format_duration(horizon_s) for horizon_s in mix.horizons_s)),
        [
            [kind_words(kind), pool_words(kind)]
            + [f"{mean:.2g} ({most:.0f})" for mean, most in zip(means, counts[:, -1].tolist(), strict=True)]
            for kind, means, counts in zip(mix.kinds, mix.expected.tolist(), mix.counts, strict=True)
        ],
    )


def mix_values(mix: ExpectedMix | None) -> dict[str, Any] | None:
    """A forecast of the mix as JSON; None if none was recorded. Without rows, `reason` gives the cause."""
    if mix is None:
        return None
    return {
        "model": mix.model,
        "made_s": mix.made_s,
        "reason": mix.reason,
        "watched_h": mix.watched_h,
        "horizons_s": list(mix.horizons_s),
        "levels": list(mix.levels),
        "kinds": [
            {
                "gpu_models": list(kind.gpu_models),
                "gpus": kind.gpus,
                "gpus_per_member": kind.gpus_per_member,
                "gpu_milli": kind.gpu_milli,
                "profile": kind.profile,
                "topology": TOPOLOGY_NAMES[kind.topology],
                "expected": means.tolist(),
                "counts": counts.tolist(),
            }
            for kind, means, counts in zip(mix.kinds, mix.expected, mix.counts, strict=True)
        ],
    }


def _row(hour: MixForecast, pool: int) -> list[str]:
    cells = [
        f"{hour.expected[pool, kind]:.2g} ({hour.counts[pool, kind, 0]:.0f}-{hour.counts[pool, kind, -1]:.0f}), "
        f"{hour.shares[pool, kind]:.0%}"
        for kind in range(len(hour.kinds))
    ]
    return [format_duration(hour.from_s), *cells]


def mix_document(pools: Sequence[str], hours: Sequence[MixForecast], submissions: int) -> dict[str, Any]:
    """The same as JSON. `counts` and `share_bounds` are quantiles at `levels`."""
    return {
        "schema": "gpu-autopilot/mix/1",
        "submissions": submissions,
        "levels": list(LEVELS),
        "kinds": list(hours[0].kinds),
        "hours": [
            {
                "from_s": hour.from_s,
                "to_s": hour.to_s,
                "spread": hour.spread,
                "pools": {
                    pool: {
                        "expected": hour.expected[place].tolist(),
                        "counts": hour.counts[place].tolist(),
                        "shares": hour.shares[place].tolist(),
                        "share_bounds": hour.share_bounds[place].tolist(),
                    }
                    for place, pool in enumerate(pools)
                },
            }
            for hour in hours
        ],
    }
