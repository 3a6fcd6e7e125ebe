"""Cluster files: shapes, pools, MIG, queues, and every mistake in one message."""

import os
from pathlib import Path

import pytest

from autopilot.core.hardware import mig
from autopilot.core.hardware.gpu_products import PRODUCTS
from autopilot.core.model.errors import InputError
from autopilot.core.model.snapshot import Displace
from simulator.specs.clusterfile import parse_cluster, shape_cluster
from simulator.specs.inventory import build_inventory

POOL = "{name: a, nodes: 4, gpus_per_node: 8, gpu_model: H100-80GB}"

FULL = """
pools:
  - name: train
    nodes: 32
    gpus_per_node: 8
    gpu_model: NVIDIA H100 80GB HBM3
    cpus: 192
    memory_mib: 2048Gi
    island: 4
    nodes_per_leaf: 8
    leaves_per_block: 2
    zone: a
    price_weight: 1.5
    sharing: mps-2
    sharing_offers: [time-slicing-4, mps-2]
  - name: slices
    nodes: 2
    gpus_per_node: 4
    gpu_model: A100-80GB
    spot: true
    mig:
      - {gpus_per_node: 1, geometry: {3g.40gb: 1, 2g.20gb: 1, 1g.10gb: 1}}
      - {gpus_per_node: 2, geometry: {1g.10gb: 7}}
queues:
  - {name: team, parent: org, guarantee: {H100-80GB: 64}, weight: 2, order: index}
  - {name: org, guarantee: {H100-80GB: 128, A100-80GB: 8}, limit: 200, priority: 3}
"""


def cluster_file(folder: Path, text: str) -> Path:
    """A cluster file with this text."""
    path = folder / "cluster.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def with_queues(queues: str) -> str:
    """The text of a cluster file with one pool and these queues."""
    return f"pools: [{POOL}]\nqueues: {queues}\n"


def test_a_cluster_file_may_name_every_product_that_labels_name(tmp_path: Path) -> None:
    """The name that a node's label stands for is a model of the simulator, with its memory."""
    for product in PRODUCTS:
        text = f"pools: [{{name: a, nodes: 1, gpus_per_node: 8, gpu_model: {product.name}}}]"
        pool = parse_cluster(str(cluster_file(tmp_path, text))).pools[0]
        assert (pool.gpu_model, pool.gpu_memory_gb) == (product.name, product.memory_gb)
        build_inventory(parse_cluster(str(cluster_file(tmp_path, text))))


def test_a_product_that_is_cut_like_another_one_may_be_cut(tmp_path: Path) -> None:
    """An A800 has the instances of an A100."""
    text = (
        "pools: [{name: a, nodes: 1, gpus_per_node: 8, gpu_model: NVIDIA-A800-SXM4-40GB, mig: {geometry: {1g.5gb: 7}}}]"
    )
    assert parse_cluster(str(cluster_file(tmp_path, text))).pools[0].mig[0].gpus == 8


def test_a_shape_is_nodes_times_gpus() -> None:
    """`7x8` is seven nodes of eight GPUs in one pool, each node its own island."""
    cluster = parse_cluster("7x8")
    assert (cluster.nodes, cluster.gpus, len(cluster.pools), cluster.queues) == (7, 56, 1, ())
    assert cluster.pools[0].nodes_per_island == 1
    assert cluster.capacity.gpus == 56
    assert cluster == shape_cluster(7, 8)


@pytest.mark.parametrize(
    "text", ["0x8", "7x0", "7x73", "200001x8", "1000000000x1", "1000000x1000", "99999999x99999999"]
)
def test_an_absurd_shape_is_refused(text: str) -> None:
    """A billion GPUs, or none, is one message with the limits."""
    with pytest.raises(InputError, match=r"200,000 nodes of 1 to 72 GPUs"):
        parse_cluster(text)


@pytest.mark.parametrize("text", ["seven", "7 by 8", "-7x8", "7.5x8", ""])
def test_what_is_neither_shape_nor_file_is_said(text: str) -> None:
    """Any other word is answered with what may be written."""
    with pytest.raises(InputError, match=r"7x8|cannot be read"):
        parse_cluster(text)


