"""Stories in which work is stopped for other work, while the Job controller stands still and pods end late.

Each is played on real pods, in virtual time: the controller-manager is stopped before the work that needs room comes,
and goes on `stands_s` after the first eviction has begun. Pods end `ends_s` after their deletion.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from autopilot.contract.annotations import MANAGE
from autopilot.core.model.policy import Policy
from tests.kits.acting_kit import CHECKED
from tests.kits.core_world import with_policy
from tests.kits.deciding_kit import Deciding
from tests.kits.kueue_kit import JOBS
from tests.kits.playground_acting import policy_of

Obj = dict[str, Any]
STOPS = "kubelet.playground/stop-seconds"
CONTRACT = "gpu-autopilot.io/"
EAGER: dict[str, Obj] = {
    "preemption": {"without_checkpoint": True, "grace_s": 5.0, "blast_ratio": 8.0, "priority_weight": 1e6},
    "protection": {"min_runtime_s": 0.0},
    "hysteresis": {"dwell_s": 0.0, "margin_ratio": 0.0},
    "modes": {"preempt": "auto"},
}
"""Nothing but need decides what is stopped."""
TICK_S = 30.0
"""While nothing happens for minutes, the controller looks this often."""


@dataclass
class Stopping:
    """A cluster with work whose pods end late, and what was stopped of it."""

    folder: Path
    ends_s: float
    nodes: int
    policy: Policy = field(default_factory=lambda: with_policy(policy_of(), **EAGER))

    def __post_init__(self) -> None:
        self.cluster = Deciding(self.folder, self.policy, self.nodes)
        self._uids: dict[str, str] = {}

    def submit(
        self, name: str, queue: str = "a", gpus: int = 8, pods: int = 1, priority_class: str = "", **declared: str
    ) -> None:
        """A Job of eight GPUs in a queue of Kueue; "" leaves a suspended Job to the controller."""
        job = self.cluster.kueue.job_of(name, queue, 8, 1, priority_class)
        notes = {CONTRACT + key.replace("_", "-"): value for key, value in declared.items()}
        job["metadata"]["annotations"] = notes
        job["spec"]["template"]["metadata"] = {"annotations": {STOPS: f"{self.ends_s:g}"}}
        if not queue:
            job["metadata"]["labels"] = {MANAGE: "true"}
            job["spec"]["suspend"] = True
        self._uids[name] = self.cluster.ask("POST", JOBS, job)["metadata"]["uid"]

    def run(self, *names: str) -> None:
        """Until these Jobs run."""
        self.cluster.until(lambda: all(self.cluster.hosts(each) for each in names))
        self.cluster.wait(10.0)

    def stopped(self) -> set[str]:
        """Jobs that were evicted or suspended since they ran, or have pods that stop."""
        return {name for name, uid in self._uids.items() if self.cluster.revision(uid) or self._suspended(name)}

    def _suspended(self, name: str) -> bool:
        job = self.cluster.job(name)
        runs = any(each["status"].get("phase") == "Running" for each in self.cluster.pods(name))
        return bool(job["spec"].get("suspend")) and (runs or "stopped" in str(job["metadata"].get("annotations")))

    def stand(self, seconds: float) -> None:
        """Time passes, and the controller looks now and then."""
        end_s = self.cluster.now_s + seconds
        while self.cluster.now_s < end_s:
            self.cluster.run(min(TICK_S, end_s - self.cluster.now_s))
            self.cluster.wait(0.001)


def borrowed_is_reclaimed(world: Stopping) -> str:
    """A queue takes its guarantee back from gangs that borrow it."""
    cohort: Obj = {"cohortName": "all", "admissionChecksStrategy": CHECKED}
    world.cluster.kueue.queue("owner", 8 * world.nodes, preemption={"reclaimWithinCohort": "Any"}, **cohort)
    world.cluster.kueue.queue("borrower", 0, **cohort)
    names = [f"lent-{number}" for number in range(world.nodes)]
    for name in names:
        world.submit(name, "borrower")
    world.run(*names)
    world.cluster.stop_controllers()
    world.submit("starts", "owner")
    return "starts"


def service_preempts_training(world: Stopping) -> str:
    """Latency-critical work preempts training of its own queue."""
    kueue = world.cluster.kueue
    kueue.priority("high", 100)
    within: Obj = {"withinClusterQueue": "LowerPriority"}
    kueue.queue("shared", 8 * world.nodes, preemption=within, admissionChecksStrategy=CHECKED)
    return _preempts(world, "shared", "high")


def service_preempts_without_kueue(world: Stopping) -> str:
    """The same among Jobs in no queue, which the controller suspends."""
    return _preempts(world, "")


def _preempts(world: Stopping, queue: str, priority: str = "") -> str:
    names = [f"train-{number}" for number in range(world.nodes)]
    for name in names:
        world.submit(name, queue)
    world.run(*names)
    world.cluster.stop_controllers()
    world.submit("starts", queue, priority_class=priority, slo_class="latency-critical", priority="100")
    return "starts"


STORIES: Mapping[str, Callable[[Stopping], str]] = {
    each.__name__: each for each in (borrowed_is_reclaimed, service_preempts_training, service_preempts_without_kueue)
}
"""Each returns the Job that starts in the place of one other."""


def play(story: str, folder: Path, stands_s: float, ends_s: float, nodes: int = 2) -> None:
    """One gang is stopped, however long that takes, and the other one starts in its place."""
    world = Stopping(folder, ends_s, nodes)
    try:
        name = STORIES[story](world)
        world.cluster.until(world.stopped, 60.0)
        world.stand(stands_s)
        assert len(world.stopped()) == 1, world.stopped()
        assert not world.cluster.hosts(name)
        world.cluster.stop_controllers(stopped=False)
        world.stand(ends_s)
        world.cluster.until(lambda: world.cluster.hosts(name), 120.0)
        assert len(world.stopped()) == 1, world.stopped()
        assert world.cluster.failures == 0
    finally:
        world.cluster.close()
