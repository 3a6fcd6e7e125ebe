"""`autopilot playground`: the stage, its sockets and the controller beside it, until Ctrl-C."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from pathlib import Path
from secrets import token_urlsafe
from shlex import quote
from typing import Any
from urllib.parse import urlsplit

from autopilot.app.options import SimulateOptions
from autopilot.app.runs.world import build_world
from autopilot.core.model.errors import InputError
from autopilot.core.model.modes import Mode
from autopilot.core.model.units import counted
from autopilot.operate.run import run_site
from autopilot.playground.control_resources import MOST, add_control_resources
from autopilot.playground.live import SCRAPE_S, Live, capped_site, controller_site, go_live
from autopilot.playground.monitoring import Monitoring, find_programs, running
from autopilot.playground.stage import Stage, open_stage
from autopilot.service.listeners import bind
from autopilot.service.logs import set_up_logs
from autopilot.service.settings import Metrics, Role, Settings
from autopilot.service.settings_file import load_settings
from autopilot.service.state_folder import places, read_note, service_folder

METRICS_LISTEN, STATE = "GPU_AUTOPILOT_METRICS__LISTEN", "GPU_AUTOPILOT_STATE"
CHARGE = {
    Mode.RECOMMEND: "Kueue's rules in charge",
    Mode.APPROVE: "the autopilot in charge of what a person approves",
    Mode.AUTO: "the autopilot in charge beside Kueue",
}


MORE = {
    Mode.RECOMMEND: (),
    Mode.APPROVE: ("kubectl annotate recommendation NAME gpu-autopilot.io/approve=yes",),
    Mode.AUTO: ("kubectl get events -A --watch",),
}
"""Commands worth a try in each mode."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlaygroundOptions:
    """One call of `autopilot playground`."""

    scenario: str = "quickstart"
    seed: int | None = None
    speed: float = 10.0
    host: str = "127.0.0.1"
    port: int = 0
    metrics_port: int = 0
    mode: Mode = Mode.RECOMMEND
    policy: str | None = None
    without: tuple[str, ...] = ()  # tenants without Kueue
    listen: str | None = None
    alerts: bool = False  # with a Prometheus and an Alertmanager
    state: Path | None = None


def run_playground(options: PlaygroundOptions, say: Callable[[str], None]) -> None:
    """Run until SIGTERM or Ctrl-C. Raises `InputError` before anything starts."""
    world = build_world(SimulateOptions(scenario=options.scenario, seed=options.seed))
    token = token_urlsafe(24)
    around = find_programs() if options.alerts else None
    acts = options.mode != Mode.RECOMMEND
    stage = open_stage(world, speed=options.speed, token=token, acts=acts, without=options.without)
    add_control_resources(stage.server)
    folder = service_folder(options.state).absolute()
    kubeconfig = folder / "playground.kubeconfig"
    with ExitStack() as stack:
        live = go_live(stage, host=options.host, port=options.port, metrics_port=options.metrics_port)
        stack.callback(live.close)
        write_private(kubeconfig, live.api.kubeconfig(token))
        stack.callback(kubeconfig.unlink, missing_ok=True)
        settings = settings_of(options, live, kubeconfig, around)
        set_up_logs(settings.log)
        owners = settings.kubernetes is not None and settings.kubernetes.approve_on_work
        site = capped_site(controller_site(live, kubeconfig, approve_on_work=owners), options.mode)

        def ready(page: str) -> None:
            state = folder if options.state is not None else None
            for line in what_to_try(stage, live, kubeconfig, token, page, options.mode, state):
                say(line)
            if around is not None:
                stack.enter_context(_watched(around, settings, options.speed))
                say(f"alerts, which `autopilot alerts` lists: {' and '.join(around.settings().values())}")

        run_site(settings, site, ready=ready)


def _watched(around: Monitoring, settings: Settings, speed: float) -> AbstractContextManager[None]:
    """Both programs, connected with the running service."""
    own, tokens = places(settings.state), settings.http.tokens
    reader = next((each.file for each in tokens if each.role == Role.ADMIN), own.token)
    sender = next((each.file for each in tokens if each.role == Role.ALERTS), reader)
    note = read_note(own.service)
    if not note.get("metrics"):
        raise InputError("--alerts: the controller serves no metrics; set metrics.listen")
    metrics = urlsplit(note["metrics"]).netloc
    return running(around, api=note["url"], metrics=metrics, reader=reader, sender=sender, speed=speed)


