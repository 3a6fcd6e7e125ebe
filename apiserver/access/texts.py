"""Refusals of authentication and authorization."""

from __future__ import annotations

from typing import Any

from apiserver.access.rules import Attributes
from apiserver.errors import StatusError, quoted
from apiserver.users import User

Obj = dict[str, Any]


def unauthorized() -> StatusError:
    """401: the token is of nobody."""
    return StatusError(401, "Unauthorized", "Unauthorized")


def forbidden_request(user: User, wanted: Attributes, *, verb_shown: str = "", named: str = "") -> StatusError:
    """403: the user lacks a right. `named` is the object in the path, which `wanted.name` need not be."""
    verb = verb_shown or wanted.verb
    if wanted.path:
        return StatusError(403, "Forbidden", f'forbidden: User "{user.name}" cannot {verb} path "{wanted.path}"', {})
    qualified = f"{wanted.resource}.{wanted.group}" if wanted.group else wanted.resource
    shown = f"{qualified} {quoted(named)}" if named else qualified
    where = f'in the namespace "{wanted.namespace}"' if wanted.namespace else "at the cluster scope"
    message = (
        f'{shown} is forbidden: User "{user.name}" cannot {verb} resource "{wanted.full_resource}" in API group '
        f'"{wanted.group}" {where}'
    )
    details: Obj = {"name": named} if named else {}
    if wanted.group:
        details["group"] = wanted.group
    return StatusError(403, "Forbidden", message, details | {"kind": wanted.resource})
