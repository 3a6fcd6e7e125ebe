"""The backfill pass: a plan of whole nodes for every pending job; a job starts now if it touches no plan.

The planned start follows Slurm's own test: running jobs are removed in the order of their ends, several at once, in
windows from a mark of the clock's 30 s grid on, each twice as long as the last.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from math import inf

from simulator.baselines.slurm.model import Job, Running, node_set
from simulator.baselines.slurm.trial import Trial

GRID_S = 30


class Plans:
    """Nodes not promised to pending jobs, by pieces of time: [begin, end, free nodes]."""

    def __init__(self, now_s: float, window_s: float, resolution_s: int) -> None:
        """Everything is free until the end of the window."""
        self._pieces: list[list[float | int]] = [[now_s, now_s + window_s, -1]]
        self._resolution_s = resolution_s

    def free(self, start_s: float, end_s: float) -> int:
        """Nodes free in all pieces touched by a job from `start_s` to `end_s`, its end included."""
        bits = -1
        for begin_s, until_s, free in self._pieces:
            if until_s > start_s and begin_s <= end_s:
                bits &= int(free)
        return bits

    def next_change(self, at_s: float) -> float | None:
        """The end of the piece at `at_s`; None in the last piece."""
        return next((until_s for _, until_s, _ in self._pieces[:-1] if until_s > at_s), None)

    def overlap(self, nodes: int, start_s: float, end_s: float) -> bool:
        """True if one of these nodes is promised in this time, its end excluded."""
        return any(
            until_s > start_s and begin_s < end_s and nodes & ~int(free) for begin_s, until_s, free in self._pieces
        )

    def add(self, nodes: int, start_s: float, end_s: float) -> None:
        """Promise the nodes. One piece equal to its neighbour by now is joined with it."""
        start_s = start_s // self._resolution_s * self._resolution_s
        end_s = end_s // self._resolution_s * self._resolution_s
        for mark_s in (start_s, end_s):
            for k, (begin_s, until_s, free) in enumerate(self._pieces):
                if begin_s < mark_s < until_s:
                    self._pieces[k : k + 1] = [[begin_s, mark_s, free], [mark_s, until_s, free]]
                    break
        for piece in self._pieces:
            if piece[0] >= start_s and piece[1] <= end_s:
                piece[2] = int(piece[2]) & ~nodes
        for k in range(len(self._pieces) - 1):
            if self._pieces[k][2] == self._pieces[k + 1][2]:
                self._pieces[k : k + 2] = [[self._pieces[k][0], self._pieces[k + 1][1], self._pieces[k][2]]]
                break


def backfill_pass(trial: Trial) -> None:
    """Start and plan, as far as the limits on the work of a pass allow."""
    config = trial.site.config
    plans = Plans(trial.now_s, config.bf_window_s, config.bf_resolution_s)
    tested = started = 0
    by_user: Counter[str] = Counter()
    by_part: Counter[str] = Counter()
    planned_of: Counter[str] = Counter()
    queue = trial.queue()
    if not (config.enforce_limits or config.bf_max_job_user or config.bf_max_job_part):
        queue = queue[: config.bf_max_job_test + sum(bool(job.array) for job in queue)]
    shortest_s, usable = _chances(trial, queue)
    for place, job in enumerate(queue):
        if shortest_s[place] == inf or not usable & plans.free(trial.now_s, trial.now_s + shortest_s[place]):
            return
        if job.array and planned_of[job.array] >= config.bf_array_plans:
            continue
        if trial.refusal(job):
            continue
        if config.bf_max_job_user and by_user[job.user] >= config.bf_max_job_user:
            continue
        if config.bf_max_job_part and by_part[job.partition] >= config.bf_max_job_part:
            continue
        if tested >= config.bf_max_job_test:
            return
        by_user[job.user] += 1
        by_part[job.partition] += 1
        tested += 1
        if _consider(trial, plans, job):
            started += 1
            if config.bf_max_job_start and started >= config.bf_max_job_start:
                return
        elif job.array:
            planned_of[job.array] += 1


def _chances(trial: Trial, queue: Sequence[Job]) -> tuple[list[float], int]:
    """The shortest limit, from each place of the queue on, of the jobs fitting now, and the nodes with a fit for any.

    Plans are made anew in each pass: if they leave nothing to start, the rest of the queue decides nothing. Room
    only shrinks in a pass.
    """
    if trial.plan_all or trial.site.config.preempt != "none":
        return [0.0] * len(queue), -1
    fits: dict[tuple[object, ...], int] = {}
    shortest_s, usable, least_s = [inf] * len(queue), 0, inf
    for place in range(len(queue) - 1, -1, -1):
        job = queue[place]
        shape = (job.shape, job.partition, job.only)
        if shape not in fits:
            allowed = trial.partition_nodes(job.partition) & trial.site.up & job.only
            nodes = trial.books.fitting(job, allowed)
            fits[shape] = node_set(nodes) if len(nodes) >= job.nodes else 0
        if fits[shape]:
            usable |= fits[shape]
            least_s = min(least_s, trial.limit_s(job))
        shortest_s[place] = least_s
    return shortest_s, usable


def _consider(trial: Trial, plans: Plans, job: Job) -> bool:
    """Start the job, or plan it; True if it started."""
    config, now_s = trial.site.config, trial.now_s
    limit_s = trial.limit_s(job)
    at_s: float = now_s
    while True:
        later_s = _later(trial, plans, at_s)
        found, free = None, 0
        open_nodes = trial.allowed(job, at_s)
        if open_nodes is not None:
            free = open_nodes & plans.free(at_s, at_s + limit_s)
            found = _known_earliest(trial, job, free) if free.bit_count() >= job.nodes else None
        if found is None:
            if later_s is None:
                return False
            at_s = later_s
            continue
        start_s, nodes = max(found[0], at_s), found[1]
        if start_s <= now_s and trial.start_now(job, free):
            return True
        if start_s > now_s and later_s is not None and start_s > later_s:
            at_s = later_s
        elif start_s > now_s + config.bf_window_s:
            return False
        elif plans.overlap(node_set(nodes), start_s, start_s + limit_s):
            at_s = start_s
        else:
            trial.decisions.plans[job.key] = (start_s, tuple(nodes))
            plans.add(node_set(nodes), start_s, start_s + limit_s)
            return False


def _later(trial: Trial, plans: Plans, at_s: float) -> float | None:
    """The next time worth a try: nodes may be free of plans, or a reservation is over."""
    now_s = trial.now_s
    ends = [each.end_s for each in trial.site.reservations if each.since_s <= now_s and each.end_s >= at_s]
    marks = [min(ends) + 1] if ends and min(ends) + 1 < now_s + trial.site.config.bf_window_s else []
    change_s = plans.next_change(at_s)
    return min([*marks, *([change_s] if change_s is not None else [])], default=None)


def _known_earliest(trial: Trial, job: Job, allowed: int) -> tuple[float, list[int]] | None:
    """`_earliest`, computed once for equal requests until the next start of this pass."""
    if job.switches or trial.site.config.preempt != "none":
        return _earliest(trial, job, allowed)
    key = (job.shape, allowed)
    if key not in trial.earliest:
        trial.earliest[key] = _earliest(trial, job, allowed)
    return trial.earliest[key]


def _earliest(trial: Trial, job: Job, allowed: int) -> tuple[float, list[int]] | None:
    """The earliest start on these nodes if all running jobs take their whole limits, and the nodes then."""
    now_s = trial.now_s
    nodes = trial.place(job, allowed, trial.books)
    if nodes is not None:
        return now_s, nodes
    gone = {run.job.key for run in trial.candidates(job)}
    books = trial.books.copy()
    if gone:
        for key in gone:
            run = trial.running[key]
            (books.give if trial.stops(run) else books.pause)(run)
        nodes = trial.place(job, allowed, books)
        if nodes is not None:
            return now_s, nodes
    left = [run for run in trial.by_end() if run.job.key not in gone and run.bits & allowed]
    if not left:
        return None
    clock_s = trial.clock_s(left[0].end_s)
    base_s = left[0].end_s + GRID_S - clock_s % GRID_S
    window_s = GRID_S
    k = 0
    while k < len(left):
        while k < len(left) and left[k].end_s <= base_s + window_s:
            books.give(left[k])
            k += 1
        nodes = trial.place(job, allowed, books)
        if nodes is not None:
            return _end_of(trial, left[k - 1]), nodes
        window_s *= 2
        while k < len(left) and left[k].end_s > base_s + window_s and left[k].end_s < inf:
            window_s *= 2
        if k < len(left) and left[k].end_s == inf:
            return None
    return None


def _end_of(trial: Trial, run: Running) -> float:
    """The expected end of a job: its limit, or shortly after it if the limit is over."""
    if run.end_s > trial.now_s:
        return run.end_s
    config = trial.site.config
    return max(run.end_s + config.kill_wait_s + min(config.over_time_limit_s, 365 * 86_400.0), trial.now_s + 1)
