"""Job files: what is read, in which order, what is refused and why."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from autopilot.core.model.errors import InputError
from simulator.inference.requests import read_requests
from simulator.traces.checks import Capacity
from simulator.traces.job_trace import JobTrace
from simulator.traces.jobs import jobs_from_frame, read_jobs, write_jobs

HEADER = "job_id,tenant,submit_s,duration_s,gpus"


def job_file(folder: Path, *rows: str, header: str = HEADER, end: str = "\n") -> Path:
    """A CSV file with these rows."""
    path = folder / "jobs.csv"
    path.write_text("\n".join([header, *rows]) + end, encoding="utf-8")
    return path


def one_row(**values: Any) -> JobTrace:
    """A good job beside one with these values, read together."""
    base = {"job_id": "a", "tenant": "t", "submit_s": 0, "duration_s": 10, "gpus": 1}
    good = base | {"job_id": "good"} | {key: None for key in values if key not in base}
    return jobs_from_frame(pd.DataFrame([base | values, good]), Path("x.csv"))


def test_jobs_are_sorted_shifted_and_truncated(tmp_path: Path) -> None:
    """Rows come by submit time, then id; the first submit is 0 and times are whole seconds."""
    path = job_file(tmp_path, "c,t,130.9,20.9,1", "b,t,100.5,10,2", "a,t,100.5,10,4")
    jobs = read_jobs(path)
    assert jobs.job_id.tolist() == ["a", "b", "c"]
    assert jobs.submit_s.tolist() == [0, 0, 30]
    assert jobs.duration_s.tolist() == [10, 10, 20]
    assert jobs.total_gpu_s == 4 * 10 + 2 * 10 + 20
    assert read_jobs(path, whole_seconds=False).duration_s.tolist() == [10, 10, 20.9]


@pytest.mark.parametrize(
    ("ids", "order"),
    [
        (["10", "9", "100"], ["9", "10", "100"]),
        (["job-10", "job-9"], ["job-9", "job-10"]),
        (["philly-000010", "philly-000009"], ["philly-000009", "philly-000010"]),
        (["b", "a1", "a"], ["a", "a1", "b"]),
    ],
)
def test_numbers_in_ids_sort_as_numbers(tmp_path: Path, ids: list[str], order: list[str]) -> None:
    """Jobs of one instant come in the order of their ids, a number at the end compared as a number."""
    path = job_file(tmp_path, *(f"{each},t,0,10,1" for each in ids))
    assert read_jobs(path).job_id.tolist() == order


def test_the_benchmark_work_is_reproduced(shared_data: Path | None, ran_on: Any, tmp_path: Path) -> None:
    """Two tenants of Philly have exactly the published numbers of jobs and GPU-seconds."""
    if shared_data is None:
        ran_on("synthetic")
        path = job_file(tmp_path, "1,vc_6c71a0,5,10,2", "2,other,0,10,1", "3,vc_6c71a0,9,1,1")
        jobs = read_jobs(path, tenants=["vc_6c71a0"])
        assert (len(jobs), jobs.total_gpu_s, jobs.span_s, jobs.unusable) == (2, 21, 4, 0)
        return
    ran_on("philly_jobs")
    path = shared_data / "philly_jobs" / "jobs.parquet"
    first = read_jobs(path, tenants=["vc_6c71a0"], capacity=Capacity(56))
    assert (len(first), first.total_gpu_s, first.unusable) == (9054, 232_258_475, 0)
    assert (first.submit_s[0], first.span_s) == (0, 4_542_401)
    assert len(read_jobs(path, tenants=["vc_b436b2"])) == 7207
    both = read_jobs(path, tenants=["vc_6c71a0", "vc_b436b2"])
    assert len(both) == 16_261
    assert (np.diff(both.submit_s) >= 0).all()


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"submit_s": -1}, "submit_s is negative"),
        ({"submit_s": float("inf")}, "submit_s is infinite"),
        ({"submit_s": None}, "submit_s is not known"),
        ({"submit_s": 1.7e12}, "submit_s is above 1e+10"),
        ({"duration_s": float("nan")}, "duration_s is not known"),
        ({"duration_s": -5}, "duration_s is negative"),
        ({"duration_s": 0.5}, "duration_s is below 1 s"),
        ({"duration_s": 1e12}, "duration_s is above 3.2e+09"),
        ({"gpus": 0}, "no GPU requested"),
        ({"gpus": -1}, "gpus is negative"),
        ({"gpus": 1e9}, "gpus is above 1e+06"),
        ({"gpus": 1.5}, "gpus is neither whole nor a share of one GPU"),
        ({"gpus": 0.0001}, "gpus is below a thousandth of one GPU"),
        ({"job_id": "good"}, "job_id is repeated"),
        ({"job_id": None}, "job_id is missing"),
        ({"start_s": 20, "end_s": 10}, "end before start"),
        ({"submit_s": 5, "start_s": 4}, "start before submit"),
        ({"slo_class": "gold"}, "unknown slo_class"),
        ({"topology": "none"}, "unknown topology"),
        ({"mig_profile": "9g.99gb"}, "illegal mig_profile"),
        ({"gpus": 2, "gpu_milli": 500}, "gpu_milli is a share, but gpus is above 1"),
        ({"gpus": 0.5, "gpu_milli": 300}, "gpus and gpu_milli disagree"),
        ({"gpus": 2, "min_gpus": 3}, "min_gpus is above gpus"),
        ({"limit_s": -3}, "limit_s is negative"),
        ({"limit_s": 0}, "limit_s is below 1"),
        ({"memory_mib": 1.5}, "memory_mib is not a whole number"),
        ({"checkpoint_gib": float("inf")}, "checkpoint_gib is infinite"),
        ({"restart_s": -1}, "restart_s is negative"),
        ({"preemption_delay_s": -1}, "preemption_delay_s is negative"),
        ({"preemption_delay_s": 1e12}, "preemption_delay_s is above 3.2e+09"),
        ({"priority": -1}, "priority is negative"),
        ({"priority": 2**31}, "priority is above 2.14748e+09"),
        ({"priority": 0.5}, "priority is not a whole number"),
        ({"min_gpus": 0}, "min_gpus is below 1"),
        ({"gpu_milli": 0}, "gpu_milli is below 1"),
        ({"share": "pair"}, "share is declared for untrusted work"),
        ({"share": "dev", "trust": "trusted", "gpus": 5}, "share is declared for more than 4 GPUs"),
        ({"share": "dev", "trust": "trusted", "gpus": 0.5}, "share is declared for a part of a GPU"),
        ({"share": "half", "trust": "trusted"}, "unknown share"),
        ({"mig_profile": "1g.10gb", "gpu_milli": 500}, "mig_profile with a share of a GPU"),
        ({"mig_profile": "1g.10gb", "topology": "island"}, "topology is an NVLink island for MIG instances"),
        (
            {"mig_profile": "1g.10gb", "gpu_type": "T4|A30-24GB"},
            "mig_profile exists on no GPU model that it may use",
        ),
        (
            {"gpu_memory_gib": 96, "gpu_type": "H100-80GB"},
            "gpu_memory_gib is more than any GPU or MIG instance that it may use has",
        ),
    ],
)
def test_an_unusable_row_is_counted_by_its_reason(values: dict[str, Any], reason: str) -> None:
    """A row that cannot be replayed is left out under one reason, and the good row stays."""
    jobs = one_row(**values)
    assert dict(jobs.unusable_by_reason) == {reason: 1}
    assert len(jobs) == 1
    assert jobs.rows == 2
    assert jobs.first_unusable[reason].partition(",")[0] in ("line 2", "line 3")


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("column", ["gpus", "min_gpus", "gpu_milli", "priority", "nodes", "memory_mib", "duration_s"])
@pytest.mark.parametrize(("value", "what"), [("1e308", "above"), ("-1e308", "negative")])
def test_a_number_out_of_bounds_is_named_with_its_row_and_value(
    tmp_path: Path, column: str, value: str, what: str
) -> None:
    """It is refused by its bound alone: no library warns of an overflow."""
    header = HEADER if column in HEADER else f"{HEADER},{column}"
    names = header.split(",")
    good = dict(zip(names, ["a", "t", "0", "10", "1"], strict=False))
    rows = (",".join((good | more).get(name, "") for name in names) for more in ({}, {"job_id": "b", column: value}))
    jobs = read_jobs(job_file(tmp_path, *rows, header=header))
    ((reason, where),) = jobs.first_unusable.items()
    assert reason.startswith(f"{column} is {what}")
    assert where == f"line 3, value {float(value):g}"
    assert jobs.job_id.tolist() == ["a"]


@pytest.mark.parametrize(
    ("gpu_type", "gpus", "reason"),
    [
        ("", 17, "wider than the cluster"),
        ("T4", 9, "wider than the GPUs of its type"),
        ("A10", 1, "no such GPU type in the cluster"),
    ],
)
def test_a_job_that_can_never_fit_is_refused(gpu_type: str, gpus: int, reason: str) -> None:
    """Jobs wider than the cluster, or than what it has of their GPU types, are counted as such."""
    good = {
        "job_id": "good",
        "tenant": "t",
        "submit_s": 0,
        "duration_s": 9,
        "gpus": 16,
        "gpu_type": "T4|V100",
    }
    frame = pd.DataFrame([good, good | {"job_id": "bad", "gpus": gpus, "gpu_type": gpu_type}])
    jobs = jobs_from_frame(frame, Path("x.csv"), capacity=Capacity(16, {"T4": 8, "V100": 8}))
    assert dict(jobs.unusable_by_reason) == {reason: 1}
    assert jobs.job_id.tolist() == ["good"]


def test_what_only_looks_like_a_contradiction_is_replayed() -> None:
    """One model of several that has the profile is enough, nearness is no peer-to-peer, unknown memory no reason."""
    good = {"job_id": "a", "tenant": "t", "submit_s": 0, "duration_s": 9, "gpus": 2}
    rows: list[dict[str, Any]] = [
        {"mig_profile": "1g.10gb", "gpu_type": "T4|H100-80GB", "topology": "node"},
        {"gpu_memory_gib": 96, "gpu_type": "H100-80GB|G1"},
        {"gpu_memory_gib": 80, "gpu_type": "H100-80GB", "topology": "island"},
        {"gpu_memory_gib": 4000},
    ]
    frame = pd.DataFrame([good | row | {"job_id": f"j{number}"} for number, row in enumerate(rows)])
    assert len(jobs_from_frame(frame, Path("x.csv"))) == len(rows)
    known = jobs_from_frame(frame, Path("x.csv"), capacity=Capacity(16, {"H100-80GB": 16}))
    assert known.job_id.tolist() == ["j0", "j2"], "the cluster has no G1, and no GPU of so much memory"
    assert known.unusable == 2


@pytest.mark.parametrize(
    ("values", "usable"),
    [
        ({"gpus": 8}, True),
        ({"gpus": 9}, False),
        ({"gpus": 16, "min_gpus": 8}, True),  # elastic: it can start within the limit
        ({"gpus": 16, "min_gpus": 9}, False),
        ({"gpus": 16, "gpu_milli": 1000}, False),
        ({"gpus": 56, "mig_profile": "1g.10gb"}, True),  # seven instances to a GPU
        ({"gpus": 57, "mig_profile": "1g.10gb"}, False),
        ({"tenant": "closed", "gpus": 0.5}, False),
        ({"tenant": "free", "gpus": 16}, True),
    ],
)
def test_a_gang_wider_than_the_limit_of_its_queue_is_refused(values: dict[str, Any], usable: bool) -> None:
    """What could never start within its queue's limit is counted as such; a queue without one has none."""
    capacity = Capacity(16, limit_by_tenant={"t": 8, "closed": 0})
    good = {"job_id": "good", "tenant": "t", "submit_s": 0, "duration_s": 9, "gpus": 1}
    jobs = jobs_from_frame(pd.DataFrame([good, good | {"job_id": "a"} | values]), Path("x.csv"), capacity=capacity)
    assert dict(jobs.unusable_by_reason) == ({} if usable else {"wider than the limit of its queue": 1})


