"""Replicas kept by an idle service.

A service may go to zero only if its owner declares a minimum of 0 and names a signal that wakes it, and that signal was
seen fresh: without it no request could bring the service back. Every other service stops at its minimum, and at one
replica at least.
"""

from __future__ import annotations

from math import isinf, isnan

import numpy as np

from autopilot.core.intake.usage.activity import awake_mask
from autopilot.core.model.memory.idle import ShrunkService
from autopilot.core.model.objectives import breached
from autopilot.core.model.objects import CeilingWay
from autopilot.core.model.policy import Policy
from autopilot.core.model.snapshot import ClusterSnapshot, ServiceTable
from autopilot.core.model.units import format_duration


def kept_replicas(services: ServiceTable, row: int, policy: Policy) -> tuple[int, str]:
    """The least replicas of an idle service, and the reason."""
    least, age_s = int(services.min_replicas[row]), float(services.wake_age_s[row])
    if least > 0:
        return least, "its owner keeps at least that"
    if isnan(age_s):
        return 1, "its owner allows zero and names no signal that would wake it"
    if isinf(age_s):
        return 1, "the signal that would wake it was never seen"
    if not 0 <= age_s <= policy.freshness.telemetry_s:
        return 1, f"the signal that would wake it was last seen {format_duration(age_s)} ago"
    if services.wake_rps[row] != 0:  # also where it is unknown
        return 1, "requests for it arrive"
    return 0, "its owner allows zero, and the signal that wakes it is seen"


OUT_OF_REACH = {
    CeilingWay.TO_ZERO: "its autoscaler would undo any number but zero: lower its minReplicas",
    CeilingWay.NO_CONSENT: "its owner does not allow to scale it (`scale` is not true)",
    CeilingWay.UNDECLARED: "its owner states no least number of replicas (`min-replicas`)",
    CeilingWay.KEDA: "KEDA manages its autoscaler, and would undo it: let its ScaledObject scale it down",
}


def out_of_reach(services: ServiceTable, row: int, replicas: int) -> str:
    """The reason why no ceiling of `replicas` reaches a service; "" if one does."""
    way = CeilingWay(int(services.ceiling_way[row]))
    return "" if way == CeilingWay.TO_ZERO and replicas == 0 else OUT_OF_REACH.get(way, "")


def unused(services: ServiceTable, row: int, policy: Policy) -> bool:
    """True if certainly no request for a service is seen: unknown or old figures count as use.

    A service without an autoscaler has no metric of load.
    """
    unmeasured = services.ceiling_way[row] == CeilingWay.REPLICAS and isnan(services.load_ratio[row])
    return bool(
        services.age_s[row] <= policy.freshness.telemetry_s
        and services.rate_rps[row] == 0
        and services.recent_rps[row] == 0
        and services.queue_depth[row] == 0
        and (services.load_ratio[row] == 0 or unmeasured)
        and not services.violation_ratio[row] > 0
        and not breached(services)[row]
    )


def shrunk_rows(services: ServiceTable) -> list[int]:
    """Services under a ceiling."""
    rows: list[int] = np.flatnonzero(services.ceiling >= 0).tolist()
    return rows


def why_back(snapshot: ClusterSnapshot, row: int, record: ShrunkService | None, policy: Policy, now_s: float) -> str:
    """The reason for the end of a service's ceiling; "" if it may stay. In doubt it ends."""
    services, work = snapshot.services, snapshot.workloads
    ceiling, ours = int(services.ceiling[row]), work.service == row
    if record is not None and record.generation != services.generation[row]:
        return "its owner changed it"
    if bool(work.excluded[ours].any()):
        return "its owner opted out"
    if services.ceiling_until_s[row] <= now_s:
        return "its ceiling ended and was not renewed"
    refused = out_of_reach(services, row, ceiling)
    if refused:
        return refused
    if services.floor[row] > ceiling:
        return "load is foreseen for it"
    kept, why = kept_replicas(services, row, policy)
    if kept > ceiling:
        return why
    if ceiling == 0:
        return ""  # what the replicas themselves report ended with the last of them
    if not services.age_s[row] <= policy.freshness.telemetry_s:
        return "what it serves is unknown"
    if services.recent_rps[row] != 0 or services.queue_depth[row] != 0:
        return "requests for it arrive"
    if services.load_ratio[row] > 0:
        return "its replicas have load"
    return "its replicas work" if bool(awake_mask(snapshot, policy)[ours].any()) else ""
