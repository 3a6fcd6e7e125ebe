"""Whatever the controller remembers comes back exactly, from its file and from the journal."""

from __future__ import annotations

import zlib
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from hypothesis import given
from hypothesis import strategies as st

from autopilot.core.effects.admit import AdmitOperation
from autopilot.core.effects.evict import EvictOperation
from autopilot.core.effects.pipeline import PipelineChange
from autopilot.core.geometry.recut import RecutGpu
from autopilot.core.idle.ceiling import Ceiling
from autopilot.core.model.memory import ControllerMemory
from autopilot.core.model.memory.budget import BudgetMemory, Disruption
from autopilot.core.model.memory.effects import EffectsMemory, InFlight
from autopilot.core.model.memory.geometry import GeometryMemory, RecutRecord
from autopilot.core.model.memory.halt import Failure, HaltMemory
from autopilot.core.model.memory.intake import ClockDoubt, IntakeMemory, ViewRecord
from autopilot.core.model.memory.people import Approval, OpenProposal, PeopleMemory, Rejection
from autopilot.core.model.memory.plan import PlanMemory
from autopilot.core.model.memory.starts import Part, PipelinedStart, StartsMemory
from autopilot.core.model.memory.trust import StormRecord, Touched, TrustMemory
from autopilot.core.model.objects import Slot, Subject, SubjectKind
from autopilot.core.model.promises import Beneficiary, Promise, PromiseRecord
from autopilot.core.model.records import (
    Command,
    CommandKind,
    Instruction,
    Proposal,
    RejectionScope,
    Reservation,
    Seen,
    Victim,
)
from autopilot.core.model.stops import Save, StopReason
from autopilot.core.replicas.scale import Scale
from autopilot.core.sharing_time.resize_members import ResizeOperation
from autopilot.records.journal.decisions import memory_bytes, read_memory
from autopilot.records.memory import FileMemoryStore, InMemoryStore
from autopilot.records.replay.unequal import first_unequal
from autopilot.records.variants import FLAT_SCHEMA

