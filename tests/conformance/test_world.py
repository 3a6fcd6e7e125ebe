"""A case becomes the tables of a snapshot."""

from __future__ import annotations

from autopilot.core.model.policy import Mode
from autopilot.core.model.snapshot import Gate, State, Topology
from autopilot.core.placement.shapes import carriers
from tests.conformance.cases import parse_case
from tests.conformance.made_up import case, gang, task, world_of
from tests.conformance.world import ACTIONS_OF, NOW_S


def test_states_of_members_become_the_state_of_the_gang() -> None:
    """Partly running, leaving, stuck and over; members that leave beside waiting ones are a row of their own."""
    world = world_of(
        case(
            gang("part", task("p.0", "running"), task("p.1")),
            gang("leaves", task("l.0", "releasing")),
            gang("returns", task("r.0", "releasing"), task("r.1")),
            gang("hangs", task("h.0", "terminating_stuck")),
            gang("over", task("o.0", "succeeded")),
        )
    )
    work, held = world.observation.snapshot.workloads, world.observation.snapshot.placements
    rows = {name: row for row, name in enumerate(work.id.tolist())}
    states = {name: State(int(work.state[row])) for name, row in rows.items()}
    assert states == {
        "part": State.RUNNING,
        "leaves": State.CHECKPOINTING,
        "returns": State.PENDING,
        "returns/leaving": State.CHECKPOINTING,
        "hangs": State.CHECKPOINTING,
        "over": State.SUCCEEDED,
    }
    assert int(work.gpus[rows["part"]]) == 2
    assert [name for name, row in rows.items() if work.stuck[row]] == ["hangs"]
    leaving = {work.id[row] for row in held.workload[held.leaving]}
    assert leaving == {"leaves", "returns/leaving"}


def test_a_quota_case_is_scaled_to_whole_gpus() -> None:
    """Halves and quarters of the pool become units; what runs beyond the pool sits on a closed node."""
    world = world_of(
        case(
            gang("a", task("a.0", "running", gpus=2.25)),
            gang("b", task("b.0", gpus=0.5)),
            kind="quota",
            nodes=[],
            queues=[{"name": "q", "guaranteed": 2, "limit": 3, "borrow_limit": 1.5}],
        )
    )
    snapshot = world.observation.snapshot
    assert snapshot.queues.guarantee.tolist() == [[0], [8]]
    assert (snapshot.queues.limit.tolist(), snapshot.queues.borrow_limit.tolist()) == ([-1, 12], [-1, 6])
    assert snapshot.workloads.gpus.tolist() == [9, 2]
    assert snapshot.nodes.gpus.tolist() == [8, 1]
    assert snapshot.nodes.cordoned.tolist() == [False, True]


def test_a_share_is_a_part_of_one_gpu_and_running_shares_are_packed() -> None:
    """Where nodes matter a fraction is not scaled."""
    world = world_of(case(*(gang(name, task(f"{name}.0", "running", gpus=0.5)) for name in "abc"), gpus=2))
    snapshot = world.observation.snapshot
    assert snapshot.workloads.gpu_milli.tolist() == [500] * 3
    assert snapshot.placements.gpu.tolist() == [0, 0, 1]


def test_cut_gpus_carry_legal_instances_of_one_model() -> None:
    """Four 2g do not fit one GPU of three; the whole GPU comes first."""
    node = {"name": "n1", "gpus": 1, "mig_instances": {"2g.20gb": 4, "1g.10gb": 1}}
    seated = gang("a", task("a.0", "running", gpus=0, mig={"2g.20gb": 2}))
    snapshot = world_of(case(seated, nodes=[node])).observation.snapshot
    assert snapshot.nodes.gpus.tolist() == [3]
    assert snapshot.gpus.mig.tolist() == [False, True, True]
    assert len(snapshot.instances.id) == 5
    assert [snapshot.names.profiles[code] for code in snapshot.instances.profile].count("2g.20gb") == 4
    assert sorted(snapshot.placements.instance.tolist()) == [0, 1]


def test_times_follow_what_is_stated_and_else_the_order() -> None:
    """Ages beat the order of submission, and stated precedence beats both."""
    world = world_of(
        case(
            gang("old", task("a.0", "running"), order=2, age_s=60),
            gang("young", task("b.0", "running"), order=0, age_s=0),
            gang("waits", task("c.0"), order=3, preemption_delay_s=100, waiting_s=40),
            gang("first", task("d.0"), order=4, submitted_before=["old"]),
            gang("later", task("e.0"), order=5),
        )
    )
    work = world.observation.snapshot.workloads
    at_s = dict(zip(work.id.tolist(), work.submit_s.tolist(), strict=True))
    assert at_s["first"] < at_s["old"] < at_s["young"]
    assert at_s["waits"] == NOW_S - 40
    assert at_s["waits"] < at_s["later"] <= NOW_S
    assert work.start_s[0] == at_s["old"]


