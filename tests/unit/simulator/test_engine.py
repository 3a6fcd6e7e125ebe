from __future__ import annotations

import os
import signal
from math import inf, isnan

import pytest

from simulator.baselines import BASELINES
from simulator.baselines.textbook import fifo, fifo_skip
from simulator.running.engine import Engine
from simulator.world.cluster import Cluster
from simulator.world.facts import Started, Stopped
from simulator.world.physics import CHARGED, REAL
from simulator.world.work import Jobs
from tests.kits.cluster_kit import gang, inventory, make_jobs


class Recorder:
    """A scheduler that notes what it is told, in order, and starts nothing unless told to."""

    name = "recorder"

    def __init__(self, wakes: list[float] | None = None) -> None:
        self.log: list[tuple[str, float]] = []
        self._wakes = wakes or []

    def attach(self, cluster: Cluster) -> None:
        self.cluster = cluster

    def on_submit(self, job: int, now_s: float) -> None:
        self.log.append((f"submit {job}", now_s))

    def on_end(self, job: int, now_s: float) -> None:
        self.log.append((f"end {job}", now_s))

    def on_requeue(self, job: int, now_s: float) -> None:
        self.log.append((f"requeue {job}", now_s))

    def on_change(self, now_s: float) -> None:
        self.log.append(("change", now_s))

    def decide(self, now_s: float) -> float | None:
        self.log.append(("pass", now_s))
        for job in list(self.cluster.pending):
            self.cluster.start(job, [job], now_s)
        return self._wakes.pop(0) if self._wakes else None


def test_ends_come_before_changes_before_arrivals_and_then_one_pass() -> None:
    """At one instant the order is fixed, ties by file order, and the scheduler decides once."""
    cluster = Cluster(inventory(), make_jobs([(0, 10, 1), (0, 10, 1), (10, 5, 1), (10, 5, 1)]))
    scheduler = Recorder()
    engine = Engine(cluster, scheduler)
    engine.at(10.0, lambda _now_s: None)
    run = engine.run()
    assert scheduler.log == [
        ("submit 0", 0.0),
        ("submit 1", 0.0),
        ("pass", 0.0),
        ("end 0", 10.0),
        ("end 1", 10.0),
        ("change", 10.0),
        ("submit 2", 10.0),
        ("submit 3", 10.0),
        ("pass", 10.0),
        ("end 2", 15.0),
        ("end 3", 15.0),
        ("pass", 15.0),
    ]
    assert (run.complete, run.end_s, run.last_submit_s, run.passes) == (True, 15.0, 10.0, 3)


def test_a_wake_up_is_kept_and_an_event_replaces_it() -> None:
    """The scheduler is asked again at the time it named, unless it was asked before; never at the same instant."""
    scheduler = Recorder([4.0, 30.0, 25.0, 22.0])
    Engine(Cluster(inventory(), make_jobs([(0, 25, 1), (20, 2, 1)])), scheduler).run()
    passes = [at_s for what, at_s in scheduler.log if what == "pass"]
    assert passes == [0.0, 4.0, 20.0, 22.0, pytest.approx(22.001, abs=0.001), 25.0]


def test_events_of_stopped_work_are_forgotten() -> None:
    """The end of an evicted incarnation wakes no scheduler and ends nothing."""

    class Evictor(Recorder):
        def decide(self, now_s: float) -> float | None:
            if now_s == 4.0:
                self.cluster.evict(0, now_s)
            return super().decide(now_s)

    scheduler = Evictor([4.0])
    cluster = Cluster(inventory(), make_jobs([(0, 10, 1)]), CHARGED)
    run = Engine(cluster, scheduler).run()
    assert run.end_s == cluster.end_s[0] == 4 + 30 + 10
    assert [at_s for what, at_s in scheduler.log if what == "pass"] == [0.0, 4.0, 44.0]


def test_start_up_counts_before_work_does() -> None:
    """Under real physics a job ends its start-up and its duration after its start; asked for, its readiness wakes."""
    for wakes, expected in ((False, 2), (True, 3)):
        cluster = Cluster(inventory(), make_jobs([(0, 100, 1)]), REAL)
        run = Engine(cluster, fifo(), ready_wakes=wakes).run()
        startup_s = REAL.image_pull_s + REAL.container_start_s + REAL.load_s
        assert cluster.end_s[0] == pytest.approx(100 + startup_s, abs=0.001)
        assert run.passes == expected


def test_what_can_never_run_is_counted_and_the_rest_runs() -> None:
    """A job wider than the cluster never starts, is named with the reason, and does not prolong the run."""
    cluster = Cluster(inventory(2, 8), make_jobs([(0, 10, 24), (0, 10, 8), (1, 10, 16)]))
    run = Engine(cluster, fifo_skip()).run()
    assert list(run.never_fits) == [0]
    assert "2 of its 3 members" in run.never_fits[0]
    assert run.complete
    assert isnan(cluster.first_start_s[0])
    assert cluster.end_s[2] == 20.0


def test_a_run_that_cannot_go_on_says_so() -> None:
    """When work waits and nothing that could start it will happen, the run ends and gives the reason."""

    class Refuser(Recorder):
        def decide(self, now_s: float) -> float | None:
            return None

    run = Engine(Cluster(inventory(), make_jobs([(0, 10, 1)])), Refuser()).run()
    assert not run.complete
    assert "1 job waits" in run.stuck


