"""Building blocks of the schemas of Kueue's kinds."""

from __future__ import annotations

from typing import Any

Obj = dict[str, Any]

SUBDOMAIN = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$"
LABEL = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"
QUANTITY = (
    r"^(\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))(([KMGTPE]i)|[numkMGTPE]|([eE](\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))))?$"
)


def text(**limits: Any) -> Obj:
    """A string."""
    return {"type": "string", **limits}


def integer(**limits: Any) -> Obj:
    """A whole number."""
    return {"type": "integer", "format": "int32", **limits}


def moment() -> Obj:
    """A time."""
    return {"type": "string", "format": "date-time"}


def quantity(**limits: Any) -> Obj:
    """A quantity, as a string or a number."""
    return {
        "anyOf": [{"type": "integer"}, {"type": "string"}],
        "pattern": QUANTITY,
        "x-kubernetes-int-or-string": True,
        **limits,
    }


def reference() -> Obj:
    """The name of another object."""
    return text(maxLength=253, pattern=SUBDOMAIN)


def of(
    required: tuple[str, ...] = (), /, *, rules: tuple[Obj, ...] = (), default: Any = None, **properties: Obj
) -> Obj:
    """An object with these fields."""
    found: Obj = {"type": "object", "properties": properties}
    if required:
        found["required"] = list(required)
    if rules:
        found["x-kubernetes-validations"] = list(rules)
    if default is not None:
        found["default"] = default
    return found


def rule(expression: str, message: str) -> Obj:
    """A rule in CEL."""
    return {"rule": expression, "message": message}


IMMUTABLE = rule("self == oldSelf", "field is immutable")


def many(items: Obj, *keys: str, **limits: Any) -> Obj:
    """A list; with keys, its entries are told apart by them."""
    found: Obj = {"type": "array", "items": items, **limits}
    if keys:
        return found | {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": list(keys)}
    return found | {"x-kubernetes-list-type": "atomic"}


def mapping(values: Obj) -> Obj:
    """A map from names to values."""
    return {"type": "object", "additionalProperties": values}


def anything() -> Obj:
    """An object taken as it is."""
    return {"type": "object", "x-kubernetes-preserve-unknown-fields": True}


def conditions() -> Obj:
    """status.conditions."""
    return many(
        of(
            ("lastTransitionTime", "message", "reason", "status", "type"),
            lastTransitionTime=moment(),
            message=text(maxLength=32768),
            observedGeneration={"type": "integer", "format": "int64", "minimum": 0},
            reason=text(maxLength=1024, minLength=1, pattern=r"^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$"),
            status=text(enum=["True", "False", "Unknown"]),
            type=text(
                maxLength=316,
                pattern=r"^([a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?"
                r"(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])$",
            ),
        ),
        "type",
        maxItems=16,
    )


def selector() -> Obj:
    """A LabelSelector."""
    expression = of(("key", "operator"), key=text(), operator=text(), values=many(text()))
    return of(matchExpressions=many(expression), matchLabels=mapping(text())) | {"x-kubernetes-map-type": "atomic"}