def test_a_share_of_a_gpu_becomes_thousandths(tmp_path: Path) -> None:
    """Half a GPU is one GPU with 500 thousandths held; whole GPUs hold 1000."""
    jobs = read_jobs(job_file(tmp_path, "a,t,0,10,0.5", "b,t,0,10,4", "c,t,0,10,0.46"))
    assert jobs.gpus.tolist() == [1, 4, 1]
    assert jobs.gpu_milli.tolist() == [500, 1000, 460]
    assert jobs.gpu_share.tolist() == [0.5, 4, 0.46]


def test_what_is_not_given_is_unknown_and_not_zero(tmp_path: Path) -> None:
    """Missing columns and empty cells read as NaN, -1 or empty text."""
    path = job_file(tmp_path, "a,t,0,10,1,,", "b,t,0,10,1,3600,yes", header=HEADER + ",limit_s,preemptible")
    jobs = read_jobs(path)
    assert np.isnan(jobs.limit_s[0])
    assert jobs.limit_s[1] == 3600
    assert jobs.preemptible.tolist() == [-1, 1]
    assert jobs.nodes.tolist() == [-1, -1]
    assert jobs.slo_class.tolist() == ["", ""]
    assert np.isnan(jobs.checkpoint_interval_s).all()
    assert np.isnan(jobs.preemption_delay_s).all()