def settings_of(options: PlaygroundOptions, live: Live, kubeconfig: Path, around: Monitoring | None = None) -> Settings:
    """The settings of the service beside the playground."""
    over = _over(options, live, kubeconfig)
    return load_settings(None, over | ({"alerts": around.settings()} if around is not None else {}))


def _over(options: PlaygroundOptions, live: Live, kubeconfig: Path) -> dict[str, Any]:
    """The settings of the controller."""
    over: dict[str, Any] = {
        "kubernetes": {
            "kubeconfig": str(kubeconfig),
            "recommendations": MOST,
            "act": options.mode != Mode.RECOMMEND,
        },
        "policy": options.policy or ("recommend" if options.mode == Mode.RECOMMEND else "autopilot"),
        "collectors": {"exporters": {"targets": live.exporters(), "interval_s": SCRAPE_S}},
        "loop": {"interval_s": SCRAPE_S},
        "log": {"level": "warning"},
    }
    if METRICS_LISTEN not in os.environ:
        over["metrics"] = {"listen": free_address(Metrics().listen)}
    if options.listen is not None:
        over["http"] = {"listen": options.listen}
    if options.state is not None:
        over["state"] = str(options.state)
    return over


def free_address(wanted: str | None) -> str | None:
    """`wanted`, or the same host with a free port if another process, such as a service, listens there."""
    if wanted is None:
        return None
    try:
        bound, _ = bind(wanted, "metrics.listen")
        bound.listen()
    except (InputError, OSError):
        host = wanted.rpartition(":")[0]
        bound, _ = bind(f"{host}:0", "metrics.listen")
        wanted = f"{host}:{bound.getsockname()[1]}"
    bound.close()
    return wanted


def write_private(path: Path, text: str) -> None:
    """Write a file readable by its owner only. Raises `InputError` if it cannot be written."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        path.unlink(missing_ok=True)
        handle = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
    except OSError as error:
        raise InputError(f"{path}: the kubeconfig cannot be written here: {error.strerror}; give --state") from error
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        file.write(text)


def what_to_try(
    stage: Stage,
    live: Live,
    kubeconfig: Path,
    token: str,
    page: str,
    mode: Mode = Mode.RECOMMEND,
    state: Path | None = None,
) -> list[str]:
    """First steps for a newcomer, with and without kubectl. `state`: the folder of the controller, None: the
    default.
    """
    world, namespaces = stage.world, sorted({stage.projection.namespace(each) for each in stage.cluster.jobs.tenants})
    space = namespaces[-1]
    secure = "--insecure " if live.api.certificate else ""
    curl = f"curl -s {secure}-H 'Authorization: Bearer {token}' {live.api.url}"
    return [
        f"playground: scenario {world.title}, {counted(world.spec.nodes, 'node')}, {counted(world.spec.gpus, 'GPU')}, "
        f"{CHARGE[mode]}, {stage.clock.speed:g} virtual seconds per second; Ctrl-C ends it",
        "",
        "in another terminal, with kubectl:",
        f"  export KUBECONFIG={quote(str(kubeconfig))}",
        "  kubectl get nodes",
        "  kubectl get pods,jobs,workloads -A",
        f"  kubectl -n {space} create job mine --image=busybox -- sleep 20m",
        f"  kubectl -n {space} describe job mine",
        f"  kubectl -n {space} delete job mine",
        "without kubectl:",
        f"  {curl}/api/v1/nodes",
        f"  {curl}/apis/kueue.x-k8s.io/v1beta2/workloads",
        "what the controller decides, and why:",
        "  kubectl get recommendations",
        *(f"  {line}" for line in MORE[mode]),
        *([f"  export {STATE}={quote(str(state))}"] if state is not None else []),
        "  autopilot recommendations",
        f"  {page}",
        "metrics of its GPUs, for a Prometheus (http_sd_configs):",
        f"  {live.metrics.url}/sd/exporters",
        f"namespaces: {', '.join(namespaces)}",
    ]
