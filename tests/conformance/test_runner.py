"""The runner itself: it fails what is wrong, names what it cannot read, and reads plans member by member."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from autopilot.core.actions import ACTIONS
from autopilot.core.model.policy import Mode
from autopilot.core.model.records import Plan, Proposal, Slot, Victim, no_refusals
from autopilot.core.model.snapshot import Gate, State, Topology
from tests.conformance.__main__ import main
from tests.conformance.cases import SCHEMA, Case, parse_case
from tests.conformance.compare import differences
from tests.conformance.outcome import Outcome, read_plan
from tests.conformance.world import ACTIONS_OF, NOW_S, World, build_world


def task(name: str, state: str = "pending", gpus: float = 1, **more: Any) -> dict[str, Any]:
    """One member; a holding one sits on n1."""
    seat = {} if state in {"pending", "failed", "succeeded"} else {"node": "n1"}
    return {"name": name, "gpus": gpus, "state": state, **seat, **more}


def gang(name: str, *tasks: dict[str, Any], least: int = 1, order: int = 0, **more: Any) -> dict[str, Any]:
    """One gang of queue q."""
    return {"name": name, "queue": "q", "min_member": least, "submit_order": order, "tasks": [*tasks], **more}


def case(*gangs: dict[str, Any], expect: dict[str, Any] | None = None, gpus: int = 4, **more: Any) -> dict[str, Any]:
    """One node n1, one queue q that is guaranteed all of it."""
    return {
        "id": "made-up",
        "kind": "schedule",
        "policy": "hierarchical-fair-share",
        "action": "allocate",
        "nodes": [{"name": "n1", "gpus": gpus}],
        "queues": [{"name": "q", "guaranteed": gpus}],
        "gangs": [*gangs],
        "expect": expect or {},
        **more,
    }


def world_of(raw: dict[str, Any]) -> World:
    """The world of a case given as JSON."""
    return build_world(parse_case(raw))


def written(folder: Path, *cases: dict[str, Any], schema: str = SCHEMA) -> str:
    """A file of cases."""
    path = folder / "cases.json"
    path.write_text(json.dumps({"schema": schema, "cases": [*cases]}), encoding="utf-8")
    return str(path)


def proposal(kind: str, workload: str, gpus: list[int], victims: tuple[Victim, ...] = ()) -> Proposal:
    """An accepted proposal for whole GPUs of n1."""
    slots = tuple(Slot("n1", f"GPU-n1-{gpu}") for gpu in gpus)
    return Proposal(f"{kind}-{workload}", "any", kind, workload, 0, "q", "q", slots, victims, accepted=True)


def read(world: World, *proposals: Proposal) -> Outcome:
    """A plan of these proposals, read."""
    return read_plan(world, Plan(proposals, no_refusals(), (), ()))


# --- the command -------------------------------------------------------------------------------

STARTS = case(gang("g", task("g.0")), expect={"start": ["g"]})


def test_a_right_expectation_passes_and_a_planted_wrong_one_fails(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One line for the failed case with id, expected and got; the count stands alone on the last line."""
    wrong = {**STARTS, "id": "planted", "expect": {"pending": {"g": "capacity"}}}
    assert main([written(tmp_path, STARTS)]) == 0
    assert capsys.readouterr().out == "1 passed, 0 failed\n"
    assert main([written(tmp_path, STARTS, wrong)]) == 1
    assert capsys.readouterr().out.splitlines() == [
        "planted: expected start nobody; got start g",
        "1 passed, 1 failed",
    ]


