"""The input of the gate: losses and coverage by origin, of challenger, floor and champion.

Used by a backtest of a file and by a fit in the running controller.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from autopilot.core.model.forecast import LEVELS as RUNTIME_LEVELS
from autopilot.core.model.snapshot import F64
from autopilot.core.model.units import format_duration
from models.backtest import EVERYONE, CaseLosses, Scores
from models.demand import Ask
from models.selection import pinball

MOST_GROUPS = 12
GATED_LEVELS = (0.9, 0.99)


def burst_cases(
    names: Sequence[str],
    first_s: float,
    ask: Ask,
    came: F64,
    mean: F64,
    challenger: F64,
    floor: F64,
    champion: F64 | None,
) -> list[CaseLosses]:
    """A case for each horizon and group of services.

    `came` [series, origins, horizons] are the outcomes, the forecasts are [series, origins, horizons, levels], the
    first origin is at `first_s`, and losses are divided by the `mean` [series] demand.
    """
    times_s = first_s + np.arange(came.shape[1]) * ask.step_s
    cases = []
    for place, steps in enumerate(ask.steps):
        horizon_s = steps * ask.step_s
        judged = ~np.isnan(came[:, :, place]) & ~np.isnan(challenger[:, :, place]).any(axis=2)
        for other in (floor, *([] if champion is None else [champion])):
            judged &= ~np.isnan(other[:, :, place]).any(axis=2)  # all models are compared on the same origins
        for group, rows in groups_of(names).items():
            one, low, high = (
                None if upper is None else _burst_scores(came, mean, upper, judged, rows, place, ask)
                for upper in (challenger, floor, champion)
            )
            assert one is not None  # noqa: S101 - only a champion may be missing
            assert low is not None  # noqa: S101 - as above
            cases.append(
                CaseLosses(
                    f"bursts {format_duration(horizon_s)}",
                    group,
                    np.repeat(times_s, len(rows)),
                    horizon_s,
                    one,
                    low,
                    high,
                )
            )
    return cases


def groups_of(names: Sequence[str]) -> dict[str, NDArray[np.int64]]:
    """Rows by the part of the name before `#` (class#service); one group if this gives none."""
    stems = [name.split("#")[0] for name in names]
    if not 1 < len(set(stems)) <= MOST_GROUPS:
        return {EVERYONE: np.arange(len(names))}
    return {stem: np.array([at for at, own in enumerate(stems) if own == stem]) for stem in dict.fromkeys(stems)}


def _burst_scores(
    came: F64, mean: F64, upper: F64, judged: NDArray[np.bool_], rows: NDArray[np.int64], place: int, ask: Ask
) -> Scores:
    """Losses and coverage of one horizon, NaN (and not covered) without an outcome or if any model abstains."""
    losses: dict[str, F64] = {}
    covered: dict[float, NDArray[np.bool_]] = {}
    for level in GATED_LEVELS:
        error = came[rows, :, place] - upper[rows, :, place, ask.levels.index(level)]
        error = np.where(judged[rows], error, np.nan)
        losses[f"pinball_p{level * 100:g}"] = (pinball(error, level) / mean[rows, None]).T.ravel()
        covered[level] = np.asarray((error <= 0.0).T.ravel())
    return Scores(losses, covered)


def runtime_cases(
    tenants: NDArray[np.object_], made_s: F64, log_s: F64, challenger: F64, floor: F64, champion: F64 | None
) -> list[CaseLosses]:
    """A case for each tenant: quantiles of the log run time [jobs, levels] forecast at `made_s` [jobs], against
    `log_s`.

    Outcomes of neighbours overlap for the duration of a typical job.
    """
    typical_s = float(np.median(np.exp(log_s))) if len(log_s) else 0.0
    cases = []
    for tenant in sorted(set(tenants.tolist())):
        mine = np.flatnonzero(tenants == tenant)
        cases.append(
            CaseLosses(
                "run time",
                str(tenant),
                made_s[mine],
                typical_s,
                _runtime_scores(challenger[mine], log_s[mine]),
                _runtime_scores(floor[mine], log_s[mine]),
                None if champion is None else _runtime_scores(champion[mine], log_s[mine]),
            )
        )
    return cases


def _runtime_scores(quantile: F64, log_s: F64) -> Scores:
    """Pinball losses in logs and coverage, by origin."""
    error = log_s - quantile[:, RUNTIME_LEVELS.index(0.9)]
    return Scores({"pinball_p90": pinball(error, 0.9)}, {0.9: error <= 0.0})
