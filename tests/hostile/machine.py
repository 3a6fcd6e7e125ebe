"""The state machine: whatever owners, clocks, networks, people and dying processes do, in any order."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from autopilot.controller import Controller, Wiring
from autopilot.core.model.approvals import seen_of
from autopilot.core.model.policy import Mode, Modes
from autopilot.core.model.ports import Actuator
from autopilot.core.model.records import Code, Command, CommandKind, Proposal
from autopilot.core.model.snapshot import SloClass, State
from tests.hostile.ports import Collect, CrashError, Fate, Ports, Sight
from tests.hostile.watch import Approval, Watch
from tests.hostile.world import GPUS, NODES, Cluster
from tests.kits.core_world import with_policy
from tests.kits.ticking_world import ALL_AUTO

POLICY = with_policy(
    ALL_AUTO,
    hysteresis={"dwell_s": 0.0, "margin_ratio": 0.0, "cool_down_s": 120.0},
    protection={"min_runtime_s": 60.0},
    budget={"window_s": 600.0, "per_cluster": 3, "per_tenant": 2, "per_node": 4, "concurrent": 2},
    preemption={"blast_ratio": 1e6, "priority_weight": 1e6, "without_checkpoint": True, "grace_s": 30.0},
    reservation={"depth": 0},
    recovery={"hung_after_s": 1800.0},
)
"""Everything by itself and eager, so that much happens; the bounds are tight, so that they bind."""

AFTER_S = (0.0, 1.0, 5.0, 35.0, 35.0, 130.0, 900.0)
"""Time that passes after something happened, until the controller looks; 0: something else happens first."""


def happens(**drawn: st.SearchStrategy[Any]) -> Callable[[Callable[..., None]], Any]:
    """A rule after which time passes, mostly, and the controller looks."""

    def made(change: Callable[..., None]) -> Any:
        def then_tick(self: Hostile, after_s: float = 0.0, **given: Any) -> None:
            change(self, **given)
            if after_s:
                self.tick_after(after_s)

        then_tick.__name__, then_tick.__doc__ = change.__name__, change.__doc__
        return rule(after_s=st.sampled_from(AFTER_S), **drawn)(then_tick)  # type: ignore[call-overload]

    return made


ACTIONS = tuple(Modes.__dataclass_fields__)
JUMPS_S = (0.0, 0.0, 0.0, -86_400.0, -3600.0, -45.0, 45.0, 3600.0, 86_400.0, 10 * 365 * 86_400.0)
QUIET_TICKS = 90
QUIET_S = 40.0
CALM_TICKS = 4
"""The quiet phase is over after this many consecutive ticks without work."""


class Hostile(RuleBasedStateMachine):
    """See the module."""

    calm_policy = POLICY
    effects: tuple[str, ...] = ("admit", "evict", "resize", "scale")

    def __init__(self) -> None:
        super().__init__()
        self.cluster, self.ports, self.watch = self.world()
        self.controller = self._start()
        self.shown: list[Approval] = []

    def world(self) -> tuple[Cluster, Ports, Watch]:
        """The cluster, its ports, and the judge of what is sent."""
        cluster = Cluster()
        ports = Ports(cluster, self.calm_policy)
        return cluster, ports, Watch(ports)

    def _start(self) -> Controller:
        ports = self.ports
        ports.delivered = ports.saved.people.last_sequence if ports.saved is not None else -1
        collectors = [
            Collect("nodes", ports.collect_nodes),
            Collect("jobs", ports.collect_work),
            Collect("dcgm", ports.collect_telemetry),
        ]
        carries: dict[str, Actuator] = dict.fromkeys(self.effects, ports)
        wiring = Wiring(
            collectors, [], carries, ports, ports, ports, ports, ports, monotonic_s=lambda: self.cluster.true_s
        )
        return Controller(wiring)

    @initialize(widths=st.lists(st.integers(1, 4), min_size=20, max_size=26), data=st.data())
    def begin(self, widths: list[int], data: st.DataObject) -> None:
        """Enough work to fill the cluster, and some that waits."""
        for number, width in enumerate(widths):
            self.cluster.submit(f"w{number}", gpus=width, **data.draw(kinds()))
        self._tick()

    # --- the controller ---------------------------------------------------------------------------

    def _tick(self) -> None:
        try:
            self.controller.tick(self.ports.now_s)
        except CrashError:
            self.ports.crash = ""
            self.ports.leader += 1
            self.controller = self._start()

    @happens()
    def nothing(self) -> None:
        """Only time passes."""

    def tick_after(self, after_s: float) -> None:
        """Time passes, and the controller looks again."""
        self.cluster.pass_time(after_s)
        self._tick()

    @happens(where=st.sampled_from(("intend", "save", "apply")))
    def die_in_the_next_tick(self, where: str) -> None:
        """The next tick ends in the middle; another process takes over."""
        self.ports.crash = where

    @happens()
    def another_leads(self) -> None:
        """Another replica takes over from what was saved."""
        self.ports.leader += 1
        self.controller = self._start()

    # --- owners -------------------------------------------------------------------------------------

    @happens(width=st.integers(1, 4), data=st.data())
    def submit(self, width: int, data: st.DataObject) -> None:
        """More work."""
        self.cluster.submit(f"w{self.cluster.made}", gpus=width, **data.draw(kinds()))

    @precondition(lambda self: self.cluster.gangs)
    @happens(data=st.data(), what=st.sampled_from(("finish", "delete", "recreate", "edit", "edit", "hang")))
    def own(self, data: st.DataObject, what: str) -> None:
        """An owner ends, deletes, recreates or edits a workload, or it hangs."""
        gang = self.cluster.gangs[data.draw(st.sampled_from(sorted(self.cluster.gangs)))]
        if what == "finish" and gang.state == State.RUNNING:
            self.cluster.finish(gang.name)
        elif what == "delete":
            self.cluster.delete(gang.name)
        elif what == "recreate":
            self.cluster.recreate(gang.name)
        elif what == "edit":
            edits = ["excluded", "preemptible", "class"] + (["gpus"] if gang.state == State.PENDING else [])
            edit = data.draw(st.sampled_from(edits))
            columns: dict[str, dict[str, Any]] = {
                "excluded": {"excluded": not gang.columns.get("excluded", False)},
                "preemptible": {"preemptible": not gang.columns.get("preemptible", True)},
                "class": {"slo_class": SloClass.LATENCY_CRITICAL},
                "gpus": {"gpus": data.draw(st.integers(1, 8))},
            }
            gang.columns.update(columns[edit])
        elif what == "hang":
            gang.hangs = gang.state == State.RUNNING

    @happens(limit=st.sampled_from((-1, 0, 2, 4, 8)))
    def limit_a_queue(self, limit: int) -> None:
        """The limit of a queue changes."""
        self.cluster.limit = limit

    @happens(node=st.integers(0, NODES - 1))
    def lose_node(self, node: int) -> None:
        """A node fails."""
        self.cluster.lose_node(node)

    @happens()
    def return_nodes(self) -> None:
        """All nodes are back."""
        self.cluster.down.clear()

    # --- views and clocks -----------------------------------------------------------------------------

    @happens(
        work=st.sampled_from(tuple(Sight)),
        nodes=st.sampled_from(tuple(set(Sight) - {Sight.LIE, Sight.PAGE})),
        exporter=st.sampled_from(("clear", "zeros", "silent")),
        which=st.integers(0, 3),
    )
    def see(self, work: Sight, nodes: Sight, exporter: str, which: int) -> None:
        """What one or all of the collectors bring from now on."""
        if work == Sight.LIE and not self._may_lie():
            work = Sight.GAP
        if which in {0, 3}:
            self.ports.work_sight = work
        if which in {1, 3}:
            self.ports.nodes_sight = nodes
        if which in {2, 3}:
            self.ports.exporter = exporter

    def _may_lie(self) -> bool:
        """A lie that cannot be told from the truth is none: the source lists few, or lied just now."""
        return len(self.cluster.gangs) >= 24 and self.cluster.true_s - self.ports.lied_s > 600

    @happens()
    def see_clearly(self) -> None:
        """All collectors work."""
        self.ports.work_sight = self.ports.nodes_sight = Sight.CLEAR
        self.ports.exporter, self.ports.lies = "clear", 0

    @happens(by_s=st.sampled_from(JUMPS_S))
    def jump(self, by_s: float) -> None:
        """The controller's clock jumps."""
        self.ports.skew_s += by_s

    @happens()
    def mend_clock(self) -> None:
        """The controller's clock is right again."""
        self.ports.skew_s = 0.0

    # --- effects -----------------------------------------------------------------------------------------

    @happens(
        fates=st.lists(st.sampled_from(tuple(Fate)), min_size=1, max_size=6),
        late_s=st.sampled_from((10.0, 60.0, 110.0)),
    )
    def doom(self, fates: list[Fate], late_s: float) -> None:
        """What becomes of the next effects."""
        self.ports.fates, self.ports.late_s = fates, late_s

    @happens(slow=st.booleans(), counts_first=st.booleans())
    def evictions_take_time(self, *, slow: bool, counts_first: bool) -> None:
        """Whether evicted work leaves at once, and whether its eviction is counted before it leaves."""
        self.cluster.slow, self.cluster.counts_first = slow, counts_first

    @happens()
    def leave(self) -> None:
        """All evicted work has left."""
        self.cluster.leave()

    # --- what random steps seldom bring together ------------------------------------------------------------

    def _calm_ticks(self, count: int, each_s: float) -> None:
        for _ in range(count):
            self.tick_after(each_s)

    @happens(data=st.data(), exporter=st.sampled_from(("clear", "zeros")))
    def silence(self, data: st.DataObject, exporter: str) -> None:
        """Some running gangs do nothing for long, or so the exporter says of all."""
        self._see_all()
        self._calm_ticks(2, 35.0)
        running = [gang for gang in self.cluster.gangs.values() if gang.state == State.RUNNING]
        for gang in running:
            gang.hangs = exporter == "clear" and data.draw(st.integers(0, 3)) == 0
        self.ports.exporter = exporter
        self._calm_ticks(8, 50.0)

    @happens(
        data=st.data(),
        fate=st.sampled_from((Fate.RETRY, Fate.LOST, Fate.UNSEEN)),
        change=st.sampled_from(("mode", "opt out", "shelter", "recreate", "limit")),
    )
    def change_before_a_retry(self, data: st.DataObject, fate: Fate, change: str) -> None:
        """Effects fail or get lost, and before they are sent again something changes."""
        self._see_all()
        self.ports.fates = [fate] * 6
        self.tick_after(35.0)
        under_way = sorted(
            {entry.instruction.subject.name for entry in self.controller.memory.effects.in_flight.values()}
        )
        chosen = [self.cluster.gangs[name] for name in under_way if name in self.cluster.gangs]
        if change == "mode":
            self.ports.policy = replace(self.ports.policy, modes=Modes(*[Mode.OFF] * len(ACTIONS)))
        elif change == "limit":
            self.cluster.limit = 0
        elif chosen:
            gang = data.draw(st.sampled_from(chosen))
            if change == "opt out":
                gang.columns["excluded"] = True
            elif change == "shelter":
                gang.columns["slo_class"] = SloClass.LATENCY_CRITICAL
            else:
                self.cluster.recreate(gang.name)
        self._calm_ticks(2, 50.0)
        self._calm_ticks(1, 35.0)

    @happens(data=st.data(), later_s=st.sampled_from((0.0, 35.0, 130.0, 950.0)))
    def approve_what_was_shown(self, data: st.DataObject, later_s: float) -> None:
        """Every action asks; a person approves what was shown a while ago, and the cluster has changed since."""
        self._see_all()
        self.ports.policy = replace(self.calm_policy, modes=Modes(*[Mode.APPROVE] * len(ACTIONS)))
        self.tick_after(35.0)
        self.look_at_recommendations()
        shown = list(self.shown)
        if later_s:
            self._calm_ticks(int(later_s // 35.0), 35.0)
        running = sorted(gang.name for gang in self.cluster.gangs.values() if gang.state == State.RUNNING)
        ends: bool = data.draw(st.booleans())
        if running and ends:
            self.cluster.finish(data.draw(st.sampled_from(running)))
        for approval in shown:
            self._command(CommandKind.APPROVE, approval.proposal.recommendation, approval.proposal)
            self.watch.approvals[approval.proposal.recommendation] = Approval(approval.proposal, self.cluster.true_s)
        self._calm_ticks(data.draw(st.sampled_from((1, 2, 30))), 35.0)

    def _see_all(self) -> None:
        """Only scheduled events are outstanding."""
        self.see_clearly()
        self.mend_clock()
        self.switch(killed=False)
        self.command(kind=CommandKind.RESUME)

    # --- people -------------------------------------------------------------------------------------------

    @happens(action=st.sampled_from(ACTIONS), mode=st.sampled_from((Mode.AUTO, Mode.AUTO, Mode.APPROVE, *Mode)))
    def change_mode(self, action: str, mode: Mode) -> None:
        """An operator changes the mode of one action."""
        policy = self.ports.policy
        self.ports.policy = replace(policy, modes=replace(policy.modes, **{action: mode}))

    @happens()
    def look_at_recommendations(self) -> None:
        """A person opens the list of what needs an approval."""
        if self.ports.decision is not None:
            waiting = [each for each in self.ports.decision.plan.proposals if _needs_approval(each)]
            self.shown = [Approval(each, self.cluster.true_s) for each in waiting]

    @precondition(lambda self: self.shown)
    @happens(data=st.data(), kind=st.sampled_from((CommandKind.APPROVE, CommandKind.APPROVE, CommandKind.REJECT)))
    def answer(self, data: st.DataObject, kind: CommandKind) -> None:
        """A person approves or rejects what was shown, perhaps long ago."""
        shown = data.draw(st.sampled_from(self.shown))
        given = shown.proposal
        self._command(kind, given.recommendation, given)
        if kind == CommandKind.APPROVE:
            self.watch.approvals[given.recommendation] = Approval(given, self.cluster.true_s)
        else:
            self.watch.approvals.pop(given.recommendation, None)

    @happens(kind=st.sampled_from((CommandKind.KILL, CommandKind.PAUSE, *[CommandKind.RESUME] * 4)))
    def command(self, kind: CommandKind) -> None:
        """A person stops everything, or lets it go on."""
        self._command(kind)
        self.watch.stopped_by = "" if kind == CommandKind.RESUME else kind.value

    @happens(killed=st.sampled_from((False, False, False, True)))
    def switch(self, *, killed: bool) -> None:
        """The kill switch."""
        self.ports.killed = killed

    def _command(self, kind: CommandKind, subject: str = "", shown: Proposal | None = None) -> None:
        ports = self.ports
        ports.received += 1
        seen = seen_of(shown) if shown is not None else None
        ports.commands.append(Command(kind, "anna", ports.now_s, subject, sequence=ports.received, seen=seen))

    # --- what must hold -------------------------------------------------------------------------------------

    @invariant()
    def nothing_is_wrong(self) -> None:
        """After every step."""
        problems = self.watch.problems()
        assert not problems, "; ".join(problems)

    def teardown(self) -> None:
        """Once the world is quiet, everything that can run runs, and nothing is under way any more."""
        if not self.cluster.gangs:
            return
        self._calm()
        calm = 0
        for _ in range(QUIET_TICKS):
            self.cluster.pass_time(QUIET_S)
            self.cluster.leave()
            self._tick()
            self.nothing_is_wrong()
            calm = 0 if self._unfinished() else calm + 1
            if calm == CALM_TICKS:
                return
        raise AssertionError(f"{self._unfinished()}: {self._why()}")

    def _unfinished(self) -> str:
        """What is still under way, or could run and does not; "" when nothing is."""
        memory = self.controller.memory
        if memory.effects.in_flight or memory.starts.pipelined_starts:
            proposals = (each.proposal_id for each in memory.starts.pipelined_starts)
            return f"still under way: {[*sorted(memory.effects.in_flight), *proposals]}"
        free = self.cluster.free()
        waiting = [
            gang
            for gang in self.cluster.gangs.values()
            if gang.state == State.PENDING
            and not gang.columns.get("excluded")
            and gang.columns.get("preemptible", True)
        ]
        fits = [gang.name for gang in waiting if gang.columns["gpus"] <= free]
        return f"{free} GPUs are free, and {fits} wait" if fits else ""

    def _calm(self) -> None:
        self.see_clearly()
        self.return_nodes()
        self.mend_clock()
        self.cluster.limit, self.cluster.slow = -1, False
        self.ports.fates, self.ports.crash, self.ports.killed = [], "", False
        self.ports.policy = self.calm_policy
        for gang in self.cluster.gangs.values():
            gang.hangs = False
        self.command(kind=CommandKind.RESUME)

    def _why(self) -> str:
        decision = self.ports.decision
        return "" if decision is None else f"halted by {decision.halted!r}, refusals {decision.plan.refusals}"


@st.composite
def kinds(draw: st.DrawFn) -> dict[str, object]:
    """Queue, tenant, priority and shelter of one workload."""
    team = draw(st.integers(0, 1))
    return {
        "queue": team + 1,
        "tenant": team,
        "priority": draw(st.integers(0, 2)),
        "preemptible": draw(st.integers(0, 5)) > 0,
        "excluded": draw(st.integers(0, 9)) == 0,
    }


def _needs_approval(proposal: Proposal) -> bool:
    """Held by nothing but the missing approval."""
    refused = [verdict.code for verdict in proposal.verdicts if not verdict.allowed]
    return refused == [Code.NEEDS_APPROVAL]


assert GPUS >= 16  # the drawn widths fill the cluster
