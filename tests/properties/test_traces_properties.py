"""Whatever stands in a job file, reading it accounts for every row and never invents one."""

import tempfile
from pathlib import Path

import numpy as np
import pandas as pd
from hypothesis import given
from hypothesis import strategies as st

from autopilot.core.model.errors import InputError
from simulator.traces.checks import Capacity
from simulator.traces.defaults import load_defaults
from simulator.traces.job_trace import JobTrace
from simulator.traces.jobs import jobs_from_frame, read_jobs, write_jobs

NUMBERS = st.one_of(
    st.floats(allow_nan=True, allow_infinity=True, width=32),
    st.integers(-2, 20).map(float),
    st.just(float("nan")),
)
CELLS = st.fixed_dictionaries(
    {
        "job_id": st.sampled_from(["", "1", "2", "10", "a", "a-2", "a-10", "ü"]),
        "tenant": st.sampled_from(["", "red", "blue"]),
        "submit_s": NUMBERS,
        "duration_s": NUMBERS,
        "gpus": NUMBERS,
        "limit_s": NUMBERS,
        "gpu_milli": NUMBERS,
        "min_gpus": NUMBERS,
        "slo_class": st.sampled_from(["", "batch", "gold"]),
        "mig_profile": st.sampled_from(["", "1g.10gb", "5g.1gb"]),
        "gpu_type": st.sampled_from(["", "T4", "A30-24GB|H100-80GB", "|"]),
        "gpu_memory_gib": NUMBERS,
        "topology": st.sampled_from(["", "node", "island", "none"]),
        "preemption_delay_s": NUMBERS,
    }
)


def read(rows: list[dict[str, object]]) -> JobTrace | None:
    """The jobs of these rows; None when not one is usable, which is the only error that rows may cause."""
    try:
        return jobs_from_frame(pd.DataFrame(rows), Path("rows.csv"), capacity=Capacity(64))
    except InputError as error:
        if "no usable row" not in str(error):
            raise
        return None


@given(st.lists(CELLS, min_size=1, max_size=12))
def test_every_row_is_used_or_counted(rows: list[dict[str, object]]) -> None:
    """Usable and refused rows add up to the file, and every usable one keeps the format's promises."""
    jobs = read(rows)
    if jobs is None:
        return
    assert len(jobs) + jobs.unusable == len(rows) == jobs.rows
    assert len(set(jobs.job_id)) == len(jobs)
    assert jobs.submit_s[0] == 0
    assert (np.diff(jobs.submit_s) >= 0).all()
    assert (jobs.duration_s >= 1).all()
    assert (jobs.duration_s == np.trunc(jobs.duration_s)).all()
    assert ((jobs.gpus >= 1) & (jobs.gpus <= 64 * 7)).all()
    assert ((jobs.gpu_milli >= 1) & (jobs.gpu_milli <= 1000)).all()
    assert (jobs.gpus[jobs.gpu_milli < 1000] == 1).all()
    cut = jobs.mig_profile != ""
    assert not (cut & np.isin(jobs.topology.astype(str), ["island"])).any()
    assert not (cut & ((jobs.gpu_milli < 1000) | (jobs.gpu_type == "T4"))).any()
    assert not (jobs.preemption_delay_s < 0).any()
    assert np.isfinite(jobs.total_gpu_s)


@given(st.lists(CELLS, min_size=1, max_size=8), st.sampled_from([".csv", ".parquet"]))
def test_writing_and_reading_again_changes_nothing(rows: list[dict[str, object]], ending: str) -> None:
    """A trace survives the disk in either format, and defaults fill only what was unknown."""
    jobs = read(rows)
    if jobs is None:
        return
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"jobs{ending}"
        write_jobs(jobs, path)
        again = read_jobs(path)
    for name in (
        "job_id",
        "tenant",
        "gpus",
        "gpu_milli",
        "min_gpus",
        "slo_class",
        "mig_profile",
        "submit_s",
        "duration_s",
    ):
        assert getattr(again, name).tolist() == getattr(jobs, name).tolist(), name
    assert np.array_equal(again.limit_s, jobs.limit_s, equal_nan=True)
    filled = load_defaults().fill(jobs)
    given_class = jobs.slo_class != ""
    assert (filled.slo_class[given_class] == jobs.slo_class[given_class]).all()
    assert filled.assumed["slo_class"] == int((~given_class).sum()) if not given_class.all() else True


@given(st.lists(CELLS, min_size=2, max_size=8), st.randoms(use_true_random=False))
def test_the_order_of_rows_does_not_matter(rows: list[dict[str, object]], random: object) -> None:
    """Shuffling a file whose ids are unique gives the same trace."""
    unique = list({row["job_id"]: row for row in rows}.values())
    shuffled = list(unique)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    first, second = read(unique), read(shuffled)
    assert (first is None) == (second is None)
    if first is not None and second is not None:
        assert first.job_id.tolist() == second.job_id.tolist()
        assert first.submit_s.tolist() == second.submit_s.tolist()
        assert dict(first.unusable_by_reason) == dict(second.unusable_by_reason)
