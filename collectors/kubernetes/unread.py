"""Objects unreadable as their kind: their readable part, and the field and the value at fault.

One such object must not hide any other. An undecodable page of a list is decoded object by object. A value nested too
deeply for the decoder is replaced before it.
"""

from __future__ import annotations

from typing import Any

import msgspec

from autopilot.contract.documents import misfit, pruned
from autopilot.contract.notes import failure_text, shown
from collectors.kubernetes.dra_devices import DRIVER
from collectors.kubernetes.wire import Meta, Object, Owner

LONGEST_TEXT = 253


class Unread(Object):
    """The known part of an unreadable object. Unreadable texts are ""."""

    reason: str = ""  # field, value and problem
    node: str = ""  # of a pod: its node
    over: bool = False  # of a pod: its containers have ended
    target: str = ""  # of an autoscaler: "Kind/name" of its target
    pools: tuple[str, ...] = ()  # of a claim: the pools of its GPUs; "": an unreadable one

    @property
    def shown(self) -> str:
        """Its name for a message."""
        return named(self.metadata)


def named(meta: Meta) -> str:
    """Namespace and name of an object for a message, without control characters."""
    text = f"{meta.namespace}/{meta.name}" if meta.namespace else meta.name
    return text if text.isprintable() and len(text) <= 2 * LONGEST_TEXT else shown(text, 2 * LONGEST_TEXT)


def unread(raw: Any, error: Exception) -> Unread:
    """The readable part of an object refused by its decoder. `raw`: its JSON."""
    try:
        document = msgspec.json.decode(raw)
    except (RecursionError, msgspec.ValidationError):
        document = msgspec.json.decode(pruned(bytes(raw)))
    found = document if isinstance(document, dict) else {}
    spec, status = _inside(found, "spec"), _inside(found, "status")
    target = _inside(spec, "scaleTargetRef")
    return Unread(
        _meta(_inside(found, "metadata")),
        reason=misfit(error, document),
        node=_text(spec.get("nodeName")),
        over=_text(status.get("phase")) in {"Succeeded", "Failed"},
        target=f"{_text(target.get('kind'))}/{_text(target.get('name'))}",
        pools=_pools(found.get("status")),
    )


def unread_as(found: Object, error: Exception) -> Unread:
    """A decoded object without a possible row."""
    spec, status = getattr(found, "spec", None), getattr(found, "status", None)
    over = getattr(status, "phase", "") in {"Succeeded", "Failed"}
    node, pools = getattr(spec, "node_name", "") or "", _pools(msgspec.to_builtins(status))
    return Unread(found.metadata, reason=failure_text(error), node=node, over=over, pools=pools)


def _meta(found: dict[str, Any]) -> Meta:
    space, name = _text(found.get("namespace")), _text(found.get("name"))
    return Meta(
        name=name,
        namespace=space,
        uid=_text(found.get("uid")) or f"{space}/{name}",
        resource_version=_text(found.get("resourceVersion")),
        labels=_texts(found.get("labels")),
        annotations=_texts(found.get("annotations")),
        owner_references=[_owner(each) for each in _list(found.get("ownerReferences")) if isinstance(each, dict)],
    )


def _owner(found: dict[str, Any]) -> Owner:
    kind, name, uid = (_text(found.get(key)) for key in ("kind", "name", "uid"))
    return Owner(kind, name, uid, controller=found.get("controller") is True)


def _pools(status: Any) -> tuple[str, ...]:
    """The pools of the GPUs of a claim by its status. A device with administrator's access is shared."""
    found = status
    for name in ("allocation", "devices", "results"):
        if not isinstance(found, dict):
            break
        found = found.get(name)
    if found is None:
        return ()
    if not isinstance(found, list):
        return ("",)
    results = [each if isinstance(each, dict) else {} for each in found]
    taken = [each for each in results if (_text(each.get("driver")) or DRIVER) == DRIVER]
    return tuple(sorted({_text(each.get("pool")) for each in taken if each.get("adminAccess") is not True}))


def _inside(found: dict[str, Any], name: str) -> dict[str, Any]:
    value = found.get(name)
    return value if isinstance(value, dict) else {}


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _texts(value: Any) -> dict[str, str]:
    return {key: each for key, each in value.items() if isinstance(each, str)} if isinstance(value, dict) else {}


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""
