"""The backtest of burst forecasts: its document, what it may not see, and the files it takes and refuses."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from autopilot.app.backtests.backtest_options import BurstsOptions, GateEvidence
from autopilot.app.backtests.from_requests import read_rates, read_series, run
from autopilot.core.model.errors import InputError
from models.backtest_bursts import Run, backtest, document
from models.demand import Ask

ASK = Ask(600.0, (1, 3))


def quiet(_done: int, _total: int, _words: str) -> None:
    """Progress is ignored."""


def noise(series: int = 3, steps: int = 400, seed: int = 1) -> np.ndarray:
    """Counts around fifty."""
    return np.random.default_rng(seed).poisson(50.0, (series, steps)).astype(float)


def backtested(values: np.ndarray, *, peak: bool = False) -> Run:
    """A backtest of `values` at one and three steps."""
    names = [f"s{at}" for at in range(len(values))]
    return backtest(names, values, Ask(600.0, (1, 3), peak=peak), 0, lambda: 0.0, quiet)


def test_the_document_has_the_fields_that_were_agreed() -> None:
    """Every field, and no other."""
    found = document(backtested(noise()))
    assert set(found) == {"schema", "series", "horizons", "fit_cpu_s", "predict_cpu_s"}
    assert found["schema"] == "gpu-autopilot/backtest/1"
    assert found["series"] == 3
    assert list(found["horizons"]) == ["600", "1800"]
    one = found["horizons"]["600"]
    assert set(one) == {
        "mae_vs_naive",
        "mase",
        "pinball_p90",
        "pinball_p99",
        "coverage_p90",
        "coverage_p99",
        "coverage_p99_worst_eighth",
        "headroom_p99",
        "chosen",
        "floor",
    }
    assert set(one["floor"]) == {"mae", "pinball_p90", "pinball_p99", "coverage_p99", "headroom_p99"}
    assert sum(one["chosen"].values()) == 3


def test_on_noise_a_smoothing_is_chosen_and_the_figures_are_those_of_noise() -> None:
    """The mean errs 1 / sqrt(2) of what the last value does; Poisson(50) has its 0.99 quantile at 1.34 of its mean."""
    found = document(backtested(noise(4, 800)))["horizons"]["600"]
    assert "last-value" not in found["chosen"]
    assert found["mae_vs_naive"] == pytest.approx(0.707, abs=0.05)
    assert found["headroom_p99"] == pytest.approx(1.34, abs=0.08)
    assert found["coverage_p90"] == pytest.approx(0.9, abs=0.02)
    assert found["coverage_p99"] == pytest.approx(0.99, abs=0.008)
    assert found["headroom_p99"] < found["floor"]["headroom_p99"]


def test_a_random_walk_is_left_to_the_last_value() -> None:
    """Never much worse than the floor."""
    walk = 500.0 + np.cumsum(np.random.default_rng(1).normal(size=(4, 600)), axis=1)
    found = document(backtested(walk))["horizons"]["1800"]
    assert found["mae_vs_naive"] <= 1.02


def test_peaks_lie_above_values() -> None:
    """The bound for the highest of three steps is above that for the third."""
    values = noise(4, 600)
    assert (
        document(backtested(values, peak=True))["horizons"]["1800"]["headroom_p99"]
        > document(backtested(values))["horizons"]["1800"]["headroom_p99"]
    )


def test_the_test_part_teaches_neither_fit_nor_choice() -> None:
    """Other values in the last fifth change no choice and no first promise."""
    values = noise(3, 500)
    other = values.copy()
    other[:, 400:] = other[:, 400:][:, ::-1] * 3.0
    one, two = backtested(values), backtested(other)
    assert (one.choice.chosen == two.choice.chosen).all()
    assert np.array_equal(one.choice.losses, two.choice.losses, equal_nan=True)
    assert np.array_equal(one.all_raw["ets"][:, :100], two.all_raw["ets"][:, :100])


@pytest.mark.parametrize("kind", ["constant", "zero", "gap", "nothing known in the test", "one empty series"])
def test_poor_series_give_a_document_or_null_never_an_exception(kind: str) -> None:
    """Figures that nothing could be measured for are null."""
    values = noise(3, 300)
    if kind == "constant":
        values[:] = 7.0
    elif kind == "zero":
        values[:] = 0.0
    elif kind == "gap":
        values[:, 100:160] = np.nan
    elif kind == "one empty series":
        values[1] = np.nan
    else:
        values[:, 240:] = np.nan
    found = document(backtested(values))["horizons"]["600"]
    if kind == "nothing known in the test":
        assert found["mae_vs_naive"] is None
        assert found["coverage_p99"] is None
    elif kind != "zero":
        assert found["coverage_p99"] > 0.9
        assert np.isfinite(found["headroom_p99"])


# --- files --------------------------------------------------------------------------------------------


def series_file(folder: Path, frame: pd.DataFrame, name: str = "series.csv") -> Path:
    """The frame on disk."""
    path = folder / name
    frame.to_csv(path, index=False)
    return path


def long_form(values: np.ndarray, step_s: float = 600.0) -> pd.DataFrame:
    """Rows of t_s, service, value, the services one after the other."""
    frames = [
        pd.DataFrame({"t_s": step_s * np.arange(values.shape[1]), "service": f"s{at}", "value": row})
        for at, row in enumerate(values)
    ]
    return pd.concat(frames)


def test_rows_in_any_order_give_the_same_series(tmp_path: Path) -> None:
    """Shuffled, and with a row told twice."""
    frame = long_form(noise(2, 50))
    shuffled = pd.concat([frame, frame.iloc[[3]]]).sample(frac=1.0, random_state=1)
    straight = read_series(series_file(tmp_path, frame))
    mixed = read_series(series_file(tmp_path, shuffled, "mixed.csv"))
    assert straight.step_s == mixed.step_s == 600.0
    assert straight.names == mixed.names == ["s0", "s1"]
    assert np.allclose(straight.demand, mixed.demand)
    assert not straight.assumed_by_reason
    assert list(mixed.assumed_by_reason.values()) == [1]


def test_a_step_without_a_row_and_a_negative_value_are_unknown(tmp_path: Path) -> None:
    """Unknown is not zero, and what was left out is told."""
    frame = long_form(noise(1, 50))
    frame.loc[frame.index[7], "value"] = -3.0
    frame.loc[frame.index[30], "t_s"] = np.nan
    read = read_series(series_file(tmp_path, frame.drop(frame.index[20])))
    assert np.isnan(read.demand[0, [7, 20, 30]]).all()
    assert np.isnan(read.demand).sum() == 3
    assert read.left_out_by_reason == {
        "without a time (t_s) or a service": 1,
        "whose value is missing, negative or infinite": 1,
    }


def test_requests_are_counted_into_rates(tmp_path: Path) -> None:
    """Requests/s of each service; the last, partial step is left out."""
    frame = pd.DataFrame(
        {
            "t_s": [0.0, 1.0, 12.0, 25.0, 31.0],
            "service": ["a", "a", "b", "a", "b"],
            "input_tokens": 1,
            "output_tokens": 1,
        }
    )
    read = read_rates(series_file(tmp_path, frame), 10.0)
    assert (read.step_s, read.names) == (10.0, ["a", "b"])
    assert read.demand.tolist() == [[0.2, 0.0, 0.1], [0.0, 0.1, 0.0]]


@pytest.mark.parametrize(
    ("frame", "horizons_s", "words"),
    [
        (pd.DataFrame({"t_s": [0.0], "value": [1.0]}), (600.0,), "service"),
        (pd.DataFrame({"t_s": [0.0, 0.0], "service": ["a", "a"], "value": [1.0, 2.0]}), (600.0,), "no step"),
        (pd.DataFrame({"t_s": ["x", "y"], "service": ["a", "a"], "value": [1.0, 2.0]}), (600.0,), "t_s"),
        (long_form(noise(1, 3)), (600.0,), "3 steps"),
        (long_form(np.full((1, 100), -1.0)), (600.0,), "no usable value"),
        (long_form(noise(1, 100)), (60.0,), "shorter than the step"),
        (long_form(noise(1, 100)), (600.0, 650.0), "same number of steps"),
        (long_form(noise(1, 100)), (36_000.0,), "needs"),
    ],
)
def test_a_file_that_cannot_be_used_is_refused_in_one_sentence(
    tmp_path: Path, frame: pd.DataFrame, horizons_s: tuple[float, ...], words: str
) -> None:
    """It names the file or the option, and what is wrong."""
    path = series_file(tmp_path, frame)
    with pytest.raises(InputError, match=words):
        run(BurstsOptions(series=path, horizons_s=horizons_s), quiet)


def test_the_gate_is_given_losses_and_what_would_serve(tmp_path: Path) -> None:
    """One case a group and horizon, origins in time order; the artifact scores again as a champion."""
    frame = long_form(noise(8, 660))  # just enough rows to fit boosting
    frame["service"] = "m#" + frame["service"]
    frame.loc[frame["service"] > "m#s3", "service"] += "x"
    path = series_file(tmp_path, frame)
    evidence = GateEvidence()
    run(BurstsOptions(series=path, horizons_s=(600.0, 1800.0), evidence=evidence), quiet)
    assert [case.case for case in evidence.cases] == ["bursts 10 min", "bursts 30 min"]
    case = evidence.cases[0]
    assert (np.diff(case.time_s) >= 0).all()
    assert len(case.time_s) == len(case.challenger.losses["pinball_p99"]) == 8 * 132
    assert evidence.artifact is not None
    assert evidence.counted_work > 0
    again = GateEvidence(champion=evidence.artifact)
    run(BurstsOptions(series=path, horizons_s=(600.0,), evidence=again), quiet)
    champion = again.cases[0].champion
    assert champion is not None
    assert again.champion_problem == ""
    assert np.array_equal(champion.losses["pinball_p99"], case.challenger.losses["pinball_p99"], equal_nan=True)


def test_a_champion_of_another_kind_is_said_to_be_unusable(tmp_path: Path) -> None:
    """The run goes on without it."""
    path = series_file(tmp_path, long_form(noise(2, 300)))
    evidence = GateEvidence(champion={"model": "other"})
    run(BurstsOptions(series=path, horizons_s=(600.0,), evidence=evidence), quiet)
    assert "not a boosting model" in evidence.champion_problem
    assert evidence.cases[0].champion is None
