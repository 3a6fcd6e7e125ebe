"""Decoding of records that have one class for each kind, and of records of earlier versions.

The field `kind` selects the class of a deed. msgspec decodes no union of dataclasses. The annotation of such a field is
therefore a plain base class, and `decoded` is the `dec_hook` of every decoder that meets one.

A memory of schema 2 had all fields side by side, one of schema 3 lacked slices, one of schema 4 the pace of profiles.
`memory_of` puts each field into its slice, and keeps the number: a replay compares memories by a digest, so it writes
the memory of an old journal as that journal did (`as_recorded`). What the memory lacked begins empty, or unknown.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, make_dataclass, replace
from operator import attrgetter
from typing import Any

import msgspec

from autopilot.core.capabilities.verbs import CHANGES, OPERATIONS
from autopilot.core.effects.admit import AdmitChange, AdmitOperation
from autopilot.core.effects.pipeline import PipelineChange
from autopilot.core.model.memory import ControllerMemory
from autopilot.core.model.memory.profiles import LoneProfile, ProfilesMemory
from autopilot.core.model.verb import Change, Operation

TABLES: Mapping[type, Mapping[str, type[Any]]] = {Change: CHANGES, Operation: OPERATIONS}
"""The classes of each base class, by kind."""

ADDED: Mapping[type, Mapping[str, Mapping[str, Any]]] = {
    Change: {
        "cordon": {"reason": ""},
        "offer": {"reason": ""},
        "provision": {"provisioning_class": ""},
        "admit": {"scrub": None},
        "pipeline": {"scrub": None},
    },
    Operation: {
        "ceiling": {"had": -1, "gpus": float("nan"), "owner": ""},
        "recut": {"pool": ""},
        "admit": {"scrub": None},
    },
}
"""Fields that records of earlier versions lack, with the value for unknown: by base class, kind and field."""


FLAT_SCHEMA = 2
FLAT: Mapping[str, str] = {
    "schema": "",
    "tick": "",
    "now_s": "",
    "fence": "",
    "in_flight": "effects",
    "reservations": "plan",
    "cooled_until_s": "budget",
    "no_pipelined_until_s": "starts",
    "refused_until_s": "effects",
    "proposed_since_s": "plan",
    "conditions": "plan",
    "advance": "plan",
    "spent_gpu_s": "spending",
    "spending_gpus": "spending",
    "spent_until_s": "spending",
    "disrupted": "budget",
    "open_proposals": "people",
    "approvals": "people",
    "rejections": "people",
    "last_sequence": "people",
    "failed": "halt",
    "storms": "trust",
    "touched": "trust",
    "promises": "trust",
    "kept_promises": "trust",
    "pipelined_starts": "starts",
    "usage_gpu_s": "use",
    "standing_use_gpu_s": "use",
    "held_gpus": "use",
    "part_gpu_s": "use",
    "standing_part_gpu_s": "use",
    "part_gpus": "use",
    "usage_at_s": "use",
    "services": "replicas",
    "starting_s": "replicas",
    "stops": "losses",
    "weighed_stops": "losses",
    "tenant_saves": "losses",
    "workload_saves": "losses",
    "recuts": "geometry",
    "cordons": "recovery",
    "gpu_errors": "recovery",
    "idle_nodes_s": "nodes",
    "offered_s": "nodes",
    "requested_s": "nodes",
    "killed": "halt",
    "kill_sequence": "halt",
    "last_kill": "halt",
    "paused_reason": "halt",
    "paused_since_s": "halt",
    "paused_by": "halt",
    "clock_doubt": "intake",
    "clock_drift_s": "intake",
    "wake_at_s": "",
    "idle": "",
    "views": "intake",
}
"""The fields of a memory of schema 2 in their order, each with its slice; "" for a field without one."""

LACKS: Mapping[int, frozenset[str]] = {
    3: frozenset({"profiles", "holders", "sharing", "neighbours"}),
    4: frozenset({"holders", "sharing", "neighbours"}),
    5: frozenset({"neighbours"}),
}
"""Slices that a memory of an earlier schema lacks."""

HINTED = 5
"""The first schema whose deeds have a hint to scrub, and whose profiles have a pace."""

_EARLIER: Mapping[int, type[Any]] = {
    schema: make_dataclass(
        f"_Schema{schema}", [each.name for each in fields(ControllerMemory) if each.name not in lacks], frozen=True
    )
    for schema, lacks in LACKS.items()
}
_HINTED: tuple[type[Any], ...] = (AdmitChange, PipelineChange, AdmitOperation)
_UNHINTED: Mapping[type[Any], type[Any]] = {
    kind: make_dataclass(kind.__name__, [each.name for each in fields(kind) if each.name != "scrub"], frozen=True)
    for kind in _HINTED
}
"""Deeds as records before schema 5 had them: without the hint to scrub."""
_PACE = frozenset({"steps_hz", "steps_spread_ratio"})
_PACELESS = make_dataclass(
    "LoneProfile", [each.name for each in fields(LoneProfile) if each.name not in _PACE], frozen=True
)
"""A profile as records before schema 5 had it: without the pace of its program."""
_SHARELESS = make_dataclass(
    "ProfilesMemory", [each.name for each in fields(ProfilesMemory) if each.name != "several_s"], frozen=True
)
"""The same of the slice of profiles: without the GPUs that have several holders."""
_Flat = make_dataclass("_Flat", FLAT, frozen=True, slots=True)
_VALUES = attrgetter(*(".".join(filter(None, (slice_, name))) for name, slice_ in FLAT.items()))


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


def memory_of(plain: Any) -> ControllerMemory:
    """The memory of a plain mapping, also of an earlier schema. Raises `msgspec.ValidationError`."""
    known = ControllerMemory().schema
    schema = plain.get("schema", known) if isinstance(plain, dict) else known
    if schema == FLAT_SCHEMA:
        plain = _sliced(plain)
    elif schema not in {*LACKS, known}:
        read = ", ".join(map(str, (FLAT_SCHEMA, *LACKS)))
        raise msgspec.ValidationError(f"memory of schema {schema!r}: this version knows {read} and {known}")
    return msgspec.convert(plain, ControllerMemory, dec_hook=decoded)


def _sliced(flat: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {name: value for name, value in flat.items() if not FLAT.get(name)}
    for name, value in flat.items():
        if FLAT.get(name):
            found.setdefault(FLAT[name], {})[name] = value
    return found


def as_recorded(memory: ControllerMemory) -> Any:
    """A memory in the form of its schema."""
    if memory.schema == ControllerMemory().schema:
        return memory
    if memory.schema < HINTED:
        memory = _unhinted(memory)
    if memory.schema == FLAT_SCHEMA:
        return _Flat(*_VALUES(memory))
    return _of(_EARLIER[memory.schema], memory)


def _of(kind: type[Any], record: Any) -> Any:
    return kind(*(getattr(record, each.name) for each in fields(kind)))


def _unhinted(memory: ControllerMemory) -> Any:
    """A memory with the deeds and the profiles of before schema 5."""

    def shorn(deed: Any) -> Any:
        return _of(_UNHINTED[type(deed)], deed) if type(deed) in _UNHINTED else deed

    in_flight = {
        key: replace(each, instruction=replace(each.instruction, operation=shorn(each.instruction.operation)))
        for key, each in memory.effects.in_flight.items()
    }
    shown = {
        key: replace(each, proposal=replace(each.proposal, change=shorn(each.proposal.change)))
        for key, each in memory.people.open_proposals.items()
    }
    profiles: Any = {
        model: {kind: _of(_PACELESS, each) for kind, each in kinds.items()}
        for model, kinds in memory.profiles.profiles.items()
    }
    return replace(
        memory,
        effects=replace(memory.effects, in_flight=in_flight),
        people=replace(memory.people, open_proposals=shown),
        profiles=_of(_SHARELESS, replace(memory.profiles, profiles=profiles)),
    )
