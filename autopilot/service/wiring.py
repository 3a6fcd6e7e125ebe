"""The controller from its settings: every port connected. `wiring_lines` describes the result for `--check`."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

from autopilot.app.backtests.gate import bootstrap_rng
from autopilot.app.backtests.promotion import Promoter
from autopilot.controller import Controller, Wiring
from autopilot.core.capabilities.verbs import OPERATIONS
from autopilot.core.intake.sight import INVENTORY, WORK
from autopilot.core.intake.ways_in import unread
from autopilot.core.model.errors import InputError
from autopilot.core.model.memory import ControllerMemory
from autopilot.core.model.policy import Policy
from autopilot.core.model.ports import Actuator, Collector, Following, Forecaster, MemoryStore, PolicySource
from autopilot.kube.cluster_api import TICK_S, ClusterApi
from autopilot.metering.prices import load_prices
from autopilot.metering.segments import metering_folder
from autopilot.policies.editions import HeldBack
from autopilot.records.audit.entry import Kind
from autopilot.records.journal import SqliteJournal
from autopilot.records.memory import FileMemoryStore
from autopilot.registry import Registry
from autopilot.service.acting import connect, lever_lines
from autopilot.service.beside import BesideCollector
from autopilot.service.cluster_policy import ClusterPolicySource, PolicyMap, PolicyObject, PolicyPlace
from autopilot.service.config_maps import MapName, MapSwitch
from autopilot.service.consents import Consents
from autopilot.service.exposed import Exposed
from autopilot.service.inbox import CommandInbox, SqliteInbox
from autopilot.service.kill_switch import KillSwitch
from autopilot.service.known import LastKnown
from autopilot.service.leadership import FileLeadership, Led
from autopilot.service.leading.leadership import FencedActuator, FencedFollower
from autopilot.service.leading.restraint import RestrainedPolicy, leader_lines, restrained
from autopilot.service.leading.shared import Shared, open_shared
from autopilot.service.loop import Loop
from autopilot.service.metered import ServiceMeter
from autopilot.service.published import CollectorHealth, Publisher, WatchedCollector
from autopilot.service.pulse import Pulse
from autopilot.service.record import Record, RecordedActuator, RecordedFollower
from autopilot.service.settings import Settings, Telemetry
from autopilot.service.settings_collectors import Slo
from autopilot.service.site import Site
from autopilot.service.spending import DailySpend
from autopilot.service.state_folder import Places
from autopilot.service.ticks import Stopwatch, Ticks
from autopilot.settings import FilePolicySource, StaticPolicySource, load_policy, policy_names, shipped_policy
from autopilot.worker import BackgroundWorker
from collectors import load
from collectors.kubernetes.kinds import Kind as Listed
from collectors.kubernetes.source import Cluster

VERSION = version("gpu-autopilot")


@dataclass(slots=True)
class Service:
    """A wired controller. `close` releases everything, in an order that loses nothing."""

    settings: Settings
    controller: Controller
    loop: Loop
    pulse: Pulse
    publisher: Publisher
    exposed: Exposed
    inbox: CommandInbox
    kill_switch: KillSwitch
    leadership: Led
    journal: SqliteJournal
    record: Record
    clock_s: Callable[[], float]  # time of the cluster now, as far as known without asking it
    api: ClusterApi | None = None  # of a real cluster
    lists: Callable[[Listed], Cluster] | None = None
    cluster_policy: ClusterPolicySource | None = None  # place of the policy in the cluster
    health_of: list[Callable[[], CollectorHealth]] = field(default_factory=list)  # shown beside the collectors
    waiting: Callable[[], str] = lambda: ""  # the reason while another controller decides, "" while this one does
    restraint: RestrainedPolicy | None = None  # of a controller in an election
    closers: list[Callable[[], None]] = field(default_factory=list)

    def close(self) -> None:
        """Close the journal, then the inbox, then let another controller lead."""
        for close in self.closers:
            close()
        self.journal.close()
        self.inbox.close()
        self.record.event(Kind.STOP, tick=self.controller.memory.tick)
        self.record.close()
        self.leadership.release()


WrittenPolicy = StaticPolicySource | FilePolicySource | ClusterPolicySource


def policy_source(name: str, under: Mapping[str, Any] | None = None) -> StaticPolicySource | FilePolicySource:
    """A shipped policy by its name, or a file read again after each change; `under` as for `load_policy`."""
    if name in policy_names():
        return StaticPolicySource(load_policy(name, under))
    if not Path(name).suffix and not Path(name).exists():
        shipped_policy(name)  # raises, with the nearest name
    return FilePolicySource(name, under)


@dataclass(frozen=True, slots=True)
class _Kept:
    """The controller's state on disk, opened."""

    memory: MemoryStore
    before: ControllerMemory | None  # the memory of the last run
    leadership: Led
    inbox: CommandInbox
    journal: SqliteJournal
    kill: KillSwitch
    record: Record
    shared: Shared | None  # the shared state of the controllers of one cluster with an elected leader

    def waiting(self) -> str:
        """The reason while another controller decides; "" while this one does."""
        return self.shared.leadership.waiting() if self.shared is not None else ""


