"""The command line of the playground."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from autopilot.app.options import SCENARIO_NAMES
from autopilot.core.model.modes import Mode


class PlaygroundMode(StrEnum):
    """How far the modes of the policy go at most."""

    RECOMMEND = "recommend"
    APPROVE = "approve"
    AUTO = "auto"


def playground(
    scenario: Annotated[
        str, typer.Option("--scenario", help=f"A built-in scenario ({', '.join(SCENARIO_NAMES)}), or a scenario file.")
    ] = "quickstart",
    speed: Annotated[float, typer.Option("--speed", help="Virtual seconds per second.")] = 10.0,
    port: Annotated[
        int, typer.Option("--port", min=0, max=65535, help="Port of the API server; 0 takes a free one.")
    ] = 0,
    metrics_port: Annotated[
        int, typer.Option("--metrics-port", min=0, max=65535, help="Port of the GPU metrics; 0 takes a free one.")
    ] = 0,
    host: Annotated[str, typer.Option("--host", help="Address to listen at.")] = "127.0.0.1",
    mode: Annotated[
        PlaygroundMode,
        typer.Option(
            "--mode",
            help="What the autopilot may do: recommend beside Kueue, act on what a person approves, or act.",
        ),
    ] = PlaygroundMode.RECOMMEND,
    policy: Annotated[
        str | None,
        typer.Option(
            "--policy",
            help="Policy of the controller; no mode of it goes further than --mode.",
            show_default="recommend, with --mode approve or auto: autopilot",
        ),
    ] = None,
    without_kueue: Annotated[
        list[str] | None,
        typer.Option(
            "--without-kueue",
            metavar="TENANT",
            help="A tenant whose Jobs are in no queue and are left to the autopilot; may be given several times.",
            show_default="none",
        ),
    ] = None,
    listen: Annotated[
        str | None,
        typer.Option("--listen", help="Address of the controller's API, host:port.", show_default="127.0.0.1:9470"),
    ] = None,
    alerts: Annotated[
        bool,
        typer.Option("--alerts", help="Start a Prometheus and an Alertmanager beside it, which deliver its alerts."),
    ] = False,
    seed: Annotated[
        int | None, typer.Option("--seed", help="Seed of the scenario.", show_default="the scenario's")
    ] = None,
    state: Annotated[
        Path | None, typer.Option("--state", help="Folder for the kubeconfig, the journal and the memory.")
    ] = None,
) -> None:
    """Try the autopilot with kubectl, without a cluster: a simulated one behind a Kubernetes API, under Kueue's rules.

    The controller runs beside it and recommends; with --mode auto it acts, through the API alone. Jobs that you create
    enter the simulation.
    """
    from autopilot.app.commands.run_commands import out
    from autopilot.playground.run import PlaygroundOptions, run_playground

    options = PlaygroundOptions(
        scenario=scenario,
        seed=seed,
        speed=speed,
        host=host,
        port=port,
        metrics_port=metrics_port,
        mode=Mode(mode),
        policy=policy,
        without=tuple(without_kueue or ()),
        listen=listen,
        alerts=alerts,
        state=state,
    )
    run_playground(options, out.print)
