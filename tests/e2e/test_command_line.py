"""The command line as a user meets it: real files, exit codes and messages, in separate processes but for refusals."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from autopilot.cli import main

ROOT = Path(__file__).parents[2]
HEADER = "job_id,tenant,submit_s,duration_s,gpus\n"
ROWS = "".join(f"j{n},team-{n % 3},{n * 40},{300 + 60 * (n % 7)},{(1, 2, 4, 8, 16)[n % 5]}\n" for n in range(60))

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """A home of its own, so that nothing of the user's state is read or written."""
    return {
        **os.environ,
        "XDG_STATE_HOME": str(tmp_path / "state"),
        "PYTHONPATH": str(ROOT),
        "COLUMNS": "200",
    }


@pytest.fixture
def autopilot(tmp_path: Path, environment: dict[str, str]) -> Run:
    """Run the command line in an empty folder."""

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "autopilot.cli", *arguments],
            cwd=tmp_path,
            env=environment,
            text=True,
            capture_output=True,
            timeout=120,
            check=False,
        )

    return run


@pytest.fixture
def within(
    tmp_path: Path, environment: dict[str, str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Run:
    """The same in this process, for the many commands that are refused at once: the start of a process takes longer."""

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        monkeypatch.chdir(tmp_path)
        for name in ("XDG_STATE_HOME", "COLUMNS"):
            monkeypatch.setenv(name, environment[name])
        with pytest.raises(SystemExit) as ended:
            main(list(arguments))
        said = capsys.readouterr()
        return subprocess.CompletedProcess(arguments, int(ended.value.code or 0), said.out, said.err)

    return run


@pytest.fixture
def jobs(tmp_path: Path) -> Path:
    """A small job file."""
    path = tmp_path / "jobs.csv"
    path.write_text(HEADER + ROWS)
    return path


def test_simulate_writes_all_that_it_promises(autopilot: Run, jobs: Path, tmp_path: Path) -> None:
    """One call writes the JSON, the job rows and the page; the journal replays identically and explains itself."""
    done = autopilot(
        "simulate",
        "--jobs",
        str(jobs),
        "--cluster",
        "2x8",
        "--policy",
        "fifo-skip,autopilot",
        "--durations",
        "exact",
        "--json",
        "out.json",
        "--jobs-out",
        "rows.csv",
        "--report",
        "page",
    )
    assert done.returncode == 0, done.stderr
    result = json.loads((tmp_path / "out.json").read_text())
    assert result["schema"] == "gpu-autopilot/simulation/1"
    _check_policy(result["policies"]["fifo-skip"])
    _check_policy(result["policies"]["autopilot"])
    assert len((tmp_path / "rows.csv").read_text().splitlines()) == 1 + 2 * 60
    assert "<svg" in (tmp_path / "page" / "index.html").read_text()
    replayed = autopilot("replay")
    assert replayed.returncode == 0, replayed.stderr
    assert "identical" in replayed.stdout
    story = autopilot("explain", "--workload", "j4")
    assert story.returncode == 0, story.stderr
    proposal = next(word for word in story.stdout.split() if word.startswith("admit-j4-"))
    case = autopilot("explain", proposal)
    assert case.returncode == 0, case.stderr
    for guard in ("freshness", "protected", "gang", "min_runtime", "hysteresis", "budget", "mode"):
        assert f"guard {guard}: " in case.stdout


def _check_policy(block: dict[str, Any]) -> None:
    """The accounts balance, nothing was violated, and what was not measured is null."""
    gpu_s = block["gpu_s"]
    assert gpu_s["allocated"] == pytest.approx(gpu_s["useful"] + gpu_s["lost"] + gpu_s["overhead"])
    assert gpu_s["capacity"] == pytest.approx(gpu_s["allocated"] + gpu_s["idle"])
    assert block["invariants"]["violated"] == 0
    assert block["invariants"]["checked"] > 0
    assert block["jobs"]["finished"] == 60
    assert block["utilization"]["hardware_ratio"] is None  # a job file has no SM activity
    assert block["slo"] == {"requests": None, "p99_latency_s": None, "violation_ratio": None}


def test_the_same_seed_gives_the_same_result(autopilot: Run, tmp_path: Path) -> None:
    """Two runs differ in nothing but the wall time."""
    jobs = tmp_path / "few.csv"
    jobs.write_text(HEADER + "".join(ROWS.splitlines(keepends=True)[:20]))
    documents = []
    for name in ("a.json", "b.json"):
        done = autopilot(
            "simulate",
            "--jobs",
            str(jobs),
            "--cluster",
            "2x8",
            "--jitter",
            "0.05",
            "--seed",
            "3",
            "--json",
            name,
        )
        assert done.returncode == 0, done.stderr
        document = json.loads((tmp_path / name).read_text())
        for policy in document["policies"].values():
            policy.pop("wall_s")
        documents.append(document)
    assert documents[0] == documents[1]


BAD_FILES = {
    "empty.csv": ("", "empty"),
    "columns.csv": ("job_id,tenant\na,b\n", "submit_s"),
    "words.csv": (HEADER + "a,t,soon,10,1\n", "submit_s"),
    "cut.parquet": ("PAR1", "cut.parquet"),
    "none.csv": (HEADER + "a,t,0,-5,1\nb,t,0,nan,1\nc,t,0,inf,1\nd,t,0,10,1000000000\n", "none.csv"),
}


@pytest.mark.parametrize("name", BAD_FILES)
def test_a_job_file_that_cannot_be_used_is_one_clear_message(within: Run, tmp_path: Path, name: str) -> None:
    """It names the file and what is wrong with it; exit code 2, no traceback, nothing written."""
    text, named = BAD_FILES[name]
    (tmp_path / name).write_text(text)
    done = within("simulate", "--jobs", name, "--cluster", "2x8", "--json", "out.json")
    _refused(done, name, named)
    assert not (tmp_path / "out.json").exists()


CLUSTERS = {
    "illegal MIG": "pools:\n- {name: p, nodes: 1, gpus_per_node: 8, gpu_model: H100-80GB, mig: [{gpus_per_node: "
    "1, geometry: {7g.80gb: 2}}]}\n",
    "duplicate names": "pools:\n- {name: p, nodes: 1, gpus_per_node: 8, gpu_model: H100-80GB}\n- {name: p, "
    "nodes: 1, gpus_per_node: 8, gpu_model: H100-80GB}\n",
    "unknown GPU model": "pools:\n- {name: p, nodes: 1, gpus_per_node: 8, gpu_model: X9000}\n",
    "cycle of queues": "pools:\n- {name: p, nodes: 1, gpus_per_node: 8, gpu_model: H100-80GB}\nqueues:\n- {name: "
    "a, parent: b}\n- {name: b, parent: a}\n",
}


@pytest.mark.parametrize("mistake", CLUSTERS)
def test_a_cluster_file_with_a_mistake_is_one_clear_message(
    within: Run, jobs: Path, tmp_path: Path, mistake: str
) -> None:
    """It names the file."""
    (tmp_path / "cluster.yaml").write_text(CLUSTERS[mistake])
    _refused(within("simulate", "--jobs", str(jobs), "--cluster", "cluster.yaml"), "cluster.yaml")


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("--policy", "best"), "fifo-skip"),
        (("--cluster", "900000x900"), "200,000 nodes"),
        (("--cluster", "1x1000000000"), "cluster"),
        (("--physics", "magic"), "ideal"),
        (("--durations", "known"), "last-two"),
        (("--jitter", "2"), "--jitter"),
        (("--json", "no/such/folder/out.json"), "--json"),
        (("--jobs-out", "rows.xls"), ".parquet"),
        (("--tenant", "nobody"), "nobody"),
        (("--journal", "/proc/journal"), "/proc/journal"),
    ],
)
def test_a_flag_that_cannot_be_used_is_one_clear_message(
    within: Run, jobs: Path, arguments: tuple[str, ...], named: str
) -> None:
    """It names what is wrong or what is allowed, before anything starts."""
    given = [] if arguments[0] == "--cluster" else ["--cluster", "2x8"]
    _refused(within("simulate", "--jobs", str(jobs), *given, *arguments), named)


