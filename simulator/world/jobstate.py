"""The state of every job, and the observers of changes: the columns of the cluster.

Columns are lists by job row. Only the cluster changes them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import nan
from typing import Any, Protocol

from simulator.world.facts import HOOKS, Declared, Fact
from simulator.world.hardware import Held
from simulator.world.progress import Leaving
from simulator.world.work import Jobs

UNSUBMITTED = -1
"""State of a job before its submit time."""


class Limits(Protocol):
    """The hard limits of queues, as a scheduler without quota asks them."""

    def queue(self, job: int) -> int:
        """The queue of a job, as a number."""
        ...

    def room(self, job: int, beside: int = -1) -> bool:
        """True if its queues have room for a job, and for the job `beside` too."""
        ...

    def allows(self, job: int, gpus: Sequence[int]) -> bool:
        """True if a job may start on exactly these GPUs."""
        ...

    def budget(self) -> Budget:
        """The limits of an order choosing all running jobs anew."""
        ...


class Budget(Protocol):
    """Limits to fill job by job from nothing."""

    def fits(self, job: int) -> bool:
        """True if its queues have room for it beside the added jobs."""
        ...

    def add(self, job: int) -> None:
        """It is to run."""
        ...


class JobState:
    """All jobs are unsubmitted at first."""

    def __init__(self, jobs: Jobs) -> None:
        """No jobs submitted, no observers."""
        self.jobs = jobs
        self.limits: Limits | None = None  # None: none, or the scheduler keeps them itself
        self.state: list[int] = []
        self.incarnation: list[int] = []
        self.first_start_s: list[float] = []  # NaN: never started
        self.start_s: list[float] = []  # of the present incarnation; NaN while it holds no GPUs
        self.since_s: list[float] = []  # of its latest start, whatever resizes followed; NaN likewise
        self.ready_s: list[float] = []
        self.end_s: list[float] = []  # when it ended permanently; NaN before
        self.served_s: list[float] = []  # progress kept from earlier incarnations
        self.outlived_s: list[float] = []  # most progress that an earlier incarnation reached, kept or lost
        self.lost_gpu_s: list[float] = []  # lost by the latest stop; NaN: never stopped
        self.evictions: list[int] = []
        self.nodes_used: list[int] = []  # nodes at its last start
        self.ran_on: list[tuple[int, ...]] = []  # these nodes
        self.backfilled: list[bool] = []
        self.held: list[Held | None] = []
        self.holding: dict[int, None] = {}
        self.pending: dict[int, None] = {}
        self.opted_out: set[int] = set()
        self.parked: dict[int, float] = {}  # stopped for doing nothing, until its owner returns: since when
        self.leaving: dict[int, Leaving] = {}  # evicted, and still on its GPUs
        self.stale: dict[int, float] = {}  # a member is dead, the others keep their GPUs: since when
        self.paused: dict[int, float] = {}  # waits at a step boundary because it was asked to: since when
        self.waited_s: dict[int, float] = {}  # length of earlier pauses of its incarnation, on GPUs of its own
        self.hooks: dict[type, list[Callable[[Any], None]]] = {fact: [] for fact in HOOKS}
        self.grow()

    def grow(self) -> None:
        """Extend the columns for newly added jobs."""
        more = len(self.jobs) - len(self.state)
        self.state += [UNSUBMITTED] * more
        for counts in (self.incarnation, self.evictions, self.nodes_used):
            counts.extend([0] * more)
        self.ran_on += [()] * more
        for times in (
            self.first_start_s,
            self.start_s,
            self.since_s,
            self.ready_s,
            self.end_s,
            self.lost_gpu_s,
        ):
            times.extend([nan] * more)
        self.served_s += [0.0] * more
        self.outlived_s += [0.0] * more
        self.backfilled += [False] * more
        self.held += [None] * more

    def declare(
        self,
        job: int,
        now_s: float,
        *,
        preemptible: bool | None = None,
        excluded: bool | None = None,
        slo_class: int | None = None,
    ) -> None:
        """Its owner declares something else; a property of None stays."""
        if preemptible is not None:
            self.jobs.preemptible[job] = preemptible
        if slo_class is not None:
            self.jobs.slo_class[job] = slo_class
        if excluded is not None:
            (self.opted_out.add if excluded else self.opted_out.discard)(job)
        self.publish(Declared(now_s, job, job in self.opted_out))

    def observe(self, observer: object) -> None:
        """Pass every later fact to the methods of `observer` named in facts.HOOKS."""
        for fact, name in HOOKS.items():
            hook = getattr(observer, name, None)
            if hook is not None:
                self.hooks[fact].append(hook)

    def publish(self, fact: Fact) -> None:
        """Publish a fact to the observers of its kind."""
        for hook in self.hooks[type(fact)]:
            hook(fact)
