"""The metrics of the controller between the loop, which feeds them, and the scrapes, which may come at any time."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import nan

from autopilot.core.model.memory import ControllerMemory
from autopilot.metrics.exposition import Exposition
from autopilot.metrics.samples import Labels, Pricing
from autopilot.service.published import Published, Publisher
from autopilot.service.record import Record


class Exposed:
    """Feeds the exposition with each tick, and renders it with the present ages."""

    def __init__(
        self,
        publisher: Publisher,
        memory: ControllerMemory | None,
        version: str,
        record: Record,
        waiting: Callable[[], str] = lambda: "",
        pricing: Pricing | None = None,
        start_s: float | None = None,
    ) -> None:
        """`memory`: the one at the start of the controller; `start_s`, time 0 of the cluster since 1970.

        `waiting` names the reason while another controller decides, "" while this one does.
        """
        self._waiting = waiting
        self._publisher, self._record = publisher, record
        self._exposition = Exposition(memory, version, pricing, start_s)
        self.counts: list[Callable[[], Mapping[str, Mapping[Labels, float]]]] = [record.counts]
        """Counters of parts beside the loop, by metric."""

    def tick(self, published: Published) -> None:
        """One tick of this controller ended."""
        durations_s = {**published.stages_s, "whole": published.took_s}
        self._exposition.tick(
            published.observation,
            published.decision,
            published.memory,
            published.policy,
            durations_s,
            published.policy_problem,
            published.spend_ratios,
            published.budget_ratios,
        )

    def text(self) -> bytes:
        """The text of a scrape."""
        latest, ages = self._publisher.latest, self._publisher.known.ages()
        leads = not self._waiting() and (latest is None or latest.leads)
        head, shell = self._record.head, dict[str, Mapping[Labels, float]]()
        for each in self.counts:
            shell.update(each())
        shown = (nan if ages.tick_s is None else ages.tick_s, ages.collectors_s)
        return self._exposition.render(
            nan, leads=leads, ages=shown, audit_head=(head.sequence, head.digest), shell=shell
        )