def test_waking_up_for_ever_in_vain_ends_too() -> None:
    """A scheduler that only ever asks to be woken again is given up after the stall time."""

    class Dreamer(Recorder):
        def decide(self, now_s: float) -> float | None:
            return now_s + 60.0

    run = Engine(Cluster(inventory(), make_jobs([(0, 10, 1)])), Dreamer(), stall_s=3600.0).run()
    assert run.stuck
    assert run.end_s == 3600.0


@pytest.mark.parametrize("name", sorted(BASELINES))
def test_no_baseline_hangs_behind_a_blocked_head(name: str) -> None:
    """A strict head that fits only an undamaged cluster does not keep the engine busy indefinitely."""
    cluster = Cluster(inventory(2, 8), make_jobs([(0, 10, 1), (1, 10, 16), (2, 10, 1)]))
    engine = Engine(cluster, BASELINES[name]())
    engine.at(0.0, lambda now_s: cluster.cordon(1, now_s))
    run = engine.run()
    assert run.stuck
    assert run.end_s < 1e6


def test_the_horizon_cuts_and_what_ran_is_counted() -> None:
    """At the horizon the run stops; the work done so far is stated once."""
    cluster = Cluster(inventory(), make_jobs([(0, 100, 2), (50, 100, 1)]))
    cuts: list[Stopped] = []

    class Watch:
        def on_stopped(self, fact: Stopped) -> None:
            cuts.append(fact)

    cluster.observe(Watch())
    run = Engine(cluster, fifo(), horizon_s=60.0).run()
    assert (run.horizon_reached, run.complete, run.end_s) == (True, False, 60.0)
    assert [(fact.job, fact.gain_s) for fact in cuts] == [(0, 60.0), (1, 10.0)]


@pytest.mark.usefixtures("heeded_ctrl_c")
def test_ctrl_c_ends_the_run_after_the_instant() -> None:
    """The first interrupt leaves a whole, flagged result; the handler of before is back afterwards."""
    cluster = Cluster(inventory(), make_jobs([(10 * k, 5, 1) for k in range(50)]))
    engine = Engine(cluster, fifo())
    engine.at(100.0, lambda _now_s: os.kill(os.getpid(), signal.SIGINT))
    before = signal.getsignal(signal.SIGINT)
    run = engine.run()
    assert run.interrupted
    assert not run.complete
    assert run.end_s == 100.0
    assert sum(not isnan(end_s) for end_s in cluster.end_s) == 10
    assert signal.getsignal(signal.SIGINT) is before


def test_an_interrupt_inside_a_decision_is_flagged_too() -> None:
    """Even a KeyboardInterrupt out of the scheduler gives a partial result, not a traceback."""

    class Interrupted(Recorder):
        def decide(self, now_s: float) -> float | None:
            raise KeyboardInterrupt

    assert Engine(Cluster(inventory(), make_jobs([(0, 10, 1)])), Interrupted()).run().interrupted


def test_actions_that_do_not_matter_do_not_keep_a_run_alive() -> None:
    """A fault generator never stops; the run still ends with its work."""
    engine = Engine(Cluster(inventory(), make_jobs([(0, 100, 1)])), fifo())

    def again(now_s: float) -> None:
        engine.at(now_s + 7.0, again, essential=False)

    engine.at(0.0, again, essential=False)
    assert engine.run().end_s == 100.0


def test_essential_actions_are_carried_out_to_the_last() -> None:
    """A service's calendar outlives the jobs."""
    seen: list[float] = []
    engine = Engine(Cluster(inventory(), make_jobs([(0, 1, 1)])), fifo())
    engine.at(500.0, seen.append)
    assert engine.run().end_s == 500.0
    assert seen == [500.0]


def test_replicas_enter_while_the_run_goes_on() -> None:
    """Jobs added by an action are queued like any other and do not have to end."""
    jobs = make_jobs([(0, 100, 8)])
    cluster = Cluster(inventory(2, 8), jobs)
    engine = Engine(cluster, fifo_skip())

    def scale_up(now_s: float) -> None:
        engine.submit(jobs.add("svc-0", "s", gang(1), now_s, inf, service=0), now_s)

    engine.at(10.0, scale_up)
    run = engine.run()
    assert run.complete
    assert (cluster.first_start_s[1], run.end_s) == (10.0, 100.0)


def test_progress_is_told_now_and_then() -> None:
    """The callback sees time and counts grow."""
    told: list[tuple[float, int, int]] = []
    jobs = make_jobs([(10 * k, 5, 1) for k in range(600)])
    engine = Engine(Cluster(inventory(), jobs), fifo(), on_progress=lambda *seen: told.append(seen))
    engine.run()
    assert len(told) == 2
    assert told[0][1] < told[1][1] <= told[1][2] == 600


def test_a_run_repeats_to_the_last_fact() -> None:
    """The same jobs, cluster and policy give the same facts in the same order."""

    def facts() -> list[Started | Stopped]:
        found: list[Started | Stopped] = []

        class Watch:
            on_started = found.append
            on_stopped = found.append

        jobs = make_jobs([(7 * k % 50, 20 + 13 * k % 170, (1, 2, 4, 8, 16)[k % 5]) for k in range(80)])
        cluster = Cluster(inventory(3, 8), jobs, CHARGED)
        cluster.observe(Watch())
        Engine(cluster, BASELINES["las"]()).run()
        return found

    assert facts() == facts()


def test_an_empty_trace_ends_at_once() -> None:
    """No jobs: nothing to do, and no division by nothing."""
    run = Engine(Cluster(inventory(), Jobs()), fifo()).run()
    assert (run.complete, run.end_s) == (True, 0.0)
