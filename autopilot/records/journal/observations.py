"""Observations as bytes, tick by tick: an encoder and its inverse.

Both keep the tables of the previous tick. An object that is the same, or has equal values, costs nothing and is one
object again after reading. `restart` clears this state, so that the next observation is complete and can be read
without its predecessors (a keyframe).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from operator import is_
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from autopilot.core.model.colocation import Colocation
from autopilot.core.model.forecast import ExpectedMix, Forecast, Forecasts, RuntimeForecast
from autopilot.core.model.latencies import ReplicaLatency
from autopilot.core.model.neighbours import Interference, SlowGpu, Straggler, Unjudged
from autopilot.core.model.objects import SchedulerQuota, ServingRole, Share, Sharing, Trust
from autopilot.core.model.ranks import RankTable
from autopilot.core.model.records import Command, Gap, Observation, Outcome, Signals, View
from autopilot.core.model.snapshot import (
    AdvanceTable,
    ClusterSnapshot,
    GpuTable,
    InstanceTable,
    MemberTable,
    Names,
    NodeTable,
    PlacementTable,
    QueueTable,
    ServiceTable,
    WorkloadTable,
)
from autopilot.records.journal.signal_codec import Past, pack_signals, unpack_signals
from autopilot.records.journal.table_codec import (
    Packed,
    Rows,
    UnreadableError,
    apply_change,
    change,
    column_names,
    follow,
    pack_columns,
    read_whole,
    reader_of,
    rows_by_key,
    unpack_columns,
    unpack_rows,
    whole,
)

Array = NDArray[Any]

NAMED_TABLES: tuple[tuple[str, type[Any]], ...] = (
    ("nodes", NodeTable),
    ("gpus", GpuTable),
    ("instances", InstanceTable),
    ("workloads", WorkloadTable),
    ("services", ServiceTable),
    ("queues", QueueTable),
    ("members", MemberTable),
    ("advance", AdvanceTable),
    ("ranks", RankTable),
    ("latencies", ReplicaLatency),
)
"""Tables whose first column names the row. Placements are identified by the rows that they join."""

_SMALL: tuple[str, ...] = ("names", "signals", "commands", "outcomes", "gaps", "views")
_FORECAST_COLUMNS = ("total_s", "known", "history")
_WITH_HAZARD = (*_FORECAST_COLUMNS, "hazard_index_per_s")
"""Columns of a forecast of run times, where the model gives no hazard index (or is older), and where it does."""

_NO_ROWS = "no rows moved"


def plain(value: Any) -> Any:
    """Converts types that the encoder does not support: numpy's numbers and columns."""
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, np.ndarray):
        if value.dtype == object:
            return ["O", list(value.shape), value.reshape(-1).tolist()]
        return [value.dtype.str, list(value.shape), np.ascontiguousarray(value).tobytes()]
    raise TypeError(f"a {type(value).__name__} cannot be stored in a journal")


def column(_: type, value: Any) -> Any:
    """The inverse of `plain` for columns."""
    dtype, shape, data = value
    if dtype == "O":
        array = np.empty(len(data), object)
        array[:] = data
        return array.reshape(shape)
    return np.frombuffer(data, dtype).reshape(shape)


ENCODER = msgspec.msgpack.Encoder(enc_hook=plain)

_DECODERS: dict[str, msgspec.msgpack.Decoder[Any]] = {
    "names": msgspec.msgpack.Decoder(Names),
    "signals": msgspec.msgpack.Decoder(Signals),
    "commands": msgspec.msgpack.Decoder(tuple[Command, ...]),
    "outcomes": msgspec.msgpack.Decoder(tuple[Outcome, ...]),
    "gaps": msgspec.msgpack.Decoder(tuple[Gap, ...]),
    "views": msgspec.msgpack.Decoder(tuple[View, ...]),
}
_FORECASTS: dict[str, msgspec.msgpack.Decoder[Any]] = {
    "demand": msgspec.msgpack.Decoder(tuple[Forecast, ...], dec_hook=column),
    "mix": msgspec.msgpack.Decoder(ExpectedMix | None, dec_hook=column),
    "colocation": msgspec.msgpack.Decoder(Colocation),
    "interference": msgspec.msgpack.Decoder(tuple[Interference, ...]),
    "unjudged": msgspec.msgpack.Decoder(tuple[Unjudged, ...]),
    "stragglers": msgspec.msgpack.Decoder(tuple[Straggler, ...]),
    "slow_gpus": msgspec.msgpack.Decoder(tuple[SlowGpu, ...]),
}
"""Forecasts that are stored as a whole when they are new; one that an earlier build lacked has its default."""


