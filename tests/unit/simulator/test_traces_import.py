"""Public layouts: each importer on a small file as its publisher ships it, and on the extracts where they are."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from autopilot.core.model.errors import InputError
from simulator.inference.requests import read_requests
from simulator.specs.clusterfile import parse_cluster
from simulator.traces.catalog import TRACE_KINDS, catalog_markdown
from simulator.traces.importers.common import ImportOptions
from simulator.traces.importing import MODULES, import_trace
from simulator.traces.jobs import read_jobs

ROOT = Path(__file__).resolve().parents[3]

EXTRACTS = {
    "philly": ("philly_jobs/jobs.parquet", 64_483, 64_483),
    "openb": ("openb_2023/pods_default.parquet", 8_152, 7_063),
    "genai": ("gentd26/diffusion_requests.parquet", 18_757, 18_757),
    "dlrm": ("dlrm_2025/instances.parquet", 16_176, 4_851),
    "azure-llm": ("azure_llm_2023/requests_conv.parquet", 19_366, 19_366),
    "mooncake": ("mooncake_2025/requests_conversation.parquet", 12_031, 12_031),
    "slurm": ("mit_supercloud_slurm/jobs.parquet", 6_739, 470),
}
"""File, rows written, rows a replay can use."""


def small_extract(kind: str, folder: Path) -> tuple[str, int, int]:
    """A file in the columns of the extract: its name, the rows to be written, the rows that are usable."""
    jobs: dict[str, list[Any]] = {
        "job_id": ["a", "b"],
        "tenant": ["t", "u"],
        "submit_s": [0.0, 5.0],
        "start_s": [1.0, 6.0],
        "end_s": [11.0, 26.0],
        "duration_s": [10.0, 20.0],
        "gpus": [1.0, 0.0],
    }
    requests: dict[str, list[Any]] = {"t_s": [0.0, 1.0], "service": ["s", "s"]}
    tokens = {"input_tokens": [10, 20], "output_tokens": [5, 6]}
    columns = {
        "openb": jobs | {"num_gpu": [1, 0], "gpu_milli": [300, 0], "gpu_spec": ["T4", None], "cpu_milli": [4000, 1]},
        "slurm": jobs | {"timelimit_s": [3600.0, None]},
        "genai": requests | {"exec_s": [3.0, 4.0], "prompt_length": [9, 9], "images": [1, 2], "steps": [20, 30]},
    }.get(kind, jobs if TRACE_KINDS[kind].makes == "jobs" else requests | tokens)
    pd.DataFrame(columns).to_parquet(folder / f"{kind}.parquet")
    return f"{kind}.parquet", 2, 1 if TRACE_KINDS[kind].makes == "jobs" else 2


def test_catalog_and_importers_and_document_agree() -> None:
    """Every listed kind has an importer, every importer is listed, and the document holds the same table."""
    assert list(TRACE_KINDS) == list(MODULES)
    assert catalog_markdown() in (ROOT / "docs" / "data-sources.md").read_text(encoding="utf-8")
    for entry in TRACE_KINDS.values():
        assert entry.address.startswith("https://")
        assert entry.licence
        assert entry.citation


@pytest.mark.parametrize("kind", sorted(EXTRACTS))
def test_the_extracts_are_imported_whole(kind: str, shared_data: Path | None, ran_on: Any, tmp_path: Path) -> None:
    """Every row of an extract is written or counted, and the written file reads back with as many usable rows."""
    if shared_data is None:
        ran_on("synthetic")
        shared_data, (source, written, usable) = tmp_path, small_extract(kind, tmp_path)
    else:
        ran_on(kind)
        source, written, usable = EXTRACTS[kind]
    out = tmp_path / "out.parquet"
    seen: list[float] = []
    report = import_trace(kind, shared_data / source, out, progress=lambda _, done: seen.append(done))
    assert (report.rows_written, report.usable) == (written, usable)
    assert report.rows_read == report.rows_written + sum(report.dropped_by_reason.values())
    again = read_jobs(out) if report.makes == "jobs" else read_requests(out)
    assert len(again) == usable
    assert usable + sum(report.unusable_by_reason.values()) == written
    assert seen == sorted(seen)
    assert seen[-1] == 1.0


def test_philly_job_log_as_published(tmp_path: Path) -> None:
    """The publisher's JSON gives tenant, user, waiting, width and status; jobs that never ran are counted."""
    detail = [{"ip": "m1", "gpus": ["gpu0", "gpu1"]}, {"ip": "m2", "gpus": ["gpu0", "gpu1"]}]
    attempt = {"start_time": "2017-10-07 01:12:09", "end_time": "2017-10-07 01:13:23", "detail": detail}
    later = {"start_time": "2017-10-07 01:20:09", "end_time": "2017-10-07 02:12:09", "detail": detail}
    job = {
        "status": "Pass",
        "vc": "ee9e8c",
        "jobid": "application_1",
        "attempts": [attempt, later],
        "submitted_time": "2017-10-07 01:11:39",
        "user": "ce2f4c",
    }
    source = tmp_path / "cluster_job_log"
    source.write_text(json.dumps([job, job | {"jobid": "application_2", "attempts": []}]), encoding="utf-8")
    report = import_trace("philly", source, tmp_path / "out.csv")
    jobs = read_jobs(tmp_path / "out.csv")
    assert dict(report.dropped_by_reason) == {"never scheduled": 1}
    assert (jobs.tenant[0], jobs.user[0], jobs.status[0]) == ("vc_ee9e8c", "ce2f4c", "completed")
    assert (jobs.duration_s[0], jobs.gpus[0], jobs.nodes[0]) == (3600, 4, 2)
    source.write_text(json.dumps([{"jobid": "x"}]), encoding="utf-8")
    with pytest.raises(InputError, match="job 1"):
        import_trace("philly", source, tmp_path / "out.csv")


