"""DeleteOptions: from the body of a DELETE or, without a body, from its query."""

from __future__ import annotations

from typing import Any

from apiserver import options
from apiserver.conform import Conformer, ConformError
from apiserver.decoding import recognized
from apiserver.errors import bad_request, invalid_value, unsupported
from apiserver.kinds.base import Call
from apiserver.patching import options_error
from apiserver.schemas import schema

Obj = dict[str, Any]
KIND = "DeleteOptions"
POLICIES = ("Foreground", "Background", "Orphan")


def decode_options(call: Call) -> Obj:
    """The options of a delete. A body replaces the whole query. Raises StatusError 400, 422."""
    found = _from_query(call) if call.request.body in (None, b"", "") else _from_body(call)
    check_options(found)
    return found


def _from_query(call: Call) -> Obj:
    query = call.request.query
    found: Obj = {}
    if query.get("gracePeriodSeconds"):
        found["gracePeriodSeconds"] = options.whole(query, "gracePeriodSeconds")
    if "orphanDependents" in query:
        found["orphanDependents"] = options.is_set(query, "orphanDependents")
    if query.get("propagationPolicy"):
        found["propagationPolicy"] = query["propagationPolicy"]
    if query.get("dryRun"):
        found["dryRun"] = [query["dryRun"]]
    return found


def _from_body(call: Call) -> Obj:
    value = recognized(call.request, KIND)
    if not isinstance(value, dict):
        raise bad_request(f"the object provided is unrecognized (must be of type {KIND})")
    kind, version = value.get("kind") or KIND, value.get("apiVersion") or "v1"
    if kind != KIND:
        scheme = "pkg/apis/meta/internalversion/scheme/register.go:27"
        raise bad_request(f'no kind "{kind}" is registered for version "{version}" in scheme "{scheme}"')
    try:
        found: Obj = Conformer(KIND).conform(schema(KIND), value)
    except ConformError as error:
        raise bad_request(f'{KIND} in version "v1" cannot be handled as a {KIND}: {error}') from None
    return found


def check_options(found: Obj) -> None:
    """Refuse contradictory options. Raises StatusError 422."""
    errors = []
    policy, dry_run = found.get("propagationPolicy"), found.get("dryRun") or []
    if policy is not None and found.get("orphanDependents") is not None:
        why = "orphanDependents and deletionPropagation cannot be both set"
        errors.append(invalid_value("propagationPolicy", policy, why))
    elif policy is not None and policy not in POLICIES:
        errors.append(unsupported("propagationPolicy", policy, (*POLICIES, "nil")))
    if any(each != "All" for each in dry_run):
        errors.append(unsupported("dryRun", dry_run, ("All",)))
    if errors:
        raise options_error(KIND, errors)
