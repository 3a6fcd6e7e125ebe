"""Refusals of authentication and authorization."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from apiserver.access.rules import Attributes
from apiserver.errors import StatusError, quoted
from apiserver.users import User

Obj = dict[str, Any]


def unauthorized() -> StatusError:
    """401: the token is of nobody."""
    return StatusError(401, "Unauthorized", "Unauthorized")


def forbidden_request(
    user: User, wanted: Attributes, *, verb_shown: str = "", named: str = "", missing: Sequence[str] = ()
) -> StatusError:
    """403: the user lacks a right. `named` is the object in the path, possibly other than `wanted.name`.

    `missing` names the roles in the bindings of the user without an object.
    """
    verb = verb_shown or wanted.verb
    why = f": RBAC: {missing[0] if len(missing) == 1 else '[' + ', '.join(missing) + ']'}" if missing else ""
    if wanted.path:
        text = f'forbidden: User "{user.name}" cannot {verb} path "{wanted.path}"{why}'
        return StatusError(403, "Forbidden", text, {})
    qualified = f"{wanted.resource}.{wanted.group}" if wanted.group else wanted.resource
    shown = f"{qualified} {quoted(named)}" if named else qualified
    where = f'in the namespace "{wanted.namespace}"' if wanted.namespace else "at the cluster scope"
    message = (
        f'{shown} is forbidden: User "{user.name}" cannot {verb} resource "{wanted.full_resource}" in API group '
        f'"{wanted.group}" {where}{why}'
    )
    details: Obj = {"name": named} if named else {}
    if wanted.group:
        details["group"] = wanted.group
    return StatusError(403, "Forbidden", message, details | {"kind": wanted.resource})
