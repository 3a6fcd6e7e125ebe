"""`autopilot decisions`: which decisions it finds, in words and as JSON, while a run goes on too."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from autopilot.app.commands.decision_commands import Asked, chosen, follow
from autopilot.app.commands.json_out import with_place
from autopilot.app.decisions.decision_rows import Wanted, clock_of, row_document, rows_of
from autopilot.app.when import When, parse_moment_s, when_of
from autopilot.cli import main
from autopilot.core.model.errors import InputError
from autopilot.core.model.memory import ControllerMemory
from autopilot.core.model.policy.bounds import JournalRules
from autopilot.core.model.records import Observation
from autopilot.explain.proposals import Answer
from autopilot.explain.view import ProposalView
from autopilot.records.journal import JournalReader, SqliteJournal
from tests.kits.core_world import decide, done, holds, waits, with_policy, world
from tests.kits.story_kit import EAGER

HELD = with_policy(EAGER, hysteresis={"dwell_s": 3600.0})
ROW_FIELDS = {
    "id",
    "tick",
    "at_s",
    "at",
    "action",
    "kind",
    "workload",
    "tenant",
    "queue",
    "gpus",
    "answer",
    "codes",
    "halted",
    "benefit_gpu_s",
    "cost_gpu_s",
    "worst_cost_gpu_s",
    "lost_gpu_s",
    "gain",
    "cost",
    "loss",
    "victims",
    "side_effects",
    "refused_by",
    "words",
}
EPOCH_S = 1_795_000_000.0


def turns() -> list[tuple[Observation, bool]]:
    """`w` may not displace `a` yet for three ticks, then does; `small` starts at once. True: calm is asked for."""
    low, high = holds("a", 8, priority=5), waits("w", 8, priority=9)
    seen = [world("2x8", [low, holds("b", 8, priority=9), high], 600.0 + 30 * n, tick=n) for n in range(4)]
    last = world("2x8", [low, holds("b", 4, priority=9, on=range(8, 12)), waits("small", 4)], 900.0, tick=4)
    return [(seen[0], True), (seen[1], True), (seen[2], True), (seen[3], False), (last, False)]


def write(path: Path, shift_s: float = 0.0, run: dict[str, object] | None = None) -> SqliteJournal:
    """A journal of those turns, left open."""
    memory = ControllerMemory()
    rules = JournalRules(keyframe_s=1e4, keyframe_ticks=64)
    journal = SqliteJournal(path, durable=True, rules=rules, run=run or {}, version="0.1.0")
    for observation, calm in turns():
        policy = HELD if calm else EAGER
        step = decide(replace(observation, now_s=observation.now_s + shift_s), policy, memory)
        journal.intend(observation, policy, memory, step.decision, step.instructions)
        journal.conclude(observation.tick, done(step.instructions, observation.now_s))
        memory = step.memory
    return journal


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A journal with three ticks of one refusal, a displacement, and a start."""
    target = tmp_path / "run.journal"
    write(target).close()
    return target


def rows(path: Path, **wanted: object) -> list[ProposalView]:
    """The rows that are asked for."""
    with JournalReader(path) as reader:
        return list(rows_of(reader, Wanted(**wanted)))  # type: ignore[arg-type]


