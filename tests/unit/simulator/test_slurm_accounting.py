"""Recordings of a real Slurm against the truth of its database, by both readers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from autopilot.app.options import SimulateOptions
from autopilot.app.runs.simulate import simulate
from autopilot.core.model.errors import InputError
from simulator.traces.checks import Capacity
from simulator.traces.importers.common import ImportOptions
from simulator.traces.importing import import_trace
from simulator.traces.jobs import read_jobs
from simulator.traces.slurm.accounting import read_accounting
from simulator.traces.slurm.columns import tasks_of
from simulator.traces.slurm.replay import Site
from simulator.traces.slurm.tres import gpus_of, split_mig
from tests.kits.slurm_month import generate, print_sacct

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


def _months(jobs: int, seeds: range, folder: Path) -> None:
    """Every duration, width, model, limit, name and wait of generated dumps equals the truth."""
    for seed in seeds:
        month = generate(jobs, seed)
        text, form = print_sacct(month, seed, ("Europe/Berlin", "America/New_York")[seed % 2])
        path = folder / f"dump-{seed}"
        path.write_text(text, encoding="utf-8")
        frame = read_accounting(path, timezone=str(form["zone"])).frame
        frame = frame.assign(base=frame.job_id.str.split("#").str[0], wait=frame.start_s - frame.eligible_s)
        frame = frame.sort_values(["base", "start_s"], kind="stable", na_position="last")
        rows = [row for row in month.records if row.start is not None or row.end is None]
        rows.sort(key=lambda row: (row.job_id, np.inf if row.start is None else row.start))
        nan = float("nan")
        expected: dict[str, list[Any]] = {
            "base": [row.job_id for row in rows],
            "name": [row.name for row in rows],
            "duration_s": [nan if row.run_s is None else row.run_s for row in rows],
            "gpus": [row.gpus if row.start else row.asked for row in rows],
            "limit_s": [nan if row.limit is None else row.limit for row in rows],
            "wait": [row.start - row.eligible if row.start and row.eligible else nan for row in rows],
            "status": [row.state.split()[0].lower() for row in rows],
        }
        for name, values in expected.items():
            found = frame[name].tolist()
            same = found == values if isinstance(values[0], str) else found == pytest.approx(values, nan_ok=True)
            assert same, (seed, form, name)
        models = [(row.model, row.profile) for row in rows if row.start]
        began = frame[frame.start_s.notna()]
        assert list(zip(began.gpu_type, began.mig_profile.fillna(""), strict=True)) == models, (seed, form)


def test_a_generated_month_in_any_form_equals_its_truth(tmp_path: Path) -> None:
    """Fields, order, separator, dates and lists as other sites print them."""
    _months(120, range(4), tmp_path)


@pytest.mark.e2e
def test_a_month_of_five_thousand_jobs_equals_its_truth(tmp_path: Path) -> None:
    """The same for the size of a site."""
    _months(5_000, range(6), tmp_path)


def test_the_published_log_equals_its_own_columns(
    shared_data: Path | None, ran_on: Callable[[str], None], tmp_path: Path
) -> None:
    """Durations, widths and the time from submit to start of MIT Supercloud's jobs are those of its columns."""
    if shared_data is None:
        ran_on("synthetic")
        source = tmp_path / "log.parquet"
        columns = {"submit_s": [0.0, 5.0], "start_s": [1.0, 8.0], "end_s": [11.0, 28.0], "duration_s": [10.0, 20.0]}
        pd.DataFrame({"job_id": ["a", "b"], "tenant": ["t", "u"], **columns, "gpus": [1.0, 2.0]}).to_parquet(source)
    else:
        ran_on("mit_supercloud_slurm")
        source = shared_data / "mit_supercloud_slurm" / "jobs.parquet"
    import_trace("slurm", source, tmp_path / "out.parquet")
    theirs, ours = (pd.read_parquet(path).set_index("job_id") for path in (source, tmp_path / "out.parquet"))
    ours = ours.loc[theirs.index]
    for name in ("duration_s", "gpus"):
        np.testing.assert_array_equal(ours[name], theirs[name])
    np.testing.assert_array_equal(ours.start_s - ours.submit_s, theirs.start_s - theirs.submit_s)


