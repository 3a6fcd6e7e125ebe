"""The reported situations with real servers, judged by their own tool."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.conftest import ROOT, find_shared_data

REPORTS = (find_shared_data() or ROOT / "none").parent / "field-reports"
CASES = sorted(each.parent.name for each in REPORTS.glob("*/case.yaml"))


@pytest.mark.soak
@pytest.mark.skipif(not CASES, reason="no reported situations: set AUTOPILOT_SHARED_DATA")
@pytest.mark.parametrize("case", CASES or ["none"])
def test_a_reported_situation_comes_out_right(case: str) -> None:
    """Some cases ask a real Prometheus in real time, at most a few minutes."""
    command = [sys.executable, str(REPORTS / "check.py"), case]
    done = subprocess.run(command, cwd=ROOT, env={**os.environ, "SRC": str(ROOT)}, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
