"""Comparisons over seeds: what is run, what is kept, and what is said of it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from subprocess import PIPE
from typing import Any

import pytest

from autopilot.app.commands.planner_cli import changes_of
from autopilot.app.compare import cases as cases_module
from autopilot.app.compare import running
from autopilot.app.compare.cases import UNCHANGED, Case, Comparison, check, digest_of, parse_seeds
from autopilot.app.compare.markdown import escaped
from autopilot.app.compare.running import Kept, run_all
from autopilot.app.compare.summary import findings, groups_of, spread_text
from autopilot.app.options import SimulateOptions
from autopilot.cli import main
from autopilot.core.model.errors import InputError
from autopilot.metering.prices import flat_prices
from tests.tidy.tree import ROOT

HEADER = "job_id,tenant,submit_s,duration_s,gpus\n"
ROWS = "".join(f"j{n},t,{60 * n},{900 + n},{(4, 8)[n % 2]}\n" for n in range(6))


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder with a job file and a state folder of its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("COLUMNS", "200")
    (tmp_path / "jobs.csv").write_text(HEADER + ROWS)
    return tmp_path


def small(**more: Any) -> Comparison:
    """Two baselines and the autopilot on six jobs, two seeds."""
    base = SimulateOptions(
        jobs=Path("jobs.csv"), cluster="1x8", telemetry="off", durations="exact", jitter_ratio=0.2, series=False
    )
    asked: dict[str, Any] = {"policies": ("fifo", "fifo-skip", "autopilot"), "seeds": (1, 2), **more}
    return Comparison(base=base, **asked)


def call(*arguments: str) -> int:
    """The exit code of a command."""
    with pytest.raises(SystemExit) as ended:
        main(list(arguments))
    return int(ended.value.code or 0)


SMALL = ("--jobs", "jobs.csv", "--cluster", "1x8", "--telemetry", "off", "--workers", "1", "--durations", "exact")


def test_each_run_is_the_same_with_any_number_of_workers(tmp_path: Path) -> None:
    """One process or two: equal records in equal order, apart from the time that they took."""
    cases = check(small(policies=("fifo-skip", "autopilot"), seeds=(1,))).cases
    found = [run_all(cases, Kept(tmp_path / str(workers)), workers) for workers in (1, 2)]
    for records in found:
        for record in records:
            record.pop("wall_s")
    assert found[0] == found[1]
    assert found[0][0] != found[0][1]


def test_a_worker_in_another_folder_reads_the_same_files(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Worker processes are kept, and stay in the folder of their first call: job file and policy file are found."""
    (folder / "mine.yaml").write_text("base: autopilot\nname: mine\n")
    options = check(small(policies=("mine.yaml",), seeds=(1,))).cases[0].options
    here = running.run_case(options)["result"]
    sent = running.absolute(options)
    (folder / "other").mkdir()
    monkeypatch.chdir(folder / "other")
    assert running.run_case(sent)["result"] == here


