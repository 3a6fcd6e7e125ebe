"""Options of the planner's commands: `compare` and `size`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from autopilot.app.commands.json_out import JsonPlace
from autopilot.app.commands.run_args import (
    Columns,
    DefaultsFile,
    Durations,
    Jitter,
    Jobs,
    LimitsName,
    Partitions,
    PhysicsName,
    PolicySet,
    RateScale,
    Requests,
    Scenario,
    ShardsPerGpu,
    SlurmSite,
    TelemetryMode,
    Tenants,
    Timezone,
)
from autopilot.app.options import BASELINE_NAMES, POLICY_NAMES, SimulateOptions
from autopilot.core.model.errors import InputError

Policies = Annotated[
    str | None,
    typer.Option(
        "--policy",
        help=f"Policies, separated by commas, the reference first: {', '.join(POLICY_NAMES)}; the baselines "
        f"{', '.join(BASELINE_NAMES)}; or policy files (.yaml).",
        show_default="the scenario's, or fifo-skip,autopilot; with several tenants also las",
    ),
]
Clusters = Annotated[
    list[str] | None,
    typer.Option(
        "--cluster",
        help="7x8 (7 nodes of 8 GPUs), or a YAML file with pools and queues (repeatable).",
        show_default="the scenario's",
    ),
]
Seeds = Annotated[str, typer.Option("--seeds", help="A count (5: seeds 1 to 5), a range (10-19) or a list (3,5,8).")]
Workers = Annotated[
    int | None, typer.Option("--workers", help="Processes to run in.", show_default="the cores of this machine")
]
Dask = Annotated[
    str | None,
    typer.Option(
        "--dask",
        help="Address of a Dask scheduler whose workers run it, in place of processes here. They need this version and "
        "the input files at the same paths.",
        show_default="processes on this machine",
    ),
]
Price = Annotated[float | None, typer.Option("--price", help="Price of a GPU-hour, the same for every model, in USD.")]
PriceFile = Annotated[
    Path | None, typer.Option("--prices", help="Price file (YAML) with prices by region and GPU model.")
]
Results = Annotated[
    Path | None,
    typer.Option(
        "--results",
        help="Folder that keeps each finished run; the same run is not repeated.",
        show_default="in the user's state folder",
    ),
]
Changes = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        help="Also run with this change of the cluster, for example queue.vision.guarantee=32 or =x2, "
        "pool.h100.nodes=+4 (repeatable; changes joined by commas apply together).",
    ),
]
Nodes = Annotated[
    list[str] | None,
    typer.Option(
        "--nodes", help="Also run with more or fewer nodes: +4, -2 or 20; POOL=+4 where there are several (repeatable)."
    ),
]
RecordedJournal = Annotated[
    Path | None,
    typer.Option("--journal", help="Take jobs and cluster from this recorded journal, instead of --jobs."),
]
PageDir = Annotated[
    Path | None,
    typer.Option(
        "--report", help="Folder for the page and the Markdown summary.", show_default="in the user's state folder"
    ),
]


def compare(
    scenario: Scenario = None,
    jobs: Jobs = None,
    requests: Requests = None,
    columns: Columns = None,
    timezone: Timezone = "",
    partitions: Partitions = None,
    shards_per_gpu: ShardsPerGpu = None,
    cluster: Clusters = None,
    defaults: DefaultsFile = None,
    policy: Policies = None,
    policy_set: PolicySet = None,
    seeds: Seeds = "3",
    tenant: Tenants = None,
    change: Changes = None,
    nodes: Nodes = None,
    physics: PhysicsName = None,
    durations: Durations = None,
    limits: LimitsName = "file",
    jitter: Jitter = 0.0,
    telemetry: TelemetryMode = None,
    rate_scale: RateScale = 1.0,
    slurm: SlurmSite = None,
    price: Price = None,
    prices: PriceFile = None,
    workers: Workers = None,
    dask: Dask = None,
    results: Results = None,
    journal: RecordedJournal = None,
    report: PageDir = None,
    json_out: JsonPlace = None,
) -> None:
    """Compare policies, clusters and changes of a cluster over several seeds: medians, ranges and money.

    An interrupted comparison continues where it stopped when the same command is given again.

    Example: autopilot compare --scenario demo --policy fifo-skip,autopilot --seeds 5 --nodes +4
    """
    from autopilot.app.commands.planner_commands import Desk, run_compare
    from autopilot.app.compare.cases import Comparison, parse_seeds

    if journal is not None:
        jobs, cluster, physics = recorded(journal, scenario, jobs, requests, cluster, physics)
    base = SimulateOptions(
        scenario=scenario,
        jobs=jobs,
        requests=requests,
        columns=columns,
        timezone=timezone,
        partitions=partitions,
        shards_per_gpu=shards_per_gpu,
        cluster=cluster[0] if cluster else None,
        defaults=defaults,
        policy_set=tuple(policy_set or ()),
        tenants=tuple(tenant or ()),
        physics=physics,
        durations=durations,
        limits=limits,
        jitter_ratio=jitter,
        telemetry=telemetry,
        rate_scale=rate_scale,
        slurm=slurm,
        series=False,
    )
    comparison = Comparison(
        base=base,
        policies=names_of(policy),
        seeds=parse_seeds(seeds),
        clusters=tuple(dict.fromkeys(cluster)) if cluster else (None,),
        changes=changes_of(change, nodes),
    )
    run_compare(comparison, Desk(price, prices, workers, results, report, dask), json_out)


def size(
    wait_p90: Annotated[
        str, typer.Option("--wait-p90", help="Target: 90 % of the jobs start within this time, for example 30m.")
    ],
    scenario: Scenario = None,
    jobs: Jobs = None,
    columns: Columns = None,
    timezone: Timezone = "",
    partitions: Partitions = None,
    shards_per_gpu: ShardsPerGpu = None,
    cluster: Annotated[
        str | None,
        typer.Option("--cluster", help="Where the search begins: 7x8, or a YAML file.", show_default="the scenario's"),
    ] = None,
    policy: Policies = None,
    seeds: Seeds = "3",
    tenant: Tenants = None,
    pool: Annotated[
        str | None, typer.Option("--pool", help="The pool that grows or shrinks.", show_default="the only one")
    ] = None,
    least: Annotated[int, typer.Option("--from", help="Least nodes of that pool.")] = 1,
    most: Annotated[int, typer.Option("--to", help="Most nodes of that pool.")] = 256,
    physics: PhysicsName = None,
    durations: Durations = None,
    jitter: Jitter = 0.0,
    telemetry: TelemetryMode = None,
    slurm: SlurmSite = None,
    price: Price = None,
    prices: PriceFile = None,
    workers: Workers = None,
    results: Results = None,
    journal: RecordedJournal = None,
    json_out: JsonPlace = None,
) -> None:
    """Find the smallest cluster on which each policy keeps a target for waits, with every seed.

    Example: autopilot size --wait-p90 30m --scenario demo --policy fifo-skip,autopilot --seeds 3
    """
    from autopilot.app.commands.planner_commands import Desk
    from autopilot.app.commands.size_commands import Target, run_size
    from autopilot.app.compare.cases import Comparison, parse_seeds

    clusters = [cluster] if cluster is not None else None
    if journal is not None:
        jobs, clusters, physics = recorded(journal, scenario, jobs, None, clusters, physics)
    base = SimulateOptions(
        scenario=scenario,
        jobs=jobs,
        columns=columns,
        timezone=timezone,
        partitions=partitions,
        shards_per_gpu=shards_per_gpu,
        cluster=clusters[0] if clusters else None,
        tenants=tuple(tenant or ()),
        physics=physics,
        durations=durations,
        jitter_ratio=jitter,
        telemetry=telemetry,
        slurm=slurm,
        series=False,
    )
    comparison = Comparison(base=base, policies=names_of(policy), seeds=parse_seeds(seeds))
    run_size(comparison, Target(wait_p90, pool, least, most), Desk(price, prices, workers, results), json_out)


def recorded(
    journal: Path,
    scenario: str | None,
    jobs: Path | None,
    requests: Path | None,
    cluster: list[str] | None,
    physics: str | None,
) -> tuple[Path, list[str], str | None]:
    """Job file, clusters and physics of a recorded journal; other clusters may be given. Raises `InputError`."""
    from autopilot.app.commands.run_commands import err
    from autopilot.app.compare.from_journal import from_journal
    from autopilot.files import state_folder

    if scenario is not None or jobs is not None or requests is not None:
        raise InputError("--journal: it has jobs and a cluster; leave out --scenario, --jobs and --requests")
    found = from_journal(journal, state_folder() / "compare" / "recorded")
    for note in found.notes:
        err.print(f"{journal}: {note}")
    return found.jobs, cluster or [str(found.cluster)], physics or found.physics or None


def names_of(policy: str | None) -> tuple[str, ...]:
    """The policies of `--policy`. Raises `InputError` if it names none."""
    names = tuple(name.strip() for name in (policy or "").split(",") if name.strip())
    if policy is not None and not names:
        raise InputError("--policy: names no policy; leave it out, or write for example --policy fifo-skip,autopilot")
    return names


def changes_of(changes: list[str] | None, nodes: list[str] | None) -> tuple[tuple[str, ...], ...]:
    """The variations of `--set` and `--nodes`, each with its changes."""
    found = [tuple(part.strip() for part in each.split(",") if part.strip()) for each in changes or ()]
    for each in nodes or ():
        pool, equals, value = each.rpartition("=")
        found.append((f"nodes.{pool}={value}" if equals else f"nodes={value}",))
    return tuple(found)


PLANNER_COMMANDS = (compare, size)
