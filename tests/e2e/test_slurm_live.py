"""A real Slurm runs some forty jobs of all kinds; the commands of docs/planning.md dump it, and our reader is held to
what the jobs said themselves. `make slurm-services` installs Slurm; without it the tests are SKIPPED.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from simulator.traces.importers.common import ImportOptions
from simulator.traces.importing import import_trace
from simulator.traces.jobs import read_jobs
from simulator.traces.slurm.replay import LOST
from simulator.traces.slurm.tres import split_mig
from tests.kits import slurm_kit
from tests.kits.slurm_workload import AT_THE_END, Told, Truth, play
from tests.tidy.tree import ROOT

pytestmark = pytest.mark.e2e

NEAR_S = 5.0
"""Slurm keeps whole seconds, starts a job after its prologs, and hears of its end a moment later: a second or two, more
where the machine is busy.
"""
HELD, LATER = {"waits-held"}, {"waits-held", "waits-array"}
DUMPS: dict[str, tuple[set[str], str]] = {
    "october.txt": (HELD, ""),
    "steps.txt": (HELD, "America/New_York"),
    "commas.txt": (HELD, "UTC"),
    "sacct.json": (LATER, ""),
    "squeue.json": (set(), ""),
}
"""What it lacks, and the zone of its times. `sacct` lists no job that is held, and without an end in the future none
that begins later.
"""
CLUSTER = """pools:
  - {name: a100, nodes: 2, gpus_per_node: 8, gpu_model: A100-80GB}
  - {name: h100, nodes: 1, gpus_per_node: 8, gpu_model: H100-80GB}
  - name: mig
    nodes: 1
    gpus_per_node: 4
    gpu_model: A100-80GB
    mig: {gpus_per_node: 2, geometry: {3g.40gb: 1, 1g.10gb: 2}}
"""


@dataclass(frozen=True, slots=True)
class Recorded:
    """The folder with what Slurm's commands wrote, and the truth."""

    folder: Path
    told: Told


def commands_of_the_docs() -> list[str]:
    """The command lines of docs/planning.md on Slurm, for the days around today in place of a month."""
    page = (ROOT / "docs" / "planning.md").read_text(encoding="utf-8")
    section = page[page.index("## From Slurm to an answer") :]
    lines = [
        line
        for block in re.findall(r"^```\n(.*?)^```$|^```\w+\n.*?^```$", section, re.DOTALL | re.MULTILINE)
        for line in block.replace("\\\n", " ").splitlines()
    ]
    today = datetime.now(UTC)
    first, last = ((today + timedelta(days=days)).strftime("%Y-%m-%d") for days in (-1, 2))
    return [line.replace("2026-10-01", first).replace("2026-11-01", last) for line in lines]


def other_forms(of_the_docs: str) -> list[str]:
    """The same dump with steps and local time, and with commas between the columns; and the documents."""
    local = of_the_docs.replace("SLURM_TIME_FORMAT=%s", "TZ=America/New_York").replace("--allocations", "")
    commas = of_the_docs.replace("SLURM_TIME_FORMAT=%s", "").replace("--parsable2", "--parsable --delimiter=,")
    forms = [local.replace("october", "steps"), commas.replace("october", "commas")]
    return [*forms, "sacct --allusers --json > sacct.json", "squeue --json > squeue.json"]


def run(command: str, folder: Path, environment: Mapping[str, str] = os.environ) -> str:
    """What a command line of the docs prints."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{environment['PATH']}"
    done = subprocess.run(
        ["bash", "-c", command], env={**environment, "PATH": path}, cwd=folder, capture_output=True, text=True
    )
    assert done.returncode == 0, f"{command}: {done.stderr}"
    return done.stdout + done.stderr


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    """Forty jobs on a real Slurm, and all that its users write from it by Slurm's commands; Slurm is stopped."""
    reason = slurm_kit.missing()
    if reason:
        pytest.skip(reason)
    folder = tmp_path_factory.mktemp("slurm")
    (folder / "cluster.yaml").write_text(CLUSTER)
    with slurm_kit.slurm(folder / "log") as cluster:
        told = play(cluster)
        theirs = [line for line in commands_of_the_docs() if not line.startswith("autopilot")]
        for command in [*theirs, *other_forms(theirs[0])]:
            run(command, folder, cluster.environment)
    (folder / "early.txt").write_text(told.printed["early"])
    return Recorded(folder, told)