def test_an_interrupted_comparison_continues(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After Ctrl-C in the fourth run three are kept; the next call runs the other three."""
    cases, kept = check(small()).cases, Kept(tmp_path / "kept")
    ran: list[str] = []
    real = running.run_case

    def counted(options: SimulateOptions) -> running.Record:
        ran.append(f"{options.policies[0]}/{options.seed}")
        if len(ran) == 4 and not kept.load(digest_of(options)):
            raise KeyboardInterrupt
        return real(options)

    monkeypatch.setattr(running, "run_case", counted)
    with pytest.raises(KeyboardInterrupt):
        run_all(cases, kept, 1)
    assert len(list(kept.folder.iterdir())) == 3
    again: list[tuple[int, int]] = []
    records = run_all(cases, kept, 1, lambda done, total, _: again.append((done, total)))
    assert len(ran) == 4 + 3
    assert again == [(3, 6), (4, 6), (5, 6), (6, 6)]
    assert records == [real(case.options) | {"wall_s": records[at]["wall_s"]} for at, case in enumerate(cases)]


def test_a_damaged_result_is_run_again(tmp_path: Path) -> None:
    """A file that is cut off, or of another version, does not count as a finished run."""
    cases, kept = check(small(policies=("fifo",), seeds=(1,))).cases, Kept(tmp_path)
    (record,) = run_all(cases, kept, 1)
    path = next(tmp_path.glob("*.json"))
    for content in (path.read_text()[:100], json.dumps(record | {"schema": "other/9"}), "[]"):
        path.write_text(content)
        assert run_all(cases, kept, 1)[0]["result"] == record["result"]


def test_the_digest_covers_what_determines_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another seed, policy, change, job file, file of a scenario or source is another run; the journal is not."""
    options = check(small()).cases[0].options
    first = digest_of(options)
    assert digest_of(replace(options, journal=tmp_path / "j")) == first
    others = {
        digest_of(replace(options, **each)) for each in ({"seed": 9}, {"policies": ("las",)}, {"changes": ("a",)})
    }
    (tmp_path / "jobs.csv").write_text(HEADER + ROWS.replace("900", "901"))
    others.add(digest_of(options))
    scenario = tmp_path / "mine.yaml"
    scenario.write_text("cluster: 1x8\nhorizon: 1h\njobs: {file: {path: jobs.csv}}\n")
    by_scenario = SimulateOptions(scenario=str(scenario), policies=("fifo",))
    others.add(digest_of(by_scenario))
    (tmp_path / "jobs.csv").write_text(HEADER + ROWS)
    others.add(digest_of(by_scenario))
    monkeypatch.setattr(cases_module, "source_version", lambda: "another")
    others.add(digest_of(options))
    assert len(others | {first}) == 8


def record(wait_s: float | None, useful_s: float = 3600.0) -> dict[str, Any]:
    """A run with the figures that the summary reads."""
    return {
        "pools": [{"name": "a", "gpu_model": "H100-80GB", "gpus": 8}],
        "result": {
            "jobs": {"total_wait_s_mean": wait_s},
            "makespan_s": 7200.0,
            "gpu_s": {"allocated": 4 * 7200.0, "idle": 4 * 7200.0, "useful": useful_s},
            "utilization": {"hardware_ratio": 0.25},
        },
    }


def case(policy: str, seed: int, change: str = UNCHANGED) -> Case:
    """One case on the cluster 1x8."""
    return Case(cluster="1x8", change=change, policy=policy, seed=seed, options=SimulateOptions())


def test_medians_ranges_and_verdicts_are_those_of_the_seeds() -> None:
    """The median with the lowest and highest value; better and worse are counted seed by seed."""
    cases = [case(policy, seed) for policy in ("one", "two") for seed in (1, 2, 3)]
    waits = (600.0, 1200.0, 3000.0, 900.0, 600.0, 1200.0)
    (group,) = groups_of(cases, [record(wait_s) for wait_s in waits], None)
    (wait,) = (row for row in group.rows if row[0].title == "total wait, mean")
    assert [spread_text(wait[0], spread) for spread in wait[1]] == [
        "20 min (10 min to 50 min)",
        "15 min (10 min to 20 min)",
    ]
    (found,) = findings([group])
    assert found.words == (
        "1x8: two instead of one: total wait, mean 15 min instead of 20 min (better with 2, worse with 1 of 3 seeds)"
    )
    assert found.better


def test_what_prints_the_same_does_not_differ() -> None:
    """One second in 600 is no finding. Where seeds differ and the medians print the same, one value is printed."""
    cases = [case(policy, seed) for policy in ("one", "two") for seed in (1, 2, 3)]
    same = [record(wait_s) for wait_s in (600.0, 1200.0, 1800.0, 601.0, 1201.0, 1801.0)]
    assert findings(groups_of(cases, same, None)) == ()
    mixed = [record(wait_s) for wait_s in (600.0, 1200.0, 1800.0, 300.0, 1200.0, 2400.0)]
    (found,) = findings(groups_of(cases, mixed, None))
    assert "total wait, mean 20 min, as a median (better with 1, worse with 1 of 3 seeds)" in found.words


def test_each_of_several_tenants_has_its_waits() -> None:
    """Mean and p90 by tenant, the one with most jobs first; a single tenant has no rows of its own."""
    one, two = record(600.0), record(600.0)
    one["result"]["tenants"] = {"a": {"submitted": 1, "total_wait_s_mean": 60.0, "total_wait_s_p90": 120.0}}
    two["result"]["tenants"] = one["result"]["tenants"] | {"b": {"submitted": 3, "total_wait_s_mean": 0.0}}
    groups = [groups_of([case("one", 1)], [each], None)[0] for each in (one, two)]
    titles = [[figure.title for figure, _ in group.rows if " of " in figure.title] for group in groups]
    assert titles == [[], ["total wait of b, mean", "total wait of a, mean", "total wait of a, p90"]]


def test_a_folder_that_cannot_be_written_is_told_before_anything_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A home that cannot be written: the message names the option that gives another folder."""
    monkeypatch.setattr(running, "run_case", lambda _: pytest.fail("nothing may run"))
    (tmp_path / "home").write_text("")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "home"))
    for more, flag in (((), "--report"), (("--report", "page"), "--results")):
        assert call("compare", *SMALL, "--policy", "fifo", "--seeds", "1", *more) == 2
        assert f"cannot be written: Not a directory; name another folder with {flag}" in capsys.readouterr().err


def test_money_is_every_gpu_over_the_makespan() -> None:
    """8 GPUs for 2 h at 3: 48; half of it idle; of the other half three quarters without SM activity."""
    (group,) = groups_of([case("one", 1)], [record(None)], flat_prices(3.0).at(None))
    money = {figure.title: spreads[0].middle for figure, spreads in group.rows if figure.kind == "money"}
    assert list(money.values()) == [48.0, 24.0, 18.0, 48.0]
    endless = record(None)
    del endless["result"]["makespan_s"]
    (group,) = groups_of([case("one", 1)], [endless], flat_prices(3.0).at(None))
    assert "cost of the cluster over the makespan" not in {figure.title for figure, _ in group.rows}
    unpriced = groups_of([case("one", 1)], [record(None)], None)[0]
    assert [figure.title for figure, _ in unpriced.rows] == ["makespan"]


def test_a_change_is_compared_with_the_unchanged_cluster() -> None:
    """The same policy with four nodes more, against itself."""
    cases = [case("one", 1), case("one", 1, "nodes=+4")]
    found = findings(groups_of(cases, [record(600.0), record(300.0)], None))
    assert [each.words for each in found] == [
        "one: 1x8 with nodes=+4 instead of the unchanged cluster: total wait, mean 5 min instead of 10 min "
        "(better with 1, worse with 0 of 1 seed)"
    ]


def test_the_command_prints_and_writes_a_summary(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A table for each cluster, a page without scripts from elsewhere, and Markdown; a second call runs nothing."""
    given = ("compare", *SMALL, "--policy", "fifo,fifo-skip", "--seeds", "2", "--jitter", "0.2", "--nodes", "+1")
    assert call(*given, "--price", "2.5", "--report", "page") == 0
    printed = capsys.readouterr().out
    assert "1x8 with nodes=+1" in printed
    assert "cost of the cluster over the makespan, USD" in printed
    assert "seeds)" in printed
    page, summary = ((tmp_path / "page" / name).read_text() for name in ("index.html", "summary.md"))
    assert "What differs" in page
    assert page.count("<table") == 2
    assert "| total wait, mean |" in summary
    assert call(*given, "--json", "-") == 0
    document = json.loads(capsys.readouterr().out)
    assert len(document["runs"]) == 8
    assert {run["change"] for run in document["runs"]} == {UNCHANGED, "nodes=+1"}
    assert len(list((tmp_path / "state/gpu-autopilot/compare/runs").iterdir())) == 8


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (("--set", "queue.x.guarantee=1"), "no such queue; there are none"),
        (("--policy", "fifo,autopilt"), "did you mean autopilot?"),
        (("--price", "1", "--prices", "p.yaml"), "give one of them"),
        (("--prices", "p.yaml"), "p.yaml: no such price file"),
        (("--seeds", "1-"), "--seeds: '1-' is not allowed"),
        (("--seeds", "0"), "names 0 seeds"),
        (("--workers", "0"), "--workers: 0 is not allowed"),
        (("--cluster", "1x8", "--nodes", "+1", "--nodes", "+1"), "is named twice"),
    ],
)
def test_a_bad_call_is_refused(more: tuple[str, ...], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Before anything runs: one message with the flag, the value and the fix."""
    assert call("compare", *SMALL, *more) == 2
    said = capsys.readouterr().err
    assert words in said
    assert len(said.strip().splitlines()) == 1


def test_seeds_and_changes_are_parsed() -> None:
    """A count, a range, a list; `--nodes` is a change of the only pool, or of the one that it names."""
    assert parse_seeds("3") == (1, 2, 3)
    assert parse_seeds("10-12") == (10, 11, 12)
    assert parse_seeds("8, 3,8") == (3, 8)
    for bad in ("", "1-2000", "a", "3-1", "1,,2"):
        with pytest.raises(InputError, match="--seeds"):
            parse_seeds(bad)
    assert changes_of(["a=1, b=2"], ["+4", "train=-1"]) == (("a=1", "b=2"), ("nodes=+4",), ("nodes.train=-1",))


def test_names_are_no_markdown() -> None:
    """A tenant or file may have any name."""
    assert escaped("a|b\n<i> [x](y)") == r"a\|b \<i\> \[x\](y)"


DASK = """
import sys
from distributed import LocalCluster
if __name__ == "__main__":
    with LocalCluster(n_workers=1, threads_per_worker=1, host="127.0.0.1", dashboard_address=None) as cluster:
        print(cluster.scheduler_address, flush=True)
        sys.stdin.read()
"""


def test_the_worker_of_a_dask_cluster_gives_the_same_records(tmp_path: Path) -> None:
    """A worker in another folder runs it; what was kept is not run again; an address without a scheduler says so."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "cluster.py").write_text(DASK)
    environment = os.environ | {"PYTHONPATH": str(ROOT), "DASK_DISTRIBUTED__WORKER__DAEMON": "False"}
    cases = check(small(policies=("fifo-skip", "autopilot"), seeds=(1,))).cases
    with subprocess.Popen(
        [sys.executable, "cluster.py"], stdin=PIPE, stdout=PIPE, text=True, cwd=elsewhere, env=environment
    ) as cluster:
        assert cluster.stdout is not None
        address = cluster.stdout.readline().strip()
        spread = run_all(cases, Kept(tmp_path / "dask"), dask=address)
        cluster.communicate("")
    here = run_all(cases, Kept(tmp_path / "here"), 1)
    for record in (*spread, *here):
        record.pop("wall_s")
    assert spread == here
    assert len(run_all(cases, Kept(tmp_path / "dask"), 1)) == 2
    with pytest.raises(InputError, match=r"--dask: tcp://127\.0\.0\.1:9: no Dask scheduler answers"):
        run_all(cases, Kept(tmp_path / "none"), dask="tcp://127.0.0.1:9")
