"""The gate for policies: a candidate against a recorded run, by group, with thresholds."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from autopilot.cli import main
from autopilot.core.effects.evict import EvictChange
from autopilot.core.model.policy import Mode, Modes
from autopilot.core.model.policy.bounds import JournalRules
from autopilot.core.model.records import OutcomeKind, Victim
from autopilot.records.journal import SqliteJournal
from autopilot.records.replay.policy_gate import EVERYONE, Measured, PolicyCase, _Side, judge_policy
from benchmarks.small_world import AUTO, Tick, World

RULES = JournalRules(keyframe_s=600.0, keyframe_ticks=16)
OFF = replace(AUTO, name="off", modes=Modes(Mode.RECOMMEND, Mode.RECOMMEND))


def record(path: Path, ticks: list[Tick], kind: OutcomeKind | None = None) -> Path:
    """A record of those turns; `kind`: what became of every effect instead."""
    with SqliteJournal(path, durable=False, rules=RULES) as journal:
        for tick in ticks:
            journal.intend(tick.observation, AUTO, tick.memory, tick.step.decision, tick.step.instructions)
            ended = tick.outcomes if kind is None else tuple(replace(each, kind=kind) for each in tick.outcomes)
            journal.conclude(tick.observation.tick, ended)
    return path


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Some hundred turns of a small loop, recorded."""
    ticks = list(World(3, seed=3, load=1.3, backlog=30).run(100))
    return record(tmp_path_factory.mktemp("policies") / "run.journal", ticks)


@pytest.fixture(scope="module")
def same(path: Path) -> PolicyCase:
    """The policy of the record held against itself."""
    return judge_policy(path, replace(AUTO, name="same"))


def answer(case: PolicyCase, measure: str, group: str = EVERYONE) -> Measured:
    """One rule's answer."""
    return next(each for each in case.groups[group] if each.measure == measure)


def test_the_policy_of_the_record_passes(same: PolicyCase) -> None:
    """Held against itself nothing is worse, in any group; what was done would be done again."""
    case = same
    assert (case.passed, case.ticks, case.ticks_that_differ, case.reasons) == (True, 100, 0, ())
    assert {"*", "class batch", "tenant team-0"} <= set(case.groups)
    for measured in case.groups.values():
        assert all(each.passed and each.candidate == each.recorded for each in measured)
    assert answer(case, "later_s").recorded > 0


def test_a_policy_that_starts_nothing_is_refused(path: Path) -> None:
    """It admits nothing: each group with enough work fails, small ones only advise."""
    case = judge_policy(path, OFF)
    assert not case.passed
    assert case.ticks_that_differ > 30
    never = answer(case, "never")
    assert never.candidate == 52
    assert never.limit == 1.0
    assert answer(case, "unwished").candidate == 52
    assert any(reason.startswith("class batch: workloads that only the record admits") for reason in case.reasons)
    small = answer(case, "never", "tenant team-0")
    assert not small.passed
    assert not small.blocking


def test_a_limit_is_absolute_or_relative_whichever_is_more(same: PolicyCase) -> None:
    """A minute later is nothing to work that waits an hour, and too much to none."""
    later = answer(same, "later_s")
    assert later.limit == pytest.approx(later.recorded + max(60.0, 0.05 * later.recorded))
    evictions = answer(same, "evictions")
    assert (evictions.recorded, evictions.limit) == (0.0, 2.0)


def test_effects_that_failed_are_not_owed(tmp_path: Path) -> None:
    """Where the recorded effects failed, not wishing them is no fault, and wishing them is told."""
    ticks = list(World(2, seed=4, load=1.0, backlog=10).run(30))
    failing = record(tmp_path / "failed.journal", ticks, OutcomeKind.FAILED)
    same, off = (judge_policy(failing, policy) for policy in (replace(AUTO, name="same"), OFF))
    assert answer(off, "unwished").candidate == 0
    assert answer(off, "failed").candidate == 0
    assert answer(same, "failed").candidate == answer(same, "failed").recorded > 0


def call(*arguments: str) -> int:
    """The exit code of a command."""
    with pytest.raises(SystemExit) as ended:
        main(list(arguments))
    return int(ended.value.code or 0)


def test_the_command_judges_writes_and_repeats_itself(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit code 0 or 1; the verdicts are written once by (run, case); what cannot be meant is refused."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("COLUMNS", "200")
    (tmp_path / "same.yaml").write_text("name: auto\nbase: autopilot\nmodes: {preempt: off}\n")
    judge = ("backtest", "policies", "--journal", str(path), "--registry", "book")
    assert call(*judge, "--policy", "recommend", "--json", "out.json") == 1
    said = capsys.readouterr().out
    assert "gate: refused for recommend" in said
    assert "workloads that only the record admits" in said
    document = json.loads((tmp_path / "out.json").read_text())
    assert (document["schema"], document["passed"]) == ("gpu-autopilot/backtest-policies/1", False)
    verdicts = {each: each.stat().st_mtime_ns for each in (tmp_path / "book" / "verdicts").rglob("*.json")}
    assert len(verdicts) == 2, "the case and the summary"
    assert call(*judge, "--policy", "recommend") == 1
    again = {each: each.stat().st_mtime_ns for each in (tmp_path / "book" / "verdicts").rglob("*.json")}
    assert again == verdicts
    capsys.readouterr()
    for wrong, words in (
        (("--journal", str(path)), "name the candidate"),
        (("--journal", "none.journal", "--policy", "recommend"), "no such journal"),
        (("--journal", str(path), "--policy", "recommend", "--json", str(path)), "is an input of this command"),
        (("--journal", str(path), "--policy", "recommend", "--registry", str(path)), "is a file"),
    ):
        assert call("backtest", "policies", *wrong) == 2
        assert words in capsys.readouterr().err


def test_a_wish_that_stays_open_is_one_wish() -> None:
    """The recorded state ignores the candidate, so its proposals recur at every tick; a restarted gang counts
    separately.
    """
    tick = next(World(2, seed=4, load=1.0, backlog=10).run(1))
    proposal = next(each for each in tick.step.decision.plan.proposals if each.accepted)
    side = _Side()
    for restart in (0, 0, 0, 1):
        asking = replace(proposal, change=EvictChange(victims=(Victim("a", restart, 8, 0.0, contract=True),)))
        side.add(replace(tick.step.decision, plan=replace(tick.step.decision.plan, proposals=(asking,))))
    assert len(side.evicted) == 2