def test_the_commands_of_the_docs_work_as_written(recorded: Recorded) -> None:
    """The product reads what Slurm's commands wrote; the import says what it left out."""
    lines = [line for line in commands_of_the_docs() if line.startswith("autopilot")]
    printed = {line.split()[1]: run(line, recorded.folder) for line in lines}
    assert {"simulate", "compare"} <= set(printed)
    assert "within tolerance" in printed["simulate"]
    said = run("autopilot traces import slurm october.txt --out october.parquet", recorded.folder)
    for words in ("dropped: 1 never started", "2 rows repaired", "1 job was suspended", "(5 waiting, 2 running"):
        assert words in said


def rows_of(recorded: Recorded, name: str, timezone: str = "") -> dict[str, pd.DataFrame]:
    """The rows that `traces import slurm` makes of a dump, by job, in order of their starts."""
    out = recorded.folder / f"{name}.csv"
    options = ImportOptions(timezone=timezone, shards_per_gpu=slurm_kit.SHARDS_PER_GPU)
    import_trace("slurm", recorded.folder / name, out, options=options)
    rows = pd.read_csv(out, dtype={"job_id": str, "user": str, "mig_profile": str, "gpu_type": str})
    rows = rows.sort_values("start_s", kind="stable", na_position="last")
    return dict(iter(rows.groupby(rows.job_id.str.split("#").str[0], sort=False)))


def differences(name: str, row: pd.Series, truth: Truth) -> Iterator[str]:
    """What a row has otherwise than the job said."""

    def near(what: str, value: float, right: float, by: float = NEAR_S) -> Iterator[str]:
        if not abs(value - right) <= by:
            yield f"{name} ({truth.ask.key}, {truth.status}): {what} {value:.1f}, right {right:.1f}"

    def same(what: str, value: object, right: object) -> Iterator[str]:
        if value != right:
            yield f"{name} ({truth.ask.key}, {truth.status}): {what} {value!r}, right {right!r}"

    yield from same("status", row.status, truth.status)
    yield from same("user", row.user, truth.ask.user)
    yield from same("tenant", row.tenant, slurm_kit.ACCOUNT_OF[truth.ask.user])
    yield from same("name", row["name"].replace('"', "`"), (truth.ask.name or truth.ask.key).replace('"', "`"))
    if truth.eligible_s is not None and truth.ask.key != "waits-held":
        yield from near("eligible_s", row.eligible_s, truth.eligible_s)
    if truth.start_s is None:
        yield from same("start_s is known", bool(np.isfinite(row.start_s)), False)
        return
    yield from near("start_s", row.start_s, truth.start_s)
    if truth.ask.key in AT_THE_END:
        yield from same("duration_s is known", bool(np.isfinite(row.duration_s)), False)
    elif truth.end_s is not None:
        yield from near("duration_s", row.duration_s, truth.end_s - truth.start_s - truth.paused_s)
        if truth.paused_s:
            yield from near("suspended_s", row.suspended_s, truth.paused_s)
    yield from same("nodes", row.nodes, len(truth.gpus))
    if "shard" in truth.ask.options:
        yield from same("shards", (row.shards, row.gpus), (3, 3 / 4))
        return
    yield from same("gpus", row.gpus, sum(len(each) for each in truth.gpus.values()))
    models = {split_mig(each) for each in truth.models}
    yield from same("gpu_type", set(str(row.gpu_type).split("|")) - {"nan"}, {model for model, _ in models})
    profiles = {profile for _, profile in models} - {""}
    yield from same("mig_profile", set(str(row.mig_profile).split("|")) - {"nan"}, profiles)


