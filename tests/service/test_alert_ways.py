"""Ways on which alerts come in: a client certificate in place of a token, and a delivery that was cut short."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import requests

from autopilot.core.model.errors import InputError
from autopilot.http.app import service_app
from autopilot.http.desk import Desk
from autopilot.oncall.alertmanager import Listed, alertmanager_reader
from autopilot.oncall.book import AlertBook
from autopilot.oncall.follow import Follower
from autopilot.oncall.queries import no_prometheus
from autopilot.records.audit.entry import Kind, parse_line
from autopilot.service.listeners import Certificates, Listener
from autopilot.service.settings import Role
from autopilot.service.state_folder import read_note
from tests.kits.certificates import Authority
from tests.kits.core_world import waits, world
from tests.kits.http_kit import ALERT, RUNBOOKS, TOKENS, desk_over, published
from tests.kits.prometheus_kit import alertmanager, until
from tests.service.kit import service, settings


def _alert(number: int = 1) -> dict[str, Any]:
    return {
        "status": "firing",
        "labels": {"alertname": ALERT, "tenant": f"t{number}"},
        "startsAt": "2026-11-23T12:00:00Z",
        "fingerprint": f"{number:016x}",
    }


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    """A desk after one tick."""
    return desk_over(tmp_path, published(world("1x8", [waits("w", 8)])))


def test_a_client_certificate_delivers_alerts_and_nothing_else(tmp_path: Path) -> None:
    """Only a certificate of the named authority is accepted; no token is needed, and no other route is there."""
    ours, theirs = Authority(tmp_path, "ours"), Authority(tmp_path, "theirs")
    server, sender, stranger = ours.sign("server"), ours.sign("alertmanager"), theirs.sign("stranger")
    content = settings(tmp_path / "state")
    content["alerts"]["mtls"] = {
        "listen": "127.0.0.1:0",
        "certificate": str(server.certificate),
        "key": str(server.key),
        "client_ca": str(ours.certificate),
    }
    with service(tmp_path, content) as running, requests.Session() as session:
        session.trust_env, session.verify = False, str(ours.certificate)
        given: dict[str, Any] = {"cert": (str(sender.certificate), str(sender.key)), "timeout": 10}
        base = str(read_note(running.state / "service.json")["deliveries"])
        url = f"{base}/api/v1/alerts"
        assert url.startswith("https://")
        answer = session.post(url, json={"alerts": [_alert()]}, **given)
        assert (answer.status_code, answer.json()["changed"]) == (200, 1)
        for method, path in (("GET", "state"), ("GET", "alerts"), ("POST", "kill")):
            assert session.request(method, f"{base}/api/v1/{path}", **given).status_code in {404, 405}
        for wrong in (None, (str(stranger.certificate), str(stranger.key))):
            with pytest.raises((requests.exceptions.SSLError, requests.exceptions.ConnectionError)):
                session.post(url, json={"alerts": [_alert(2)]}, cert=wrong, timeout=10)
        with pytest.raises(requests.exceptions.ConnectionError):
            session.post(url.replace("https", "http"), json={"alerts": [_alert(2)]}, timeout=10)
        assert running.ask("/api/v1/alerts").json()["in_total"] == 1
        assert running.end() == 0
    lines = [line for file in tmp_path.rglob("*.jsonl") for line in file.read_bytes().splitlines()]
    senders = {event.who for line in lines if (event := parse_line(line).event).kind == Kind.ALERT}
    assert senders <= {"client certificate", "autopilot"}
    assert "client certificate" in senders


def test_a_certificate_that_cannot_be_used_is_an_error_at_the_start(tmp_path: Path) -> None:
    """The setting and the file are named."""
    pair = Authority(tmp_path, "ours").sign("server")
    (tmp_path / "text").write_text("no certificate")
    for shown in (
        Certificates(tmp_path / "gone", pair.key, pair.certificate),
        Certificates(pair.certificate, pair.key, tmp_path / "text"),
    ):
        with pytest.raises(InputError, match=r"alerts\.mtls: .*(gone|text)"):
            Listener(None, "127.0.0.1:0", "alerts.mtls", shown)


def test_alerts_that_a_delivery_left_out_are_read_from_the_alertmanager(
    tmp_path: Path, desk: Desk, require_tool: Callable[[str], str]
) -> None:
    """Of five alerts one is delivered; all five are followed, and none twice: both sides give the same start.

    One that is silenced goes on. One that resolved ends, though its end is not delivered; an Alertmanager that has just
    started ends none.
    """
    where: list[str] = []
    settled_s = [300.0]
    book = AlertBook(tmp_path / "alerts.db")
    follower = Follower(
        book,
        RUNBOOKS,
        no_prometheus,
        desk.publisher.wait_for_next,
        fires=lambda: alertmanager_reader(where[0], "autopilot", settled_s=settled_s[-1])(),  # noqa: PLW0108
    )
    listener = Listener(service_app(replace(desk, follower=follower)), "127.0.0.1:0", "test")
    listener.start()
    (tmp_path / "token").write_text(TOKENS[Role.ALERTS])
    receiver = f"{listener.url}/api/v1/alerts"
    binary = require_tool("prometheus-alertmanager")
    try:
        with alertmanager(binary, tmp_path, receiver, tmp_path / "token", most=1) as address:
            where.append(f"http://{address}")
            follower.catch_up(0.0)  # as after the start: nothing fires yet
            labels = [{"alertname": ALERT, "tenant": f"t{number}"} for number in range(5)]
            sent: Any = [{"labels": each, "startsAt": "2026-11-23T12:00:00.123456789Z"} for each in labels]
            assert requests.post(f"http://{address}/api/v2/alerts", json=sent, timeout=10).ok
            until(lambda: book.counts()[0], "a delivery")
            assert book.counts() == (1, 1)
            follower.catch_up(5.0)
            assert book.counts() == (5, 5)
            assert {each.started for each in book.open_alerts()} == {"2026-11-23T12:00:00.123Z"}
            follower.missed()
            follower.catch_up(6.0)
            assert book.counts() == (5, 5)
            matcher = {"name": "tenant", "value": "t1", "isRegex": False}
            silence = {"startsAt": "2026-11-23T12:00:00Z", "endsAt": "2126-11-23T12:00:00Z", "createdBy": "test"}
            silenced: Any = {"matchers": [matcher], "comment": "test", **silence}
            assert requests.post(f"http://{address}/api/v2/silences", json=silenced, timeout=10).ok
            ends: Any = [sent[0] | {"endsAt": "2026-11-23T13:00:00Z"}]
            assert requests.post(f"http://{address}/api/v2/alerts", json=ends, timeout=10).ok
            for age_s, left in ((300.0, 5), (0.0, 4)):
                settled_s.append(age_s)
                follower.missed()
                follower.catch_up(7.0)
                assert book.counts() == (left, 5)
            assert {each.labels["tenant"] for each in book.open_alerts()} == {"t1", "t2", "t3", "t4"}
    finally:
        listener.close()
        follower.close()


def test_an_alertmanager_that_is_down_is_asked_again_later(tmp_path: Path) -> None:
    """It is no reason to stop, and not asked at every tick."""
    asked: list[float] = []

    def down() -> Listed:
        asked.append(0.0)
        raise InputError("refused")

    book = AlertBook(tmp_path / "alerts.db")
    follower = Follower(book, {}, no_prometheus, lambda _last, _s: None, fires=down)
    for _ in range(5):
        follower.catch_up(0.0)
    assert len(asked) == 1
    follower.close()
    with pytest.raises(InputError, match=r"alerts\.alertmanager: http://127\.0\.0\.1:9: "):
        alertmanager_reader("http://127.0.0.1:9")()