def test_philly_sia_extract_is_cut_by_a_span(tmp_path: Path) -> None:
    """The artifact's CSV is put in order and may be cut to a span, as the benchmarks do."""
    source = tmp_path / "philly.csv"
    source.write_text(
        "timestamp,duration,num_gpus,gpu_time,cluster\n"
        "2017-10-09 07:01:55,66.0,1,66.0,11cb48\n2017-10-09 06:13:03,2951.0,8,23608.0,6214e9\n",
        encoding="utf-8",
    )
    import_trace("philly", source, tmp_path / "out.csv")
    jobs = read_jobs(tmp_path / "out.csv")
    assert jobs.tenant.tolist() == ["vc_6214e9", "vc_11cb48"]
    assert jobs.submit_s.tolist() == [0, 2932]
    report = import_trace("philly", source, tmp_path / "cut.csv", options=ImportOptions(span_s=600))
    assert report.rows_written == 1


def test_openb_as_published_brings_its_cluster(tmp_path: Path) -> None:
    """Pods become shares and types, and the node list beside them a cluster file that parses."""
    pods = tmp_path / "openb_pod_list_default.csv"
    pods.write_text(
        "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,creation_time,deletion_time,scheduled_time\n"
        "p1,88000,327680,8,1000,,Burstable,Succeeded,100,5000,200\n"
        "p2,4000,15258,1,220,V100M16|V100M32,LS,Running,150,900,150\n"
        "p3,4000,15258,1,1000,,BE,Pending,160,400,\n",
        encoding="utf-8",
    )
    nodes = "sn,cpu_milli,memory_mib,gpu,model\nn0,32000,262144,0,\nn1,96000,393216,8,G2\nn2,96000,393216,8,G2\n"
    (tmp_path / "openb_node_list_all_node.csv").write_text(nodes, encoding="utf-8")
    report = import_trace("openb", pods, tmp_path / "out.csv")
    jobs = read_jobs(tmp_path / "out.csv")
    assert jobs.gpus.tolist() == [8, 1, 1]
    assert jobs.gpu_milli.tolist() == [1000, 220, 1000]
    assert jobs.gpu_type.tolist() == ["", "V100M16|V100M32", ""]
    assert jobs.duration_s.tolist() == [4800, 750, 240]
    assert report.cluster_out is not None
    cluster = parse_cluster(report.cluster_out)
    assert (cluster.nodes, cluster.gpus, cluster.gpus_by_model) == (2, 16, {"G2": 16})
    assert cluster.pools[0].cpus == 96


