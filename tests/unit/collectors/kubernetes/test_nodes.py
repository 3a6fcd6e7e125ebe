"""Nodes: from labels, capacity and taints to the inventory."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest

from autopilot.contract.annotations import EFFECT
from autopilot.core.model.snapshot import Recut, Topology
from collectors.kubernetes.collector import Options
from collectors.kubernetes.nodes import BY_MIG_MANAGER
from collectors.kubernetes.products import model_of
from tests.kits.kube_objects import EPOCH_S, job, meta, node, pod, stamp
from tests.unit.collectors.kubernetes.view import Seen, held, reasons, row, suited


def _node(column: str, *objects: Any, place: int = 0, options: Options | None = None) -> Any:
    return getattr(Seen(*objects, options=options).tables()[0].nodes, column)[place]


def test_a_node_has_the_model_of_its_product_label() -> None:
    """Product labels are names of GPU models, also with suffixes of sharing and MIG, and for models without MIG."""
    assert model_of("NVIDIA-H100-80GB-HBM3-SHARED") == "H100-80GB"
    assert model_of("NVIDIA-A100-SXM4-80GB-MIG-1g.10gb") == "A100-80GB"
    assert (model_of("NVIDIA-L40S"), model_of("Tesla-T4"), model_of("")) == ("L40S", "T4", "unknown")


def test_nodes_without_gpus_are_no_part_of_the_inventory() -> None:
    """A node of CPUs holds none of our work."""
    plain = node("cpu-1", 0, labels={"nvidia.com/gpu.product": "", "nvidia.com/gpu.count": ""})
    del plain["status"]["capacity"]["nvidia.com/gpu"]
    inventory, _ = Seen(plain, node("n1", 4)).tables()
    assert inventory.nodes.id.tolist() == ["n1"]
    assert inventory.gpus.uuid.tolist() == [f"n1:gpu{k}" for k in range(4)]


def test_mig_instances_of_the_mixed_strategy_are_laid_out() -> None:
    """Two of eight GPUs are cut into seven instances each; the others stay whole."""
    cut = node(
        "n1", 8, capacity={"nvidia.com/gpu": "6", "nvidia.com/mig-1g.10gb": "14"}, allocatable={"nvidia.com/gpu": "6"}
    )
    inventory, _ = Seen(cut).tables()
    assert inventory.gpus.mig.tolist() == [False] * 6 + [True] * 2
    assert Counter(inventory.instances.gpu.tolist()) == {6: 7, 7: 7}
    assert sorted(inventory.instances.start[:7]) == list(range(7))


def test_instances_of_the_single_strategy_are_asked_for_as_gpus() -> None:
    """`nvidia.com/gpu` is an instance there, and the label counts instances: a pod holds one of them."""
    single = node("n1", 7, product="NVIDIA-H100-80GB-HBM3-MIG-1g.10gb", labels={"nvidia.com/mig.strategy": "single"})
    seen = Seen(single, pod("p", 1, node="n1")).tables()
    assert (len(seen[0].gpus.uuid), len(seen[0].instances.id)) == (1, 7)
    assert held(seen, "team/p") == [seen[0].instances.id[0]]
    assert seen[0].names.profiles[row(seen[1], "team/p")["mig_profile"]] == "1g.10gb"


def test_a_time_sliced_gpu_is_shared() -> None:
    """Four pods share one GPU; each holds a quarter."""
    labels = {"nvidia.com/gpu.replicas": "4", "nvidia.com/gpu.sharing-strategy": "time-slicing"}
    shared = node("n1", 1, product="NVIDIA-L40S-SHARED", capacity={"nvidia.com/gpu": "4"}, labels=labels)
    inventory, work = Seen(shared, *[pod(f"p{k}", 1, node="n1") for k in range(3)]).tables()
    assert len(inventory.gpus.uuid) == 1
    assert work.placements.milli.tolist() == [250, 250, 250]
    assert row(work, "team/p0")["gpu_milli"] == 0  # it requested a whole GPU


def test_a_node_whose_geometry_changes_is_known_by_its_label() -> None:
    """The MIG manager's state: pending and rebooting are a change, failed is failed."""
    for state, recut in (("pending", Recut.CHANGING), ("failed", Recut.FAILED), ("success", Recut.SETTLED)):
        cut = node(
            "n1",
            2,
            capacity={"nvidia.com/gpu": "0", "nvidia.com/mig-1g.10gb": "14"},
            labels={"nvidia.com/mig.config.state": state},
        )
        assert Seen(cut).tables()[0].gpus.recut.tolist() == [recut, recut]