def wire(settings: Settings, places: Places, site: Site | None) -> Service:
    """Everything connected, nothing running. Raises `InputError` for a missing part, with the fix."""
    if site is None:
        raise InputError(
            "no cluster is configured; give --kubeconfig FILE or --in-cluster for a real one, --simulate SCENARIO for "
            "a simulated one, or set `kubernetes` or `simulation` in the settings"
        )
    written = _policy_of(settings, places, site)
    policy = restrained(settings.kubernetes, site.api, site.policy(written))
    with ExitStack() as opened:
        kept = _open(settings, places, site, policy, opened)
        watch, publisher = Stopwatch(), Publisher(LastKnown(site.speed, _period_s(settings, site)))
        prices = load_prices(settings.metering.prices)
        exposed = Exposed(publisher, kept.before, VERSION, kept.record, kept.waiting, prices, site.start_s)
        ticks = Ticks(publisher, policy, kept.kill, watch, exposed, kept.record)
        sources = (site.collector, *_telemetry(settings, site))
        for each in sources[1:]:
            site.join(each)
        prometheus = settings.collectors.prometheus
        ticks.tell = connect(site.actuator, policy, prometheus, secret(prometheus.token_file if prometheus else None))
        read = [_beside(each, site) for each in sources]
        ticks.collectors = tuple(WatchedCollector(each, time.perf_counter) for each in read)
        ticks.meter = _meter(settings, places, site, sources)
        opened.callback(ticks.meter.close)
        ticks.spending = DailySpend(metering_folder(places.journal), prices)
        keep = Promoter(Registry(places.registry)) if settings.forecasting.registry else None
        controller = Controller(
            replace(
                _ports(site, kept, policy, ticks, watch),
                forecasters=_forecasters(settings, policy.current(), keep),
                worker=BackgroundWorker(keep) if settings.forecasting.fit else None,
                on_begin=lambda memory: written.installed(memory.edition),
            )
        )
        ticks.controller, ticks.concluded, ticks.held_back = controller, site.conclude, HeldBack(written).words
        if kept.shared is not None:
            ticks.led = kept.shared.leadership.decided
            exposed.counts.append(kept.shared.elector.counts)
        exposed.counts += [site.counts] if site.counts is not None else []
        opened.pop_all()
    loop = _loop(settings, site, controller, ticks, kept)
    ticks.pulse, end_watch = Pulse(settings.loop.interval_s / site.speed, loop.stop), site.watch(loop.wake)
    if kept.shared is not None:
        kept.shared.elector.halted = lambda: ticks.pulse.problem if ticks.pulse is not None else ""
        kept.shared.start(lambda: loop.wake(hurry=True))
    return Service(
        settings=settings,
        controller=controller,
        loop=loop,
        pulse=ticks.pulse,
        publisher=publisher,
        exposed=exposed,
        inbox=kept.inbox,
        kill_switch=kept.kill,
        leadership=kept.leadership,
        journal=kept.journal,
        record=kept.record,
        clock_s=site.last_now_s,
        api=site.api,
        lists=site.lists,
        cluster_policy=written if isinstance(written, ClusterPolicySource) else None,
        health_of=ticks.health_of,
        waiting=kept.waiting,
        restraint=policy if isinstance(policy, RestrainedPolicy) else None,
        closers=[
            *(each.close for each in read if isinstance(each, BesideCollector)),
            end_watch,
            ticks.meter.close,
            ticks.spending.wait,
        ],
    )


