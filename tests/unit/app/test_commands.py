"""The commands in one process: what they refuse, what they print, what they keep when something goes wrong."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest

from autopilot.app.commands import run_commands
from autopilot.app.options import BASELINE_NAMES, POLICY_NAMES, SCENARIO_NAMES, SHIPPED_NAMES, SimulateOptions
from autopilot.app.runs.named import check_policies
from autopilot.app.runs.outputs import Outputs, check_outputs, write_outputs
from autopilot.app.runs.plan import plan_at
from autopilot.app.runs.simulate import SimulationOutcome, simulate
from autopilot.cli import main
from autopilot.core.model.errors import InputError
from autopilot.core.model.policy import Mode
from autopilot.explain.proposals import Answer, answer_of, explain_decision
from autopilot.files import state_folder
from autopilot.report.embedded import unpacked
from autopilot.settings import policy_names, shipped_policy
from simulator.baselines import BASELINES
from simulator.scenarios import scenario_names

HEADER = "job_id,tenant,submit_s,duration_s,gpus\n"
ROWS = "".join(f"j{n},t,{60 * n},{900 + n},{(4, 8)[n % 2]}\n" for n in range(6))


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder with a job file, a state folder of its own, and wide lines."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("COLUMNS", "200")
    (tmp_path / "jobs.csv").write_text(HEADER + ROWS)
    (tmp_path / "mine.yaml").write_text("base: autopilot\n")
    return tmp_path


def call(*arguments: str) -> int:
    """The exit code of a command."""
    with pytest.raises(SystemExit) as ended:
        main(list(arguments))
    return int(ended.value.code or 0)


def run(*more: str) -> int:
    """The exit code of a small simulation."""
    return call("simulate", "--jobs", "jobs.csv", "--cluster", "1x8", "--telemetry", "off", *more)


def refusal(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """What a refused command says, in one message."""
    assert call(*arguments) == 2
    said = capsys.readouterr()
    assert said.err.startswith("autopilot: ")
    assert len(said.err.strip().splitlines()) == 1
    return said.err


def small(*policies: str, journal: Path | None = None) -> SimulationOutcome:
    """A small simulation, by its function."""
    return simulate(
        SimulateOptions(jobs=Path("jobs.csv"), cluster="1x8", policies=policies, telemetry="off", journal=journal)
    )


# --- policies ---------------------------------------------------------------------------------------


def test_help_names_what_there_is() -> None:
    """The names in the help texts are those of the tables."""
    assert tuple(BASELINES) == BASELINE_NAMES
    assert set(SHIPPED_NAMES) == set(policy_names())
    acting = {each for each in policy_names() if shipped_policy(each).modes.admit_gang is Mode.AUTO}
    assert set(POLICY_NAMES) == acting
    assert scenario_names() == SCENARIO_NAMES


def test_a_policy_that_would_start_nothing_is_refused(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A file without a base is based on recommend: its simulation would wait for approvals indefinitely."""
    (folder / "bare.yaml").write_text("order: {max_wait_s: 2h}\n")
    for name in ("recommend", "bare.yaml"):
        said = refusal(capsys, "simulate", "--jobs", "jobs.csv", "--cluster", "1x8", "--policy", name)
        assert name in said
        assert "modes.admit_gang" in said
        assert "base: autopilot" in said


def test_no_policy_hides_another(folder: Path) -> None:
    """A file whose name is taken is shown under its path; a name given twice runs once."""
    (folder / "autopilot.yaml").write_text("base: autopilot\n")
    (folder / "other.yaml").write_text("name: fifo\nbase: autopilot\n")
    found = check_policies(("other.yaml", "fifo", "autopilot.yaml", "autopilot", "mine.yaml", "fifo"))
    assert list(found) == ["other.yaml", "fifo", "autopilot.yaml", "autopilot", "mine"]
    assert [policy is None for policy in found.values()] == [False, True, False, False, False]


