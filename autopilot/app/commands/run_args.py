"""Common options of simulating commands: input, cluster, policies and output."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from autopilot.app.options import BASELINE_NAMES, ENGINE_NAMES, POLICY_NAMES, SCENARIO_NAMES

Seed = Annotated[
    int | None,
    typer.Option(
        "--seed",
        help="Seed of all random draws; the same seed gives the same run.",
        show_default="the scenario's",
    ),
]
Scenario = Annotated[
    str | None,
    typer.Option(
        "--scenario",
        help=f"A built-in scenario ({', '.join(SCENARIO_NAMES)}), or a scenario file (.yaml).",
        show_default="quickstart, unless --jobs or --requests is given",
    ),
]
Jobs = Annotated[
    Path | None,
    typer.Option(
        "--jobs",
        help="Job file (Parquet or CSV): job_id, tenant, submit_s, duration_s, gpus and optional columns. Times may be "
        "seconds, dates or epoch times; see --columns for other headers.",
    ),
]
Columns = Annotated[
    str | None,
    typer.Option(
        "--columns",
        help="Maps columns of --jobs and --requests to ours, for example submit_s=Submit,gpus=AllocTRES; "
        "gpus=plan_gpu% says that theirs counts percent of a GPU; "
        "common names, such as those of sacct, are recognized.",
    ),
]
Requests = Annotated[
    Path | None,
    typer.Option("--requests", help="Request file (Parquet or CSV): t_s, service, input_tokens, output_tokens."),
]
Cluster = Annotated[
    str | None,
    typer.Option(
        "--cluster",
        help="7x8 (7 nodes of 8 GPUs), or a YAML file with pools and queues.",
        show_default="the scenario's",
    ),
]
DefaultsFile = Annotated[
    Path | None,
    typer.Option(
        "--defaults", help="YAML file with values, by kind of job, for columns that are missing from the job file."
    ),
]
PolicyNames = Annotated[
    str | None,
    typer.Option(
        "--policy",
        help=f"Policies to compare, separated by commas: {', '.join(POLICY_NAMES)}; the baselines "
        f"{', '.join(BASELINE_NAMES)}; or policy files (.yaml).",
        show_default="the scenario's, or fifo-skip,autopilot; with several tenants also las",
    ),
]
PolicySet = Annotated[
    list[str] | None,
    typer.Option(
        "--policy-set",
        help="Run each policy of the autopilot with another value of a field, for example "
        "tenancy.guarantee=elastic, or the mode of an action (repeatable).",
    ),
]
EngineName = Annotated[
    str | None,
    typer.Option(
        "--engine",
        help=f"The engine in charge of the cluster ({', '.join(ENGINE_NAMES)}). The policies then only recommend "
        "beside it, and nothing that they propose is carried out. Without --policy that is recommend.",
        show_default="none: each policy runs the cluster itself",
    ),
]
Interval = Annotated[
    str,
    typer.Option("--interval", help="Beside an engine: virtual time between two decisions of the autopilot."),
]
Timezone = Annotated[
    str,
    typer.Option(
        "--timezone",
        help="Time zone of the dates of a Slurm accounting without one, for example Europe/Berlin.",
        show_default="UTC",
    ),
]
Partitions = Annotated[
    str | None,
    typer.Option(
        "--partitions",
        help="Pools or GPU models for the partitions of a Slurm accounting: gpu=train+big,h100=hopper.",
        show_default="the models that the accounting names",
    ),
]
SlurmSite = Annotated[
    Path | None,
    typer.Option(
        "--slurm",
        help="Folder with a site's slurm.conf, accounts.txt, topology.conf, reservations.txt, for the baseline slurm.",
        show_default="Slurm's defaults",
    ),
]
ShardsPerGpu = Annotated[
    int | None,
    typer.Option("--shards-per-gpu", help="How many gres/shard of Slurm make one GPU.", show_default="unknown"),
]
Tenants = Annotated[list[str] | None, typer.Option("--tenant", help="Only jobs of this tenant (repeatable).")]
PhysicsName = Annotated[
    str | None,
    typer.Option(
        "--physics",
        help="ideal (no overheads), charged (a fixed cost per preemption and move) or real.",
        show_default="the scenario's, or ideal",
    ),
]
Durations = Annotated[
    str | None,
    typer.Option(
        "--durations",
        help="How the autopilot predicts run times: predicted (models that are fitted during the run), "
        "hazard (hazards by age of the tenant and width), last-two (the last two similar jobs), or exact.",
        show_default="the scenario's, or predicted",
    ),
]
LimitsName = Annotated[
    str,
    typer.Option(
        "--limits",
        help="Run-time limits that the autopilot sees: file (those of the job file), declared (generated where "
        "the file has none) or none.",
    ),
]
Jitter = Annotated[float, typer.Option("--jitter", help="Multiply each duration by a draw from uniform(1 - r, 1 + r).")]
TelemetryMode = Annotated[
    str | None,
    typer.Option(
        "--telemetry",
        help="full (renders and parses every scrape), windowed (the same numbers without the text), off, or "
        "auto (full up to a day and 1,024 GPUs).",
        show_default="the scenario's, or auto",
    ),
]
RateScale = Annotated[
    float, typer.Option("--rate-scale", help="Keep this fraction of the requests, and of the replicas.")
]
JsonOut = Annotated[Path | None, typer.Option("--json", help="Write the result as JSON.")]
JobsOut = Annotated[
    Path | None,
    typer.Option("--jobs-out", help="Write one row per job and policy (CSV or Parquet, by the suffix)."),
]
ReportDir = Annotated[Path | None, typer.Option("--report", help="Write an HTML page and its plots into this folder.")]
JournalOut = Annotated[
    Path | None,
    typer.Option("--journal", help="Journal of the autopilot's decisions.", show_default="the user's state folder"),
]
