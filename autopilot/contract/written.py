"""Writers of a field of an object, and the consequence: work stopped by a person is not started.

Levers ask before they write, and the collector asks the same, so that nothing is decided that no lever would do.
`managed` is `metadata.managedFields` of an object, as sent by the server.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from autopilot.contract.annotations import MANAGE, MANAGER, STOPPED, mark_on, may_return

Managed = Iterable[Mapping[str, Any]]
SUSPEND = ("f:spec", "f:suspend")
ACTIVE = ("f:spec", "f:active")
MIN_REPLICAS = ("f:spec", "f:minReplicas")


def writes(managed: Managed, path: tuple[str, ...]) -> list[tuple[str, str]]:
    """Field manager and time of each entry with a field; writes to a subresource do not count."""
    found = []
    for entry in managed:
        inside: Any = entry.get("fieldsV1") or {}
        for part in path:
            inside = inside.get(part) if isinstance(inside, dict) else None
        if inside is not None and not entry.get("subresource"):
            found.append((str(entry.get("manager", "")), str(entry.get("time", ""))))
    return found


def only_ours(managed: Managed, path: tuple[str, ...]) -> bool:
    """True if the controller is the only manager of a field."""
    return {manager for manager, _ in writes(managed, path)} == {MANAGER}


def ours(managed: Managed, path: tuple[str, ...]) -> bool:
    """True if the controller is a manager of a field."""
    return MANAGER in {manager for manager, _ in writes(managed, path)}


def other_owner(meta: Mapping[str, Any]) -> str:
    """The controller that decides when a Job runs; "" for none. A CronJob only creates its Jobs."""
    owners = meta.get("ownerReferences") or ()
    owner = next((each for each in owners if each.get("controller") and each["kind"] != "CronJob"), None)
    return f"{owner['kind']} {owner['name']} manages its Job" if owner is not None else ""


def may_start(meta: Mapping[str, Any]) -> str:
    """Reason against the controller's start of a suspended Job with this metadata; "" for none."""
    if owner := other_owner(meta):
        return owner
    labels, notes = meta.get("labels") or {}, meta.get("annotations") or {}
    managed, mark, uid = meta.get("managedFields") or (), str(notes.get(STOPPED, "")), str(meta["uid"])
    if mark_on(mark, uid) and only_ours(managed, SUSPEND):
        return "" if may_return(mark, uid) else "it waits until its owner lets it continue"
    if labels.get(MANAGE) != "true":
        return f"its Job does not have the label {MANAGE}=true"
    created = str(meta["creationTimestamp"])
    if not _since(writes(managed, ("f:metadata", "f:labels", f"f:{MANAGE}")), created):
        return f"the label {MANAGE} was not on its Job from the beginning"
    suspended = writes(managed, SUSPEND)
    if any(manager == MANAGER for manager, _ in suspended) or not _since(suspended, created):
        return "a person suspended its Job later, and keeps it"
    return ""


def _since(found: list[tuple[str, str]], created: str) -> bool:
    """True for a field that was there at the creation of its object.

    The server notes the writer before the admission webhooks answer, and the time of creation afterwards: the first may
    be a second earlier.
    """
    return any(at <= created for _, at in found if at)
