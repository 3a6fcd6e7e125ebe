"""Input of a backtest, and its evidence for the gate besides its document.

`autopilot.app.backtests.from_requests.run(options, progress)` and `autopilot.app.backtests.from_jobs.run(options,
progress)` return the document of `--json` (a dict of plain values). They may call `progress(done, total, words)` at any
time. They fill in a given `options.evidence` for the gate and the registry.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autopilot.core.model.errors import InputError
from autopilot.core.model.units import parse_duration_s

if TYPE_CHECKING:
    from models.backtest import CaseLosses

BackProgress = Callable[[int, int, str], None]
"""Called with (done, total, progress as text)."""

TARGETS = ("value", "peak")
MAX_HORIZONS = 12


@dataclass(slots=True)
class GateEvidence:
    """Evidence of a backtest for the gate. The caller creates it empty (or with `champion`); `run` fills it in."""

    champion: Mapping[str, Any] | None = None
    """The content of the serving artifact. None: no version serves; leave the losses of a champion None."""

    champion_schema: tuple[str, ...] = ()
    """Names of the features in the champion's fit."""

    champion_problem: str = ""
    """Filled in by `run`: why the champion could not be scored on this data ("" when it was, or there is no
    champion).
    """

    cases: list[CaseLosses] = field(default_factory=list)
    """One entry for each (group, horizon): see `models.backtest.CaseLosses`."""

    artifact: dict[str, Any] | None = None
    """The artifact that a promotion would serve: a dict (keys are text or numbers) of plain values, lists, tuples,
    numpy arrays and fitted scikit-learn estimators, with its own name under `model`; no class of this project, no set,
    no bytes, no callable (the registry refuses types that are not on its list of trusted ones).
    """

    feature_schema: tuple[str, ...] = ()
    parameters: dict[str, Any] = field(default_factory=dict)
    """The parameters of the fit; plain values only."""

    data: dict[str, Any] = field(default_factory=dict)
    """Window of the training data, for the manifest: `from_s`, `to_s`, `rows`."""

    counted_work: int = 0
    """Rows x trees of all fits of this run, for the check of the time budget."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BurstsOptions:
    """One call of `backtest bursts`. Exactly one of `series` and `requests` is given."""

    series: Path | None = None
    requests: Path | None = None
    step_s: float | None = None  # with `requests`: the bin width; a series uses its median spacing
    horizons_s: tuple[float, ...] = (600.0, 1800.0, 3600.0)
    target: str = "value"  # value: y at t + h; peak: the maximum over (t, t + h]
    seed: int = 0
    evidence: GateEvidence | None = None

    def __post_init__(self) -> None:
        """Raise `InputError` naming the flag, its value and the allowed values."""
        if (self.series is None) == (self.requests is None):
            raise InputError("backtest bursts: name one file, with --series or with --requests")
        if self.requests is not None and self.step_s is None:
            raise InputError("--step: a request file needs a bin width; write for example --step 10s")
        if self.series is not None and self.step_s is not None:
            raise InputError("--step: a series has its own step (its median spacing); leave it out")
        if self.step_s is not None and not 0.0 < self.step_s < 86_400.0:
            raise InputError(f"--step: {self.step_s!r} s must be above 0 and below a day")
        if self.target not in TARGETS:
            raise InputError(f"--target: {self.target!r} is not one of {', '.join(TARGETS)}")
        if not self.horizons_s or len(self.horizons_s) > MAX_HORIZONS:
            raise InputError(f"--horizons: name 1 to {MAX_HORIZONS} horizons, for example 10m,30m,60m")
        if min(self.horizons_s) <= 0.0 or len(set(self.horizons_s)) < len(self.horizons_s):
            raise InputError("--horizons: each must be above 0 and listed once")
        _check_seed(self.seed)

    @property
    def path(self) -> Path:
        """The input file."""
        path = self.series or self.requests
        assert path is not None  # noqa: S101 - held by __post_init__
        return path


@dataclass(frozen=True, slots=True, kw_only=True)
class RuntimesOptions:
    """One call of `backtest runtimes`."""

    jobs: Path
    seed: int = 0
    evidence: GateEvidence | None = None

    def __post_init__(self) -> None:
        """Raise `InputError` naming the flag, its value and the allowed values."""
        _check_seed(self.seed)


def _check_seed(seed: int) -> None:
    if not 0 <= seed < 2**63:
        raise InputError(f"--seed: {seed!r} must be a whole number of 0 or more")


def parse_horizons_s(text: str) -> tuple[float, ...]:
    """`10m,30m,60m` as seconds. Raises `InputError` naming the part without a duration."""
    return tuple(parse_duration_s(part.strip(), "--horizons") for part in text.split(",") if part.strip())


def counted(by_reason: Mapping[str, int]) -> dict[str, int]:
    """The reasons with a count above 0."""
    return {reason: count for reason, count in by_reason.items() if count}
