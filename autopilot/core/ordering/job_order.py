"""Order inside a queue: which of its pending gangs comes first. (Between queues: core/ordering/queue_order.py.)

Class tier, then gangs older than `max_wait_s` (oldest first), then the queue's own order: `submission`
(priority, then age) or `index`.

The index is the Gittins index of the run-time forecast (Gittins 1979; Aalto, Ayesta and Righter 2009):
the largest ratio, over stopping times, of the probability to be done by then to the expected time
spent by then; per GPU to the power `width_exponent`, aged softly by the time that work which never ran has
waited. (Work that was paused does not age: two gangs as good as each other would take turns for ever.) With
an exact forecast it is 1 / remaining time, hence shortest first.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from autopilot.core.model.policy import Order
from autopilot.core.model.snapshot import F64, I32, ClusterSnapshot, QueueOrder

UNKNOWN_INDEX_PER_S = 1.0 / (4 * 3600.0)
"""Index of a gang without any forecast, as if it were expected to run for 4 h: the order needs some number."""


def gittins_per_s(levels: tuple[float, ...], times_s: F64) -> F64:
    """Gittins index of jobs from quantiles of the time that they would still run, in 1/s. Shape [rows].

    `times_s` is [rows, levels]. sup over quantiles k of P(T <= t_k) / E[min(T, t_k)], the expectation integrated over
    the quantile function (constant below the lowest level).
    """
    steps = np.asarray(levels)
    times = np.maximum(times_s, 1.0)
    mass = np.diff(steps, prepend=0.0)
    lower = np.concatenate([times[:, :1], times[:, :-1]], axis=1)
    below = np.cumsum(mass * (lower + times) * 0.5, axis=1)
    spent = below + (1.0 - steps) * times
    index = (steps / spent).max(axis=1)
    return np.where(np.isnan(index), UNKNOWN_INDEX_PER_S, index)


def aged_index(index: F64, gpus: I32, wait_s: F64, order: Order) -> F64:
    """Index per GPU^alpha, raised softly with waiting. Higher is served first. Shape [rows]."""
    width = np.maximum(gpus, 1).astype(float) ** order.width_exponent
    aged = (1.0 + np.maximum(wait_s, 0.0) / order.aging_s) ** order.aging_exponent
    return np.asarray(index / width * aged)


def service_order(
    snapshot: ClusterSnapshot,
    rows: I32,
    index: F64,
    median_s: F64,
    promised_since_s: F64,
    review_now_s: float,
    order: Order,
) -> NDArray[np.intp]:
    """Positions of `rows` (pending workloads) in the order of service.

    `index` is the aged index, `median_s` the median time still to run, `promised_since_s` when a gang's reservation
    became firm (inf without one); all [rows]. Inside an `index` queue: short gangs, then those with a promise, oldest
    first, then the rest by index. Ties go to the older, then
    to the lower row, so that equal states give equal orders.
    """
    work, queues = snapshot.workloads, snapshot.queues
    queue = work.queue[rows]
    submit = work.submit_s[rows]
    overdue = review_now_s - submit > order.max_wait_s
    by_index = (queues.order[queue] == QueueOrder.INDEX) & ~overdue
    short = by_index & (median_s <= order.short_s)
    promised = by_index & ~short & np.isfinite(promised_since_s)
    step = np.where(by_index, np.where(short, 0, np.where(promised, 1, 2)), 0)
    inside = np.where(promised, promised_since_s, np.where(by_index, -index, submit))
    priority = np.where(overdue, 0, -work.priority[rows])
    keys = (rows, submit, inside, step, priority, ~overdue, work.slo_class[rows])
    return np.lexsort(keys)
