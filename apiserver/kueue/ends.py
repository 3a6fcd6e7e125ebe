"""The end of Workloads: finished, without an owner, deleted."""

from __future__ import annotations

from typing import Any

from apiserver.errors import StatusError
from apiserver.kueue import conditions, workloads
from apiserver.kueue.context import Context
from apiserver.kueue.names import IN_USE, WORKLOADS, key_of

Obj = dict[str, Any]


def finalize_orphan(context: Context, workload: Obj, *, may_finish: bool) -> None:
    """A Workload without its owner: finish it, or let a deleted one go."""
    if may_finish and "deletionTimestamp" not in workload["metadata"]:
        finish(context, workload, "OwnerNotFound", "The workload's owner no longer exists")
        return
    remove_finalizer(context, workload)


def finish(context: Context, workload: Obj, reason: str, message: str) -> None:
    """Finished=True, unless it is already."""
    if workloads.is_finished(workload):
        return
    generation = workloads.generation(workload)
    context.edit(
        workload,
        lambda status: conditions.put(status, workloads.FINISHED, True, reason, message, context.now, generation),
    )


def remove_finalizer(context: Context, workload: Obj) -> None:
    """Remove our finalizer, so a deletion of the Workload completes."""
    held = workload["metadata"].get("finalizers") or []
    if IN_USE not in held:
        return
    kept = [each for each in held if each != IN_USE]
    try:
        context.client().patch(WORKLOADS, *key_of(workload), {"metadata": {"finalizers": kept or None}})
    except StatusError:
        return