def test_a_policy_out_of_range_is_one_clear_message(autopilot: Run, jobs: Path, tmp_path: Path) -> None:
    """It names the file and the field."""
    (tmp_path / "mine.yaml").write_text("hysteresis:\n  dwell_s: -5\n")
    _refused(
        autopilot("simulate", "--jobs", str(jobs), "--cluster", "2x8", "--policy", "mine.yaml"),
        "mine.yaml",
        "dwell_s",
    )


def test_without_a_journal_explain_and_replay_say_what_to_do(within: Run) -> None:
    """A first user is told to run something first."""
    for command in ("explain", "replay"):
        _refused(within(command), "autopilot demo")


def test_plan_says_what_it_would_do(autopilot: Run) -> None:
    """On the built-in cluster with no arguments: figures, proposals and reasons, nothing done."""
    done = autopilot("plan")
    assert done.returncode == 0, done.stderr
    assert "GPUs allocated" in done.stdout


def test_traces_are_listed_and_imported(autopilot: Run, tmp_path: Path) -> None:
    """Each kind names its licence; a small file in a known layout becomes a job file that simulate reads."""
    listed = autopilot("traces", "list")
    assert listed.returncode == 0, listed.stderr
    assert listed.stdout.count("licence:") >= 7
    _refused(autopilot("traces", "import", "unheard-of", "x.csv", "--out", "y.csv"), "philly")


