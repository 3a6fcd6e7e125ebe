"""`autopilot run`: the composition of the service, from its settings to a clean end of the process."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

import structlog

from autopilot.app.when import When
from autopilot.core.model.errors import InputError
from autopilot.crds.wiring import open_keeper
from autopilot.http.app import delivery_app, service_app
from autopilot.http.auth import Caller, Tokens, read_tokens
from autopilot.http.cluster_tokens import ClusterTokens
from autopilot.http.desk import Desk
from autopilot.http.history import History
from autopilot.http.metrics_app import metrics_app
from autopilot.http.oidc import Provider
from autopilot.metering.segments import metering_folder
from autopilot.oncall.wiring import open_follower
from autopilot.service.listeners import Certificates, Listener
from autopilot.service.logs import set_up_logs
from autopilot.service.notices import open_notifier, ways_of
from autopilot.service.settings import Role, Settings, Simulation
from autopilot.service.settings_file import load_settings
from autopilot.service.site import Site, kubernetes_site
from autopilot.service.state_folder import Places, own_token, places, write_note
from autopilot.service.wiring import Service, wire, wiring_lines

if TYPE_CHECKING:
    from autopilot.service.keda import KedaServer

log: Any = structlog.get_logger("service")
Simulate = Callable[[Simulation, Path], AbstractContextManager[Site]]
"""Opens the simulated cluster of the settings (`autopilot.simulated.site.open_site`)."""


def run_service(
    config: Path | None, over: Mapping[str, Any], simulate: Simulate, *, check: bool, say: Callable[[str], None]
) -> None:
    """Run until SIGTERM or SIGINT; with `check` only validate and describe the wiring."""
    settings = load_settings(config, over)
    if check:
        read_tokens(settings.http.tokens)
        _provider(settings)
        ways_of(settings.notices)
        for line in (*wiring_lines(settings), "the settings are valid"):
            say(line)
        return
    set_up_logs(settings.log)
    with ExitStack() as stack:
        run_site(settings, _site(settings, simulate, stack), say)
    log.info("stopped")


def run_site(settings: Settings, site: Site | None, ready: Callable[[str], None] | None = None) -> None:
    """Run the service on a cluster until SIGTERM or SIGINT. `ready` receives the places of its page and of the token
    for it.
    """
    with ExitStack() as stack:
        own = places(settings.state, site.run if site is not None else "")
        service = wire(settings, own, site)
        stack.callback(service.close)
        url = _listen(service, own, stack, When(site.start_s if site is not None else 0.0))
        keeper = open_keeper(service)
        if keeper is not None:
            stack.callback(keeper.close)
        stack.callback(service.publisher.close)  # before the listeners: open requests end by themselves
        service.pulse.start()  # and never ended: the end of the process must not hang either
        stack.enter_context(_stopped_by_signals(service.loop.stop))
        log.info("running", api=url, state=str(own.folder), fence=service.leadership.fence(), **_about(site))
        if ready is not None:
            ready(page_words(url, settings, own))
        try:
            service.loop.run()
        finally:
            service.pulse.ending()
        log.info("stopping", tick=service.controller.memory.tick)


def page_words(url: str, settings: Settings, own: Places) -> str:
    """The address of the page, and the place of the token for it."""
    files = [str(each.file) for each in settings.http.tokens if each.role != Role.ALERTS] or [str(own.token)]
    more = ", or a token of the cluster (`http.cluster_roles`)" if settings.http.cluster_roles is not None else ""
    more += f", or through {settings.http.oidc.name}" if settings.http.oidc is not None else ""
    return f"page: {url}, sign in with the token in {' or '.join(files)}{more}"


def _site(settings: Settings, simulate: Simulate, stack: ExitStack) -> Site | None:
    """The cluster named in the settings; None without one."""
    if settings.simulation is not None:
        return stack.enter_context(simulate(settings.simulation, places(settings.state).cluster))
    return kubernetes_site(settings.kubernetes) if settings.kubernetes is not None else None


def _about(site: Site | None) -> Mapping[str, Any]:
    return (site.logged or site.about) if site is not None else {}


def _listen(service: Service, own: Places, stack: ExitStack, when: When) -> str:
    """Start the API and the metrics; returns the address of the API."""
    settings = service.settings
    tokens, token_file = read_tokens(settings.http.tokens), None
    if not tokens:
        tokens, token_file = [(own_token(own.token), Caller("admin", Role.ADMIN))], own.token
    follower = open_follower(settings, own.alerts, service.publisher, service.record, service.journal)
    follower.start()
    stack.callback(follower.close)
    desk = Desk(
        service.publisher,
        service.inbox,
        service.kill_switch,
        _tokens(service, tokens),
        service.record,
        service.clock_s,
        service.loop.wake,
        settings.http.answer_s,
        when=when,
        waiting=service.waiting,
        hangs=lambda: service.pulse.problem,
        rearm=service.restraint.rearm if service.restraint is not None else None,
        follower=follower,
        body_bytes=settings.http.body_kib << 10,
        alerts_bytes=settings.alerts.body_kib << 10,
        history=History(own.history),
        metering=metering_folder(own.journal),
        provider=_provider(settings),
    )
    service.publisher.follow(desk.history.take)
    notifier = open_notifier(settings.notices, service.record, settings.http.public_url or "", when)
    if notifier is not None:
        service.publisher.follow(notifier.take)
        service.exposed.counts.append(notifier.counts)
        stack.callback(notifier.close)
    stack.callback(desk.history.keep)
    listeners = [Listener(service_app(desk), settings.http.listen, "http.listen")]
    if settings.metrics.listen is not None:
        app = metrics_app(service.exposed, None if settings.metrics.open else desk.tokens)
        listeners.append(Listener(app, settings.metrics.listen, "metrics.listen"))
    if settings.alerts.mtls is not None:
        given = settings.alerts.mtls
        shown = Certificates(given.certificate, given.key, given.client_ca)
        listeners.append(Listener(delivery_app(desk), given.listen, "alerts.mtls", shown))
    for listener in listeners:
        listener.start()
        stack.callback(listener.close)
    keda = open_keda(service)
    if keda is not None:
        stack.callback(keda.close)
    note = {"url": listeners[0].url, "pid": os.getpid(), "token_file": str(token_file) if token_file else None}
    note["journal"] = str(own.journal)
    note["metrics"] = listeners[1].url if settings.metrics.listen is not None else None
    note["keda"] = keda.address if keda is not None else None
    note["deliveries"] = listeners[-1].url if settings.alerts.mtls is not None else None
    write_note(own.service, note)
    stack.callback(own.service.unlink, missing_ok=True)
    return listeners[0].url


def _provider(settings: Settings) -> Provider | None:
    """The OpenID Connect provider for sign-in, None without one."""
    given, url = settings.http.oidc, settings.http.public_url
    return Provider(given, url) if given is not None and url is not None else None


def open_keda(service: Service) -> KedaServer | None:
    """The server for KEDA, started; None if none is wanted."""
    given = service.settings.scale.keda
    if given is None:
        return None
    from autopilot.service.keda import Floors, KedaServer

    tls = None
    if given.certificate is not None and given.key is not None and given.client_ca is not None:
        tls = Certificates(given.certificate, given.key, given.client_ca)
    server = KedaServer(Floors(service.publisher, service.clock_s), given.listen, tls)
    server.start()
    return server


def _tokens(service: Service, own: Sequence[tuple[str, Caller]]) -> Tokens:
    """The tokens of the service, and those of the cluster if the settings give them roles."""
    roles = service.settings.http.cluster_roles
    return Tokens(own) if roles is None or service.api is None else ClusterTokens(own, service.api.post, roles)


@contextmanager
def _stopped_by_signals(stop: Callable[[], None]) -> Iterator[None]:
    """The first SIGTERM or SIGINT ends the loop after its tick; the second one acts as usual."""

    def first(number: int, _frame: FrameType | None) -> None:
        stop()
        signal.signal(number, signal.SIG_DFL)

    before = {number: signal.signal(number, first) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def simulation_of(config: Path | None, scenario: str | None, speed: float | None, attach: str | None) -> dict[str, Any]:
    """The part of the settings from the flags of a simulation."""
    if scenario is None and attach is None:
        if speed is not None and config is None:
            raise InputError(
                "--speed: applies to a simulated cluster; name one with --simulate, for example quickstart"
            )
        return {"simulation": {"speed": speed}} if speed is not None else {}
    given = {"scenario": scenario, "speed": speed, "attach": attach}
    return {"simulation": {name: value for name, value in given.items() if value is not None}}


def kubernetes_of(kubeconfig: Path | None, context: str | None, *, in_cluster: bool) -> dict[str, Any]:
    """The part of the settings from the flags of a real cluster."""
    if kubeconfig is None and not in_cluster:
        if context is not None:
            raise InputError("--context: names a context of a kubeconfig; give it with --kubeconfig FILE")
        return {}
    if in_cluster and (kubeconfig is not None or context is not None):
        raise InputError("--in-cluster: uses the service account of the pod; leave --kubeconfig and --context out")
    given = {"kubeconfig": str(kubeconfig) if kubeconfig else None, "context": context, "in_cluster": in_cluster}
    return {"kubernetes": {name: value for name, value in given.items() if value}}
