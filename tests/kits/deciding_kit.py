"""A cluster with Kueue, a scheduler, kubelets and the Job controller, and a controller of ours that decides beside it.

The playground knows whole gangs only. Here each pod lives by itself, as on a real cluster.
"""

from __future__ import annotations

import random
import subprocess
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from actuators.kubernetes.actuator import KubernetesActuator
from actuators.kubernetes.api import Api
from actuators.kubernetes.levers import LEVERS
from apiserver.http.faults import QUIET, Faults
from apiserver.kueue.config import Config
from apiserver.users import ADMIN
from autopilot.app.runs.wiring import NoInbox, NoJournal, SoleLeader
from autopilot.controller import Controller, Wiring
from autopilot.core.capabilities.verbs import OPERATIONS
from autopilot.core.intake.sight import INVENTORY, WORK
from autopilot.core.model.policy import Policy
from autopilot.core.model.records import Decision, Observation
from autopilot.records.memory import InMemoryStore
from autopilot.service.acting import connect, upkeep_of
from autopilot.settings import StaticPolicySource
from collectors.kubernetes.collector import KubernetesCollector, Options
from collectors.kubernetes.source import Cluster
from tests.hostile.api_wire import Wire, Write
from tests.kits.acting_kit import CHECKED, Acting
from tests.kits.kueue_kit import JOBS

STEP_S = 2.0


def during(command: list[str], wait: Callable[[float], None], steps: int = 300) -> subprocess.CompletedProcess[str]:
    """Run a command while time passes in steps of `wait`, and return its result. It is killed after the last step."""
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        for _ in range(steps):
            wait(STEP_S)
            with suppress(subprocess.TimeoutExpired):
                process.wait(0.2)  # it asks again once a second of its own time
            if process.poll() is not None:
                break
        process.terminate()
        out, err = process.communicate()
    return subprocess.CompletedProcess(command, process.returncode, out, err)


class Deciding(Acting):
    """Nodes n1, n2, ... and queue `a` over all of them with our check; collector, decision and levers as they ship."""

    def __init__(self, folder: Path, policy: Policy, nodes: int = 3, config: Config | None = None) -> None:
        """`policy`: with the modes in which it acts. `config`: of Kueue."""
        super().__init__(folder, nodes, tls=True, config=config)
        self.add_check()
        self.kueue.queue("a", 8 * nodes, admissionChecksStrategy=CHECKED)
        self._made: set[tuple[str, str]] = set()
        self.gates: dict[str, int] = {}
        """What the controller last saw to hold each workload back (`snapshot.Gate`), by id."""
        self._policy = policy
        self.wire_faults = Faults(QUIET)
        """What happens to the requests of the controller."""
        self._begin()
        self.wait(STEP_S)

    def _begin(self) -> None:
        """The process of the controller starts."""
        wire = Wire(self.kueue.server, ADMIN, self.wire_faults, self._wrote)
        self._source = Cluster(wire, lambda: self.now_s, rng=random.Random(1))
        collector = KubernetesCollector(self._source, Options(acts=True), skew_s=lambda: 0.0)
        actuator = KubernetesActuator(Api(wire), collector.objects, "test", LEVERS, upkeep=upkeep_of(LEVERS))
        self._tell = connect(actuator, StaticPolicySource(self._policy), None, "")
        self.controller = Controller(self._wiring(collector, actuator))

    def _wrote(self, write: Write) -> None:
        """The controller has changed something."""

    def _wiring(self, collector: KubernetesCollector, actuator: KubernetesActuator) -> Wiring:
        """What the controller is built from."""
        return Wiring(
            collectors=(collector,),
            forecasters=[],
            actuators=dict.fromkeys(OPERATIONS, actuator),
            journal=NoJournal(),
            memory=InMemoryStore(),
            inbox=NoInbox(),
            policy=StaticPolicySource(self._policy),
            leadership=SoleLeader(),
            on_decision=self._saw,
            lists=((INVENTORY, collector.name), (WORK, collector.name)),
        )

    def _saw(self, observation: Observation, decision: Decision) -> None:
        work = observation.snapshot.workloads
        self.gates = dict(zip(work.id.tolist(), work.gate.tolist(), strict=True))
        self._made |= {(each.action, each.id) for each in decision.plan.proposals if each.accepted}
        if self._tell is not None:
            self._tell(decision)

    @property
    def actions(self) -> Counter[str]:
        """Actions whose proposals were carried out; the same one, decided again, counts once."""
        return Counter(action for action, _ in self._made)

    @property
    def failures(self) -> int:
        """Effects that count as failed; enough of them pause the controller."""
        return len(self.controller.memory.halt.failed)

    @property
    def attempts(self) -> int:
        """The most attempts that an effect under way has had."""
        return max((each.attempts for each in self.controller.memory.effects.in_flight.values()), default=0)

    def wait(self, seconds: float) -> None:
        """Time passes, and the controller looks every two seconds."""
        end_s = self.now_s + seconds
        while self.now_s < end_s:
            self.run(min(STEP_S, end_s - self.now_s))
            with self.running.clock.lock:
                self._tick()

    def until(self, what: Callable[[], object], most_s: float = 300.0) -> None:
        """Time passes until something is so."""
        for _ in range(round(most_s / STEP_S)):
            if what():
                return
            self.wait(STEP_S)
        assert what()

    def _tick(self) -> None:
        """The controller looks once."""
        self._source.step_all()
        self.controller.tick(self.now_s)

    def run_gang(self, name: str, pods: int, annotations: dict[str, str] | None = None) -> None:
        """A Job whose pods take a node each runs."""
        job = self.kueue.job_of(name, "a", 8, pods)
        job["metadata"]["annotations"] |= annotations or {}
        self.ask("POST", JOBS, job)
        self.wait(30.0)
        assert len(self.hosts(name)) == pods

    def during(self, command: list[str]) -> subprocess.CompletedProcess[str]:
        """Time passes while a command runs; what it said."""
        return during(command, self.wait)

    def hosts(self, job: str) -> list[str]:
        """The nodes of the pods of a Job that run, sorted."""
        found = [each for each in self.pods(job) if each["status"].get("phase") == "Running"]
        return sorted(each["spec"]["nodeName"] for each in found if "deletionTimestamp" not in each["metadata"])
