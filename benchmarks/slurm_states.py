"""Single decisions: each recorded state before a pass, given to the baseline, and its starts against the recorded ones.

One wrong start changes everything behind it, so here each pass begins with the recorded state. A moment at which
nothing changed for 6 s is `quiet`: both loops have looked and started nothing.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from benchmarks.slurm_recordings import Event, Recording, second
from simulator.baselines.slurm.model import Running, members, node_set
from simulator.baselines.slurm.slurmctld import Slurmctld
from simulator.baselines.slurm.topology import leaf_count
from simulator.baselines.slurm.trial import Decisions

GROUP_S, QUIET_S, BEFORE_S, LATE_S = 0.3, 6.0, 0.004, 0.5
REQUEUED_S = 0.07
"""A requeue is done that long after it is logged."""


@dataclass(slots=True)
class Pass:
    """One recorded pass: what started, and what the baseline would have started, by job and nodes (`n1+n2`)."""

    run: int
    number: int
    t: float
    by: str
    started: dict[str, str]
    predicted: dict[str, str] = field(default_factory=dict)
    leaves: dict[str, tuple[int, int]] = field(default_factory=dict)  # of equal jobs: recorded, predicted

    @property
    def same_set(self) -> bool:
        """The same jobs start."""
        return self.started.keys() == self.predicted.keys()

    @property
    def same_nodes(self) -> int:
        """Jobs that start on the recorded nodes."""
        return sum(self.predicted.get(job) == nodes for job, nodes in self.started.items())


def groups(recording: Recording, run: int) -> list[tuple[float, str, list[Event]]]:
    """The passes of a run that started jobs, and the quiet moments, by time."""
    events = [each for each in recording.events if each.run == run]
    found: list[tuple[float, str, list[Event]]] = []
    for each in events:
        if each.event == "start":
            if found and found[-1][1] == each.by and each.t - found[-1][0] < GROUP_S:
                found[-1][2].append(each)
            else:
                found.append((each.t, each.by, [each]))
    text = (recording.folder / "slurm.conf").read_text(encoding="utf-8")
    step = re.search(r"(?:bf_interval|sched_interval)=(\d+)", text)
    if step and int(step[1]) <= 5:
        times = sorted(each.t for each in events)
        found += [(a + QUIET_S, "quiet", []) for a, b in itertools.pairwise(times) if b - a >= QUIET_S + 0.5]
        found.sort(key=lambda group: group[0])
    return found


def passes(recording: Recording) -> Iterator[Pass]:
    """Every recorded pass, with what the baseline does in that state."""
    for run in recording.runs:
        yield from _passes(recording, run)


def _passes(recording: Recording, run: int) -> Iterator[Pass]:
    state = Replay(recording, run)
    for number, (t, by, starts) in enumerate(groups(recording, run), 1):
        state.advance(t - BEFORE_S)
        one = Pass(run, number, t, by, {each.job: each.nodes for each in starts})
        if by != "quiet" or state.ctl.waiting:
            loops = {"main": (state.main,), "backfill": (state.backfill,)}.get(by, (state.main, state.backfill))
            for loop in loops:
                for made in loop(t).starts:
                    one.predicted[made.job.key] = state.names(made)
            tree = state.ctl.site.tree
            if tree is not None:
                for job in one.predicted.keys() & one.started.keys():
                    was, made_on = (state.numbers(each) for each in (one.started[job], one.predicted[job]))
                    one.leaves[job] = (leaf_count(tree, was), leaf_count(tree, made_on))
            yield one
        for each in starts:
            state.start(each)


def preemptions(recording: Recording) -> Iterator[tuple[Event, set[str]]]:
    """Each recorded preemption, with the jobs that the baseline would stop for the same job at that time."""
    for run in recording.runs:
        state = Replay(recording, run)
        for each in (one for one in recording.events if one.run == run and one.event in {"start", "preempted"}):
            state.advance(each.t - BEFORE_S)
            if each.event == "start":
                state.start(each)
                continue
            stops = [*state.main(each.t).stops, *state.backfill(each.t).stops]
            yield each, {victim for victim, by in stops if by == each.by}


class Replay:
    """The baseline's controller, to which a recorded run happens."""

    def __init__(self, recording: Recording, run: int) -> None:
        """Before the first event of `run`."""
        self._recording, self._run = recording, run
        self.ctl = Slurmctld(recording.site(run))
        self._place = {node.name: k for k, node in enumerate(self.ctl.site.nodes)}
        mine = [each for each in recording.events if each.run == run and each.event != "start"]
        logged = {each.job for each in mine if each.event == "submit"}
        for job in recording.jobs.values():  # arrays, and what was submitted at once, are not in the log
            name = job.array or job.key
            if name not in logged:
                logged.add(name)
                mine.append(Event(run, job.submit_s + 0.005, name, "submit", "", "", ""))
        first_s = recording.setup["runs"][run - 1]["first_priority_tick_s"]
        last_s = max((each.t for each in recording.events if each.run == run), default=0.0)
        if first_s is not None:
            ticks = range(int((last_s - first_s) // 60) + 1)
            mine += [Event(run, first_s + 60 * k, "", "tick", "", "", "") for k in ticks]
        if self.ctl.site.config.preempt != "none":  # grace begins in passes that start nothing
            phases = recording.setup["runs"][run - 1]
            for name, every in (("backfill", 2), ("main", 5)):
                phase = phases[f"{name}_pass_s"] or 0.7
                mine += [Event(run, phase + every * k, "", name, "", "", "") for k in range(int(last_s // every))]
        self._left = sorted(mine, key=lambda each: (each.t, each.event, each.job))
        order = [each.job for each in self._left if each.event == "submit"]
        self._numbers = {name: k for k, name in enumerate(order)}

    def advance(self, to_s: float) -> None:
        """Everything but starts that was recorded up to then."""
        while self._left and self._left[0].t <= to_s:
            each = self._left.pop(0)
            now_s = second(each.t)
            if each.event == "submit":
                self._submit(each.job, now_s)
            elif each.event == "tick":
                self.ctl.tick(now_s)
            elif each.event in {"main", "backfill"}:
                for key, by in (self.main if each.event == "main" else self.backfill)(each.t).stops:
                    if key in self.ctl.running:
                        self.ctl.stop(key, by, now_s)
            else:
                self._ended(each)

    def _ended(self, each: Event) -> None:
        if each.event == "preempted" and "requeue" in each.note:
            self.ctl.requeue(each.job, second(each.t + REQUEUED_S))
        else:
            self.ctl.end(each.job, second(each.t), ok=each.note == "exit 0")

    def _submit(self, name: str, now_s: int) -> None:
        for job in self._recording.jobs.values():
            if name in {job.key, job.array} and job.key not in self.ctl.past:
                self.ctl.submit(replace(job, number=self._numbers[name]), now_s)

    def start(self, each: Event) -> None:
        """A recorded start. In a burst it may be logged before its own submission."""
        nodes = self.numbers(each.nodes)
        now_s = second(each.t)
        self._submit(each.job, now_s)
        self._room(each, node_set(nodes))
        job = self.ctl.waiting[each.job].job
        self.ctl.start(Running(job, now_s, now_s + self.ctl.site.limit_s(job), nodes, ()))

    def _room(self, start: Event, nodes: int) -> None:
        """An end that made room for a start may be logged after it."""
        job = self.ctl.waiting[start.job].job
        if all(self.ctl.books.fits(job, node) for node in members(nodes)):
            return
        for each in [one for one in self._left if one.t <= start.t + LATE_S and one.event != "submit"]:
            run = self.ctl.running.get(each.job)
            if run is not None and run.bits & nodes:
                self._left.remove(each)
                self._ended(each)

    def main(self, t: float) -> Decisions:
        """What a main pass would do at that time."""
        return self.ctl.main_pass(second(t))

    def backfill(self, t: float) -> Decisions:
        """What a backfill pass would do at that time."""
        return self.ctl.backfill_pass(second(t))

    def names(self, run: Running) -> str:
        """The nodes of a start as recordings write them."""
        return "+".join(self.ctl.site.nodes[node].name for node in run.nodes)

    def numbers(self, nodes: str) -> tuple[int, ...]:
        """Numbers of nodes as recordings write them."""
        return tuple(self._place[name] for name in nodes.split("+"))
