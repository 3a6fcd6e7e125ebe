"""Signing in, and what a browser may send: sessions, CSRF, origin, rate limits, headers."""

from __future__ import annotations

from pathlib import Path

import pytest
from fastapi import Response

from autopilot.http.auth import Caller
from autopilot.http.edge import HEADERS
from autopilot.http.limits import CHANGING, READING, SIGNING_IN, Limits
from autopilot.http.sessions import COOKIE, LASTS_S, MOST_EACH, MOST_SESSIONS, Sessions
from autopilot.service.settings import Role
from tests.kits.core_world import waits, world
from tests.kits.http_kit import BASE, TOKENS, client, desk_over, published, signed_in


def test_a_token_becomes_a_cookie_that_scripts_and_other_sites_do_not_get(tmp_path: Path) -> None:
    """The cookie is HttpOnly and SameSite=Strict, reads the API, and is worth nothing after signing out."""
    desk = desk_over(tmp_path, published(world()))
    browser = client(desk)
    assert browser.get("/api/v1/session").json() == {"signed_in": False}
    answer = browser.post("/api/v1/session", json={"token": TOKENS[Role.VIEWER]}, headers={"Origin": BASE})
    cookie = answer.headers["set-cookie"]
    assert cookie.startswith(f"{COOKIE}=")
    assert "HttpOnly" in cookie
    assert "SameSite=strict" in cookie
    assert TOKENS[Role.VIEWER] not in answer.text + cookie
    assert browser.get("/api/v1/state").json()["caller"] == {"name": "viewer", "role": "viewer"}
    kept = browser.cookies[COOKIE]
    csrf = answer.json()["csrf"]
    assert browser.delete("/api/v1/session", headers={"Origin": BASE, "X-CSRF-Token": csrf}).status_code == 200
    assert client(desk).get("/api/v1/state", headers={"Cookie": f"{COOKIE}={kept}"}).status_code == 401


@pytest.mark.parametrize(
    "origin", ["", "null", "http://elsewhere", "http://testserver.elsewhere", "http://testserver:81"]
)
def test_no_other_page_signs_a_browser_in(tmp_path: Path, origin: str) -> None:
    """A token from a page of another origin, or from none, is refused before it is looked at."""
    browser = client(desk_over(tmp_path))
    headers = {"Origin": origin} if origin else {}
    answer = browser.post("/api/v1/session", json={"token": TOKENS[Role.ADMIN]}, headers=headers)
    assert answer.status_code == 403
    assert "set-cookie" not in answer.headers


def test_a_wrong_token_is_refused_and_not_repeated(tmp_path: Path) -> None:
    """401, without the token in the answer."""
    answer = client(desk_over(tmp_path)).post(
        "/api/v1/session", json={"token": "wrong-wrong-wrong"}, headers={"Origin": BASE}
    )
    assert answer.status_code == 401
    assert "wrong-wrong-wrong" not in answer.text


def test_a_token_that_only_delivers_alerts_opens_no_page(tmp_path: Path) -> None:
    """It is no role of a person."""
    answer = client(desk_over(tmp_path)).post(
        "/api/v1/session", json={"token": TOKENS[Role.ALERTS]}, headers={"Origin": BASE}
    )
    assert answer.status_code == 403
    assert "set-cookie" not in answer.headers


def test_a_change_by_cookie_needs_origin_and_csrf_value(tmp_path: Path) -> None:
    """Each alone is refused; both together pass; a bearer token needs neither."""
    desk = desk_over(tmp_path, published(world()))
    browser, csrf = signed_in(desk, Role.ADMIN)
    for headers in (
        {},
        {"Origin": BASE},
        {"X-CSRF-Token": csrf},
        {"Origin": BASE, "X-CSRF-Token": "x" * 43},
        {"Origin": "http://elsewhere", "X-CSRF-Token": csrf},
    ):
        assert browser.post("/api/v1/pause", headers=headers).status_code == 403
    assert not desk.inbox.drain(0.0)
    assert browser.post("/api/v1/pause", headers={"Origin": BASE, "X-CSRF-Token": csrf}).status_code == 200
    assert client(desk, Role.ADMIN).post("/api/v1/pause").status_code == 200
    assert [each.who for each in desk.inbox.drain(0.0)] == ["admin", "admin"]


def test_a_session_has_the_role_of_its_token(tmp_path: Path) -> None:
    """A viewer reads and decides nothing."""
    desk = desk_over(tmp_path, published(world(work=[waits("job")])))
    browser, csrf = signed_in(desk, Role.VIEWER)
    both = {"Origin": BASE, "X-CSRF-Token": csrf}
    assert browser.post("/api/v1/kill", headers=both).status_code == 403
    assert browser.get("/api/v1/openapi.json").status_code == 403
    assert client(desk, Role.ADMIN).get("/api/v1/openapi.json").json()["paths"]


def test_sessions_end_and_are_bounded() -> None:
    """A session ends after its time, and the oldest one when there are too many."""
    now = [0.0]
    sessions, caller = Sessions(lambda: now[0]), Caller("a", Role.ADMIN)

    def start() -> str:
        answer = Response()
        sessions.start(caller, answer, secure=True)
        assert "Secure" in answer.headers["set-cookie"]
        return answer.headers["set-cookie"].split("=")[1].split(";")[0]

    first, second = start(), start()
    now[0] = LASTS_S - 1
    assert sessions.find(first)
    now[0] = LASTS_S
    assert sessions.find(second) is None
    kept = [start() for _ in range(MOST_EACH + 1)]
    assert sessions.find(kept[0]) is None
    assert sessions.find(kept[1]) is not None
    for number in range(MOST_SESSIONS - MOST_EACH):
        sessions.start(Caller(f"other {number}", Role.VIEWER), Response(), secure=True)
    assert sessions.find(kept[1]) is not None
    sessions.start(Caller("one more", Role.VIEWER), Response(), secure=True)
    assert sessions.find(kept[1]) is None


def test_a_limit_refills() -> None:
    """After the burst one request passes whenever its time has come; others are not affected."""
    now = [0.0]
    limits = Limits(lambda: now[0])
    assert [limits.wait_s("a", CHANGING) for _ in range(60)] == [0.0] * 60
    assert limits.wait_s("a", CHANGING) == 1.0
    assert limits.wait_s("b", CHANGING) == 0.0
    assert limits.wait_s("a", READING) == 0.0
    now[0] = 0.5
    assert limits.wait_s("a", CHANGING) == 0.0
    assert limits.wait_s("a", CHANGING) > 0.0


def test_too_many_sign_ins_are_refused_and_health_is_not(tmp_path: Path) -> None:
    """429 with the time to wait, before the token is looked at; health answers all the same."""
    browser = client(desk_over(tmp_path))
    answers = [
        browser.post("/api/v1/session", json={"token": "wrong-wrong-wrong"}, headers={"Origin": BASE})
        for _ in range(int(SIGNING_IN.burst) + 1)
    ]
    assert [each.status_code for each in answers] == [401] * int(SIGNING_IN.burst) + [429]
    assert int(answers[-1].headers["Retry-After"]) > 0
    assert {browser.get("/healthz").status_code for _ in range(250)} == {200}


def test_every_answer_has_the_headers(tmp_path: Path) -> None:
    """Of the API, of errors and of the page; the page may load its own files and nothing else."""
    desk = desk_over(tmp_path, published(world()))
    for path in ("/healthz", "/api/v1/state", "/no-such", "/"):
        answer = client(desk).get(path)
        assert all(name.lower() in answer.headers for name in HEADERS)
    policy = client(desk).get("/").headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert "require-trusted-types-for 'script'" in policy
