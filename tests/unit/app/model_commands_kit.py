"""A backtest that needs no models, and calls of the command line, for the tests of the model commands."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from autopilot.cli import main
from models.backtest import CaseLosses, Scores


@dataclass
class FakeRun:
    """A backtest that finds what it is told to."""

    ratio: float = 0.7  # of the challenger's loss over the floor's
    number: int = 0
    unscored: str = ""  # why the champion cannot be compared
    options: list[Any] = field(default_factory=list)

    def __call__(self, options: Any, progress: Any) -> dict[str, Any]:
        self.options.append(options)
        progress(1, 2, "half")
        if options.evidence is not None:
            self._fill(options.evidence)
        horizon = {
            "mae_vs_naive": 0.9,
            "pinball_p99": 0.01 * self.ratio,
            "coverage_p99": 0.99,
            "chosen": {"boosting": 3},
            "floor": {"pinball_p99": 0.01},
        }
        return {
            "schema": "gpu-autopilot/backtest/1",
            "series": 3,
            "horizons": {"600": horizon},
            "fit_cpu_s": 1.0,
            "predict_cpu_s": 2.0,
            "jobs": 30,
            "median_relative_error": 0.4,
            "floor": {"median_relative_error": 0.5},
            "remaining": {"3600": {"coverage_p90": 0.9}},
        }

    def _fill(self, evidence: Any) -> None:
        rng = np.random.default_rng(3)
        base = rng.gamma(2.0, 0.5, 1000)
        held = np.arange(1000) % 100 != 0

        def scores(ratio: float) -> Scores:
            return Scores({"pinball_p99": ratio * base * rng.gamma(50, 1 / 50, 1000)}, {0.99: held})

        champion = None if evidence.champion is None else scores(evidence.champion["ratio"])
        if self.unscored:
            champion, evidence.champion_problem = None, self.unscored
        evidence.cases.append(
            CaseLosses(
                "bursts 600 s",
                "*",
                600.0 * np.arange(1000.0),
                600.0,
                scores(self.ratio),
                scores(1.0),
                champion,
            )
        )
        evidence.artifact = {"model": "fake/1", "ratio": self.ratio, "number": self.number}
        evidence.feature_schema = ("lag_1",)
        evidence.parameters = {"trees": 7}
        evidence.data = {"from_s": 0.0, "to_s": 60.0, "rows": 12}
        evidence.counted_work = 1000


def call(*arguments: str) -> int:
    """The exit code of a command."""
    with pytest.raises(SystemExit) as ended:
        main(list(arguments))
    return int(ended.value.code or 0)


def said(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> str:
    """What a command prints; for code 2 its one message."""
    capsys.readouterr()
    assert call(*arguments) == code
    captured = capsys.readouterr()
    if code == 2:
        assert captured.err.startswith("autopilot: ")
        assert len(captured.err.strip().splitlines()) == 1
        return captured.err
    return captured.out


def judge_golden(fake: FakeRun, capsys: pytest.CaptureFixture[str], ratio: float = 0.7) -> None:
    """Have the code judged on the golden set."""
    before, fake.ratio = fake.ratio, ratio
    said(capsys, "backtest", "bursts", "--gate", code=0 if ratio < 1 else 1)
    fake.ratio = before


def stored_version(text: str) -> str:
    """The version that a gate run says it stored."""
    return text.split("stored as ")[1].split(";", maxsplit=1)[0].split("\n", maxsplit=1)[0].strip()
