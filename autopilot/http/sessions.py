"""Sessions of the page: a token is exchanged once for a cookie hidden from scripts.

A browser sends the cookie by itself, so a changing request also proves its origin in our own page: by the header
`X-CSRF-Token` with the value of the session, and by its `Origin`. API clients send a bearer token instead.
"""

from __future__ import annotations

import hmac
import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from fastapi import HTTPException, Request, Response

from autopilot.http.auth import Caller

COOKIE = "gpu_autopilot_session"
CSRF_HEADER = "X-CSRF-Token"
LASTS_S = 12 * 3600.0
MOST_SESSIONS, MOST_EACH = 1000, 20
"""Most sessions open at once: of everybody, and of one caller."""
READS = frozenset({"GET", "HEAD"})


@dataclass(frozen=True, slots=True)
class Session:
    """One signed-in browser."""

    caller: Caller
    csrf: str
    ends_s: float  # by the monotonic clock


class Sessions:
    """The sessions of this process. They end with it, after their time, and the oldest ones beyond `MOST_EACH` of their
    caller and `MOST_SESSIONS` of all.
    """

    def __init__(self, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._clock_s, self._lock = clock_s, threading.Lock()
        self._open: OrderedDict[str, Session] = OrderedDict()

    def start(self, caller: Caller, response: Response, *, secure: bool, lasts_s: float = LASTS_S) -> Session:
        """A new session, with its cookie on `response`."""
        key, session = secrets.token_urlsafe(32), Session(caller, secrets.token_urlsafe(32), self._clock_s() + lasts_s)
        with self._lock:
            of_caller = [each for each, opened in self._open.items() if opened.caller == caller]
            for each in of_caller[: max(len(of_caller) + 1 - MOST_EACH, 0)]:
                del self._open[each]
            self._open[key] = session
            while len(self._open) > MOST_SESSIONS:
                self._open.popitem(last=False)
        response.set_cookie(COOKIE, key, max_age=int(lasts_s), httponly=True, samesite="strict", secure=secure)
        return session

    def find(self, key: str | None) -> Session | None:
        """The session of a cookie, if it has not ended."""
        with self._lock:
            session = self._open.get(key or "")
            if session is None or session.ends_s > self._clock_s():
                return session
            del self._open[key or ""]
            return None

    def end(self, key: str | None) -> None:
        """Sign out."""
        with self._lock:
            self._open.pop(key or "", None)

    def caller(self, request: Request) -> Caller | None:
        """The caller by the cookie of a request. Raises 403 for a change from elsewhere than our own page."""
        session = self.find(request.cookies.get(COOKIE))
        if session is None:
            return None
        if request.method not in READS:
            check_origin(request)
            given = request.headers.get(CSRF_HEADER, "")
            if not hmac.compare_digest(given.encode(), session.csrf.encode()):
                raise HTTPException(
                    403, f"a change by cookie needs the header {CSRF_HEADER} with the value of GET /api/v1/session"
                )
        return session.caller


def check_origin(request: Request) -> None:
    """Raise 403 unless the request comes from a page of this very address."""
    origin, host = request.headers.get("Origin", ""), request.headers.get("Host", "")
    if not host or origin not in {f"http://{host}", f"https://{host}"}:
        raise HTTPException(403, "the request does not come from the page of this service; open the page and sign in")
