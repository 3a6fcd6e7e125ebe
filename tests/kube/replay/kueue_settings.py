"""The configuration of Kueue's manager that a topic was recorded with; inferred from what its Workloads show."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Any

from apiserver.kueue.config import Config, WaitForPodsReady
from apiserver.kueue.names import PRIORITY_BOOST
from tests.kube.replay.kueue_seen import condition, seen_in
from tests.kube.replay.recording import Recording

Obj = dict[str, Any]
LATE = "PodsReadyTimeout"
LIMIT = "DeactivatedDueToRequeuingLimitExceeded"


def settings_of(recording: Recording) -> Config:
    """The feature gates and times that the topic needs; Kueue's defaults for what it does not show."""
    boosts = any(PRIORITY_BOOST in str(step.request.get("body")) for step in recording.steps)
    return Config(priority_boost=boosts, wait_for_pods_ready=_waits(recording))


def _waits(recording: Recording) -> WaitForPodsReady:
    found: dict[str, Any] = {}
    for name, value in _shown(recording):
        found[name] = min(found.get(name, value), value)
    return WaitForPodsReady(**found)


def _shown(recording: Recording) -> Iterator[tuple[str, Any]]:
    """Each setting that an object shows, with its value there."""
    since: dict[tuple[tuple[str, str, str], str], datetime] = {}
    for each in seen_in(recording):
        if each.key[0] != "workloads":
            continue
        status = each.obj.get("status") or {}
        for kind, reason in (("Admitted", "Admitted"), ("PodsReady", "WaitForRecovery")):
            row = condition(each.obj, kind)
            if row.get("reason") == reason:
                since[each.key, kind] = datetime.fromisoformat(row["lastTransitionTime"])
        if condition(each.obj, "QuotaReserved").get("reason") == "Waiting":
            yield "block_admission", True
        counts = {
            row.get("underlyingCause", ""): row["count"]
            for row in (status.get("schedulingStats") or {}).get("evictions") or ()
            if row["reason"] == LATE
        }
        evicted = condition(each.obj, "Evicted")
        if evicted.get("reason") == LIMIT:
            yield "backoff_limit", sum(counts.values())
        if (evicted.get("status"), evicted.get("reason")) != ("True", LATE):
            continue
        moment = datetime.fromisoformat(evicted["lastTransitionTime"])
        recovery = set(counts) == {"WaitForRecovery"}
        start = since.get((each.key, "PodsReady" if recovery else "Admitted"))
        if start is not None:
            yield "recovery_timeout_s" if recovery else "timeout_s", (moment - start).total_seconds()
        state = status.get("requeueState") or {}
        if state.get("requeueAt") and state.get("count"):
            wait_s = (datetime.fromisoformat(state["requeueAt"]) - moment).total_seconds()
            yield "backoff_base_s", wait_s / 2 ** (state["count"] - 1)
