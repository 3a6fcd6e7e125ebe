"""The meter of the service: what happens when its disk fails, and at a restart."""

from __future__ import annotations

from pathlib import Path

import pytest

from autopilot.core.model.errors import InputError
from autopilot.journal import JournalReader
from autopilot.metering import segments
from autopilot.metering.amounts import GRAINS_PER_GPU_S
from autopilot.metering.segments import open_store
from autopilot.metering.showback import PARTS
from autopilot.service.metered import ServiceMeter
from tests.kits.metering_kit import run_metered, stored_sums


def test_a_disk_that_fails_for_a_while_costs_no_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ticks go on; what could not be written is written later. A restart goes on, with a gap for the time between."""
    run = run_metered(tmp_path)
    with JournalReader(tmp_path / "run.journal") as reader:
        ticks = [(tick.observation, tick.decided.decision) for tick in reader.ticks()]
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
    assert sums["held", "gpu_time"] / GRAINS_PER_GPU_S <= run.result["gpu_s"]["handed_out"]
