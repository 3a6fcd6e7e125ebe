"""A client in the server's own process, for actors: plain objects instead of bytes, the same pipeline."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from apiserver.kinds.base import Kind, State
from apiserver.requests import Request, Response
from apiserver.users import User

Obj = dict[str, Any]


class Client:
    """Requests of one user under one field manager. Resources are named as in the store: `pods`, `jobs.batch`.

    Every method raises StatusError if the server refuses. Callers must not change the returned objects.
    """

    def __init__(self, server: State, user: User, manager: str) -> None:
        self._server = server
        self._user = user
        self._manager = manager

    def get(self, resource: str, namespace: str, name: str) -> Obj | None:
        """An object of the store; None if there is none."""
        return self._server.store.get(resource, namespace, name)

    def list(self, resource: str, namespace: str | None = None) -> list[Obj]:
        """The objects of a namespace, or (None) of all."""
        return self._server.store.objects(resource, namespace)

    def create(self, resource: str, obj: Obj) -> Obj:
        """Create an object."""
        return self._send("POST", self._path(resource, obj["metadata"].get("namespace", "")), obj)

    def update(self, resource: str, obj: Obj, subresource: str = "") -> Obj:
        """Replace an object."""
        metadata = obj["metadata"]
        return self._send(
            "PUT", self._path(resource, metadata.get("namespace", ""), metadata["name"], subresource), obj
        )

    def patch(
        self, resource: str, namespace: str, name: str, patch: Any, subresource: str = "", *, how: str = "merge"
    ) -> Obj:
        """Patch an object: `how` is merge, strategic, json or apply. Controllers apply by force."""
        types = {"json": "json-patch+json", "merge": "merge-patch+json", "strategic": "strategic-merge-patch+json"}
        headers = {"content-type": f"application/{types.get(how, 'apply-patch+yaml')}"}
        options = {"force": "true"} if how == "apply" else {}
        path = self._path(resource, namespace, name, subresource)
        return self._send("PATCH", path, patch, headers=headers, options=options)

    def delete(self, resource: str, namespace: str, name: str, options: Obj | None = None) -> Obj:
        """Delete an object; `options` are DeleteOptions (gracePeriodSeconds, preconditions, propagationPolicy)."""
        return self._send("DELETE", self._path(resource, namespace, name), options)

    def call(self, resource: str, namespace: str, name: str, subresource: str, obj: Obj) -> Obj:
        """POST to a subresource (binding, eviction)."""
        return self._send("POST", self._path(resource, namespace, name, subresource), obj)

    def _kind(self, resource: str) -> Kind:
        kind = self._server.kinds.stored(resource)
        if kind is None:
            raise KeyError(f"no kind is stored as {resource}")
        return kind

    def _path(self, resource: str, namespace: str, name: str = "", subresource: str = "") -> str:
        kind = self._kind(resource)
        root = f"/apis/{kind.group}/{kind.version}" if kind.group else f"/api/{kind.version}"
        middle = f"/namespaces/{namespace}" if kind.namespaced else ""
        tail = "".join(f"/{part}" for part in (name, subresource) if part)
        return f"{root}{middle}/{kind.plural}{tail}"

    def _send(
        self,
        method: str,
        path: str,
        body: Any,
        headers: Mapping[str, str] | None = None,
        options: Mapping[str, str] | None = None,
    ) -> Obj:
        query = {"fieldManager": self._manager, **(options or {})}
        response = self._server.answer(Request(method, path, query, headers or {}, body, self._user))
        if not isinstance(response, Response):
            raise TypeError("a watch is no answer for a client in this process: subscribe to the store")
        found: Obj = response.plain()
        return found