def test_dlrm_as_published_keeps_what_was_there_before(tmp_path: Path) -> None:
    """Instances older than the trace start at 0, those that outlive it end with it, and both are counted."""
    source = tmp_path / "disaggregated_DLRM_trace.csv"
    source.write_text(
        "instance_sn,role,app_name,cpu_request,gpu_request,memory_request,creation_time,scheduled_time,deletion_time\n"
        "i1,HN,app_0,12,1,120.0,,,\ni2,HN,app_0,12,1,120.0,100,160,500\ni3,CN,app_1,64,0,320,50,50,90\n",
        encoding="utf-8",
    )
    report = import_trace("dlrm", source, tmp_path / "out.csv")
    jobs = read_jobs(tmp_path / "out.csv")
    assert jobs.job_id.tolist() == ["i1", "i2"]
    assert jobs.duration_s.tolist() == [500, 340]
    assert dict(report.assumed) == {"submit_s": 1, "duration_s": 1}
    assert dict(report.unusable_by_reason) == {"no GPU requested": 1}


def test_requests_as_published(tmp_path: Path) -> None:
    """Azure, Mooncake and GenTD26 requests arrive with times from 0, tokens, prefixes and latencies."""
    azure = tmp_path / "AzureLLMInferenceTrace_conv.csv"
    azure.write_text(
        "TIMESTAMP,ContextTokens,GeneratedTokens\n"
        "2023-11-16 18:15:46.6805900,374,44\n2023-11-16 18:15:50.9951690,396,109\n",
        encoding="utf-8",
    )
    import_trace("azure-llm", azure, tmp_path / "azure.csv")
    requests = read_requests(tmp_path / "azure.csv")
    assert requests.services == ("azure-conv",)
    assert requests.t_s[1] == pytest.approx(4.314579)
    assert requests.output_tokens.tolist() == [44, 109]

    mooncake = tmp_path / "conversation_trace.jsonl"
    rows = [
        {"timestamp": 27482, "input_length": 6955, "output_length": 52, "hash_ids": [46, 47, 48]},
        {"timestamp": 30535, "input_length": 6472, "output_length": 26, "hash_ids": [46, 47, 99]},
    ]
    mooncake.write_text("\n".join(map(json.dumps, rows)) + "\n", encoding="utf-8")
    import_trace("mooncake", mooncake, tmp_path / "mooncake.parquet")
    requests = read_requests(tmp_path / "mooncake.parquet")
    assert requests.t_s.tolist() == pytest.approx([0, 3.053])
    assert requests.extra["prefix_hit_blocks"].tolist() == [0, 2]
    mooncake.write_text('{"timestamp": 1}\n', encoding="utf-8")
    with pytest.raises(InputError, match="line 1"):
        import_trace("mooncake", mooncake, tmp_path / "mooncake.parquet")

    genai = tmp_path / "lora_request_trace.csv"
    genai.write_text(
        "gmt_create,predict_type,predict_status,exec_time_seconds,groupId,prompt_length,negative_prompt_length,"
        "num_images_per_prompt,num_inference_steps,checkpoint_model_version_id,num_lora\n"
        "2024-11-15 16:57:50,TXT_2_IMG,SUCCEED,32.0,G0000,63.0,26.0,1.0,30.0,M0000,0\n"
        "2024-11-15 18:16:14,TXT_2_IMG,SUCCEED,43.0,G0001,93.0,,1.0,40.0,,0\n",
        encoding="utf-8",
    )
    report = import_trace("genai", genai, tmp_path / "genai.csv")
    requests = read_requests(tmp_path / "genai.csv")
    assert dict(report.dropped_by_reason) == {"no base model": 1}
    assert (requests.latency_s.tolist(), requests.input_tokens.tolist(), requests.output_tokens.tolist()) == (
        [32],
        [16],
        [30],
    )
    assert dict(report.assumed) == {"input_tokens": 1, "output_tokens": 1}


