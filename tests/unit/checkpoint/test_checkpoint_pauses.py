"""Pauses at a step boundary: who may ask, what ends them, and what goes on meanwhile."""

from __future__ import annotations

import os
import signal
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from autopilot import checkpoint_hook
from autopilot.checkpoint import PAUSED, Request, Trainer
from autopilot.checkpoint_hook import PAUSE_S, Pause
from tests.kits.training_kit import own_sigterm


@pytest.fixture
def sigterm() -> Iterator[None]:
    """The handler of SIGTERM is as it was, afterwards."""
    with own_sigterm():
        yield


class Steps:
    """A training in a thread of its own: a step is a heartbeat, and a checkpoint where one is due."""

    def __init__(self, job: Trainer) -> None:
        self.job, self.count, self.saved = job, 0, list[int]()
        self.moved, self.ended = threading.Condition(), False
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self) -> None:
        while not self.ended and not self.job.should_stop():
            with self.moved:
                self.count += 1
                self.moved.notify_all()
            self.job.heartbeat(self.count)
            if self.job.should_checkpoint():
                self.job.acknowledge(self.count, "p")
                self.saved.append(self.count)

    def go_on(self, more: int = 3) -> bool:
        """True once there are some steps more than now."""
        with self.moved:
            wanted = self.count + more
            return self.moved.wait_for(lambda: self.count >= wanted, 10.0)

    def stand(self) -> bool:
        """True once the program waits, and then makes no step."""
        with self.moved:
            while self.moved.wait(0.15):
                pass
        return "paused 1" in self.job.metrics()


def post(port: int, path: str, token: str = "secret", body: str = "") -> int:
    """The status of the answer."""
    request = urllib.request.Request(f"http://127.0.0.1:{port}/{path}", body.encode(), method="POST")
    request.add_header("Authorization", f"Bearer {token}")
    try:
        with urllib.request.urlopen(request, timeout=5) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        error.close()
        return error.code


@pytest.mark.parametrize(
    ("token", "asked", "answers"),
    [
        ("", [("pause", "secret", ""), ("resume", "secret", "")], [403, 403]),
        ("secret", [("pause", "wrong", ""), ("resume", "", "")], [401, 401]),
        ("secret", [("resume", "secret", "")], [409]),
        ("secret", [("pause", "secret", ""), ("pause", "secret", '{"seconds": 9}')], [202, 202]),
        ("secret", [("pause", "secret", ""), ("resume", "secret", ""), ("resume", "secret", "")], [202, 202, 409]),
        (
            "secret",
            [("pause", "secret", body) for body in ("[]", "{", '{"seconds": 0}', '{"seconds": 301}')],
            [400] * 4,
        ),
        ("secret", [("pause", "secret", '{"seconds": true}'), ("pause", "secret", '{"seconds": "9"}')], [400, 400]),
    ],
)
def test_a_pause_needs_the_token_and_a_bounded_time(
    token: str, asked: list[tuple[str, str, str]], answers: list[int]
) -> None:
    """Without a token there are no pauses at all; a second request takes the place of the first."""
    job = Trainer({})
    server = job.serve(0, token=token, host="127.0.0.1")
    try:
        assert [post(server.server_address[1], *each) for each in asked] == answers
    finally:
        server.shutdown()
        server.server_close()


def test_a_paused_program_waits_saves_when_asked_and_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """A checkpoint that becomes due is written meanwhile, and the next boundary holds again."""
    monkeypatch.setattr(checkpoint_hook, "LOOK_S", 0.02)
    job = Trainer({})
    pause = Pause(job)
    job.hold = pause.hold
    steps = Steps(job)
    assert steps.go_on()
    assert pause.ask(PAUSE_S)
    assert steps.stand()
    at = steps.count
    job.post(Request("one"))
    assert steps.go_on(1)
    assert steps.stand()
    assert (steps.saved, steps.count) == ([at], at + 1)
    assert pause.end()
    assert steps.go_on()
    assert "paused 0" in job.metrics()
    assert not pause.end()
    steps.ended = True
    steps.thread.join(10.0)


def test_a_controller_that_is_gone_pauses_no_program_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """The pause lapses; its report is renewed while it lasts, with a fresh heartbeat."""
    times, told = iter([0.0, 1.0, 1.0, 1.0, 1.0, 70.0, 70.0, 70.0, 70.0]), list[dict[str, str]]()
    monkeypatch.setattr(checkpoint_hook, "LOOK_S", 0.0)
    job = Trainer({}, lambda: 1000.0)
    job.heartbeat(1)
    monkeypatch.setattr(job._writer, "put", lambda values, at_once: told.append(dict(values)))
    pause = Pause(job, lambda: next(times, 400.0))
    assert pause.ask(PAUSE_S)
    pause.hold()
    assert [each[PAUSED] for each in told] == ["true", "true", "false"]
    assert all("gpu-autopilot.io/heartbeat" in each for each in told)


def test_sigterm_ends_a_pause_and_none_begins_after_it(sigterm: None, tmp_path: Path) -> None:
    """A program that is stopped saves within its grace."""
    job = Trainer({})
    pause = Pause(job)
    job.hold = pause.hold
    job.watch_sigterm(60.0)
    assert pause.ask(PAUSE_S)
    threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGTERM)).start()
    job.heartbeat(1)
    assert job.should_checkpoint()
    assert not pause.ask(PAUSE_S)
