"""From the headers of a request to its user."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from apiserver.access.rules import Attributes, decide
from apiserver.access.texts import forbidden_request, unauthorized
from apiserver.access.tokens import TokenMaker, user_of
from apiserver.requests import Request
from apiserver.routing import route, verb
from apiserver.users import ANONYMOUS, User

if TYPE_CHECKING:
    from apiserver.server import Server

REMEMBERED_S = 10.0
"""How long a token that was accepted is not looked at again: the cache of kube-apiserver. A token of a deleted service
account works until then (measured on Kubernetes 1.36)."""


class Authentication:
    """Bearer tokens: those of known users, and those of service accounts. A request without a token is anonymous."""

    def __init__(self, server: Server, tokens: Mapping[str, User] | None = None) -> None:
        self._server = server
        self._tokens = dict(tokens or {})
        self.maker = TokenMaker(server.rng.randbytes(32))
        self._accepted: dict[str, tuple[float, User]] = {}

    def add(self, token: str, user: User) -> None:
        """Accept a token for a user."""
        self._tokens[token] = user

    def __call__(self, request: Request) -> User:
        """The user of a request, or the impersonated user. Raises StatusError 401, 403."""
        kind, _, token = request.headers.get("authorization", "").partition(" ")
        user: User | None = ANONYMOUS
        if kind.lower() == "bearer" and token.strip():
            user = self.user_of(token.strip())
        if user is None:
            raise unauthorized()
        return self.impersonated(request, user)

    def user_of(self, token: str) -> User | None:
        """The user of a token; None for an unknown or expired one, and for one of a deleted service account."""
        if token in self._tokens:
            return self._tokens[token]
        now_s = self._server.timeline.now_s
        accepted = self._accepted.get(token)
        if accepted is not None and now_s - accepted[0] < REMEMBERED_S:
            return accepted[1]
        self._accepted.pop(token, None)
        claims = self.maker.claims(token)
        if claims is None or claims["exp"] <= now_s:
            return None
        user = user_of(claims)
        account = self._server.store.get("serviceaccounts", *_home(claims))
        if account is None or account["metadata"]["uid"] != user.uid:
            return None
        self._accepted[token] = (now_s, user)
        return user

    def impersonated(self, request: Request, user: User) -> User:
        """The user impersonated by the headers, or the user itself. Raises StatusError 403."""
        name = request.headers.get("impersonate-user", "")
        groups = [each.strip() for each in request.headers.get("impersonate-group", "").split(",") if each.strip()]
        if not name:
            return user
        wanted = [Attributes("impersonate", resource="users", name=name)]
        wanted += [Attributes("impersonate", resource="groups", name=group) for group in groups]
        if not all(decide(self._server.store, user, each)[0] for each in wanted):
            asked = _asked(request)
            raise forbidden_request(user, asked, verb_shown=f"impersonate-on:user-info:{asked.verb}")
        return User(name, tuple(dict.fromkeys([*groups, "system:authenticated"])))


def _home(claims: Mapping[str, dict[str, dict[str, str]]]) -> tuple[str, str]:
    home = claims["kubernetes.io"]
    return str(home["namespace"]), str(home["serviceaccount"]["name"])


def _asked(request: Request) -> Attributes:
    path = route(request.path)
    if path is None:
        return Attributes(request.method.lower(), path=request.path)
    watch = request.query.get("watch") in {"1", "true"}
    asked = verb(request.method, path.name, watch=watch) or request.method.lower()
    return Attributes(asked, path.group, path.plural, path.subresource, path.namespace, path.name)
