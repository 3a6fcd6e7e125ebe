"""The gate on the recent window, inside the fit that it judges.

The models that would be adopted are judged. They were fitted on the part before the window; in its first half the
choice between them is made, in its second challenger, champion and floor are compared, each under the same conformal
layer (models/backtest.py has the rules).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from autopilot.core.model.snapshot import F64
from models.backtest import FreshRng, GateRules, GateVerdict, judge
from models.backtest_bursts import calibrated, spoken_for
from models.boosting import Boosting
from models.demand import Ask, DemandModel, came_after, evenly_spread, usual
from models.demand_models import models_for
from models.evidence import burst_cases

MOST_FORECASTS = 100_000
"""Number of forecasts of each model in the comparison."""

MOST_RENEWALS = 400
"""Renewals of the margins in the window: of 1,200 minutes every third, where the loop renews them each minute. All
compared models have the same margins in this respect, and they move over hours.
"""

WINDOW_DAYS = 2
"""Maximum length of the window in days: one for the choice, and one full daily cycle for the verdict."""


@dataclass(frozen=True, slots=True)
class Trial:
    """The opponent of a newly fitted global model: the serving one, if any, over the series `names`."""

    names: tuple[str, ...]
    rng: FreshRng
    champion: Boosting | None = None
    rules: GateRules | None = None


@dataclass(frozen=True, slots=True)
class Proof:
    """A challenger, and the verdict on it."""

    challenger: Boosting
    verdict: GateVerdict


def proved(values: F64, until: int, ask: Ask, challenger: Boosting, trial: Trial) -> Proof:
    """The verdict on `challenger`, which was fitted on the columns of `values` [series, steps] before `until`.

    The champion is the forecast without it: the simple models, and the serving global one, if any. With many series an
    evenly spread part is used: every step of the window counts, because bursts are rare.
    """
    steps = values.shape[1]
    first = max(until, steps - WINDOW_DAYS * ask.day)
    rows = evenly_spread(len(values), max(1, MOST_FORECASTS // (steps - first)))
    part, names = values[rows], [trial.names[row] for row in rows.tolist()]
    raw = {model.name: model.predict(part, first, ask) for model in _simple(part, until, ask)}
    ours = raw | {Boosting.name: challenger.predict(part, first, ask)}
    came, root = came_after(part, first, ask), np.sqrt(usual(part[:, :first]))
    half = (steps - first) // 2
    floor = calibrated(next(iter(raw.values())), came, root, ask, MOST_RENEWALS)
    _, upper = spoken_for(ours, floor, came, half, root, ask, MOST_RENEWALS)
    theirs = raw
    if trial.champion is not None:
        theirs = raw | {Boosting.name: trial.champion.predict(part, first, ask)}
    _, before = spoken_for(theirs, floor, came, half, root, ask, MOST_RENEWALS)
    cases = burst_cases(
        names,
        (first + half) * ask.step_s,
        ask,
        came[:, half:],
        usual(part),
        upper[:, half:],
        floor[:, half:],
        before[:, half:],
    )
    verdict = judge(cases, challenger.counted_work, trial.rng(), trial.rules)
    return Proof(challenger, verdict)


def _simple(values: F64, until: int, ask: Ask) -> Sequence[DemandModel]:
    """The models that need no gate, the floor first, fitted to these series."""
    models = [model for model in models_for(0) if not isinstance(model, Boosting)]
    for model in models:
        model.fit(values, until, ask)
    return models
