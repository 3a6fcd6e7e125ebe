"""Deletion: preconditions, grace, finalizers."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

from apiserver.errors import Named, StatusError, quoted
from apiserver.kinds.base import State
from apiserver.plain_json import clone
from apiserver.timeline import stamp

if TYPE_CHECKING:
    from apiserver.kinds.base import Kind

Obj = dict[str, Any]
LEAST_GRACE_S = 1  # what stands for a negative grace


class Deletion:
    """Deletes objects, at once or as soon as their grace and finalizers allow it."""

    def __init__(self, server: State) -> None:
        self._server = server

    def delete(self, kind: Kind, stored: Obj, options: Obj, *, dry_run: bool = False) -> tuple[Obj, bool]:
        """The object afterwards or in its last state, and True if it is gone. Raises StatusError."""
        check_preconditions(kind, stored, options.get("preconditions") or {})
        if kind.prepare_delete is not None and "deletionTimestamp" not in stored["metadata"]:
            stored = clone(stored)
            kind.prepare_delete(stored, stamp(self._server.timeline.now))
        metadata = dict(stored["metadata"])
        grace_s = self._grace_s(kind, stored, options)
        finalizers = _finalizers(metadata, options)
        if finalizers:
            metadata["finalizers"] = finalizers
        else:
            metadata.pop("finalizers", None)
        held = bool(finalizers) or kind.held(stored)
        if "deletionTimestamp" in metadata:
            held_s = metadata.get("deletionGracePeriodSeconds", 0)
            if grace_s < held_s:
                metadata["deletionTimestamp"] = stamp(self._server.timeline.now + timedelta(seconds=grace_s))
                metadata["deletionGracePeriodSeconds"] = grace_s
            else:
                grace_s = held_s
        elif grace_s or held or kind.grace is not None:
            metadata["deletionTimestamp"] = stamp(self._server.timeline.now + timedelta(seconds=grace_s))
            if kind.marks_grace:
                metadata["deletionGracePeriodSeconds"] = grace_s
            if kind.marks_grace and metadata.get("generation"):
                metadata["generation"] += 1
        obj = stored | {"metadata": metadata}
        if not grace_s and not held:
            if kind.grace is not None and not dry_run and obj != stored:
                obj = self._server.store.put(kind.storage, obj)  # what is deleted with grace is marked first
            if "finalizers" in stored["metadata"]:  # watchers see those that this deletion took away
                obj = obj | {"metadata": obj["metadata"] | {"finalizers": stored["metadata"]["finalizers"]}}
            return (obj if dry_run else self._remove(kind, obj)), True
        if dry_run or obj == stored:
            return obj, False
        return self._server.store.put(kind.storage, obj), False

    def settle(self, kind: Kind, obj: Obj) -> Obj | None:
        """Remove an object after an update took its last finalizer away; None if it stays.

        The update itself is never stored: watchers see the last stored state, with the finalizer.
        """
        metadata = obj["metadata"]
        if (
            "deletionTimestamp" not in metadata
            or metadata.get("finalizers")
            or kind.held(obj)
            or metadata.get("deletionGracePeriodSeconds")
        ):
            return None
        gone = self._server.store.remove(kind.storage, metadata.get("namespace", ""), metadata["name"])
        return obj | {"metadata": metadata | {"resourceVersion": gone["metadata"]["resourceVersion"]}}

    def _remove(self, kind: Kind, obj: Obj) -> Obj:
        metadata = obj["metadata"]
        return self._server.store.remove(kind.storage, metadata.get("namespace", ""), metadata["name"], obj)

    def _grace_s(self, kind: Kind, stored: Obj, options: Obj) -> int:
        if kind.grace is None:
            return 0
        given = options.get("gracePeriodSeconds")
        usual_s = kind.grace(stored)
        if given is None or not usual_s:
            return usual_s
        return int(given) if given >= 0 else LEAST_GRACE_S


def _finalizers(metadata: Obj, options: Obj) -> list[str]:
    """The finalizers of a deleted object: a policy replaces that of an earlier deletion."""
    held = list(metadata.get("finalizers") or [])
    policy, orphan = options.get("propagationPolicy"), options.get("orphanDependents")
    if policy is None and orphan is not None:
        policy = "Orphan" if orphan else "Background"
    if policy is None:
        return held
    wanted = {"Foreground": "foregroundDeletion", "Orphan": "orphan"}.get(policy)
    kept = [each for each in held if each not in {"foregroundDeletion", "orphan"} or each == wanted]
    return [*kept, wanted] if wanted is not None and wanted not in kept else kept


def check_preconditions(kind: Kind, stored: Obj, preconditions: Obj) -> None:
    """Raises StatusError 409 if the preconditions name another object than the stored one."""
    metadata = stored["metadata"]
    for name, title, after in (
        ("uid", "UID", "The object might have been deleted and then recreated"),
        ("resourceVersion", "ResourceVersion", "The object might have been modified"),
    ):
        given = preconditions.get(name)
        if given is not None and given != metadata[name]:
            what = Named(kind.group, kind.plural, kind.kind, metadata["name"])
            raise StatusError(
                409,
                "Conflict",
                f"Operation cannot be fulfilled on {what.qualified_kind} {quoted(what.name)}: the {title} in the "
                f"precondition ({given}) does not match the {title} in record ({metadata[name]}). {after}",
                what.details(kind.kind),
            )
