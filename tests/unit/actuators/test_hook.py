"""Requests for checkpoints by HTTP, to the programs of pods with a short grace."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from actuators.kubernetes.hook import Hooks
from autopilot.checkpoint import Trainer
from autopilot.contract.annotations import CHECKPOINT_PATH, CHECKPOINT_PORT, CHECKPOINT_REQUEST
from autopilot.core.model.records import Cause, OutcomeKind
from autopilot.core.model.stops import Save
from tests.kits.acting_kit import PODS, Acting, evict
from tests.unit.actuators.test_saving import SAVES, answer

HERE = Hooks(reach=lambda _address: "127.0.0.1")
"""The programs of this test listen on this machine; the addresses of pods lead nowhere."""


@contextmanager
def hooked(acting: Acting, name: str, **more: str) -> Iterator[tuple[Trainer, str]]:
    """A running Job whose program listens for requests; the program, and the uid of the Job."""
    trainer = Trainer({}, now_s=lambda: acting.now_s)
    server = trainer.serve(0, host="127.0.0.1")
    uid = acting.plain_job(name, annotations={**SAVES, "gpu-autopilot.io/checkpoint-write-s": "90"})
    notes = {CHECKPOINT_PORT: str(server.server_address[1]), **more}
    (found,) = acting.pods(name)
    acting.ask("PATCH", f"{PODS}/{found['metadata']['name']}", {"metadata": {"annotations": notes}})
    yield trainer, uid
    server.shutdown()
    server.server_close()
    acting.finish(name)


def test_with_a_short_grace_the_request_goes_to_the_port_of_the_pod(acting: Acting) -> None:
    """The program has it at once; the Job is stopped after its answer."""
    with hooked(acting, "hooked") as (trainer, uid):
        actuator = acting.actuator(hooks=HERE)
        instruction = acting.instruction(uid, evict(grace_s=60.0, save=Save.MUST), deadline_s=acting.now_s + 120.0)
        outcome = actuator.apply(instruction, acting.now_s)
        assert outcome.reason == "it was asked for a checkpoint and has 60 s"
        request = trainer.request()
        assert request is not None
        assert (request.id, request.deadline_s) == ("1/p/w", round(acting.now_s + 60.0, 3))
        assert actuator.advance(acting.now_s, 1, [instruction]) == ()
        trainer.acknowledge(7, "/ckpt/7")
        answer(acting, "hooked", "1/p/w")
        actuator.advance(acting.now_s, 1, [instruction])
        assert acting.job("hooked")["spec"]["suspend"]


@pytest.mark.parametrize(
    ("notes", "words"),
    [
        ({CHECKPOINT_PORT: "99999"}, "is '99999', not a port"),
        ({CHECKPOINT_PATH: "//evil.example/../x"}, "write letters, digits"),
        ({CHECKPOINT_PATH: "/nothing"}, "answers 404"),
        ({CHECKPOINT_PORT: "1"}, "port 1 does not answer"),
    ],
)
def test_a_port_that_cannot_be_used_is_named(acting: Acting, notes: dict[str, str], words: str) -> None:
    """The work keeps its place, without a request on its pods."""
    with hooked(acting, "bad-port", **notes) as (trainer, uid):
        (pod,) = acting.pods("bad-port")
        instruction = acting.instruction(uid, evict(grace_s=60.0), deadline_s=acting.now_s + 120.0)
        outcome = acting.actuator(hooks=HERE).apply(instruction, acting.now_s)
        assert (outcome.kind, outcome.cause) == (OutcomeKind.DECLINED, Cause.UNASKED)
        assert words in outcome.reason
        assert trainer.request() is None
        kept = acting.ask("GET", f"{PODS}/{pod['metadata']['name']}")["metadata"]["annotations"]
        assert CHECKPOINT_REQUEST not in kept


@pytest.mark.parametrize("address", ["", "127.0.0.1", "::1", "169.254.169.254", "0.0.0.0", "224.0.0.1", "example.com"])
def test_only_addresses_of_pods_are_called(address: str) -> None:
    """Neither this machine, nor the metadata service of a cloud, nor a name."""
    pod = {"metadata": {"name": "p", "annotations": {CHECKPOINT_PORT: "80"}}, "spec": {}, "status": {"podIP": address}}
    said = HERE.ask(pod, "1/p/w", 60.0)
    assert "is not the address of a pod" in said or "it has no address" in said
    pod["status"], pod["spec"] = {"podIP": "10.1.2.3"}, {"hostNetwork": True}
    assert "uses the network of its node" in HERE.ask(pod, "1/p/w", 60.0)


def test_a_redirect_is_not_followed() -> None:
    """A program may not send the controller elsewhere."""
    asked: list[str] = []

    class Elsewhere(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked.append(self.path)
            self.send_response(307)
            self.send_header("Location", "/elsewhere")
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Quiet."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Elsewhere)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    port = server.server_address[1]
    notes = {CHECKPOINT_PORT: str(port)}
    pod = {"metadata": {"name": "p", "annotations": notes}, "spec": {}, "status": {"podIP": "10.1.2.3"}}
    assert HERE.ask(pod, "1/p/w", 60.0) == f"pod p: port {port} answers 307"
    assert asked == ["/checkpoint"]
    server.shutdown()
    server.server_close()
