"""Gangs that lost pods to an eviction or deletion: since when they are too few. One that fails by itself is not."""

from __future__ import annotations

from math import isnan
from typing import Any

import pytest

from autopilot.contract.annotations import CHECK
from tests.kits.kube_objects import done, job, kueue, node, pod, workload
from tests.unit.collectors.kubernetes.view import Seen, row

OWNER = {"apiVersion": "batch/v1", "kind": "Job", "name": "g", "uid": "uid-team-g", "controller": True}


def member(place: int, **more: Any) -> dict[str, Any]:
    """A pod of the gang; without a node it waits for one."""
    return pod(f"g-{place}", 8, owner=OWNER, **{"node": f"n{place}", **more})


def begun(pods: int = 2, **spec: Any) -> Seen:
    """A gang whose pods all run."""
    made = job("g", 8, width=pods)
    made["spec"] |= spec
    seen = Seen(*(node(f"n{place}") for place in range(pods)), made, *(member(place) for place in range(pods)))
    assert isnan(short(seen))
    return seen


def short(seen: Seen, *objects: Any, gone: tuple[Any, ...] = (), later_s: float = 10.0) -> float:
    """Since when it is too few, in seconds before now, after these changes."""
    seen.now_s += later_s
    work = seen.batch(*objects, gone=gone).work
    assert work is not None
    return float(seen.now_s - row(work, "team/g")["stale_since_s"])


def test_an_evicted_member_counts_from_its_eviction_on() -> None:
    """It stops, is gone, and its replacement waits; the time goes on."""
    seen = begun()
    assert short(seen, member(1, deleting=True)) == 0.0
    assert short(seen, gone=(member(1),)) == 10.0
    assert short(seen, member(2, node="")) == 20.0
    assert isnan(short(seen, member(2, node="n1")))


def test_a_deletion_that_was_not_seen_counts_when_it_is_noticed() -> None:
    """The pod was there at one look and gone at the next."""
    seen = begun()
    assert short(seen, gone=(member(1),)) == 0.0


@pytest.mark.parametrize("phase", ["Failed", "Succeeded"])
def test_a_pod_that_ends_by_itself_was_not_taken(phase: str) -> None:
    """Its Job makes another one, or needs none."""
    seen = begun()
    assert isnan(short(seen, member(1, phase=phase)))
    assert isnan(short(seen, gone=(member(1, phase=phase),)))


def test_a_gang_that_was_never_whole_is_not_short() -> None:
    """It starts, one pod after the other."""
    seen = Seen(node("n0"), node("n1"), job("g", 8, width=2), member(0), member(1, node=""))
    assert isnan(short(seen))
    assert isnan(short(seen, gone=(member(1),)))


def test_finished_members_count() -> None:
    """Of three one has finished and one is taken: two are left of three."""
    seen = begun(3)
    assert isnan(short(seen, member(0, phase="Succeeded")))
    assert short(seen, gone=(member(1),)) == 0.0


@pytest.mark.parametrize(("completions", "judged"), [(2, True), (None, True), (20, False)])
def test_pods_that_need_not_run_together_are_not_judged(completions: int | None, judged: bool) -> None:
    """A Job with more completions than pods goes on with fewer."""
    seen = begun(completions=completions)
    assert isnan(short(seen, gone=(member(1),))) != judged


def test_a_gang_that_leaves_as_a_whole_is_not_short() -> None:
    """Its queue evicts it: all pods stop."""
    seen = begun()
    assert short(seen, member(0, deleting=True)) == 0.0
    assert isnan(short(seen, member(1, deleting=True)))
    assert isnan(short(seen, gone=(member(0), member(1))))


def test_the_owner_of_other_kinds_is_not_judged() -> None:
    """What a PyTorchJob does about a lost pod is its own business."""
    other = {"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "name": "g", "uid": "p", "controller": True}
    pods = [pod(f"g-{place}", 8, owner=other, node=f"n{place}") for place in range(2)]
    seen = Seen(node("n0"), node("n1"), *pods)
    assert isnan(short(seen))
    assert isnan(short(seen, gone=(pods[1],)))


def test_a_pod_on_a_node_that_is_not_ready_counts_until_it_is_taken() -> None:
    """The node may come back. Kubernetes takes the pod when its toleration ends, and then the gang is too few."""
    seen, unready = begun(), member(0)
    unready["status"]["conditions"] = [{"type": "Ready", "status": "False"}]
    assert isnan(short(seen, node("n0", ready=False), unready, later_s=299.0))
    assert short(seen, member(0, deleting=True)) == 0.0


def part(*, ours: bool = True, looked_at: bool = True) -> list[dict[str, Any]]:
    """A gang of two whose place was taken in part. `ours`: we chose it; `looked_at`: the scheduler tried the second."""
    place = {"placement.gpu-autopilot.io/0123456789" if ours else "example.com/place": "true"}
    made = job("g", 8, width=2)
    made["spec"]["template"]["spec"]["nodeSelector"] = place
    waits = member(1, node="")
    tried = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
    waits["status"]["conditions"] += [tried] if looked_at else []
    return [made, member(0), waits]


def test_a_gang_that_we_started_and_that_found_no_room_for_a_member_is_short() -> None:
    """Somebody was faster on one of its nodes. It is whole again once the member finds room."""
    seen = Seen(node("n0"), node("n1"), *part())
    assert short(seen) == 0.0
    assert short(seen) == 10.0
    assert isnan(short(seen, member(1)))
    assert isnan(short(seen, part()[2])), "it was not taken from the gang"


@pytest.mark.parametrize("more", [{"ours": False}, {"looked_at": False}])
def test_a_gang_of_others_and_one_that_still_starts_are_not_short(more: dict[str, bool]) -> None:
    """What another scheduler starts in part is its own business; the scheduler needs a moment for each pod."""
    assert isnan(short(Seen(node("n0"), node("n1"), *part(**more))))


@pytest.mark.parametrize(("state", "counts"), [("Ready", True), ("Pending", False)])
def test_a_gang_of_kueue_is_ours_by_our_check(state: str, counts: bool) -> None:
    """Its Workload says that our check has let it start."""
    checks = {"admissionChecks": [{"name": CHECK, "state": state}]}
    made = workload("job-g", 8, count=2, owner=OWNER, conditions=[done("Admitted")], status=checks)
    seen = Seen(node("n0"), node("n1"), *kueue(made), *part(ours=False))
    assert isnan(short(seen)) != counts
