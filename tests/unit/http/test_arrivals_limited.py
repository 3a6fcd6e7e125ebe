"""What arrives over HTTP is limited before anybody is asked for credentials: bytes, time, streams, sign-ins."""

from __future__ import annotations

import asyncio
import http.client
import socket
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI
from starlette.testclient import TestClient
from starlette.types import Message

from autopilot.http.app import delivery_app, service_app
from autopilot.http.limits import SIGNING_IN, network_of
from autopilot.http.routers import alerts, events, page
from autopilot.http.sessions import READS
from autopilot.service.hasty import HastyProtocol
from autopilot.service.listeners import Listener
from autopilot.service.settings import Role
from tests.kits.core_world import world
from tests.kits.http_kit import ALERT, BASE, TOKENS, client, desk_over, published

LATE_S = 0.2


def taking(app: FastAPI) -> list[tuple[str, str]]:
    """Method and path of every route, and of a path that is none."""
    found = [(method.upper(), path) for path, of_path in app.openapi()["paths"].items() for method in of_path]
    assert any(method not in READS for method, _ in found)
    return [*((method, path.replace("{", "").replace("}", "")) for method, path in found), ("POST", "/no-such")]


async def send_much(app: Any, method: str, path: str, stated: int | None) -> tuple[int, int]:
    """The status of a request with an endless body, and the bytes of it that were taken."""
    taken, status, chunk = 0, 0, b"x" * 16384

    async def receive() -> Message:
        nonlocal taken
        assert taken < 64 << 20, "the body is read without end"
        taken += len(chunk)
        return {"type": "http.request", "body": chunk, "more_body": True}

    async def send(message: Message) -> None:
        nonlocal status
        status = message.get("status", status)

    headers = [(b"host", b"testserver"), (b"origin", BASE.encode()), (b"content-type", b"application/json")]
    headers += [(b"content-length", str(stated).encode())] if stated is not None else []
    scope = {
        "type": "http",
        "http_version": "1.1",
        "method": method,
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "root_path": "",
        "scheme": "http",
        "headers": headers,
        "client": ("10.0.0.9", 1),
        "server": ("testserver", 80),
    }
    await app(scope, receive, send)
    return status, taken


@pytest.mark.parametrize("make", [service_app, delivery_app])
@pytest.mark.parametrize("stated", [None, 300 << 20])
def test_no_route_reads_a_long_body_without_credentials(tmp_path: Path, make: Any, stated: int | None) -> None:
    """Neither one whose length is stated nor one in chunks: it is refused, or not read at all."""
    desk = desk_over(tmp_path, published(world()))
    app = make(desk)
    for method, path in taking(app):
        status, taken = asyncio.run(send_much(app, method, path, stated))
        most = desk.alerts_bytes if path.endswith("/alerts") else desk.body_bytes
        assert taken <= most + 16384, (method, path)
        assert stated is None or (status, taken) == (413, 0), (method, path)


def test_a_delivery_may_be_longer_than_other_bodies(tmp_path: Path) -> None:
    """Alertmanager groups hundreds of alerts; the limit of a delivery is its own."""
    desk = desk_over(tmp_path, published(world()))
    browser = client(desk)
    headers = {"Authorization": f"Bearer {TOKENS[Role.ADMIN]}"}
    for size, status in ((desk.body_bytes + 1, 400), (desk.alerts_bytes + 1, 413)):
        assert browser.post("/api/v1/alerts", content=b" " * size, headers=headers).status_code == status
    long = browser.post("/api/v1/session", content=b" " * (desk.body_bytes + 1), headers={"Origin": BASE})
    assert (long.status_code, "at most 65,536 bytes" in long.json()["detail"]) == (413, True)


# --- time -----------------------------------------------------------------------------------


@pytest.fixture
def listener(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Listener]:
    """The service behind a real socket, where a request has 0.2 s to arrive."""
    monkeypatch.setattr(HastyProtocol, "whole_s", LATE_S)
    found = Listener(service_app(desk_over(tmp_path, published(world()))), "127.0.0.1:0", "listen")
    found.start()
    yield found
    found.close()


HALVES = {
    "nothing": b"",
    "half a head": b"GET /healthz HTTP/1.1\r\nHost: a\r\nX-Long: ",
    "half a body": b"POST /api/v1/session HTTP/1.1\r\nHost: a\r\nContent-Length: 100\r\n\r\n{",
    "half a chunk": b"POST /api/v1/session HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n40\r\n{",
    "half of a second request": b"GET /healthz HTTP/1.1\r\nHost: a\r\n\r\nGET /healthz HTTP/1.1\r\nHost",
}


@pytest.mark.parametrize("half", HALVES.values(), ids=HALVES)
@pytest.mark.parametrize("drips", [False, True])
def test_a_request_that_does_not_become_whole_is_closed(listener: Listener, half: bytes, *, drips: bool) -> None:
    """Whether the other end is silent or sends a byte now and then."""
    host, port = listener.url.removeprefix("http://").split(":")
    with closing(socket.create_connection((host, int(port)), timeout=60.0)) as peer:
        peer.sendall(half)
        peer.settimeout(LATE_S / 4 if drips else 60.0)
        for _ in range(1000):
            try:
                if not peer.recv(65536):
                    return
            except TimeoutError:
                peer.send(b"a" if half else b"")
            except ConnectionError:
                return
    raise AssertionError("it stays open")


