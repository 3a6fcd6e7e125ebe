"""Metering of real simulated runs against what the simulator itself counted."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from autopilot.app.runs.simulate import PolicyOutcome
from autopilot.cli import main
from autopilot.metering.amounts import GRAINS_PER_GPU_S, TICKS_PER_S
from autopilot.metering.meter import Meter
from autopilot.metering.prices import load_prices
from autopilot.metering.segments import open_store
from autopilot.metering.showback import PARTS, showback
from autopilot.records.journal import JournalReader
from simulator.running.accounting import gpu_s
from tests.kits.metering_kit import FAULTS, SCENARIO, Memory, asked, run_metered, stored_sums, sums_of, whole_lines


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the run."""
    return tmp_path_factory.mktemp("metered")


@pytest.fixture(scope="module")
def run(folder: Path) -> PolicyOutcome:
    """One run of three tenants on two pools, with preemption and without checkpoints."""
    return run_metered(folder)


def test_gpu_time_is_that_of_the_simulator_exactly(run: PolicyOutcome, folder: Path) -> None:
    """Allocated by tenant, capacity, lost work and stranded time are equal to the last unit."""
    store = open_store(folder / "run.metering")
    simulated, sums = run.simulated, stored_sums(store)
    by_tenant: dict[str, int] = {}
    for line in whole_lines(store):
        if line["kind"] == "held":
            by_tenant[line["tenant"]] = by_tenant.get(line["tenant"], 0) + line["gpu_time"]
    truth = zip(simulated.cluster.jobs.tenants, simulated.totals.by_tenant, strict=True)
    assert {name: gpus / GRAINS_PER_GPU_S for name, gpus in by_tenant.items()} == {
        name: gpu_s(share.allocated) for name, share in truth
    }
    assert sums["capacity", "gpu_time"] / GRAINS_PER_GPU_S == run.result["gpu_s"]["capacity"]
    assert sums["held", "lost"] / GRAINS_PER_GPU_S == run.result["gpu_s"]["lost"] > 0
    assert sums["fragmented", "gpu_time"] / GRAINS_PER_GPU_S == run.result["fragmentation"]["stranded_gpu_s"] > 0
    assert sums["capacity", "gpu_time"] == sum(sums[kind, "gpu_time"] for kind in PARTS)
    assert run.simulated.accounts.preemptions > 0


def test_activity_is_near_that_of_the_behaviours(run: PolicyOutcome, folder: Path) -> None:
    """SM activity of what is measured, from samples every 30 s, within 5 % of what the jobs did; energy is known."""
    answer = showback(asked(open_store(folder / "run.metering"), load_prices()))
    found = answer.total.active_gpu_h / answer.total.measured_gpu_h
    assert found == pytest.approx(run.result["utilization"]["hardware_ratio"], rel=0.05)
    assert answer.total.unknown_gpu_h == pytest.approx(answer.total.allocated_gpu_h - answer.total.measured_gpu_h)
    assert answer.total.energy_kwh is not None
    idle = [bill for bill in answer.bills if bill.name == "(idle)"]
    assert 0 < (idle[0].energy_kwh or 0.0) < answer.total.energy_kwh
    assert answer.reconciled.good


def test_a_journal_gives_the_same_rows_in_any_intervals(run: PolicyOutcome, folder: Path) -> None:
    """Recorded ticks are metered like those of the run; the length of the intervals moves no amount."""
    found = []
    for interval_s in (300, 60, 7200):
        memory = Memory()
        meter = Meter(memory, interval_s=interval_s, begin_s=0.0)
        with JournalReader(folder / "run.journal") as reader:
            for tick in reader.ticks():
                meter.take(tick.observation, tick.decided.instructions)
        meter.close(run.simulated.run.end_s)
        found.append(sums_of(memory.rows))
        assert all(one[1] == two[0] for one, two in zip(memory.spans, memory.spans[1:], strict=False))
    exact = [
        {key: value for key, value in sums.items() if key[1] not in {"energy_mj", "active", "borrowed"}}
        for sums in found
    ]
    assert exact[0] == exact[1] == exact[2]
    stored = stored_sums(open_store(folder / "run.metering"))
    assert {key: value for key, value in stored.items() if value} == {k: v for k, v in found[0].items() if v}


