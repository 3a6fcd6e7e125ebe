"""One odd series in the reports of training programs."""

from __future__ import annotations

import json

import pytest

from collectors import checkpoint_reports
from collectors.checkpoint_reports import CheckpointReports

POD, OTHER = ("team", "train-0"), ("team", "train-1")


def test_one_odd_series_silences_no_other_pod(monkeypatch: pytest.MonkeyPatch) -> None:
    """The pod of a series that cannot be read, or that is there with two values, is unknown, and is named."""
    rows = [
        series(POD, "1000"),
        series(OTHER, "soon"),
        series(("team", "train-2"), "NaN"),
        series(("team", "train-3"), "5"),
        series(("team", "train-3"), "7"),
    ]
    body = json.dumps({"status": "success", "data": {"result": rows}}).encode()
    monkeypatch.setattr(checkpoint_reports, "get_limited", lambda *_: body)
    reports = CheckpointReports("http://127.0.0.1:9")
    pods = [POD, OTHER, ("team", "train-2"), ("team", "train-3")]
    assert reports.heartbeats_s(pods) == {POD: 1000.0}
    assert "train-1" in reports.problem
    assert "'soon' cannot be read" in reports.problem
    assert reports.acknowledged("7/p/w", [POD])
    assert not reports.acknowledged("7/p/w", [OTHER, ("team", "train-3")])


def series(of: tuple[str, str], value: str) -> dict[str, object]:
    """A series of a pod as Prometheus sends it."""
    return {"metric": {"namespace": of[0], "pod": of[1]}, "value": [1.0, value]}
