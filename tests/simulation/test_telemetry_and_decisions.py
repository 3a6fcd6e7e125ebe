"""Telemetry changes what is known, and no decision unless it shows something that calls for one."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from autopilot.app.options import SimulateOptions
from autopilot.app.runs.simulate import simulate


def rows(path: Path, telemetry: str) -> pd.DataFrame:
    """What became of each job of a file under the autopilot."""
    outcome = simulate(
        SimulateOptions(
            jobs=path,
            cluster="2x8",
            policies=("autopilot",),
            physics="charged",
            durations="last-two",
            telemetry=telemetry,
            series=False,
        )
    )
    (frame,) = outcome.job_frames()
    assert outcome.policies[0].simulated.found.violations == ()
    return frame  # type: ignore[no-any-return]


def test_work_that_holds_its_gpus_and_does_nothing_is_no_hung_gang(tmp_path: Path) -> None:
    """Every third gang is a hoarder from its start to its end: with telemetry it runs as it does without."""
    path = tmp_path / "jobs.csv"
    pd.DataFrame(
        {
            "job_id": [f"j{n}" for n in range(24)],
            "tenant": ["t"] * 24,
            "submit_s": [600 * n for n in range(24)],
            "duration_s": [4000 + 700 * (n % 7) for n in range(24)],
            "gpus": [(2, 4, 8)[n % 3] for n in range(24)],
            "kind": [("hoarder", "train", "train")[n % 3] for n in range(24)],
        }
    ).to_csv(path, index=False)
    pd.testing.assert_frame_equal(rows(path, "windowed"), rows(path, "off"))