@pytest.mark.parametrize("dump", DUMPS)
def test_the_import_has_what_the_jobs_said(recorded: Recorded, dump: str) -> None:
    """Start, run time, suspension, width, nodes, models, slices, shards, waiting, state and owner of every record.

    `squeue` has the last record of a job alone. slurmdbd keeps a quote as a backtick.
    """
    unlisted, timezone = DUMPS[dump]
    rows, faults, records = rows_of(recorded, dump, timezone), [], 0
    for name, truths in recorded.told.records.items():
        mine = rows.pop(name, None)
        if mine is None:
            waits = truths[-1].ask.key
            if waits in unlisted:
                continue
            faults.append(f"{name} ({waits}) is not there")
            continue
        if dump == "squeue.json" and truths[0].status == "resizing":
            continue  # the whole time with the last width
        wanted = truths[-1:] if dump == "squeue.json" else truths
        if len(mine) != len(wanted):
            faults.append(f"{name} ({truths[0].ask.key}): {len(mine)} rows, right {len(wanted)}")
            continue
        for (_, row), truth in zip(mine.iterrows(), wanted, strict=True):
            faults += differences(name, row, truth)
            records += 1
    faults += [f"{name}: rows that are no job" for name in rows]
    assert not faults, "\n".join(faults)
    assert records > 50


def test_a_dump_in_the_middle_has_each_task_once(recorded: Recorded) -> None:
    """`sacct` lists an array that waits with tasks that have started; a job has no run time before its end."""
    rows, now_s = rows_of(recorded, "early.txt"), recorded.told.done_s["early"]
    started = 0
    for name, truths in recorded.told.records.items():
        ask = truths[0].ask
        if (
            truths[0].submit_s > now_s - NEAR_S or ask.key in LATER or ask.eligible
        ):  # `sacct` lists none that may not start yet
            continue
        began = [each for each in truths if each.start_s is not None and each.start_s < now_s]
        ended = [each for each in began if each.end_s is not None and each.end_s < now_s]
        assert abs(len(rows[name]) - max(len(began), 1)) <= (len(truths) > 1), name  # a requeued job waits in a row
        assert abs(rows[name].duration_s.notna().sum() - len(ended)) <= 1, name
        started += len(began)
    assert started > 10
    assert f"{recorded.told.numbers['by-twos']}_[" in recorded.told.printed["early"]


def test_a_replay_counts_the_last_run_and_what_was_lost(recorded: Recorded) -> None:
    """A requeued job arrives with its first submit, runs as its last run did, and its earlier runs are lost work."""
    jobs = read_jobs(recorded.folder / "october.txt")
    at = {job: number for number, job in enumerate(jobs.job_id.tolist())}
    several = {name: found for name, found in recorded.told.records.items() if len(found) > 1}
    several = {name: found for name, found in several.items() if found[0].status != "resizing"}
    assert len(several) == 4
    for name, truths in several.items():
        job = at[name]
        ran = [(each.end_s or np.nan) - (each.start_s or np.nan) for each in truths]
        wide = sum(len(each) for each in truths[0].gpus.values())
        assert jobs.duration_s[job] == pytest.approx(ran[-1], abs=NEAR_S), name
        assert jobs.start_s + jobs.submit_s[job] == pytest.approx(truths[0].submit_s, abs=NEAR_S), name
        assert jobs.extra[LOST][job] == pytest.approx(wide * sum(ran[:-1]), abs=NEAR_S * wide * len(truths)), name


SOON_S = 60.0


def test_the_baseline_reads_the_site_and_starts_the_jobs_when_slurm_did(recorded: Recorded) -> None:
    """Nine starts of ten of the last run within a minute. The baseline does not know requeues, exclusive nodes, and
    the nodes that a job named.
    """
    options = "--jobs october.txt --cluster cluster.yaml --slurm site --policy slurm --jobs-out replayed.csv"
    run(f"autopilot simulate {options}", recorded.folder)
    rows = pd.read_csv(recorded.folder / "replayed.csv", dtype={"job_id": str}).set_index("job_id")
    jobs = read_jobs(recorded.folder / "october.txt")
    recorded_s = pd.Series(jobs.extra["start_s"], jobs.job_id.tolist())
    off_s = (rows.start_s - recorded_s).abs().dropna()
    assert len(off_s) > 35
    assert (off_s <= SOON_S).mean() >= 0.9, off_s.sort_values().to_string()