def test_a_change_of_ours_ends_with_its_record() -> None:
    """The manager reports success before the node offers the new instances: until then its GPUs change."""
    for step, state, recut in (
        ("cordoned", "success", Recut.SETTLED),
        ("set", "success", Recut.CHANGING),
        ("set", "", Recut.CHANGING),
        ("set", "failed", Recut.FAILED),
        ("", "success", Recut.SETTLED),
    ):
        cut = node("n1", 2, capacity={"nvidia.com/gpu": "0"}, labels={"nvidia.com/mig.config.state": state})
        cut["metadata"]["labels"]["nvidia.com/mig.strategy"] = "mixed"
        record = json.dumps({"id": "1/p/g", "kind": "recut", "step": step}) if step else "no record"
        cut["metadata"]["annotations"] = {EFFECT: record}
        assert Seen(cut).tables()[0].gpus.recut.tolist() == [recut, recut]


def test_topology_comes_from_labels() -> None:
    """NVLink domain, leaf, block and zone; without a label the island is the node."""
    one = {"nvidia.com/gpu.clique": "c.0", "network.topology.nvidia.com/leaf": "l1", "topology.kubernetes.io/zone": "a"}
    two = {**one, "network.topology.nvidia.com/leaf": "l2"}
    nodes = Seen(node("n1", labels=one), node("n2", labels=one), node("n3", labels=two), node("n4")).tables()[0].nodes
    assert nodes.island[0] == nodes.island[1] != nodes.island[3]
    assert nodes.leaf[0] == nodes.leaf[1] != nodes.leaf[2]
    assert nodes.zone[0] == nodes.zone[2] != nodes.zone[3]


def test_the_settings_name_a_label_of_their_own() -> None:
    """A label of the settings comes before the usual ones."""
    found = [node(name, labels={"rack": rack}) for name, rack in (("n1", "r1"), ("n2", "r2"), ("n3", "r1"))]
    nodes = Seen(*found, options=Options({"leaf": "rack"})).tables()[0].nodes
    assert nodes.leaf[0] == nodes.leaf[2] != nodes.leaf[1]


def test_kueues_topology_names_the_labels_of_its_levels() -> None:
    """Its narrowest level above the host is our leaf; the next one is the block."""
    levels = [{"nodeLabel": each} for each in ("dc/block", "dc/rack", "kubernetes.io/hostname")]
    topology = {"kind": "Topology", "metadata": meta("t"), "spec": {"levels": levels}}
    found = [node(f"n{k}", labels={"dc/block": "b", "dc/rack": f"r{k % 2}"}) for k in range(3)]
    nodes = Seen(topology, *found).tables()[0].nodes
    assert nodes.leaf[0] == nodes.leaf[2] != nodes.leaf[1]
    assert len(set(nodes.block.tolist())) == 1


def test_a_level_without_a_label_asks_nothing_of_work() -> None:
    """Work names no topology: it must not be taken for one that asks for this level."""
    topology = {"kind": "Topology", "metadata": meta("t"), "spec": {"levels": [{"nodeLabel": ""}]}}
    _, work = Seen(topology, node("n1"), job("j", 1)).tables()
    assert row(work, "team/j")["topology"] == Topology.NONE


