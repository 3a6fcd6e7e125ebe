"""Treatment of one object by the uninstallation, and its requests for lists and changes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from autopilot.core.model.errors import InputError
from autopilot.kube.cluster_api import Answer, ClusterApi
from autopilot.service.watchdog.removal import Removal, Stopped

Obj = dict[str, Any]
DONE = frozenset({200, 201, 202, 404})
"""An object gone meanwhile counts as done."""
GIVE_BACK, DELETE, STAYS = "give back", "delete", "stays"


@dataclass(frozen=True, slots=True)
class Deed:
    """One object: the verb (`stays` included), its kind and name, and a reason or detail."""

    verb: str
    shown: str
    detail: str = ""
    do: Callable[[], Answer] | None = None

    @property
    def line(self) -> str:
        """For people."""
        return f"{self.verb:<10} {self.shown}" + (f": {self.detail}" if self.detail else "")


def meta_of(found: Obj) -> Obj:
    """Its metadata."""
    return dict(found.get("metadata") or {})


def shown(kind: str, found: Obj) -> str:
    """`Kind namespace/name`."""
    meta = meta_of(found)
    return f"{kind} {meta['namespace']}/{meta['name']}" if meta.get("namespace") else f"{kind} {meta['name']}"


def labels_of(found: Obj) -> dict[str, str]:
    """Its labels."""
    return dict(meta_of(found).get("labels") or {})


class Cluster:
    """The API server, as the account of an administrator sees it."""

    def __init__(self, api: ClusterApi) -> None:
        self.api = api
        self.unread: dict[str, None] = {}
        """Unreadable objects, left alone."""

    def objects(self, path: str, kind: str, query: Mapping[str, str] | None = None) -> Iterator[Obj]:
        """The objects of a list; none of a kind not served by the cluster. Raises `InputError`."""
        removal = Removal(self.api, lambda: "")
        try:
            yield from removal.found(kind, path, query or {})
            self.unread |= dict.fromkeys(removal.unread)
        except Stopped as error:
            raise InputError(f"cannot list {error}; repeat the command when the API server answers") from None

    def delete(self, kind: str, path: str, found: Obj, detail: str = "") -> Deed:
        """The deletion of this very object, with its dependents."""
        body = {"propagationPolicy": "Background", "preconditions": {"uid": meta_of(found)["uid"]}}
        return Deed(DELETE, shown(kind, found), detail, lambda: self.api.delete(path, body))

    def change(self, kind: str, path: str, found: Obj, patch: Obj, detail: str) -> Deed:
        """A merge patch of the object as it was read."""
        meta = meta_of(found)
        given = {**patch.get("metadata", {}), "uid": meta["uid"], "resourceVersion": meta["resourceVersion"]}
        return Deed(GIVE_BACK, shown(kind, found), detail, lambda: self.api.patch(path, {**patch, "metadata": given}))