def test_sacct_output_skips_steps_and_reads_limits(tmp_path: Path) -> None:
    """Accounting as `sacct --parsable2` prints it gives tenants, GPUs by TRES, and limits; steps do not count twice."""
    source = tmp_path / "sacct.txt"
    source.write_text(
        "JobID|User|Account|JobName|Partition|State|Submit|Start|End|Timelimit|NNodes|NCPUS|ReqTRES\n"
        "7|ann|vision|bert|gpu|COMPLETED|2026-01-05T10:00:00|2026-01-05T10:05:00|2026-01-05T11:05:00|1-00:00:00|2|16|"
        "cpu=16,gres/gpu:h100=8,node=2\n"
        "7.batch||vision|batch||COMPLETED|2026-01-05T10:05:00|2026-01-05T10:05:00|2026-01-05T11:05:00||1|8|\n"
        "8|bob|audio|x|gpu|CANCELLED by 12|2026-01-05T10:01:00|Unknown|Unknown|UNLIMITED|1|4|gres/gpu=1\n"
        "9|bob|audio|x|gpu|CANCELLED by 12|2026-01-05T10:02:00|2026-01-05T10:02:00|2026-01-05T10:03:00|UNLIMITED|1|4|"
        "gres/gpu=1,gres/gpu:a100=1\n",
        encoding="utf-8",
    )
    report = import_trace("slurm", source, tmp_path / "out.csv")
    jobs = read_jobs(tmp_path / "out.csv")
    assert jobs.job_id.tolist() == ["7", "9"]
    assert jobs.gpus.tolist() == [8, 1]
    assert jobs.limit_s[0] == 86_400
    assert np.isnan(jobs.limit_s[1])
    assert jobs.status.tolist() == ["completed", "cancelled"]
    assert (jobs.duration_s.tolist(), jobs.tenant.tolist()) == ([3600, 60], ["vision", "audio"])
    assert dict(report.dropped_by_reason) == {"never started": 1}


@pytest.mark.parametrize(
    ("field", "elapsed", "run_s", "note"),
    [
        (
            "Elapsed",
            ("00:20:00", "05:00:00", "01:00:00", "01:00:00"),
            [1200, 18_000, 3600, 3600],
            "3 jobs have another",
        ),
        ("ElapsedRaw", ("1200", "18000", "3600", "3600"), [1200, 18_000, 3600, 3600], "3 jobs have another"),
        ("Comment", ("", "", "", ""), [14_400, 3600, 7200], "1 job ends before the start"),
    ],
)
def test_run_times_across_a_change_of_the_clocks(
    field: str, elapsed: tuple[str, ...], run_s: list[float], note: str, tmp_path: Path
) -> None:
    """The local times repeat an hour in autumn and skip one in spring. Elapsed counts; nothing is ever negative."""
    times = (
        ("2026-11-01T01:40:00", "2026-11-01T01:50:00", "2026-11-01T01:10:00"),
        ("2026-10-31T23:00:00", "2026-10-31T23:30:00", "2026-11-01T03:30:00"),
        ("2026-11-01T09:00:00", "2026-11-01T09:10:00", "2026-11-01T10:10:00"),
        ("2026-03-08T01:00:00", "2026-03-08T01:30:00", "2026-03-08T03:30:00"),
    )
    lines = [f"JobID|Account|Submit|Start|End|{field}|State|ReqTRES"]
    for number, (row, text) in enumerate(zip(times, elapsed, strict=True)):
        lines.append("|".join((str(number), "lab", *row, text, "COMPLETED", "gres/gpu=4")))
    source = tmp_path / "sacct.txt"
    source.write_text("\n".join(lines) + "\n", encoding="utf-8")
    report = import_trace("slurm", source, tmp_path / "out.csv")
    jobs = read_jobs(tmp_path / "out.csv")
    assert sorted(jobs.duration_s.tolist()) == sorted(run_s)
    assert any(note in each for each in report.notes)
    assert "-" not in "".join(line.split(",")[2] for line in (tmp_path / "out.csv").read_text("utf-8").splitlines())


