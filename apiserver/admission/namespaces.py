"""Namespace lifecycle: nothing is created in a missing or terminating namespace."""

from __future__ import annotations

from typing import Any

from apiserver.admission.base import Attributes
from apiserver.errors import StatusError, forbidden, not_found
from apiserver.kinds.base import State

Obj = dict[str, Any]
PROTECTED = ("default", "kube-system", "kube-public")


class NamespaceLifecycle:
    """Refuses new objects outside live namespaces, and the deletion of the namespaces needed by a cluster."""

    name = "NamespaceLifecycle"

    def mutate(self, attributes: Attributes, server: State) -> None:
        """It refuses before other plugins change the object."""
        kind = attributes.kind
        if attributes.operation != "CREATE" or not kind.namespaced or attributes.subresource:
            return
        namespace = server.store.get("namespaces", "", attributes.namespace)
        if namespace is None:
            namespaces = server.kinds.stored("namespaces")
            if namespaces is not None:
                raise not_found(namespaces.named(attributes.namespace))
        elif "deletionTimestamp" in namespace["metadata"]:
            raise _terminating(attributes)

    def validate(self, attributes: Attributes, server: State) -> None:
        """Keep the namespaces of the system."""
        kind = attributes.kind
        if attributes.operation == "DELETE" and kind.resource == "namespaces" and attributes.name in PROTECTED:
            raise forbidden(kind.named(attributes.name), "this namespace may not be deleted")


def _terminating(attributes: Attributes) -> StatusError:
    space = attributes.namespace
    why = f"unable to create new content in namespace {space} because it is being terminated"
    error = forbidden(attributes.kind.named(attributes.name), why)
    error.body["details"]["causes"] = [
        {
            "reason": "NamespaceTerminating",
            "message": f"namespace {space} is being terminated",
            "field": "metadata.namespace",
        }
    ]
    return error