@pytest.mark.parametrize(
    ("changed", "column", "value"),
    [
        ({"ready": False}, "ready", False),
        ({"unschedulable": True}, "cordoned", True),
        ({"taints": [{"key": "ToBeDeletedByClusterAutoscaler", "effect": "NoSchedule"}]}, "cordoned", True),
        ({"taints": [{"key": "example.com/maintenance", "effect": "NoSchedule"}]}, "cordoned", True),
        ({"labels": {"karpenter.sh/capacity-type": "spot"}}, "spot", True),
        ({"taints": [{"key": "nvidia.com/gpu", "effect": "NoSchedule"}]}, "cordoned", False),
    ],
)  # fmt: skip
def test_states_of_nodes(changed: Any, column: str, value: object) -> None:
    """Not ready, cordoned, about to be removed, under maintenance, spot; the taint of GPU nodes says nothing."""
    assert _node(column, node("n1", **changed)) == value


def test_a_taint_keeps_work_away_that_does_not_tolerate_it() -> None:
    """A tainted pool is a label that only the other nodes have, and that such work asks for."""
    tainted = node("n1", taints=[{"key": "team", "value": "a", "effect": "NoSchedule"}])
    tolerant = pod("in", 1, tolerations=[{"key": "team", "operator": "Exists"}])
    seen = Seen(tainted, node("n2"), tolerant, pod("out", 1)).tables()
    assert row(seen[1], "team/in")["selector"] == 0
    assert suited(seen, "team/out") == [False, True]


def test_selectors_and_affinity_are_labels_of_nodes() -> None:
    """A selector and a required affinity with alternatives become bits that the right nodes have."""
    term = {"matchExpressions": [{"key": "disk", "operator": "In", "values": ["ssd", "nvme"]}]}
    affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}}
    nodes = [node(f"n{k}", labels={"disk": disk}) for k, disk in enumerate(("ssd", "hdd", "nvme"))]
    seen = Seen(*nodes, pod("a", affinity=affinity), pod("s", nodeSelector={"disk": "hdd"})).tables()
    assert suited(seen, "team/a") == [True, False, True]
    assert suited(seen, "team/s") == [False, True, False]


OPERATORS: list[tuple[str, list[str], list[bool]]] = [
    ("In", ["ssd", "absent"], [True, False, False]),
    ("NotIn", ["ssd"], [False, True, True]),
    ("Exists", [], [True, True, False]),
    ("DoesNotExist", [], [False, False, True]),
    ("Gt", ["5"], [False, True, False]),
    ("Lt", ["7"], [False, False, False]),
    ("Gt", ["5" * 30], [False, False, False]),
    ("Like", ["ssd"], [False, False, False]),
]


@pytest.mark.parametrize(("operator", "values", "expected"), OPERATORS)
def test_every_operator_of_an_affinity_is_understood(operator: str, values: list[str], expected: list[bool]) -> None:
    """A node without the label meets NotIn and DoesNotExist; an unknown operator is not met."""
    term = {"matchExpressions": [{"key": "disk", "operator": operator, "values": values}]}
    affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}}
    nodes = [node("n0", labels={"disk": "ssd"}), node("n1", labels={"disk": "7"}), node("n2")]
    assert suited(Seen(*nodes, pod("a", affinity=affinity)).tables(), "team/a") == expected


def test_a_name_in_an_affinity_is_that_of_the_node() -> None:
    """Match fields know no other field, and an empty term selects nothing."""
    for key, expected in (("metadata.name", [True, False]), ("metadata.uid", [False, False])):
        terms: list[dict[str, Any]] = [{"matchFields": [{"key": key, "operator": "In", "values": ["n0"]}]}, {}]
        affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}}
        assert suited(Seen(node("n0"), node("n1"), pod("a", affinity=affinity)).tables(), "team/a") == expected


