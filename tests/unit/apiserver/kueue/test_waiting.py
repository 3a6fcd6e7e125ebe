"""Texts of Kueue for Workloads that wait: flavors, topologies, and queues that admit nothing."""

from __future__ import annotations

from typing import Any

import pytest

from tests.kits.kueue_kit import API_VERSION, GPU, JOBS, ROOT, SPACE, KueueCluster

Obj = dict[str, Any]
HOST = "kubernetes.io/hostname"
SPOT = {"key": "spot", "value": "yes", "effect": "NoSchedule"}


@pytest.fixture
def kueue() -> KueueCluster:
    """A cluster with Kueue and nothing in it."""
    return KueueCluster()


def flavor(name: str, gpus: int, **limits: str) -> Obj:
    """The quota of one flavor, with limits of borrowing and lending for the GPUs."""
    gpu = {"name": GPU, "nominalQuota": str(gpus), **limits}
    return {"name": name, "resources": [{"name": "cpu", "nominalQuota": "100"}, gpu]}


def groups(*flavors: Obj) -> list[Obj]:
    """One resource group of CPUs and GPUs."""
    return [{"coveredResources": ["cpu", GPU], "flavors": list(flavors)}]


def submit(kueue: KueueCluster, name: str, queue: str, gpus: int, pods: int = 1, **spec: Any) -> str:
    """Create a Job with more in its pod spec; the text of its Workload that waits, without the pod set."""
    job = kueue.job_of(name, queue, gpus, pods)
    job["spec"]["template"]["spec"].update(spec)
    kueue.ask("POST", JOBS, job)
    kueue.run(2)
    status, reason, message = kueue.condition(name, "QuotaReserved")
    assert (status, reason) == ("False", "Pending")
    return message.removeprefix("couldn't assign flavors to pod set main: ")


def test_each_flavor_says_why_it_is_not_taken(kueue: KueueCluster) -> None:
    """One text for each flavor in the order of the texts; a taint has its fields as Go prints them."""
    old = {"key": "old", "effect": "NoExecute"}
    for name, taints in (("h100", []), ("a100", [SPOT]), ("l4", [old])):
        spec = {"nodeLabels": {"gpu": name}, "nodeTaints": taints}
        kueue.create("ResourceFlavor", "resourceflavors", name, spec)
    kueue.queue("a", 0, resourceGroups=groups(flavor("h100", 4), flavor("a100", 4), flavor("l4", 2)))
    kueue.job("one", "a", 3)
    kueue.run(2)
    tainted = (
        "untolerated taint {old  NoExecute <nil>} in flavor l4, "
        "untolerated taint {spot yes NoSchedule <nil>} in flavor a100"
    )
    quota = f"insufficient unused quota for {GPU} in flavor h100, 2 more needed"
    assert submit(kueue, "two", "a", 3) == f"{quota}, {tainted}"
    affinity = "flavor h100 doesn't match node affinity"
    assert submit(kueue, "three", "a", 1, nodeSelector={"gpu": "a100"}) == f"{affinity}, {tainted}"
    anything = [{"operator": "Exists"}]
    assert submit(kueue, "four", "a", 1, nodeSelector={"gpu": "x"}, tolerations=anything) == ", ".join(
        f"flavor {name} doesn't match node affinity" for name in ("a100", "h100", "l4")
    )


def test_limits_of_borrowing_and_lending_bound_the_maximum_capacity(kueue: KueueCluster) -> None:
    """A text of too much for ever counts what may be borrowed; one of too much for now what is used."""
    kueue.create("ResourceFlavor", "resourceflavors", "h100", {"nodeLabels": {"gpu": "h100"}})
    kueue.queue("a", 0, cohortName="all", resourceGroups=groups(flavor("h100", 4, borrowingLimit="2")))
    kueue.queue("b", 0, cohortName="all", resourceGroups=groups(flavor("h100", 4, lendingLimit="3")))
    assert submit(kueue, "huge", "a", 7).endswith("current podset request (7) > maximum capacity (6)")
    kueue.job("borrower", "a", 6)
    kueue.run(2)
    assert submit(kueue, "late", "b", 4) == f"insufficient unused quota for {GPU} in flavor h100, 2 more needed"


def topology(kueue: KueueCluster, *levels: str, **spec: Any) -> None:
    """Queue `a` of 100 GPUs whose flavor has topology `top`."""
    kueue.create("Topology", "topologies", "top", {"levels": [{"nodeLabel": level} for level in levels]})
    labels = {"nodeLabels": {"gpu": "h100"}, "topologyName": "top"}
    kueue.create("ResourceFlavor", "resourceflavors", "h100", {**labels, **spec})
    kueue.queue("a", 100)
    kueue.run(2)