def test_a_job_without_a_tenant_is_kept_and_said(tmp_path: Path) -> None:
    """An empty tenant becomes `unknown` and is counted as assumed; the tenant `NA` is a name."""
    jobs = read_jobs(job_file(tmp_path, "a,,0,10,1", "b,NA,0,10,1"))
    assert jobs.tenant.tolist() == ["unknown", "NA"]
    assert dict(jobs.assumed) == {"tenant": 1}


@pytest.mark.parametrize("ending", [".csv", ".parquet"])
def test_what_was_written_reads_back_the_same(tmp_path: Path, ending: str) -> None:
    """Writing and reading again changes nothing, extra columns included."""
    path = job_file(
        tmp_path,
        "a,t,0,10,0.25,train,,7,batch,true,30.5,x",
        "b,u,5,90,8,LS,T4|V100,9,,,,y",
        header=HEADER + ",kind,gpu_type,priority,slo_class,preemptible,preemption_delay_s,colour",
    )
    first = read_jobs(path)
    again = tmp_path / f"again{ending}"
    write_jobs(first, again)
    second = read_jobs(again)
    for name in (
        "job_id",
        "submit_s",
        "gpus",
        "gpu_milli",
        "kind",
        "gpu_type",
        "priority",
        "slo_class",
        "preemptible",
    ):
        assert getattr(first, name).tolist() == getattr(second, name).tolist(), name
    assert np.array_equal(first.preemption_delay_s, second.preemption_delay_s, equal_nan=True)
    assert second.preemption_delay_s[0] == 30.5
    assert second.extra["colour"].tolist() == ["x", "y"]
    assert sorted(each.name for each in tmp_path.iterdir()) == sorted(["jobs.csv", again.name])


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", ["the file is empty"]),
        (HEADER + "\n", ["no row"]),
        ("job_id,tenant,submit_s,gpus\na,t,0,1\n", ["duration_s", "the file has job_id"]),
        (HEADER + "\na,t,0,10,1\nb,t,zero,10,1\n", ["line 3", "submit_s", "'zero'", "is no time"]),
        (HEADER + "\na,t,0,10,1\nb,t,5,1", ["truncated", "4 of 5"]),
        (HEADER + "\na,t,0,10,1,9,9\n", ["line 2"]),
        (
            HEADER + "\na,t,0,10,0\nb,t,0,-1,1\n",
            ["no usable row", "1 x no GPU requested (first in line 2)", "line 3"],
        ),
        (
            HEADER + ",preemptible\na,t,0,10,1,perhaps\n",
            ["line 2", "preemptible", "'perhaps'", "neither true nor"],
        ),
        (HEADER + ",gpus\na,t,0,10,1,1\n", ["gpus"]),
    ],
)
def test_an_unusable_csv_is_one_clear_error(tmp_path: Path, text: str, words: list[str]) -> None:
    """Empty, cut, mis-shaped or mis-typed files end in one message with file, row and column."""
    path = tmp_path / "jobs.csv"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(InputError) as error:
        read_jobs(path)
    for word in [str(path), *words]:
        assert word in str(error.value)
    assert "\n" not in str(error.value)


