"""Stops of a training program: what is saved, what it exits with, and who else gets its SIGTERM."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from autopilot.checkpoint import EXIT_STOPPED, Request, Trainer
from benchmarks.checkpoint_step import Clock
from tests.kits.training_kit import own_sigterm
from tests.tidy.tree import ROOT

STEPS = 10


@pytest.fixture(autouse=True)
def _sigterm() -> Iterator[None]:
    with own_sigterm():
        yield


def terminate() -> None:
    """SIGTERM to this process."""
    os.kill(os.getpid(), signal.SIGTERM)


def _loop(job: Trainer, stop_after: int | None, *, beats: bool) -> None:
    """Train `STEPS` steps; SIGTERM comes after the save of a step was decided."""
    for step in range(STEPS):
        if beats:
            job.heartbeat(step)
        if job.should_checkpoint() or step == STEPS - 1:
            job.acknowledge(step, "/data")
        if step == stop_after:
            terminate()
        if job.should_stop():
            break


def _leaves(status: object) -> Callable[[Trainer], None]:
    def run(_: Trainer) -> None:
        terminate()
        raise SystemExit(status)

    return run


@pytest.mark.parametrize(
    ("program", "steps", "status"),
    [
        (lambda job: _loop(job, None, beats=True), STEPS, None),
        (lambda job: _loop(job, None, beats=True), None, None),
        (lambda job: _loop(job, 4, beats=True), STEPS, EXIT_STOPPED),
        (lambda job: _loop(job, 4, beats=False), STEPS, EXIT_STOPPED),
        (lambda job: _loop(job, STEPS - 1, beats=False), STEPS, None),
        (lambda job: _loop(job, STEPS - 1, beats=True), None, EXIT_STOPPED),
        (lambda job: terminate(), STEPS, EXIT_STOPPED),
        (_leaves(0), STEPS, EXIT_STOPPED),
        (_leaves(None), STEPS, EXIT_STOPPED),
        (_leaves(3), STEPS, 3),
    ],
)
def test_a_program_exits_with_success_only_after_its_last_step(
    program: Callable[[Trainer], None], steps: int | None, status: object
) -> None:
    """None: the block ends and the program goes on. 0 after a stop is not believed, another status is."""
    job, found = Trainer({}), None
    try:
        with job.stoppable(steps):
            program(job)
    except SystemExit as ended:
        found = ended.code
    assert found == status
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL, "what comes after the block ends at SIGTERM"


@pytest.mark.parametrize("every", [0, 1, 5], ids=["no heartbeats", "each step", "each fifth step"])
def test_sigterm_asks_for_what_was_done_since_the_last_save(every: int) -> None:
    """Periodic save after step 20, SIGTERM after step 36: the checkpoint is of step 37, however steps are reported."""
    job, saved = Trainer({}), []
    job.watch_sigterm(grace_s=60.0)
    for step in range(100):
        if every and step % every == 0:
            job.heartbeat(step)
        if job.should_checkpoint() or step == 20:
            saved.append(step)
            job.acknowledge(step, "/data")
        if step == 36:
            terminate()
        if job.should_stop():
            break
    assert saved == [20, 37]


def test_a_request_that_was_withdrawn_does_not_make_the_next_save_look_long() -> None:
    """The time of a save counts from the call that asked for it, and ends when nothing is due any more."""
    clock = Clock()
    job = Trainer({}, clock)
    job.watch_sigterm(grace_s=60.0)
    assert job.post(Request("one", clock.at_s + 1.0))
    assert job.should_checkpoint()
    clock.at_s += 1000.0
    assert not job.should_checkpoint(), "its sender gave up"
    job.acknowledge(1, "/periodic")
    terminate()
    assert job.should_checkpoint(), "60 s are enough"


def test_an_asynchronous_save_is_due_once(caplog: pytest.LogCaptureFixture) -> None:
    """From its start to its end no other one is, and the program does not stop; it answers what waited at its start."""
    job = Trainer({})
    job.watch_sigterm(grace_s=60.0)
    assert job.post(Request("one"))
    job.heartbeat(10)
    assert job.should_checkpoint()
    job.save_started(10)
    job.heartbeat(11)
    assert not job.should_checkpoint()
    assert job._requests[0] is not None
    job._requests[0] = Request("two")  # the sender of the first gave up
    job.acknowledge(10, "/ten")
    assert job._ack is not None
    assert job._ack.id == "one"
    assert job.should_checkpoint(), "the other request came after the start of the save"
    job.save_started(11)
    job.save_failed()
    assert job.should_checkpoint(), "there is no checkpoint"
    terminate()
    job.save_started(11)
    job.heartbeat(12)
    job.acknowledge(8, "/eight")  # an earlier save that ends late
    assert not job.should_checkpoint()
    assert not job.should_stop(), "its end is awaited"
    job.acknowledge(11, "/eleven")
    assert not job.should_checkpoint(), "one save after SIGTERM is enough, though step 12 is done"
    assert job.should_stop()


def test_all_ranks_save_and_stop_at_the_same_step() -> None:
    """Only one rank has the request, and the other alone gets SIGTERM; both exit with 143."""
    barrier, flags = threading.Barrier(2), [False, False]
    saved: list[list[int]] = [[], []]
    left: list[tuple[int, object]] = []

    def train(rank: int) -> None:
        job, step = Trainer({}), -1

        def any_rank(flag: bool) -> bool:
            flags[rank] = flag
            barrier.wait(10.0)
            found = any(flags)
            barrier.wait(10.0)
            return found

        job._any_rank, job._grace_s = any_rank, 60.0
        for step in range(100):
            job.heartbeat(step)
            if rank == 0 and step == 10:
                job.post(Request("one"))
            if rank == 1 and step == 50:
                job._term_s = job._now_s()  # as the handler does
            if job.should_checkpoint():
                saved[rank].append(step)
                job.acknowledge(step, "/data")
            if job.should_stop():
                break
        left.append((step, job._cut_short(100)))

    ranks = [threading.Thread(target=train, args=(rank,)) for rank in range(2)]
    for each in ranks:
        each.start()
    for each in ranks:
        each.join(20.0)
    assert saved == [[10, 50], [10, 50]]
    assert left == [(50, True), (50, True)]


FORKS = """
import multiprocessing, os, signal, sys, time
sys.path.insert(0, {root!r})
from autopilot import checkpoint
early = [True]
os.register_at_fork(after_in_child=lambda: early and os.kill(os.getpid(), signal.SIGTERM))
with checkpoint.stoppable(grace_s=60) as job:
    job.heartbeat(1)  # the thread runs
    fork = multiprocessing.get_context("fork")
    children = [fork.Process(target=time.sleep, args=(20,)) for _ in range(2)]
    children[0].start()
    children[0].join(15)
    early.clear()
    children[1].start()
    children[1].terminate()
    children[1].join(15)
    with fork.Pool(2) as pool:
        print([each.exitcode for each in children], pool.map(abs, [-1]))
    print(signal.getsignal(signal.SIGTERM) == job._handle, signal.pthread_sigmask(signal.SIG_BLOCK, []))
"""


def test_forked_children_end_at_sigterm() -> None:
    """Also one that gets it before the helper saw the fork; a Pool ends as without the helper, which stays on watch."""
    code = FORKS.format(root=str(ROOT))
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout == f"[{-signal.SIGTERM}, {-signal.SIGTERM}] [1]\nTrue set()\n", done.stderr


def test_a_shell_that_keeps_sigterm_to_itself_is_named(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """In a pod whose first process is a shell the program would never hear of a stop."""
    monkeypatch.setattr(Path, "read_text", lambda path, **_: {"/proc/1/comm": "bash\n"}.get(str(path), ""))
    cases: list[tuple[dict[str, str], int]] = [({}, 0), ({"KUBERNETES_SERVICE_HOST": "10.96.0.1"}, 1)]
    for settings, told in cases:
        Trainer(settings).watch_sigterm()
        assert len([each for each in caplog.records if "process 1 is a shell" in each.message]) == told