def test_a_restart_loses_no_interval_and_counts_none_twice(run: PolicyOutcome, folder: Path) -> None:
    """What a crash lost is a gap of its own, whatever the moment of the crash."""
    with JournalReader(folder / "run.journal") as reader:
        ticks = list(reader.ticks())
    for cut in (5, len(ticks) // 2, len(ticks) - 3):
        memory = Memory()
        first, second = Meter(memory, begin_s=0.0), Meter(memory, begin_s=0.0)
        for tick in ticks[:cut]:
            first.take(tick.observation, tick.decided.instructions)
        kept = memory.end or 0
        for tick in ticks[cut + 2 :]:
            second.take(tick.observation, tick.decided.instructions)
        second.close(run.simulated.run.end_s)
        sums = sums_of(memory.rows)
        assert all(one[1] == two[0] for one, two in zip(memory.spans, memory.spans[1:], strict=False))
        assert sums["capacity", "gpu_time"] / GRAINS_PER_GPU_S == run.result["gpu_s"]["capacity"]
        assert sums["capacity", "gpu_time"] == sum(sums[kind, "gpu_time"] for kind in PARTS)
        lost_s = ticks[cut + 2].observation.now_s - kept / TICKS_PER_S
        gaps = [
            row for row in memory.rows if row.key[0] == "gap" and row.begin >= kept and row.key[-1] == "not running"
        ]
        assert sum(row.amounts[0] for row in gaps) / GRAINS_PER_GPU_S == pytest.approx(20 * lost_s)


def test_a_clock_that_goes_back_counts_nothing_twice(folder: Path, run: PolicyOutcome) -> None:
    """Ticks before the last one add no time; the meter goes on when the clock has caught up."""
    with JournalReader(folder / "run.journal") as reader:
        ticks = [(tick.observation, tick.decided.instructions) for tick in reader.ticks()]
    memory = Memory()
    meter = Meter(memory, begin_s=0.0)
    for at, (observation, sent) in enumerate(ticks):
        meter.take(observation, sent)
        if at == len(ticks) // 2:
            for early in ticks[at - 20 : at]:
                meter.take(*early)
    meter.close(run.simulated.run.end_s)
    assert sums_of(memory.rows)["capacity", "gpu_time"] / GRAINS_PER_GPU_S == run.result["gpu_s"]["capacity"]


def test_two_ticks_far_apart_are_a_gap(folder: Path) -> None:
    """Where ticks come every few seconds, a pause of minutes was not observed."""
    with JournalReader(folder / "run.journal") as reader:
        ticks = [(tick.observation, tick.decided.instructions) for tick in reader.ticks()]
    memory = Memory()
    meter = Meter(memory, longest_gap_s=120.0)
    for observation, sent in (ticks[40], (replace(ticks[41][0], now_s=ticks[40][0].now_s + 121.0), ticks[41][1])):
        meter.take(observation, sent)
    meter.close()
    sums = sums_of(memory.rows)
    assert sums["gap", "gpu_time"] == sums["capacity", "gpu_time"] == 20 * 121 * GRAINS_PER_GPU_S
    assert {row.key[-1] for row in memory.rows if row.key[0] == "gap"} == {"no tick"}


def test_lost_views_and_nodes_are_gaps_and_out_of_use(tmp_path: Path) -> None:
    """With missing lists the truth lies between what was held and that with the gaps; the sum stays exact."""
    faulty = run_metered(tmp_path, SCENARIO + FAULTS)
    sums = stored_sums(open_store(tmp_path / "run.metering"))
    held, gap = (sums[kind, "gpu_time"] / GRAINS_PER_GPU_S for kind in ("held", "gap"))
    assert gap > 0
    assert sums["out_of_use", "gpu_time"] > 0
    assert held <= faulty.result["gpu_s"]["allocated"] <= held + gap
    assert sums["capacity", "gpu_time"] == sum(sums[kind, "gpu_time"] for kind in PARTS)
    assert sums["capacity", "gpu_time"] / GRAINS_PER_GPU_S == faulty.result["gpu_s"]["capacity"]


def test_the_command_answers_for_the_run(
    folder: Path, run: PolicyOutcome, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """By tenant, project, type and class; a part of the time; CSV and FOCUS; a bad word is refused with the fix."""
    monkeypatch.setenv("COLUMNS", "200")
    given = ("showback", "--journal", str(folder / "run.journal"))
    for by, name in (
        ("tenant", "guest"),
        ("project", "vision"),
        ("type", "A100-80GB"),
        ("class", "(unused guarantee)"),
        ("workload", "train-"),
        ("day", "day 1"),
    ):
        assert call(*given, "--by", by) == 0
        printed = capsys.readouterr().out
        assert name in printed
        assert "(difference 0.000%)" in printed
    assert call(*given, "--since", "30m", "--until", "90m", "--format", "csv") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("tenant,allocated_gpu_h,")
    assert not [line for line in lines if line.startswith("total,")]
    assert "30 min,1 h 30 min,time since the start of the run,USD" in lines[1]
    assert call(*given, "--format", "focus", "--out", str(folder / "focus.csv")) == 0
    assert "BilledCost" in (folder / "focus.csv").read_text()
    capsys.readouterr()
    for more, words in (
        (("--by", "tenants"), "did you mean tenant?"),
        (("--format", "focs"), "did you mean focus?"),
        (("--format", "parquet"), "--out: a Parquet file needs a name"),
        (("--since", "1h", "--until", "1h"), "is not before"),
        (("--out", "x.txt"), "--out: x.txt is no file of the format table; name one that ends in .csv or .parquet"),
        (
            ("--format", "csv", "--out", "x.parquet"),
            "x.parquet is no file of the format csv; name one that ends in .csv",
        ),
        (("--format", "table", "--out", "x.csv"), "a table is printed; add --format csv"),
        (("--format", "focus", "--by", "type"), "--by: FOCUS rows have every group as a column"),
        (("--focus", "1.0", "--format", "csv"), "FOCUS rows are not written as csv"),
        (("--focus", "1.1"), "--focus: '1.1' is not one of 1.2, 1.0"),
        (("--corrects", "x.csv"), "--corrects: corrections are FOCUS rows"),
        (("--forecast", "--by", "user"), "--forecast: it is of the present month"),
        (("--forecast",), "this run has no dates"),
        (("--zone", "Europe/Berlin"), "this run has no dates"),
        (("--by", "month"), "this run has no dates"),
        (("--since", "9d"), "nothing was metered in this time"),
    ):
        assert call(*given, *more) == 2
        assert words in capsys.readouterr().err


def test_a_young_run_has_no_interval_yet(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A service writes its first interval some minutes after its start: the message does not blame the options."""
    for path in (folder / "run.metering").glob("*.json"):
        (tmp_path / path.name).write_bytes(path.read_bytes())
    assert call("showback", "--metering", str(tmp_path)) == 2
    assert "no interval is written yet" in capsys.readouterr().err


def test_a_row_that_is_gone_is_noticed(
    folder: Path, run: PolicyOutcome, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A planted defect: without the rows of one tenant the sum is not the capacity, and the command fails."""
    for path in (folder / "run.metering").iterdir():
        if path.suffix == ".json":
            (tmp_path / path.name).write_bytes(path.read_bytes())
        elif path.suffix == ".parquet":
            table = pq.read_table(path)
            kept = [at for at, tenant in enumerate(table["tenant"].to_pylist()) if tenant != "guest"]
            pq.write_table(table.take(kept), tmp_path / path.name)
    assert call("showback", "--metering", str(tmp_path)) == 1
    assert "the rows do not add up" in capsys.readouterr().err


def call(*arguments: str) -> int:
    """The exit code of a command."""
    with pytest.raises(SystemExit) as ended:
        main(list(arguments))
    return int(ended.value.code or 0)
