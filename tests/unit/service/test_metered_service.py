"""The meter of the service: what happens when its disk fails, and at a restart."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest

from autopilot.app.commands.showback_commands import Words, run_showback
from autopilot.core.model.errors import InputError
from autopilot.metering import segments
from autopilot.metering.amounts import GRAINS_PER_GPU_S
from autopilot.metering.segments import open_store
from autopilot.metering.showback import PARTS
from autopilot.records.journal import JournalReader
from autopilot.service.metered import ServiceMeter
from collectors.exporter import ExporterCollector, Target
from tests.kits.core_world import decide, holds, observe, snapshot
from tests.kits.exporter_text import Device, render
from tests.kits.metering_kit import run_metered, stored_sums
from tests.kits.usage_world import measured


def test_a_disk_that_fails_for_a_while_costs_no_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ticks go on; what could not be written is written later. A restart goes on, with a gap for the time between."""
    run = run_metered(tmp_path)
    with JournalReader(tmp_path / "run.journal") as reader:
        ticks = [(tick.observation, tick.decided.instructions) for tick in reader.ticks()]
    real = segments._write

    def full(*_: object) -> None:
        raise InputError("No space left on device")

    first = ServiceMeter(tmp_path / "live.journal", None, 1.0, 10.0)
    for at, tick in enumerate(ticks[:100]):
        monkeypatch.setattr(segments, "_write", full if 20 <= at < 60 else real)
        first.take(*tick)
    first.close()
    second = ServiceMeter(tmp_path / "live.journal", None, 1.0, 10.0)
    for tick in ticks[105:]:
        second.take(*tick)
    second.close()
    store = open_store(tmp_path / "live.metering")
    sums = stored_sums(store)
    assert not store.holes
    assert sums["capacity", "gpu_time"] == sum(sums[kind, "gpu_time"] for kind in PARTS)
    span_s = ticks[-1][0].now_s - ticks[0][0].now_s
    assert sums["capacity", "gpu_time"] / GRAINS_PER_GPU_S == pytest.approx(20 * span_s)
    gap_s = ticks[105][0].now_s - ticks[99][0].now_s
    assert 20 * gap_s <= sums["gap", "gpu_time"] / GRAINS_PER_GPU_S < 20 * span_s
    assert sums["held", "gpu_time"] / GRAINS_PER_GPU_S <= run.result["gpu_s"]["allocated"]


def test_energy_is_by_the_counter_where_a_source_reads_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of four GPUs one has a counter, one has only its power, and two have neither: 600 W, 300 W, and unknown."""
    work = [holds("counted", on=[0], tenant=0), holds("averaged", on=[1], tenant=1), holds("dark", on=[2], tenant=2)]
    snap = snapshot("1x4", work)
    now_s = 0.0

    def fetch(_: str) -> bytes:
        return render([Device("GPU-0").reading({156: 9.1e14 + now_s * 600e3, 155: None})]).encode()

    exporter = ExporterCollector([Target("http://a/metrics")], fetch)
    meter = ServiceMeter(tmp_path / "live.journal", None, 1.0, 15.0)
    meter.counters = (exporter,)
    shown = measured(snap, {"power_w": (np.nan, 300.0, np.nan, np.nan)})
    for now_s in np.arange(0.0, 3615.0, 15.0).tolist():
        exporter.collect(now_s)
        observation = observe(shown, now_s)
        meter.take(observation, decide(observation).instructions)
    meter.close()
    run_showback(tmp_path / "live.metering", Words(by="tenant", form="csv"))
    rows = {row["tenant"]: row for row in csv.DictReader(capsys.readouterr().out.splitlines())}
    parts = ("counted_energy_gpu_h", "averaged_energy_gpu_h", "unknown_energy_gpu_h")
    found = {name: [float(rows[name][part]) for part in parts] for name in ("t0", "t1", "t2")}
    assert found["t0"] == [pytest.approx(1.0), 0.0, 0.0]
    assert found["t1"] == [0.0, pytest.approx(1.0), 0.0]
    assert found["t2"] == [0.0, 0.0, pytest.approx(1.0)]
    assert float(rows["t0"]["energy_kwh"]) == pytest.approx(1.25 * 0.6)
    assert rows["t2"]["energy_kwh"] == "", "not known"
    run_showback(tmp_path / "live.metering", Words(by="tenant", form="table"))
    printed = capsys.readouterr().out
    assert "energy: 1.0 GPU-h by the energy counter, 1.0 GPU-h by mean power x time" in printed
    assert {"counter", "power"} <= set(printed.split())
