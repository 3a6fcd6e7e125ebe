"""The chain of admission: first the mutating plugins, then the validating ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from apiserver.kinds.base import Kind, State
from apiserver.users import User

Obj = dict[str, Any]
Operation = Literal["CREATE", "UPDATE", "DELETE", "CONNECT"]


@dataclass(slots=True)
class Attributes:
    """A write on its way to the store. Mutating plugins change `obj` in place and never `old`."""

    operation: Operation
    kind: Kind
    namespace: str
    name: str
    subresource: str
    user: User
    obj: Obj  # {} for DELETE
    old: Obj | None  # None for CREATE and CONNECT
    dry_run: bool = False
    options: Obj = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)  # sent to the client as Warning headers

    def concerns(self, resource: str, *operations: Operation) -> bool:
        """True for a write of a resource itself (`pods`, `jobs.batch`), not of a subresource."""
        return self.kind.resource == resource and not self.subresource and self.operation in operations


class Plugin(Protocol):
    """One step of admission. A refusal is a StatusError; a webhook with its server down raises `internal(...)`."""

    name: str

    def mutate(self, attributes: Attributes, server: State) -> None:
        """Change `attributes.obj`, or refuse."""

    def validate(self, attributes: Attributes, server: State) -> None:
        """Refuse, or do nothing."""


class Admission:
    """The plugins in order. `add` puts one at the end."""

    def __init__(self, plugins: Sequence[Plugin] = ()) -> None:
        self.plugins = list(plugins)

    def add(self, plugin: Plugin) -> None:
        """Ask this one too, last."""
        self.plugins.append(plugin)

    def mutate(self, attributes: Attributes, server: State) -> None:
        """Ask every plugin to change the object."""
        for plugin in self.plugins:
            plugin.mutate(attributes, server)

    def validate(self, attributes: Attributes, server: State) -> None:
        """Ask every plugin for its refusal."""
        for plugin in self.plugins:
            plugin.validate(attributes, server)
