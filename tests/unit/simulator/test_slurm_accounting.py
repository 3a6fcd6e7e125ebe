"""Recordings of a real Slurm against the truth of its database, by both readers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from simulator.traces.importers.common import ImportOptions
from simulator.traces.importing import import_trace
from simulator.traces.jobs import read_jobs
from simulator.traces.slurm.replay import Site
from simulator.traces.slurm.tres import split_mig

DATA = Path(__file__).resolve().parents[2] / "data" / "slurm" / "accounting"
FILES = {
    "sacct-all-epoch.txt.gz": ("truth", "shown", ""),
    "sacct-dup-steps-epoch.txt.gz": ("truth", "shown_dup", ""),
    "sacct-alloc-only.txt.gz": ("truth", "shown", ""),
    "sacct-req-only.txt.gz": ("truth", "shown", ""),
    "sacct.json.gz": ("truth", "shown_dup", ""),
    "squeue.json.gz": ("truth", "shown", ""),
    "dst-autumn-berlin-dup-steps.txt.gz": ("truth-autumn", "shown_dup", "Europe/Berlin"),
}


def truth_of(name: str, shown: str) -> pd.DataFrame:
    """The records that a dump lists."""
    truth = pd.read_csv(DATA / f"{name}.csv.gz", dtype=str, keep_default_na=False)
    return truth[truth[shown] == "1"]


def numbers(column: pd.Series) -> np.ndarray:
    """Numbers, NaN where empty."""
    return pd.to_numeric(column, errors="coerce").to_numpy(np.float64)


@pytest.mark.parametrize("file", FILES)
def test_a_dump_is_read_as_the_database_has_it(file: str, tmp_path: Path) -> None:
    """Run time, waiting, width, model, slices, limits, states and owners of each record; open jobs are open.

    `simulate --jobs` reads the dump, and the file that the import wrote of it, as the same jobs.
    """
    truth_name, shown, zone = FILES[file]
    out = tmp_path / "out.csv"
    import_trace("slurm", DATA / file, out, options=ImportOptions(timezone=zone))
    rows = pd.read_csv(out, dtype=str, keep_default_na=False)
    truth = truth_of(truth_name, shown)
    ended = truth[(truth.start != "") & (truth.end != "")]
    rows["base"] = rows.job_id.str.split("#").str[0]
    if (
        file == "squeue.json.gz"
    ):  # one row, the last, of a job that was requeued or resized; states as slurmctld has them
        ended = ended[
            (ended["last"] == "1") & (ended.resized == "0") & ~ended.state.isin(["OUT_OF_MEMORY", "BOOT_FAIL"])
        ]
    rows["turn"] = numbers(rows.start_s)
    rows = rows.sort_values("turn", kind="stable")
    rows["nth"] = rows.groupby("base").cumcount()
    ended = ended.assign(turn=numbers(ended.start), paused_s=ended.suspended_s).sort_values("turn", kind="stable")
    ended["nth"] = ended.groupby("job_id").cumcount()
    both = ended.merge(rows, left_on=["job_id", "nth"], right_on=["base", "nth"], how="left", suffixes=("_true", ""))
    assert not both.base.isna().any(), both[both.base.isna()].job_id_true.tolist()
    whole = both[both.resized == "0"]
    ran = both[both.paused_s == "0"] if "req" in file else both  # without Elapsed nobody knows of suspensions
    np.testing.assert_allclose(numbers(ran.duration_s), numbers(ran.plan_run_s), atol=0.5)
    if "eligible_s" in whole and "alloc" not in file:
        known = whole[whole.eligible != ""]
        np.testing.assert_allclose(
            numbers(known.start_s) - numbers(known.eligible_s), numbers(known.plan_wait_s), atol=1
        )
    first = both[both.incarnation == "1"]
    np.testing.assert_allclose(numbers(first.submit_s), numbers(first.submit), atol=1)
    plain = both[both.shards_true == "0"]
    np.testing.assert_allclose(numbers(plain.gpus), numbers(plain["gpus_requested" if "req" in file else "gpus_true"]))
    assert (numbers(both.shards) == numbers(both.shards_true))[numbers(both.shards_true) > 0].all()
    assert (both.tenant == both.account).all()
    assert both.status.tolist() == both.state.str.lower().tolist()
    np.testing.assert_allclose(numbers(both.limit_s), numbers(both.limit_s_true), equal_nan=True)
    if "req" not in file:
        for types, model, profile in zip(both.gpu_types, both.gpu_type, both.mig_profile, strict=True):
            for kind, slice_of in (split_mig(each.rsplit(":", 1)[0]) for each in types.split(";") if each):
                assert kind in model.split("|")
                assert slice_of in profile.split("|")
    waiting = truth[(truth.end == "") & (truth.gpus != "0")]
    still = rows[rows.base.isin(waiting.job_id)].groupby("base").last()
    assert len(still) == len(waiting)
    assert (still.duration_s == "").all()
    direct, written = read_jobs(DATA / file, site=Site(timezone=zone)), read_jobs(out)
    assert direct.job_id.tolist() == written.job_id.tolist()
    for name in ("submit_s", "duration_s", "gpus", "gpu_milli", "limit_s", "nodes"):
        np.testing.assert_array_equal(getattr(direct, name), getattr(written, name), name)
    for name in ("tenant", "user", "gpu_type", "mig_profile", "status"):
        assert getattr(direct, name).tolist() == getattr(written, name).tolist(), name
    assert direct.start_s == written.start_s == pytest.approx(numbers(rows.submit_s).min(), abs=400_000)


def test_components_start_together_and_the_last_run_counts() -> None:
    """A heterogeneous job is one gang; a requeued job arrives with its first submit and runs as its last run did."""
    jobs = read_jobs(DATA / "sacct-dup-steps-epoch.txt.gz")
    at = {job: number for number, job in enumerate(jobs.job_id.tolist())}
    assert "7+0" not in at
    assert jobs.gpus[at["7"]] == 4
    assert (jobs.duration_s[at["59"]], jobs.start_s + jobs.submit_s[at["59"]]) == (30, 1_795_909_387)
    assert {"204", "204#2"} <= set(at)
    assert jobs.submit_s[at["204#2"]] - jobs.submit_s[at["204"]] == 22
    said = "; ".join(jobs.notes)
    for words in ("work that was lost", "as one gang each", "arrive when they became eligible", "waiting"):
        assert words in said
