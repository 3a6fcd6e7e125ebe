"""Stories that run on any cluster, each by the actuator that ships: what is asked, what the cluster does, what is left.

The stories give the instructions themselves. No decision of the autopilot is part of them, so work of other people in
the cluster is never concerned. In `decision_stories.py` the service decides.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from actuators.kubernetes.upkeep import ActiveCheck
from autopilot.contract.annotations import CHECK, MANAGE
from autopilot.core.effects.admit import AdmitOperation
from autopilot.core.model.objects import Slot
from autopilot.core.model.records import OutcomeKind
from tests.kits.acting_kit import evict
from tests.kits.real_cluster import CORE, KUEUE, POLICY, RealCluster

QUEUE = "kueue.x-k8s.io/queue-name"


def place(*nodes: str) -> AdmitOperation:
    """Eight GPUs on each of these nodes."""
    return AdmitOperation(slots=tuple(Slot(name, f"{name}/{gpu}") for name in nodes for gpu in range(8)))


def refuse_without_queues(cluster: RealCluster) -> None:
    """Skip where Kueue is absent, or where our AdmissionCheck belongs to somebody else."""
    if not cluster.has_kueue():
        pytest.skip("the cluster has no Kueue (kueue.x-k8s.io/v1beta2); install it to run these stories")
    if cluster.get(f"{KUEUE}/admissionchecks/{CHECK}"):
        pytest.skip(f"the cluster has an AdmissionCheck {CHECK} already; these stories need one of their own")


def gang_under_kueue(cluster: RealCluster) -> None:
    """A gang waits for our check with its quota, and starts whole on the nodes that were chosen for it."""
    refuse_without_queues(cluster)
    cluster.queue("gangs", 16)
    actuator = cluster.actuator(upkeep=[ActiveCheck()])
    actuator.advance(time.time(), 1, ())
    uid = cluster.job("gang", pods=2, labels={QUEUE: "gangs"}, suspend=True)
    cluster.until(
        lambda: cluster.workload("gang").get("status", {}).get("admissionChecks"), "Kueue asks our check for the gang"
    )
    assert cluster.pods("gang") == []
    outcome = actuator.apply(cluster.instruction(uid, place(*cluster.nodes), "gang"), time.time())
    assert outcome.kind == OutcomeKind.ACCEPTED, outcome.reason
    cluster.until(lambda: cluster.hosts("gang") == sorted(cluster.nodes), "both pods run on the chosen nodes")
    assert {name for name, _, _ in cluster.placed()} == set(cluster.nodes)


def job_without_kueue(cluster: RealCluster) -> None:
    """A suspended Job with our label starts on the node that was chosen; one without it is left alone."""
    plain = cluster.job("plain", suspend=True)
    uid = cluster.job("ours", labels={MANAGE: "true"}, suspend=True)
    actuator = cluster.actuator()
    refused = actuator.apply(cluster.instruction(plain, place(cluster.nodes[0]), "plain"), time.time())
    assert refused.kind == OutcomeKind.FAILED
    assert MANAGE in refused.reason
    outcome = actuator.apply(cluster.instruction(uid, place(cluster.nodes[1]), "ours"), time.time())
    assert outcome.kind in {OutcomeKind.ACCEPTED, OutcomeKind.DONE}, outcome.reason
    cluster.until(lambda: cluster.hosts("ours") == [cluster.nodes[1]], "the Job runs on its node")
    assert cluster.pods("plain") == []


def eviction_under_a_budget(cluster: RealCluster) -> None:
    """A PodDisruptionBudget keeps the pod; without it the pod is evicted."""
    cluster.pod("kept", group="kept", app="kept")
    cluster.until(cluster.hosts, "the pod runs")
    budget = {"selector": {"matchLabels": {"app": "kept"}}, "minAvailable": 1}
    body = {"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "spec": budget}
    path = cluster.inside(POLICY, "poddisruptionbudgets")
    cluster.create(path, body, "kept")
    cluster.until(lambda: "observedGeneration" in cluster.get(f"{path}/kept").get("status", {}), "the budget is known")
    actuator, uid = cluster.actuator(), f"group/{cluster.space}/kept"
    outcome = actuator.apply(cluster.instruction(uid, evict(grace_s=0.0), "one"), time.time())
    assert outcome.kind == OutcomeKind.CONFLICT, outcome.reason
    assert "PodDisruptionBudget" in outcome.reason
    assert cluster.hosts() == [cluster.get(f"{cluster.inside(CORE, 'pods')}/kept")["spec"]["nodeName"]]
    cluster.api.delete(f"{path}/kept", {})
    cluster.until(lambda: not cluster.get(f"{path}/kept"), "the budget is gone")
    outcome = actuator.apply(cluster.instruction(uid, evict(grace_s=0.0), "two"), time.time())
    assert outcome.kind in {OutcomeKind.ACCEPTED, OutcomeKind.DONE}, outcome.reason
    cluster.until(lambda: not cluster.pods(), "the pod is gone")


STORIES: dict[str, Callable[[RealCluster], None]] = {
    each.__name__: each for each in (gang_under_kueue, job_without_kueue, eviction_under_a_budget)
}
