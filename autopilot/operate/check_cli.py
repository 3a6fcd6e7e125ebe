"""The command line of `autopilot check`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from autopilot.app.commands.json_out import JsonCommand, JsonPlace
from autopilot.operate.service_cli import Context, InCluster, Kubeconfig
from autopilot.operate.where import Config


def check(
    config: Config = None,
    kubeconfig: Kubeconfig = None,
    context: Context = None,
    in_cluster: InCluster = False,
    prometheus: Annotated[
        str | None,
        typer.Option("--prometheus", help="Prometheus that scrapes the GPU exporters, for example http://host:9090."),
    ] = None,
    prometheus_token_file: Annotated[
        Path | None, typer.Option("--prometheus-token-file", help="File with a bearer token for it.")
    ] = None,
    namespace: Annotated[
        str | None,
        typer.Option("--namespace", help="Namespace of the service's ConfigMaps.", show_default="gpu-autopilot"),
    ] = None,
    json_out: JsonPlace = None,
) -> None:
    """Check whether a cluster is ready: rights, GPUs, labels, MIG, Kueue, DCGM fields and clocks, each with the fix.

    It changes nothing: it reads, and tries in dry runs whether the admission policies are in force. Without
    --kubeconfig it asks the cluster of your default kubeconfig. The exit status is 1 where something failed.
    """
    from autopilot.app.commands.run_commands import out
    from autopilot.operate.check import check_cluster
    from autopilot.operate.run import kubernetes_of

    over: dict[str, Any] = kubernetes_of(kubeconfig, context, in_cluster=in_cluster)
    if namespace is not None:
        over.setdefault("kubernetes", {})["namespace"] = namespace
    if prometheus is not None:
        token = {"token_file": str(prometheus_token_file)} if prometheus_token_file is not None else {}
        over["collectors"] = {"prometheus": {"url": prometheus, **token}}
    status = check_cluster(config, over, json_out, out.print)
    if status:
        raise typer.Exit(status)


def add_check_command(app: typer.Typer) -> None:
    """Add the command to the command line."""
    app.command(cls=JsonCommand)(check)
