"""Conditions of a Workload or queue. Every edit works on a status of its own."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from apiserver.timeline import parse_stamp, stamp

Obj = dict[str, Any]
MESSAGE_LIMIT = 32 * 1024
EVENT_LIMIT = 1024


def find(obj: Obj, kind: str) -> Obj | None:
    """A condition of an object; None if it has none of the type."""
    return next((each for each in (obj.get("status") or {}).get("conditions") or [] if each["type"] == kind), None)


def is_true(obj: Obj, kind: str) -> bool:
    """True if a condition exists with the status True."""
    found = find(obj, kind)
    return found is not None and found["status"] == "True"


def is_false(obj: Obj, kind: str) -> bool:
    """True if a condition exists with the status False."""
    found = find(obj, kind)
    return found is not None and found["status"] == "False"


def since(condition: Obj) -> datetime:
    """Time of the last change of the condition's status."""
    return parse_stamp(condition["lastTransitionTime"])


def truncated(message: str, limit: int = MESSAGE_LIMIT) -> str:
    """A message cut to the allowed length."""
    return message if len(message) <= limit else message[: limit - 4] + " ..."


def put(
    status: Obj, kind: str, value: bool, reason: str, message: str, now: datetime, generation: int | None = None
) -> bool:
    """Set a condition; True if anything changed. The time changes with the value alone."""
    conditions = status.setdefault("conditions", [])
    text = "True" if value else "False"
    wanted: Obj = {"message": truncated(message), "reason": reason, "status": text, "type": kind}
    if generation is not None:
        wanted["observedGeneration"] = generation
    for number, each in enumerate(conditions):
        if each["type"] != kind:
            continue
        wanted["lastTransitionTime"] = each["lastTransitionTime"] if each["status"] == text else stamp(now)
        if generation is None and "observedGeneration" in each:
            wanted["observedGeneration"] = each["observedGeneration"]
        if wanted == each:
            return False
        conditions[number] = wanted
        return True
    wanted["lastTransitionTime"] = stamp(now)
    conditions.append(wanted)
    return True


def drop(status: Obj, kind: str) -> bool:
    """Remove a condition; True if it existed."""
    conditions = status.get("conditions") or []
    kept = [each for each in conditions if each["type"] != kind]
    status["conditions"] = kept
    return len(kept) != len(conditions)
