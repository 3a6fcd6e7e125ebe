"""Events: stored in the form of core/v1, shown in that of events.k8s.io as well."""

from __future__ import annotations

from typing import Any

from apiserver.errors import FieldError, invalid_value, required
from apiserver.kinds.base import Kind
from apiserver.metadata import qualified_name_errors
from apiserver.schemas import schema

Obj = dict[str, Any]
NEW_GROUP = "events.k8s.io"
NOTE_LIMIT = 1024
RENAMED = {  # field of events.k8s.io: field of core/v1
    "regarding": "involvedObject", "note": "message", "reportingController": "reportingComponent",
    "deprecatedSource": "source", "deprecatedFirstTimestamp": "firstTimestamp",
    "deprecatedLastTimestamp": "lastTimestamp", "deprecatedCount": "count",
}  # fmt: skip
NEW_NAMES = {core: new for new, core in RENAMED.items()}
IMMUTABLE = (
    "involvedObject", "reason", "message", "type", "eventTime", "action", "related", "reportingComponent",
    "reportingInstance",
)  # fmt: skip
ABOUT = ("kind", "namespace", "name", "uid", "apiVersion", "resourceVersion", "fieldPath")


def to_core(event: Obj) -> Obj:
    """An event in its stored form."""
    found = {RENAMED.get(name, name): value for name, value in event.items()}
    return found | {"apiVersion": "v1", "kind": "Event"}


def from_core(event: Obj) -> Obj:
    """A stored event in the form of events.k8s.io."""
    found = {NEW_NAMES.get(name, name): value for name, value in event.items()}
    found["apiVersion"], found["kind"] = f"{NEW_GROUP}/v1", "Event"
    return found


def default_core(event: Obj) -> None:
    """Defaults of an event of core/v1."""
    event.setdefault("involvedObject", {})
    event.setdefault("source", {})
    for name in ("firstTimestamp", "lastTimestamp", "eventTime"):
        event.setdefault(name, None)
    for name in ("reportingComponent", "reportingInstance"):
        event.setdefault(name, "")


def default_new(event: Obj) -> None:
    """Defaults of an event of events.k8s.io."""
    event.setdefault("regarding", {})
    event.setdefault("deprecatedSource", {})
    for name in ("deprecatedFirstTimestamp", "deprecatedLastTimestamp", "eventTime"):
        event.setdefault(name, None)
    event.setdefault("reportingController", "")
    event.setdefault("reportingInstance", "")


def core_errors(event: Obj) -> list[FieldError]:
    """An event is about something in its namespace; one about an object without a namespace is in `default`."""
    about, own = (event.get("involvedObject") or {}).get("namespace", ""), event["metadata"].get("namespace", "")
    if about == own or (not about and own == "default"):
        return []
    return [invalid_value("involvedObject.namespace", about, "does not match event.namespace")]


def new_errors(event: Obj) -> list[FieldError]:
    """Errors of a new event of events.k8s.io."""
    if not event.get("eventTime"):
        return [required("eventTime")]
    errors = []
    if not (event.get("regarding") or {}).get("namespace"):  # another namespace is let through
        errors = core_errors({"metadata": event["metadata"]})
    controller = event.get("reportingController", "")
    if not controller:
        errors.append(required("reportingController"))
    errors += [invalid_value("reportingController", controller, why) for why in qualified_name_errors(controller)]
    for name in ("reportingInstance", "action", "reason"):
        if not event.get(name):
            errors.append(required(name))
        elif len(event[name]) > 128:
            errors.append(invalid_value(name, "", "can have at most 128 characters"))
    if len(event.get("note", "")) > NOTE_LIMIT:
        errors.append(invalid_value("message", "", f"can have at most {NOTE_LIMIT} characters"))
    if event.get("type") not in {"Normal", "Warning"}:
        errors.append(invalid_value("type", "", f"has invalid value: {event.get('type', '')}"))
    return errors


def new_update_errors(event: Obj, old: Obj) -> list[FieldError]:
    """Only the series of an event may change."""
    given, held = to_core(event), to_core(old)
    return [
        invalid_value(name, given.get(name), "field is immutable")
        for name in IMMUTABLE
        if given.get(name) != held.get(name)
    ]


def event_field(event: Obj, path: str) -> str:
    """A field of a stored event, by its name in either form."""
    first, _, rest = path.partition(".")
    value: Any = event.get(RENAMED.get(first, first), "")
    if path == "source":
        value = (event.get("source") or {}).get("component", "") or event.get("reportingComponent", "")
    elif rest:
        value = (value or {}).get(rest, "") if isinstance(value, dict) else ""
    return str(value or "")


def _fields(about: str) -> tuple[str, ...]:
    names = tuple(f"{about}.{each}" for each in ABOUT)
    return (*names, "reason", "reportingComponent", "reportingController", "source", "type")


EVENTS = (
    Kind(
        "", "v1", "events", "Event",
        short_names=("ev",), schema=schema("CoreV1Event"), default=default_core, validate=core_errors,
        fields=_fields("involvedObject"), field_value=event_field,
    ),
    Kind(
        NEW_GROUP, "v1", "events", "Event",
        short_names=("ev",), schema=schema("EventsV1Event"), default=default_new, validate=new_errors,
        validate_update=new_update_errors, fields=_fields("regarding"), field_value=event_field, stored_as="events",
        to_storage=to_core, from_storage=from_core,
    ),
)  # fmt: skip