def test_a_topology_says_how_many_pods_fit_and_counts_the_nodes_that_take_none(kueue: KueueCluster) -> None:
    """Nodes are counted by the taint, the selector, the affinity or the scarcest resource that excludes them."""
    for name in ("n1", "n2", "n3"):
        kueue.node(name)
    topology(kueue, HOST)
    assert submit(kueue, "most", "a", 4, pods=7) == 'topology "top" allows to fit only 6 out of 7 pod(s)'
    kueue.node("n4", taints=[SPOT])
    kueue.node("n5", gpus=2)
    assert submit(kueue, "some", "a", 4, pods=8) == (
        'topology "top" allows to fit only 6 out of 8 pod(s). '
        f'Total nodes: 5; excluded: resource "{GPU}": 1, taint "spot=yes:NoSchedule": 1'
    )
    assert submit(kueue, "none", "a", 9, nodeSelector={HOST: "n1"}) == (
        'topology "top" doesn\'t allow to fit any of 1 pod(s). '
        f'Total nodes: 5; excluded: nodeSelector: 3, resource "{GPU}": 1, taint "spot=yes:NoSchedule": 1'
    )
    terms = [{"matchExpressions": [{"key": HOST, "operator": "In", "values": ["n9"]}]}]
    affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}}
    assert submit(kueue, "away", "a", 1, affinity=affinity).endswith(
        'Total nodes: 5; excluded: affinity: 4, taint "spot=yes:NoSchedule": 1'
    )


def test_workloads_of_one_cycle_count_their_nodes_apart(kueue: KueueCluster) -> None:
    """Two queues over the same nodes: the text of each names one node."""
    kueue.node("n1")
    topology(kueue, HOST)
    kueue.queue("b", 100)
    kueue.run(2)
    for queue in ("a", "b"):
        kueue.job(queue, queue, 9)
    kueue.run(2)
    for queue in ("a", "b"):
        assert kueue.condition(queue, "QuotaReserved")[2].endswith(f'Total nodes: 1; excluded: resource "{GPU}": 1')


def test_the_tolerations_of_a_flavor_count_for_its_nodes(kueue: KueueCluster) -> None:
    """A flavor that tolerates the taint of its nodes places pods there."""
    kueue.node("n1", taints=[SPOT])
    topology(kueue, HOST, tolerations=[{"key": "spot", "operator": "Exists"}])
    kueue.job("one", "a", 8)
    kueue.run(2)
    assert kueue.admitted() == {"one"}


def test_a_topology_without_nodes_has_no_domains(kueue: KueueCluster) -> None:
    """No node of the flavor, and a node that is cordoned."""
    topology(kueue, HOST)
    assert submit(kueue, "one", "a", 1) == f"no topology domains at level: {HOST}"
    kueue.node("n1", unschedulable=True)
    assert submit(kueue, "two", "a", 2) == f"no topology domains at level: {HOST}"


def test_a_topology_above_hosts_counts_the_room_of_a_domain_as_one(kueue: KueueCluster) -> None:
    """Kueue adds up the nodes of a rack and looks at no taint there."""
    kueue.node("n1", gpus=4, taints=[SPOT])
    kueue.node("n2", gpus=4)
    topology(kueue, "gpu")
    assert submit(kueue, "huge", "a", 9) == (
        f'topology "top" doesn\'t allow to fit any of 1 pod(s). Total nodes: 1; excluded: resource "{GPU}": 1'
    )
    kueue.job("one", "a", 8)
    kueue.run(2)
    assert kueue.admitted() == {"one"}


def test_a_queue_that_admits_nothing_is_named_and_let_go(kueue: KueueCluster) -> None:
    """A stopped LocalQueue, none at all, one without its ClusterQueue, and a stopped ClusterQueue."""
    kueue.queue("a", 8)
    kueue.queue("held", 8, stopPolicy="Hold")
    for name, target, policy in (("stopped", "a", "Hold"), ("loose", "nowhere", "None")):
        local = {"apiVersion": API_VERSION, "kind": "LocalQueue", "metadata": {"name": name}}
        kueue.ask("POST", f"{SPACE}/localqueues", local | {"spec": {"clusterQueue": target, "stopPolicy": policy}})
    kueue.run(2)
    texts = {
        "stopped": "LocalQueue stopped is inactive",
        "ghost": "LocalQueue ghost doesn't exist",
        "loose": "ClusterQueue nowhere doesn't exist",
        "held": "ClusterQueue held is inactive",
    }
    for queue in texts:
        kueue.job(queue, queue, 1)
    kueue.run(2)
    found = {queue: kueue.condition(queue, "QuotaReserved") for queue in texts}
    assert found == {queue: ("False", "Inadmissible", text) for queue, text in texts.items()}
    kueue.ask("PATCH", f"{SPACE}/localqueues/stopped", {"spec": {"stopPolicy": "None"}})
    kueue.ask("PATCH", f"{ROOT}/clusterqueues/held", {"spec": {"stopPolicy": "None"}})
    kueue.queue("nowhere", 8)
    kueue.queue("b", 8, local="ghost")
    kueue.run(3)
    assert kueue.admitted() == set(texts)