def test_topology_labels_and_selectors_reach_the_tables() -> None:
    """Racks of one name in two zones are two; a node without a rack is no place for who requires one."""
    nodes = [
        {"name": "n1", "gpus": 1, "labels": {"zone": "a", "rack": "1"}},
        {"name": "n2", "gpus": 1, "labels": {"zone": "b", "rack": "1", "disk": "fast"}},
        {"name": "n3", "gpus": 1},
    ]
    asks = gang("g", task("g.0", node_selector={"disk": "fast"}), topology={"required": "rack", "preferred": "zone"})
    snapshot = world_of(case(asks, nodes=nodes)).observation.snapshot
    assert len(set(snapshot.nodes.leaf.tolist())) == 3
    assert snapshot.workloads.topology.tolist() == [Topology.LEAF]
    assert snapshot.workloads.preferred.tolist() == [Topology.ZONE]
    asked = snapshot.names.selectors[int(snapshot.workloads.selector[0])]
    assert carriers(snapshot.nodes, asked).tolist() == [False, True, False]


def test_members_that_differ_are_listed_and_equal_ones_are_not() -> None:
    """The minimum counts the members that start first."""
    unlike = gang("u", task("u.0", gpus=1), task("u.1", gpus=2, rank=5), least=1)
    snapshot = world_of(case(unlike, gang("e", task("e.0"), task("e.1")))).observation.snapshot
    assert snapshot.members.id.tolist() == ["u.1", "u.0"]
    assert snapshot.members.gpus.tolist() == [2, 1]
    assert snapshot.workloads.min_gpus.tolist() == [2, 1]


def test_gates_checks_and_staleness() -> None:
    """An unanswered check is open; finished members are present; a stale one is dated."""
    world = world_of(
        case(
            gang("gated", task("a.0"), gates=["x"], check_state={"budget": "ready"}),
            gang("asked", task("b.0")),
            gang("off", task("c.0"), check_state={"budget": "rejected"}),
            gang("clear", task("d.0"), check_state={"budget": "ready"}),
            gang(
                "whole",
                task("e.0", "running"),
                task("e.1", "succeeded"),
                least=2,
                stale_s=9,
                check_state={"budget": "ready"},
            ),
            gang(
                "broken",
                task("f.0", "running"),
                task("f.1", "failed"),
                least=2,
                stale_s=9,
                check_state={"budget": "ready"},
            ),
            queues=[{"name": "q", "checks": ["budget"]}],
        )
    )
    work = world.observation.snapshot.workloads
    assert work.gate.tolist() == [Gate.WAITING, Gate.WAITING, Gate.REJECTED, Gate.OPEN, Gate.OPEN, Gate.OPEN]
    assert [name for name, since_s in zip(work.id, work.stale_since_s, strict=True) if since_s == NOW_S - 9] == [
        "broken"
    ]


def test_a_parent_that_is_not_listed_is_a_cohort_without_quota() -> None:
    """Parents come before children, whatever the order in the file."""
    queues = [
        {"name": "q", "guaranteed": 2, "parent": "late"},
        {"name": "late", "guaranteed": 1, "parent": "co"},
    ]
    table = world_of(case(queues=queues)).observation.snapshot.queues
    assert table.id.tolist() == ["cluster", "co", "late", "q"]
    assert table.parent.tolist() == [-1, 0, 1, 2]
    assert table.guarantee[:, 0].tolist() == [0, 0, 1, 2]


def test_the_named_actions_act_and_spreading_turns_the_packing_around() -> None:
    """The policy is the case's rules on the shipped default; actions that the case does not name are off."""
    pack_case = parse_case(case())
    pack = world_of(case()).policy
    spread = world_of(case(settings={"placement": "spread"})).policy
    acting = {name for name in pack.modes.__slots__ if getattr(pack.modes, name) == Mode.AUTO}
    assert acting == set(ACTIONS_OF[pack_case.action])
    assert {getattr(pack.modes, name) for name in set(pack.modes.__slots__) - acting} == {Mode.OFF}
    assert (pack.rules, pack.placement.fill > 0, spread.placement.fill < 0) == (
        "hierarchical-fair-share",
        True,
        True,
    )
