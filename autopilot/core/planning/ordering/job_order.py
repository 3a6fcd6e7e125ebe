"""The order of pending gangs inside a queue. (Between queues: core/planning/ordering/queue_order.py.)

The keys are the class, then gangs with a wait beyond `max_wait_s` (oldest first), then the order of the queue:
`submission` (priority, then age) or `index`.

The index is the Gittins index of the run-time forecast (Gittins 1979; Aalto, Ayesta and Righter 2009): the maximum,
over stopping times, of the probability that the job ends by then divided by the expected time spent by then. It is
divided by GPUs to the power `width_exponent`, and raised with the waiting time of work that never ran. Paused work does
not age: two equal gangs would preempt each other indefinitely. With an exact forecast the index is 1 / remaining time,
so the order is shortest first. With `hazard_weight` it is mixed with the hazard index of the forecast: the same maximum
under hazards by age, counted for the tenant and width.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from autopilot.core.model.policy import Order
from autopilot.core.model.snapshot import F64, I32, ClusterSnapshot, QueueOrder
from autopilot.core.model.work import overdue_mask

UNKNOWN_INDEX_PER_S = 1.0 / (4 * 3600.0)
"""Index of a gang without a forecast: that of an expected run time of 4 h."""


def gittins_per_s(levels: tuple[float, ...], times_s: F64) -> F64:
    """Gittins index of jobs from quantiles of their remaining run time, in 1/s. Shape [rows].

    `times_s` is [rows, levels]. The index is the maximum over quantiles k of P(T <= t_k) / E[min(T, t_k)], with the
    expectation integrated over the quantile function (constant below the lowest level).
    """
    steps = np.asarray(levels)
    times = np.maximum(times_s, 1.0)
    mass = np.diff(steps, prepend=0.0)
    lower = np.concatenate([times[:, :1], times[:, :-1]], axis=1)
    below = np.cumsum(mass * (lower + times) * 0.5, axis=1)
    spent = below + (1.0 - steps) * times
    index = (steps / spent).max(axis=1)
    return np.where(np.isnan(index), UNKNOWN_INDEX_PER_S, index)


def mixed_index(index: F64, hazard_per_s: F64, order: Order) -> F64:
    """The hazard index^hazard_weight x index^(1 - hazard_weight), in 1/s. Shape [rows].

    `index` alone for a hazard index that is unknown (NaN) or not a positive number.
    """
    weight = order.hazard_weight
    if not weight:
        return index
    known = np.isfinite(hazard_per_s) & (hazard_per_s > 0.0)
    hazard = np.where(known, hazard_per_s, index)
    return np.where(known, np.exp(weight * np.log(hazard) + (1.0 - weight) * np.log(index)), index)


def aged_index(index: F64, gpus: I32, wait_s: F64, order: Order) -> F64:
    """The index / gpus^width_exponent x (1 + wait / aging_s)^aging_exponent; highest first. Shape [rows]."""
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

    `index` is the aged index, `median_s` the median remaining run time, `promised_since_s` the time of a gang's firm
    reservation (inf without one); all [rows]. Inside an `index` queue, short gangs come first, then those with a firm
    reservation, oldest promise first, then the rest by index. Ties are broken by age, then by row, so that equal states
    give equal orders.
    """
    work, queues = snapshot.workloads, snapshot.queues
    queue = work.queue[rows]
    submit = work.submit_s[rows]
    overdue = overdue_mask(work, rows, review_now_s, order)
    by_index = (queues.order[queue] == QueueOrder.INDEX) & ~overdue
    short = by_index & (median_s <= order.short_s)
    promised = by_index & ~short & np.isfinite(promised_since_s)
    step = np.where(by_index, np.where(short, 0, np.where(promised, 1, 2)), 0)
    inside = np.where(promised, promised_since_s, np.where(by_index, -index, submit))
    priority = np.where(overdue, 0, -work.priority[rows])
    keys = (rows, submit, inside, step, priority, ~overdue, work.slo_class[rows])
    return np.lexsort(keys)
