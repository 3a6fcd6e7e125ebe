"""The variable `authorizer` of admission policies: what the user of the request may do, as RBAC decides it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from celpy import celtypes

Decides = Callable[[str, str, str, str, str, str], bool]
"""(verb, group, resource, subresource, namespace, name) -> whether the user may."""


@dataclass(frozen=True, slots=True)
class Authorizer:
    """A question about a resource, as far as an expression has put it. It answers `allowed()` after a `check`."""

    decides: Decides
    of_group: str = ""
    of_resource: str = ""
    of_subresource: str = ""
    of_namespace: str = ""
    of_name: str = ""
    verb: str = ""

    def allowed(self) -> Any:
        """The answer."""
        asked = (self.verb, self.of_group, self.of_resource, self.of_subresource, self.of_namespace, self.of_name)
        return celtypes.BoolType(self.decides(*asked))


def _with(field: str) -> Callable[[Authorizer, Any], Authorizer]:
    def put(asked: Authorizer, value: Any) -> Authorizer:
        stated: dict[str, Any] = {field: str(value)}
        return replace(asked, **stated)

    return put


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "group": _with("of_group"),
    "resource": _with("of_resource"),
    "subresource": _with("of_subresource"),
    "namespace": _with("of_namespace"),
    "name": _with("of_name"),
    "check": _with("verb"),
    "allowed": Authorizer.allowed,
}
"""Methods of the variable, and of what they return."""