def test_a_stream_of_events_outlasts_the_time_of_a_request(listener: Listener) -> None:
    """What is sent to the caller has no such limit."""
    host, port = listener.url.removeprefix("http://").split(":")
    head = f"GET /api/v1/events HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {TOKENS[Role.VIEWER]}\r\n\r\n"
    with closing(socket.create_connection((host, int(port)), timeout=60.0)) as peer:
        peer.sendall(head.encode())
        came = b""
        while b"event: tick" not in came:
            came += peer.recv(65536)
        peer.settimeout(3 * LATE_S)
        with pytest.raises(TimeoutError):
            peer.recv(65536)


def test_a_peer_that_reads_nothing_is_cut(listener: Listener, monkeypatch: pytest.MonkeyPatch) -> None:
    """It asks for the longest file again and again, and takes none of the answers."""
    ended, lost = threading.Event(), HastyProtocol.connection_lost

    def noted(self: HastyProtocol, exc: Exception | None) -> None:
        lost(self, exc)
        ended.set()

    monkeypatch.setattr(HastyProtocol, "unread_s", LATE_S)
    monkeypatch.setattr(HastyProtocol, "connection_lost", noted)
    host, port = listener.url.removeprefix("http://").split(":")
    with closing(socket.socket()) as peer:
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        peer.connect((host, int(port)))
        longest = max(page.FILES, key=lambda name: len(page.FILES[name].body))
        peer.sendall(f"GET /static/{longest} HTTP/1.1\r\nHost: a\r\n\r\n".encode() * 400)
        assert ended.wait(30.0), "it stays open"


def test_a_forwarded_address_gets_around_no_limit(listener: Listener) -> None:
    """Each sign-in says another address, from the machine of the service."""
    codes = []
    for number in range(int(SIGNING_IN.burst) + 1):
        peer = http.client.HTTPConnection(listener.url.removeprefix("http://"), timeout=60.0)
        said = {"Origin": listener.url, "X-Forwarded-For": f"10.0.0.{number}", "Content-Type": "application/json"}
        peer.request("POST", "/api/v1/session", b'{"token": "wrong-wrong-wrong"}', said)
        codes.append(peer.getresponse().status)
        peer.close()
    assert codes == [401] * int(SIGNING_IN.burst) + [429]


def test_one_machine_has_one_address() -> None:
    """A machine may have a whole network of IPv6."""
    assert network_of("2001:db8::1") == network_of("2001:db8::ffff:2%eth0") != network_of("2001:db8:0:1::1")
    assert network_of("::ffff:10.0.0.1") == network_of("10.0.0.1") != network_of("10.0.0.2")
    assert network_of("testclient") == "testclient"


@pytest.mark.parametrize("body", [b"\x1f\x8b\xff", b'{"token": "' + b"s" * 5000 + b'"}', b"[" * 60_000])
def test_a_body_that_cannot_be_used_is_not_repeated(tmp_path: Path, body: bytes) -> None:
    """It may be no text at all, or a token that is too long."""
    for media in ("application/json", "text/plain"):
        answer = client(desk_over(tmp_path)).post(
            "/api/v1/session", content=body, headers={"Origin": BASE, "Content-Type": media}
        )
        assert answer.status_code in {400, 422}
        assert "sss" not in answer.text


# --- callers --------------------------------------------------------------------------------


def test_slow_answers_of_prometheus_leave_threads_for_commands(tmp_path: Path) -> None:
    """Only a few requests wait for evidence at once; the next one gets 503."""
    browser = client(desk_over(tmp_path, published(world())), Role.VIEWER)
    while alerts.ASKS.acquire(blocking=False):
        pass
    try:
        assert browser.get(f"/api/v1/runbooks/{ALERT}").status_code == 503
    finally:
        for _ in range(4):
            alerts.ASKS.release()
    assert browser.get(f"/api/v1/runbooks/{ALERT}").status_code == 200


def test_one_caller_cannot_take_all_streams(tmp_path: Path) -> None:
    """Beyond its own number a caller is refused, others are not, and what ends is given back."""
    desk = desk_over(tmp_path, published(world()))
    app = service_app(desk)
    open_now = app.state.__dict__.setdefault("streams", Counter())
    open_now["viewer viewer"] = events.MOST_EACH
    browser = TestClient(app, base_url=BASE)
    desk.publisher.close()  # streams end at once
    answers = {
        role: browser.get("/api/v1/events", headers={"Authorization": f"Bearer {TOKENS[role]}"}).status_code
        for role in (Role.VIEWER, Role.ADMIN)
    }
    assert answers == {Role.VIEWER: 429, Role.ADMIN: 200}
    assert dict(open_now) == {"viewer viewer": events.MOST_EACH}


def test_wrong_sign_ins_block_nobody_else_behind_one_address(tmp_path: Path) -> None:
    """A valid token counts by its name: ten mistakes of somebody behind the same proxy leave it alone."""
    browser = client(desk_over(tmp_path))

    def sign_in(token: str) -> int:
        return browser.post("/api/v1/session", json={"token": token}, headers={"Origin": BASE}).status_code

    most = int(SIGNING_IN.burst)
    assert [sign_in("wrong-wrong-wrong") for _ in range(most + 1)] == [401] * most + [429]
    assert [sign_in(TOKENS[Role.VIEWER]) for _ in range(most + 1)] == [200] * most + [429]
    assert sign_in(TOKENS[Role.ADMIN]) == 200
