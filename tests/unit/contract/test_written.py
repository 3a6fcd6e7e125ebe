"""Who may start a Job that is suspended: what a person has stopped stays stopped."""

from __future__ import annotations

import json
from typing import Any

import pytest

from autopilot.contract.annotations import MANAGE, MANAGER, STOPPED
from autopilot.contract.written import ACTIVE, SUSPEND, may_start, only_ours

Obj = dict[str, Any]
CREATED, BEFORE, LATER = "2026-11-23T10:00:01Z", "2026-11-23T10:00:00Z", "2026-11-23T11:00:00Z"
MARK = {"uid": "u", "id": "1/p", "reason": "preempt", "returns": True}
A_PERSON_LATER = "a person suspended its Job later, and keeps it"
NOT_FROM_THE_BEGINNING = f"the label {MANAGE} was not on its Job from the beginning"


def entry(manager: str, time: str, *, suspend: bool = True, label: bool = False, subresource: str = "") -> Obj:
    """The fields that one client wrote."""
    fields: Obj = {"f:spec": {"f:suspend": {}}} if suspend else {}
    fields |= {"f:metadata": {"f:labels": {f"f:{MANAGE}": {}}}} if label else {}
    return {"manager": manager, "time": time, "subresource": subresource, "fieldsV1": fields}


def job(*managed: Obj, mark: Obj | None = None, **more: Any) -> Obj:
    """The metadata of a Job with our label."""
    notes = {STOPPED: json.dumps(mark)} if mark else {}
    created = {"uid": "u", "creationTimestamp": CREATED, "labels": {MANAGE: "true"}, "annotations": notes}
    return {**created, "managedFields": list(managed), **more}


OWN = entry("kubectl-create", CREATED, label=True)
SLOW = entry("kubectl-create", BEFORE, label=True)
CRON = [{"kind": "CronJob", "name": "nightly", "controller": True}]
RAY = [{"kind": "RayJob", "name": "ray", "controller": True}]


@pytest.mark.parametrize(
    ("meta", "why_not"),
    [
        (job(OWN), ""),
        # the server noted the writer before the webhooks answered, and the creation a second later
        (job(SLOW), ""),
        (job(OWN, ownerReferences=CRON), ""),
        (job(OWN, ownerReferences=RAY), "RayJob ray manages its Job"),
        (job(OWN, labels={}), f"its Job does not have the label {MANAGE}=true"),
        (job(entry("kubectl-create", CREATED), entry("kubectl-label", LATER, suspend=False, label=True)),
         NOT_FROM_THE_BEGINNING),
        (job(entry("kubectl-create", CREATED, suspend=False, label=True), entry("kubectl-patch", LATER)),
         A_PERSON_LATER),
        (job(), NOT_FROM_THE_BEGINNING),
        # suspended by us
        (job(entry(MANAGER, LATER), mark=MARK, labels={}), ""),
        (job(entry(MANAGER, LATER), mark={**MARK, "returns": False}), "it waits until its owner lets it continue"),
        (job(entry("kubectl-create", CREATED, suspend=False, label=True), entry(MANAGER, LATER)), A_PERSON_LATER),
        # of an object of this name that was there before
        (job(entry(MANAGER, LATER), mark={**MARK, "uid": "another"}, labels={}),
         f"its Job does not have the label {MANAGE}=true"),
        # a person asks for the same value by server-side apply: both own the field
        (job(entry(MANAGER, LATER), entry("argocd", LATER), mark=MARK, labels={}),
         f"its Job does not have the label {MANAGE}=true"),
        # a write of the status says nothing about the spec
        (job(entry(MANAGER, LATER), entry("kubectl", LATER, subresource="status"), mark=MARK, labels={}), ""),
    ],
)  # fmt: skip
def test_who_may_start_a_suspended_job(meta: Obj, why_not: str) -> None:
    """Its owner by the label at creation, or we after our own stop; the last other writer of the field wins."""
    assert may_start(meta) == why_not


def test_a_field_of_several_writers_is_not_ours_alone() -> None:
    """Nor is one that nobody has written."""
    ours = entry(MANAGER, LATER)
    assert only_ours([ours], SUSPEND)
    assert not only_ours([ours, entry("somebody", LATER)], SUSPEND)
    assert not only_ours([ours], ACTIVE)
