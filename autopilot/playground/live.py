"""The playground on sockets: the API server, the metrics targets, and the controller's side of both."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from secrets import token_hex
from types import TracebackType
from typing import Self

from fastapi import FastAPI

from apiserver.http.faults import Faults
from apiserver.http.serve import Running, serve
from autopilot.core.model.errors import InputError
from autopilot.core.model.modes import Mode
from autopilot.core.model.policy import Policy
from autopilot.core.model.ports import PolicySource
from autopilot.core.sharing.set_sharing import sharing_words
from autopilot.kube.access import Access, Address
from autopilot.playground.stage import Stage
from autopilot.service.capping import further_modes
from autopilot.service.listeners import Listener
from autopilot.service.settings import Kubernetes
from autopilot.service.site import Site, kubernetes_site
from collectors.kubernetes.collector import KubernetesCollector
from collectors.kubernetes.reflector import RESUME_S
from collectors.kubernetes.source import Cluster
from simulator.serving.http import add_exposition

LEAST_S = 0.1
"""Least wall time between two ticks."""
DELIVERED_S = 5.0
"""Longest wait of a tick for complete watches of the controller, in wall time."""
POLL_S = 0.002
SCRAPE_S = 30.0
"""Virtual time between two scrapes, and between two ticks without a change."""
LEAST_WATCH_S, MOST_WATCH_S = 15.0, 300.0
"""Length of one watch, counted by the server in virtual time: about a second of wall time."""


@dataclass(slots=True)
class Live:
    """A stage with its servers. `close` ends everything started by it."""

    stage: Stage
    api: Running
    metrics: Listener

    def exporters(self) -> list[str]:
        """Address of the exporter of each node."""
        return [f"{self.metrics.url}/exporters/{name}/metrics" for name in self.stage.exporters.targets()]

    def close(self) -> None:
        """Stop listening."""
        self.metrics.close()
        self.api.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def go_live(
    stage: Stage,
    *,
    host: str = "127.0.0.1",
    port: int = 0,
    metrics_port: int = 0,
    tls: bool = True,
    faults: Faults | None = None,
) -> Live:
    """Listen. Time runs from now on, at the stage's speed. Raises `InputError` if a port is taken.

    `faults`: planted faults of the API server.
    """
    try:
        api = serve(stage.server, host=host, port=port, tls=tls, clock=stage.clock, faults=faults)
    except OSError as error:
        raise InputError(
            f"--host, --port: {host}:{port} cannot be used: {error.strerror or error}; give others"
        ) from error
    app = FastAPI(title="metrics of the playground", docs_url=None, redoc_url=None, openapi_url=None)
    add_exposition(app, lambda read: _at_now(stage, read), {"exporters": stage.exporters, "servers": stage.servers})
    try:
        metrics = Listener(app, f"{host}:{metrics_port}", "--metrics-port")
    except InputError:
        api.close()
        raise
    metrics.start()
    return Live(stage, api, metrics)


def _at_now(stage: Stage, read: Callable[[float], bytes]) -> bytes:
    with stage.clock.hold():
        return read(stage.clock.virtual_s)


def controller_site(
    live: Live,
    kubeconfig: Path,
    delivered_s: Callable[[], float] = lambda: DELIVERED_S,
    resume_s: float = RESUME_S,
    *,
    approve_on_work: bool = False,
) -> Site:
    """The cluster of the playground as the service sees a real one, but for its clock: it stands during a tick.

    If work waits for the autopilot, it acts through the API, with its levers of a real cluster. `delivered_s`: longest
    wait of a tick for complete watches. `resume_s`: longest absence of the server before everything is listed again.
    `approve_on_work`: see the setting of `kubernetes`.
    """
    stage = live.stage
    speed = stage.clock.speed
    watch_s = min(max(LEAST_WATCH_S, speed), MOST_WATCH_S)
    acts = stage.checked is not None
    configs = stage.cluster.inventory.names.sharing_configs
    settings = Kubernetes(
        kubeconfig=kubeconfig,
        watch_s=watch_s,
        act=acts,
        approve_on_work=approve_on_work,
        sharing_configs={each.key: sharing_words(each.sharing, each.replicas) for each in configs},
    )
    site = kubernetes_site(settings, Access(Address(kubeconfig)), stage.clock.now_s, one_clock=True, resume_s=resume_s)
    watches = _watches(site)

    @contextmanager
    def still() -> Iterator[None]:
        with stage.clock.hold():
            wait_delivered(stage, watches, delivered_s())
            yield
            # A late controller would scrape too seldom to tell idle work, so time waits for it.
            stage.clock.run_until(stage.clock.virtual_s // SCRAPE_S * SCRAPE_S + SCRAPE_S)

    about = {"scenario": stage.world.title, "seed": stage.world.seed, "speed": speed, "engine": "kueue"}
    run = f"playground-{token_hex(6)}"
    return replace(
        site,
        policy_under=stage.world.policy,
        still=still,
        speed=speed,
        least_s=LEAST_S,
        run=run,
        about={**site.about, **about},
    )


def capped_site(site: Site, mode: Mode) -> Site:
    """The same, with every mode of its policy at most `mode`."""
    return replace(site, policy=lambda source: AtMost(site.policy(source), mode))


class AtMost:
    """A policy source with modes up to one mode."""

    def __init__(self, source: PolicySource, mode: Mode) -> None:
        self._source, self._mode = source, mode
        self._last: tuple[Policy, Policy] | None = None

    @property
    def problem(self) -> str | None:
        """Reason for a policy not in force as written; None without one."""
        return getattr(self._source, "problem", None)

    def current(self) -> Policy:
        """The policy in force; the same object while nothing changed."""
        policy = self._source.current()
        if self._last is None or self._last[0] is not policy:
            order = tuple(Mode)
            further = {
                name: self._mode
                for name in further_modes(policy)
                if order.index(getattr(policy.modes, name)) > order.index(self._mode)
            }
            capped = replace(policy, modes=replace(policy.modes, **further)) if further else policy
            self._last = (policy, capped)
        return self._last[1]


def _watches(site: Site) -> Cluster:
    collector = site.collector
    if not isinstance(collector, KubernetesCollector):
        raise TypeError(f"{collector.name} does not read a Kubernetes cluster")
    return collector.source


def wait_delivered(stage: Stage, watches: Cluster, within_s: float = DELIVERED_S) -> bool:
    """Wait until the watches have delivered all objects of the server; False if they are late.

    Delivery is an exchange under way, so the clock is held meanwhile.
    """
    end_s = time.monotonic() + within_s
    while not delivered(stage, watches):
        if time.monotonic() > end_s:
            return False
        time.sleep(POLL_S)
    watches.sign(stage.clock.now_s())
    return True


def delivered(stage: Stage, watches: Cluster) -> bool:
    """True if every list of the controller is as the server's, and none failed last."""
    store, healths = stage.server.store, watches.health()
    off = {each.kind.title for each in healths if each.off}
    if any(each.problem and not each.off for each in healths):
        return False  # it is asked again in real time, and virtual time would run ahead of that
    for kind, version in watches.versions():
        if kind.title in off:
            continue
        shelf = store.shelf(kind.title)
        if version < 0 or (shelf.history and shelf.history[-1].rv > version):
            return False
    return True
