"""Decoding of records that have one class for each kind. The field `kind` selects the class.

msgspec decodes no union of dataclasses. The annotation of such a field is therefore a plain base class, and `decoded`
is the `dec_hook` of every decoder that meets one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

import msgspec

from autopilot.core.model.verb import Change, Operation
from autopilot.core.verbs import CHANGES, OPERATIONS

TABLES: Mapping[type, Mapping[str, type[Any]]] = {Change: CHANGES, Operation: OPERATIONS}
"""The classes of each base class, by kind."""

ADDED: Mapping[type, Mapping[str, Mapping[str, Any]]] = {
    Change: {"cordon": {"reason": ""}, "offer": {"reason": ""}, "provision": {"provisioning_class": ""}},
    Operation: {"ceiling": {"had": -1, "gpus": float("nan"), "owner": ""}, "recut": {"pool": ""}},
}
"""Fields that records of earlier versions lack, with the value for unknown: by base class, kind and field."""


def unknown_fields(record: Any) -> frozenset[str]:
    """Fields of a deed from a record of an earlier version that did not have them; none of any other record."""
    added: dict[str, Any] = {}
    if isinstance(record, Change):
        added |= ADDED[Change].get(record.kind, {})
    if isinstance(record, Operation):
        added |= ADDED[Operation].get(record.kind, {})
    return frozenset(name for name, value in added.items() if repr(getattr(record, name)) == repr(value))


def decoded(base: type, plain: Any) -> Any:
    """The record of a plain mapping. Raises `ValueError`, which names the record, for any other kind or fields."""
    table, what = TABLES[base], base.__name__.lower()
    kind = plain.get("kind") if isinstance(plain, dict) else None
    if not isinstance(kind, str) or kind not in table:
        raise ValueError(f"{what} of kind {kind!r}: this version knows {', '.join(sorted(table))}")
    plain = ADDED.get(base, {}).get(kind, {}) | plain
    known, given = {each.name for each in fields(table[kind])}, set(plain)
    if given != known:
        wrong = [f"without {name}" for name in sorted(known - given)]
        wrong += [f"with the unknown field {name}" for name in sorted(given - known)]
        raise ValueError(f"{what} of kind {kind!r}: {', '.join(wrong)}")
    try:
        return msgspec.convert(plain, table[kind], dec_hook=decoded)
    except msgspec.ValidationError as error:
        raise ValueError(f"{what} of kind {kind!r}: {error}") from error
