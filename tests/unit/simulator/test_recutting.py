"""Changes of MIG geometry in the simulated cluster: they take time, spare what is in use, and can fail."""

from __future__ import annotations

from dataclasses import replace
from heapq import heappop, heappush

import numpy as np
import pytest

from autopilot.core.hardware.mig import Placement
from autopilot.core.model.snapshot import QueueTable, Recut, make
from simulator.checkers import CHECKERS
from simulator.checkers import World as Judged
from simulator.running.cluster_collector import ClusterCollector
from simulator.signals.occupants import Occupants
from simulator.specs.clusterfile import ClusterSpec, MigSpec, shape_cluster
from simulator.specs.inventory import build_inventory
from simulator.world.cluster import Cluster
from simulator.world.facts import Recutting
from simulator.world.hardware import Refusal
from simulator.world.physics import REAL
from simulator.world.placing import find_spot
from simulator.world.recutting import Ending
from simulator.world.work import Jobs, Shape

SEVEN = [("7g.80gb", 0)]
THREES = [("3g.40gb", 0), ("3g.40gb", 4)]


def one_node() -> ClusterSpec:
    """As a cluster file."""
    whole = shape_cluster(1, 3, "A100-80GB")
    cuts = tuple(MigSpec(1, tuple(Placement(*each) for each in cut)) for cut in (SEVEN, THREES))
    return replace(whole, pools=(replace(whole.pools[0], mig=cuts),))


class World:
    """One node: GPU 0 is cut into a 7g, GPU 1 into two 3g, GPU 2 is whole."""

    def __init__(self) -> None:
        spec = one_node()
        jobs = Jobs()
        jobs.add("job", "t", Shape(gpus=1, per_member=1, min_gpus=1, profile="3g.40gb"), 0.0, 3600.0)
        self.cluster = Cluster(build_inventory(spec), jobs, REAL)
        self.events: list[tuple[float, int, int, int]] = []
        self.cluster.schedule = lambda at_s, kind, subject, number: heappush(self.events, (at_s, kind, subject, number))
        self.facts: list[Recutting] = []
        self.cluster.observe(self)
        self.checkers = [CHECKERS[name](Judged(self.cluster.inventory, jobs)) for name in ("geometry", "capacity")]
        for checker in self.checkers:
            self.cluster.observe(checker)

    def on_recutting(self, fact: Recutting) -> None:
        """Keep it."""
        self.facts.append(fact)

    def step(self) -> float:
        """The next event is the end of a change; the checkers find nothing."""
        at_s, _, gpu, number = heappop(self.events)
        assert self.cluster.recuts.end(gpu, at_s, number)
        assert [violation for checker in self.checkers for violation in checker.violations] == []
        return at_s

    def states(self) -> list[int]:
        """As nodes report them."""
        return self.cluster.recuts.states()


def test_a_change_takes_time_and_the_old_instances_go_first() -> None:
    """Between, the GPU reports what exists: nothing."""
    world = World()
    assert world.cluster.recuts.begin(0, SEVEN, THREES, 10.0, effect="e") is None
    assert (world.cluster.recuts.present(0), world.states()[0]) == ((), Recut.CHANGING)
    assert world.step() == pytest.approx(70.0)
    assert (list(world.cluster.recuts.present(0)), world.states()[0]) == (THREES, Recut.SETTLED)
    assert [(fact.begins, fact.effect) for fact in world.facts] == [(True, "e"), (False, "e")]


def test_the_geometry_that_was_decided_on_is_a_precondition() -> None:
    """So is that no other change is under way."""
    world = World()
    assert world.cluster.recuts.begin(0, THREES, SEVEN, 10.0) is Refusal.OTHER_GEOMETRY
    assert world.cluster.recuts.begin(0, SEVEN, THREES, 10.0) is None
    assert world.cluster.recuts.begin(0, [], THREES, 11.0) is Refusal.OTHER_GEOMETRY


def test_an_instance_in_use_is_not_destroyed() -> None:
    """One that is kept goes on."""
    world = World()
    world.cluster.submit(0, 0.0)
    row = world.cluster.hardware.cut[1][0]
    assert world.cluster.start(0, [1], 0.0, instances=[row]) is None
    held = world.cluster.hardware.instances[row]
    assert world.cluster.recuts.begin(1, THREES, SEVEN, 10.0) is Refusal.NOT_IDLE
    other = [("1g.10gb", 4), ("1g.10gb", 5)] if held.start == 0 else [("1g.10gb", 0), ("1g.10gb", 1)]
    assert world.cluster.recuts.begin(1, THREES, [(held.profile, held.start), *other], 10.0) is None
    assert row in world.cluster.hardware.cut[1]