def call(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """Exit code, output and errors of a command."""
    with pytest.raises(SystemExit) as ended:
        main(list(arguments))
    said = capsys.readouterr()
    return int(ended.value.code or 0), said.out, said.err


# --- which ------------------------------------------------------------------------------------------


def test_a_decision_made_again_at_the_next_tick_is_listed_once(path: Path) -> None:
    """Three refusals of the same wish are one decision; its acceptance is another."""
    found = [(row.proposal.subject.name, row.answer, row.tick) for row in rows(path)]
    assert found == [("w", Answer.REFUSED, 0), ("w", Answer.ACCEPTED, 3), ("small", Answer.ACCEPTED, 4)]


@pytest.mark.parametrize(
    ("wanted", "ticks"),
    [
        ({"action": "preempt"}, [0, 3]),
        ({"action": "resize"}, []),
        ({"workload": "w"}, [0, 3]),
        ({"workload": "a"}, [0, 3]),  # it is the victim of both
        ({"workload": "small"}, [4]),
        ({"answer": Answer.REFUSED}, [0]),
        ({"answer": Answer.ACCEPTED}, [3, 4]),
        ({"since_s": 700.0}, [4]),
        ({"until_s": 600.0}, [0]),
        ({"tenant": "nobody"}, []),
    ],
)
def test_each_filter_leaves_what_it_names(path: Path, wanted: dict[str, object], ticks: list[int]) -> None:
    """By action, workload (its own and those that take from it), answer, time and tenant."""
    assert [row.tick for row in rows(path, **wanted)] == ticks


def test_the_top_ones_come_first_and_the_latest_are_kept(path: Path) -> None:
    """By gain or by what victims lose; without --top the last ones in order."""
    found = rows(path)
    assert [row.tick for row in chosen(found, Asked(top="loss", limit=1), 20)] == [3]
    gains = [row.proposal.benefit_gpu_s for row in chosen(found, Asked(top="gain"), 20)]
    assert gains == sorted(gains, reverse=True)
    assert [row.tick for row in chosen(found, Asked(limit=2), 20)] == [3, 4]
    assert [row.tick for row in chosen(found, Asked(limit=0), 1)] == [0, 3, 4]


def test_reading_without_refusals_gives_the_same_proposals(path: Path) -> None:
    """The quick way leaves out who waits, and nothing else."""
    with JournalReader(path) as reader:
        whole = [record.decision.plan.proposals for record in reader.decisions()]
        quick = list(reader.decisions(refusals=False))
    assert [record.decision.plan.proposals for record in quick] == whole
    assert not any(len(record.decision.plan.refusals.code) for record in quick)
    assert {record.run for record in quick} == {1}


# --- JSON -------------------------------------------------------------------------------------------


def test_json_is_one_object_a_line_with_stable_fields(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Fields and codes as documented; alone it prints, with a path it writes."""
    code, said, _ = call(capsys, "decisions", "--journal", str(path), "--json")
    lines = [json.loads(line) for line in said.splitlines()]
    assert code == 0
    assert [set(line) for line in lines] == [ROW_FIELDS] * 3
    assert lines[0]["codes"] == ["dwell"]
    assert lines[0]["refused_by"][0]["guard"] == "hysteresis"
    assert lines[1]["victims"][0]["workload"] == "a"
    assert lines[1]["at"] is None
    target = path.with_name("out.jsonl")
    code, said, _ = call(capsys, "decisions", "--journal", str(path), "--accepted", "--json", str(target))
    assert (code, said) == (0, "")
    assert [json.loads(line)["answer"] for line in target.read_text().splitlines()] == ["accepted"] * 2


def test_each_command_that_reads_has_json(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Explain (decision, tick, workload), replay and plan print one document with its schema."""
    identity = rows(path)[1].proposal.id
    documents = {}
    for name, arguments in (
        ("decision", ("explain", identity)),
        ("tick", ("explain", "3")),
        ("workload", ("explain", "--workload", "w")),
        ("replay", ("replay",)),
    ):
        _, said, _ = call(capsys, *arguments, "--json", "--journal", str(path))
        documents[name] = json.loads(said)
    assert documents["decision"]["decision"]["id"] == identity
    assert ROW_FIELDS | {"verdicts", "evidence", "slots", "outcomes"} <= set(documents["decision"]["decision"])
    assert documents["tick"]["decisions"][0]["id"] == identity
    assert documents["workload"]["life"]["submit_s"] == 0.0
    assert documents["replay"]["schema"] == "gpu-autopilot/replay/1"
    _, said, _ = call(capsys, "plan", "--at", "40m", "--json")
    plan = json.loads(said)
    assert plan["schema"] == "gpu-autopilot/plan/1"
    assert {each["answer"] for each in plan["decisions"]} == {"recommended"}


@pytest.mark.parametrize(
    ("given", "read"),
    [
        (["--json"], ["--json", "-"]),
        (["--json", "--top", "gain"], ["--json", "-", "--top", "gain"]),
        (["--json", "x.json"], ["--json", "x.json"]),
        (["--json", "-"], ["--json", "-"]),
        (["ID", "--json"], ["ID", "--json", "-"]),
    ],
)
def test_json_without_a_path_is_standard_output(given: list[str], read: list[str]) -> None:
    """A path that follows is taken as one."""
    assert with_place(given) == read


# --- words ------------------------------------------------------------------------------------------


def test_the_table_counts_what_matches(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One line a decision with its code, and how many there are by answer."""
    _, said, _ = call(capsys, "decisions", "--journal", str(path), "--limit", "2")
    lines = said.splitlines()
    assert len(lines) == 5
    assert lines[3] == "3 decisions match: 2 accepted, 1 refused; shown: 2 (--limit 0 for all)"
    _, said, _ = call(capsys, "decisions", "--journal", str(path), "--refused")
    assert "  dwell" in said.splitlines()[1]
    _, said, _ = call(capsys, "decisions", "--journal", str(path), "--tenant", "x")
    assert said == "no decision in this journal matches\n"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--accepted", "--refused"), "exclude each other"),
        (("--action", "evict"), "'evict' is not one of"),
        (("--top", "cost"), "'cost' is not one of gain, loss"),
        (("--limit", "-1"), "--limit: -1"),
        (("--follow", "--top", "gain"), "leave out --top"),
        (("--follow", "--json", "x.jsonl"), "write --json without a path"),
        (("--since", "2026-11-23"), "does not know the date of its start"),
        (("--since", "soon"), "--since: 'soon' is not a duration"),
    ],
)
def test_what_cannot_be_meant_is_refused(
    path: Path, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], words: str
) -> None:
    """In one message that names the flag."""
    code, _, said = call(capsys, "decisions", "--journal", str(path), *arguments)
    assert code == 2
    assert words in said
    assert len(said.splitlines()) == 1


# --- time -------------------------------------------------------------------------------------------


def test_dates_are_told_where_the_start_is_known(tmp_path: Path) -> None:
    """From the journal's own word, or because it counts from 1970."""
    dated = tmp_path / "dated.journal"
    write(dated, run={"start_s": EPOCH_S}).close()
    with JournalReader(dated) as reader:
        when, last_s = clock_of(reader)
        first = next(iter(rows_of(reader, Wanted())))
    assert last_s == 900.0
    assert row_document(first, when)["at"] == "2026-11-18T11:16:40Z"
    assert parse_moment_s("2026-11-18T11:20", "--since", when, last_s) == 800.0
    assert parse_moment_s("10m", "--since", when, last_s) == 600.0
    assert when_of({}, 900.0) == When()
    assert When().stamp(1.0) is None
    assert When().words(7500.0) == "2 h 5 min"


def test_a_live_journal_takes_a_duration_as_so_long_ago() -> None:
    """Its times count from 1970."""
    when = when_of({}, EPOCH_S)
    assert when.words(EPOCH_S) == "2026-11-18 11:06:40"
    assert parse_moment_s("2h", "--since", when, EPOCH_S) == EPOCH_S - 7200.0


# --- follow -----------------------------------------------------------------------------------------


def test_follow_yields_what_the_run_writes_next(tmp_path: Path) -> None:
    """Nothing twice, nothing left out; another run in its place ends it."""
    path = tmp_path / "run.journal"
    journal = write(path)
    memory = ControllerMemory()

    def wait(_s: float) -> None:
        """The run goes on while the follower waits; then another takes its place."""
        if len(reader) == 5:
            observation = world("1x8", [waits("next", 8)], 1000.0, tick=5)
            step = decide(observation, EAGER, memory)
            journal.intend(observation, EAGER, memory, step.decision, step.instructions)
        else:
            journal.close()
            path.unlink()

    seen: list[str] = []
    with JournalReader(path) as reader:
        found = follow(reader, Wanted(), wait)
        seen.append(next(found).proposal.subject.name)
        with pytest.raises(InputError, match="another run replaced this journal"):
            next(found)
    assert seen == ["next"]
