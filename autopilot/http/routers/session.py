"""Signing in on the page: a token, or a sign-in at an OpenID Connect provider, is exchanged for a session cookie."""

from __future__ import annotations

from html import escape
from typing import Annotated, Any

from fastapi import APIRouter, HTTPException, Request, Response
from fastapi.responses import HTMLResponse, RedirectResponse
from pydantic import BaseModel, Field

from autopilot.http import oidc
from autopilot.http.answers import SessionState, stated
from autopilot.http.auth import Viewer, origin_of
from autopilot.http.desk import Asked, Desk
from autopilot.http.limits import RETURNING, SIGNING_IN, network_of
from autopilot.http.oidc import Provider, SignInError
from autopilot.http.sessions import COOKIE, check_origin
from autopilot.records.audit.log import AuditError
from autopilot.service.settings import Role

router = APIRouter(prefix="/api/v1/session", tags=["session"])


class SignIn(BaseModel):
    """A token of the service."""

    token: Annotated[str, Field(min_length=1, max_length=4096)]


@router.get("", responses=stated(SessionState))
def session(desk: Asked, request: Request) -> dict[str, Any]:
    """Whether this browser is signed in, as what, and the value that its changes must carry."""
    found = desk.sessions.find(request.cookies.get(COOKIE))
    if found is None:
        return {"signed_in": False} | _provider(desk)
    caller = found.caller
    shown = {"signed_in": True, "name": caller.name, "role": caller.role.value, "csrf": found.csrf}
    return shown | _provider(desk)


@router.post("", responses=stated(SessionState))
def sign_in(desk: Asked, request: Request, response: Response, given: SignIn) -> dict[str, Any]:
    """Exchange a token for a session cookie. Only the page of this service may ask.

    Sign-ins with a token that is none count by address, those with a valid one by its name: behind one proxy, mistakes
    of one person do not block other people.
    """
    check_origin(request)
    caller = desk.tokens.caller(given.token.strip())
    who = f"sign-in {caller.name}" if caller is not None else network_of(origin_of(request))
    if wait_s := desk.limits.wait_s(who, SIGNING_IN):
        words = f"too many sign-ins; try again in {wait_s:.0f} s"
        raise HTTPException(429, words, {"Retry-After": f"{wait_s:.0f}"})
    if caller is None:
        raise HTTPException(401, "invalid token")
    if not caller.may(Role.VIEWER):
        raise HTTPException(403, f"the token of {caller.name} has the role {caller.role}, which cannot read the page")
    desk.sessions.end(request.cookies.get(COOKIE))
    secure = "https" in {request.url.scheme, request.headers.get("X-Forwarded-Proto")}
    made = desk.sessions.start(caller, response, secure=secure)
    return {"signed_in": True, "name": caller.name, "role": caller.role.value, "csrf": made.csrf}


@router.delete("", responses=stated(SessionState))
def sign_out(desk: Asked, _caller: Viewer, request: Request, response: Response) -> dict[str, Any]:
    """End the session of this browser."""
    desk.sessions.end(request.cookies.get(COOKIE))
    response.delete_cookie(COOKIE)
    return {"signed_in": False} | _provider(desk)


def _provider(desk: Desk) -> dict[str, Any]:
    given = desk.provider
    return {"provider": {"name": given.name, "url": given.begin_url}} if given is not None else {}


@router.get("/provider", include_in_schema=False)
def begin(desk: Asked, request: Request) -> Response:
    """Send this browser to the OpenID Connect provider, with a cookie that ties its return to it."""
    provider = _known(desk)
    try:
        url, cookie = provider.begin()
    except SignInError as error:
        return _refused(desk, request, error)
    answer = RedirectResponse(url, 303)
    answer.set_cookie(
        oidc.COOKIE,
        cookie,
        max_age=int(oidc.BEGUN_S),
        path=oidc.PATH,
        httponly=True,
        samesite="lax",  # the provider sends the browser back
        secure=provider.secure,
    )
    return answer


@router.get("/provider/callback", include_in_schema=False)
def finish(desk: Asked, request: Request) -> Response:
    """The return from the provider: a session, and the page. It leads nowhere else, whatever the query says."""
    provider, origin = _known(desk), origin_of(request)
    if wait_s := desk.limits.wait_s(f"return {network_of(origin)}", RETURNING):
        return _refused(desk, request, SignInError(429, f"too many at once; try again in {wait_s:.0f} s", "too many"))
    try:
        caller = provider.finish(request.cookies.get(oidc.COOKIE, ""), request.query_params)
        desk.record.signed_in(caller.name, caller.role.value, origin, caller.subject)
    except SignInError as error:
        return _refused(desk, request, error)
    except AuditError as error:
        return _refused(desk, request, SignInError(503, f"it cannot be recorded: {error}", "not recorded"))
    desk.sessions.end(request.cookies.get(COOKIE))
    answer = RedirectResponse("/", 303)
    desk.sessions.start(caller, answer, secure=provider.secure, lasts_s=provider.session_s)
    answer.delete_cookie(oidc.COOKIE, path=oidc.PATH)
    return answer


def _known(desk: Desk) -> Provider:
    if desk.provider is None:
        raise HTTPException(404, "no OpenID Connect provider is set (http.oidc); sign in with a token")
    return desk.provider


def _refused(desk: Desk, request: Request, error: SignInError) -> Response:
    """A page for a person: the reason, and the way back."""
    desk.record.denied(error.who, "", origin_of(request), request.url.path, error.reason)
    text = (
        '<!doctype html><html lang="en"><meta name="viewport" content="width=device-width">'
        f"<title>Sign-in failed</title><h1>Sign-in failed</h1><p>{escape(str(error))}.</p>"
        '<p><a href="/">Back to the page</a></p></html>'
    )
    return HTMLResponse(text, error.status)