numbers = st.floats(allow_nan=True, allow_infinity=True)
texts = st.text(max_size=8)
slots = st.builds(Slot, texts, texts, texts, st.integers(0, 1000))
places = st.lists(slots, max_size=3).map(tuple)
reasons = st.sampled_from(StopReason)
geometries = st.none() | st.lists(st.tuples(texts, st.integers(0, 7)), max_size=3).map(tuple)
operations = st.one_of(
    st.builds(AdmitOperation, slots=places, backfill=st.booleans(), moved=st.booleans()),
    st.builds(EvictOperation, reason=reasons, grace_s=numbers, save=st.sampled_from(Save)),
    st.builds(ResizeOperation, slots=places, reason=st.none() | reasons),
    st.builds(Scale, replicas=st.integers(0, 9), until_s=numbers),
    st.builds(Ceiling, replicas=st.integers(-1, 9), until_s=numbers),
    st.builds(RecutGpu, before=geometries, after=geometries, index=st.integers(0, 15)),
)
recuts = st.builds(
    RecutRecord,
    texts,
    geometries,
    geometries,
    numbers,
    numbers,
    texts,
    texts,
    st.booleans(),
    st.lists(numbers, max_size=2).map(tuple),
    texts,
    geometries,
    st.integers(0, 3),
    numbers,
)
subjects = st.builds(Subject, st.sampled_from(SubjectKind), texts, texts, st.integers(0, 9))
instructions = st.builds(Instruction, texts, subjects, operations, numbers, st.integers(0, 9), texts)
in_flight = st.builds(
    InFlight,
    instructions,
    texts,
    numbers,
    texts,
    texts,
    numbers,
    st.booleans(),
    st.integers(1, 5),
    numbers,
    texts,
    texts,
)
names = st.lists(texts, max_size=3).map(tuple)
parts = st.builds(Part, texts, st.integers(0, 9), st.lists(slots, max_size=2).map(tuple), texts, texts)
pipelined_starts = st.builds(
    PipelinedStart,
    texts,
    texts,
    texts,
    texts,
    st.just(()),
    st.lists(parts, max_size=2).map(tuple),
    numbers,
    numbers,
    st.booleans(),
    texts,
    numbers,
    numbers,
    texts,
)
seen = st.builds(
    Seen,
    texts,
    texts,
    texts,
    st.integers(0, 9),
    texts,
    st.booleans(),
    st.booleans(),
    numbers,
    numbers,
    numbers,
    names,
    names,
)
victims = st.builds(Victim, texts, st.integers(0, 9), st.integers(0, 9), numbers, st.booleans(), queue=texts)
proposed = st.builds(
    Proposal,
    texts,
    texts,
    subjects,
    texts,
    texts,
    st.builds(PipelineChange, slots=places, victims=st.lists(victims, max_size=2).map(tuple)),
    numbers,
    numbers,
)
view_records = st.builds(
    ViewRecord,
    st.integers(0, 9),
    numbers,
    st.integers(0, 3),
    numbers,
    st.integers(0, 9),
    st.integers(0, 9),
    st.booleans(),
)
pairs = st.lists(st.tuples(numbers, numbers), max_size=2).map(tuple)
beneficiaries = st.builds(Beneficiary, texts, texts, numbers, numbers, numbers, numbers, numbers, st.booleans())
promises = st.builds(
    Promise,
    texts,
    texts,
    numbers,
    numbers,
    numbers,
    st.lists(beneficiaries, max_size=2).map(tuple),
    numbers,
    st.booleans(),
    texts,
)
bins = st.lists(st.tuples(numbers, st.integers(0, 99)), max_size=2).map(tuple)
memories = st.builds(
    ControllerMemory,
    tick=st.integers(-1, 1 << 40),
    now_s=numbers,
    fence=st.integers(0, 1 << 40),
    wake_at_s=numbers,
    effects=st.builds(
        EffectsMemory,
        in_flight=st.dictionaries(texts, in_flight, max_size=3),
    ),
    plan=st.builds(
        PlanMemory,
        reservations=st.lists(
            st.builds(
                Reservation,
                texts,
                st.integers(0, 9),
                st.integers(0, 99),
                numbers,
                numbers,
                numbers,
                names,
                uid=texts,
            ),
            max_size=3,
        ).map(tuple),
        proposed_since_s=st.dictionaries(texts, numbers, max_size=3),
    ),
    budget=st.builds(
        BudgetMemory,
        cooled_until_s=st.dictionaries(texts, numbers, max_size=3),
        disrupted=st.lists(
            st.builds(Disruption, numbers, texts, texts, names, st.booleans(), texts, texts), max_size=3
        ).map(tuple),
    ),
    starts=st.builds(StartsMemory, pipelined_starts=st.lists(pipelined_starts, max_size=2).map(tuple)),
    intake=st.builds(
        IntakeMemory,
        views=st.dictionaries(texts, view_records, max_size=3),
        clock_doubt=st.none() | st.builds(ClockDoubt, numbers, numbers, st.integers(0, 9)),
    ),
    geometry=st.builds(GeometryMemory, recuts=st.dictionaries(texts, recuts, max_size=2)),
    trust=st.builds(
        TrustMemory,
        storms=st.dictionaries(
            texts, st.builds(StormRecord, bins, bins, numbers, numbers, st.integers(0, 99)), max_size=2
        ),
        promises=st.lists(promises, max_size=2).map(tuple),
        kept_promises=st.dictionaries(texts, st.builds(PromiseRecord, pairs, numbers), max_size=2),
        touched=st.lists(st.builds(Touched, texts, texts, numbers), max_size=2).map(tuple),
    ),
    people=st.builds(
        PeopleMemory,
        open_proposals=st.dictionaries(texts, st.builds(OpenProposal, proposed, numbers, numbers), max_size=3),
        approvals=st.dictionaries(
            texts, st.builds(Approval, seen, st.booleans(), numbers, texts, names, numbers, numbers), max_size=3
        ),
        rejections=st.dictionaries(
            texts,
            st.builds(Rejection, st.sampled_from(RejectionScope), texts, texts, texts, numbers, texts),
            max_size=3,
        ),
        last_sequence=st.integers(-1, 1 << 40),
    ),
    halt=st.builds(
        HaltMemory,
        failed=st.lists(st.builds(Failure, numbers, texts, texts), max_size=3).map(tuple),
        last_kill=st.none() | st.builds(Command, st.just(CommandKind.KILL), texts, numbers),
        killed=st.booleans(),
        paused_reason=texts,
        paused_since_s=numbers,
    ),
)


@given(memories)
def test_memory_survives_a_restart(memory: ControllerMemory) -> None:
    """Whatever the controller remembers is what it remembers after a restart, exactly."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "memory.json"
        FileMemoryStore(path).save(memory)
        loaded = FileMemoryStore(path).load()
    assert first_unequal(memory, loaded, "memory") is None
    assert type(loaded) is ControllerMemory
    kept = InMemoryStore()
    kept.save(memory)
    assert kept.load() is memory


@given(memories)
def test_a_recorded_memory_is_the_same_but_for_the_fence(memory: ControllerMemory) -> None:
    """A memory in the journal comes back exactly; equal memories have equal bytes, however they grew."""
    for schema in (memory.schema, FLAT_SCHEMA):
        read = read_memory(memory_bytes(replace(memory, schema=schema)))
        assert first_unequal(replace(memory, schema=schema, fence=0), read, "memory") is None
    turned = replace(
        memory,
        budget=replace(memory.budget, cooled_until_s=dict(reversed(list(memory.budget.cooled_until_s.items())))),
        fence=3,
    )
    assert zlib.crc32(memory_bytes(turned)) == zlib.crc32(memory_bytes(memory))
