"""How far baselines reproduce recorded starts, and what the differences seem to be: each cause is planted."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from autopilot.app.commands.planner_commands import Desk, run_compare
from autopilot.app.commands.run_commands import print_reproduction
from autopilot.app.compare.cases import Comparison, check, digest_of
from autopilot.app.options import SimulateOptions
from autopilot.app.runs.pages import report_data
from autopilot.app.runs.simulate import SimulationOutcome, simulate
from autopilot.core.model.errors import InputError
from autopilot.report.data import NO_HEAT, NO_SERIES, PolicyRun
from autopilot.report.html_tables import key_figures
from autopilot.report.reproduced import section_body
from tests.kits.slurm_site import write_site

SCHEDULING = Path(__file__).resolve().parents[2] / "data" / "slurm" / "scheduling"
BEGIN_S = 1_790_000_000
COUNT = 300

Rows = list[list[Any]]
"""Account, eligible, start, run time and GPUs of each job."""


def planted(path: Path, change: Callable[[Rows], None] | None, cluster: str) -> SimulationOutcome:
    """Starts that `fifo-skip` gave on the cluster text, changed, and played again on 4 nodes of 8 GPUs."""
    draw = np.random.default_rng(5)
    arrives = np.cumsum(draw.exponential(900.0, COUNT)).astype(int)
    rows: Rows = [
        [f"lab{draw.integers(3)}", int(at), int(at), int(draw.integers(600, 12_000)), int(draw.choice((1, 1, 2, 4, 8)))]
        for at in arrives
    ]
    path.mkdir(exist_ok=True)
    played = _play(_write(path / "first.txt", rows), cluster)
    first_s = played.policies[0].simulated.cluster.first_start_s[:COUNT]
    for row, start_s in zip(rows, first_s, strict=True):
        row[2] = int(start_s) + rows[0][1]
    if change is not None:
        change(rows)
    return _play(_write(path / "dump.txt", rows), "4x8")


def _write(path: Path, rows: Rows) -> Path:
    lines = ["JobID|User|Account|Partition|State|Submit|Eligible|Start|End|ElapsedRaw|AllocTRES"]
    for job, (account, eligible, start, ran, gpus) in enumerate(rows):
        times = "|".join(str(BEGIN_S + each) for each in (eligible, eligible, start, start + ran))
        part = "long" if ran > 6000 else "short"
        lines.append(f"{job + 1}|u|{account}|{part}|COMPLETED|{times}|{ran}|gres/gpu={gpus}")
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def _play(dump: Path, cluster: str) -> SimulationOutcome:
    if cluster.startswith("pools"):
        file = dump.with_suffix(".yaml")
        file.write_text(cluster, encoding="utf-8")
        cluster = str(file)
    return simulate(
        SimulateOptions(jobs=dump, cluster=cluster, policies=("fifo-skip", "fifo"), telemetry="off", series=False)
    )


def hold(rows: Rows) -> None:
    """Each fifth narrow job was held for hours."""
    for row in [row for row in rows if row[4] == 1][::5]:
        row[2] += 20_000


def maintain(rows: Rows) -> None:
    """Nothing was started for most of a day."""
    for row in rows:
        if 60_000 <= row[2] < 130_000:
            row[2] = 130_000


LIMITED = """pools:
  - {name: a, nodes: 4, gpus_per_node: 8, gpu_model: A100-80GB}
queues:
  - {name: lab0, limit: 8}
  - {name: lab1}
  - {name: lab2}
