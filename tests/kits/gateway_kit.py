"""A gateway in front of the services of a playground: it counts their requests, also while they have no replica."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from autopilot.controller import Wiring
from autopilot.core.model.records import Batch, ServiceSignals
from autopilot.playground.stage import Stage
from autopilot.service.site import Site
from tests.kits.killing import MortalRun
from tests.kits.playground_acting import ActingRun

WINDOW_S, RECENT_S = 300.0, 60.0


class Gateway:
    """Measures each service: requests of the last five minutes and of the last one, and those that wait."""

    name = "slo"

    def __init__(self, stage: Stage) -> None:
        self._stage, self._services = stage, stage.world.services
        self._sources = self._services.sources()
        self._seen_s = [np.empty(0) for _ in self._sources]

    def collect(self, now_s: float) -> Batch:
        """The state at this virtual moment."""
        at_s = self._stage.clock.virtual_s
        columns: dict[str, list[float]] = {"rate_rps": [], "recent_rps": [], "queue_depth": []}
        names = []
        for row, deployment in enumerate(self._services.deployments):
            seen_s = np.concatenate([self._seen_s[row], self._sources[row].upto(at_s).t_s])
            self._seen_s[row] = seen_s = seen_s[seen_s > at_s - WINDOW_S]
            load: Any = self._stage.servers.load
            names.append(f"{deployment.tenant}/{deployment.name}")
            columns["rate_rps"].append(len(seen_s) / WINDOW_S)
            columns["recent_rps"].append(int((seen_s > at_s - RECENT_S).sum()) / RECENT_S)
            columns["queue_depth"].append(float(load(deployment.name, at_s)[0]))
        values: dict[str, Any] = {name: np.array(column) for name, column in columns.items()}
        unknown = np.full(len(names), np.nan)
        signals = ServiceSignals(
            service=np.array(names, object),
            age_s=np.zeros(len(names)),
            gateway_rps=values["recent_rps"],
            p99_s=unknown,
            violation_ratio=unknown,
            recent_violation_ratio=unknown,
            tokens_per_s=unknown,
            kv_cache_ratio=unknown,
            replicas=unknown,
            ttft_p99_s=unknown,
            itl_p99_s=unknown,
            recent_ttft_violation_ratio=unknown,
            recent_itl_violation_ratio=unknown,
            **values,
        )
        return Batch(self.name, now_s, services=signals)


class GatewayRun(ActingRun):
    """The controller also reads the gateway."""

    def _wiring(self, site: Site) -> Wiring:
        found = super()._wiring(site)
        return replace(found, collectors=(*found.collectors, Gateway(self.stage)))


class MortalGatewayRun(GatewayRun, MortalRun):
    """The same with a controller that dies once; its successor reads the gateway too."""
