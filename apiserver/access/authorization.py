"""Asks RBAC about each request, and stops people from granting rights beyond their own."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from apiserver.access.rules import (
    CLUSTER_ROLE_BINDINGS,
    CLUSTER_ROLES,
    ROLE_BINDINGS,
    ROLES,
    Attributes,
    Rule,
    decide,
    missing_roles,
    role_rules,
    uncovered,
)
from apiserver.access.texts import forbidden_request
from apiserver.admission.base import Attributes as Write
from apiserver.errors import forbidden
from apiserver.kinds.base import Call, State
from apiserver.requests import Request
from apiserver.users import User

if TYPE_CHECKING:
    from apiserver.server import Server

BY_NAME = "metadata.name="


class Authorization:
    """The decision of RBAC about every request for a resource."""

    def __init__(self, server: Server) -> None:
        self._server = server

    def __call__(self, call: Call) -> None:
        """Raises StatusError 403."""
        kind, name = call.kind, call.name
        if call.verb in {"list", "watch"} and not name:
            name = named_by_selector(call.option("fieldSelector"))
        wanted = Attributes(call.verb, kind.group, kind.plural, call.subresource, call.namespace, name)
        if not self._allows(call.user, wanted):
            raise forbidden_request(call.user, wanted, named=call.name, missing=self._missing(call.user, wanted))

    def path(self, request: Request, user: User) -> None:
        """The same for a path other than a resource. Raises StatusError 403."""
        wanted = Attributes(request.method.lower(), path=request.path)
        if not self._allows(user, wanted):
            raise forbidden_request(user, wanted, missing=self._missing(user, wanted))

    def _missing(self, user: User, wanted: Attributes) -> list[str]:
        unknown = not self._server.uptime.knows_rights(user)
        return missing_roles(self._server.store, user, wanted.namespace, none_known=unknown)

    def _allows(self, user: User, wanted: Attributes) -> bool:
        return self._server.uptime.knows_rights(user) and decide(self._server.store, user, wanted)[0]


def named_by_selector(text: str) -> str:
    """The only name left by a field selector: such a list counts as a request for this name."""
    return text.removeprefix(BY_NAME) if text.startswith(BY_NAME) and "," not in text else ""


class NoEscalation:
    """Nobody may grant rights beyond their own, by a role or by binding one."""

    name = "RBACEscalation"

    def mutate(self, write: Write, server: State) -> None:
        """Nothing."""

    def validate(self, write: Write, server: State) -> None:
        """Raises StatusError 403 with the missing rules."""
        if write.subresource or write.operation not in {"CREATE", "UPDATE"}:
            return
        rules: list[Rule] = []
        if write.kind.resource in {ROLES, CLUSTER_ROLES} and not self._may(write, server, "escalate"):
            rules = write.obj.get("rules") or []
        elif write.kind.resource in {ROLE_BINDINGS, CLUSTER_ROLE_BINDINGS} and not self._may(write, server, "bind"):
            rules = list(role_rules(server.store, write.obj["roleRef"], write.namespace))
        missing = uncovered(server.store, write.user, write.namespace, rules)
        if missing:
            groups = json.dumps(list(write.user.groups)).replace('", "', '" "')
            lines = "\n".join(_shown(rule) for rule in missing)
            why = (
                f'user "{write.user.name}" (groups={groups}) is attempting to grant RBAC permissions not currently '
                f"held:\n{lines}"
            )
            raise forbidden(write.kind.named(write.name), why)

    def _may(self, write: Write, server: State, verb: str) -> bool:
        name, plural = write.name, write.kind.plural
        if verb == "bind":
            reference = write.obj.get("roleRef") or {}
            name, plural = reference.get("name", ""), f"{reference.get('kind', '').lower()}s"
        wanted = Attributes(verb, write.kind.group, plural, namespace=write.namespace, name=name)
        return decide(server.store, write.user, wanted)[0]


def _shown(rule: Rule) -> str:
    titles = {
        "apiGroups": "APIGroups",
        "resources": "Resources",
        "resourceNames": "ResourceNames",
        "nonResourceURLs": "NonResourceURLs",
        "verbs": "Verbs",
    }
    parts = [
        f"{title}:{json.dumps(rule[field], separators=(',', ':'))}"
        for field, title in titles.items()
        if rule.get(field)
    ]
    return "{" + ", ".join(parts).replace('","', '" "') + "}"
