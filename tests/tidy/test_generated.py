"""Files in deploy/ that are written from tables in the code: what changes a table writes them again."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from benchmarks import field
from scripts import generate_chart, generate_crds, generate_ways


def test_the_custom_resources_are_those_of_the_policy_tree() -> None:
    """If not: python scripts/generate_crds.py."""
    written = {path.name: path.read_text("utf-8") for path in generate_crds.FOLDER.glob("*.yaml")}
    assert written == generate_crds.files(), "run: python scripts/generate_crds.py"


def test_the_generated_parts_of_the_chart_are_those_of_the_tables() -> None:
    """If not: python scripts/generate_chart.py."""
    assert generate_chart.main(["--check"]) == 0, "run: python scripts/generate_chart.py"


def test_the_values_of_the_chart_name_every_kind_of_instruction() -> None:
    """All of them are off; a new kind gets its line under `act` in deploy/chart/gpu-autopilot/values.yaml."""
    values = yaml.safe_load((generate_chart.CHART / "values.yaml").read_text("utf-8"))
    assert values["act"] == dict.fromkeys(generate_chart.kinds(), False)


def test_the_table_of_signals_and_ways_in_is_that_of_the_code() -> None:
    """If not: python scripts/generate_ways.py."""
    assert generate_ways.main(["--check"]) == 0, "run: python scripts/generate_ways.py"


def test_the_benchmark_of_signals_counts_the_cells_that_its_page_states(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Where the reported situations are not at hand it says so."""
    monkeypatch.setenv("AUTOPILOT_SHARED_DATA", str(tmp_path / "data"))
    assert field.main([]) == 0
    have, cells = field.filled()
    shown = capsys.readouterr().out
    assert f"{have} of {cells} cells are filled" in shown
    assert "SKIPPED: the field cases" in shown
    page = (Path(__file__).parents[2] / "docs" / "benchmarks.md").read_text("utf-8")
    assert f"cells of the table that are filled | {have} of {cells} |" in page