def test_a_tenant_with_very_many_selectors_takes_none_from_others() -> None:
    """200 nodes, 300 selectors of one tenant, and a gang for every node that names its host: all have their nodes."""
    nodes = [node(f"n{k}", labels={"disk": "ssd" if k == 7 else "hdd"}) for k in range(200)]
    greedy = [pod(f"p{k}", nodeSelector={"only": str(k)}) for k in range(300)]
    pinned = [pod(f"h{k}", nodeSelector={"kubernetes.io/hostname": f"n{k}"}) for k in range(200)]
    seen = Seen(*nodes, *greedy, *pinned)
    batch = seen.batch()
    assert batch.work is not None
    assert not batch.work.workloads.excluded.any()
    late = seen.tables(pod("late", nodeSelector={"disk": "ssd"}))
    places = [each.metadata.name for each in seen.collector._nodes._index[1].nodes]  # type: ignore[index]
    assert [name for name, suits in zip(places, suited(late, "team/late"), strict=True) if suits] == ["n7"]
    for name in ("n0", "n63", "n64", "n199"):
        host = suited(late, f"team/h{name[1:]}")
        assert [place for place, suits in zip(places, host, strict=True) if suits] == [name]


def test_selectors_of_work_that_is_gone_are_forgotten() -> None:
    """A fleet whose jobs name their hosts for years keeps the selectors of its present work."""
    seen = Seen(node("n1", labels={"disk": "ssd"}), pod("stays", nodeSelector={"disk": "ssd"}))
    for each in range(6):
        many = [pod(f"p{each}-{k}", nodeSelector={"only": f"{each}-{k}"}) for k in range(100)]
        seen.tables(*many)
        last = seen.tables(gone=tuple(many))
    assert len(last[0].names.selectors) <= 2 + 256 + 100
    assert suited(last, "team/stays") == [True]


# --- hardware that lies ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("capacity", "allocatable", "says"),
    [
        ({"nvidia.com/gpu": "8"}, {"nvidia.com/gpu": "9"}, "allocatable is 9 and capacity is 8"),
        ({"nvidia.com/gpu": "12"}, {"nvidia.com/gpu": "12"}, "capacity states 12 GPUs and the label"),
        ({"nvidia.com/gpu": "many"}, {"nvidia.com/gpu": "many"}, "is 'many', which is no number of GPUs"),
        ({"nvidia.com/gpu": "7500m"}, {"nvidia.com/gpu": "7500m"}, "is '7500m', which is no number of GPUs"),
    ],
)  # fmt: skip
def test_allocatable_that_lies_is_named_and_the_node_gets_no_work(capacity: Any, allocatable: Any, says: str) -> None:
    """The smaller number counts, the node is cordoned for us, and the gap names it."""
    batch = Seen(node("n1", capacity=capacity, allocatable=allocatable), node("n2")).batch()
    assert batch.inventory is not None
    assert [each for each in reasons(batch, "allocatable") if each.startswith("n1: ") and says in each]
    assert batch.inventory.nodes.cordoned.tolist() == [True, False]
    assert len(batch.inventory.gpus.uuid) == 16
    assert batch.inventory_list.complete


def test_a_node_that_states_a_billion_gpus_has_none() -> None:
    """An absurd number is not believed, and does not cost memory."""
    lie = node("n1", capacity={"nvidia.com/gpu": "1000000000"}, labels={"nvidia.com/gpu.count": ""})
    batch = Seen(lie).batch()
    assert batch.inventory is not None
    assert len(batch.inventory.gpus.uuid) == 0
    assert "no number of GPUs" in reasons(batch, "allocatable")[0]


def test_gpus_that_the_device_plugin_withdraws_are_unhealthy() -> None:
    """Which they are is not said, so free ones are taken: work is not accused of a broken GPU."""
    sick = node("n1", 4, allocatable={"nvidia.com/gpu": "3"})
    inventory, _ = Seen(sick, pod("p", 3, node="n1")).tables()
    assert inventory.gpus.healthy.tolist() == [True, True, True, False]