def test_an_unusable_file_is_one_clear_error(tmp_path: Path) -> None:
    """A file that is absent, a folder, binary, of another ending, or a cut Parquet file is named and refused."""
    whole = tmp_path / "whole.parquet"
    write_jobs(one_row(), whole)
    content = whole.read_bytes()
    cases = {
        "cut.parquet": content[: len(content) // 2],
        "binary.csv": bytes(range(256)) * 9,
        "notes.docx": b"x",
    }
    for name, data in cases.items():
        (tmp_path / name).write_bytes(data)
        with pytest.raises(InputError, match=name):
            read_jobs(tmp_path / name)
    with pytest.raises(InputError, match="no such file"):
        read_jobs(tmp_path / "absent.csv")
    with pytest.raises(InputError, match="folder"):
        read_jobs(tmp_path)


def test_an_unknown_tenant_is_answered_with_the_known_ones(tmp_path: Path) -> None:
    """Asking for a tenant that has no job names those that have."""
    path = job_file(tmp_path, "a,red,0,10,1", "b,blue,0,10,1")
    with pytest.raises(InputError, match=r"tenant 'green'; there are (blue, red|red, blue)"):
        read_jobs(path, tenants=["green"])


def test_a_failed_write_leaves_nothing(tmp_path: Path) -> None:
    """When the folder does not exist, or the ending is unknown, nothing is written and one message says so."""
    for target in (tmp_path / "absent" / "jobs.csv", tmp_path / "jobs.xlsx"):
        with pytest.raises(InputError, match=target.name):
            write_jobs(one_row(), target)
    assert list(tmp_path.iterdir()) == []


def test_reading_module_imports_no_table_library() -> None:
    """Importing the reader costs neither pandas nor pyarrow; they come with the first file."""
    code = (
        "import sys, simulator.traces.jobs, simulator.traces.importing; print({'pandas', 'pyarrow'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


def test_dates_of_a_typed_file_are_seconds() -> None:
    """A Parquet column of dates or of time spans is taken in seconds, whatever its own resolution."""
    dates = pd.to_datetime(["2026-01-01 00:00:00", "2026-01-01 00:01:30"])
    rows = {"job_id": ["a", "b"], "tenant": ["t", "t"], "submit_s": dates, "gpus": [1, 1]}
    for unit in ("s", "ms", "ns"):
        spans = pd.to_timedelta([5, 6], unit="s").as_unit(unit)
        jobs = jobs_from_frame(pd.DataFrame(rows | {"duration_s": spans}), Path("x.parquet"))
        assert jobs.submit_s.tolist() == [0, 90]
        assert jobs.duration_s.tolist() == [5, 6]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"a,b\rc\x00\r\rd,e\n", "a NUL byte"),
        (b"\n\n\n", "nothing but blank lines"),
        (HEADER.encode() + b'\n"open,t,0,10,1\nb,t,0,10,1\n', "line 2: a quote is opened and never closed"),
    ],
)
def test_what_is_no_table_names_the_file(tmp_path: Path, content: bytes, words: str) -> None:
    """Binary content, blank lines, an open quote: one error, its line as an editor counts it."""
    path = tmp_path / "jobs.csv"
    path.write_bytes(content)
    with pytest.raises(InputError, match=words) as error:
        read_jobs(path)
    assert str(error.value).startswith(f"{path}: ")


def test_a_pipe_is_refused_not_waited_for(tmp_path: Path) -> None:
    """Opening it would wait for its writer."""
    pipe = tmp_path / "jobs.csv"
    os.mkfifo(pipe)
    with pytest.raises(InputError, match="is a pipe or a device"):
        read_jobs(pipe)
    with pytest.raises(InputError, match="is a pipe or a device"):
        read_requests(pipe)


def test_an_unknown_tenant_stands_in_quotes(tmp_path: Path) -> None:
    """So that an empty name is seen."""
    with pytest.raises(InputError, match="no job of tenant ''; there are t"):
        read_jobs(job_file(tmp_path, "a,t,0,10,1"), tenants=("t", ""))