def test_a_file_describes_pools_and_queues(tmp_path: Path) -> None:
    """All fields of a cluster file arrive, units and vendor names translated, parents before children."""
    cluster = parse_cluster(cluster_file(tmp_path, FULL))
    train, slices = cluster.pools
    assert (cluster.nodes, cluster.gpus, cluster.gpus_by_model) == (
        34,
        264,
        {"H100-80GB": 256, "A100-80GB": 8},
    )
    assert (train.gpu_model, train.memory_mib, train.cpus, train.gpu_memory_gb) == (
        "H100-80GB",
        2097152,
        192,
        80,
    )
    assert (train.nodes_per_island, train.nodes_per_leaf, train.nodes_per_block) == (4, 8, 16)
    assert (train.spot, slices.spot, train.price_weight, slices.cpus) == (False, True, 1.5, None)
    assert [spec.gpus for spec in slices.mig] == [1, 2]
    assert all(mig.is_legal("A100-80GB", spec.placements) for spec in slices.mig)
    assert len(slices.mig[1].placements) == 7
    assert [queue.name for queue in cluster.queues] == ["org", "team"]
    assert (cluster.queues[0].limit, cluster.queues[0].priority, cluster.queues[1].order) == (200, 3, "index")
    assert cluster.queues[1].guarantee == {"H100-80GB": 64}


def test_a_queue_states_limits_and_weights_by_model_and_whom_it_displaces(tmp_path: Path) -> None:
    """Every field of a queue arrives; what is left out is what Kueue recommends for a queue in a cohort."""
    text = """[{name: a, limit: {all: 20, H100-80GB: 12}, weight: {all: 3, H100-80GB: 2}, priority: -5, strict: true,
        guarantee: {H100-80GB: 8}, borrow_limit: 4, lend_limit: 6, within_queue: lower-or-newer-equal, reclaim: lower,
        while_borrowing: any, while_borrowing_priority: 9}, {name: b}, {name: c, limit: {H100-80GB: 7}}]"""
    full, plain, only = parse_cluster(cluster_file(tmp_path, with_queues(text))).queues
    assert (full.limit, full.limit_by_model) == (20, {"H100-80GB": 12})
    assert (full.weight, full.weight_by_model, full.priority, full.strict) == (
        3.0,
        {"H100-80GB": 2.0},
        -5,
        True,
    )
    assert (full.borrow_limit, full.lend_limit) == (4, 6)
    assert (full.within_queue, full.reclaim) == (Displace.LOWER_OR_NEWER_EQUAL, Displace.LOWER)
    assert (full.while_borrowing, full.while_borrowing_priority) == (Displace.ANY, 9)
    assert (plain.within_queue, plain.reclaim, plain.while_borrowing) == (
        Displace.LOWER,
        Displace.ANY,
        Displace.NEVER,
    )
    assert (plain.borrow_limit, plain.lend_limit, plain.strict, plain.limit_by_model) == (
        None,
        None,
        False,
        {},
    )
    assert (only.limit, only.limit_by_model, only.weight) == (None, {"H100-80GB": 7}, 1.0)


def test_a_limit_of_one_model_holds_for_the_queues_below(tmp_path: Path) -> None:
    """As for all GPUs together: the least on the path; a job that is wider in it can never run."""
    queues = (
        "[{name: a, limit: {H100-80GB: 9}}, {name: b, parent: a}, {name: c, parent: a, limit: {H100-80GB: "
        "4}}, {name: d}]"
    )
    cluster = parse_cluster(cluster_file(tmp_path, with_queues(queues)))
    assert cluster.limit_by_queue_and_model == {
        "a": {"H100-80GB": 9},
        "b": {"H100-80GB": 9},
        "c": {"H100-80GB": 4},
    }
    capacity = cluster.capacity
    assert [capacity.most_gpus(tenant, ["H100-80GB"]) for tenant in "acd"] == [9, 4, 32]


def test_a_limit_holds_for_the_queues_below(tmp_path: Path) -> None:
    """What a queue may hold at most is the least limit on its path; a path without one has none."""
    queues = (
        "[{name: a, limit: 9}, {name: b, parent: a}, {name: c, parent: a, limit: 4}, {name: d, limit: 0}, {name: e}]"
    )
    cluster = parse_cluster(cluster_file(tmp_path, with_queues(queues)))
    assert cluster.limit_by_queue == {"a": 9, "b": 9, "c": 4, "d": 0}
    assert cluster.capacity.limit_by_tenant == cluster.limit_by_queue