def test_an_unknown_policy_of_a_scenario_is_laid_to_the_scenario(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """An error never names a flag that was not given."""
    (folder / "own.yaml").write_text(
        "horizon: 1h\ncluster: 1x8\npolicies: [best]\njobs: {file: jobs.csv}\n", encoding="utf-8"
    )
    said = refusal(capsys, "simulate", "--scenario", "own.yaml")
    assert "scenario own: policies: 'best'" in said


def test_an_unknown_policy_is_told_all_that_are_known(capsys: pytest.CaptureFixture[str]) -> None:
    """Those that act by themselves and the baselines; `recommend` would start nothing."""
    said = refusal(capsys, "simulate", "--jobs", "jobs.csv", "--cluster", "1x8", "--policy", "nosuch")
    for name in (*POLICY_NAMES, *BASELINE_NAMES):
        assert f" {name}" in said
    assert "recommend" not in said


@pytest.mark.parametrize("command", ["replay", "plan"])
def test_a_baseline_is_named_as_one_where_it_cannot_decide(capsys: pytest.CaptureFixture[str], command: str) -> None:
    """Not as unknown; the message has what is taken."""
    said = refusal(capsys, command, "--policy", "kueue")
    assert "kueue is a baseline, which only `autopilot simulate` runs" in said
    assert f"{', '.join(SHIPPED_NAMES)} or a policy file" in said
    for name in SHIPPED_NAMES:
        assert name in said


def test_a_pipe_is_no_policy_file(folder: Path) -> None:
    """Opening it would wait for its writer."""
    os.mkfifo(folder / "pipe.yaml")
    with pytest.raises(InputError, match="is a pipe or a device"):
        check_policies(("pipe.yaml",))


# --- flags ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--policy", ","), "names no policy"),
        (("--rate-scale", "0.5"), "--requests"),
        (("--tenant", ""), "no job of tenant ''"),
        (("--json", "jobs.csv"), "is already the file of --jobs"),
        (("--json", "x.csv", "--jobs-out", "./x.csv"), "is already the file of --json"),
        (("--json", "run.journal", "--journal", "run.journal"), "is already the file of --journal"),
        (("--jobs-out", "mine.csv", "--json", "mine.yaml", "--policy", "mine.yaml"), "is already the file of --policy"),
        (("--report", "jobs.csv/page"), "jobs.csv is a file"),
        (
            ("--report", "page.html"),
            "page.html names a folder (for the page and its plots); leave out .html",
        ),
        (("--journal", "."), "is a folder"),
        (("--journal", "x", "--policy", "fifo"), "fifo writes no journal"),
        (("--registry", "jobs.csv"), "--registry: jobs.csv is a file; name a folder"),
        (("--registry", "jobs.csv/models"), "jobs.csv is a file; name a folder"),
        (("--cluster", "c" * 300), "File name too long"),
        (("--json", "c" * 300), "File name too long"),
    ],
)
def test_a_flag_that_cannot_be_meant_is_refused(
    folder: Path, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], words: str
) -> None:
    """One message before anything runs; no file of the user is touched."""
    given = ["--cluster", "1x8"] if "--cluster" not in arguments else []
    assert words in refusal(capsys, "simulate", "--jobs", "jobs.csv", *given, *arguments)
    assert (folder / "jobs.csv").read_text() == HEADER + ROWS
    assert (folder / "mine.yaml").read_text() == "base: autopilot\n"


def test_the_state_folder_is_made_only_for_a_journal(folder: Path) -> None:
    """A baseline leaves no journal, so that a home that cannot be written does no harm."""
    assert run("--policy", "fifo") == 0
    assert not (folder / "state").exists()
    assert run("--policy", "fifo,mine.yaml") == 0
    assert (folder / "state" / "gpu-autopilot" / "last.journal").exists()


