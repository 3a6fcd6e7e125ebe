"""Options of a simulation, validated before anything starts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from autopilot.core.model.errors import InputError, nearest
from autopilot.core.model.units import format_duration

DURATIONS = ("exact", "hazard", "last-two", "predicted")
LIMITS = ("file", "declared", "none")
PHYSICS = ("ideal", "charged", "real")
TELEMETRY = ("auto", "full", "windowed", "off")
BASELINE_NAMES = ("fifo", "fifo-skip", "sjf", "sjf-skip", "gpu-time-skip", "las", "easy", "static", "kueue", "slurm")
"""The keys of `simulator.baselines.BASELINES`, repeated here: help need not import them."""
ENGINE_NAMES = ("kueue",)
"""Baselines fit to run the cluster beside an autopilot that only recommends."""
POLICY_NAMES = ("autopilot", "approve")
"""The shipped policies that act in a simulation, the default first; repeated here for the same reason."""
SHIPPED_NAMES = ("observe", "recommend", "approve", "autopilot")
"""All shipped policies, from the one that does least."""
SCENARIO_NAMES = (
    "burst",
    "burst-full",
    "bursts",
    "crowded",
    "demo",
    "demo-shared",
    "faulty",
    "flood",
    "fragmented",
    "gang-deadlock",
    "hoarders",
    "hoarders-busy",
    "liar",
    "mig-churn",
    "mig-nodes",
    "mixed",
    "night-rest",
    "no-checkpoint",
    "noisy",
    "notebooks",
    "on-call",
    "pools",
    "quickstart",
    "reclaim-storm",
    "spot-cascade",
    "stragglers",
    "underdriven",
)
"""The files of `simulator/scenarios`, repeated here for the same reason."""
ADVICE_S = 30.0
"""Time between two decisions beside an engine: one per scrape of the simulated exporters."""
LEAST_ADVICE_S, MOST_ADVICE_S = 1.0, 3600.0
FULL_TELEMETRY_S = 86_400.0
"""Longest run for rendering and parsing every scrape under `auto`."""


def past_end(at_s: float, end_s: float) -> str:
    """The message for a moment after the end of a run."""
    at, end = format_duration(at_s), format_duration(end_s)
    if at == end:
        at, end = f"{at_s:g} s", f"{end_s:g} s"
    return f"--at: {at} is after the end of the run ({end})"


def check_slurm(site: Path | None, policies: Sequence[str]) -> None:
    """Raise `InputError` for the files of a site without a policy that reads them."""
    if site is not None and "slurm" not in policies:
        raise InputError("--slurm: settings of the baseline slurm, which does not run; add it to --policy")


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulateOptions:
    """One call of `simulate`. None: taken from the scenario, else the default."""

    scenario: str | None = None
    jobs: Path | None = None
    requests: Path | None = None
    cluster: str | None = None
    changes: tuple[str, ...] = ()  # of the cluster, as `queue.NAME.guarantee=32` (app/runs/changes.py)
    defaults: Path | None = None
    columns: str | None = None
    timezone: str = ""  # of the dates of an accounting; empty: UTC
    partitions: str | None = None  # pools or GPU models of its partitions
    shards_per_gpu: int | None = None
    policies: tuple[str, ...] = ()
    policy_set: tuple[str, ...] = ()  # `FIELD=VALUE`, on top of each policy of the autopilot
    seed: int | None = None
    tenants: tuple[str, ...] = ()
    physics: str | None = None
    durations: str | None = None
    limits: str = "file"
    jitter_ratio: float = 0.0
    telemetry: str | None = None
    rate_scale: float = 1.0
    engine: str | None = None  # the baseline in charge, beside which the policies only recommend; None: no engine
    interval_s: float = ADVICE_S  # between two decisions beside an engine
    slurm: Path | None = None  # folder with the files of a site of Slurm, for the baseline
    journal: Path | None = None
    registry: Path | None = None
    series: bool = True  # collect the data of plots

    def __post_init__(self) -> None:
        """Raise `InputError` naming the flag, its value and the allowed values."""
        for flag, value, allowed in (
            ("--durations", self.durations or DURATIONS[0], DURATIONS),
            ("--limits", self.limits, LIMITS),
            ("--telemetry", self.telemetry or "auto", TELEMETRY),
            ("--physics", self.physics or PHYSICS[0], PHYSICS),
            ("--engine", self.engine or ENGINE_NAMES[0], ENGINE_NAMES),
        ):
            if value not in allowed:
                near = nearest(value, allowed)
                raise InputError(f"{flag}: {value!r} is not one of {', '.join(allowed)}{near and '; ' + near}")
        if not 0.0 <= self.jitter_ratio < 1.0:
            raise InputError(f"--jitter: {self.jitter_ratio!r} must be 0 or more and below 1")
        if not 0.0 < self.rate_scale <= 1.0:
            raise InputError(f"--rate-scale: {self.rate_scale!r} must be above 0 and at most 1")
        if not LEAST_ADVICE_S <= self.interval_s <= MOST_ADVICE_S:
            raise InputError(
                f"--interval: {self.interval_s:g} s is not allowed; write {LEAST_ADVICE_S:g} s to {MOST_ADVICE_S:g} s"
            )
        if self.engine is None and self.interval_s != ADVICE_S:
            raise InputError("--interval: applies beside an engine only; add --engine kueue, or leave it out")
        if self.seed is not None and not 0 <= self.seed < 2**63:
            raise InputError(f"--seed: {self.seed!r} must be a whole number of 0 or more")
        if (self.jobs or self.requests) and self.cluster is None and self.scenario is None:
            raise InputError("--cluster: a trace needs a cluster to run on; write for example --cluster 7x8")
        if self.columns and not (self.jobs or self.requests):
            raise InputError("--columns: applies to a job or request file; name one with --jobs or --requests")
        for flag, given in (
            ("--tenant", self.tenants),
            ("--defaults", self.defaults),
            ("--timezone", self.timezone),
            ("--partitions", self.partitions),
            ("--shards-per-gpu", self.shards_per_gpu),
        ):
            if given and self.jobs is None:
                raise InputError(f"{flag}: applies to a job file; name one with --jobs")
        if self.policies:
            check_slurm(self.slurm, self.policies)
        if self.rate_scale < 1.0 and self.jobs and self.requests is None and self.scenario is None:
            raise InputError("--rate-scale: thins requests, and there are none; name them with --requests")

    def files(self) -> tuple[tuple[str, Path], ...]:
        """(flag, path) of every input file of the call."""
        paths = (
            ("--jobs", self.jobs),
            ("--requests", self.requests),
            ("--defaults", self.defaults),
            ("--cluster", self.cluster),
            ("--scenario", self.scenario),
            *(("--policy", policy) for policy in self.policies),
        )
        return tuple((flag, Path(path)) for flag, path in paths if path and Path(path).is_file())
