"""Decoding of records that have one class for each kind, and of memories of an earlier schema."""

from __future__ import annotations

import json
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from autopilot.core.capabilities.verbs import CHANGES
from autopilot.core.effects.admit import AdmitOperation
from autopilot.core.effects.evict import EvictOperation
from autopilot.core.geometry.recut import RecutGpu
from autopilot.core.idle.ceiling import Ceiling
from autopilot.core.idle.notify import Notify
from autopilot.core.model.errors import InputError
from autopilot.core.model.memory import ControllerMemory
from autopilot.core.model.memory.effects import EffectsMemory, InFlight
from autopilot.core.model.memory.profiles import LoneProfile, ProfilesMemory
from autopilot.core.model.objects import Slot, Victim
from autopilot.core.model.records import Instruction, Proposal
from autopilot.core.model.stops import Save, StopReason
from autopilot.core.model.verb import Deed, Operation
from autopilot.core.neighbours.pausing import Pause, Resume
from autopilot.core.nodes.offer import Offer
from autopilot.core.nodes.provision import Provision
from autopilot.core.recovery.cordon import Cordon
from autopilot.core.replicas.scale import Scale
from autopilot.core.sharing_time.resize_members import ResizeOperation
from autopilot.records.journal.decisions import digest, memory_bytes, read_memory
from autopilot.records.journal.observations import ENCODER
from autopilot.records.memory import memory_text, read_memory_text
from autopilot.records.replay.unequal import first_unequal
from autopilot.records.variants import ADDED, FLAT, FLAT_SCHEMA, TABLES, as_recorded, decoded, memory_of
from tests.kits.instructions import instruct
from tests.kits.proposals import change_of, propose

SLOTS = (Slot("n", "g"), Slot("n", "h", "h/1", 500))
OPERATIONS: list[Operation] = [
    AdmitOperation(slots=SLOTS, backfill=True),
    EvictOperation(reason=StopReason.RECLAIM_MOVE, grace_s=60.0, save=Save.MUST),
    ResizeOperation(slots=SLOTS),
    ResizeOperation(slots=SLOTS[:1], reason=StopReason.RECOVER),
    Scale(replicas=2, until_s=float("inf")),
    Ceiling(replicas=0, until_s=900.0, had=2, gpus=1.0, owner="t/ann"),
    RecutGpu(pool="p", before=(("3g.40gb", 0),), after=None, scope="instance", node="n", index=0),
    Cordon(on=True, reason="XID 79 on GPU-3"),
    Offer(on=True, reason="nothing needs it"),
    Provision(pool="h100", nodes=2, provisioning_class="c"),
    Notify(gpus=1.5, idle_s=3600.0, grace_s=900.0),
    Pause(seconds=300.0, again=False, victim="v", victim_uid="v"),
    Resume(),
]


def under_way(operation: Operation) -> ControllerMemory:
    """A memory with one effect under way."""
    entry = InFlight(instruct("w", operation), "issued", 0.0, "preempt", "t", 0.0, contract=False)
    return ControllerMemory(effects=EffectsMemory(in_flight={entry.instruction.id: entry}))


@pytest.mark.parametrize("operation", OPERATIONS, ids=repr)
def test_every_kind_comes_back_from_a_journal_and_from_a_memory_file(operation: Operation) -> None:
    """The class is the one that was written."""
    memory = under_way(operation)
    assert read_memory(memory_bytes(memory)).effects.in_flight == memory.effects.in_flight
    assert read_memory_text(memory_text(memory), "m.json").effects.in_flight == memory.effects.in_flight


@pytest.mark.parametrize("kind", CHANGES)
def test_every_kind_of_proposal_comes_back(kind: str) -> None:
    """Also what its victims keep, and the terms of its score."""
    victim = Victim("v", 0, 1, 0.0, contract=True, how="shrink", keeps=SLOTS, worst_gpu_s=1.0)
    proposal = propose(kind, slots=SLOTS, victims=[victim])
    read = msgspec.msgpack.Decoder(Proposal, dec_hook=decoded).decode(ENCODER.encode(proposal))
    assert read == proposal
    assert type(read.change) is CHANGES[kind]


@pytest.mark.parametrize(
    ("base", "kind", "added"), [(base, kind, row) for base in ADDED for kind, row in ADDED[base].items()]
)
def test_a_record_of_an_earlier_version_has_the_unknown_value_for_a_field_that_it_lacks(
    base: type, kind: str, added: dict[str, Any]
) -> None:
    """So journals and memory files of that version are read, and replayed without a difference."""
    whole: Any = next(each for each in OPERATIONS if each.kind == kind) if base is Operation else change_of(kind)
    read = decoded(base, {name: value for name, value in msgspec.to_builtins(whole).items() if name not in added})
    assert repr(msgspec.to_builtins(read)) == repr(msgspec.to_builtins(whole) | dict(added))  # NaN equals itself there
    assert first_unequal(read, whole, "record") is None


