"""The state of the controller: waiting, running and ended jobs; and its passes over it."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cmp_to_key

from simulator.baselines.slurm import preempt
from simulator.baselines.slurm.backfill import backfill_pass
from simulator.baselines.slurm.depends import Met, Past, dependency
from simulator.baselines.slurm.limits import Use
from simulator.baselines.slurm.main_pass import main_pass
from simulator.baselines.slurm.model import Books, Job, Running
from simulator.baselines.slurm.priority import Factors, Priorities
from simulator.baselines.slurm.site import Site
from simulator.baselines.slurm.trial import Decisions, Trial


@dataclass(slots=True)
class Waiting:
    """A pending job. It may not start before `not_before_s`; `eligible_s` is the time of its first eligibility."""

    job: Job
    not_before_s: float
    eligible_s: float | None = None
    priority: int = 0
    factors: Factors = field(default_factory=Factors)


class Slurmctld:
    """One site's controller. Times are whole seconds. Passes only decide; `start`, `end` and `requeue` change it."""

    def __init__(self, site: Site) -> None:
        """Nothing was submitted yet."""
        self.site = site
        self.books = Books(site.nodes)
        self.plan_all = False
        self.waiting: dict[str, Waiting] = {}
        self.running: dict[str, Running] = {}
        self.past: dict[str, Past] = {}
        self.priorities = Priorities(site)
        self._held: set[str] = set()  # waiting and not eligible
        self._queue: list[Job] | None = None  # eligible jobs in order; None: to be sorted
        self._preempting: dict[str, int] = {}  # since when a job waits for others to leave
        self._arrays: dict[str, list[str]] = {}
        self._names: dict[tuple[str, str], list[Job]] = {}

    def submit(self, job: Job, now_s: int) -> None:
        """A job enters the queue."""
        self.waiting[job.key] = Waiting(job, job.begin_s)
        self._held.add(job.key)
        if job.array:
            self._arrays.setdefault(job.array, []).append(job.key)
        self._names.setdefault((job.user, job.name), []).append(job)
        self.past.setdefault(job.key, Past())
        self._figure(self.waiting[job.key], now_s)
        self.refresh(now_s)

    def tick(self, now_s: int) -> None:
        """New figures for all pending jobs."""
        self.refresh(now_s)
        if self.site.config.fair_tree:
            self.priorities.tick(now_s, self.running.values())
        else:
            jobs = [each.job for each in self.waiting.values()]
            self.priorities.tick_in_order(now_s, self.running.values(), jobs)
        for each in self.waiting.values():
            self._figure(each, now_s)
        self._queue = None

    def _figure(self, each: Waiting, now_s: int) -> None:
        accrued_s = each.eligible_s if each.eligible_s is not None else now_s
        each.factors = self.priorities.factors(each.job, accrued_s, now_s)
        each.priority = self.priorities.priority(each.job, each.factors)

    def start(self, run: Running) -> None:
        """A job starts on its nodes, with the lowest free GPUs there."""
        self._leave_queue(run.job.key)
        self._preempting.pop(run.job.key, None)
        run.masks = self.books.take(run.job, run.nodes)
        self.running[run.job.key] = run
        began = self.past[run.job.key].start_s
        self.past[run.job.key] = Past(run.start_s if began is None else began)

    def end(self, key: str, now_s: int, *, ok: bool = True) -> None:
        """A job has ended, completed or not, or was cancelled while it waited."""
        run = self.running.pop(key, None)
        if run is not None:
            self.books.give(run)
            self.priorities.ended(run, now_s)
        self._leave_queue(key)
        began = self.past.get(key, Past()).start_s
        self.past[key] = Past(began, now_s, ok)

    def requeue(self, key: str, now_s: int) -> None:
        """A job was stopped and waits again, for `cred_expire` and a second at least."""
        run = self.running.pop(key)
        self.books.give(run)
        self.priorities.ended(run, now_s)
        self.waiting[key] = Waiting(run.job, now_s + self.site.config.cred_expire_s + 1)
        self._held.add(key)
        self._figure(self.waiting[key], now_s)

    def stop(self, key: str, by: str, now_s: int) -> bool:
        """A pass has chosen a running job to leave for another. True if it leaves now.

        A job preempts once, and again only after `KillWait` and `MessageTimeout`. A victim's grace begins with the
        first time; it leaves once it is chosen after its end.
        """
        config, run = self.site.config, self.running[key]
        began_s = self._preempting.setdefault(by, now_s)
        if now_s - config.kill_wait_s - config.message_timeout_s < began_s < now_s:
            return False
        grace_s = preempt.grace_s(config, self.site.accounts, run.job)
        if run.told_s is None and grace_s:
            run.told_s = now_s
            run.end_s = min(run.end_s, now_s + grace_s)
            return False
        return run.told_s is None or now_s >= run.told_s + grace_s

    def requeues(self, key: str) -> bool:
        """True if a preempted job waits again; False if it is cancelled."""
        return preempt.mode_of(self.site.config, self.site.accounts, self.running[key].job) == "requeue"

    def refresh(self, now_s: int) -> None:
        """Find jobs past their begin time, requeue delay or dependency."""
        for key in list(self._held):
            each = self.waiting[key]
            if each.not_before_s <= now_s and self._met(each.job, now_s) is Met.YES:
                each.eligible_s = max(now_s, each.not_before_s)
                self._held.discard(key)
                self._insert(each)

    def never(self, now_s: int) -> list[str]:
        """Waiting jobs with a dependency that can never hold."""
        return [key for key, each in self.waiting.items() if self._met(each.job, now_s) is Met.NEVER]

    def _met(self, job: Job, now_s: int) -> Met:
        if not job.depends:
            return Met.YES
        return dependency(job, self.past, self._elements, self._before, now_s)

    def _elements(self, name: str) -> list[str]:
        return self._arrays.get(name) or [name]

    def _before(self, job: Job) -> bool:
        """True while an earlier job of the same user and name has not ended."""
        same = self._names.get((job.user, job.name), [])
        return any(each.order < job.order and self.past[each.key].end_s is None for each in same)

    def main_pass(self, now_s: int) -> Decisions:
        """The decisions of a main pass now."""
        return self._pass(main_pass, now_s)

    def backfill_pass(self, now_s: int) -> Decisions:
        """The decisions of a backfill pass now; none under sched/builtin."""
        return self._pass(backfill_pass, now_s) if self.site.config.backfill else Decisions()

    def _pass(self, body: Callable[[Trial], None], now_s: int) -> Decisions:
        self.refresh(now_s)
        running = [run.job for run in self.running.values()]
        trial = Trial(
            self.site,
            now_s,
            self.books.copy(),
            dict(self.running),
            list(self.queue()),
            Use(self.site.accounts, running if self.site.config.enforce_limits else ()),
            lambda job: now_s - (self.waiting[job.key].eligible_s or now_s),
            plan_all=self.plan_all,
            array_running=Counter(job.array for job in running if job.array),
        )
        body(trial)
        return trial.decisions

    def queue(self) -> list[Job]:
        """Eligible jobs in order: those of a reservation, those preempting another, tier, priority, job id."""
        if self._queue is None:
            ready = [each for each in self.waiting.values() if each.eligible_s is not None]
            self._queue = [each.job for each in sorted(ready, key=self._rank)]
        if self.site.config.preempt == "qos":
            return sorted(self._queue, key=cmp_to_key(self._preempting_first))
        return self._queue

    def _rank(self, each: Waiting) -> tuple[object, ...]:
        job = each.job
        return not job.reservation, -self.site.partition(job.partition).tier, -each.priority, job.order

    def _insert(self, each: Waiting) -> None:
        if self._queue is not None:
            insort(self._queue, each.job, key=lambda job: self._rank(self.waiting[job.key]))

    def _leave_queue(self, key: str) -> None:
        each = self.waiting.pop(key, None)
        self._held.discard(key)
        if each is None or each.eligible_s is None or self._queue is None:
            return
        rank = self._rank(each)
        self.waiting[key] = each
        place = bisect_left(self._queue, rank, key=lambda job: self._rank(self.waiting[job.key]))
        del self.waiting[key], self._queue[place]

    def _preempting_first(self, one: Job, other: Job) -> int:
        config, accounts = self.site.config, self.site.accounts
        return preempt.outranks(config, accounts, other, one) - preempt.outranks(config, accounts, one, other)