_TYPES: dict[str, type[Any]] = {**dict(NAMED_TABLES), "placements": PlacementTable}
_TABLES = (*_TYPES, "runtimes")
_LATER: dict[tuple[str, str], Any] = {
    ("gpus", "on_demand"): np.int64(-1),
    ("placements", "assumed"): np.False_,
    ("workloads", "scheduler_quota"): np.int8(SchedulerQuota.NOT_ASKED),
    ("workloads", "trust"): np.int8(Trust.UNTRUSTED),
    ("workloads", "share"): np.int8(Share.NEVER),
    ("workloads", "image"): "",
    ("workloads", "pausing"): np.int8(0),
    ("workloads", "steps_per_s"): np.float64("nan"),
    ("nodes", "sharing"): np.int8(Sharing.WHOLE),
    ("nodes", "replicas"): np.int32(1),
    ("nodes", "sharing_offers"): np.int64(0),
    ("nodes", "scrubbed_s"): np.float64("nan"),
    ("queues", "guarantee_kept"): np.int8(0),
    ("services", "role"): np.int8(ServingRole.WHOLE),
    ("services", "part_of"): np.int32(-1),
    **{
        ("services", name): np.float64("nan")
        for each in ("ttft", "itl")
        for name in (f"{each}_objective_s", f"{each}_p99_s", f"recent_{each}_violation_ratio")
    },
}
"""Last columns that journals of earlier builds lack, and their values there."""

_UNSEEN = (("ranks", None), ("latencies", None))
"""Tables that journals of earlier builds lack: they are empty there."""

_NAMES = {name: column_names(table) for name, table in _TYPES.items()} | {"runtimes": _FORECAST_COLUMNS}
_SCOPES = _NAMES["nodes"].index("mig_scopes")
"""In journals of earlier builds `mig_fixed`: False stands for the scope `instance`, which policies had by default."""
_READERS: dict[str, Callable[[Any], tuple[Array, ...]]] = {name: reader_of(names) for name, names in _NAMES.items()}
_READ_WITH_HAZARD = reader_of(_WITH_HAZARD)


@dataclass(slots=True)
class _Seen:
    """One table as of the previous tick, on either side."""

    table: Any = None
    packed: Packed | None = None


@dataclass(slots=True)
class _State:
    """The state that a change is relative to."""

    tables: dict[str, _Seen] = field(default_factory=lambda: {name: _Seen() for name in _TABLES})
    small: dict[str, tuple[Any, bytes]] = field(default_factory=dict)
    telemetry: Past = field(default_factory=Past)
    forecasts: Forecasts = field(default_factory=Forecasts)  # but its run times, which are a table


