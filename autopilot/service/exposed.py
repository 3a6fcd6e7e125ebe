"""The metrics of the controller between the loop, which feeds them, and the scrapes, which may come at any time."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import isfinite

from autopilot.core.model.memory import ControllerMemory
from autopilot.metrics.exposition import Exposition
from autopilot.metrics.samples import Labels
from autopilot.service.published import Published, Publisher
from autopilot.service.record import Record


class Exposed:
    """Feeds the exposition with each tick, and renders it with the present ages."""

    def __init__(
        self,
        publisher: Publisher,
        memory: ControllerMemory | None,
        version: str,
        clock_s: Callable[[], float],
        record: Record,
        waiting: Callable[[], str] = lambda: "",
    ) -> None:
        """`memory` is that with which the controller started; `clock_s` is the cluster's clock.

        `waiting` says why another controller decides, "" while this one does.
        """
        self._waiting = waiting
        self._publisher, self._clock_s, self._record = publisher, clock_s, record
        self._exposition = Exposition(memory, version)
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
        )

    def text(self) -> bytes:
        """The text of a scrape."""
        latest = self._publisher.latest
        collectors = latest.collectors if latest is not None else ()
        collected_s = {each.name: each.fresh_s for each in collectors if isfinite(each.fresh_s)}
        leads = not self._waiting() and (latest is None or latest.leads)
        head, shell = self._record.head, dict[str, Mapping[Labels, float]]()
        for each in self.counts:
            shell.update(each())
        return self._exposition.render(
            self._clock_s(), leads=leads, collected_s=collected_s, audit_head=(head.sequence, head.digest), shell=shell
        )
