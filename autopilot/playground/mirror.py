"""Keeps objects of the server as wanted: creates them, patches differences, deletes them.

Only fields set by the playground itself are patched, so labels and annotations of people stay. A write refused by the
server, for a quota or a policy of a person, is reported and tried again with the next change of its object.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from apiserver.client import Client
from apiserver.errors import StatusError

Obj = dict[str, Any]
Key = tuple[str, str, str]
"""Resource, namespace and name."""


def merge_patch(before: Obj, after: Obj) -> Obj:
    """The JSON merge patch from `before` to `after`."""
    found: Obj = {}
    for name in {**before, **after}:
        old, new = before.get(name), after.get(name)
        if old == new:
            continue
        if name not in after:
            found[name] = None
        elif isinstance(old, dict) and isinstance(new, dict):
            found[name] = merge_patch(old, new)
        else:
            found[name] = new
    return found


Told = Callable[[str, Obj, str], None]
"""(resource, object, the server's reason for its refusal)."""


class Mirror:
    """The objects kept by one client."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._shown: dict[Key, Obj] = {}
        self.on_refused: Told | None = None  # None: a refusal is a defect, and raised

    def keys(self) -> set[Key]:
        """The objects of this mirror."""
        return set(self._shown)

    def put(self, resource: str, wanted: Obj) -> Obj | None:
        """Make an object as wanted, its status last; as stored, None if a person deleted it or keeps it out."""
        try:
            return self._put(resource, wanted)
        except StatusError as error:
            self._refused(resource, wanted, error)
            return None

    def _refused(self, resource: str, wanted: Obj, error: StatusError) -> None:
        if self.on_refused is None:
            raise error
        self.on_refused(resource, wanted, str(error.body.get("message", error)))

    def _put(self, resource: str, wanted: Obj) -> Obj | None:
        metadata = wanted["metadata"]
        key = (resource, metadata.get("namespace", ""), metadata["name"])
        before = self._shown.get(key)
        found: Obj | None
        if before is None:
            found = self._client.create(resource, {name: part for name, part in wanted.items() if name != "status"})
            before = {}
        else:
            patch = merge_patch(_main(before), _main(wanted))
            found = self._patch(key, patch) if patch else self._client.get(*key)
        if found is None:
            return None
        status = merge_patch(before.get("status", {}), wanted.get("status", {}))
        if status:
            found = self._patch(key, {"status": status}, "status")
        self._shown[key] = wanted
        return found

    def settle(self, key: Key, patch: Obj) -> None:
        """Remove the additions of the server's admission from an object."""
        self._patch(key, patch)

    def bound(self, key: Key) -> bool:
        """True if a pod is on a node."""
        return "nodeName" in self._shown.get(key, {}).get("spec", {})

    def bind(self, key: Key, node: str) -> None:
        """Put a waiting pod on a node, as Kueue and the scheduler do: its gates go first, then the binding."""
        before = self._shown.get(key)
        if before is None or "nodeName" in before["spec"]:
            return
        gates = {"schedulingGates": None} if before["spec"].get("schedulingGates") else {}
        target = {"metadata": {"name": key[2]}, "target": {"kind": "Node", "name": node}}
        try:
            if self._patch(key, {"spec": gates}) is None:
                return
            self._client.call(*key, "binding", target)
        except StatusError as error:
            self._refused(key[0], before, error)
            return
        spec = {name: part for name, part in before["spec"].items() if name != "schedulingGates"}
        self._shown[key] = before | {"spec": spec | {"nodeName": node}}

    def adopt(self, resource: str, known: Obj) -> None:
        """A person's object is kept from now on; `known` is its kept part."""
        metadata = known["metadata"]
        self._shown[resource, metadata.get("namespace", ""), metadata["name"]] = known

    def delete(self, key: Key, *, at_once: bool = True, grace_s: int | None = None) -> None:
        """Delete an object; a missing one is fine."""
        options: Obj = {"propagationPolicy": "Background"}
        if at_once:
            options["gracePeriodSeconds"] = 0
            self._shown.pop(key, None)
        elif grace_s is not None:
            options["gracePeriodSeconds"] = grace_s
        try:
            self._client.delete(*key, options)
        except StatusError as error:
            if error.code != 404:
                self._refused(key[0], {"metadata": {"namespace": key[1], "name": key[2]}}, error)

    def forget(self, key: Key) -> None:
        """Somebody else deleted the object."""
        self._shown.pop(key, None)

    def _patch(self, key: Key, patch: Obj, subresource: str = "") -> Obj | None:
        try:
            return self._client.patch(*key, patch, subresource)
        except StatusError as error:
            if error.code != 404:
                raise
            return None


def _main(obj: Obj) -> Obj:
    return {name: part for name, part in obj.items() if name not in {"status", "apiVersion", "kind"}}
