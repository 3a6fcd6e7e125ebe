"""Stories in which the service decides: `autopilot run` beside any cluster, limited to the nodes and queue of one run.

The test is the people who submit work, the kubelet of the nodes, and the training program that saves on request.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from contextlib import ExitStack

import pytest

from autopilot.contract.annotations import APPROVE, CHECK, CHECKPOINT_ACK, CHECKPOINT_REQUEST, MANAGE
from tests.kits.deciding_service import RECOMMENDATIONS, DecidingService
from tests.kits.idle_history import idle_history
from tests.kits.played_mig import HALF, PlayedMig
from tests.kits.real_cluster import CORE, KUEUE, Obj
from tests.kits.tools import MissingToolError

NOTICE = "aws-node-termination-handler/spot-itn"
"""Taint of a node that its cloud takes back in two minutes."""
SAVES: Obj = {"checkpoint_on_request": "true", "checkpoint_write_s": "1"}


def gang_admitted_whole(world: DecidingService) -> None:
    """A gang of both nodes waits with its quota while one is in use, and starts whole when it is free."""
    cluster = world.cluster
    world.job("whole-first")
    cluster.until(lambda: cluster.hosts("whole-first"), "the first Job runs")
    world.job("whole-gang", pods=2)
    cluster.until(lambda: check_of(world, "whole-gang"), "Kueue asks our check for the gang")
    world.look(2)
    assert check_of(world, "whole-gang")["state"] == "Pending"
    assert cluster.pods("whole-gang") == []
    cluster.finish("whole-first")
    cluster.until(lambda: cluster.hosts("whole-gang") == sorted(cluster.nodes), "the gang runs on both nodes")
    assert "placed on" in check_of(world, "whole-gang")["message"]
    assert "AdmitBegun" in reasons(world, "whole-gang")


def short_before_wide(world: DecidingService) -> None:
    """Short work starts on the node that a wide gang cannot use yet; the gang starts when both nodes are free."""
    cluster = world.cluster
    world.job("gap-first", limit_s="2h")
    cluster.until(lambda: cluster.hosts("gap-first"), "the first Job runs")
    world.job("gap-wide", pods=2, limit_s="1h")
    cluster.until(lambda: check_of(world, "gap-wide"), "Kueue asks our check for the wide gang")
    world.look(2)
    world.job("gap-short", limit_s="10m")
    (place,) = cluster.until(lambda: cluster.hosts("gap-short"), "the short Job runs")
    assert [place] == [each for each in cluster.nodes if each not in cluster.hosts("gap-first")]
    assert cluster.pods("gap-wide") == []
    cluster.finish("gap-short")
    cluster.finish("gap-first")
    cluster.until(lambda: cluster.hosts("gap-wide") == sorted(cluster.nodes), "the wide gang runs on both nodes")


def preempted_after_its_checkpoint(world: DecidingService) -> None:
    """A latency-critical pod takes the node of training, which is asked first, saves, and then leaves."""
    cluster = world.cluster
    world.policy(preemption={"grace_s": 300, "saves_prior": 0.9})
    world.job("saved-one", **SAVES)
    world.job("saved-two", **SAVES)
    cluster.until(lambda: cluster.hosts() == sorted(cluster.nodes), "a Job runs on each node")
    world.job("saved-chat", slo_class="latency-critical", priority="100")
    (asked,) = cluster.until(lambda: requested(world), "a request")
    assert cluster.pods("saved-chat") == []
    acknowledge(world, asked)
    cluster.until(lambda: cluster.hosts("saved-chat") == [asked["spec"]["nodeName"]], "the service runs on the node")
    victim = asked["metadata"]["labels"]["job-name"]
    assert cluster.pods(victim) == []
    assert "EvictBegun" in reasons(world, victim)


def approved_by_annotation(world: DecidingService) -> None:
    """A person approves the Recommendation with `kubectl annotate`, and the gang starts."""
    cluster = world.cluster
    if world.no_recommendations:
        pytest.skip(world.no_recommendations)
    world.policy(modes={"admit_gang": "approve"})
    world.look(2)
    world.job("approved-gang", pods=2)
    (shown,) = cluster.until(lambda: waiting(world), "a Recommendation waits for approval")
    assert cluster.pods("approved-gang") == []
    cluster.patch(f"{RECOMMENDATIONS}/{shown['metadata']['name']}", {"metadata": {"annotations": {APPROVE: "yes"}}})
    cluster.until(lambda: cluster.hosts("approved-gang") == sorted(cluster.nodes), "the gang runs on both nodes")
    path = f"{RECOMMENDATIONS}/{shown['metadata']['name']}"
    cluster.until(lambda: noted(cluster.get(path), APPROVE) == "", "the annotation is taken off")
    assert cluster.get(path)["status"]["decision"]["verdict"] == "Approved"


def drained_before_its_node_goes(world: DecidingService) -> None:
    """The cloud announces that it takes a spot node back; its work leaves and goes on on the node that stays."""
    cluster = world.cluster
    world.policy(recovery={"notice_margin_s": 118})
    world.job("drained", **SAVES)
    (spot,) = cluster.until(lambda: cluster.hosts("drained"), "the Job runs")
    path, other = f"{CORE}/nodes/{spot}", next(each for each in cluster.nodes if each != spot)
    taints = cluster.get(path)["spec"]["taints"]
    try:
        cluster.patch(path, {"metadata": {"labels": {"node-lifecycle": "spot"}}})
        notice = {"key": NOTICE, "value": "e2e", "effect": "NoSchedule"}
        cluster.patch(path, {"spec": {"taints": [*taints, notice]}})
        cluster.until(lambda: cluster.hosts("drained") == [other], "the Job runs on the node that stays")
    finally:
        cluster.patch(path, {"metadata": {"labels": {"node-lifecycle": None}}, "spec": {"taints": taints}})


def narrow_work_moved_together(world: DecidingService) -> None:
    """Half of each node is free, and a Job needs a whole node: one narrow Job moves beside the other."""
    cluster = world.cluster
    world.policy(modes={"defragment": "auto"}, preemption={"saves_prior": 0.9})
    halves = ("apart-one", "apart-two", "apart-three", "apart-four")
    for name in halves:
        world.job(name, gpus=4, limit_s="2h", **SAVES)
        cluster.until(lambda name=name: cluster.hosts(name), f"{name} runs")  # type: ignore[misc]
    first = cluster.hosts(halves[0])
    stays = [halves[0], next(each for each in halves if cluster.hosts(each) != first)]
    for name in halves:
        if name not in stays:
            cluster.finish(name)
    world.job("apart-wide", limit_s="1h")
    cluster.until(lambda: cluster.hosts("apart-wide"), "the wide Job runs")
    cluster.until(lambda: all(cluster.hosts(each) for each in stays), "both narrow Jobs run")
    assert cluster.hosts(stays[0]) == cluster.hosts(stays[1]) != cluster.hosts("apart-wide")
    assert [each for each in stays if "EvictBegun" in reasons(world, each)] != stays


def gone_on_after_its_node_was_lost(world: DecidingService) -> None:
    """A node fails under a Job: Kubernetes takes its pod, and the Job goes on on the node that works."""
    cluster = world.cluster
    world.job("lost-job")
    (lost,) = cluster.until(lambda: cluster.hosts("lost-job"), "the Job runs")
    other = next(each for each in cluster.nodes if each != lost)
    try:
        cluster.report(lost, ready=False)
        cluster.until(lambda: cluster.hosts("lost-job") == [other], "the Job runs on the node that works")
    finally:
        cluster.report(lost, ready=True)


def gone_as_a_whole_with_a_lost_node(world: DecidingService) -> None:
    """A node fails under a gang that needs both: what is left of it leaves as well, and it waits as a whole."""
    cluster = world.cluster
    world.policy(recovery={"stale_grace_s": 1})
    world.job("lost-gang", pods=2)
    (lost, _) = cluster.until(lambda: len(cluster.hosts("lost-gang")) == 2 and cluster.nodes, "the gang runs")
    try:
        cluster.report(lost, ready=False)
        cluster.until(lambda: not cluster.pods("lost-gang"), "no pod of the gang is left")
        world.look(2)
        assert cluster.pods("lost-gang") == []
        assert "EvictBegun" in reasons(world, "lost-gang")
    finally:
        cluster.report(lost, ready=True)
    cluster.until(lambda: cluster.hosts("lost-gang") == sorted(cluster.nodes), "the gang runs on both nodes again")


def cut_anew_for_work_that_waits(world: DecidingService) -> None:
    """A Job asks for half a GPU, and the only GPU in MIG mode is in sevenths: its node is cordoned and cut anew."""
    cluster, mig = world.cluster, PlayedMig(world.cluster)
    rules = {"dwell_s": 0, "ahead": False}
    world.policy(modes={"regeometry": "auto"}, regeometry=rules)
    cluster.job("half", gpus=1, resource=HALF, labels={MANAGE: "true"}, suspend=True)
    cluster.until(mig.asked, "the MIG manager is asked for another geometry")
    assert mig.cordoned()
    mig.begin()
    world.look(2)
    assert mig.cordoned()
    assert cluster.pods("half") == []
    mig.end()
    cluster.until(lambda: cluster.hosts("half") == [mig.node], "the Job runs on the half")
    assert not mig.cordoned()


def idle_until_its_owner_is_back(world: DecidingService) -> None:
    """Work that did nothing for half an hour yields to work that waits; its owner lets it continue afterwards."""
    cluster, steps = world.cluster, ("notify_idle", "mark_idle", "suspend_idle")
    quick = {"scan_s": 30, "batch_grace_s": 0, "gone_s": 0}
    world.policy(modes=dict.fromkeys(steps, "auto"), idle=quick, preemption={"grace_s": 300, "saves_prior": 0.9})
    world.job("idle", preemptible="true", **SAVES)
    (node,) = cluster.until(lambda: cluster.hosts("idle"), "the Job runs")
    world.job("idle-beside", preemptible="false")
    cluster.until(lambda: cluster.hosts("idle-beside"), "another Job runs on the other node")
    pod = cluster.ran_for("idle", 2400.0)
    world.job("idle-waits")
    with ExitStack() as stack:
        try:
            name = cluster.space, pod["metadata"]["name"]
            stack.enter_context(idle_history(world.folder / "telemetry", world.prometheus, node, name))
        except MissingToolError as error:
            pytest.skip(str(error))
        cluster.until(lambda: "GpusIdle" in reasons(world, "idle"), "its owner is notified")
        (asked,) = cluster.until(
            lambda: [each for each in cluster.pods() if noted(each, CHECKPOINT_REQUEST)], "a request"
        )
        acknowledge(world, asked)
        cluster.until(lambda: cluster.hosts("idle-waits") == [node], "the Job that waited runs in its place")
    stopped = cluster.workload("idle")
    assert stopped["spec"]["active"] is False
    assert cluster.pods("idle") == []
    cluster.patch(f"{cluster.inside(KUEUE, 'workloads')}/{stopped['metadata']['name']}", {"spec": {"active": True}})
    cluster.finish("idle-waits")
    cluster.until(lambda: cluster.hosts("idle") == [node], "its owner has it back")


def requested(world: DecidingService) -> list[Obj]:
    """Pods that are asked for a checkpoint."""
    return [each for each in world.cluster.pods() if noted(each, CHECKPOINT_REQUEST)]


def acknowledge(world: DecidingService, asked: Obj) -> None:
    """The training program in a pod saves, as it was asked to."""
    request = json.loads(noted(asked, CHECKPOINT_REQUEST))
    path = f"{world.cluster.inside(CORE, 'pods')}/{asked['metadata']['name']}"
    saved = {"id": request["id"], "step": 1, "path": "/ckpt/1", "at": time.time()}
    world.cluster.patch(path, {"metadata": {"annotations": {CHECKPOINT_ACK: json.dumps(saved)}}})


def waiting(world: DecidingService) -> list[Obj]:
    """Recommendations about work of the run that wait for a person."""
    found = world.cluster.items(RECOMMENDATIONS)
    return [each for each in found if each.get("status", {}).get("state") == "NeedsApproval"]


def noted(pod: Obj, annotation: str) -> str:
    """An annotation of a pod."""
    value: str = pod["metadata"].get("annotations", {}).get(annotation, "")
    return value


def check_of(world: DecidingService, job: str) -> Obj:
    """Our check on the Workload of a Job; {} before Kueue asks it."""
    rows = world.cluster.workload(job).get("status", {}).get("admissionChecks", ())
    return next((each for each in rows if each["name"] == CHECK), {})


def reasons(world: DecidingService, job: str) -> list[str]:
    """Reasons of the Events of the service on a Job."""
    return [reason for reason, _ in world.cluster.events(job)]


def tell(world: DecidingService, name: str) -> None:
    """Run a story; what it created is removed, and the policy is as before."""
    made = world.cluster.made()
    try:
        STORIES[name](world)
    except AssertionError as failed:
        failed.add_note(f"the log of the service ends so:\n{world.log()}")
        raise
    finally:
        world.policy()
        world.cluster.remove(made)
        world.cluster.until(lambda: not world.cluster.pods(), "its pods are gone")


STORIES: dict[str, Callable[[DecidingService], None]] = {
    each.__name__: each
    for each in (
        gang_admitted_whole,
        short_before_wide,
        preempted_after_its_checkpoint,
        approved_by_annotation,
        drained_before_its_node_goes,
        narrow_work_moved_together,
        gone_on_after_its_node_was_lost,
        gone_as_a_whole_with_a_lost_node,
        cut_anew_for_work_that_waits,
        idle_until_its_owner_is_back,
    )
}
LONG = (gone_on_after_its_node_was_lost.__name__, idle_until_its_owner_is_back.__name__)
"""Stories that `make e2e` tells on our own API server, and `make test` does not."""
