"""The controller from its settings: every port connected. `wiring_lines` describes the result for `--check`."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from autopilot.app.backtests.gate import bootstrap_rng
from autopilot.app.backtests.promotion import Promoter
from autopilot.controller import Controller, Wiring
from autopilot.core.intake.sight import INVENTORY, WORK
from autopilot.core.model.errors import InputError
from autopilot.core.model.memory import Step
from autopilot.core.model.operations import OPERATIONS
from autopilot.core.model.policy import Policy
from autopilot.core.model.ports import Collector, Forecaster, PolicySource
from autopilot.core.model.records import Decision, Observation
from autopilot.journal import SqliteJournal
from autopilot.memory_store import FileMemoryStore
from autopilot.registry import Registry
from autopilot.service.inbox import SqliteInbox
from autopilot.service.kill_switch import KillSwitch
from autopilot.service.leadership import FileLeadership
from autopilot.service.loop import Loop
from autopilot.service.published import Published, Publisher, WatchedCollector
from autopilot.service.settings import Settings, Telemetry
from autopilot.service.simulated import SimulatedCluster
from autopilot.service.state_folder import Places
from autopilot.settings import FilePolicySource, StaticPolicySource, policy_names, shipped_policy
from autopilot.worker import BackgroundWorker
from collectors import load
from simulator.serving.client import ChangeWatch, ServedActuator, ServedClient, ServedCollector

SIMULATED, SIMULATED_TELEMETRY = "simulated-cluster", "simulated-telemetry"
LEAST_S, LEAST_SIMULATED_S = 1.0, 0.1


@dataclass(slots=True)
class Service:
    """A wired controller. `close` releases everything, in the order in which nothing is lost."""

    settings: Settings
    places: Places
    controller: Controller
    loop: Loop
    publisher: Publisher
    inbox: SqliteInbox
    kill_switch: KillSwitch
    leadership: FileLeadership
    policy: PolicySource
    journal: SqliteJournal
    clock_s: Callable[[], float]  # time of the cluster now, as far as known without asking it
    closers: list[Callable[[], None]] = field(default_factory=list)

    def close(self) -> None:
        """Close the journal, then the inbox, then let another controller lead."""
        for close in self.closers:
            close()
        self.journal.close()
        self.inbox.close()
        self.leadership.release()


def policy_source(name: str) -> PolicySource:
    """A shipped policy by its name, or a file that is read again when it changes."""
    if name in policy_names():
        return StaticPolicySource(shipped_policy(name))
    if not Path(name).suffix and not Path(name).exists():
        shipped_policy(name)  # raises, with the nearest name
    return FilePolicySource(name)


class Stopwatch:
    """Wall time of each stage of the last tick."""

    def __init__(self) -> None:
        self.stages_s: dict[str, float] = {}
        self._stage, self._since_s = "", 0.0

    def enter(self, stage: str) -> None:
        """A stage begins, and the one before it ends."""
        now_s = time.perf_counter()
        if self._stage:
            self.stages_s[self._stage] = self.stages_s.get(self._stage, 0.0) + now_s - self._since_s
        elif stage:
            self.stages_s = {}
        self._stage, self._since_s = stage, now_s


class _Ticks:
    """Joins what the controller shows during a tick with what the loop knows after it, and publishes both."""

    def __init__(self, publisher: Publisher, policy: PolicySource, kill: KillSwitch, watch: Stopwatch) -> None:
        self._publisher, self._policy, self._kill, self._watch = publisher, policy, kill, watch
        self._shown: tuple[Observation, Decision] | None = None
        self.collectors: tuple[WatchedCollector, ...] = ()
        self.concluded: Callable[[], None] | None = None
        self.controller: Controller | None = None

    def on_decision(self, observation: Observation, decision: Decision) -> None:
        """The tick is recorded and its effects are sent."""
        self._shown = (observation, decision)
        if self.concluded is not None:
            self.concluded()

    def after_tick(self, step: Step | None, took_s: float) -> None:
        """Publish the tick; while another controller leads, the last one of this process stays."""
        if step is None or self._shown is None or self.controller is None:
            latest = self._publisher.latest
            if latest is not None and latest.leads:
                self._publisher.publish(replace(latest, leads=False))
            return
        observation, decision = self._shown
        self._publisher.publish(
            Published(
                observation=observation,
                decision=decision,
                memory=step.memory,
                policy=self._policy.current(),
                wake_at_s=self.controller.wake_at_s,
                ended_wall_s=time.time(),
                took_s=took_s,
                stages_s=dict(self._watch.stages_s),
                collectors=tuple(each.health for each in self.collectors),
                policy_problem=getattr(self._policy, "problem", None) or "",
                kill_reason=self._kill.reason(),
            )
        )


def wire(settings: Settings, places: Places, cluster: SimulatedCluster | None) -> Service:
    """Everything connected, nothing running. Raises `InputError` for what is missing, with the fix."""
    policy = policy_source(settings.policy)
    with _released_on_error() as opened:
        if cluster is None:
            raise InputError(
                "simulation: no cluster is configured; this version manages simulated clusters only: give --simulate "
                "SCENARIO, or set `simulation` in the settings"
            )
        client = ServedClient(cluster.url)
        memory = FileMemoryStore(places.memory)
        before = memory.load()
        leadership = FileLeadership(places.lock, before.fence if before is not None else 0)
        opened.append(leadership.release)
        if leadership.fence() is None:
            raise InputError(f"{places.lock}: another controller leads here; stop it, or give another state folder")
        kill = KillSwitch(settings.kill_switch.file or places.kill)
        inbox = SqliteInbox(places.inbox, kill.reason, before.last_sequence if before is not None else -1)
        opened.append(inbox.close)
        rules = policy.current()
        journal = SqliteJournal(places.journal, durable=True, rules=rules.journal, run=_run_of(settings, cluster))
        opened.append(journal.close)
        publisher, watch = Publisher(), Stopwatch()
        ticks = _Ticks(publisher, policy, kill, watch)
        collectors = tuple(
            WatchedCollector(each, time.perf_counter)
            for each in (*_lists(client), *_telemetry(settings, cluster, client))
        )
        keep = Promoter(Registry(places.registry)) if settings.forecasting.registry else None
        controller = Controller(
            Wiring(
                collectors=collectors,
                forecasters=_forecasters(settings, rules, keep),
                actuators=dict.fromkeys(OPERATIONS, ServedActuator(client)),
                journal=journal,
                memory=memory,
                inbox=inbox,
                policy=policy,
                leadership=leadership,
                worker=BackgroundWorker(keep) if settings.forecasting.fit else None,
                on_decision=ticks.on_decision,
                on_stage=watch.enter,
                lists=((INVENTORY, SIMULATED), (WORK, SIMULATED)),
            )
        )
        ticks.collectors, ticks.controller, ticks.concluded = collectors, controller, client.conclude
        opened.clear()
    loop = Loop(
        controller,
        client.now_s,
        ticks.after_tick,
        interval_s=settings.loop.interval_s,
        least_s=settings.loop.least_s if settings.loop.least_s is not None else LEAST_SIMULATED_S,
        speed=cluster.clock.speed,
    )
    changes = ChangeWatch(cluster.url, loop.wake)
    return Service(
        settings,
        places,
        controller,
        loop,
        publisher,
        inbox,
        kill,
        leadership,
        policy,
        journal,
        client.last_now_s,
        [changes.close],
    )


def _lists(client: ServedClient) -> list[Collector]:
    return [ServedCollector(client, SIMULATED)]


def _telemetry(settings: Settings, cluster: SimulatedCluster | None, client: ServedClient) -> Iterator[Collector]:
    """The sources of telemetry of the settings, in the order of the table of collectors."""
    given = settings.collectors
    if settings.simulation is not None:
        if settings.simulation.telemetry == Telemetry.WINDOWS:
            yield ServedCollector(client, SIMULATED_TELEMETRY, place=1)
        elif settings.simulation.telemetry == Telemetry.SCRAPE and cluster is not None:
            from collectors.exporter import Target

            yield load("exporter")([Target(url, node) for node, url in client.exporters().items()])
    if given.prometheus is not None:
        headers = {"Authorization": f"Bearer {_secret(given.prometheus.token_file)}"}
        yield load("prometheus")(
            given.prometheus.url,
            headers=headers if given.prometheus.token_file is not None else None,
            matchers=given.prometheus.matchers,
            timeout_s=given.prometheus.timeout_s,
        )
    if given.exporters is not None:
        from collectors.exporter import Target

        yield load("exporter")(
            [Target(url) for url in given.exporters.targets],
            interval_s=given.exporters.interval_s,
            timeout_s=given.exporters.timeout_s,
        )
    if given.nvml is not None:
        yield load("nvml")(given.nvml.node)


def _secret(path: Path | None) -> str:
    """A token from a file. Raises `InputError` where it cannot be read."""
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
    from models.expected_mix import MixForecaster
    from models.last_two import LastTwo
    from models.runtimes import Runtimes

    given = settings.forecasting
    gate, champions = (bootstrap_rng, (keep.boosted, keep.champion)) if keep is not None else (None, (None, None))
    runtimes: Forecaster = LastTwo()
    if given.durations == "predicted":
        runtimes = Runtimes(policy.forecasting, given.seed, gate=gate, champion=champions[0])
    return [runtimes, Bursts(given.seed, gate=gate, champion=champions[1]), MixForecaster()]


def _run_of(settings: Settings, cluster: SimulatedCluster) -> dict[str, object]:
    """The description of the run that the journal keeps."""
    return {
        "policy": settings.policy,
        "scenario": cluster.clock.scenario,
        "run": cluster.clock.run,
        "speed": cluster.clock.speed,
        "start_s": cluster.clock.start_s,
    }


@contextmanager
def _released_on_error() -> Iterator[list[Callable[[], None]]]:
    """Release what was opened when the wiring fails half-way."""
    opened: list[Callable[[], None]] = []
    try:
        yield opened
    except BaseException:
        for close in reversed(opened):
            close()
        raise


def wiring_lines(settings: Settings) -> list[str]:
    """The wiring in words, one line a part. Raises `InputError` for a policy that cannot be used."""
    policy = policy_source(settings.policy).current()
    simulation, given = settings.simulation, settings.collectors
    sources = [f"{name}" for name in ("prometheus", "exporters", "nvml") if getattr(given, name) is not None]
    if simulation is not None and simulation.telemetry != Telemetry.OFF:
        sources.insert(0, f"simulated cluster ({simulation.telemetry.value})")
    cluster = "none: give --simulate SCENARIO"
    if simulation is not None:
        cluster = f"simulated, scenario {simulation.scenario}, speed {simulation.speed:g}"
        cluster += f", attached to {simulation.attach}" if simulation.attach else ""
    acting = {
        mode: [name for name in policy.modes.__slots__ if getattr(policy.modes, name) == mode]
        for mode in ("auto", "approve")
    }
    metrics = settings.metrics
    tokens = [f"{each.name} ({each.role.value})" for each in settings.http.tokens]
    return [
        f"cluster      {cluster}",
        f"policy       {policy.name}; by itself: {', '.join(acting['auto']) or 'nothing'}; after approval: "
        f"{', '.join(acting['approve']) or 'nothing'}",
        f"telemetry    {', '.join(sources) or 'none'}",
        f"forecasts    run times {settings.forecasting.durations}, demand, mix; fits "
        f"{'in a process of their own' if settings.forecasting.fit else 'off'}, registry "
        f"{'on' if settings.forecasting.registry else 'off'}",
        f"http         {settings.http.listen}, tokens: {', '.join(tokens) or 'one admin token, created'}",
        f"metrics      {metrics.listen or 'off'}{', open to everybody' if metrics.open and metrics.listen else ''}",
        f"log          {settings.log.format.value}, {settings.log.level}",
    ]
