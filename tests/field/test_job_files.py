"""Job files of others: percent of a GPU, and one file that two commands read."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autopilot.core.model.errors import InputError
from simulator.traces.importing import import_trace
from simulator.traces.job_trace import JobTrace
from simulator.traces.jobs import read_jobs
from simulator.traces.own_columns import parse_columns
from tests.kits.tries import tries

PAI = """job_name,user,status,start_time,end_time,plan_cpu,plan_gpu
b1,u-01,Terminated,494465.0,499465.0,600.0,50.0
b2,u-02,Failed,494500.0,494600.0,50.0,100.0
b3,u-03,Terminated,494700.0,498700.0,9600.0,800.0
b4,u-03,Terminated,494700.0,498700.0,,250.0
"""
OURS = "job_id,tenant,submit_s,duration_s,{}\na,t,0,100,{}\nb,t,1,100,{}\nc,t,2,100,{}\n"


def jobs_of(folder: Path, text: str, columns: str = "") -> JobTrace:
    """What `simulate --jobs` reads from a file."""
    path = folder / "jobs.csv"
    path.write_text(text, encoding="utf-8")
    return read_jobs(path, columns=parse_columns(columns))


@pytest.mark.parametrize(
    ("head", "cells", "columns"),
    [
        ("plan_gpu", ("50", "100", "800"), ""),
        ("Plan GPU", ("50.0", "100.0", "800.0"), ""),
        ("plan_gpu", ("50", "100", "800"), "gpus=plan_gpu"),
        ("share", ("50", "100", "800"), "gpus=share%"),
        ("share %", ("50", "100", "800"), "gpus=share %"),
        ("gpus", ("50%", "100 %", "800%"), ""),
        ("num_gpus", ("0.5", "1", "8"), ""),
    ],
)
def test_percent_of_a_gpu_is_read_as_gpus(head: str, cells: tuple[str, ...], columns: str, tmp_path: Path) -> None:
    """50, 100 and 800 percent are half a GPU, one GPU and eight; by a public name, a mapping, or the sign."""
    jobs = jobs_of(tmp_path, OURS.format(head, *cells), columns)
    assert jobs.gpu_share.tolist() == [0.5, 1.0, 8.0]
    assert any("percent" in note for note in jobs.notes) == (head != "num_gpus")


def test_the_trace_of_alibaba_is_read_with_its_columns_named(tmp_path: Path) -> None:
    """Its start is when it was submitted, one column for two of ours. 2.5 GPUs are no size of a job."""
    jobs = jobs_of(tmp_path, PAI, "job_id=job_name,submit_s=start_time,start_s=start_time")
    assert (jobs.gpu_share.tolist(), jobs.cpus.tolist()) == ([0.5, 1.0, 8.0], [6.0, 0.5, 96.0])
    assert jobs.duration_s.tolist() == [5000, 100, 4000]
    assert dict(jobs.unusable_by_reason) == {"gpus is neither whole nor a share of one GPU": 1}


def test_percent_of_what_has_none_is_refused() -> None:
    """A time or a number of nodes in percent means nothing."""
    with pytest.raises(InputError, match="only gpus, min_gpus, cpus"):
        parse_columns("duration_s=run%")


def test_bounds_of_elastic_jobs_may_be_in_percent_too(tmp_path: Path) -> None:
    """A gang of two GPUs that runs from one."""
    text = OURS.format("plan_gpu,least", "200,100", "200,200", "100,100")
    assert jobs_of(tmp_path, text, "min_gpus=least%").min_gpus.tolist() == [1, 2, 1]


MOMENTS = st.integers(-20, 80).map(lambda quarter: datetime(2026, 11, 1, tzinfo=UTC) + timedelta(minutes=15 * quarter))
ROWS = st.tuples(
    MOMENTS,
    st.one_of(MOMENTS, st.just(None)),
    st.one_of(MOMENTS, st.just(None)),
    st.sampled_from(["00:20:00", "05:00:00", "1-00:00:00", "", "00:00:00"]),
    st.sampled_from(["COMPLETED", "CANCELLED by 7", "RUNNING", "PENDING", "REQUEUED", "TIMEOUT"]),
    st.sampled_from(["1-00:00:00", "UNLIMITED", "Partition_Limit", "30:00", ""]),
    st.sampled_from(["cpu=8,gres/gpu=4", "gres/gpu:a100=2,gres/gpu:h100=1", "cpu=4", ""]),
)


@given(st.lists(ROWS, min_size=1, max_size=5))
@settings(max_examples=tries(10, 500), deadline=None)
def test_both_readers_of_an_accounting_read_the_same(rows: list[tuple[object, ...]]) -> None:
    """`traces import slurm` writes the jobs that `simulate --jobs` runs: shapes, times, limits and states."""
    lines = ["JobID|User|Account|Submit|Start|End|Elapsed|State|Timelimit|AllocTRES"]
    for number, (submit, start, end, *rest) in enumerate(rows):
        times = (f"{each:%Y-%m-%dT%H:%M:%S}" if isinstance(each, datetime) else "None" for each in (submit, start, end))
        lines.append("|".join((str(number), "u", "lab", *times, *map(str, rest))))
    with TemporaryDirectory() as folder:
        source, out = Path(folder, "sacct.txt"), Path(folder, "out.csv")
        source.write_text("\n".join(lines) + "\n", encoding="utf-8")
        try:
            direct = read_jobs(source)
        except InputError:
            with pytest.raises(InputError):
                import_trace("slurm", source, out)
            return
        import_trace("slurm", source, out)
        written = read_jobs(out)
    for name in ("job_id", "tenant", "duration_s", "gpus", "gpu_milli", "status"):
        assert getattr(written, name).tolist() == getattr(direct, name).tolist(), name
    assert (written.submit_s - direct.submit_s).tolist() == [0.0] * len(direct)
    assert written.limit_s.tolist() == pytest.approx(direct.limit_s.tolist(), nan_ok=True)
    assert (written.duration_s > 0).all()


HEAD = "JobID|User|Account|Submit|Start|End|Elapsed|State|AllocTRES"


def _line(job: str, tres: str, hour: int = 0, state: str = "COMPLETED", ran: str = "01:00:00") -> str:
    times = "|".join(f"2026-03-01T{hour:02}:{minute:02}:00" for minute in (0, 1))
    return f"{job}|u|lab|{times}|2026-03-01T{hour + 1:02}:01:00|{ran}|{state}|{tres}"


@pytest.mark.parametrize(
    ("head", "lines", "expected"),
    [
        (HEAD, [_line("7", "gres/gpu=4"), _line("7.0+0", "gres/gpu=4"), _line("7.batch", "")], {"7": (4, 3600)}),
        (HEAD, [_line("8+1", "cpu=8"), _line("8+0", "gres/gpu=4"), _line("8+2", "gres/gpu=2")], {"8": (6, 3600)}),
        (
            HEAD,
            [_line("9", "gres/gpu=4", 2, ran="02:00:00"), _line("9", "gres/gpu=4", 0, "NODE_FAIL", "00:30:00")],
            {"9": (4, 7200)},
        ),
        (
            HEAD.replace("AllocTRES", "ReqTRES|AllocTRES"),
            [_line("10", "cpu=1,mem=5G|cpu=36,gres/gpu:t=4,gres/gpu=4"), _line("11", "gres/gpu=2|")],
            {"10": (4, 3600), "11": (2, 3600)},
        ),
        (
            HEAD.replace("AllocTRES", "ReqGRES"),
            [_line("12", "gpu"), _line("13", "gpu:a100"), _line("14", "gpu:t:2(IDX:0,3)"), _line("15", "gpumem=9")],
            {"12": (1, 3600), "13": (1, 3600), "14": (2, 3600)},
        ),
        (HEAD.replace("JobID", "JobIDRaw"), [_line("16", "gres/gpu:1g.10gb=3,gres/gpu=3")], {"16": (3, 3600)}),
    ],
    ids=["steps", "heterogeneous", "requeued", "exclusive", "gres", "raw"],
)
def test_rows_of_an_accounting_are_jobs(
    head: str, lines: list[str], expected: dict[str, tuple[int, float]], tmp_path: Path
) -> None:
    """GPUs and run time by job, in both commands; what is allocated counts (PrincetonUniversity/jobstats#6)."""
    source, out = tmp_path / "sacct.txt", tmp_path / "out.csv"
    source.write_text("\n".join([head, *lines]) + "\n", encoding="utf-8")
    import_trace("slurm", source, out)
    for jobs in (read_jobs(source), read_jobs(out)):
        found = zip(jobs.job_id, jobs.gpus.tolist(), jobs.duration_s.tolist(), strict=True)
        assert {job: (gpus, duration_s) for job, gpus, duration_s in found} == expected


def test_limits_in_minutes_and_files_without_gpus(tmp_path: Path) -> None:
    """`TimelimitRaw` counts minutes. A dump without TRES says nothing of GPUs, and both commands refuse it."""
    path = tmp_path / "sacct.txt"
    path.write_text(f"{HEAD}|TimelimitRaw\n{_line('1', 'gres/gpu=1')}|1440\n", encoding="utf-8")
    assert read_jobs(path).limit_s.tolist() == [86_400]
    path.write_text(f"{HEAD.removesuffix('|AllocTRES')}\n{_line('1', '').removesuffix('|')}\n", encoding="utf-8")
    for read in (lambda: read_jobs(path), lambda: import_trace("slurm", path, tmp_path / "out.csv")):
        with pytest.raises(InputError, match="gpus"):
            read()