def test_supercloud_log_as_published(tmp_path: Path) -> None:
    """The MIT log counts GPUs by its TRES numbers and limits in minutes; its unlimited is no number."""
    source = tmp_path / "slurm-log.csv"
    source.write_text(
        "id_job,id_user,state,timelimit,time_submit,time_start,time_end,tres_req,partition\n"
        '16051200000000.0,42770100000000.0,3,1440,1609535912,1609808470,1609808777,"1=20,2=170000,1002=2",normal\n'
        '16051200000000.0,42770100000000.0,6,4294967295,1609535913,1609808470,1609808777,"1=20,1001=1",normal\n',
        encoding="utf-8",
    )
    import_trace("slurm", source, tmp_path / "out.csv")
    jobs = read_jobs(tmp_path / "out.csv")
    assert (jobs.gpus.tolist(), jobs.duration_s.tolist()) == ([2, 1], [307, 307])
    assert jobs.limit_s[0] == 86_400
    assert np.isnan(jobs.limit_s[1])
    assert jobs.status.tolist() == ["completed", "timeout"]


def servegen_folder(folder: Path) -> Path:
    """One client in the publisher's form: 2 requests/s, silence, 0.5 requests/s."""
    model = folder / "language" / "m-tiny"
    model.mkdir(parents=True)
    (model / "chunk-0-trace.csv").write_text("0,2.0,3.0,Weibull,0.5,0.2\n600,0,0,,0,0\n1200,0.5,1,Gamma,0.3,5\n")
    tokens = {"input_tokens": "{100: 0.5, 200: 0.4, 900: 0.1}", "output_tokens": "{10: 0.9, 50: 0.1}"}
    (model / "chunk-0-dataset.json").write_text(
        json.dumps({"0": tokens, "21600": {"input_tokens": "{}", "output_tokens": "{}"}})
    )
    return model


def test_servegen_gives_the_published_counts(tmp_path: Path) -> None:
    """Requests drawn again have each window's published count, its burstiness, and repeat with the seed."""
    model = servegen_folder(tmp_path)
    options = ImportOptions(seed=3)
    import_trace("servegen", model, tmp_path / "a.parquet", options=options)
    import_trace("servegen", model, tmp_path / "b.parquet", options=options)
    import_trace("servegen", model, tmp_path / "c.parquet", options=ImportOptions(seed=4))
    first, same, other = (read_requests(tmp_path / f"{name}.parquet") for name in "abc")
    assert (first.t_s == same.t_s).all()
    assert not np.array_equal(first.t_s, other.t_s)
    assert len(first) == 1200 + 300
    assert first.services == ("language/m-tiny",)
    gaps = np.diff(first.t_s[first.t_s < 600])
    assert gaps.std() / gaps.mean() > 1.5
    assert set(np.unique(first.extra["tenant"])) == {"language/m-tiny#0"}
    assert 90 <= np.median(first.input_tokens) <= 220
    thinned = ImportOptions(seed=3, rate_scale=0.1)
    import_trace("servegen", model, tmp_path / "d.parquet", options=thinned)
    assert 100 <= len(read_requests(tmp_path / "d.parquet")) <= 200


@pytest.mark.parametrize("kind", sorted(TRACE_KINDS))
def test_a_file_of_another_layout_is_refused(kind: str, tmp_path: Path) -> None:
    """Each importer answers a foreign, an empty and an absent file with one message that names it, and writes
    nothing.
    """
    foreign = tmp_path / "foreign.csv"
    foreign.write_text("a,b\n1,2\n", encoding="utf-8")
    (tmp_path / "empty.csv").write_text("", encoding="utf-8")
    for name in ("foreign.csv", "empty.csv", "absent.csv"):
        with pytest.raises(InputError, match=name):
            import_trace(kind, tmp_path / name, tmp_path / "out.csv")
    assert not (tmp_path / "out.csv").exists()


def test_wrong_calls_are_refused_before_reading(tmp_path: Path) -> None:
    """An unknown kind is answered with the list; the ending of the result and the options are checked first."""
    with pytest.raises(InputError, match="philly, openb"):
        import_trace("phily", tmp_path / "x", tmp_path / "out.csv")
    with pytest.raises(InputError, match=r"out\.doc"):
        import_trace("philly", tmp_path / "x", tmp_path / "out.doc")
    with pytest.raises(InputError, match="rate scale"):
        ImportOptions(rate_scale=2)
    with pytest.raises(InputError, match="span"):
        ImportOptions(span_s=0)