def _ports(site: Site, kept: _Kept, policy: PolicySource, ticks: Ticks, watch: Stopwatch) -> Wiring:
    """All ports but those of the models."""
    return Wiring(
        collectors=ticks.collectors,
        forecasters=(),
        actuators=_actuators(site, kept),
        journal=kept.journal,
        memory=kept.memory,
        inbox=kept.inbox,
        policy=policy,
        leadership=kept.leadership,
        on_decision=ticks.on_decision,
        on_step=ticks.on_step,
        on_stage=watch.enter,
        lists=((INVENTORY, site.source), (WORK, site.source)),
        unread=unread,
    )


def _meter(settings: Settings, places: Places, site: Site, sources: Sequence[Collector]) -> ServiceMeter:
    meter = ServiceMeter(places.journal, site.start_s, site.speed, settings.loop.interval_s)
    meter.join(sources, settings.metering.labels)
    return meter


def _least_s(settings: Settings, site: Site) -> float:
    return settings.loop.least_s if settings.loop.least_s is not None else site.least_s


def _period_s(settings: Settings, site: Site) -> float:
    """Most wall time between two ticks."""
    return max(settings.loop.interval_s / site.speed, _least_s(settings, site))


def _loop(settings: Settings, site: Site, controller: Controller, ticks: Ticks, kept: _Kept) -> Loop:
    loop = Loop(
        controller,
        site.now_s,
        ticks.after_tick,
        interval_s=settings.loop.interval_s,
        least_s=_least_s(settings, site),
        speed=site.speed,
        still=site.still,
    )
    if site.approved is not None:
        ticks.consents = Consents(site.approved, kept.inbox, kept.record, loop.wake)
    return loop


def _open(settings: Settings, places: Places, site: Site, source: PolicySource, opened: ExitStack) -> _Kept:
    """Take the lead, or stand by; then open memory, inbox and journal. `opened` releases them on failure."""
    local = FileMemoryStore(places.memory)
    before = local.load()
    kill = KillSwitch(settings.kill_switch.file or places.kill, elsewhere=_switch_of(settings, site))
    shared = open_shared(settings.kubernetes, site.api, local, kill.reason)
    leadership: Led
    memory: MemoryStore
    inbox: CommandInbox
    if shared is not None:
        leadership, memory, inbox = shared.leadership, shared.memory, shared.inbox
        site.guard(shared.leadership.may_write)
        if isinstance(source, RestrainedPolicy):
            source.leads = shared.leadership.leads
            source.unfenced = shared.leadership.unfenced
    else:
        leadership, memory = FileLeadership(places.lock, before.fence if before is not None else 0), local
        opened.callback(leadership.release)
        if leadership.fence() is None:
            raise InputError(f"{places.lock}: another controller leads here; stop it, or give another state folder")
        inbox = SqliteInbox(places.inbox, kill.reason, before.people.last_sequence if before is not None else -1)
        opened.callback(inbox.close)
    policy = source.current()
    about = {"policy": policy.name, **site.about}
    journal = SqliteJournal(places.journal, durable=True, rules=policy.journal, run=about)
    opened.callback(journal.close)
    record = Record(places.audit)
    opened.callback(record.close)
    fence = leadership.fence() if shared is None else 0  # its election begins later
    record.event(Kind.START, run=site.run, fence=fence, version=VERSION)
    return _Kept(memory, before, leadership, inbox, journal, kill, record, shared)


