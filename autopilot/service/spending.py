"""Daily spending for the metrics, computed beside the loop after each day of the cluster."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import structlog

from autopilot.core.model.errors import InputError
from autopilot.metering.prices import Prices
from autopilot.metering.segments import open_store
from autopilot.metering.spend import daily_spending, highest_budgets, highest_ratios, month_forecasts
from autopilot.metrics.table import MOST_SPENDERS

log: Any = structlog.get_logger("metering")

DAY_S, HOUR_S = 86_400.0, 3600.0


class DailySpend:
    """The ratio of each tenant's last whole day to its mean, by tenant; those without enough history are absent."""

    def __init__(self, folder: Path, prices: Prices) -> None:
        """`folder`: that of the metering."""
        self._folder, self._prices = folder, prices
        self._thread: threading.Thread | None = None
        self._looked_s: float | None = None
        self.ratios: Mapping[str, float] = {}
        self.budgets: Mapping[str, float] = {}  # forecast of the month / budget, by tenant

    def look(self, now_s: float) -> None:
        """Start to compute, in a thread, after the first tick of a day; hourly while nothing is known. Never waits."""
        length_s = DAY_S if self.ratios else HOUR_S
        if self._looked_s is not None and self._looked_s // length_s == now_s // length_s:
            return
        if self._thread is not None and self._thread.is_alive():
            return
        self._looked_s = now_s
        self._thread = threading.Thread(target=self._compute, args=(now_s,), name="daily-spend", daemon=True)
        self._thread.start()

    def wait(self) -> None:
        """Wait for a running computation, if any."""
        if self._thread is not None:
            self._thread.join()

    def _compute(self, now_s: float) -> None:
        try:
            store = open_store(self._folder)
            self.ratios = highest_ratios(daily_spending(store, self._prices, now_s), MOST_SPENDERS)
            budgeted = bool(self._prices.budgets) or self._prices.budget is not None
            months = month_forecasts(store, self._prices, now_s) if budgeted else []
            self.budgets = highest_budgets(months, MOST_SPENDERS)
        except (InputError, OSError) as error:
            log.warning("daily spending is not known", reason=str(error))
            self.ratios, self.budgets = {}, {}
