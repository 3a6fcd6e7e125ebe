"""What is written is what is read, bit for bit, whatever a cluster does between two ticks."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autopilot.core.effects.admit import AdmitOperation
from autopilot.core.model.forecast import Forecasts
from autopilot.core.model.memory import ControllerMemory
from autopilot.core.model.records import (
    Code,
    Command,
    CommandKind,
    Decision,
    Gap,
    Observation,
    Plan,
    Proposal,
    Refusals,
    Reservation,
    Signals,
    Slot,
    Verdict,
    View,
)
from autopilot.core.model.signal_table import SignalTable
from autopilot.core.model.snapshot import (
    DTYPES,
    ClusterSnapshot,
    GpuTable,
    Names,
    PlacementTable,
    WorkloadTable,
    empty,
    empty_signals,
    make,
    take,
)
from autopilot.records.journal.decisions import DecisionDecoder, DecisionEncoder
from autopilot.records.journal.observations import NAMED_TABLES, ObservationDecoder, ObservationEncoder
from autopilot.records.journal.table_codec import UnreadableError, change, pack_columns, whole
from autopilot.records.replay.unequal import first_unequal
from benchmarks.small_world import AUTO
from tests.kits.instructions import instruct
from tests.kits.proposals import propose
from tests.kits.random_forecasts import random_forecasts

SPECIAL = (np.nan, -0.0, 0.0, np.inf, -np.inf, 1e-300, 1.5)

NOTHING_MEASURED = Signals(
    **{f.name: () if "tuple" in str(f.type) else 0 for f in fields(Signals)}  # type: ignore[arg-type]
)

# --- random clusters ----------------------------------------------------------------------------


def column(rng: np.random.Generator, kind: str, rows: int) -> Any:
    """A column of one kind with its awkward values."""
    dtype = DTYPES.get(kind, np.int32)
    if dtype is object:
        out = np.empty(rows, object)
        out[:] = [f"{int(rng.integers(1 << 40)):x}é" for _ in range(rows)]
        return out
    if np.dtype(dtype).kind == "f":
        out = rng.normal(size=rows).astype(dtype)
        odd = rng.random(rows) < 0.3
        out[odd] = rng.choice(np.array(SPECIAL, dtype), int(odd.sum()))
        return out
    if dtype is np.bool_:
        return rng.random(rows) < 0.5
    if kind == "LabelBits":
        return rng.integers(0, 256, (rows, 2)).astype(dtype)
    info = np.iinfo(dtype)
    return rng.choice(np.array([info.min, -1, 0, 1, info.max], dtype), rows)


def table(rng: np.random.Generator, kind: type[Any], rows: int) -> Any:
    """A table with random columns."""
    columns = {f.name: column(rng, str(f.type), rows) for f in fields(kind)}
    if "guarantee" in columns:
        columns["guarantee"] = rng.integers(0, 9, (rows, 2)).astype(np.int32)
    return kind(**columns)


def names_of(old: Any) -> Any:
    """The first column of a table."""
    return getattr(old, fields(old)[0].name)


def insert(rng: np.random.Generator, old: Any, rows: int) -> Any:
    """New rows at random places; the others keep their order."""
    fresh, count = table(rng, type(old), rows), len(getattr(old, fields(old)[0].name))
    order = np.full(count + rows, -1)
    places = rng.choice(count + rows, rows, replace=False)
    order[places] = count + np.arange(rows)
    order[order < 0] = np.arange(count)
    joined = [np.concatenate([getattr(old, f.name), getattr(fresh, f.name)])[order] for f in fields(old)]
    return type(old)(*joined)


def edit(rng: np.random.Generator, old: Any) -> Any:
    """Other values in some cells of some columns."""
    changed = {}
    for f in fields(old):
        if rng.random() < 0.3 and len(getattr(old, fields(old)[0].name)) and getattr(old, f.name).ndim == 1:
            values = getattr(old, f.name).copy()
            at = rng.choice(len(values), max(len(values) // 5, 1), replace=False)
            values[at] = column(rng, str(f.type), len(at)).astype(values.dtype)
            changed[f.name] = values
    return replace(old, **changed)


def retyped(old: Any) -> Any:
    """An empty table whose columns have other types than declared."""
    return type(old)(
        *(
            np.empty(getattr(old, f.name)[:0].shape, np.float64) if f.type != "Texts" else np.empty(0, object)
            for f in fields(old)
        )
    )


def evolve(rng: np.random.Generator, old: Any) -> Any:
    """One table a tick later."""
    choice = rng.random()
    if choice < 0.25:
        return old
    if choice < 0.5:
        return edit(rng, old)
    if choice < 0.8:
        kept = (
            old
            if not len(getattr(old, fields(old)[0].name))
            else take(old, np.flatnonzero(rng.random(len(getattr(old, fields(old)[0].name))) < 0.9))
        )
        return edit(rng, insert(rng, kept, int(rng.integers(0, 4)))) if names_of(kept).dtype == object else old
    if choice < 0.87:
        return take(old, rng.permutation(len(getattr(old, fields(old)[0].name))))
    if choice < 0.92:
        return retyped(old)
    if choice < 0.96:
        return take(old, np.zeros(min(len(getattr(old, fields(old)[0].name)), 2), np.intp))  # one name twice
    return table(rng, type(old), int(rng.integers(0, 30)))


def placements(rng: np.random.Generator, workloads: int, old: PlacementTable) -> PlacementTable:
    """Who holds what: mostly as before."""
    if workloads == 0:
        nothing: PlacementTable = empty(PlacementTable)
        return nothing
    if len(old.gpu) and int(old.workload.max()) < workloads and rng.random() < 0.6:
        held_on: PlacementTable = take(old, np.flatnonzero(rng.random(len(old.gpu)) < 0.9))
        return held_on
    rows = int(rng.integers(0, 40))
    held = np.sort(rng.integers(0, workloads, rows)).astype(np.int32)
    gpu = rng.permutation(rows).astype(np.int32)
    made: PlacementTable = make(PlacementTable, workload=held, node=gpu // 8, gpu=gpu)
    return made


def telemetry(rng: np.random.Generator, old: SignalTable) -> SignalTable:
    """Signals a tick later."""
    choice = rng.random()
    if choice < 0.3:
        return old
    if choice < 0.5 and len(old.age_s):
        return replace(old, age_s=old.age_s + np.float32(5), collected_s=old.collected_s + 5)
    if choice < 0.6:
        return empty_signals()
    entities = len(old.age_s) if choice < 0.9 and len(old.age_s) else int(rng.integers(0, 12))
    shape = (2, 3, entities)
    mean = rng.normal(size=shape).astype(np.float32)
    mean[rng.random(shape) < 0.2] = np.nan
    if rng.random() < 0.5:
        mean = mean.astype(np.float16).astype(np.float32)
    if rng.random() < 0.2 and entities:
        mean[0, 0, 0] = rng.choice(np.array(SPECIAL, np.float32))
    age_s = rng.choice(np.array([0, 1, 30, np.inf], np.float32), entities)
    samples = rng.integers(0, 9, shape[1:]).astype(np.int32)
    sources = ("one", "two")[: int(rng.integers(0, 3))]
    source = rng.integers(-1, len(sources), entities if sources else 0).astype(np.int8)
    return SignalTable(
        ("a", "b"),
        (60.0, 300.0, 1800.0),
        float(rng.random()),
        mean,
        np.asfortranarray(mean + 1),
        samples,
        age_s,
        np.zeros(entities, np.int8),
        sources,
        source,
    )


def observations(rng: np.random.Generator, ticks: int) -> list[Observation]:
    """A sequence of observations, each grown from the one before."""
    tables = {name: table(rng, kind, int(rng.integers(0, 25))) for name, kind in NAMED_TABLES}
    held, signals = empty(PlacementTable), empty_signals()
    gaps: tuple[Gap, ...] = ()
    foreseen = Forecasts()
    found = []
    for tick in range(ticks):
        tables = {name: evolve(rng, old) for name, old in tables.items()}
        held = placements(rng, len(tables["workloads"].id), held)
        signals = telemetry(rng, signals)
        if rng.random() < 0.2:
            gaps = (*gaps, Gap("dcgm", f"node-{tick}", "", "down"))
        foreseen = random_forecasts(rng, foreseen, len(tables["workloads"].id))
        snapshot = ClusterSnapshot(
            Names(("H100",), (), (f"t{tick // 3}",), ()),
            placements=held,
            telemetry=signals,
            work_age_s=float(rng.random()),
            **tables,
        )
        measures = replace(NOTHING_MEASURED, free_gpus=float(rng.random()), gap_ratio=float("nan"))
        views = (
            View(
                "api",
                "work",
                bool(rng.random() < 0.8),
                float(tick),
                len(snapshot.workloads.id),
                9,
                tick % 3,
                "page 2",
            ),
        )
        commands = (Command(CommandKind.PAUSE, "x", 1.0),) if rng.random() < 0.2 else ()
        found.append(
            Observation(
                tick,
                float(tick),
                snapshot,
                measures,
                foreseen,
                commands,
                (),
                gaps,
                kill_switch=bool(rng.random() < 0.1),
                views=views,
            )
        )
    return found


def assert_same_bits(one: Any, two: Any, path: str = "observation") -> None:
    """Fail unless two trees of records are equal, columns bit for bit with type, shape and order."""
    if isinstance(one, np.ndarray):
        assert one.dtype == two.dtype, path
        assert one.shape == two.shape, path
        if one.dtype == object:
            assert one.tolist() == two.tolist(), path
        else:
            assert one.tobytes("A") == two.tobytes("A") or one.tobytes() == two.tobytes(), path
            if one.ndim == 2 and one.size:
                assert one.flags.fnc == two.flags.fnc, path
        return
    if hasattr(one, "__dataclass_fields__"):
        assert type(one) is type(two), path
        for f in fields(one):
            assert_same_bits(getattr(one, f.name), getattr(two, f.name), f"{path}.{f.name}")
        return
    assert first_unequal(one, two, path) is None or isinstance(one, tuple)
    if isinstance(one, tuple):
        assert len(one) == len(two), path
        for at, (left, right) in enumerate(zip(one, two, strict=True)):
            assert_same_bits(left, right, f"{path}[{at}]")


@settings(max_examples=20)
@given(st.integers(0, 2**32 - 1))
def test_observations_are_read_as_they_were_written(seed: int) -> None:
    """Any sequence of observations comes back bit for bit, through changes and keyframes."""
    rng = np.random.default_rng(seed)
    encoder, decoder = ObservationEncoder(), ObservationDecoder()
    for tick, observation in enumerate(observations(rng, 12)):
        if tick % 5 == 4:
            encoder.restart()
            decoder = ObservationDecoder()
        assert_same_bits(observation, decoder.decode(*encoder.encode(observation)))


@given(st.integers(0, 2**32 - 1))
def test_what_did_not_change_is_one_object_after_reading(seed: int) -> None:
    """Tables that did not change between two ticks are the same object after reading, and cost nothing."""
    rng = np.random.default_rng(seed)
    first = observations(rng, 3)[-1]
    encoder, decoder = ObservationEncoder(), ObservationDecoder()
    one = decoder.decode(*encoder.encode(first))
    data, signals = encoder.encode(replace(first, tick=first.tick + 1))
    two = decoder.decode(data, signals)
    for f in fields(ClusterSnapshot):
        if f.name not in {"inventory_age_s", "work_age_s"}:
            assert getattr(one.snapshot, f.name) is getattr(two.snapshot, f.name), f.name
    assert one.forecasts.runtimes is two.forecasts.runtimes
    assert one.forecasts.mix is two.forecasts.mix
    assert signals is None
    assert len(data) < 60


def test_a_journal_of_an_earlier_build_lacks_a_column() -> None:
    """It is read with the value that its absence means, also through changes. Another absent column is refused."""
    made = observations(np.random.default_rng(1), 10)
    first = next(each for each in made if each.snapshot.gpus.healthy.any())
    gpus = first.snapshot.gpus
    second = replace(gpus, healthy=~gpus.healthy)
    packed = [pack_columns([getattr(each, f.name) for f in fields(GpuTable)][:-1]) for each in (gpus, second)]
    names = [f.name for f in fields(GpuTable)][:-1]
    data, signals = ObservationEncoder().encode(first)
    head = msgspec.msgpack.decode(data)

    def older(part: Any) -> bytes:
        return msgspec.msgpack.encode([*head[:5], head[5] | {"gpus": part}, *head[6:]])

    decoder = ObservationDecoder()
    one = decoder.decode(older(whole(packed[0], names)), signals).snapshot.gpus
    two = decoder.decode(older(change(packed[0], packed[1], None)), signals).snapshot.gpus
    assert len(one.uuid) > 0
    assert (one.on_demand == -1).all()
    assert (two.on_demand == -1).all()
    assert two.healthy.tolist() == second.healthy.tolist()
    fewer = pack_columns([getattr(gpus, name) for name in names[:-1]])
    with pytest.raises(UnreadableError, match="another version wrote this"):
        ObservationDecoder().decode(older(whole(fewer, names[:-1])), signals)


# --- decisions -----------------------------------------------------------------------------------


def decision(rng: np.random.Generator, tick: int, workloads: int, before: tuple[Proposal, ...]) -> Decision:
    """A decision some of whose proposals were made before."""
    fresh = tuple(
        propose(
            "admit",
            "admit_gang",
            f"w{at}",
            id=f"p{int(rng.integers(1 << 30))}",
            slots=(Slot("n", "g"),),
            verdicts=(Verdict("mode", True, Code.OK, np.float64(1.0), "", float("nan")),),
        )
        for at in range(int(rng.integers(0, 3)))
    )
    kept = tuple(proposal for proposal in before if rng.random() < 0.7)
    refused = rng.permutation(workloads)[: int(workloads * 0.8)].astype(np.int32)
    if rng.random() < 0.7:
        refused = np.sort(refused)
    refusals = Refusals(
        tuple(Code)[:5],
        refused,
        rng.integers(0, 5, len(refused)).astype(np.int8),
        rng.choice(SPECIAL, len(refused)),
        np.floor(rng.random(len(refused)) * 3),
    )
    held = (Reservation("w", 0, 8, 0.0, float("nan"), 5.0, ("n1", "n2")),) if rng.random() < 0.5 else ()
    return Decision(tick, float(tick), Plan((*kept, *fresh), refusals, held, ("w9",) if rng.random() < 0.2 else ()))


@settings(max_examples=20)
@given(st.integers(0, 2**32 - 1))
def test_decisions_are_read_as_they_were_written(seed: int) -> None:
    """Any sequence of decisions comes back whole, with the digest of the memory it rests on."""
    rng = np.random.default_rng(seed)
    seen, encoder, decoder = ObservationEncoder(), DecisionEncoder(), DecisionDecoder()
    before: tuple[Proposal, ...] = ()
    for tick, observation in enumerate(observations(rng, 10)):
        if tick % 4 == 3:
            seen.restart()
            encoder.restart()
            decoder = DecisionDecoder()
        seen.encode(observation)
        memory = ControllerMemory(tick=tick, fence=7)
        made = decision(rng, tick, len(observation.snapshot.workloads.id), before)
        effects = tuple(instruct("w", AdmitOperation(slots=()), f"{tick}/{at}", fence=7) for at in range(tick % 3))
        data = encoder.encode(AUTO, memory, made, effects, seen.workload_rows, seen.whole_workloads)
        read = decoder.decode(data)
        assert first_unequal(made, read.decision, "decision") is None
        assert read.instructions == effects
        assert read.policy == AUTO
        assert read.fence == 7
        before = made.plan.proposals


def test_every_column_of_a_workload_is_recorded() -> None:
    """A column added to a table is recorded without a word here: tables are taken by their fields."""
    rng = np.random.default_rng(1)
    first = observations(rng, 1)[0]
    old = table(rng, WorkloadTable, 6)
    encoder, decoder = ObservationEncoder(), ObservationDecoder()
    snapshot = replace(first.snapshot, workloads=old, placements=empty(PlacementTable))
    decoder.decode(*encoder.encode(replace(first, snapshot=snapshot)))
    for f in fields(WorkloadTable):
        values = getattr(old, f.name).copy()
        values[3] = column(rng, str(f.type), 1)[0]
        old = replace(old, **{f.name: values})
        changed = replace(first, snapshot=replace(snapshot, workloads=old))
        assert_same_bits(changed, decoder.decode(*encoder.encode(changed)))
