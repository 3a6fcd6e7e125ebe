"""Changes of a cluster for what-if questions, and a cluster as the content of a cluster file."""

from __future__ import annotations

from pathlib import Path

import pytest

from autopilot.app.options import SimulateOptions
from autopilot.app.runs.changes import changed
from autopilot.app.runs.world import build_world
from autopilot.core.model.errors import InputError
from simulator.scenarios import load_scenario, scenario_names
from simulator.specs.cluster_document import cluster_document
from simulator.specs.clusterfile import ClusterSpec, parse_cluster, read_cluster
from simulator.specs.fields import Fields

TWO_POOLS = {
    "pools": [
        {"name": "a.b", "nodes": 4, "gpus_per_node": 8, "gpu_model": "H100-80GB", "nodes_per_leaf": 2},
        {
            "name": "cut",
            "nodes": 2,
            "gpus_per_node": 8,
            "gpu_model": "A100-80GB",
            "island": "pool",
            "spot": True,
            "mig": [{"gpus_per_node": 2, "geometry": {"1g.10gb": 3, "4g.40gb": 1}}],
        },
    ],
    "queues": [
        {"name": "team", "guarantee": {"H100-80GB": 8, "A100-80GB": 4}, "limit": {"all": 20, "H100-80GB": 12}},
        {"name": "team.x", "parent": "team", "guarantee": {"H100-80GB": 4}, "weight": {"all": 2, "A100-80GB": 3}},
        {"name": "plain", "within_queue": "any", "while_borrowing": "lower", "borrow_limit": 3, "strict": True},
    ],
    "reservations": [{"name": "launch", "queue": "team", "gpu_model": "H100-80GB", "gpus": 4, "from": "9h"}],
}


def cluster() -> ClusterSpec:
    """The cluster of `TWO_POOLS`."""
    return read_cluster(Fields(TWO_POOLS, "two.yaml", ""), "two.yaml")


@pytest.mark.parametrize(
    "spec", [*(load_scenario(n).cluster for n in scenario_names()), cluster()], ids=lambda spec: Path(spec.source).stem
)
def test_a_cluster_survives_the_way_through_its_file(spec: ClusterSpec) -> None:
    """The content that is written for a cluster is read as an equal cluster."""
    assert read_cluster(Fields(cluster_document(spec), spec.source, ""), spec.source) == spec


def test_a_change_changes_one_field() -> None:
    """Numbers, differences, multiples and words; names with dots are found."""
    spec = cluster()
    one = changed(spec, ["queue.team.x.guarantee.H100-80GB=x2", "pool.a.b.nodes=+4", "queue.plain.strict=false"])
    by_name = {queue.name: queue for queue in one.queues}
    assert by_name["team.x"].guarantee == {"H100-80GB": 8}
    assert one.pools[0].nodes == 8
    assert one.pools[0].nodes_per_leaf == 2
    assert not by_name["plain"].strict
    assert one.pools[1] == spec.pools[1]
    assert changed(spec, ["queue.team.guarantee=x0.5"]).queues[0].guarantee == {"H100-80GB": 4, "A100-80GB": 2}
    assert changed(spec, ["queue.plain.weight=2.5"]).queues[1].weight == 2.5
    assert changed(spec, ["queue.team.limit.all=-2"]).queues[0].limit == 18
    assert changed(spec, ["nodes.cut=1"]).pools[1].nodes == 1
    assert changed(parse_cluster("4x8"), ["nodes=+4"]).gpus == 64


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("queue.tean.guarantee=1", "no such queue; did you mean team?"),
        ("queue.team.garantee=1", "did you mean guarantee?"),
        ("quue.team.guarantee=1", "did you mean queue?"),
        ("queue.team.guarantee=1", "names no GPU model"),
        ("queue.team.guarantee.H10-80GB=1", "did you mean H100-80GB?"),
        ("queue.plain.guarantee.H100-80GB=30", "but the cluster has 32"),
        ("queue.plain.lend_limit=+1", "there is no number to change"),
        ("queue.team", "write for example queue.NAME.guarantee=32"),
        ("queue.team=3", "names no field of queue 'team'"),
        ("nodes=+4", "the cluster has several pools"),
        ("nodes.cut=-2", "write a whole number from 1"),
        ("pool.cut.gpus_per_node=2.5", "write a whole number"),
        ("pool.cut.priority=3", "is no field that can be changed"),
    ],
)
def test_a_bad_change_names_itself_and_the_fix(change: str, words: str) -> None:
    """One message with the change, what is wrong with it, and what exists."""
    with pytest.raises(InputError) as error:
        changed(cluster(), [change])
    assert words in str(error.value)
    assert change in str(error.value)


def test_the_work_of_a_scenario_does_not_depend_on_the_change() -> None:
    """Four nodes more: the same jobs and requests on a larger cluster."""
    plain, more = (build_world(SimulateOptions(changes=changes)) for changes in ((), ("nodes=+4",)))
    assert more.spec.nodes == plain.spec.nodes + 4
    assert more.jobs().submit_s == plain.jobs().submit_s
    assert more.jobs().duration_s == plain.jobs().duration_s
