"""The audit log: every writing request, its user, and the answer of the server."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from apiserver.kinds.base import Call

WRITES = frozenset({"create", "update", "patch", "delete", "deletecollection"})


@dataclass(frozen=True, slots=True)
class Entry:
    """One writing request. `resource` is like `pods/eviction` or `jobs.batch`."""

    at_s: float
    user: str
    verb: str
    resource: str
    namespace: str
    name: str
    status: int
    dry_run: bool
    content: Any

    @property
    def body(self) -> Any:
        """The sent body, decoded if it is JSON."""
        return json.loads(self.content) if isinstance(self.content, bytes) else self.content

    @property
    def done(self) -> bool:
        """True if it changed something."""
        return self.status < 300 and not self.dry_run


class AuditLog:
    """The writing requests, in the order of their answers. Set it as `Server.audit`."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []

    def note(self, call: Call, at_s: float, status: int) -> None:
        """Keep a request, if it writes."""
        if call.verb not in WRITES:
            return
        part = f"/{call.subresource}" if call.subresource else ""
        self.entries.append(
            Entry(
                at_s,
                call.user.name,
                call.verb,
                f"{call.kind.resource}{part}",
                call.namespace,
                call.name,
                status,
                call.dry_run,
                call.request.body,
            )
        )

    def by(self, user: str) -> Iterator[Entry]:
        """The requests of one user."""
        return (each for each in self.entries if each.user == user)
