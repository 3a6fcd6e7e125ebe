"""examples/own_policy.py runs as it stands, and repeats a published row."""

from __future__ import annotations

import runpy
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from autopilot import api
from tests.tidy.tree import ROOT

EXAMPLE = ROOT / "examples" / "own_policy.py"


def test_the_example_runs_and_draws(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    shared_data: Path | None,
    ran_on: Callable[[str], None],
) -> None:
    """Its plots are written, nothing is refused, and the rows that it expects are those of docs/benchmarks.md."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setattr(sys, "argv", ["own_policy.py", "--out", str(tmp_path), "--seeds", "1", "--workers", "1"])
    names = runpy.run_path(str(EXAMPLE), run_name="__main__")
    printed = capsys.readouterr().out
    assert "response-ratio: refused {'by_reason': {}, 'first': []}" in printed
    assert "response-ratio instead of fifo-skip" in printed
    assert (tmp_path / "own_policy.svg").read_text().startswith("<?xml")
    page = (ROOT / "docs" / "benchmarks.md").read_text()
    for policy, row in names["PUBLISHED"].items():
        assert f"| P1, {policy}, " in page
        assert f"| {row} | stated | `python -m benchmarks preemption` |" in page
    philly = None if shared_data is None else shared_data / "philly_jobs" / "jobs.parquet"
    if philly is None or not philly.exists():
        ran_on("synthetic")
        return
    ran_on("philly_jobs")
    p1 = api.load(philly, cluster="7x8", tenants=("vc_6c71a0",), physics="charged", telemetry="off", seed=1)
    assert names["table_row"](api.simulate(p1, policy="fifo-skip")) == names["PUBLISHED"]["fifo-skip"]