def test_mig_mode_is_switched_both_ways() -> None:
    """A whole GPU is cut, and becomes whole again."""
    world = World()
    assert world.cluster.recuts.begin(2, None, THREES, 0.0) is None
    assert world.cluster.hardware.free[0] == 0
    world.step()
    assert list(world.cluster.recuts.present(2)) == THREES
    assert world.cluster.recuts.begin(2, THREES, None, 100.0) is None
    world.step()
    assert (world.cluster.hardware.free[0], world.cluster.hardware.mig[2]) == (1, False)


@pytest.mark.parametrize(
    ("ending", "between", "state", "after"),
    [
        (Ending.FAILED, THREES[:1], Recut.FAILED, THREES),
        (Ending.STUCK, [], Recut.CHANGING, THREES),
        (Ending.IGNORED, [], Recut.CHANGING, SEVEN),
    ],
)
def test_changes_fail(ending: Ending, between: list[tuple[str, int]], state: int, after: list[tuple[str, int]]) -> None:
    """Half-way until a repair, not before a repair, or without effect."""
    world = World()
    world.cluster.recuts.fate = lambda _gpu, _now_s: (ending, 600.0)
    assert world.cluster.recuts.begin(0, SEVEN, THREES, 0.0) is None
    if ending is Ending.FAILED:
        world.step()
    assert (list(world.cluster.recuts.present(0)), world.states()[0]) == (between, state)
    world.step()
    assert (list(world.cluster.recuts.present(0)), world.states()[0]) == (after, Recut.SETTLED)


def test_a_node_is_cut_as_a_whole_or_not_at_all() -> None:
    """GPUs that have the instances already stay as they are, and the node changes until the last of them has."""
    world = World()
    recuts, threes = world.cluster.recuts, ["3g.40gb", "3g.40gb"]
    assert recuts.begin_node(0, [threes, threes, ["7g.80gb"] * 2], 0.0) is Refusal.ILLEGAL_GEOMETRY
    assert world.states() == [Recut.SETTLED] * 3
    assert recuts.begin_node(0, [threes, threes, ["7g.80gb"]], 0.0) is None
    assert [fact.gpu for fact in world.facts] == [0, 2]
    world.step()
    assert recuts.node_state(0) == Recut.CHANGING
    assert recuts.begin_node(0, [None, threes, []], 50.0) is Refusal.OTHER_GEOMETRY
    world.step()
    assert recuts.node_state(0) == Recut.SETTLED
    assert [sorted(recuts.present(gpu)) for gpu in range(3)] == [THREES, THREES, SEVEN]
    assert recuts.begin_node(0, [None, threes, None], 100.0) is None
    world.step()
    world.step()
    assert world.cluster.hardware.mig == [False, True, False]


def test_a_node_on_which_work_runs_is_not_cut() -> None:
    """All clients of the node would be stopped; and nothing starts while it changes."""
    world = World()
    hardware, shape = world.cluster.hardware, world.cluster.jobs.shape_of(0)
    world.cluster.submit(0, 0.0)
    assert world.cluster.start(0, [1], 0.0, instances=[hardware.cut[1][0]]) is None
    wanted = [["3g.40gb", "3g.40gb"], ["3g.40gb", "3g.40gb"], None]
    assert world.cluster.recuts.begin_node(0, wanted, 10.0) is Refusal.NOT_IDLE
    world.cluster.retire(0, 20.0)
    assert find_spot(hardware, shape) is not None
    assert world.cluster.recuts.begin_node(0, wanted, 30.0) is None
    assert find_spot(hardware, shape) is None


def test_the_inventory_and_the_telemetry_follow() -> None:
    """A destroyed instance has no name, and nothing of the GPU is measured during the change."""
    world = World()
    queues: QueueTable = make(QueueTable, id=["root"], parent=[-1])
    collector, occupants = ClusterCollector(world.cluster, queues, {"t": 0}), Occupants(world.cluster, 1)
    world.cluster.recuts.begin(0, SEVEN, THREES, 0.0)
    inventory = collector.collect(1.0).inventory
    assert inventory is not None
    assert inventory.gpus.recut.tolist() == [Recut.CHANGING, 0, 0]
    assert "" in inventory.instances.id.tolist()
    assert occupants.refresh(1.0)
    measured = np.isfinite(occupants.entities.since_s) | (occupants.entities.since_s < 0)
    assert measured.tolist() == [False, True, True, False, True, True]
    world.step()
    assert occupants.refresh(61.0)
    assert not occupants.refresh(61.0)
    measured = np.isfinite(occupants.entities.since_s) | (occupants.entities.since_s < 0)
    assert measured.tolist() == [True, True, True, False, True, True, True, True]
