"""Parts of a backtest under the gate: the golden set, scores, the version of the code, options."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from autopilot.app.backtests import golden
from autopilot.app.backtests.backtest_options import BurstsOptions, RuntimesOptions, parse_horizons_s
from autopilot.app.backtests.gate import code_version, scores_of
from autopilot.core.model.errors import InputError


def test_the_golden_set_is_locked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other data under the same version is refused, and so is a set of another version."""
    for kind in ("bursts", "runtimes"):
        assert golden.golden_file(kind).exists()
    for path in golden.FOLDER.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    monkeypatch.setattr(golden, "FOLDER", tmp_path)
    (tmp_path / "bursts-1.parquet").write_bytes((tmp_path / "runtimes-1.parquet").read_bytes())
    with pytest.raises(InputError, match="its content is not that of version"):
        golden.golden_file("bursts")
    (tmp_path / "bursts-1.parquet").write_bytes(b"PAR1")
    with pytest.raises(InputError, match="cannot be read"):
        golden.golden_file("bursts")
    (tmp_path / "golden.json").write_text((tmp_path / "golden.json").read_text().replace('"1"', '"2"'))
    with pytest.raises(InputError, match="has version 2, not 1"):
        golden.golden_file("runtimes")


def test_the_golden_set_is_what_its_script_writes() -> None:
    """Content for content; small enough for the repository."""
    done = subprocess.run(
        [sys.executable, str(golden.FOLDER.parent.parent / "scripts" / "generate_golden.py"), "--check"],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert sum(path.stat().st_size for path in golden.FOLDER.iterdir()) < 300_000


def test_scores_leave_out_what_this_machine_measured() -> None:
    """CPU seconds would make each run another version."""
    found = scores_of(
        {
            "horizons": {"600": {"mae": 1.0, "chosen": {"x": 3}, "floor": {"mae": 2.0}, "bad": float("nan")}},
            "fit_cpu_s": 3.0,
            "jobs": 4,
            "flag": True,
        }
    )
    assert found == {"600 mae": 1.0, "jobs": 4}


def test_code_has_a_version() -> None:
    """Package version and a digest, the same twice."""
    assert code_version() == code_version()
    assert len(code_version().split("+")[1]) == 12


def test_options_by_themselves() -> None:
    """Durations by comma; the path that is read; limits hold for callers that are no command line."""
    assert parse_horizons_s("10s, 1m,2m") == (10.0, 60.0, 120.0)
    assert BurstsOptions(requests=Path("r"), step_s=10.0).path == Path("r")
    with pytest.raises(InputError, match="--seed"):
        RuntimesOptions(jobs=Path("j"), seed=2**63)