def test_recorded_starts_stand_beside_the_policies_and_activity_is_not_invented(tmp_path: Path) -> None:
    """Waits as recorded, from eligible; a job file without telemetry has no SM activity in any figure."""
    path = tmp_path / "sacct.txt"
    lines = ["JobID|User|Account|State|Submit|Eligible|Start|End|ElapsedRaw|AllocTRES"]
    for job, (eligible, start, ran) in enumerate(((0, 0, 600), (100, 160, 300), (200, 500, 300))):
        times = "|".join(str(1_790_000_000 + each) for each in (0, eligible, start, start + ran))
        lines.append(f"{job}|u|lab|COMPLETED|{times}|{ran}|gres/gpu:h100=4")
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    done = simulate(SimulateOptions(jobs=path, cluster="1x8", policies=("fifo",), series=False))
    recorded = done.document()["as_recorded"]
    assert recorded["jobs"]["queue_wait_s_mean"] == pytest.approx((0 + 60 + 300) / 3)
    assert (recorded["jobs"]["longest_wait_s"], recorded["makespan_s"]) == (300, 800)
    assert recorded["utilization"]["allocation_ratio"] == pytest.approx(1200 * 4 / (800 * 8))
    result = done.policies[0].result
    assert result["jobs"]["queue_wait_s_mean"] == pytest.approx((0 + 0 + 200) / 3)
    assert result["utilization"]["hardware_ratio"] is None
    assert result["utilization"]["to_last_arrival"]["real_utilization_ratio"] is None
    assert any("no SM activity" in note for note in done.world.notes)
    assert any("models of the jobs (h100) do not count" in note for note in done.world.notes)
    assert done.world.start_s == 1_790_000_000


def test_open_jobs_run_on_and_are_asked_for(tmp_path: Path) -> None:
    """A running job lasts as ended ones like it that ran longer, at most its limit; a waiting one as those; a held one
    asks for nothing. What was assumed is said.
    """
    path = tmp_path / "sacct.txt"
    lines = ["JobID|User|Account|State|Submit|Eligible|Start|End|ElapsedRaw|TimelimitRaw|AllocTRES|ReqTRES"]

    def add(job: int, state: str, eligible: object, start: object, end: object, limit_min: object, user: str) -> None:
        ran = (end if isinstance(end, int) else 3010) - start if isinstance(start, int) else 0
        times = "|".join(
            f"{1_790_000_000 + each}" if isinstance(each, int) else str(each) for each in (eligible, start, end)
        )
        tres = "gres/gpu=8" if isinstance(start, int) else ""
        lines.append(f"{job}|{user}|lab|{state}|1790000000|{times}|{ran}|{limit_min}|{tres}|gres/gpu=8")

    for job, ran in enumerate((100, 1000, 2000, 3000)):
        add(job, "COMPLETED", 0, 10, 10 + ran, 100, "ann")
    add(4, "RUNNING", 0, 2500, "Unknown", 100, "ann")  # for 510 s at 3010: 1000, 2000 and 3000 ran longer
    add(5, "RUNNING", 0, 2500, "Unknown", 20, "ann")  # its limit comes first
    add(6, "PENDING", 2600, "Unknown", "Unknown", 100, "ann")  # 100 to 3000
    add(7, "RUNNING", 0, 10, "Unknown", 90, "bob")  # for 3000 s: nobody ran longer
    add(8, "RUNNING", 0, 10, "Unknown", "", "bob")  # nor has it a limit
    add(9, "PENDING", "Unknown", "Unknown", "Unknown", 100, "ann")
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    jobs = read_jobs(path)
    lasts = dict(zip(jobs.job_id.tolist(), jobs.duration_s.tolist(), strict=True))
    assert [lasts.get(str(job)) for job in range(4, 10)] == [2000, 1200, 1500, 5400, 6000, None]
    said = "; ".join(jobs.notes)
    for words in (
        "4 jobs run and 1 waits",
        "at most its limit (3)",
        "its limit (1)",
        "as it ran (1)",
        "1 job waits for a hold",
    ):
        assert words in said
    done = simulate(SimulateOptions(jobs=path, cluster="9x8", policies=("fifo",), telemetry="off", series=False))
    assert done.policies[0].result["jobs"]["finished"] == 9
    assert done.document()["as_recorded"]["jobs"]["finished"] == 4


def test_slices_of_a_short_name_are_not_said_to_be_unusable(tmp_path: Path) -> None:
    """`a100_1g.10gb` is a slice of some A100; one that no A100 has is named."""
    path = tmp_path / "sacct.txt"
    rows = [
        f"{job}|u|COMPLETED|1790000000|1790000001|1790000061|00:01:00|gres/gpu:a100_{profile}=1"
        for job, profile in enumerate(("1g.10gb", "1g.5gb", "1g.12gb"))
    ]
    path.write_text("\n".join(["JobID|User|State|Submit|Start|End|Elapsed|AllocTRES", *rows, ""]), encoding="utf-8")
    report = import_trace("slurm", path, tmp_path / "out.csv")
    assert report.unusable_by_reason == {"mig_profile exists on no GPU model that it may use": 1}


