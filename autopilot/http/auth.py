"""Bearer tokens and their roles. A token is compared in constant time and is never logged or returned."""

from __future__ import annotations

import hmac
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Any

from fastapi import Depends, HTTPException, Request
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer

from autopilot.core.model.errors import InputError
from autopilot.service.settings import Role, Token

ROLES = tuple(Role)
LEAST_LETTERS = 16
_BEARER = HTTPBearer(auto_error=False, description="a token of the service")
Given = Annotated[HTTPAuthorizationCredentials | None, Depends(_BEARER)]


@dataclass(frozen=True, slots=True)
class Caller:
    """The owner of the token of a request."""

    name: str
    role: Role
    subject: str = ""  # the subject at the OpenID Connect provider; "": the owner of a token

    def may(self, role: Role) -> bool:
        """True if the caller has this role or a higher one. `alerts` is a role beside the others."""
        if Role.ALERTS in {self.role, role}:
            return self.role in {role, Role.ADMIN}
        return ROLES.index(self.role) >= ROLES.index(role)


class Tokens:
    """All tokens of the service, as digests."""

    def __init__(self, known: Iterable[tuple[str, Caller]]) -> None:
        self._known = tuple((sha256(token.encode()).digest(), caller) for token, caller in known)

    def caller(self, token: str) -> Caller | None:
        """The owner of a token, None for an unknown one. Takes the same time for every token."""
        given, found = sha256(token.encode("utf-8", "surrogatepass")).digest(), None
        for digest, caller in self._known:
            if hmac.compare_digest(digest, given):
                found = caller
        return found

    def known(self, token: str) -> Caller | None:
        """The owner as far as it is known without a request to others; for calls that may not wait."""
        return self.caller(token)


def read_tokens(settings: Iterable[Token]) -> list[tuple[str, Caller]]:
    """The tokens of the settings. Raises `InputError` for a missing or empty file, and for one too short to be a
    secret.
    """
    return [(token_of(each.file, f"http.tokens: {each.name}"), Caller(each.name, each.role)) for each in settings]


def token_of(path: Path, field: str, least_letters: int = LEAST_LETTERS) -> str:
    """The token in a file. Raises `InputError`."""
    try:
        token = path.read_text("utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(
            f"{field}: {path}: the token cannot be read: {error}; create it, readable by its owner"
        ) from error
    if len(token) < least_letters or any(letter.isspace() for letter in token):
        raise InputError(
            f"{field}: {path}: a token is one word of at least {least_letters} letters; write one with "
            "`openssl rand -base64 32`"
        )
    return token


def origin_of(request: Request) -> str:
    """The origin of a request (its address), kept with its command."""
    return request.client.host if request.client is not None else ""


def need(role: Role) -> Callable[..., Caller]:
    """A dependency: the caller by token, certificate or session, if its role allows `role`; else 401 or 403."""

    def check(request: Request, given: Given) -> Caller:
        desk: Any = request.app.state.desk
        caller: Caller | None
        if given is not None:
            caller = desk.tokens.caller(given.credentials)
        else:
            caller = desk.certified or desk.sessions.caller(request)
        if caller is None or not caller.may(role):
            origin, path = origin_of(request), request.url.path
            who, has = (caller.name, caller.role.value) if caller is not None else ("", "")
            reason = f"needs {role.value}" if caller else "unknown token" if given else "no token"
            desk.record.denied(who, has, origin, path, reason)
        if caller is None:
            raise HTTPException(
                401, "give a token of the service: `Authorization: Bearer TOKEN`", {"WWW-Authenticate": "Bearer"}
            )
        if not caller.may(role):
            raise HTTPException(403, f"the token of {caller.name} has the role {caller.role}; this needs {role}")
        return caller

    return check


Viewer = Annotated[Caller, Depends(need(Role.VIEWER))]
Approver = Annotated[Caller, Depends(need(Role.APPROVER))]
Deliverer = Annotated[Caller, Depends(need(Role.ALERTS))]
Admin = Annotated[Caller, Depends(need(Role.ADMIN))]
