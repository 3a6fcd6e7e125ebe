"""The command line of `autopilot uninstall`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from autopilot.operate.service_cli import Context


def uninstall(
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print what would be done, and change nothing.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    kubeconfig: Annotated[
        Path | None,
        typer.Option(
            "--kubeconfig", help="Kubeconfig of an administrator of the cluster.", show_default="the default one"
        ),
    ] = None,
    context: Context = None,
    namespace: Annotated[str, typer.Option("--namespace", help="Namespace of the service.")] = "gpu-autopilot",
) -> None:
    """Give back the effects of the controller, then remove all that its manifests or its chart have created.

    It prints a line for each object, and asks first. It ends our Deployments; a service elsewhere must be stopped
    before. What stays is named with its reason. It may be repeated. The exit status is 1 where something failed.
    """
    from autopilot.app.commands.run_commands import out
    from autopilot.kube.access import Access, Address
    from autopilot.kube.cluster_api import ClusterApi
    from autopilot.operate.uninstall.run import Uninstall

    access = Access(Address(kubeconfig, context))
    job = Uninstall(ClusterApi(access), namespace, lambda line: out.print(line, markup=False, soft_wrap=True))
    job.may()
    if dry_run or not yes:
        count = job.plan()
        if dry_run or not count:
            out.print(f"{count} lines; nothing was changed" if count else f"nothing of ours is in {access.host}")
            return
        if not typer.confirm(f"Do this in {access.host}?"):
            raise typer.Exit(1)
    if status := job.run():
        raise typer.Exit(status)


def add_uninstall_command(app: typer.Typer) -> None:
    """Add the command to the command line."""
    app.command()(uninstall)
