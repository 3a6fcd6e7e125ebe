"""Synthetic jobs: as much as asked for, repeatable, and with the habits of the traces they are fitted to."""

import importlib.util
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from autopilot.core.model.errors import InputError
from simulator.traces.arrivals import FITTED, generate_jobs
from simulator.traces.columns import BY_NAME
from simulator.traces.job_trace import JobTrace
from simulator.traces.jobs import read_jobs, write_jobs

ROOT = Path(__file__).resolve().parents[3]
DAY_S = 86_400.0


def some_jobs(seed: int, **changes: Any) -> JobTrace:
    """A day of 128 GPUs at a load of 1.2."""
    options: dict[str, Any] = {"cluster_gpus": 128, "horizon_s": DAY_S, "load": 1.2} | changes
    return generate_jobs(np.random.default_rng(seed), **options)


@pytest.mark.parametrize("seed", range(5))
def test_the_load_is_what_was_asked_for(seed: int) -> None:
    """The jobs ask for the wanted GPU-seconds, over by less than the last job, inside the horizon."""
    jobs = some_jobs(seed)
    wanted = 1.2 * 128 * DAY_S
    assert wanted <= jobs.total_gpu_s <= wanted + 128 * DAY_S
    assert jobs.submit_s[0] == 0
    assert (np.diff(jobs.submit_s) >= 0).all()
    assert jobs.submit_s[-1] < DAY_S
    assert jobs.duration_s.min() >= 1
    assert jobs.duration_s.max() <= DAY_S
    assert jobs.gpus.max() <= 128
    limited = ~np.isnan(jobs.limit_s)
    assert (jobs.limit_s[limited] >= jobs.duration_s[limited]).all()


def test_one_seed_gives_the_same_jobs() -> None:
    """Two draws of one seed are equal in every column, and another seed is another trace."""
    first, second, other = some_jobs(1), some_jobs(1), some_jobs(2)
    for name in BY_NAME:
        may_be_nan = BY_NAME[name].kind == "amount" and name != "gpus"
        assert np.array_equal(getattr(first, name), getattr(second, name), equal_nan=may_be_nan), name
    assert len(first) != len(other) or not np.array_equal(first.duration_s, other.duration_s)


def test_synthetic_jobs_are_a_job_file_like_any_other(tmp_path: Path) -> None:
    """What is generated can be written, read again without loss, and has unique ids and known tenants."""
    jobs = some_jobs(3, tenants=["red", "blue"], cluster_gpus=16)
    write_jobs(jobs, tmp_path / "jobs.csv")
    again = read_jobs(tmp_path / "jobs.csv")
    assert again.unusable == 0
    assert again.job_id.tolist() == jobs.job_id.tolist()
    assert set(jobs.tenant) <= {"red", "blue"}
    assert jobs.gpus.max() <= 16


@pytest.mark.parametrize(
    "changes",
    [
        {"load": 0},
        {"load": float("nan")},
        {"cluster_gpus": 0},
        {"horizon_s": 1},
        {"tenants": 0},
        {"tenants": []},
    ],
)
def test_figures_out_of_range_are_refused(changes: dict[str, Any]) -> None:
    """Each impossible wish is one message."""
    with pytest.raises(InputError, match="synthetic jobs"):
        some_jobs(0, **changes)


def test_habits_look_like_the_real_trace(shared_data: Path | None, ran_on: Any) -> None:
    """Widths, durations, burstiness and tenant skew lie near Philly's (or, without it, near its known figures)."""
    jobs = some_jobs(1, cluster_gpus=448, horizon_s=5e6, load=1.0, tenants=12, max_duration_s=5e6)
    quantiles = np.quantile(jobs.duration_s, [0.25, 0.5, 0.75, 0.9])
    if shared_data is None:
        ran_on("synthetic")
        real_quantiles, real_single, real_burst = np.array([176.5, 1278, 2744, 10_715]), 0.939, 182.0
    else:
        ran_on("philly_jobs")
        real = read_jobs(shared_data / "philly_jobs" / "jobs.parquet")
        real_quantiles = np.quantile(real.duration_s, [0.25, 0.5, 0.75, 0.9])
        real_single, real_burst = float((real.gpus == 1).mean()), dispersion(real)
    assert (np.abs(np.log(quantiles / real_quantiles)) < np.log(2.5)).all()
    assert abs(float((jobs.gpus == 1).mean()) - real_single) < 0.06
    assert real_burst / 5 < dispersion(jobs) < real_burst * 5
    shares = np.sort(np.unique(jobs.tenant.astype(str), return_counts=True)[1])[::-1] / len(jobs)
    assert 0.3 < shares[0] < 0.8


def dispersion(jobs: JobTrace) -> float:
    """Variance over mean of the submissions per hour; 1 without batches."""
    counts = np.bincount((jobs.submit_s // 3600).astype(int))
    return float(counts.var() / counts.mean())


def test_constants_are_those_that_the_script_prints(shared_data: Path | None, ran_on: Any) -> None:
    """Fitting again gives the figures that stand in the module, to their printed digits."""
    script = load_script()
    if shared_data is None:
        ran_on("synthetic")
        rng = np.random.default_rng(5)
        log_s = np.concatenate([rng.normal(4, 0.3, 4000), rng.normal(9, 1.0, 6000)])
        (low, low_mean, low_spread), (_, high_mean, high_spread) = script.log_normal_mixture(log_s, 2)
        assert [low, low_mean, low_spread, high_mean, high_spread] == pytest.approx([0.4, 4, 0.3, 9, 1], rel=0.05)
        numbers = np.arange(2, 500)
        sizes = rng.choice(numbers, size=20_000, p=numbers**-1.9 / (numbers**-1.9).sum())
        assert script.zeta_exponent(sizes, 499) == pytest.approx(1.9, abs=0.05)
        return
    ran_on("philly_jobs, mit_supercloud_slurm")
    assert script.as_python(script.fit(shared_data)) == script.as_python(FITTED)


def load_script() -> ModuleType:
    """The fitting script as a module."""
    spec = importlib.util.spec_from_file_location("fit_arrivals", ROOT / "scripts" / "fit_arrivals.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
