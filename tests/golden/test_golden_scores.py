"""The models on the golden set: a change of the code may not make them worse than recorded (`make gate`).

`make test` has the run times, and a sample of other series in tests/properties/test_forecast_guarantee.py.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from autopilot.app.backtests import golden
from autopilot.core.model.errors import InputError

RECORDED = golden.recorded_scores()


@pytest.mark.parametrize("kind", [pytest.param("bursts", marks=pytest.mark.soak), "runtimes"])
def test_no_score_is_worse_than_recorded(kind: str) -> None:
    """Coverage and its worst window within the bounds of the gate, each loss within its tolerance of the record."""
    scores = golden.scores_in(golden.golden_document(kind), kind)
    assert not golden.worse_than(RECORDED[kind], scores, kind)


@pytest.mark.parametrize(
    ("kind", "name", "factor", "words"),
    [
        ("bursts", "600 pinball_p99", 1.09, "is recorded, and 8% more is allowed"),
        ("bursts", "3600 headroom_p99", 1.06, "is recorded, and 5% more is allowed"),
        ("bursts", "1800 coverage_p99_worst_eighth", 0.95, "is not within 0.95 to 1"),
        ("runtimes", "pinball_p90", 1.03, "is recorded, and 2% more is allowed"),
        ("runtimes", "coverage_p90", 0.96, "is not within 0.88 to 0.95"),
        ("runtimes", "coverage_p90", 1.06, "is not within 0.88 to 0.95"),
        ("runtimes", "mae_log", float("nan"), "is recorded, and 2% more is allowed"),
    ],
)
def test_what_is_worse_is_named(kind: str, name: str, factor: float, words: str) -> None:
    """The record itself passes; one score beyond its tolerance or out of its bounds does not."""
    recorded = RECORDED[kind]
    assert golden.worse_than(recorded, recorded, kind) == []
    (told,) = golden.worse_than(recorded, {**recorded, name: recorded[name] * factor}, kind)
    assert told.startswith(f"{kind}, {name}: ")
    assert words in told


def test_a_score_that_is_missing_or_new_is_named() -> None:
    """A horizon that is no longer measured, and one that nothing is recorded of."""
    recorded = RECORDED["bursts"]
    fewer = {name: value for name, value in recorded.items() if name != "600 pinball_p90"}
    assert golden.worse_than(recorded, fewer, "bursts") == ["bursts, 600 pinball_p90: is no longer measured"]
    more = {**recorded, "60 pinball_p90": 0.1}
    (told,) = golden.worse_than(recorded, more, "bursts")
    assert "nothing is recorded" in told


@pytest.mark.parametrize("name", ["golden_version", "metric_version"])
def test_a_record_of_other_data_or_another_metric_is_refused(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Scores of two versions are not comparable."""
    record = json.loads((golden.FOLDER / "scores.json").read_text(encoding="utf-8"))
    (tmp_path / "scores.json").write_text(json.dumps(record | {name: "0"}), encoding="utf-8")
    monkeypatch.setattr(golden, "FOLDER", tmp_path)
    with pytest.raises(InputError, match=f"has {name} 0"):
        golden.recorded_scores()
