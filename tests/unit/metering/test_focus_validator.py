"""FOCUS 1.0 rows under the validator of the FinOps Foundation, where it is installed."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from autopilot.metering.focus import as_1_0, focus_rows
from autopilot.metering.segments import open_store
from simulator.traces.table_files import write_table
from tests.kits.metering_kit import asked
from tests.unit.metering.test_showback import PRICES, ROWS, stored

VALIDATOR = Path(os.environ.get("FOCUS_VALIDATOR", "focus-validator"))
"""The program, in an environment of its own: `pip install focus-validator "multimethod<2"`."""


@pytest.mark.skipif(
    not VALIDATOR.is_file(), reason="FOCUS_VALIDATOR names no focus-validator (an environment of its own)"
)
def test_the_validator_accepts_the_rows(tmp_path: Path) -> None:
    """Every rule of 1.0, with the file as it is written."""
    frame = as_1_0(focus_rows(asked(open_store(stored(tmp_path / "m", ROWS)), PRICES)))
    write_table(frame, tmp_path / "focus.csv", for_spreadsheets=True)
    packages = next(VALIDATOR.parent.parent.glob("lib/python3*/site-packages"))
    command = [str(VALIDATOR), "--data-file", str(tmp_path / "focus.csv"), "--validate-version", "1.0"]
    done = subprocess.run(command, cwd=packages, capture_output=True, text=True, timeout=300)
    assert "Validation succeeded" in done.stdout + done.stderr, done.stdout[-2000:] + done.stderr[-500:]
    assert done.returncode == 0
