"""The view of the cluster at this tick: fresh, complete and plausible, or blind.

Absence is evidence only in a fresh, complete list. A tick without such a list for both kinds of object is blind: it
concludes nothing and acts on nothing. A source that suddenly shows far fewer objects, without having reported their
deletion, is suspected. It is trusted again when several complete lists agree, or when a person confirms the loss.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from autopilot.core.model.memory import ControllerMemory
from autopilot.core.model.memory.intake import ViewRecord
from autopilot.core.model.policy import Policy
from autopilot.core.model.policy.bounds import Freshness
from autopilot.core.model.records import Observation, View
from autopilot.core.model.snapshot import F32, Bools, ClusterSnapshot

INVENTORY, WORK = "inventory", "work"
KINDS = {INVENTORY: "nodes and GPUs", WORK: "workloads"}

AGREE_RATIO = 0.1
"""Lists of a suspected source agree if they differ by at most this part of the expected objects."""


@dataclass(frozen=True, slots=True)
class Sight:
    """The reason for a blind tick ("" for none), the record of each view, and the time of the next look (s)."""

    blind: str
    views: dict[str, ViewRecord]
    wake_s: tuple[float, ...]


def key_of(view: View) -> str:
    """The name of a view in memory."""
    return f"{view.kind}/{view.source}"


def look(
    memory: ControllerMemory, snapshot: ClusterSnapshot, views: Sequence[View], now_s: float, policy: Policy
) -> Sight:
    """Judge the views of one observation against earlier ones. `memory` is that after the commands of the tick."""
    rules, records = policy.views, dict[str, ViewRecord]()
    reasons = _stale_halves(snapshot, views, policy.freshness)
    suspected: list[float] = []
    for view in views:
        key = key_of(view)
        before = memory.intake.views.get(key)
        problem = _unusable(view, before, now_s, policy)
        if not problem:
            records[key] = _judge(before, view, policy)
            problem = _suspicion(records[key], view, policy)
        elif before is not None:
            records[key] = before
        if problem:
            reasons.append(problem)
        if key in records and records[key].lists:
            suspected.append(records[key].counted_s + rules.apart_s)
    wake_s = (now_s + rules.look_again_s, *suspected) if reasons else ()
    return Sight("; ".join(dict.fromkeys(reasons)), records if views else dict(memory.intake.views), wake_s)


def listed_s(observation: Observation) -> float:
    """The time at which both inventory and work were true."""
    snapshot = observation.snapshot
    return observation.now_s - max(snapshot.inventory_age_s, snapshot.work_age_s)


def newest_sample_s(observation: Observation) -> float:
    """The time of the newest sample of telemetry; NaN without one."""
    ages_s = observation.snapshot.telemetry.age_s
    known = np.isfinite(ages_s)
    return observation.now_s - float(ages_s[known].min()) if known.any() else float("nan")


def fresh_samples(age_s: F32, limit_s: float, skew_s: float) -> Bools:
    """True for entities with a newest sample neither stale nor dated in the future; False without a sample.

    `age_s` [entities]; `limit_s`: the greatest age; `skew_s`: the greatest date in the future.
    """
    with np.errstate(invalid="ignore"):
        return np.asarray((age_s <= limit_s) & (age_s >= -skew_s))


def _stale_halves(snapshot: ClusterSnapshot, views: Sequence[View], limits: Freshness) -> list[str]:
    """Reasons for inventory or work that is missing or too old and has no view."""
    ages = {
        INVENTORY: (snapshot.inventory_age_s, limits.inventory_s),
        WORK: (snapshot.work_age_s, limits.work_s),
    }
    shown = {view.kind for view in views}
    return [
        f"no source shows {KINDS[kind]}"
        if age_s == float("inf")
        else f"{KINDS[kind]} were last listed {age_s:.0f} s ago (limit {limit_s:g} s)"
        for kind, (age_s, limit_s) in ages.items()
        if not age_s <= limit_s and kind not in shown
    ]


def _unusable(view: View, before: ViewRecord | None, now_s: float, policy: Policy) -> str:
    """The reason against absence from a list as evidence; "" for none."""
    limits, early_s = policy.freshness, policy.clock.max_skew_s
    name, limit_s = (
        f"{view.source}: its list of {KINDS[view.kind]}",
        (limits.inventory_s if view.kind == INVENTORY else limits.work_s),
    )
    if not view.complete:
        return f"{name} is not complete ({view.reason or 'no reason given'})"
    if not now_s - view.listed_s <= limit_s:
        return f"{name} is {now_s - view.listed_s:.0f} s old (limit {limit_s:g} s)"
    if view.listed_s > now_s + early_s:
        return f"{name} is {view.listed_s - now_s:.0f} s ahead of the controller's clock"
    # a record ahead of the clock was made before the clock was set back
    if before is not None and view.listed_s < before.listed_s <= now_s + early_s:
        return f"{name} is {before.listed_s - view.listed_s:.0f} s older than an earlier one"
    return ""


def _judge(before: ViewRecord | None, view: View, policy: Policy) -> ViewRecord:
    """The record after one more complete, fresh list."""
    rules = policy.views
    trusted = ViewRecord(view.count, view.listed_s)
    if before is None:
        return trusted
    expected = view.expected if view.expected >= 0 else before.count
    lost = view.lost if view.lost >= 0 else max(before.count - view.count, 0)
    plausible = expected < rules.objects or lost <= rules.loss_ratio * expected
    if plausible and not before.lists:
        return trusted
    slack = AGREE_RATIO * expected
    agrees = before.lists > 0 and abs(view.count - before.found) <= slack and abs(lost - before.lost) <= slack
    if not agrees:
        return ViewRecord(before.count, view.listed_s, 1, view.listed_s, view.count, lost)
    if before.confirmed:
        return trusted
    apart = view.listed_s >= before.counted_s + rules.apart_s
    lists = before.lists + apart
    if lists >= rules.lists:
        return trusted
    return replace(before, listed_s=view.listed_s, lists=lists, counted_s=view.listed_s if apart else before.counted_s)


def _suspicion(record: ViewRecord, view: View, policy: Policy) -> str:
    """The message for a suspected source; "" if it is not suspected."""
    rules = policy.views
    if not record.lists:
        return ""
    what = f"{record.lost} of its {KINDS[view.kind]} are gone and were not reported deleted"
    if record.lost <= rules.loss_ratio * record.count:
        what = f"its list of {KINDS[view.kind]} shrank and has recovered"
    return (
        f"{view.source}: {what}; "
        f"waiting for {rules.lists} complete lists that agree, {rules.apart_s:g} s apart (now {record.lists}), "
        f"or for `autopilot confirm {view.source}`"
    )
