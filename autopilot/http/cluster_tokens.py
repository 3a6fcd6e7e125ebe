"""Tokens of the cluster: a bearer token unknown to the service is reviewed by the API server (TokenReview)."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from hashlib import sha256
from typing import Any

from autopilot.http.auth import ROLES, Caller, Tokens
from autopilot.http.limits import Limit, Limits
from autopilot.kube.cluster_api import Answer
from autopilot.service.settings import ClusterRoles, Role

PATH = "/apis/authentication.k8s.io/v1/tokenreviews"
KEPT_S, UNKNOWN_S = 60.0, 10.0
"""Lifetime of an answer: a token revoked by the cluster is refused after `KEPT_S` at the latest."""
MOST_KEPT = 1024
REVIEWS = Limit(20.0, 5.0)
"""Reviews of tokens never seen as valid, of all callers together: a flood of them does not reach the API server."""
LONGEST_TOKEN = 4096

Post = Callable[[str, Mapping[str, Any]], Answer]


class ClusterTokens(Tokens):
    """Tokens of the service first, then those of the cluster, with roles by user and group."""

    def __init__(
        self,
        known: Iterable[tuple[str, Caller]],
        post: Post,
        roles: ClusterRoles,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(known)
        self._post, self._roles, self._clock_s = post, roles, clock_s
        self._limits, self._lock = Limits(clock_s), threading.Lock()
        self._kept: OrderedDict[bytes, tuple[Caller | None, float]] = OrderedDict()  # by digest: caller, until

    def caller(self, token: str) -> Caller | None:
        """The owner of a token. Asks the API server unless the answer is kept; None without an answer."""
        own = super().caller(token)
        if own is not None or not token or len(token) > LONGEST_TOKEN:
            return own
        digest = sha256(token.encode("utf-8", "surrogatepass")).digest()
        kept, caller = self._find(digest)
        if kept:
            return caller
        if not self._was_valid(digest) and self._limits.wait_s("", REVIEWS):
            return None
        answered, caller = self._review(token)
        if answered:
            with self._lock:
                self._kept.pop(digest, None)
                self._kept[digest] = (caller, self._clock_s() + (KEPT_S if caller is not None else UNKNOWN_S))
                while len(self._kept) > MOST_KEPT:
                    self._kept.popitem(last=False)
        return caller

    def known(self, token: str) -> Caller | None:
        """The owner as far as it is known without a request."""
        return super().caller(token) or self._find(sha256(token.encode("utf-8", "surrogatepass")).digest())[1]

    def _find(self, digest: bytes) -> tuple[bool, Caller | None]:
        with self._lock:
            caller, until_s = self._kept.get(digest, (None, float("-inf")))
        return (True, caller) if self._clock_s() < until_s else (False, None)

    def _was_valid(self, digest: bytes) -> bool:
        with self._lock:
            return self._kept.get(digest, (None, 0.0))[0] is not None

    def _review(self, token: str) -> tuple[bool, Caller | None]:
        """(True if the server answered, the caller)."""
        spec: dict[str, Any] = {"token": token}
        if self._roles.audiences:
            spec["audiences"] = list(self._roles.audiences)
        answer = self._post(PATH, {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": spec})
        status = answer.document.get("status")
        if answer.status not in {200, 201} or not isinstance(status, dict):
            return False, None
        if status.get("authenticated") is not True or not self._meant_for_us(status):
            return True, None
        user = status.get("user") or {}
        name, groups = str(user.get("username", "")), {str(each) for each in user.get("groups") or []}
        role = self._role(name, groups)
        return True, Caller(name, role) if name and role is not None else None

    def _meant_for_us(self, status: Mapping[str, Any]) -> bool:
        """If audiences are configured, the server must confirm one: an old server ignores the question."""
        wanted = set(self._roles.audiences)
        return not wanted or bool(wanted & {str(each) for each in status.get("audiences") or []})

    def _role(self, name: str, groups: set[str]) -> Role | None:
        """The highest role of a user or one of its groups by the settings."""
        names = {f"user:{name}", *(f"group:{each}" for each in groups)}
        given = [role for role in ROLES if names & set(self._roles.of(role))]
        return max(given, key=ROLES.index, default=None)
