"""Waits, admissions, evictions and limits by queue, and the price of a GPU-hour."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from autopilot.core.effects.evict import EvictChange
from autopilot.core.model.memory import ControllerMemory
from autopilot.core.model.objects import Victim
from autopilot.metering.prices import Region, load_prices
from autopilot.metrics.exposition import Exposition
from autopilot.metrics.table import MOST_QUEUES, OTHER_QUEUES
from autopilot.metrics.tally import Tally
from tests.kits.core_world import AUTO, decide
from tests.kits.scraping import scrape, shown
from tests.unit.metrics.test_metrics_exposition import NOW_S, a_world


def test_waits_are_counted_once_by_queue() -> None:
    """At its first start, with the time since the submission; a restart is none. Evictions begin at 0."""
    began = a_world()
    work = began.snapshot.workloads
    name = str(began.snapshot.queues.id[int(work.queue[0])])
    exposition, step = Exposition(None, "1"), decide(began)

    def at(now_s: float, start_s: float, incarnation: int = 0) -> dict[str, float]:
        starts, restarts = np.full(len(work.id), np.nan), work.incarnation.copy()
        starts[0], restarts[0] = start_s, incarnation
        table = replace(work, start_s=starts, incarnation=restarts, submit_s=np.full(len(work.id), NOW_S - 100.0))
        table = replace(table, service=np.full(len(work.id), -1, work.service.dtype))
        seen = replace(began, now_s=now_s, snapshot=replace(began.snapshot, workloads=table))
        exposition.tick(seen, step.decision, step.memory, AUTO)
        return scrape(exposition.render(now_s))

    count = f"queue_wait_seconds_count{{queue={name}}}"
    assert count not in at(NOW_S, NOW_S - 50.0), "it ran before the process did"
    assert count not in at(NOW_S + 5, NOW_S + 5), "a start at the time of a tick belongs to the next one"
    found = at(NOW_S + 10, NOW_S + 5)
    assert (found[count], found[f"queue_wait_seconds_sum{{queue={name}}}"]) == (1.0, 105.0)
    assert found[f"queue_evictions_total{{queue={name}}}"] == 0.0
    assert at(NOW_S + 15, NOW_S + 5)[count] == 1.0
    assert at(NOW_S + 20, NOW_S + 16, incarnation=1)[count] == 1.0


def test_evictions_are_counted_by_the_queue_of_the_victim() -> None:
    """Of accepted proposals; queues beyond the first 30 count together."""
    observation = a_world()
    work = observation.snapshot.workloads
    step, tally = decide(observation), Tally(ControllerMemory())
    proposal = step.decision.plan.proposals[0]
    victim = Victim(str(work.id[0]), 0, 1, 0.0, contract=False, uid=str(work.uid[0]))
    plan = replace(
        step.decision.plan, proposals=(replace(proposal, accepted=True, change=EvictChange(victims=(victim,))),)
    )
    tally.tick(observation, replace(step.decision, plan=plan, halted=""), step.memory, AUTO)
    name = str(observation.snapshot.queues.id[int(work.queue[0])])
    assert tally.counters["queue_evictions_total"] == {(name,): 1.0}
    full = Tally(ControllerMemory())
    full._queues = {f"other{number}" for number in range(MOST_QUEUES)}
    full.tick(observation, replace(step.decision, plan=plan, halted=""), step.memory, AUTO)
    assert full.counters["queue_evictions_total"] == {(OTHER_QUEUES,): 1.0}


def test_limits_of_queues_are_shown_where_they_are() -> None:
    """The least of the limit and of guarantee + borrowing limit."""
    observation = a_world()
    queues, count = observation.snapshot.queues, len(observation.snapshot.queues.id)
    name = str(queues.id[1])
    limits, borrows = np.full(count, -1, queues.limit.dtype), np.full(count, -1, queues.borrow_limit.dtype)

    def told(limit: int, borrow: int) -> float | None:
        limits[1], borrows[1] = limit, borrow
        table = replace(queues, limit=limits.copy(), borrow_limit=borrows.copy())
        found = shown(replace(observation, snapshot=replace(observation.snapshot, queues=table)))
        return found.get(f"queue_limit_gpus{{queue={name}}}")

    held = float(queues.guarantee[1].sum())
    assert (told(-1, -1), told(7, -1), told(1000, 2), told(-1, 0)) == (None, 7.0, held + 2, held)


def test_the_price_is_that_of_the_price_file() -> None:
    """By pool and GPU model, with the currency; a model without a price has no series."""
    observation = a_world()
    prices = load_prices()
    exposition, step = Exposition(None, "1", prices), decide(observation)
    exposition.tick(observation, step.decision, step.memory, AUTO)
    found = {name: value for name, value in scrape(exposition.render(NOW_S)).items() if name.startswith("gpu_hour")}
    names, nodes = observation.snapshot.names, observation.snapshot.nodes
    pool, model = names.pools[int(nodes.pool[0])], names.gpu_models[int(nodes.gpu_model[0])]
    label = f"gpu_hour_price{{currency=USD,gpu_model={model},pool={pool}}}"
    assert found[label] == prices.at(None).gpu_hour(pool, model)
    bare = prices.model_copy(update={"regions": {prices.region: Region(gpu_hour={"none": 1.0})}, "pools": {}})
    exposition = Exposition(None, "1", bare)
    exposition.tick(observation, step.decision, step.memory, AUTO)
    assert "gpu_hour_price{" not in exposition.render(NOW_S).decode()