@pytest.mark.parametrize(
    ("pools", "words"),
    [
        ("[]", ["pools", "at least one pool"]),
        ("7", ["pools", "write a list"]),
        ("[7]", ["pools[0]", "mapping"]),
        ("[{nodes: 4, gpus_per_node: 8, gpu_model: T4}]", ["pools[0].name", "is missing"]),
        ("[{name: a, nodes: 4, gpus_per_node: 8, gpu_model: a100}]", ["'a100'", "A100-40GB, ", "name one of them"]),
        (
            "[{name: a, nodes: 0, gpus_per_node: 8, gpu_model: T4}]",
            ["pools[0].nodes", "0", "from 1 to 200,000"],
        ),
        ("[{name: a, nodes: 1000000000, gpus_per_node: 1, gpu_model: T4}]", ["pools[0].nodes", "200,000"]),
        ("[{name: a, nodes: true, gpus_per_node: 8, gpu_model: T4}]", ["pools[0].nodes", "True"]),
        ("[{name: a, nodes: 4, gpus_per_node: 99, gpu_model: T4}]", ["pools[0].gpus_per_node", "99", "72"]),
        (
            "[{name: a, nodes: 4, gpus_per_node: 8, gpu_model: H1OO}]",
            ["pools[0].gpu_model", "'H1OO'", "H100-80GB"],
        ),
        (
            "[{name: a, nodes: 4, gpus_per_node: 8, gpu_model: T4, island: 5}]",
            ["pools[0].island", "5", "node, pool"],
        ),
        (
            "[{name: a, nodes: 4, gpus_per_node: 8, gpu_model: T4, colour: red}]",
            ["pools[0].colour", "no such field"],
        ),
        (
            "[{name: a, nodes: 4, gpus_per_node: 8, gpu_model: T4, spot: maybe}]",
            ["pools[0].spot", "true or false"],
        ),
        (
            "[{name: a, nodes: 4, gpus_per_node: 8, gpu_model: T4, price_weight: 0}]",
            ["pools[0].price_weight", "above 0"],
        ),
        (
            "[{name: a, nodes: 4, gpus_per_node: 8, gpu_model: T4, memory_mib: lots}]",
            ["pools[0].memory_mib", "lots"],
        ),
        (
            "[{name: a, nodes: 4, gpus_per_node: 8, gpu_model: T4, mig: {geometry: {1g.10gb: 1}}}]",
            ["pools[0].mig", "T4"],
        ),
        (
            "[{name: a, nodes: 4, gpus_per_node: 8, gpu_model: T4, sharing: mps-1}]",
            ["pools[0].sharing", "'mps-1'", "from 2 to 48"],
        ),
        (
            "[{name: a, nodes: 4, gpus_per_node: 8, gpu_model: T4, sharing_offers: time-slicing-4}]",
            ["pools[0].sharing_offers", "time-slicing-N or mps-N"],
        ),
        (
            f"[{POOL[:-1]}, mig: {{geometry: {{1g.10gb: 1}}}}, sharing: mps-2}}]",
            ["pools[0].sharing", "MIG"],
        ),
        (f"[{POOL}, {POOL}]", ["pools[1].name", "'a'", "pools[0]"]),
    ],
)
def test_a_mistake_in_a_pool_is_named(tmp_path: Path, pools: str, words: list[str]) -> None:
    """File, field path, value and what is allowed stand in one message."""
    path = cluster_file(tmp_path, f"pools: {pools}\n")
    with pytest.raises(InputError) as error:
        parse_cluster(path)
    for word in [str(path), *words]:
        assert word in str(error.value)


@pytest.mark.parametrize(
    ("cut", "words"),
    [
        ("{geometry: {1g.10gb: 8}}", ["mig[0].geometry", "do not fit together"]),
        ("{geometry: {4g.40gb: 2}}", ["mig[0].geometry", "do not fit together"]),
        ("{geometry: {1g.5gb: 1}}", ["mig[0].geometry.1g.5gb", "no such profile", "1g.10gb"]),
        ("{geometry: {1g.10gb: 0}}", ["mig[0].geometry.1g.10gb", "whole number"]),
        ("{gpus_per_node: 9, geometry: {1g.10gb: 1}}", ["mig[0].gpus_per_node", "9"]),
        ("{geometry: {}}", ["mig[0].geometry", "how many of each"]),
        (
            "[{gpus_per_node: 5, geometry: {1g.10gb: 1}}, {gpus_per_node: 4, geometry: {2g.20gb: 1}}]",
            ["9 GPUs", "has 8"],
        ),
    ],
)
def test_illegal_mig_is_refused(tmp_path: Path, cut: str, words: list[str]) -> None:
    """A geometry that the GPU model does not have is one message."""
    path = cluster_file(tmp_path, "pools: [" + POOL[:-1] + ", mig: " + cut + "}]\n")
    with pytest.raises(InputError) as error:
        parse_cluster(path)
    for word in words:
        assert word in str(error.value)


