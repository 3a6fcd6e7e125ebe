"""One odd line in the text of an exporter."""

from __future__ import annotations

import math

import pytest

from autopilot.core.hardware.dcgm import SIGNALS, Fault
from collectors.exporter import ExporterCollector
from collectors.exposition import Frame, Scanner
from tests.kits.exporter_text import Device, render

GPU = Device("GPU-aaaa")


def scan(*texts: str) -> Frame:
    """One round of these texts."""
    return Scanner().scan(texts)


def active(frame: Frame) -> float:
    """The SM activity of GPU-b."""
    return float(frame.values[SIGNALS.index("sm_active_ratio"), list(frame.entity_ids).index("GPU-b")])


@pytest.mark.parametrize(
    ("odd", "words"),
    [
        ('DCGM_FI_PROF_SM_ACTIVE{UUID="GPU-b"} 0.1\nDCGM_FI_PROF_SM_ACTIVE{UUID="GPU-b"} 0.9\n', "there twice"),
        ('DCGM_FI_PROF_SM_ACTIVE{UUID="GPU-b"} x\x1by\n', r"SM_ACTIVE not a number (value 'x\x1by')"),
        ('DCGM_FI_PROF_SM_ACTIVE{UUID="GPU-b"} 1e400\n', "SM_ACTIVE out of range (value '1e400')"),
        ('DCGM_FI_PROF_SM_ACTIVE{UUID="GPU-b"} ' + "9" * 5000 + "\n", "... (5000 characters))"),
        ('DCGM_FI_PROF_SM_ACTIVE{UUID="GPU-b 0.1\n', "1 lines are not Prometheus text"),
        ('DCGM_FI_PROF_SM_ACTIVE{UUID="GPU-b\x1b[31m"} 0.1\n', r"GPU-b\x1b[31m"),
        ('DCGM_FI_PROF_SM_ACTIVE{UUID="GPU-' + "b" * 5000 + '"} 0.1\n', "characters)"),
    ],
)
@pytest.mark.parametrize("first", [True, False])
def test_one_odd_line_leaves_its_gpu_unknown_and_no_other(odd: str, words: str, *, first: bool) -> None:
    """It is named with its value, cut and without control characters, at every scrape. All other lines count."""
    honest = render([GPU])
    collector = ExporterCollector(fetch=lambda _: b"")
    for now_s in (0.0, 15.0):
        collector.ingest(now_s, odd + honest if first else honest + odd)
        batch = collector.collect(now_s)
        told = batch.telemetry
        assert told is not None
        assert told.mean[SIGNALS.index("sm_active_ratio"), 0, told.entity_ids == "GPU-aaaa"] == pytest.approx([0.62])
        assert not any(told.samples[0, told.entity_ids != "GPU-aaaa"])
        assert [gap for gap in batch.gaps if words in gap.reason]
        assert all((gap.object_id + gap.reason).isprintable() and len(gap.reason) < 300 for gap in batch.gaps)


def test_a_contradiction_is_unknown_whatever_else_reports_the_gpu() -> None:
    """A series that is there twice with one value counts, and so do two exporters that differ."""
    line = 'DCGM_FI_PROF_SM_ACTIVE{{UUID="GPU-b"}} {}\n'
    assert active(scan(line.format(0.1) * 2)) == pytest.approx(0.1)
    assert active(scan(line.format(0.1), line.format(0.9))) == pytest.approx(0.9)
    frame = scan(line.format(0.1) + line.format(0.9), line.format(0.5))
    assert math.isnan(active(frame))
    assert frame.faults == (("GPU-b", "DCGM_FI_PROF_SM_ACTIVE", Fault.TWICE),)