class ObservationEncoder:
    """Encodes observations as bytes, each relative to the previous one.

    After each call `workload_rows` holds how the rows of the workload table moved: None when they did not move, or when
    that is unknown (`whole_workloads`).
    """

    def __init__(self) -> None:
        self._state = _State()
        self.workload_rows: Rows | None = None
        self.whole_workloads = True

    def restart(self) -> None:
        """Encode the next observation completely."""
        self._state = _State()

    def encode(self, observation: Observation) -> tuple[bytes, bytes | None]:
        """The observation without its telemetry, and the telemetry when it changed."""
        snapshot = observation.snapshot
        parts: dict[str, Any] = {}
        self.workload_rows, self.whole_workloads = None, False
        for name, _ in NAMED_TABLES:
            self._table(name, getattr(snapshot, name), parts)
        self._placements(snapshot, parts)
        self._forecasts(observation.forecasts, snapshot, parts)
        values = (
            snapshot.names,
            observation.signals,
            observation.commands,
            observation.outcomes,
            observation.gaps,
            observation.views,
        )
        for name, value in zip(_SMALL, values, strict=True):
            self._small(name, value, parts)
        telemetry = snapshot.telemetry
        past = self._state.telemetry
        signals = None if telemetry is past.table else pack_signals(telemetry, observation.now_s, past)
        head = [
            observation.tick,
            observation.now_s,
            snapshot.inventory_age_s,
            snapshot.work_age_s,
            observation.kill_switch,
            parts,
            observation.elapsed_s,
        ]
        return ENCODER.encode(head), signals

    def _table(self, name: str, table: Any, parts: dict[str, Any]) -> None:
        seen = self._state.tables[name]
        if table is seen.table:
            return
        packed = pack_columns(_READERS[name](table))
        rows: Rows | None = None
        part = None
        if seen.packed is not None:
            before, after = seen.packed.texts[0], packed.texts[0]
            moved = before is not after and not np.array_equal(before, after)
            rows = rows_by_key(before, after) if moved else None
            if rows is not None or not moved:
                part = change(seen.packed, packed, rows)
        if name == "workloads":
            self.workload_rows, self.whole_workloads = (None, True) if part is None else (rows, False)
        self._keep(name, table, packed, part, parts)

    def _keep(self, name: str, table: Any, packed: Packed, part: list[Any] | None, parts: dict[str, Any]) -> None:
        if part is None:
            parts[name] = whole(packed, _WITH_HAZARD if _has_hazard(name, packed) else _NAMES[name])
        elif part:
            parts[name] = part
        self._state.tables[name] = _Seen(table, packed)

    def _placements(self, snapshot: ClusterSnapshot, parts: dict[str, Any]) -> None:
        """Placements: a row is the same when it joins the same workload and GPU, wherever their rows moved."""
        seen, table = self._state.tables["placements"], snapshot.placements
        still = not self.whole_workloads and self.workload_rows is None
        if table is seen.table and still:
            return
        packed = pack_columns(_READERS["placements"](table))
        part = None
        if seen.packed is not None and not self.whole_workloads:
            before = follow(seen.packed, self.workload_rows)
            rows = rows_by_key(_placement_keys(before), _placement_keys(packed))
            part = None if rows is None else change(before, packed, rows)
            if part == [] and self.workload_rows is not None:
                part = [None, {}, {}]  # the same rows in another order of workloads: still a new table
        self._keep("placements", table, packed, part, parts)

    def _forecasts(self, forecasts: Forecasts, snapshot: ClusterSnapshot, parts: dict[str, Any]) -> None:
        """Run times are stored beside the workloads; the other forecasts are stored when they are new."""
        state = self._state
        runtimes, seen = forecasts.runtimes, state.tables["runtimes"]
        if runtimes is not seen.table or (runtimes is not None and seen.packed is None):
            if runtimes is None:
                parts["forecast"] = False
                state.tables["runtimes"] = _Seen()
            else:
                parts["forecast"] = [runtimes.model, runtimes.made_s, runtimes.levels]
                read = _READ_WITH_HAZARD if len(runtimes.hazard_index_per_s) else _READERS["runtimes"]
                packed = pack_columns(read(runtimes))
                rows = self._forecast_rows(seen.packed, packed, len(snapshot.workloads.id))
                part = None
                if seen.packed is not None and rows is not None:
                    part = change(seen.packed, packed, rows if isinstance(rows, Rows) else None)
                self._keep("runtimes", runtimes, packed, part, parts)
        for name in _FORECASTS:
            value = getattr(forecasts, name)
            if not _same(value, getattr(state.forecasts, name)):
                parts[name] = ENCODER.encode(value)
        state.forecasts = forecasts

    def _forecast_rows(self, before: Packed | None, after: Packed, workloads: int) -> Rows | str | None:
        if before is None or self.whole_workloads or after.rows != workloads:
            return None
        rows = self.workload_rows
        if rows is None:
            return _NO_ROWS if before.rows == after.rows else None
        return rows if before.rows == rows.before else None

    def _small(self, name: str, value: Any, parts: dict[str, Any]) -> None:
        before = self._state.small.get(name)
        if before is not None and before[0] is value:
            return
        encoded = ENCODER.encode(value)
        if before is None or encoded != before[1]:
            parts[name] = encoded
        self._state.small[name] = (value, encoded)


def _same(value: Any, before: Any) -> bool:
    """True for one object, and for tuples of the same objects."""
    if isinstance(value, tuple):
        return len(value) == len(before) and all(map(is_, value, before))
    return value is before


def _has_hazard(name: str, packed: Packed) -> bool:
    """True for a forecast of run times with the optional column."""
    return name == "runtimes" and len(packed.layout) == len(_WITH_HAZARD)


def _repeated(value: Any, rows: int) -> Array:
    return np.full(rows, value, object if isinstance(value, str) else None)


def _placement_keys(packed: Packed) -> Array:
    """One integer per placement: the workload, GPU and instance that it joins."""
    columns = unpack_columns(packed)
    workload, gpu, instance = (columns[at].astype(np.int64) for at in (0, 2, 3))
    return np.where(workload < 0, -1, (workload << 42) + (gpu << 21) + instance + 1)


