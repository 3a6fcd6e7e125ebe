"""`autopilot backtest`: the options of its commands. Importing it loads no heavy library."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

import typer

from autopilot.app.backtests.backtest_options import BurstsOptions, RuntimesOptions, parse_horizons_s
from autopilot.app.options import SHIPPED_NAMES
from autopilot.core.model.errors import InputError
from autopilot.core.model.units import parse_duration_s

backtest_app = typer.Typer(
    help="Score forecasts (or a policy) on recorded data, and gate new models before promotion.",
    no_args_is_help=True,
)

JsonOut = Annotated[Path | None, typer.Option("--json", help="Write the result as JSON.")]
Gate = Annotated[
    bool,
    typer.Option(
        "--gate",
        help="Compare the new models with those that the registry serves, and with the floor; store them and "
        "the verdict. Exit code 1 when the gate refuses them.",
    ),
]
Folder = Annotated[
    Path | None,
    typer.Option("--registry", help="Folder of models and verdicts.", show_default="in the user's state folder"),
]
Seed = Annotated[int, typer.Option("--seed", help="Seed of all random draws.")]


@backtest_app.command()
def bursts(
    series: Annotated[
        Path | None, typer.Option("--series", help="Parquet or CSV with the columns t_s, service, value.")
    ] = None,
    requests: Annotated[
        Path | None,
        typer.Option("--requests", help="Request file (Parquet or CSV): t_s, service, input_tokens, output_tokens."),
    ] = None,
    step: Annotated[
        str | None,
        typer.Option("--step", help="With --requests: the bin width, for example 10s.", show_default="the file's"),
    ] = None,
    horizons: Annotated[str, typer.Option("--horizons", help="Lead times, separated by commas.")] = "10m,30m,60m",
    target: Annotated[
        str,
        typer.Option(
            "--target",
            help="value: the value at that time; peak: the maximum until then, which capacity is planned for.",
        ),
    ] = "value",
    json_out: JsonOut = None,
    gate: Gate = False,
    registry: Folder = None,
    seed: Seed = 0,
) -> None:
    """Score burst forecasts at every step of the last fifth of a record; without a file, on the golden set."""
    from autopilot.app.commands.backtest_commands import backtest_bursts

    horizons_s = parse_horizons_s(horizons)
    step_s = None if step is None else parse_duration_s(step, "--step")
    options = None
    if series is not None or requests is not None:
        options = BurstsOptions(
            series=series, requests=requests, step_s=step_s, horizons_s=horizons_s, target=target, seed=seed
        )
    elif step is not None or target != "value" or horizons != "10m,30m,60m" or seed:
        raise InputError(
            "backtest bursts: name a file, with --series or with --requests; the golden set has its own options"
        )
    backtest_bursts(options, json_out, registry, gate=gate)


@backtest_app.command()
def runtimes(
    jobs: Annotated[
        Path | None,
        typer.Option("--jobs", help="Job file (Parquet or CSV): job_id, tenant, submit_s, duration_s, gpus."),
    ] = None,
    json_out: JsonOut = None,
    gate: Gate = False,
    registry: Folder = None,
    seed: Seed = 0,
) -> None:
    """Score run-time forecasts on the last quarter of a job file; without a file, on the golden set."""
    from autopilot.app.commands.backtest_commands import backtest_runtimes

    if jobs is None and seed:
        raise InputError("--seed: the golden set has its own; name a file with --jobs")
    options = None if jobs is None else RuntimesOptions(jobs=jobs, seed=seed)
    backtest_runtimes(options, json_out, registry, gate=gate)


@backtest_app.command()
def policies(
    journal: Annotated[
        list[Path] | None,
        typer.Option("--journal", help="A recorded run (repeatable).", show_default="as `explain`"),
    ] = None,
    policy: Annotated[
        str,
        typer.Option("--policy", help=f"The candidate: {', '.join(SHIPPED_NAMES)}, or a policy file (.yaml)."),
    ] = "",
    json_out: JsonOut = None,
    registry: Folder = None,
) -> None:
    """Replay recorded runs under a candidate policy and compare decisions and outcomes with thresholds. Exit code 1
    when the gate refuses it.
    """
    from autopilot.app.commands.ask_commands import no_baseline
    from autopilot.app.commands.backtest_commands import backtest_policies
    from autopilot.operate.finding import asked_journal

    if not policy:
        raise InputError(f"--policy: name the candidate: {', '.join(SHIPPED_NAMES)}, or a policy file (.yaml)")
    no_baseline("backtest policies", policy)
    with ExitStack() as stack:
        given: list[Path | None] = [*journal] if journal else [None]
        paths = dict.fromkeys(stack.enter_context(asked_journal(path)) for path in given)
        backtest_policies(tuple(paths), policy, json_out, registry)
