"""The controller that ships, beside an API server with Kueue, while everything goes wrong: one seed, one run.

    ApiHostile(seed).run(100)

Owners submit, edit, delete and recreate Jobs; requests are refused, slow or lost; watch events come twice, late or in
another order; people approve late, change modes and stop everything; leaders die in the middle of a tick, and earlier
leaders wake up. tests/hostile/api_watch.py judges every write. `quiet` then ends all that, and what can run must run.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, ClassVar
from unittest import mock

from actuators.kubernetes import writing
from actuators.kubernetes.actuator import KubernetesActuator
from actuators.kubernetes.api import Api
from actuators.kubernetes.upkeep import ActiveCheck, OldPlacements
from apiserver.http.faults import QUIET, FaultPlan, Faults
from apiserver.users import ADMIN
from autopilot.contract.annotations import CHECK, CONTROLLER
from autopilot.controller import Controller, Wiring
from autopilot.core.capabilities.verbs import OPERATIONS
from autopilot.core.intake.sight import INVENTORY, WORK
from autopilot.core.model.memory import ControllerMemory, Step
from autopilot.core.model.policy import Mode, Modes, Policy
from autopilot.core.model.records import Code, CommandKind, Decision, Instruction, Observation, Proposal
from autopilot.readiness.fence import fence_policy
from autopilot.service.leading.leadership import ClusterLeadership, FencedFollower
from autopilot.service.leading.memory import ClusterMemory
from collectors.kubernetes.collector import KubernetesCollector, Options
from collectors.kubernetes.source import Cluster
from tests.hostile import api_rules
from tests.hostile.api_ports import Elected, Noting, People, policy_of
from tests.hostile.api_quiet import left_waiting
from tests.hostile.api_rules import Interrupted
from tests.hostile.api_watch import EXCLUDE, PREEMPTIBLE, SLO, ApiWatch, Decided
from tests.hostile.api_wire import Wire
from tests.hostile.watch import for_an_owner
from tests.kits.acting_kit import CHECKED, TIME
from tests.kits.failovers import OURS
from tests.kits.fence_kit import install_fence, set_epoch
from tests.kits.killing import Killed, Nowhere, make_mortal, take_lease
from tests.kits.kube_objects import node
from tests.kits.kueue_kit import JOBS, ROOT, SPACE, KueueCluster
from tests.kits.lead_kit import InProcess, with_namespace

NODES, GPUS = 3, 8
ACTIONS = tuple(Modes.__dataclass_fields__)
NOISE = FaultPlan(0.08, 1.0, 0.08, 0.05, 0.1, 0.05, 0.15, 0.15)
QUIET_TICKS, QUIET_S = 60, 20.0


@dataclass
class Process:
    """One controller."""

    controller: Controller
    elected: Elected
    source: Cluster
    die: Callable[[], None]
    boundaries: Interrupted


@dataclass
class ApiHostile:
    """See the module. `actuator` makes the actuator of a process."""

    seed: int
    actuator: ClassVar[Callable[..., KubernetesActuator]] = KubernetesActuator
    steps: int = 0
    fence: int = 0
    log: list[str] = field(default_factory=list)
    shown: list[Proposal] = field(default_factory=list)
    earlier: Process | None = None
    webhooks_down: bool = False
    store_fate: str = ""  # of requests that write the memory of the leader: "request lost" | "answer lost"

    def __post_init__(self) -> None:
        self.rng = random.Random(self.seed)
        self.kueue = KueueCluster()
        self.server, self.ask = self.kueue.server, self.kueue.ask
        self.policy = self.calm = policy_of()
        self.faults, self.people, self.made = Faults(seed=self.seed), People(), 0
        self.watch = ApiWatch(self.server, self.policy, GPUS)
        self.decision: Decision | None = None
        self._furnish()
        self.process = self._begin()

    # --- the world ------------------------------------------------------------------------------

    def _furnish(self) -> None:
        with_namespace(self.server)
        for number in range(NODES):
            found = node(f"n{number}", GPUS, labels={"gpu": "h100"})
            made = {"name": f"n{number}", "labels": found["metadata"]["labels"]}
            self.ask("POST", "/api/v1/nodes", {"apiVersion": "v1", "kind": "Node", "metadata": made})
            self.ask("PATCH", f"/api/v1/nodes/n{number}/status", {"status": found["status"]})
        self.kueue.create("AdmissionCheck", "admissionchecks", CHECK, {"controllerName": CONTROLLER})
        row = {"type": "Active", "status": "True", "reason": "Ready", "message": "", "lastTransitionTime": TIME}
        self.ask("PATCH", f"{ROOT}/admissionchecks/{CHECK}/status", {"status": {"conditions": [row]}})
        preemption = {"reclaimWithinCohort": "Any", "withinClusterQueue": "LowerPriority"}
        for name, gpus in (("a", 16), ("b", 8)):
            self.kueue.queue(name, gpus, cohortName="all", admissionChecksStrategy=CHECKED, preemption=preemption)
        for name, value in (("low", 0), ("high", 100)):
            self.kueue.priority(name, value)
        install_fence(self.server, fence_policy)
        self.pass_time(1.0)
        self.server.authorize = lambda _call: None

    @property
    def now_s(self) -> float:
        """The time of the server, which is that of the controllers."""
        return self.server.timeline.now.timestamp()

    def pass_time(self, seconds: float) -> None:
        """Kueue, the scheduler and the kubelets do what is due."""
        self.kueue.run(seconds)

    # --- the controller -------------------------------------------------------------------------

    def _begin(self) -> Process:
        """Another controller takes over what is in the cluster."""
        self.fence += 1
        take_lease(self.server.client(ADMIN, "test"), self.fence)
        set_epoch(self.server, self.fence)
        self.watch.fence = self.fence
        wire = Wire(self.server, OURS, self.faults, self.watch.judge, lambda: self.webhooks_down)
        source = Cluster(wire, lambda: self.now_s, rng=random.Random(self.rng.random()))
        collector = KubernetesCollector(source, Options(acts=True), skew_s=lambda: 0.0)
        api, boundaries = Api(wire), Interrupted()
        elected: Any = Elected(self.fence)
        maps = InProcess(self.server, OURS, lambda method, _path: self.store_fate if method != "GET" else "")
        memory = ClusterMemory(maps, "gpu-autopilot", Nowhere(), lambda: self.now_s)
        people: Any = self.people
        leadership = ClusterLeadership(elected, memory, people)
        actuator = type(self).actuator(api, collector.objects, upkeep=(ActiveCheck(), OldPlacements()))
        api.may_write = leadership.may_write
        noting = Noting(self.decided, memory, self.watch.remember)
        controller = Controller(
            Wiring(
                collectors=(collector,),
                forecasters=[],
                actuators=dict.fromkeys(OPERATIONS, FencedFollower(actuator, actuator, leadership)),
                journal=noting,
                memory=noting,
                inbox=self.people,
                policy=self,
                leadership=leadership,
                lists=((INVENTORY, collector.name), (WORK, collector.name)),
            )
        )
        process = Process(controller, elected, source, make_mortal(api, boundaries), boundaries)
        boundaries.meanwhile = lambda: self._overtake(process)
        return process

    def _overtake(self, process: Process) -> None:
        """A process is stopped between its checks and a write: another one leads before the write leaves."""
        if process is self.process:
            self.change_leader()
            self.pass_time(self.rng.choice((0.0, 1.0, 15.0)))
            if self.rng.random() < 0.3:
                self.tick()

    def current(self) -> Policy:
        """The policy in force (port `PolicySource`)."""
        return self.policy

    def tick(self, process: Process | None = None) -> Step | None:
        """The present leader looks at what its watches tell, and acts; where it dies, another one begins."""
        acting = process or self.process
        acting.source.step_all()
        step = None
        try:
            with mock.patch.object(writing, "AT_ONCE", 1):  # one after the other, so that a seed repeats a run
                step = acting.controller.tick(self.now_s)
        except Killed:
            acting.die()
            if acting is self.process:
                self.process = self._begin()
        return step

    def decided(
        self, observation: Observation, decision: Decision, memory: ControllerMemory, sent: Sequence[Instruction]
    ) -> None:
        """What is about to be sent, on which view, and by which right."""
        self.decision = decision
        for each in sent:
            entry = memory.effects.in_flight[each.id]
            accepted = {made.id: made for made in decision.plan.proposals if made.accepted}
            mode = getattr(self.policy.modes, entry.action)
            new = each.proposal_id in accepted
            given = any(
                command.kind == CommandKind.APPROVE
                and command.subject == each.proposal_id
                and self.now_s - command.at_s <= self.policy.approval.valid_s
                for command in self.people.commands
            )
            allowed = ""
            if mode in {Mode.OFF, Mode.RECOMMEND} or (mode == Mode.APPROVE and new and not given):
                allowed = f"the mode of {entry.action} is {mode}"
            if self.people.killed:
                allowed = "the kill switch is on"
            view_s = self.now_s - float(observation.snapshot.work_age_s)
            owed = for_an_owner(observation.snapshot, entry)
            told = (each.kind, entry.action, each.subject.uid, self.now_s, view_s, allowed, entry.contract, owed)
            self.watch.decided[each.id] = Decided(*told)

    # --- what happens ---------------------------------------------------------------------------

    def run(self, steps: int) -> None:
        """Run this number of steps, then the quiet time. Raises AssertionError with the last steps."""
        for number in range(10):
            self.submit()
            self.steps += number == 0
        self.pass_time(3.0)
        self.tick()
        while self.steps < steps:
            self.step()
        self.quiet()

    def step(self) -> None:
        """One thing happens, time passes, and the controller looks."""
        rules: list[Callable[[], None]] = [
            *[self.nothing] * 4,
            *[self.submit] * 5,
            *[self.delete] * 2,
            *[self.recreate] * 2,
            *[self.edit] * 4,
            self.deactivate,
            *[self.noise] * 3,
            *[self.clear] * 2,
            *[self.die] * 2,
            self.change_leader,
            *[self.earlier_wakes] * 2,
            *[self.change_mode] * 3,
            *[self.all_auto] * 2,
            *[self.approve] * 2,
            self.stop_everything,
            *[self.resume] * 3,
            *[partial(each, self) for each in api_rules.RULES],
        ]
        rule = self.rng.choice(rules)
        self.log.append(f"{self.steps} at {self.now_s:.0f}: {getattr(rule, 'func', rule).__name__}")
        rule()
        self.pass_time(self.rng.choice((0.0, 1.0, 2.0, 5.0, 15.0, 35.0, 130.0)))
        self.tick()
        self.steps += 1
        self._holds()

    def _holds(self) -> None:
        assert not self.watch.problems, f"seed {self.seed}: {self.watch.problems[:3]}; before it: {self.log[-12:]}"

    def nothing(self) -> None:
        """Only time passes."""

    def submit(self) -> None:
        """More work, up to a bound."""
        if len(self.jobs()) > 14:
            return
        rng, notes = self.rng, dict[str, str]()
        if rng.random() < 0.1:
            notes[EXCLUDE] = "true"
        if rng.random() < 0.2:
            notes[SLO] = "latency-critical"
        else:
            notes[PREEMPTIBLE] = rng.choice(("true", "true", "true", "false"))
        if rng.random() < 0.5:
            notes |= {"gpu-autopilot.io/checkpoint-on-request": "true", "gpu-autopilot.io/checkpoint-write-s": "20"}
        gpus, pods = rng.choice(((2, 1), (4, 1), (4, 1), (8, 1), (8, 2)))
        self.create(f"j{self.made}", rng.choice("ab"), gpus, pods, notes)

    def create(
        self,
        name: str,
        queue: str,
        gpus: int,
        pods: int,
        notes: dict[str, str],
        *,
        priority: str = "",
        run_s: int = 0,
    ) -> None:
        """An owner creates a Job; its priority and its length are drawn where they are not given."""
        self.made += 1
        lasts_s = run_s or self.rng.choice((60, 300, 300, 1200, 7200))
        priority = priority or self.rng.choice(("low", "low", "high"))
        body = api_rules.job_of(name, queue, gpus, pods, notes, priority=priority, lasts_s=lasts_s)
        made = self.ask("POST", JOBS, body)
        self.mark(made["metadata"]["uid"], notes)

    def mark(self, uid: str, notes: dict[str, str]) -> None:
        """Since when an owner wants something."""
        marks = self.watch.shelter_s.setdefault(uid, {})
        for key, value in ((EXCLUDE, "true"), (SLO, "latency-critical"), (PREEMPTIBLE, "false")):
            if notes.get(key) == value:
                marks.setdefault(key, self.now_s)
            else:
                marks.pop(key, None)

    def jobs(self) -> list[dict[str, Any]]:
        """Jobs that have not ended and are not being deleted."""
        found = []
        for each in self.server.store.objects("jobs.batch"):
            ended = {"Complete", "Failed"} & {row["type"] for row in each.get("status", {}).get("conditions", ())}
            if not ended and not each["metadata"].get("deletionTimestamp"):
                found.append(each)
        return sorted(found, key=lambda each: each["metadata"]["name"])

    def _one(self) -> dict[str, Any] | None:
        found = self.jobs()
        return self.rng.choice(found) if found else None

    def delete(self) -> None:
        """Its owner deletes a Job."""
        if job := self._one():
            self.ask.response("DELETE", f"{JOBS}/{job['metadata']['name']}", propagationPolicy="Background")

    def recreate(self) -> None:
        """Its owner deletes a Job, and creates another one of the name at once."""
        job = self._one()
        if job is None:
            return
        meta, name = job["metadata"], job["metadata"]["name"]
        self.ask.response("DELETE", f"{JOBS}/{name}", propagationPolicy="Background")
        self.pass_time(1.0)
        if self.server.store.get("jobs.batch", "default", name) is None:
            queue = meta["labels"]["kueue.x-k8s.io/queue-name"]
            limits = job["spec"]["template"]["spec"]["containers"][0]["resources"]["limits"]
            notes = {
                key: each for key, each in meta.get("annotations", {}).items() if key in {EXCLUDE, SLO, PREEMPTIBLE}
            }
            self.create(name, queue, int(limits["nvidia.com/gpu"]), job["spec"]["parallelism"], notes)

    def edit(self) -> None:
        """Its owner opts a Job out or in, shelters it, or changes something else."""
        job = self._one()
        if job is None:
            return
        notes = dict(job["metadata"].get("annotations", {}))
        key, value = self.rng.choice(((EXCLUDE, "true"), (PREEMPTIBLE, "false"), (SLO, "latency-critical"), ("x", "y")))
        wanted = {key: None if notes.get(key) == value else value}
        if key == SLO:
            wanted[PREEMPTIBLE] = None  # a contradiction would make it work that is left alone
        elif key == PREEMPTIBLE:
            wanted[SLO] = None
        body = {"metadata": {"annotations": wanted}}
        if self.ask.response("PATCH", f"{JOBS}/{job['metadata']['name']}", body).status < 300:
            self.mark(job["metadata"]["uid"], {**notes, **{name: each or "" for name, each in wanted.items()}})

    def deactivate(self) -> None:
        """Its owner switches a Workload off, or on again."""
        found = self.server.store.objects("workloads.kueue.x-k8s.io")
        if found:
            each = self.rng.choice(sorted(found, key=lambda one: str(one["metadata"]["name"])))
            body = {"spec": {"active": not each["spec"].get("active", True)}}
            self.ask.response("PATCH", f"{SPACE}/workloads/{each['metadata']['name']}", body)

    def noise(self) -> None:
        """From now on the API fails now and then."""
        self.faults.plan = NOISE

    def clear(self) -> None:
        """The API works."""
        self.faults.plan = QUIET

    def die(self) -> None:
        """The leader dies at one of its next writes."""
        boundaries = self.process.boundaries
        boundaries.at = boundaries.passed + self.rng.randint(1, 4)

    def change_leader(self) -> None:
        """Another controller leads. The earlier one does not know it yet: it was paused, and looks at an old view."""
        self.earlier = self.process
        self.process = self._begin()

    def earlier_wakes(self) -> None:
        """It goes on with what it had decided, then it learns that its term is over."""
        if self.earlier is not None:
            with mock.patch.object(self.people, "commands", []):
                self.tick(self.earlier)
            self.earlier.elected.leads = self.rng.random() < 0.5
            if not self.earlier.elected.leads:
                self.earlier = None

    def change_mode(self) -> None:
        """An operator changes the mode of one action, or of all."""
        mode = self.rng.choice((Mode.AUTO, Mode.APPROVE, Mode.RECOMMEND, Mode.OFF))
        names = ACTIONS if self.rng.random() < 0.3 else (self.rng.choice(ACTIONS),)
        capped = {name: min(mode, getattr(self.calm.modes, name), key=tuple(Mode).index) for name in names}
        self.policy = replace(self.policy, modes=replace(self.policy.modes, **capped))

    def all_auto(self) -> None:
        """Everything by itself."""
        self.policy = self.calm

    def approve(self) -> None:
        """A person approves what was shown some steps ago, then looks at what is shown now."""
        for proposal in self.shown:
            if self.rng.random() < 0.7:
                self.people.give(CommandKind.APPROVE, self.now_s, proposal)
        proposals = self.decision.plan.proposals if self.decision is not None else ()
        refused = {each.id: [row.code for row in each.verdicts if not row.allowed] for each in proposals}
        self.shown = [each for each in proposals if refused[each.id] == [Code.NEEDS_APPROVAL]]

    def stop_everything(self) -> None:
        """Kill switch, kill or pause."""
        if self.rng.random() < 0.5:
            self.people.killed = True
        else:
            self.people.give(self.rng.choice((CommandKind.KILL, CommandKind.PAUSE)), self.now_s)

    def resume(self) -> None:
        """A person lets it go on."""
        self.people.killed = False
        self.people.give(CommandKind.RESUME, self.now_s)

    # --- afterwards -----------------------------------------------------------------------------

    def quiet(self) -> None:
        """Nothing goes wrong any more: all that can run runs, and nothing is under way."""
        self.clear()
        self.all_auto()
        self.resume()
        self.earlier, self.store_fate = None, ""
        self.log.append("quiet")
        for job in self.jobs():  # work that nobody starts, and that would keep its quota
            if EXCLUDE in job["metadata"].get("annotations", {}):
                self.ask.response("DELETE", f"{JOBS}/{job['metadata']['name']}", propagationPolicy="Background")
        calm = 0
        for _ in range(QUIET_TICKS):
            self.pass_time(QUIET_S)
            self.tick()
            self._holds()
            calm = 0 if self._unfinished() else calm + 1
            if calm == 3:
                return
        halted = self.decision.halted if self.decision is not None else ""
        raise AssertionError(f"seed {self.seed}: {self._unfinished()}; halted {halted!r}; before it: {self.log[-12:]}")

    def _unfinished(self) -> str:
        """What is under way, or could run and does not."""
        memory = self.process.controller.memory
        if memory.effects.in_flight or memory.starts.pipelined_starts:
            return f"under way: {sorted(memory.effects.in_flight)}, {memory.starts}"
        return left_waiting(self.server, NODES, GPUS)