class ObservationDecoder:
    """The inverse of `ObservationEncoder`."""

    def __init__(self) -> None:
        self._state = _State()
        self.workload_rows: Rows | None = None

    def decode(self, data: bytes, signals: bytes | None) -> Observation:
        """The observation that was encoded; requires the preceding ones since the last keyframe."""
        tick, now_s, inventory_age_s, work_age_s, kill_switch, parts, *elapsed = msgspec.msgpack.decode(data)
        state = self._state
        self.workload_rows = None
        for name, _ in NAMED_TABLES:
            self._table(name, parts.get(name))
        self._placements(parts.get("placements"))
        runtimes = self._runtimes(parts)
        new = {name: decoder.decode(parts[name]) for name, decoder in _FORECASTS.items() if name in parts}
        state.forecasts = replace(state.forecasts, runtimes=runtimes, **new)
        for name in _SMALL:
            if name in parts:
                state.small[name] = (_DECODERS[name].decode(parts[name]), b"")
        if signals is not None:
            unpack_signals(signals, now_s, state.telemetry)
        if state.telemetry.table is None:
            raise UnreadableError("telemetry refers to a missing tick")
        small = {name: state.small[name][0] for name in _SMALL}
        tables = {name: state.tables[name].table for name in _TYPES if (name, state.tables[name].table) not in _UNSEEN}
        snapshot = ClusterSnapshot(
            names=small.pop("names"),
            telemetry=state.telemetry.table,
            inventory_age_s=inventory_age_s,
            work_age_s=work_age_s,
            **tables,
        )
        return Observation(
            tick=tick,
            now_s=now_s,
            snapshot=snapshot,
            forecasts=state.forecasts,
            kill_switch=kill_switch,
            elapsed_s=elapsed[0] if elapsed else float("nan"),
            **small,
        )

    def _table(self, name: str, part: Sequence[Any] | None) -> None:
        if part is None:
            return
        packed = self._packed(name, part)
        if name == "workloads" and len(part) == 3 and part[0] is not None:
            self.workload_rows = unpack_rows(part[0])
        self._see(name, packed)

    def _see(self, name: str, packed: Packed) -> None:
        columns = list(unpack_columns(packed))
        if name == "nodes" and columns[_SCOPES].dtype == np.bool_:
            columns[_SCOPES] = (~columns[_SCOPES]).astype(np.int8)
        later = [_repeated(_LATER[name, each], packed.rows) for each in _NAMES[name][len(columns) :]]
        self._state.tables[name] = _Seen(_TYPES[name](*columns, *later), packed)

    def _packed(self, name: str, part: Sequence[Any], before: Packed | None = None) -> Packed:
        if len(part) == 4:
            packed, written = read_whole(part)
            names = tuple("mig_scopes" if (name, each) == ("nodes", "mig_fixed") else each for each in written)
            known = _WITH_HAZARD if _has_hazard(name, packed) else _NAMES[name]
            lacks = known[len(names) :]
            if names + lacks != known or not all((name, each) in _LATER for each in lacks):
                raise UnreadableError(f"{name} had the columns {', '.join(names)}: another version wrote this")
            return packed
        before = before or self._state.tables[name].packed
        if before is None:
            raise UnreadableError(f"{name} refers to a missing tick")
        return apply_change(before, part)

    def _placements(self, part: Sequence[Any] | None) -> None:
        if part is None:
            return
        seen = self._state.tables["placements"].packed
        before = None if seen is None or len(part) == 4 else follow(seen, self.workload_rows)
        self._see("placements", self._packed("placements", part, before))

    def _runtimes(self, parts: dict[str, Any]) -> RuntimeForecast | None:
        head = parts.get("forecast")
        if head is False:
            self._state.tables["runtimes"] = _Seen()
        elif head is not None:
            seen = self._state.tables["runtimes"].packed
            part = parts.get("runtimes")
            packed = seen if part is None else self._packed("runtimes", part)
            if packed is None:
                raise UnreadableError("a forecast refers to a missing tick")
            model, made_s, levels = head
            table = RuntimeForecast(model, made_s, tuple(levels), *unpack_columns(packed))
            self._state.tables["runtimes"] = _Seen(table, packed)
        table = self._state.tables["runtimes"].table
        return table if isinstance(table, RuntimeForecast) else None
