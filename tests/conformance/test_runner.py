"""The runner itself: it fails what is wrong, names what it cannot read, and reads plans member by member."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from autopilot.core.capabilities.actions import ACTIONS
from autopilot.core.model.records import Proposal, Slot, Victim
from tests.conformance.__main__ import main
from tests.conformance.cases import SCHEMA, Case, parse_case
from tests.conformance.compare import differences
from tests.conformance.made_up import ELASTIC, case, gang, proposal, read, shrunk, task, world_of, written
from tests.conformance.outcome import Outcome
from tests.conformance.world import ACTIONS_OF, build_world

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
    shipped = {action.name for action in ACTIONS}
    assert {name for names in ACTIONS_OF.values() for name in names} <= shipped


# --- reading a plan ----------------------------------------------------------------------------


def test_the_members_on_the_slots_that_go_are_those_that_leave() -> None:
    """The higher rank sits on GPU 0; keeping GPU 1 evicts it."""
    outcome = read(world_of(ELASTIC), proposal("evict", "new", [], (shrunk("e", [1]),)))
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
    assert read(world, proposal("pipeline", "new", [2, 3])).on_leaving == {"new"}
    assert read(world, proposal("pipeline", "new", [0, 2], (shrunk("e", [1]),))).on_leaving == set()


@pytest.mark.parametrize(
    ("proposals", "problem"),
    [
        ([proposal("admit", "new", [1, 2])], "GPU-n1-1 is allocated beyond its whole"),
        (
            [proposal("admit", "new", [2, 3, 1]), proposal("evict", "new", [], (Victim("e", 0, 2, 0.0, False),))],
            "new is given slots that its members cannot use",
        ),
        (
            [proposal("evict", "new", [], (Victim("e", 0, 2, 0.0, False),) * 2), proposal("scale", "new", [])],
            "scale-new-1 is a proposal of a kind that no case has, scale",
        ),
    ],
)
def test_a_plan_that_cannot_be_carried_out_fails_any_case(proposals: list[Proposal], problem: str) -> None:
    """Whatever the case expects."""
    world = world_of(ELASTIC)
    outcome = read(world, *proposals)
    assert problem in outcome.problems
    assert ("a sound plan", problem) in differences(world, outcome, lambda _: True)


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
