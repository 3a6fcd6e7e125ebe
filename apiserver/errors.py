"""Refusals as `Status` objects, with the texts of a real API server."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

Obj = dict[str, Any]


class StatusError(Exception):
    """A request ending with a Status of failure. `body` is this Status; `headers` go with it."""

    def __init__(
        self,
        code: int,
        reason: str,
        message: str,
        details: Obj | None = None,
        headers: dict[str, str] | None = None,
        metadata: Obj | None = None,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.reason = reason
        self.message = message
        self.headers = headers or {}
        self.delay_s = 0.0  # how long the server takes over the refusal
        self.body: Any = {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": metadata or {},
            "status": "Failure",
            "message": message,
            "reason": reason,
        }
        if details is not None:
            self.body["details"] = details
        self.body["code"] = code


def quoted(text: str) -> str:
    """Text as Go's %q writes it."""
    return json.dumps(text, ensure_ascii=False)


def shown(value: Any) -> str:
    """A value as a field error shows it."""
    if value is None:
        return "null"
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False, sort_keys=isinstance(value, dict))


@dataclass(frozen=True, slots=True)
class FieldError:
    """The error of one field: its path, the kind of error by its name in a cause, and the text."""

    field: str
    reason: str
    message: str

    def __str__(self) -> str:
        return f"{self.field}: {self.message}"

    def cause(self) -> Obj:
        """As an entry of details.causes."""
        return {"reason": self.reason, "message": self.message, "field": self.field}


def required(path: str, detail: str = "") -> FieldError:
    """A required field is missing."""
    return FieldError(path, "FieldValueRequired", f"Required value: {detail}" if detail else "Required value")


def invalid_value(path: str, value: Any, detail: str, *, raw: str | None = None) -> FieldError:
    """A value illegal for the field. `raw` is the text of a value other than JSON."""
    text = shown(value) if raw is None else raw
    return FieldError(path, "FieldValueInvalid", f"Invalid value: {text}: {detail}")


def type_invalid(path: str, value: Any, detail: str, *, raw: str | None = None) -> FieldError:
    """A value of the wrong type: a cause of its own, the text of an invalid value."""
    text = shown(value) if raw is None else raw
    return FieldError(path, "FieldValueTypeInvalid", f"Invalid value: {text}: {detail}")


def forbidden_field(path: str, detail: str) -> FieldError:
    """A field closed to setting or change."""
    return FieldError(path, "FieldValueForbidden", f"Forbidden: {detail}")


def duplicate(path: str, value: Any, *, raw: str | None = None, detail: str = "") -> FieldError:
    """A list entry present already."""
    text = shown(value) if raw is None else raw
    return FieldError(path, "FieldValueDuplicate", f"Duplicate value: {text}{f': {detail}' if detail else ''}")


def unsupported(path: str, value: Any, supported: Iterable[str]) -> FieldError:
    """A value outside an enumeration."""
    names = ", ".join(quoted(name) for name in supported)
    return FieldError(path, "FieldValueNotSupported", f"Unsupported value: {shown(value)}: supported values: {names}")


def too_long(path: str, limit: int, unit: str = "bytes") -> FieldError:
    """A value over its size limit."""
    return FieldError(path, "FieldValueTooLong", f"Too long: may not be more than {limit} {unit}")


def not_found_value(path: str, value: Any) -> FieldError:
    """A reference to nothing."""
    return FieldError(path, "FieldValueNotFound", f"Not found: {shown(value)}")


def joined(errors: Sequence[FieldError]) -> str:
    """The texts of field errors as one: each text once, several in brackets."""
    texts = list(dict.fromkeys(str(error) for error in errors))
    return texts[0] if len(texts) == 1 else f"[{', '.join(texts)}]"


@dataclass(frozen=True, slots=True)
class Named:
    """The object of a request, as messages and details name it."""

    group: str
    resource: str
    kind: str
    name: str = ""
    uid: str = field(default="", compare=False)

    @property
    def qualified(self) -> str:
        """`jobs.batch`, or `pods` in the core group."""
        return f"{self.resource}.{self.group}" if self.group else self.resource

    @property
    def qualified_kind(self) -> str:
        """`Job.batch`, or `Pod` in the core group."""
        return f"{self.kind}.{self.group}" if self.group else self.kind

    def details(self, kind: str) -> Obj:
        """Details of a Status: name, group and the entry under kind."""
        found: Obj = {"name": self.name} if self.name else {}
        if self.group:
            found["group"] = self.group
        found["kind"] = kind
        if self.uid:
            found["uid"] = self.uid
        return found


def invalid(what: Named, errors: Sequence[FieldError]) -> StatusError:
    """422 for field errors."""
    details = what.details(what.kind) | {"causes": [error.cause() for error in errors]}
    return StatusError(
        422, "Invalid", f"{what.qualified_kind} {quoted(what.name)} is invalid: {joined(errors)}", details
    )


def not_found(what: Named) -> StatusError:
    """404 for an object."""
    return StatusError(404, "NotFound", f"{what.qualified} {quoted(what.name)} not found", what.details(what.resource))


def no_such_path() -> StatusError:
    """404 for a path serving nothing."""
    return StatusError(404, "NotFound", "the server could not find the requested resource", {})


def page_not_found() -> StatusError:
    """404 in plain text: the path belongs to no served group."""
    error = StatusError(404, "NotFound", "404 page not found", headers={"content-type": "text/plain; charset=utf-8"})
    error.body = "404 page not found\n"
    return error


def already_exists(what: Named, prefix: str = "") -> StatusError:
    """409 for a taken name."""
    return StatusError(
        409,
        "AlreadyExists",
        f"{prefix}{what.qualified} {quoted(what.name)} already exists",
        what.details(what.resource),
    )


def conflict(what: Named, why: str) -> StatusError:
    """409: the write does not fit the stored object."""
    return StatusError(
        409,
        "Conflict",
        f"Operation cannot be fulfilled on {what.qualified} {quoted(what.name)}: {why}",
        what.details(what.resource),
    )


def modified(what: Named) -> StatusError:
    """409 for a stale resourceVersion."""
    return conflict(what, "the object has been modified; please apply your changes to the latest version and try again")


def forbidden(what: Named, why: str) -> StatusError:
    """403 for an object."""
    return StatusError(
        403, "Forbidden", f"{what.qualified} {quoted(what.name)} is forbidden: {why}", what.details(what.resource)
    )


def denied_by_webhook(webhook: str, why: str) -> StatusError:
    """403 of a validating webhook."""
    return StatusError(403, "Forbidden", f"admission webhook {quoted(webhook)} denied the request: {why}")


def bad_request(message: str) -> StatusError:
    """400."""
    return StatusError(400, "BadRequest", message)


def internal(message: str) -> StatusError:
    """500 as an unexpected error inside the server gives it."""
    return StatusError(500, "InternalError", f"Internal error occurred: {message}", {"causes": [{"message": message}]})


class WebhookError(StatusError):
    """500: a webhook does not answer. Controllers try again."""

    def __init__(self, webhook: str, post: str) -> None:
        message = f'failed calling webhook "{webhook}": failed to call webhook: {post}'
        whole = f"Internal error occurred: {message}"
        super().__init__(500, "InternalError", whole, {"causes": [{"message": message}]})


def unexpected(message: str) -> StatusError:
    """500 without a reason, the form of unexpected errors."""
    error = StatusError(500, "", message)
    del error.body["reason"]
    return error


def unprocessable_patch() -> StatusError:
    """422 for an inapplicable JSON patch."""
    return StatusError(422, "Invalid", "the server rejected our request due to an error in our request", {})
