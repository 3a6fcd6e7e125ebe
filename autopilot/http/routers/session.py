"""Signing in on the page: a token is exchanged once for a session cookie."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, HTTPException, Request, Response
from pydantic import BaseModel, Field

from autopilot.http.answers import SessionState, stated
from autopilot.http.auth import Viewer, origin_of
from autopilot.http.desk import Asked
from autopilot.http.limits import SIGNING_IN, network_of
from autopilot.http.sessions import COOKIE, check_origin
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
        return {"signed_in": False}
    return {"signed_in": True, "name": found.caller.name, "role": found.caller.role.value, "csrf": found.csrf}


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
        raise HTTPException(401, "this is no token of the service; ask its operator for one")
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
    return {"signed_in": False}
