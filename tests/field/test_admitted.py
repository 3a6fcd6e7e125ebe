"""Work that Kueue has admitted and that has no pods in this cluster: it does not wait for a start here."""

from __future__ import annotations

import json
from typing import Any

import pytest

from autopilot.contract.annotations import CHECK
from tests.kits.field_kit import FOLDER, Json, Played, objects_of, play, play_objects

MANAGER = FOLDER / "08-multikueue" / "manager.yaml"


def _known(played: Played) -> bool:
    """Whether `far` is work of this cluster."""
    return "team/far" in played.snapshot.workloads.id.tolist()


def _proposed(played: Played) -> set[str]:
    """Names of the work for which anything is proposed."""
    return {each.subject.name for _, _, decision in played.ticks for each in decision.plan.proposals}


@pytest.mark.parametrize("more", [{"policy": "recommend"}, {"acts": True}])
def test_work_that_another_cluster_runs_is_no_work_of_this_one(more: dict[str, Any]) -> None:
    """A Job that MultiKueue has dispatched (kubernetes-sigs/kueue#1787, #8602)."""
    played = play("08-multikueue", "manager.yaml", **more)
    assert not _known(played)
    assert not _proposed(played)
    assert played.said("team/far multikueue MultiKueue has it run in the cluster .?worker1")


def test_our_check_in_a_queue_of_multikueue_is_named() -> None:
    """The work would stay out."""
    objects = objects_of(MANAGER)
    (workload,) = [each for each in objects if each["kind"] == "Workload"]
    workload["status"]["admissionChecks"].append({"name": CHECK, "state": "Pending", "message": ""})
    assert play_objects(objects, acts=True).said(f"team/far multikueue .*{CHECK} is not answered for it: take it out")


def _without(objects: list[Json], *paths: str) -> list[Json]:
    """The objects without these fields of the Job and the Workload."""
    found: list[Json] = json.loads(json.dumps(objects))
    for each in found:
        for path in paths:
            kind, *inner, last = path.split(".")
            if each["kind"] == kind:
                at = each
                for name in inner:
                    at = at.get(name, {})
                at.pop(last, None)
    return found


@pytest.mark.parametrize("paths", [
    ("Workload.status.clusterName", "Job.spec.managedBy"),  # only the check says so
    ("Workload.status.clusterName", "Workload.status.admissionChecks", "Workload.status.conditions"),
    ("Workload.status.conditions", "Workload.status.admission"),
])  # fmt: skip
@pytest.mark.parametrize("acts", [True, False])
def test_each_trace_of_multikueue_counts(paths: tuple[str, ...], *, acts: bool) -> None:
    """Before the dispatch there is the check or the manager of the Job, for other kinds the name of the cluster."""
    played = play_objects(_without(objects_of(MANAGER), *paths), policy="recommend", acts=acts)
    assert not _known(played)
    assert not _proposed(played)


LOCAL = ("Workload.status.clusterName", "Workload.status.admissionChecks", "Job.spec.managedBy")


@pytest.mark.parametrize("acts", [True, False])
def test_quota_that_is_held_without_pods_is_no_wait_for_a_start(*, acts: bool) -> None:
    """Kueue has admitted a Job of this cluster, and its controller makes no pods."""
    played = play_objects(_without(objects_of(MANAGER), *LOCAL), policy="recommend", acts=acts)
    assert _known(played)
    assert not _proposed(played)


def test_a_job_that_waits_for_quota_is_proposed() -> None:
    """Without an admission it is work of this cluster that waits."""
    waits = _without(objects_of(MANAGER), *LOCAL, "Workload.status.conditions", "Workload.status.admission")
    (job,) = [each for each in waits if each["kind"] == "Job"]
    job["spec"]["suspend"], job["status"] = True, {}
    assert _proposed(play_objects(waits, policy="recommend")) == {"team/far"}