@pytest.mark.skipif(os.geteuid() == 0 and shutil.which("setpriv") is None, reason="needs setpriv")
@pytest.mark.parametrize(
    "arguments",
    [
        ("--jobs", "closed/x.csv"),
        ("--requests", "closed/x.csv"),
        ("--cluster", "closed/x.yaml"),
        ("--scenario", "closed/x.yaml"),
        ("--json", "closed/x.json"),
        ("--report", "closed/page"),
        ("--journal", "closed/x.journal"),
        ("--json", "fixed/x.json"),
        ("--jobs-out", "fixed/x.csv"),
        ("--report", "fixed/page"),
        ("--journal", "fixed/x.journal"),
    ],
)
def test_a_folder_that_may_not_be_used_is_one_clear_message(
    jobs: Path, tmp_path: Path, environment: dict[str, str], arguments: tuple[str, str]
) -> None:
    """Neither read nor written: refused before anything runs, with the flag or the path."""
    for name, mode in (("closed", 0o000), ("fixed", 0o555)):
        (tmp_path / name).mkdir()
        (tmp_path / name).chmod(mode)
    given = ["--jobs", str(jobs)] if arguments[0] not in {"--jobs", "--scenario"} else []
    given += ["--cluster", "1x8"] if arguments[0] != "--cluster" else []
    # root may read and write everything, unless it lays that down
    plain = ["setpriv", "--bounding-set=-dac_override,-dac_read_search"] if os.geteuid() == 0 else []
    done = subprocess.run(
        [*plain, sys.executable, "-m", "autopilot.cli", "simulate", *given, *arguments],
        cwd=tmp_path,
        env=environment,
        text=True,
        capture_output=True,
        timeout=120,
        check=False,
    )
    _refused(done, arguments[1].split("/")[0])
    assert not done.stdout
    assert not list((tmp_path / "fixed").iterdir())
    (tmp_path / "closed").chmod(0o700)


@pytest.mark.usefixtures("heeded_ctrl_c")
def test_ctrl_c_keeps_what_was_done(jobs: Path, tmp_path: Path, environment: dict[str, str]) -> None:
    """In the middle of a long run it stops with 130, writes what there is, and says that it is not all."""
    rows = "".join(f"k{n},t,{n * 7},{5000 + n % 900},{1 + n % 8}\n" for n in range(10_000))
    jobs.write_text(HEADER + rows)
    command = [
        sys.executable,
        "-m",
        "autopilot.cli",
        "simulate",
        "--jobs",
        str(jobs),
        "--cluster",
        "8x8",
        "--policy",
        "autopilot,easy",
        "--telemetry",
        "off",
        "--json",
        "out.json",
    ]
    process = subprocess.Popen(
        command, cwd=tmp_path, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    journal = tmp_path / "state" / "gpu-autopilot" / "last.journal"
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and process.poll() is None and _written(journal) < 200_000:
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130, errors
    assert "Traceback" not in errors
    assert "interrupted; autopilot reached" in errors
    assert "of 10,000 jobs finished; not run: easy" in errors
    document = json.loads((tmp_path / "out.json").read_text())
    assert document["policies"]["autopilot"]["interrupted"] is True


def _written(journal: Path) -> int:
    """Bytes that were written to a journal, which SQLite collects in a file beside it; 0 while there is none."""
    try:
        return Path(f"{journal.resolve()}-wal").stat().st_size
    except FileNotFoundError:
        return 0


def _refused(done: subprocess.CompletedProcess[str], *named: str) -> None:
    """Exit code 2, one short message that names things, no traceback."""
    assert done.returncode == 2, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    assert len(done.stderr.strip().splitlines()) <= 6, done.stderr
    for word in named:
        assert word in done.stderr, done.stderr
