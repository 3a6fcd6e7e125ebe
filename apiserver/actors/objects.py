"""Small operations of actors on objects."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from apiserver.client import Client
from apiserver.errors import StatusError

Obj = dict[str, Any]
Name = tuple[str, str]  # namespace and name


def name_of(obj: Obj) -> Name:
    """Namespace and name of an object."""
    metadata = obj["metadata"]
    return metadata.get("namespace", ""), metadata["name"]


def controller_of(obj: Obj) -> Obj | None:
    """The owner reference of the controller; None if it has none."""
    for each in obj["metadata"].get("ownerReferences") or []:
        if each.get("controller"):
            found: Obj = each
            return found
    return None


def present(action: Callable[[], Any]) -> bool:
    """Do something to an object; False if it is gone or another one by now. Raises StatusError for other refusals."""
    try:
        action()
    except StatusError as error:
        another = error.code == 422 and "metadata.uid" in error.message  # how a patch with a wrong uid is refused
        if error.code not in {404, 409} and not another:
            raise
        return False
    return True


def delete(client: Client, resource: str, obj: Obj, grace_s: int | None = None, propagation: str = "") -> bool:
    """Delete exactly this object; False if it is gone or another one has its name."""
    namespace, name = name_of(obj)
    options: Obj = {"preconditions": {"uid": obj["metadata"]["uid"]}}
    if grace_s is not None:
        options["gracePeriodSeconds"] = grace_s
    if propagation:
        options["propagationPolicy"] = propagation
    return present(lambda: client.delete(resource, namespace, name, options))


def patch(client: Client, resource: str, obj: Obj, change: Obj, subresource: str = "") -> bool:
    """Merge-patch exactly this object; False if it is gone or another one has its name."""
    namespace, name = name_of(obj)
    metadata = {"uid": obj["metadata"]["uid"]} | change.get("metadata", {})
    return present(lambda: client.patch(resource, namespace, name, change | {"metadata": metadata}, subresource))