def test_pods_beyond_what_a_node_has_are_named_and_left_alone() -> None:
    """Nine GPUs are held on a node of eight: the pod that found none is excluded."""
    seen = Seen(node("n1", 8), *[pod(f"p{k}", 3, node="n1") for k in range(3)])
    batch = seen.batch()
    assert batch.work is not None
    assert int(batch.work.workloads.excluded.sum()) == 1
    assert len(batch.work.placements.gpu) == 6
    (reason,) = reasons(batch, "allocatable")
    assert "its node has no GPU left for it" in reason


def test_a_missing_product_label_is_named() -> None:
    """Without feature discovery the model is unknown, and the fix is in the gap."""
    batch = Seen(node("n1", labels={"nvidia.com/gpu.product": ""})).batch()
    assert "install GPU feature discovery" in reasons(batch, "nvidia.com/gpu.product")[0]


# --- changes --------------------------------------------------------------------------------------


def test_a_deleted_node_is_reported_with_its_gpus() -> None:
    """The core can tell it from a list that shrank."""
    gone = node("n2", 2)
    seen = Seen(node("n1", 2), gone)
    seen.tables()
    batch = seen.batch(gone=(gone,))
    assert set(batch.inventory_list.deleted) == {"n2", "n2:gpu0", "n2:gpu1"}
    assert batch.inventory is not None
    assert batch.inventory.nodes.id.tolist() == ["n1"]


def test_a_pod_keeps_its_gpus_while_others_come_and_go() -> None:
    """What a pod holds does not move when a neighbour leaves or a label of the node changes."""
    first, second = pod("a", 2, node="n1"), pod("b", 2, node="n1")
    seen = Seen(node("n1"), first, second)
    before = held(seen.tables(), "team/b")
    after = seen.tables(node("n1", labels={"new": "label"}), gone=(first,))
    assert held(after, "team/b") == before == ["n1:gpu2", "n1:gpu3"]


def test_a_pod_that_is_known_before_its_node_holds_gpus_when_the_node_comes() -> None:
    """Kinds arrive in any order."""
    seen = Seen(pod("a", 2, node="n1"), node("n0"))
    seen.tables()
    assert held(seen.tables(node("n1")), "team/a") == ["n1:gpu0", "n1:gpu1"]


def test_an_unchanged_view_is_the_same_object() -> None:
    """Heartbeats of nodes change nothing."""
    seen = Seen(node("n1"), job("j", 1, width=2))
    first = seen.tables()
    beat = node("n1")
    beat["status"]["conditions"][0]["lastHeartbeatTime"] = stamp(EPOCH_S + 60)
    second = seen.tables(beat)
    assert first[0] is second[0]
    assert first[1] is second[1]


def test_only_a_mig_manager_with_the_strategy_mixed_changes_geometries() -> None:
    """Other nodes keep theirs: a decision about them could not be carried out."""
    capable = {"nvidia.com/mig.capable": "true"}
    assert _node("mig_scopes", node("n1", labels=capable)) == BY_MIG_MANAGER
    assert _node("mig_scopes", node("n1")) == 0
    assert _node("mig_scopes", node("n1", labels=capable | {"nvidia.com/mig.strategy": "single"})) == 0


def test_pods_on_a_node_that_is_not_known_leave_the_tables_of_nodes_as_they_are() -> None:
    """A gap counts them as long as they are there."""
    seen, far = Seen(node("n")), pod("p", 8, node="far")
    before = seen.batch(pod("q", 8, node="n"))
    came, left = seen.batch(far), seen.batch(gone=(far,))
    assert came.inventory is left.inventory is before.inventory
    assert [len(reasons(each, "nodes")) for each in (before, came, left)] == [0, 1, 0]
