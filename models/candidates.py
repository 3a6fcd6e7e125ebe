"""The models of demand that take part, the floor first."""

from __future__ import annotations

from collections.abc import Sequence

from models.baselines import Ewma, LastValue, Profile
from models.boosting import Boosting
from models.demand import DemandModel
from models.idle import IdleTimes
from models.statistical import Ets, Harmonic


def models_for(seed: int, pinned: Sequence[int] = ()) -> tuple[DemandModel, ...]:
    """All of them, not fitted; SARIMAX only where services are pinned."""
    always: tuple[DemandModel, ...] = (LastValue(), Ewma(), Profile(), IdleTimes(), Ets(), Boosting(seed))
    return (*always, Harmonic(pinned)) if pinned else always