@pytest.mark.parametrize(
    ("queues", "words"),
    [
        ("[{name: a}, {name: a}]", ["queues[1].name", "twice"]),
        ("[{name: a, parent: b}]", ["queues[0].parent", "'b'", "no such queue"]),
        ("[{name: a, parent: b}, {name: b, parent: a}]", ["parent", "cycle", "a -> b -> a"]),
        ("[{name: a, parent: a}]", ["cycle", "a -> a"]),
        ("[{name: a, weight: 0}]", ["queues[0].weight", "above 0"]),
        ("[{name: a, weight: -1}]", ["queues[0].weight", "-1"]),
        ("[{name: a, limit: -1}]", ["queues[0].limit", "-1"]),
        ("[{name: a, priority: 1.5}]", ["queues[0].priority", "1.5"]),
        ("[{name: a, order: random}]", ["queues[0].order", "submission, index"]),
        ("[{name: a, guarantee: {T4: 1}}]", ["queues[0].guarantee.T4", "no pool has", "H100-80GB"]),
        ("[{name: a, guarantee: {H100-80GB: -1}}]", ["queues[0].guarantee.H100-80GB", "-1"]),
        ("[{name: a, guarantee: {H100-80GB: 9}, limit: 8}]", ["queues[0].limit", "guarantee of 9"]),
        ("[{name: a, guarantee: {H100-80GB: 33}}]", ["33", "the cluster has 32"]),
        (
            (
                "[{name: a, guarantee: {H100-80GB: 8}}, {name: b, parent: a, guarantee: {H100-80GB: 5}},"
                " {name: c, parent: a, guarantee: {H100-80GB: 4}}]"
            ),
            ["queues[0].guarantee", "under a", "9", "8"],
        ),
        ("[{name: root}]", ["queues[0].name", "root"]),
        ("[{name: a, limit: {H100-80GB: -1}}]", ["queues[0].limit.H100-80GB", "-1"]),
        ("[{name: a, limit: {T4: 1}}]", ["queues[0].limit.T4", "no pool has", "all, H100-80GB"]),
        (
            "[{name: a, limit: {H100-80GB: 3}, guarantee: {H100-80GB: 4}}]",
            ["queues[0].limit", "of H100-80GB", "guarantee of 4"],
        ),
        ("[{name: a, limit: {all: 3}, guarantee: {H100-80GB: 4}}]", ["queues[0].limit", "guarantee of 4"]),
        ("[{name: a, weight: {H100-80GB: 0}}]", ["queues[0].weight.H100-80GB", "above 0"]),
        ("[{name: a, weight: {A100: 1}}]", ["queues[0].weight.A100", "no pool has"]),
        ("[{name: a, priority: 2147483648}]", ["queues[0].priority", "2147483648", "2,147,483,647"]),
        ("[{name: a, strict: sure}]", ["queues[0].strict", "true or false"]),
        ("[{name: a, borrow_limit: -1}]", ["queues[0].borrow_limit", "-1"]),
        ("[{name: a, guarantee: {H100-80GB: 4}, lend_limit: 5}]", ["queues[0].lend_limit", "guarantee of 4"]),
        ("[{name: a, reclaim: maybe}]", ["queues[0].reclaim", "never, lower, lower-or-newer-equal, any"]),
        (
            "[{name: a, reclaim: never, while_borrowing: lower}]",
            ["queues[0].while_borrowing", "reclaim is never"],
        ),
        ("[{name: a, while_borrowing_priority: 5}]", ["queues[0].while_borrowing_priority", "no effect"]),
        ("[{name: a, color: 1}]", ["queues[0].color", "no such field"]),
    ],
)
def test_a_mistake_in_a_queue_is_named(tmp_path: Path, queues: str, words: list[str]) -> None:
    """Cycles, orphans, duplicates and promises that cannot be kept are one message each."""
    path = cluster_file(tmp_path, with_queues(queues))
    with pytest.raises(InputError) as error:
        parse_cluster(path)
    for word in [str(path), *words]:
        assert word in str(error.value)


@pytest.mark.parametrize("text", ["", "- 1\n", "pools: [", "pools: &a [*a]\n", "\x00", "machines: []\n"])
def test_a_broken_file_is_one_message(tmp_path: Path, text: str) -> None:
    """Empty files, lists, broken YAML and unknown top fields name the file."""
    path = cluster_file(tmp_path, text)
    with pytest.raises(InputError, match=r"cluster\.yaml"):
        parse_cluster(path)


def test_a_key_that_stands_twice_is_refused(tmp_path: Path) -> None:
    """The second would silently take the place of the first."""
    path = cluster_file(tmp_path, f"pools: [{POOL}]\nqueues: []\nqueues: [{{name: a}}]\n")
    with pytest.raises(InputError, match=r"line 3.*'queues' occurs twice"):
        parse_cluster(path)


def test_a_long_value_is_cut_in_the_message(tmp_path: Path) -> None:
    """One line, whatever stands in the file; aliases, which can stand for gigabytes, are refused."""
    path = cluster_file(tmp_path, f"pools: [[{'x, ' * 5000}x]]\n")
    with pytest.raises(InputError, match=r"pools\[0\].*is not a mapping") as error:
        parse_cluster(path)
    assert len(str(error.value)) < 250
    path = cluster_file(tmp_path, "a: &a [x, x]\npools: [*a, *a]\n")
    with pytest.raises(InputError, match="an alias"):
        parse_cluster(path)
    os.mkfifo(tmp_path / "pipe.yaml")
    with pytest.raises(InputError, match="is a pipe or a device"):
        parse_cluster(tmp_path / "pipe.yaml")
