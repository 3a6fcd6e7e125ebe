"""The command line of the service."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from autopilot.app.commands.json_out import JsonCommand, JsonPlace
from autopilot.core.model.codes import RejectionScope
from autopilot.operate.where import Config, Where, asks

Kubeconfig = Annotated[
    Path | None, typer.Option("--kubeconfig", help="The cluster of this kubeconfig; the file itself is only read.")
]
Context = Annotated[
    str | None, typer.Option("--context", help="Context of the kubeconfig.", show_default="the current one")
]
InCluster = Annotated[
    bool, typer.Option("--in-cluster", help="The cluster that this pod runs in, with its service account.")
]
Recommendation = Annotated[
    str, typer.Argument(metavar="ID", help="Id of the recommendation, as `autopilot recommendations` lists it.")
]
Digest = Annotated[
    str | None,
    typer.Option("--digest", help="Digest of what you saw (--json); it is refused where that has outgrown it."),
]


def run(
    config: Config = None,
    check: Annotated[bool, typer.Option("--check", help="Validate the settings, print the wiring, and exit.")] = False,
    simulate: Annotated[
        str | None, typer.Option("--simulate", help="Manage a simulated cluster with this scenario.")
    ] = None,
    speed: Annotated[
        float | None, typer.Option("--speed", help="Virtual seconds per second.", show_default="60")
    ] = None,
    attach: Annotated[
        str | None, typer.Option("--attach", help="Manage the simulated cluster that runs at this address.")
    ] = None,
    kubeconfig: Kubeconfig = None,
    context: Context = None,
    in_cluster: InCluster = False,
    policy: Annotated[
        str | None,
        typer.Option("--policy", help="A shipped policy or a policy file, read again when it changes."),
    ] = None,
    listen: Annotated[str | None, typer.Option("--listen", help="Address of the API, host:port.")] = None,
    state: Annotated[Path | None, typer.Option("--state", help="Folder for memory, journal and inbox.")] = None,
) -> None:
    """Run the controller as a service until SIGTERM or Ctrl-C.

    With --simulate it starts a simulated cluster as a process of its own, manages it, and ends it at the end. With
    --kubeconfig or --in-cluster it manages a real cluster. There it only recommends, until the setting
    `kubernetes.act` lets it do what the modes of the policy allow (docs/install.md). It prints where its page is, and
    where the token for it is.
    """
    from autopilot.app.commands.run_commands import out
    from autopilot.operate.run import kubernetes_of, run_service, simulation_of
    from autopilot.simulated.site import open_site

    over: dict[str, Any] = simulation_of(config, simulate, speed, attach)
    over |= kubernetes_of(kubeconfig, context, in_cluster=in_cluster)
    over |= {"policy": policy} if policy is not None else {}
    over |= {"state": str(state)} if state is not None else {}
    over |= {"http": {"listen": listen}} if listen is not None else {}
    run_service(config, over, open_site, check=check, say=out.print)


def cluster(
    scenario: Annotated[str, typer.Argument(metavar="SCENARIO", help="A built-in scenario or a scenario file.")],
    speed: Annotated[float, typer.Option("--speed", help="Virtual seconds per second.")] = 60.0,
    listen: Annotated[str, typer.Option("--listen", help="Address, host:port.")] = "127.0.0.1:9475",
    seed: Annotated[
        int | None, typer.Option("--seed", help="Seed of the scenario.", show_default="the scenario's")
    ] = None,
) -> None:
    """Run a simulated cluster alone, until Ctrl-C; `autopilot run --attach` manages it."""
    from autopilot.app.commands.run_commands import err
    from autopilot.simulated.process import serve_cluster

    serve_cluster(scenario, speed, listen, seed, say=err.print)


@asks
def status(where: Where, json_out: JsonPlace = None) -> None:
    """Show whether the running service acts, what it does not know as of now, and the fleet."""
    from autopilot.operate.client import show_status
    from autopilot.operate.finding import find_api

    show_status(find_api(where), json_out)


@asks
def recommendations(where: Where, json_out: JsonPlace = None) -> None:
    """List what the running service would do if you agreed."""
    from autopilot.operate.client import show_recommendations
    from autopilot.operate.finding import find_api

    show_recommendations(find_api(where), json_out)


@asks
def approve(
    where: Where,
    recommendation: Recommendation,
    digest: Digest = None,
    exactly: Annotated[
        bool, typer.Option("--exactly", help="Approve only the very plan, not another one within what it shows.")
    ] = False,
) -> None:
    """Approve one recommendation of the running service, and whatever stays within what it shows.

    The approval covers this action for this object: a cost of at most 1.2 times the cost shown, or 0.1 GPU-h more,
    no more GPUs, and only victims of the classes and queues that are shown. It holds until it expires.
    """
    from autopilot.operate.client import decide
    from autopilot.operate.finding import find_api

    body = {"digest": digest or "", "exactly": exactly}
    decide(find_api(where), "approve", recommendation, body)


@asks
def reject(
    where: Where,
    recommendation: Recommendation,
    digest: Digest = None,
    scope: Annotated[
        RejectionScope,
        typer.Option("--scope", help="plan: what was shown; workload: this action for it; queue: for its queue."),
    ] = RejectionScope.WORKLOAD,
    for_: Annotated[
        str | None,
        typer.Option("--for", metavar="TIME", help="How long: 1h, 1d, forever.", show_default="as the policy says"),
    ] = None,
) -> None:
    """Reject one recommendation of the running service for a time; `revoke` ends that."""
    from autopilot.operate.client import decide
    from autopilot.operate.finding import find_api

    body = {"digest": digest or "", "scope": scope.value, "for": for_ or ""}
    decide(find_api(where), "reject", recommendation, body)


@asks
def rejections(where: Where, json_out: JsonPlace = None) -> None:
    """List what people rejected, and until when."""
    from autopilot.operate.client import show_rejections
    from autopilot.operate.finding import find_api

    show_rejections(find_api(where), json_out)


@asks
def revoke(
    where: Where,
    rejection: Annotated[
        str, typer.Argument(metavar="REJECTION", help="Id of the rejection, as `autopilot rejections` lists it.")
    ],
) -> None:
    """End a rejection: what it forbade may be proposed again."""
    from autopilot.operate.client import revoke_rejection
    from autopilot.operate.finding import find_api

    revoke_rejection(find_api(where), rejection)


@asks
def pause(where: Where) -> None:
    """Pause the running service: it decides and shows, and nothing acts."""
    from autopilot.operate.client import command
    from autopilot.operate.finding import find_api

    command(find_api(where), "pause")


@asks
def resume(where: Where) -> None:
    """Let the running service act again, after a pause or a kill."""
    from autopilot.operate.client import command
    from autopilot.operate.finding import find_api

    command(find_api(where), "resume")


@asks
def kill(where: Where) -> None:
    """Stop every effect of the running service at once, until an admin resumes."""
    from autopilot.operate.client import command
    from autopilot.operate.finding import find_api

    command(find_api(where), "kill")


@asks
def lift(
    where: Where,
    action: Annotated[
        str, typer.Argument(metavar="ACTION", help="Name of the action, as under `modes` in the policy.")
    ],
) -> None:
    """Lift the cap on an action of the running service that delivered less than predicted."""
    from autopilot.operate.client import command
    from autopilot.operate.finding import find_api

    command(find_api(where), "lift", action)


@asks
def release(
    where: Where,
    gpu: Annotated[
        str, typer.Argument(metavar="GPU", help="UUID of the GPU, as the note on its quarantine states it.")
    ],
) -> None:
    """Let the running service use a GPU again whose change of MIG geometry went wrong."""
    from autopilot.operate.client import command
    from autopilot.operate.finding import find_api

    command(find_api(where), "release", gpu)


@asks
def confirm(
    where: Where,
    source: Annotated[
        str, typer.Argument(metavar="SOURCE", help="Name of the source, as the reason of the halt states it.")
    ],
) -> None:
    """Confirm to the running service that the objects that a suspected source no longer lists are gone."""
    from autopilot.operate.client import command
    from autopilot.operate.finding import find_api

    command(find_api(where), "confirm", source)


@asks
def rearm(where: Where) -> None:
    """Let the running service act again after the watchdog opened the way for waiting work."""
    from autopilot.operate.client import command
    from autopilot.operate.finding import find_api

    command(find_api(where), "rearm")


def watchdog(
    kubeconfig: Kubeconfig = None,
    context: Context = None,
    in_cluster: InCluster = False,
    namespace: Annotated[str, typer.Option("--namespace", help="Namespace of the Lease.")] = "gpu-autopilot",
    lease: Annotated[str, typer.Option("--lease", help="Name of the Lease.")] = "gpu-autopilot",
    absence: Annotated[
        str, typer.Option("--absence", help="How long the Lease may go unrenewed while the API server is healthy.")
    ] = "10m",
) -> None:
    """Fail open: release gated work while the controller is down, until SIGTERM or Ctrl-C.

    It looks at the Lease alone. When it was not renewed for --absence, it takes the admission check gpu-autopilot
    from the queues, removes the gates of the controller, and starts again what the controller stopped. A controller
    that returns only recommends until `autopilot rearm`.
    """
    from autopilot.operate.watchdog import run_watchdog

    run_watchdog(kubeconfig, context, in_cluster=in_cluster, namespace=namespace, lease=lease, absence=absence)


SERVICE_COMMANDS = (
    run,
    cluster,
    status,
    recommendations,
    approve,
    reject,
    rejections,
    revoke,
    pause,
    resume,
    kill,
    lift,
    release,
    confirm,
    rearm,
    watchdog,
)


def add_service_commands(app: typer.Typer) -> None:
    """Add the commands of the service to the command line."""
    for each in SERVICE_COMMANDS:
        app.command(cls=JsonCommand if each in {status, recommendations} else None)(each)