@pytest.mark.parametrize("content", ["{", "[]", '{"cases": []}', f'{{"schema": "{SCHEMA}", "cases": 7}}'])
def test_an_unreadable_file_exits_2_with_one_message(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: str
) -> None:
    """Nothing is run, and the message names the file."""
    path = tmp_path / "broken.json"
    path.write_text(content, encoding="utf-8")
    assert main([written(tmp_path, STARTS), str(path)]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert len(err.splitlines()) == 1
    assert str(path) in err


def test_a_missing_file_exits_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The same for a file that is not there."""
    assert main([str(tmp_path / "none.json")]) == 2
    assert "none.json" in capsys.readouterr().err


def test_an_unknown_field_fails_its_case_and_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The other cases of the file are run all the same."""
    odd = case(gang("g", {**task("g.0"), "colour": "red"}))
    assert main([written(tmp_path, odd, STARTS)]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert "unknown field gangs.0.tasks.0.colour" in lines[0]
    assert lines[-1] == "1 passed, 1 failed"


def test_names_that_lead_nowhere_are_named() -> None:
    """A queue, a node and an expected gang that the case does not have."""
    raw = case(gang("g", task("g.0", "running", node="n9")), expect={"keep": ["h"]})
    raw["gangs"][0]["queue"] = "none"
    with pytest.raises(Exception, match=r"'none'.*'n9'.*'h'"):
        parse_case(raw)


def test_reasons_are_shown_on_request_and_decide_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A gang that waits for another reason than stated passes."""
    file = written(tmp_path, case(gang("g", task("g.0", gpus=9)), expect={"pending": {"g": "order"}}))
    assert main([file]) == 0
    assert main([file, "--reasons"]) == 0
    assert "made-up: (reason) expected g: order; got g: capacity" in capsys.readouterr().out


def test_a_case_that_breaks_the_planner_fails_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A crash is a failed case with the error in its line."""
    planted: dict[str, int] = {}
    monkeypatch.setattr("tests.conformance.judge.decide", lambda _: planted["bug"])
    assert main([written(tmp_path, STARTS)]) == 1
    assert "a crash, KeyError: 'bug'" in capsys.readouterr().out


def test_the_actions_are_the_products_own() -> None:
    """Every action that a case may name is made of rows of the table that ships."""
    shipped = {name for name, _ in ACTIONS}
    assert {name for names in ACTIONS_OF.values() for name in names} <= shipped


# --- worlds ------------------------------------------------------------------------------------


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
    selector = int(snapshot.workloads.selector[0])
    assert [(int(bits) & selector) == selector for bits in snapshot.nodes.labels] == [False, True, False]


def test_members_that_differ_are_listed_and_equal_ones_are_not() -> None:
    """The minimum counts the members that start first."""
    unlike = gang("u", task("u.0", gpus=1), task("u.1", gpus=2, rank=5), least=1)
    snapshot = world_of(case(unlike, gang("e", task("e.0"), task("e.1")))).observation.snapshot
    assert snapshot.members.id.tolist() == ["u.1", "u.0"]
    assert snapshot.members.gpus.tolist() == [2, 1]
    assert snapshot.workloads.min_gpus.tolist() == [2, 1]


def test_gates_checks_and_staleness() -> None:
    """A check that nobody has answered is open; finished members are present; a stale one is dated."""
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


# --- reading a plan ----------------------------------------------------------------------------

ELASTIC = case(
    gang("e", task("e.0", "running", rank=1), task("e.1", "running", rank=2), task("e.2")),
    gang("new", task("n.0"), task("n.1"), least=2),
)


def test_the_members_on_the_slots_that_go_are_those_that_leave() -> None:
    """The higher rank sits on GPU 0; keeping GPU 1 evicts it."""
    outcome = read(world_of(ELASTIC), proposal("evict", "new", [], (_shrunk("e", [1]),)))
    assert outcome.evicted == {"e.1"}
    assert outcome.problems == []


def test_a_victim_that_goes_on_elsewhere_is_moved() -> None:
    """The member whose slot stays the same is not; a gang that is put back where it was is moved all the same."""
    world = world_of(ELASTIC)
    for gpus, moved in (((1, 2), {"e.1"}), ((0, 1), {"e.0", "e.1"})):
        keeps = tuple(Slot("n1", f"GPU-n1-{gpu}") for gpu in gpus)
        outcome = read(world, proposal("evict", "new", [], (Victim("e", 0, 2, 0.0, False, "move", keeps),)))
        assert outcome.evicted == set()
        assert outcome.moved.keys() == moved


def test_the_highest_rank_starts_first_and_growth_counts_what_is_new() -> None:
    """A gang that grows is given all its slots."""
    world = world_of(ELASTIC)
    outcome = read(world, proposal("grow", "e", [0, 1, 2]))
    assert outcome.started == {"e.2": "n1"}


def test_a_start_on_what_is_being_given_up_is_told_from_one_that_evicts() -> None:
    """The first has no victims."""
    world = world_of(ELASTIC)
    assert read(world, proposal("land", "new", [2, 3])).on_leaving == {"new"}
    assert read(world, proposal("land", "new", [0, 2], (_shrunk("e", [1]),))).on_leaving == set()


@pytest.mark.parametrize(
    ("proposals", "problem"),
    [
        ([proposal("admit", "new", [1, 2])], "GPU-n1-1 is handed out beyond its whole"),
        (
            [proposal("admit", "new", [2, 3, 1]), proposal("evict", "new", [], (Victim("e", 0, 2, 0.0, False),))],
            "new is given slots that its members cannot use",
        ),
        (
            [proposal("evict", "new", [], (Victim("e", 0, 2, 0.0, False),) * 2), proposal("swap", "new", [])],
            "swap-new is a proposal of an unknown kind, swap",
        ),
    ],
)
def test_a_plan_that_cannot_be_carried_out_fails_any_case(proposals: list[Proposal], problem: str) -> None:
    """Whatever the case expects."""
    world = world_of(ELASTIC)
    outcome = read(world, *proposals)
    assert problem in outcome.problems
    assert ("a sound plan", problem) in differences(world, outcome, lambda _: True)


def _shrunk(workload: str, keeps: list[int]) -> Victim:
    return Victim(workload, 0, 1, 0.0, False, "shrink", tuple(Slot("n1", f"GPU-n1-{gpu}") for gpu in keeps))


# --- comparing ---------------------------------------------------------------------------------

RUNNING = case(
    gang("a", task("a.0", "running"), task("a.1", "running")),
    gang("b", task("b.0", "running")),
    gang("c", task("c.0"), task("c.1"), least=2),
)
NOTHING = Outcome()
ALL_OF_A = Outcome(evicted={"a.0", "a.1"})
ONE_OF_A = Outcome(evicted={"a.1"})
B_MOVES = Outcome(moved={"b.0": "n1"})
C_STARTS = Outcome(started={"c.0": "n1", "c.1": "n1"})


def _failures(expect: dict[str, Any], outcome: Outcome) -> list[tuple[str, str]]:
    return differences(world_of({**RUNNING, "expect": expect}), outcome, lambda _: True)


@pytest.mark.parametrize(
    ("expect", "right", "wrong"),
    [
        ({}, NOTHING, ALL_OF_A),  # what is named nowhere is kept
        ({}, NOTHING, ONE_OF_A),
        ({"keep": ["b"]}, NOTHING, B_MOVES),
        ({"evict": ["a"]}, ALL_OF_A, NOTHING),
        ({"evict": ["a"]}, ALL_OF_A, ONE_OF_A),  # half a gang still has its place
        ({"move": ["b"]}, B_MOVES, Outcome(evicted={"b.0"})),
        ({"choose": [{"evict": 1, "from": ["a", "b"]}]}, ALL_OF_A, Outcome(evicted={"a.0", "a.1", "b.0"})),
        (
            {"choose": [{"evict": 1, "from": ["a", "b"]}]},
            ALL_OF_A,
            Outcome(evicted={"a.0", "a.1"}, moved={"b.0": "n1"}),
        ),
        ({"choose": [{"move": 1, "from": ["a", "b"]}]}, B_MOVES, NOTHING),
        ({"choose": [{"evict": 1, "from": ["a.0", "a.1"]}]}, ONE_OF_A, ALL_OF_A),
        ({"tasks": {"a": {"running": 1, "evicted": 1}}}, ONE_OF_A, ALL_OF_A),
        ({"tasks": {"b": {"survive": 1}}}, B_MOVES, Outcome(evicted={"b.0"})),
        ({"tasks": {"b": {"running": 0, "moved": 1}}}, B_MOVES, NOTHING),
        ({"evict_tasks": ["a.1"]}, ONE_OF_A, ALL_OF_A),
        ({"keep_tasks": ["a.0"]}, ONE_OF_A, ALL_OF_A),
        ({"start": ["c"]}, C_STARTS, NOTHING),
        ({"start": ["c"]}, C_STARTS, Outcome(started={"c.0": "n1"})),  # half a gang does not start
        ({"pending": {"c": "capacity"}}, NOTHING, C_STARTS),
        ({"start_tasks": ["c.0", "c.1"]}, C_STARTS, NOTHING),
        ({"pending_tasks": ["c.1"]}, NOTHING, C_STARTS),
        ({"tasks": {"c": {"started": 2, "pending": 0}}}, C_STARTS, NOTHING),
        ({"reserved": ["c"]}, Outcome(held={"c"}), NOTHING),
        ({"start": ["c"], "start_mode": "reserved"}, Outcome(started=C_STARTS.started, on_leaving={"c"}), C_STARTS),
        ({"start": ["c"], "start_mode": {"c": "now"}}, C_STARTS, Outcome(started=C_STARTS.started, on_leaving={"c"})),
    ],
)
def test_a_decision_is_told_from_a_wrong_one(expect: dict[str, Any], right: Outcome, wrong: Outcome) -> None:
    """Each kind of expectation passes what fulfils it and fails what does not."""
    assert _failures(expect, right) == []
    assert _failures(expect, wrong) != []


def test_places_and_domains_are_compared() -> None:
    """Nodes matter in `place` and `same_domain` alone."""
    nodes = [{"name": f"n{n}", "gpus": 4, "labels": {"rack": rack}} for n, rack in enumerate("xyy")]
    raw = {
        **RUNNING,
        "nodes": nodes,
        "expect": {"start": ["c"], "place": {"c": ["n1", "n2"]}, "same_domain": {"c": "rack"}},
    }
    world = world_of(raw)
    together = Outcome(started={"c.0": "n1", "c.1": "n2"})
    apart = Outcome(started={"c.0": "n0", "c.1": "n2"})
    assert differences(world, together, lambda _: True) == []
    assert differences(world, apart, lambda _: True) == [
        ("c on n1, n2", "c on n0, n2"),
        ("c in one rack", "c on n0, n2"),
    ]


def test_what_would_be_queued_again_is_not_switched_off() -> None:
    """Asked of the planner: does the gang start when it waits alone?"""
    case_of_one = parse_case({**STARTS, "expect": {"start": ["g"], "deactivated": ["g"]}})
    assert isinstance(case_of_one, Case)
    world = build_world(case_of_one)
    outcome = Outcome(started={"g.0": "n1"})
    assert differences(world, outcome, lambda _: False) == [("g is switched off", "g is queued again")]
