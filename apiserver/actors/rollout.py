"""Conclusions of the Deployment controller: sizes of ReplicaSets, status and conditions. Pure functions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from fractions import Fraction
from math import ceil, floor
from typing import Any

from apiserver.actors.pod_status import condition
from apiserver.timeline import parse_stamp, stamp

Obj = dict[str, Any]
HASH = "pod-template-hash"
PREFIX = "deployment.kubernetes.io/"
REVISION, HISTORY = f"{PREFIX}revision", f"{PREFIX}revision-history"
DESIRED, MOST = f"{PREFIX}desired-replicas", f"{PREFIX}max-replicas"
LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"
OWN = {REVISION, HISTORY, DESIRED, MOST, LAST_APPLIED, "deprecated.deployment.rollback.to"}  # not copied to versions
COUNTS = ("replicas", "readyReplicas", "availableReplicas")
NO_DEADLINE = 2**31 - 1
COMPLETE = "NewReplicaSetAvailable"
TIMED_OUT = "ProgressDeadlineExceeded"


def scaled(value: int | str, total: int, *, up: bool) -> int:
    """A number, or a percentage of the total, rounded up or down."""
    if isinstance(value, int):
        return value
    exact = Fraction(int(value.rstrip("%")), 100) * total
    return ceil(exact) if up else floor(exact)


def is_rolling(deployment: Obj) -> bool:
    """True if versions are exchanged step by step."""
    return bool((deployment["spec"].get("strategy") or {}).get("type", "RollingUpdate") == "RollingUpdate")


def _bounds(deployment: Obj) -> tuple[int, int]:
    """Most pods above the number, and most missing pods, in a rolling update."""
    rolling = (deployment["spec"].get("strategy") or {}).get("rollingUpdate") or {}
    wanted = replicas_of(deployment)
    surge = scaled(rolling.get("maxSurge", 0), wanted, up=True)
    spare = scaled(rolling.get("maxUnavailable", 0), wanted, up=False)
    return surge, spare if surge or spare else 1


def max_surge(deployment: Obj) -> int:
    """Pods above the number."""
    return _bounds(deployment)[0] if is_rolling(deployment) else 0


def max_unavailable(deployment: Obj) -> int:
    """Most missing pods."""
    return min(_bounds(deployment)[1], replicas_of(deployment)) if is_rolling(deployment) else 0


def replicas_of(obj: Obj) -> int:
    """Requested replicas of an object."""
    return int(obj["spec"].get("replicas", 1))


def total(sets: Iterable[Obj], name: str = "") -> int:
    """Requested replicas of ReplicaSets, or a count of their status."""
    return sum(int((each.get("status") or {}).get(name, 0)) if name else replicas_of(each) for each in sets)


def revision_of(obj: Obj) -> int:
    """The number of a version."""
    text = (obj["metadata"].get("annotations") or {}).get(REVISION, "0")
    return int(text) if text.isdigit() else 0


def new_size(deployment: Obj, sets: Sequence[Obj], size: int) -> int:
    """The next size of the new version. Its present one is `size`, counted among `sets`."""
    wanted = replicas_of(deployment)
    if not is_rolling(deployment):
        return wanted
    room = wanted + max_surge(deployment) - total(sets)
    return size if room <= 0 else size + min(room, wanted - size)


def set_annotations(deployment: Obj) -> dict[str, str]:
    """Annotations of a scaled ReplicaSet: the size of its Deployment, and the most pods with the surge."""
    wanted = replicas_of(deployment)
    return {DESIRED: str(wanted), MOST: str(wanted + max_surge(deployment))}


def copied_annotations(deployment: Obj, held: Mapping[str, str], revision: int) -> dict[str, str]:
    """The annotations of the new version: those of the Deployment, and its number, never a lower one."""
    made = dict(held) | {
        name: text for name, text in (deployment["metadata"].get("annotations") or {}).items() if name not in OWN
    }
    old = held.get(REVISION)
    if int(old or 0) < revision:
        made[REVISION] = str(revision)
        if old is not None:
            made[HISTORY] = ",".join(filter(None, (held.get(HISTORY, ""), old)))
    return made


def proportions(deployment: Obj, sets: Sequence[Obj]) -> list[tuple[Obj, int]]:
    """The sizes of several versions after a change of the number, each by its share; the rest goes to the largest."""
    wanted = replicas_of(deployment)
    most = wanted + max_surge(deployment)
    change = (most if wanted else 0) - total(sets)
    order = sorted(sets, key=lambda each: each["metadata"]["creationTimestamp"], reverse=change > 0)
    order.sort(key=replicas_of, reverse=True)
    sizes: list[tuple[Obj, int]] = []
    done = 0
    for each in order:
        size = replicas_of(each)
        before = int((each["metadata"].get("annotations") or {}).get(MOST, "0")) or total(sets)
        share = floor(Fraction(size * most, before) + Fraction(1, 2)) - size if wanted else -size
        left = change - done
        part = min(share, left) if change > 0 else max(share, left) if change else 0
        done += part
        sizes.append((each, size + part))
    if sizes:
        sizes[0] = (sizes[0][0], max(sizes[0][1] + change - done, 0))
    return sizes


# status


def with_deployment_condition(
    conditions: Sequence[Obj], kind: str, value: str, why: tuple[str, str], now: str
) -> list[Obj]:
    """The conditions with one set and moved to the end; unchanged if it had this status and reason."""
    old = next((each for each in conditions if each["type"] == kind), None)
    if old is not None and (old["status"], old.get("reason")) == (value, why[0]):
        return list(conditions)
    since = old["lastTransitionTime"] if old is not None and old["status"] == value else now
    new = {"type": kind, "status": value, "lastUpdateTime": now, "lastTransitionTime": since}
    return [*(each for each in conditions if each["type"] != kind), new | {"reason": why[0], "message": why[1]}]


def counted(deployment: Obj, sets: Sequence[Obj], new: Obj | None, now: str) -> Obj:
    """The status by the counts of all versions, with the condition Available."""
    old = deployment.get("status") or {}
    status: Obj = {name: total(sets, name) for name in COUNTS}
    status["updatedReplicas"] = total([new], "replicas") if new is not None else 0
    status["unavailableReplicas"] = max(total(sets) - status["availableReplicas"], 0)
    if all("terminatingReplicas" in (each.get("status") or {}) for each in sets):
        status["terminatingReplicas"] = total(sets, "terminatingReplicas")
    if "collisionCount" in old:
        status["collisionCount"] = old["collisionCount"]
    good = status["availableReplicas"] >= replicas_of(deployment) - max_unavailable(deployment)
    why = ("MinimumReplicasAvailable", "Deployment has minimum availability.")
    if not good:
        why = ("MinimumReplicasUnavailable", "Deployment does not have minimum availability.")
    conditions = old.get("conditions") or []
    status["conditions"] = with_deployment_condition(conditions, "Available", "True" if good else "False", why, now)
    return status


def has_deadline(deployment: Obj) -> bool:
    """True if a deadline limits the progress."""
    return int(deployment["spec"].get("progressDeadlineSeconds", NO_DEADLINE)) != NO_DEADLINE


def is_complete(deployment: Obj, status: Obj) -> bool:
    """True if all pods are of the new version and available."""
    names = ("updatedReplicas", "replicas", "availableReplicas")
    return all(status.get(name, 0) == replicas_of(deployment) for name in names)


def deadline_of(deployment: Obj) -> datetime | None:
    """Deadline for the next progress of a version; None without one."""
    held = condition(deployment, "Progressing")
    if not held or not has_deadline(deployment) or held.get("reason") in {COMPLETE, TIMED_OUT}:
        return None
    return parse_stamp(held["lastUpdateTime"]) + timedelta(seconds=deployment["spec"]["progressDeadlineSeconds"])


def with_progress(deployment: Obj, status: Obj, new: Obj | None, now: datetime) -> list[Obj]:
    """The conditions with the progress of the new version."""
    conditions: list[Obj] = status["conditions"]
    if not has_deadline(deployment):
        return [each for each in conditions if each["type"] != "Progressing"]
    held, old = condition(deployment, "Progressing"), deployment.get("status") or {}
    if status["replicas"] == status["updatedReplicas"] and held.get("reason") == COMPLETE:
        return conditions
    named = ("ReplicaSet", new) if new is not None else ("Deployment", deployment)
    name = f'{named[0]} "{named[1]["metadata"]["name"]}"'

    def old_pods(counts: Obj) -> int:
        return int(counts.get("replicas", 0)) - int(counts.get("updatedReplicas", 0))

    grown = ("updatedReplicas", "readyReplicas", "availableReplicas")
    if is_complete(deployment, status):
        why = (COMPLETE, f"{name} has successfully progressed.")
        return with_deployment_condition(conditions, "Progressing", "True", why, stamp(now))
    if any(status[each] > old.get(each, 0) for each in grown) or old_pods(status) < old_pods(old):
        since = held["lastTransitionTime"] if held.get("status") == "True" else stamp(now)
        new_one = {"type": "Progressing", "status": "True", "lastUpdateTime": stamp(now), "lastTransitionTime": since}
        new_one |= {"reason": "ReplicaSetUpdated", "message": f"{name} is progressing."}
        return [*(each for each in conditions if each["type"] != "Progressing"), new_one]
    limit = deadline_of(deployment)
    if limit is not None and limit < now:
        why = (TIMED_OUT, f"{name} has timed out progressing.")
        return with_deployment_condition(conditions, "Progressing", "False", why, stamp(now))
    return conditions


def with_failure(conditions: Sequence[Obj], sets: Sequence[Obj], new: Obj | None) -> list[Obj]:
    """The conditions with a failure to create the pods of a version; the new version comes first."""
    found = [condition(each, "ReplicaFailure") for each in ([new] if new is not None else []) + list(sets)]
    failure = next(filter(None, found), None)
    if failure is None:
        return [each for each in conditions if each["type"] != "ReplicaFailure"]
    since = failure["lastTransitionTime"]
    why = (failure["reason"], failure["message"])
    return with_deployment_condition(conditions, "ReplicaFailure", failure["status"], why, since)
