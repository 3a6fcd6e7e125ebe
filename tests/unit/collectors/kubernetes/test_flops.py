"""The operations that pods report, from their annotations to the MFU of showback."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import pytest

from autopilot.app.commands.showback_commands import Words, run_showback
from autopilot.contract.annotations import HEARTBEAT, HEARTBEAT_OLD_S, MODEL_FLOPS
from autopilot.core.model.records import Observation
from autopilot.service.metered import ServiceMeter
from tests.kits.core_world import decide, observe
from tests.kits.kube_objects import Json, node, owner, pod
from tests.unit.collectors.kubernetes.view import NOW_S, Seen

JOB = owner("PyTorchJob", "pt", "u")
LABELS = {"training.kubeflow.org/job-name": "pt"}


def rank(number: int, rate: str | None, beat_s: float = NOW_S - 30.0, **more: Any) -> Json:
    """One pod of a gang with two GPUs, and what it reports."""
    notes = {HEARTBEAT: f"{beat_s:.3f}"} | ({} if rate is None else {MODEL_FLOPS: rate})
    given: dict[str, Any] = {"owner": JOB, "labels": LABELS, "node": "n", "annotations": notes, **more}
    return pod(f"pt-{number}", 2, uid=f"p{number}", **given)


def reported(*pods: Json) -> dict[str, float]:
    """What the collector reads of these pods."""
    seen = Seen(node("n", 8), *pods)
    seen.batch()
    return seen.collector.reported_flops(NOW_S)


def test_a_gang_reports_the_sum_of_its_pods() -> None:
    """By the uid that the snapshot has; a pod that has ended no longer counts."""
    assert reported(rank(0, "6e14"), rank(1, "4e14")) == {"u": 1e15}
    assert reported(rank(0, "6e14"), rank(1, None, phase="Succeeded")) == {"u": 6e14}


@pytest.mark.parametrize("rate", [None, "", "fast", "nan", "inf", "-1", "1e18"])
def test_a_gang_with_a_pod_that_reports_nothing_usable_reports_nothing(rate: str | None) -> None:
    """Half a gang is not the gang; absurd and negative numbers are none."""
    assert reported(rank(0, "6e14"), rank(1, rate)) == {}


@pytest.mark.parametrize("beat_s", [NOW_S - HEARTBEAT_OLD_S - 1, NOW_S + HEARTBEAT_OLD_S + 1, float("nan")])
def test_a_rate_without_a_fresh_heartbeat_does_not_count(beat_s: float) -> None:
    """A program that hangs keeps its last rate in the annotation."""
    assert reported(rank(0, "6e14"), rank(1, "6e14", beat_s)) == {}


def test_showback_has_the_mfu_of_work_that_reports(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Four H100 GPUs with 4 x 395.6 TFLOP/s are at 40 % of their 989; the work beside them has none."""
    seen = Seen(
        node("n", 8),
        rank(0, "791.2e12", beat_s=NOW_S),
        rank(1, "791.2e12", beat_s=NOW_S),
        pod("other", 1, uid="o", node="n", namespace="silent"),
    )
    snap = seen.snapshot()
    meter = ServiceMeter(tmp_path / "live.journal", None, 1.0, 15.0)
    meter.reports = (seen.collector,)
    for now_s in (NOW_S, NOW_S + 60.0, NOW_S + 120.0):
        observation: Observation = observe(snap, now_s)
        meter.take(observation, decide(observation).instructions)
    meter.close()
    run_showback(tmp_path / "live.metering", Words(by="tenant", form="csv"))
    rows = {row["tenant"]: row["mfu_ratio"] for row in csv.DictReader(capsys.readouterr().out.splitlines())}
    assert float(rows["team"]) == pytest.approx(0.4)
    assert rows["silent"] == ""
    run_showback(tmp_path / "live.metering", Words(by="class", form="table"))
    assert "40.0 %" in capsys.readouterr().out
