"""The working copy of the state for one pass: it starts jobs and stops others on it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from simulator.baselines.slurm import preempt
from simulator.baselines.slurm.choice import choose
from simulator.baselines.slurm.limits import Use
from simulator.baselines.slurm.model import Books, Job, Running
from simulator.baselines.slurm.reservations import open_to
from simulator.baselines.slurm.site import Site
from simulator.baselines.slurm.topology import leaf_count


@dataclass(slots=True)
class Decisions:
    """The decisions of a pass: starts in order; stops as (leaving job, its beneficiary); planned starts of other
    jobs with their nodes.
    """

    starts: list[Running] = field(default_factory=list)
    stops: list[tuple[str, str]] = field(default_factory=list)
    plans: dict[str, tuple[float, tuple[int, ...]]] = field(default_factory=dict)


@dataclass(slots=True)
class Trial:
    """The state at `now_s` (whole seconds). `waited_s` gives the time since a job became eligible."""

    site: Site
    now_s: int
    books: Books
    running: dict[str, Running]
    pending: Sequence[Job]
    use: Use
    waited_s: Callable[[Job], float]
    plan_all: bool = False  # plan also what decides nothing
    array_running: dict[str, int] = field(default_factory=dict)
    decisions: Decisions = field(default_factory=Decisions)
    earliest: dict[tuple[object, ...], tuple[float, list[int]] | None] = field(default_factory=dict)  # until a start
    _ends: list[Running] | None = None

    def queue(self) -> Sequence[Job]:
        """Eligible jobs in order."""
        return self.pending

    @property
    def every_node(self) -> int:
        """All nodes."""
        return (1 << len(self.site.nodes)) - 1

    def partition_nodes(self, name: str) -> int:
        """The nodes of a partition."""
        return self.site.partition_nodes(name)

    def limit_s(self, job: Job) -> float:
        """The limit of a job, as its partition allows."""
        return self.site.limit_s(job)

    def allowed(self, job: Job, start_s: float) -> int | None:
        """Nodes open to a start at this time; None if the job waits for its reservation."""
        open_nodes = open_to(job, self.site.reservations, start_s, self.now_s)
        if open_nodes is None:
            return None
        return self.partition_nodes(job.partition) & self.site.up & job.only & open_nodes

    def refusal(self, job: Job) -> str:
        """The limit against a start of the job; "" for none."""
        if job.array_running and self.array_running.get(job.array, 0) >= job.array_running:
            return "JobArrayTaskLimit"
        return self.use.refusal(job) if self.site.config.enforce_limits else ""

    def place(self, job: Job, allowed: int, books: Books, *, later: bool = False) -> list[int] | None:
        """The nodes for the job. For a `later` start Slurm does not look at switches."""
        tree = None if later else self.site.tree
        nodes = choose(job, books.fitting(job, allowed), books, tree=tree, least_loaded=self.site.config.least_loaded)
        waits = nodes is not None and tree is not None and job.switches and self.waited_s(job) < job.switch_wait_s
        return None if waits and tree is not None and leaf_count(tree, nodes or ()) > job.switches else nodes

    def candidates(self, job: Job) -> list[Running]:
        """Running jobs it may stop or suspend."""
        site = self.site
        if site.config.preempt == "none":
            return []
        return preempt.candidates(site.config, site.accounts, job, list(self.running.values()))

    def stops(self, run: Running) -> bool:
        """True if its GPUs are free once it is preempted."""
        return preempt.mode_of(self.site.config, self.site.accounts, run.job) in preempt.STOPS

    def start_now(self, job: Job, allowed: int) -> bool:
        """Start the job on some of these nodes; if others have to leave for it, stop them and return False."""
        nodes = self.place(job, allowed, self.books)
        if nodes is None:
            self._stop_for(job, allowed)
            return False
        run = Running(job, self.now_s, self.now_s + self.limit_s(job), tuple(nodes), self.books.take(job, nodes))
        self.running[job.key] = run
        if self.site.config.enforce_limits:
            self.use.add(job)
        if job.array:
            self.array_running[job.array] = self.array_running.get(job.array, 0) + 1
        self._ends = None
        self.earliest.clear()
        self.decisions.starts.append(run)
        return True

    def _stop_for(self, job: Job, allowed: int) -> None:
        found = [run for run in self.candidates(job) if self.stops(run)]
        chosen = found and preempt.victims(
            self.site.config, found, self.books, lambda books: self.place(job, allowed, books)
        )
        self.decisions.stops += [(run.job.key, job.key) for run in (chosen[1] if chosen else ())]

    def by_end(self) -> list[Running]:
        """Running jobs in the order of their ends."""
        if self._ends is None:
            self._ends = sorted(self.running.values(), key=lambda run: (run.end_s, run.job.order))
        return self._ends

    def clock_s(self, time_s: float) -> float:
        """A time by the wall clock: the grid follows its minutes."""
        return time_s + self.site.clock_s