def test_partitions_hold_jobs_to_pools(tmp_path: Path) -> None:
    """A partition that is mapped decides the GPU model; a short name of the accounting means the models alike."""
    path = tmp_path / "sacct.txt"
    path.write_text(
        "JobID|User|State|Submit|Start|End|Elapsed|Partition|AllocTRES\n"
        "1|u|COMPLETED|1790000000|1790000001|1790000061|00:01:00|big|gres/gpu=4\n"
        "2|u|COMPLETED|1790000000|1790000001|1790000061|00:01:00|other|gres/gpu:nvidia_h100=4\n",
        encoding="utf-8",
    )
    jobs = read_jobs(
        path,
        capacity=Capacity(16, {"A100-80GB": 8, "H100-80GB": 8}),
        site=Site(partitions={"big": ("A100-80GB",)}),
    )
    assert jobs.gpu_type.tolist() == ["A100-80GB", "H100-80GB"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("JobID|State|Submit|Start|End|AllocTRES\n1|COMPLETED|1|2|3|x=1\n", ""),
        ("JobID|State|Elapsed|AllocTRES\n1|COMPLETED|1|gres/gpu=1\n", "has no Submit, Start, End"),
        ("JobID|State|Submit|Start|End\n1|COMPLETED|1|2|3\n", "ask sacct for AllocTRES and ReqTRES"),
        ("JobID      State\n---------- -----\n1 COMPLETED\n", "--parsable2"),
        ("1|COMPLETED|2|3\n", "do not use --noheader"),
        ("JobID|State|Submit|Start|End|AllocTRES\n1|COMPLETED|14:35|2|3|x=1\n", "SLURM_TIME_FORMAT=%s"),
        ('{"jobs": []}', "lists no jobs"),
        ('{"jobs": [{"job_id": 1', "not a readable JSON document"),
        ("", "empty"),
    ],
)
def test_what_cannot_be_read_names_the_remedy(text: str, words: str, tmp_path: Path) -> None:
    """One line, with what to ask `sacct` for."""
    path = tmp_path / "dump"
    path.write_text(text, encoding="utf-8")
    if not words:
        assert len(read_accounting(path).frame) == 1
        return
    with pytest.raises(InputError) as caught:
        import_trace("slurm", path, tmp_path / "out.csv")
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)
    if "parsable2" in words:  # its header is no row of a CSV file
        with pytest.raises(InputError, match=words):
            read_jobs(path)


def test_two_lists_between_commas_are_told_apart(tmp_path: Path) -> None:
    """As `sacct --parsable --delimiter=,` of a real Slurm prints shards and an exclusive node."""
    path = tmp_path / "sacct.txt"
    path.write_text(
        "JobID,JobName,Account,State,Submit,Start,End,ElapsedRaw,ReqTRES,AllocTRES,\n"
        "29,shards,physics,COMPLETED,2026-11-29T21:43:44,2026-11-29T21:44:01,2026-11-29T21:44:09,8,"
        "billing=1,cpu=1,gres/shard=3,mem=1000M,node=1,billing=1,cpu=1,gres/shard=3,node=1,\n"
        "38,alone, or so,physics,COMPLETED,2026-11-29T21:43:45,2026-11-29T21:44:24,2026-11-29T21:44:30,6,"
        "billing=1,cpu=1,gres/gpu:a100=2,gres/gpu=2,node=1,billing=32,cpu=32,gres/gpu:a100=8,gres/gpu=8,node=1,\n",
        encoding="utf-8",
    )
    frame = read_accounting(path).frame
    assert (frame.shards.tolist()[0], frame.gpus.tolist()[1], frame.name.tolist()[1]) == (3, 8, "alone, or so")


@pytest.mark.parametrize(
    ("tres", "expected"),
    [
        ("billing=8,gres/gpu:a100=4,gres/gpu=4", (4, ("a100",), "", 0)),
        ("gres/gpu:a100=2,gres/gpu:h100=2", (4, ("a100", "h100"), "", 0)),
        ("gres/gpu:nvidia_a100_1g.5gb=3,gres/gpu=3", (3, ("nvidia_a100",), "1g.5gb", 0)),
        ("gres/gpu:1g.10gb+me=1", (1, (), "1g.10gb+me", 0)),
        ("gres/mig-3g.20gb=2", (2, (), "3g.20gb", 0)),
        ("gpu:t:2(IDX:0,3)", (2, ("t",), "", 0)),
        ("gpu", (1, (), "", 0)),
        ("cpu=1,gres/shard=2", (0, (), "", 2)),
        ("gres/gpumem=9,gres/gpuutil=50,cpu=4", (0, (), "", 0)),
    ],
)
def test_lists_of_gpus(tres: str, expected: tuple[object, ...]) -> None:
    """The plain count, else the sum of the types; models, slices and shards apart."""
    found = gpus_of(tres)
    assert (found.count, found.models, found.profile, found.shards) == expected


def test_arrays_that_wait_are_counted_by_task() -> None:
    """Ranges, steps, limits and the mask that newer versions print."""
    assert tasks_of("0-7%2") == list(range(8))
    assert tasks_of("0xFF") == list(range(8))
    assert tasks_of("1,4,8-12:2") == [1, 4, 8, 10, 12]
