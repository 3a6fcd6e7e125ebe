"""Programs wait at a step boundary when they are asked to with their token, and go on."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from actuators.kubernetes.hook import Hooks, token_of
from autopilot.checkpoint import Trainer
from autopilot.contract.annotations import CHECKPOINT_PORT
from autopilot.core.model.records import Cause, OutcomeKind
from autopilot.core.neighbours.pausing import Pause, Resume
from tests.kits.acting_kit import PODS, Acting

SECRET = "of the controller"
HERE = Hooks(reach=lambda _address: "127.0.0.1", secret=lambda: SECRET)
PAUSE = Pause(seconds=300.0, again=False, victim="v", victim_uid="v")


@contextmanager
def trains(acting: Acting, name: str, token: str = "", port: str = "") -> Iterator[tuple[Trainer, str]]:
    """A running Job whose program takes pauses with the token of its namespace; the program, and the uid of the Job."""
    trainer, uid = Trainer({}, now_s=lambda: acting.now_s), acting.running_job(name, "n1")
    (found,) = acting.pods(name)
    server = trainer.serve(0, host="127.0.0.1", token=token or token_of(SECRET, found["metadata"]["namespace"]))
    notes = {CHECKPOINT_PORT: port or str(server.server_address[1])}
    acting.ask("PATCH", f"{PODS}/{found['metadata']['name']}", {"metadata": {"annotations": notes}})
    yield trainer, uid
    server.shutdown()
    server.server_close()
    acting.finish(name)


def test_a_program_waits_and_goes_on(acting: Acting) -> None:
    """The answer comes at once, and its next step waits until it is let go on."""
    with trains(acting, "paused") as (trainer, uid):
        actuator = acting.actuator(hooks=HERE)
        paused = actuator.apply(acting.instruction(uid, PAUSE), acting.now_s)
        assert (paused.kind, paused.reason) == (
            OutcomeKind.DONE,
            "it waits at its next step boundary, for at most 300 s",
        )
        program = threading.Thread(target=trainer.hold)
        program.start()
        program.join(0.05)
        assert program.is_alive()
        for number in "23":  # also where it goes on already
            resumed = actuator.apply(acting.instruction(uid, Resume(), number=f"{number}/p/w"), acting.now_s)
            assert (resumed.kind, resumed.reason) == (OutcomeKind.DONE, "it goes on")
        program.join(5.0)
        assert not program.is_alive()


@pytest.mark.parametrize(
    ("token", "port", "words"),
    [("another", "", "answers 401"), ("", "1", "port 1 does not answer")],
)
def test_a_program_that_does_not_answer_takes_no_pause(acting: Acting, token: str, port: str, words: str) -> None:
    """It is asked for 10 s, and what took the request is let go on."""
    with trains(acting, "silent", token, port) as (trainer, uid):
        actuator, instruction = acting.actuator(hooks=HERE), acting.instruction(uid, PAUSE)
        first = actuator.apply(instruction, acting.now_s)
        assert (first.kind, words in first.reason) == (OutcomeKind.ACCEPTED, True)
        (ended,) = actuator.advance(acting.now_s + 11.0, 1, [instruction])
        assert (ended.kind, ended.cause) == (OutcomeKind.FAILED, Cause.CONFIG)
        assert ended.reason.startswith("it takes no pause: ")
        trainer.hold()  # it does not wait


def test_without_a_secret_or_a_port_nothing_is_asked(acting: Acting) -> None:
    """The reason names what to set."""
    uid = acting.plain_job("bare")
    for hooks, words in ((HERE, "takes no pauses: serve the helper"), (Hooks(), "set kubernetes.pause_secret_file")):
        found = acting.actuator(hooks=hooks).apply(acting.instruction(uid, PAUSE), acting.now_s)
        assert (found.kind, found.cause) == (OutcomeKind.FAILED, Cause.CONFIG)
        assert words in found.reason
    acting.finish("bare")


def test_a_namespace_has_a_token_of_its_own() -> None:
    """As `openssl dgst -sha256 -hmac` prints it."""
    assert token_of("s", "team-a") == "a84175a8564ab86edcaba1343bfcdfb984224f2186980113b2287e1649a276dd"
    assert token_of("s", "team-a") != token_of("s", "team-b")
