"""The models of demand, the floor first."""

from __future__ import annotations

from collections.abc import Sequence

from autopilot.core.model.snapshot import F64
from models.baselines import Ewma, LastValue, Profile
from models.boosting import Boosting
from models.demand import DemandModel
from models.idle import IdleTimes
from models.selection import Choice
from models.statistical import Ets


def models_for(seed: int) -> tuple[DemandModel, ...]:
    """All of them, not fitted."""
    return (LastValue(), Ewma(), Profile(), IdleTimes(), Ets(), Boosting(seed))


def fitted_further(models: Sequence[DemandModel], choice: Choice, values: F64, until: int) -> Sequence[DemandModel]:
    """Those of `models` tried on a few series, chosen there, and now fitted to more: they need new forecasts."""
    return [
        model
        for model in models
        if isinstance(model, Ets)
        and model.fit_others(values, until, (choice.chosen == choice.names.index(model.name)).any(axis=1))
    ]