"""


@pytest.mark.parametrize(
    ("change", "cluster", "cause", "words"),
    [
        (None, "3x8", "absent", "down, drained"),
        (None, "8x8", "more", "that the cluster file lacks"),
        (None, LIMITED, "limit", "account lab0"),
        (hold, "4x8", "held", "holds, dependencies"),
        (maintain, "4x8", "stopped", "maintenance"),
    ],
)
def test_the_largest_cause_of_a_difference_is_the_one_that_was_planted(
    change: Callable[[Rows], None] | None, cluster: str, cause: str, words: str, tmp_path: Path
) -> None:
    """GPUs that were down or too few in the cluster file, a limit, holds, and maintenance."""
    found = planted(tmp_path, change, cluster).reproduction()
    assert found is not None
    first = found["policies"]["fifo-skip"]["causes"][0]
    assert (first["cause"], found["closest"]) == (cause, "fifo-skip")
    assert first["ratio"] > 0.4
    assert words in found["words"]


def test_the_same_scheduler_is_believed_and_another_is_not(tmp_path: Path) -> None:
    """What was recorded under a policy is reproduced by it exactly, by partition, width and day."""
    found = planted(tmp_path, None, "4x8").document()["reproduction"]
    same, other = found["policies"]["fifo-skip"], found["policies"]["fifo"]
    assert (found["believed"], same["within_tolerance_ratio"], same["causes"]) == ("yes", 1.0, [])
    assert other["within_tolerance_ratio"] < 1
    assert {name: block["jobs"] for name, block in same["by"]["partition"].items()}.keys() == {"long", "short"}
    assert sum(block["jobs"] for block in same["by"]["width"].values()) == COUNT


def test_a_recorded_site_is_reproduced_by_its_own_scheduler(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A real Slurm: `slurm` with the files of the site is closer than `easy`; text and page say so."""
    site = write_site(SCHEDULING / "backfill-accurate", tmp_path)
    options = SimulateOptions(
        jobs=site.dump, cluster=str(site.cluster), slurm=site.slurm, policies=("slurm", "easy"), series=False
    )
    outcome = simulate(options)
    found = outcome.reproduction()
    assert found is not None
    assert (found["closest"], found["believed"], found["tolerance_s"]) == ("slurm", "yes", 3)
    one = outcome.policies[0]
    run = PolicyRun(name=one.name, result=one.result, series=NO_SERIES, waits_s=NO_SERIES.t_s, heat=NO_HEAT)
    assert "<th scope=col>as recorded</th>" in key_figures(replace(report_data(outcome, ""), policies=(run,)))
    days = found["policies"]["slurm"]["busy_by_day"]
    assert [each["day"] for each in days] == ["2026-09-21"]
    assert days[0]["gpu_h"] == pytest.approx(days[0]["recorded_gpu_h"], rel=0.05)
    print_reproduction(found)
    for text in (capsys.readouterr().out, section_body(found)):
        assert "Closest to the recorded starts is slurm" in text
        assert "so a what-if can be believed where" in text


def test_nothing_is_said_of_a_what_if_where_hardly_a_job_waited(tmp_path: Path) -> None:
    """Starts without waiting are reproduced by every policy."""
    found = planted(tmp_path, lambda rows: rows.__delitem__(slice(5, None)), "4x8").reproduction()
    assert found is not None
    assert found["believed"] == "unknown"
    assert "too few" in found["words"]


def test_a_comparison_reads_the_site_and_shows_what_was_recorded(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A changed file of the site is another run of `slurm` and the same of others; a folder that is none is refused."""
    site = write_site(SCHEDULING / "backfill-accurate", tmp_path)
    base = SimulateOptions(jobs=site.dump, cluster=str(site.cluster), slurm=site.slurm, telemetry="off")
    comparison = Comparison(base=base, policies=("slurm", "easy"), changes=(("nodes=+1",),))
    before = [digest_of(case.options) for case in check(comparison).cases]
    conf = site.slurm / "slurm.conf"
    conf.write_text(conf.read_text(encoding="utf-8") + "PriorityWeightAge=7\n", encoding="utf-8")
    after = [digest_of(case.options) for case in check(comparison).cases]
    assert [a == b for a, b in zip(before, after, strict=True)] == [False, True, False, True]
    run_compare(comparison, Desk(workers=1, results=tmp_path / "runs", report=tmp_path / "page"), None)
    said, page = capsys.readouterr().out, (tmp_path / "page" / "index.html").read_text(encoding="utf-8")
    assert said.count("as recorded") == 1
    for text in (said, page):
        assert "closest to the recorded starts is slurm" in text
    assert "<th scope=col>as recorded</th>" in page
    with pytest.raises(InputError, match="add it to --policy"):
        check(replace(comparison, policies=("easy",)))
    conf.unlink()
    with pytest.raises(InputError, match="write the output of scontrol"):
        check(comparison)
