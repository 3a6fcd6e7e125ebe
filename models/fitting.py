"""A fit of the burst models as a self-contained unit of work.

The controller's worker runs `fit_demand` beside the loop; in a simulation it runs at once and its result is visible a
fixed time later. It is a function of its arguments: the same history and seed give the same models on any machine.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from autopilot.core.model.snapshot import F64
from models.boosting import Boosting
from models.conformal import WINDOW
from models.demand import Ask, DemandModel, came_after, usual
from models.demand_models import fitted_further, models_for
from models.layer import Layer, replayed, states_spread
from models.proving import MOST_FORECASTS, Proof, Trial, proved
from models.selection import Choice, choose, composed

FIT_PART = 0.75
"""Fraction of the history that models are fitted to; the rest is for calibration and selection."""

LEAST_OUTCOMES = 15
"""Forecasts of each series and horizon for calibration and selection: with thousands of series a few of each are
enough, because they are judged together. Fewer than eight would not be judged at all (models/selection.py).
"""

RENEWALS = 50
"""Renewals of the margins during warm-up of the layer."""


@dataclass(frozen=True, slots=True)
class Fitted:
    """Models, the choice for each series and horizon, and a layer calibrated with their errors.

    `proof`: the verdict of the gate on a new global model, if one was fitted and tried. The global model in `models`
    is the new one if it passed, else the previous one; without one it abstains.
    """

    models: tuple[DemandModel, ...]
    choice: Choice
    layer: Layer
    steps: int
    counted_work: int
    root: F64  # of the usual demand of each series: the unit of the errors in the layer
    proof: Proof | None = None


def fit_demand(values: F64, ask: Ask, seed: int, trial: Trial | None = None) -> Fitted:
    """Fit on the first part of `values` [series, steps], choose and calibrate on the rest.

    With a `trial` a new global model is used only if the gate passes it.
    """
    steps = values.shape[1]
    until = int(FIT_PART * steps)
    models = models_for(seed)
    for model in models:
        model.fit(values, until, ask)
    work = sum(int(getattr(model, "counted_work", 0)) for model in models)
    proof = None
    if trial is not None:
        challenger = next(model for model in models if isinstance(model, Boosting))
        if work:
            proof = proved(values, until, ask, challenger, trial)
        if proof is None or not proof.verdict.passed:
            serving = trial.champion or Boosting(seed)
            models = tuple(serving if model is challenger else model for model in models)
    # two parameters per series cannot overfit: without boosting the fitted part is used for calibration too
    begin = until if work else steps // 4
    # outcomes come late: additional origins, as many as the longest horizon has steps
    origins = max(LEAST_OUTCOMES, MOST_FORECASTS // max(len(values), 1)) + ask.longest
    first = max(begin, steps - min(2 * WINDOW, origins))
    raw = {model.name: _foreseen(model, values, first, ask) for model in models}
    came = came_after(values, first, ask)
    root = np.sqrt(usual(values[:, :first]))
    choice = choose(raw, came, root, ask)
    if further := fitted_further(models, choice, values, until):
        raw |= {model.name: model.predict(values, first, ask) for model in further}
        choice = choose(raw, came, root, ask)
    chosen = composed(raw, choice)
    layer = Layer(ask.levels, len(values), ask.steps, stated=states_spread(chosen))
    replayed(layer, chosen, came, root, refresh=max(1, (steps - first) // RENEWALS))
    return Fitted(models, choice, layer, steps, work, root, proof)


def _foreseen(model: DemandModel, values: F64, first: int, ask: Ask) -> F64:
    """Forecasts of `model` at the origins from `first` on with known outcomes."""
    if isinstance(model, Boosting):
        return model.predict(values, first, ask, judged=True)
    return model.predict(values, first, ask)
