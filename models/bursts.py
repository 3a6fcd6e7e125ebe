"""Burst forecasts in the controller: for each service, the peak of its requests and tokens within the next minutes.

Each minute `Bursts` passes the measured rates to `models/burst_demand.py`. It compares matured promises with the
outcome and makes new ones. A promise out of reach is NaN, with a reason.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from autopilot.core.model.forecast import REQUESTS, TOKENS, Forecast, Forecasts
from autopilot.core.model.snapshot import ClusterSnapshot
from models.backtest import FreshRng
from models.boosting import Boosting
from models.burst_demand import HORIZONS_S, STEP_S, Demand, DemandFit, Fit

LATE_STEPS = 2
"""Without a recent measurement of any service, the latest step assumed to be complete: later ones may still arrive."""


class Bursts:
    """Forecaster of service demand; the owner of the loop runs its fits (`due`).

    With `gate`, the generator of its bootstrap, a new global model is used only if it passes on the recent window
    (models/proving.py); `champion` is the model for requests in service before this run, if any.
    """

    name = "bursts"

    def __init__(
        self,
        seed: int,
        *,
        horizons_s: Sequence[float] = HORIZONS_S,
        gate: FreshRng | None = None,
        champion: Boosting | None = None,
    ) -> None:
        self.demands = (
            Demand(REQUESTS, seed, horizons_s, gate=gate, champion=champion),
            Demand(TOKENS, seed, horizons_s, gate=gate),
        )
        self._made_s = 0.0
        self._asked: tuple[Forecast, ...] = ()
        self._shown: tuple[int, tuple[str, ...]] = (-1, ())

    def update(self, now_s: float, snapshot: ClusterSnapshot) -> None:
        """Take in the last whole minute of every service; at the begin of a minute, settle matured promises and make
        new ones.
        """
        services = snapshot.services
        names = [str(each) for each in services.id.tolist()]
        if not names or not np.isfinite(now_s):
            return
        fresh = np.isfinite(services.age_s) & (services.age_s >= 0.0)
        steps = np.full(len(names), int(now_s // STEP_S) - LATE_STEPS)
        steps[fresh] = np.floor((now_s - services.age_s[fresh]) / STEP_S).astype(np.int64)
        for demand, rates in zip(self.demands, (services.recent_rps, services.tokens_per_s), strict=True):
            if demand.observe(names, steps, np.where(fresh, rates, np.nan)):
                self._made_s = now_s
                demand.settle(now_s)
                demand.foresee()

    def due(self, now_s: float) -> Fit | None:
        """The next due fit, for a worker to run and to pass to `adopt`."""
        return next((fit for demand in self.demands if (fit := demand.wanted()) is not None), None)

    def adopt(self, fitted: DemandFit) -> str | None:
        """Use the models of a finished fit from the next minute on; returns the gate's refusal of one of them."""
        return next(demand for demand in self.demands if demand.kind == fitted.asked.kind).adopt(fitted)

    def forecast(self, now_s: float, snapshot: ClusterSnapshot) -> Forecasts:
        """The promises of the last minute for the services of `snapshot`; the same record until the next minute."""
        names = tuple(str(each) for each in snapshot.services.id.tolist())
        shown = (self.demands[0].rates.step, names)
        if shown != self._shown and names:
            records = [demand.record(self._made_s, now_s, names) for demand in self.demands]
            self._asked = tuple(record for record in records if record is not None)
            self._shown = shown
        return Forecasts(demand=self._asked if names else ())