def _policy_of(settings: Settings, places: Places, site: Site) -> WrittenPolicy:
    """The policy: an object of the cluster if one is named, else a file or a shipped one."""
    place = policy_place(settings)
    if place is None or site.api is None:
        return policy_source(settings.policy_name, site.policy_under)
    return ClusterPolicySource(site.api.within(TICK_S).get, place, places.last_policy)


def policy_place(settings: Settings) -> PolicyPlace | None:
    """Place of the policy in the cluster; None for a policy elsewhere."""
    given = settings.kubernetes
    if given is not None and given.policy_object is not None:
        return PolicyObject(given.policy_object)
    if given is not None and given.policy_map is not None:
        return PolicyMap(MapName(given.namespace, given.policy_map))
    return None


def _switch_of(settings: Settings, site: Site) -> Callable[[], str] | None:
    """The kill switch of the cluster, if one is named."""
    given = settings.kubernetes
    if given is None or given.kill_map is None or site.api is None:
        return None
    return MapSwitch(site.api.within(TICK_S).get, MapName(given.namespace, given.kill_map)).reason


def _actuators(site: Site, kept: _Kept) -> dict[str, Actuator]:
    """The actuator of each kind of instruction; none if nothing may act."""
    actuator = site.actuator
    if actuator is None:
        return {}
    if isinstance(actuator, Following):
        sent = RecordedFollower(actuator, actuator, kept.record)
        follows = sent if kept.shared is None else FencedFollower(sent, sent, kept.shared.leadership)
        return dict.fromkeys(OPERATIONS, follows)
    inner = actuator if kept.shared is None else FencedActuator(actuator, kept.shared.leadership)
    return dict.fromkeys(OPERATIONS, RecordedActuator(inner, kept.record))


def _telemetry(settings: Settings, site: Site) -> Iterator[Collector]:
    """The sources of telemetry of the settings, in the order of the table of collectors."""
    given = settings.collectors
    yield from site.telemetry()
    if given.prometheus is not None:
        headers = {"Authorization": f"Bearer {secret(given.prometheus.token_file)}"}
        yield load("prometheus")(
            given.prometheus.url,
            headers=headers if given.prometheus.token_file is not None else None,
            matchers=given.prometheus.matchers,
            timeout_s=given.prometheus.timeout_s,
            joins=settings.kubernetes is not None,
        )
    if given.exporters is not None:
        from collectors.exporter import Target

        yield load("exporter")(
            [Target(url) for url in given.exporters.targets],
            interval_s=given.exporters.interval_s,
            timeout_s=given.exporters.timeout_s,
        )
    if given.nvml is not None:
        yield load("nvml")(given.nvml.node, lists=False)  # one machine is not the cluster
    if given.slo is not None:
        yield _slo(given.slo, site.speed)


def _beside(source: Collector, site: Site) -> Collector:
    """A source that asks others during its `collect` is read beside the tick; the lists of a cluster are kept."""
    return source if site.at_once is not None and isinstance(source, site.at_once) else BesideCollector(source)


def _slo(given: Slo, speed: float) -> Collector:
    """The collector of the services' measurements."""
    token = secret(given.token_file)
    slo: Collector = load("slo")(
        given.url,
        sources=given.sources,
        objectives=given.objectives,
        services=given.services,
        headers={"Authorization": f"Bearer {token}"} if token else None,
        matchers=given.matchers,
        interval_s=given.interval_s,
        min_requests=given.min_requests,
        speed=speed,
    )
    return slo


def secret(path: Path | None) -> str:
    """A token from a file. Raises `InputError` for an unreadable one."""
    if path is None:
        return ""
    try:
        return path.read_text("utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(
            f"{path}: the token cannot be read: {error}; make the file readable for the service"
        ) from error