def test_records_of_the_previous_layout_are_refused() -> None:
    """They have no subject and no operation or change: nothing of them is misread."""
    old = {"id": "1", "kind": "evict", "workload": "w", "incarnation": 0, "slots": [], "backfill": False}
    for record in (Instruction, Proposal):
        with pytest.raises(msgspec.ValidationError, match="missing required field"):
            msgspec.msgpack.Decoder(record, dec_hook=decoded).decode(msgspec.msgpack.encode(old))


@pytest.mark.parametrize("base", TABLES, ids=lambda base: base.__name__)
def test_the_table_has_each_class_under_its_kind(base: Any) -> None:
    """The field `kind` is what the table says."""
    for kind, variant in TABLES[base].items():
        assert issubclass(variant, base)
        assert {each.default for each in fields(variant) if each.name == "kind"} == {kind}
    kinds = {each.__name__ for each in (*base.__subclasses__(), *Deed.__subclasses__())} - {"Deed"}
    assert {each.__name__ for each in TABLES[base].values()} == kinds - ({"Mark"} if base is Operation else set())


EVICT = {"kind": "evict", "reason": "preempt", "grace_s": 1.0, "save": "try"}


@pytest.mark.parametrize(
    ("plain", "message"),
    [
        (
            EVICT | {"kind": "fly"},
            "operation of kind 'fly': this version knows admit, ceiling, cordon, evict, notify, offer, pause, "
            "provision, recut, resize, resume, scale",
        ),
        (["evict"], "operation of kind None: this version knows"),
        ({name: EVICT[name] for name in ("kind", "reason", "save")}, "operation of kind 'evict': without grace_s"),
        (EVICT | {"slots": []}, "operation of kind 'evict': with the unknown field slots"),
        (EVICT | {"reason": "whim"}, "operation of kind 'evict': Invalid enum value 'whim'"),
    ],
)
def test_anything_else_is_refused_with_the_record_named(plain: Any, message: str) -> None:
    """Nothing is guessed and nothing is ignored."""
    with pytest.raises(ValueError, match=message):
        decoded(Operation, plain)
    whole = msgspec.to_builtins(instruct("w")) | {"operation": plain}
    with pytest.raises(msgspec.ValidationError, match=message):
        msgspec.msgpack.Decoder(Instruction, dec_hook=decoded).decode(msgspec.msgpack.encode(whole))


def test_a_memory_file_with_another_layout_is_one_error() -> None:
    """It names the file, the record and the fix."""
    text = memory_text(under_way(OPERATIONS[1])).replace('"grace_s": 60.0, ', "")
    body = text.partition('"memory": ')[2].rstrip()[:-1]
    from autopilot.records.memory import _digest

    text = text.replace(text.split('"digest": "')[1][:16], _digest(body))
    with pytest.raises(InputError, match=r"^m.json: operation of kind 'evict': without grace_s.*restore it"):
        read_memory_text(text, "m.json")


# --- memories of schema 2 -----------------------------------------------------------------------------

OLD = Path(__file__).parents[2] / "data" / "memory" / "schema-2.json"
"""Written by the last version of that schema, with a value in each field."""
OLD_DIGEST = "b025ec811a72dc73"
"""Of the same memory in a journal of that version."""


def test_a_memory_file_of_schema_2_is_read_into_slices() -> None:
    """Nothing of it is lost: each flat field has a slice, and stands there with its value."""
    flat = json.loads(OLD.read_text())["memory"]
    read = read_memory_text(OLD.read_text(), "old")
    plain = msgspec.to_builtins(as_recorded(replace(read, schema=FLAT_SCHEMA)))
    assert list(flat) == list(FLAT)
    assert json.loads(json.dumps(plain)) == flat


def test_a_journal_of_schema_2_is_compared_in_its_own_form() -> None:
    """So a replay finds the digests that it recorded."""
    read = replace(read_memory_text(OLD.read_text(), "old"), schema=FLAT_SCHEMA)
    assert digest(memory_bytes(read)).hex() == OLD_DIGEST
    assert read_memory(memory_bytes(read)) == replace(read, fence=0)


def test_a_memory_of_an_unknown_schema_is_an_error() -> None:
    """It is not read as an empty one."""
    with pytest.raises(msgspec.ValidationError, match="memory of schema 9: this version knows 2, 3, 4, 5 and 6"):
        memory_of({"schema": 9})


def test_the_profiles_of_schema_4_have_no_pace() -> None:
    """They are read with an unknown one, and a replay writes them as their journal did."""
    lone = LoneProfile(9.0, 600.0, 5.0, steps_hz=2.0, steps_spread_ratio=0.1)
    memory = ControllerMemory(profiles=ProfilesMemory({"H100": {"kind": lone}}, 5.0))
    old = memory_bytes(replace(memory, schema=4))
    assert b"steps" in memory_bytes(memory)
    assert b"steps" not in old
    read = read_memory(old)
    assert (read.schema, repr(read.profiles.profiles["H100"]["kind"])) == (4, repr(LoneProfile(9.0, 600.0, 5.0)))
    assert memory_bytes(read) == old