def test_a_relative_state_home_does_not_count(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """As the XDG base directory specification has it."""
    monkeypatch.setenv("XDG_STATE_HOME", "here")
    monkeypatch.setenv("HOME", str(folder))
    assert state_folder() == folder / ".local" / "state" / "gpu-autopilot"


# --- what is printed --------------------------------------------------------------------------------


def test_names_are_printed_as_they_are(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Square brackets and colons in names are no markup."""
    (folder / "odd.yaml").write_text('name: "[/red] :tada:"\nbase: autopilot\n')
    (folder / "[red]y.csv").write_text(HEADER + "[/a],[/t],0,10,1\n")
    assert (
        call("simulate", "--jobs", "[red]y.csv", "--cluster", "1x8", "--policy", "odd.yaml", "--json", "[b]o.json") == 0
    )
    said = capsys.readouterr().out
    for name in ("[red]y.csv", "[/red] :tada:", "result: [b]o.json"):
        assert name in said
    assert call("explain", "0") == 0
    assert "admit-[/a]-" in capsys.readouterr().out


def test_rows_left_out_are_named(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The reason names the column, and the line and the value of its first row are there."""
    with (folder / "jobs.csv").open("a") as file:
        file.write("late,t,5,-3,1\n")
    assert run("--policy", "fifo") == 0
    assert "rows dropped: 1 duration_s is negative (first in line 8, value -3)" in capsys.readouterr().out


def test_many_notes_are_cut(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A request file with many services prints a few notes and the number of the others."""
    rows = "".join(f"{n},s{n},10,10\n" for n in range(9))
    (folder / "requests.csv").write_text("t_s,service,input_tokens,output_tokens\n" + rows)
    assert call("simulate", "--requests", "requests.csv", "--cluster", "2x8", "--policy", "fifo") == 0
    said = capsys.readouterr().out
    assert said.count("has no description") == run_commands.SHOWN_NOTES
    assert "and 4 more notes" in said


def test_progress_counts_jobs_alone_and_comes_to_its_end() -> None:
    """Replicas of services are no jobs, and the last report of a policy says that all is done."""
    seen: list[tuple[str, int, int]] = []
    options = SimulateOptions(scenario="quickstart", policies=("fifo-skip",))
    simulate(options, lambda name, _now_s, ended, total: seen.append((name, ended, total)))
    total = seen[-1][2]
    assert seen[-1] == ("fifo-skip", total, total)
    assert len(seen) > 1
    assert max(ended for _, ended, _ in seen) == total


def test_progress_in_a_pipe_is_a_line_now_and_then(capsys: pytest.CaptureFixture[str]) -> None:
    """No line before five seconds are over, then one every five; a quick command prints none."""
    clock = iter((0.0, 1.0, 6.0, 6.0, 7.0, 12.0, 12.0))
    with run_commands.progress_bar(lambda: next(clock)) as show:
        for done, total in ((1, 8), (2, 8), (3, 8), (4, 0)):
            show("autopilot", done, total, f"{done} jobs")
    assert capsys.readouterr().err.splitlines() == ["autopilot: 25%, 2 jobs", "autopilot: 4 jobs"]


def test_simulate_ends_with_the_result_in_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    """As the demo does, and without a page; ideal physics names the policies it favours where work was preempted."""
    assert run("--policy", "fifo,autopilot") == 0
    said = capsys.readouterr().out
    assert said.splitlines()[-1].startswith("autopilot finished the same 6 jobs")
    assert "flatters" not in said
    assert call("simulate", "--scenario", "quickstart", "--policy", "fifo,las", "--physics", "ideal") == 0
    assert "physics ideal: preemptions and moves cost no time, which favours" in capsys.readouterr().out


# --- what is kept -----------------------------------------------------------------------------------


def test_each_policy_has_a_journal_and_the_first_is_the_last_runs(folder: Path) -> None:
    """So that `explain` without arguments never reads an older run."""
    journal = folder / "last.journal"
    outcome = small("fifo", "autopilot", "mine.yaml", journal=journal)
    assert [each.journal for each in outcome.policies] == [None, journal, folder / "last-2-mine.journal"]
    assert (folder / "last-2-mine.journal").exists()


def test_a_journal_that_fails_keeps_the_policies_before(folder: Path) -> None:
    """The outcome holds what was done and says what was not."""
    outcome = small("fifo", "autopilot", "easy", journal=folder)
    assert [each.name for each in outcome.policies] == ["fifo"]
    assert "is a folder" in outcome.failure
    assert outcome.not_run == ("autopilot", "easy")
    with pytest.raises(InputError, match="is a folder"):
        small("autopilot", "fifo", journal=folder)


def test_one_output_that_fails_does_not_lose_the_others(folder: Path) -> None:
    """The job rows are written although the JSON cannot be."""
    outputs = Outputs(json=folder / "gone" / "out.json", jobs=folder / "rows.csv")
    written, problems = write_outputs(small("fifo"), outputs, "autopilot simulate")
    assert written == [f"jobs: {folder / 'rows.csv'}"]
    assert len(problems) == 1
    assert "out.json" in problems[0]
    assert len((folder / "rows.csv").read_text().splitlines()) == 7


def test_a_folder_that_is_not_there_yet_is_fine_for_a_page(folder: Path) -> None:
    """It is made; only a file in the way is refused."""
    check_outputs(Outputs(report=folder / "a" / "b"), SimulateOptions())
    with pytest.raises(InputError, match="is a file; name a folder"):
        check_outputs(Outputs(report=folder / "mine.yaml" / "b"), SimulateOptions())


def test_ctrl_c_outside_a_run_says_so(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit code 130 and a word, whatever the command was about."""

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(run_commands, "list_traces", stop)
    assert call("traces", "list") == 130
    assert capsys.readouterr().err == "autopilot: interrupted\n"


# --- plan, replay, explain, import ------------------------------------------------------------------


def test_plan_has_something_to_decide() -> None:
    """Strict first come first served leaves room, so that a plan shows proposals; a recommendation is not called
    refused.
    """
    _, _, decision = plan_at(SimulateOptions(), 2400.0, "recommend")
    assert len(decision.plan.proposals) > 5
    assert not any(proposal.accepted for proposal in decision.plan.proposals)
    assert {answer_of(each) for each in decision.plan.proposals} == {Answer.RECOMMENDED}
    said = explain_decision(decision)
    assert "recommended" in said[0]
    assert not any("refused" in line for line in said)
    _, _, decision = plan_at(SimulateOptions(), 2400.0, "autopilot")
    assert all(proposal.accepted for proposal in decision.plan.proposals)


def test_plan_refuses_a_moment_that_nobody_means(capsys: pytest.CaptureFixture[str]) -> None:
    """Without the limit it would go on for hours."""
    assert "at most 366d" in refusal(capsys, "plan", "--at", "999999999h")


def test_plan_refuses_a_moment_after_the_end_of_the_run(capsys: pytest.CaptureFixture[str]) -> None:
    """Work that waits after the last submit is still there to be planned; after its end nothing is."""
    assert call("plan", "--at", "2h30m") == 0
    capsys.readouterr()
    said = refusal(capsys, "plan", "--at", "99d")
    assert "--at: 99 d is after the end of the run (2 h 59 min)" in said


def test_replay_takes_its_journal_either_way(capsys: pytest.CaptureFixture[str]) -> None:
    """As an argument or, like explain, with --journal; not both."""
    assert run("--policy", "autopilot", "--journal", "one.journal") == 0
    for given in (("one.journal",), ("--journal", "one.journal")):
        assert call("replay", *given) == 0
        assert "identical" in capsys.readouterr().out
    assert "name one journal" in refusal(capsys, "replay", "one.journal", "--journal", "one.journal")


def test_explain_answers_for_a_time_and_for_work_that_is_over(capsys: pytest.CaptureFixture[str]) -> None:
    """`--at` alone is a tick; a workload that is gone is told from its submission to its end."""
    assert run("--policy", "autopilot") == 0
    capsys.readouterr()
    assert call("explain", "--at", "2m") == 0
    assert capsys.readouterr().out.startswith("tick 2 at 2 min")
    assert call("explain", "--workload", "j3") == 0
    said = capsys.readouterr().out
    assert "j3: finished at " in said
    assert "(admit_gang, accepted)" in said
    assert "history:" in said
    assert call("explain", "--workload", "j5", "--at", "6m") == 0
    said = capsys.readouterr().out
    assert "j5: pending, 8 GPUs" in said
    assert "in the order of service; before it wait j" in said
    assert "held by capacity: 0 GPUs it may use are free, it needs 8" in said
    assert "what would free it:" in said
    assert "later:" in said
    for given in ((), ("--workload", "j5")):
        said = refusal(capsys, "explain", *given, "--at", "99d")
        assert "--at: 99 d is after the end of the run (" in said
    assert "leave out" in refusal(capsys, "explain", "0", "--workload", "j3")
    assert "leave out" in refusal(capsys, "explain", "0", "--at", "1h")


def test_dates_of_a_job_file_are_told_again(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A file that counts from 1970 gives its run a date: in decisions, in explain and on the page."""
    start_s = 1_795_000_000
    dated = "".join(f"j{n},t,{start_s + 60 * n},{900 + n},{(4, 8)[n % 2]}\n" for n in range(6))
    (folder / "jobs.csv").write_text(HEADER + dated)
    assert run("--policy", "autopilot", "--report", "page") == 0
    capsys.readouterr()
    assert call("decisions", "--since", "2026-11-18T11:07", "--limit", "1") == 0
    assert capsys.readouterr().out.splitlines()[1].startswith("2026-11-18 12:")
    assert call("explain", "0") == 0
    assert "  at 2026-11-18T11:06:40Z" in capsys.readouterr().out.splitlines()
    assert call("explain", "--workload", "j0") == 0
    assert "  2026-11-18 11:06:40: submitted, for 4 GPUs" in capsys.readouterr().out.splitlines()
    page = (folder / "page" / "index.html").read_text(encoding="utf-8")
    assert "2026-11-18 11:06:40" in unpacked(re.findall(r'<script type="text/plain">([^<]+)<', page)[0])["strings"]


def test_an_import_needs_no_name_for_its_file(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It goes to KIND.parquet, and a file of that name is not replaced unasked."""
    assert call("traces", "import", "philly", "jobs.csv") == 0
    assert "philly.parquet: 6 rows" in capsys.readouterr().out
    assert "--out philly.parquet" in refusal(capsys, "traces", "import", "philly", "jobs.csv")
    assert call("traces", "import", "philly", "jobs.csv", "--out", "philly.parquet") == 0


def test_an_interrupted_run_says_how_far_it_came(monkeypatch: pytest.MonkeyPatch) -> None:
    """Policy, time, jobs, and what was not run; the table marks the column."""
    outcome = small("fifo", "easy")
    outcome.policies[1].simulated.run.interrupted = True
    outcome.not_run = ("las",)
    words = run_commands.interrupted_words(outcome)
    assert "easy reached" in words
    assert "6 of 6 jobs finished; not run: las" in words


def test_json_holds_every_key_and_null_where_nothing_was_measured(folder: Path) -> None:
    """The keys that the documentation names, for a baseline without services."""
    assert run("--policy", "fifo", "--telemetry", "off", "--json", "out.json") == 0
    document = json.loads((folder / "out.json").read_text())
    assert document["durations"] is None
    assert document["telemetry"] == "off"
    block = document["policies"]["fifo"]
    assert {"submitted", "unusable_by_reason", "total_wait_s_p99", "longest_waits"} <= set(block["jobs"])
    assert block["reservations"] == {"made": None, "kept": None, "late": None, "released": None}
    assert block["utilization"]["hardware_ratio"] is None
    assert block["utilization"]["to_last_arrival"]["real_utilization_ratio"] is None
    assert block["fragmentation"] == {"stranded_gpu_s": None, "pools": None}


def test_a_job_file_has_no_activity_in_any_figure(folder: Path) -> None:
    """The autopilot sees drawn telemetry. The output says so and shows no utilization."""
    assert run("--policy", "fifo,autopilot", "--telemetry", "windowed", "--json", "out.json") == 0
    blocks = json.loads((folder / "out.json").read_text())["policies"]
    assert {block["utilization"]["real_utilization_ratio"] for block in blocks.values()} == {None}
    assert {block["use"] for block in blocks.values()} == {None}


def test_the_comparison_says_who_fared_worse(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Rows that no policy has are left out; moves stand beside preemptions."""
    assert run("--policy", "fifo-skip,autopilot") == 0
    said = capsys.readouterr().out
    assert "jobs ended later than under fifo-skip" in said
    assert "moves " in said
    assert "inference latency" not in said
    assert "real utilization over the makespan" not in said
    assert "no telemetry" in said


def test_among_several_tenants_las_is_compared_too(folder: Path) -> None:
    """A table of many tenants without it favours policies that preempt; one tenant is compared as before."""
    assert run("--json", "one.json") == 0
    rows = (folder / "jobs.csv").read_text().splitlines()
    (folder / "jobs.csv").write_text("\n".join([*rows, "other,team-2,5,10,1"]) + "\n")
    assert run("--json", "two.json") == 0
    found = [list(json.loads((folder / name).read_text())["policies"]) for name in ("one.json", "two.json")]
    assert found == [["fifo-skip", "autopilot"], ["fifo-skip", "las", "autopilot"]]