def _forecasters(settings: Settings, policy: Policy, keep: Promoter | None) -> list[Forecaster]:
    """All forecasters, that of run times first."""
    from models.bursts import Bursts
    from models.colocation import Colocations
    from models.expected_mix import MixForecaster
    from models.interference import Interferences
    from models.last_two import LastTwo
    from models.runtimes import Runtimes
    from models.stragglers import Stragglers

    given = settings.forecasting
    gate, champions = (bootstrap_rng, (keep.boosted, keep.champion)) if keep is not None else (None, (None, None))
    runtimes: Forecaster = LastTwo()
    if given.durations == "predicted":
        hazards = keep.hazards if keep is not None else None
        runtimes = Runtimes(policy.forecasting, given.seed, gate=gate, champion=champions[0], hazards=hazards)
    bursts = Bursts(given.seed, gate=gate, champion=champions[1])
    return [runtimes, bursts, MixForecaster(), Colocations(bootstrap_rng), Stragglers(), Interferences()]


def wiring_lines(settings: Settings) -> list[str]:
    """The wiring in words, one line a part. Raises `InputError` for an unusable policy."""
    policy = policy_source(settings.policy_name).current()
    prices = load_prices(settings.metering.prices)
    where = policy_place(settings)
    simulation, given = settings.simulation, settings.collectors
    sources = [f"{name}" for name in ("prometheus", "exporters", "nvml", "slo") if getattr(given, name) is not None]
    if simulation is not None and simulation.telemetry != Telemetry.OFF:
        sources.insert(0, f"simulated cluster ({simulation.telemetry.value})")
    cluster = "none: give --kubeconfig FILE, --in-cluster or --simulate SCENARIO"
    if settings.kubernetes is not None:
        cluster = settings.kubernetes.shown
        cluster += "" if settings.kubernetes.act else "; it is only read, every mode counts as recommend at most"
    if simulation is not None:
        cluster = f"simulated, scenario {simulation.scenario}, speed {simulation.speed:g}"
        cluster += f", attached to {simulation.attach}" if simulation.attach else ""
    acting = {
        mode: [name for name in policy.modes.__slots__ if getattr(policy.modes, name) == mode]
        for mode in ("auto", "approve")
    }
    real = settings.kubernetes
    levers = lever_lines(real, policy if where is None else None) if real is not None and real.act else []
    leader = leader_lines(real) if real is not None else []
    metrics, keda = settings.metrics, settings.scale.keda
    tokens = [f"{each.name} ({each.role.value})" for each in settings.http.tokens]
    oidc = settings.http.oidc
    return [
        f"cluster      {cluster}",
        f"policy       {policy.name}; by itself: {', '.join(acting['auto']) or 'nothing'}; after approval: "
        f"{', '.join(acting['approve']) or 'nothing'}"
        if where is None
        else f"policy       {where}, read at run time",
        *levers,
        *leader,
        f"telemetry    {', '.join(sources) or 'none'}",
        f"forecasts    run times {settings.forecasting.durations}, demand, mix; fits "
        f"{'in a process of their own' if settings.forecasting.fit else 'off'}, registry "
        f"{'on' if settings.forecasting.registry else 'off'}",
        f"metering     prices of {settings.metering.prices or 'the shipped example'}, in {prices.currency}",
        f"http         {settings.http.listen}, tokens: {', '.join(tokens) or 'one admin token, created'}",
        *([f"sign-in      {oidc.name}, by {oidc.issuer}"] if oidc is not None else []),
        f"notices      Events{', slack' if settings.notices.slack else ''}{', mail' if settings.notices.mail else ''}",
        f"metrics      {metrics.listen or 'off'}{', open to everybody' if metrics.open and metrics.listen else ''}",
        *([f"keda         {keda.listen}{', mutual TLS' if keda.certificate else ', not encrypted'}"] if keda else []),
        f"log          {settings.log.format.value}, {settings.log.level}",
    ]
