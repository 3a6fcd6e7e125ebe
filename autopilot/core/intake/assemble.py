"""Join the batches of all collectors into one snapshot: rows, ages and gaps.

Of two reports on the same part the later one wins. A part without a report is empty and infinitely old, and blocks all
decisions that depend on it. Missing values stay unknown.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import fields, replace

import numpy as np

from autopilot.core.intake.consistency import check_snapshot
from autopilot.core.intake.contain import contain
from autopilot.core.intake.gpu_faults import with_errors
from autopilot.core.model.latencies import ReplicaLatency
from autopilot.core.model.objectives import OBJECTIVES, unanswered, unmeasured
from autopilot.core.model.records import Batch, Gap, Inventory, ServiceSignals, Telemetry, Work
from autopilot.core.model.signal_table import SignalTable
from autopilot.core.model.snapshot import (
    ClusterSnapshot,
    GpuTable,
    InstanceTable,
    Names,
    NodeTable,
    PlacementTable,
    QueueTable,
    Recut,
    ServiceTable,
    Texts,
    WorkloadTable,
    empty,
    empty_signals,
)

MEASURED = (
    "p99_s",
    "violation_ratio",
    "rate_rps",
    "queue_depth",
    "tokens_per_s",
    "recent_rps",
    "recent_violation_ratio",
    "ttft_p99_s",
    "itl_p99_s",
    "recent_ttft_violation_ratio",
    "recent_itl_violation_ratio",
)
"""Columns of services with measurements of their servers."""

RECENT_S = 300.0
"""Samples within the shortest window of at least this length are recent; a source without them loses to one with."""

NO_INVENTORY = Inventory(Names(), empty(NodeTable), empty(GpuTable), empty(InstanceTable))
NO_LATENCIES: ReplicaLatency = empty(ReplicaLatency)
NO_WORK = Work((), empty(WorkloadTable), empty(PlacementTable), empty(ServiceTable), empty(QueueTable))


def assemble(batches: Sequence[Batch], now_s: float) -> tuple[ClusterSnapshot, tuple[Gap, ...]]:
    """One snapshot of all batches, and all gaps. `batches` hold no value of the future (clock.not_of_the_future).

    Raises `InvariantError` if tables are inconsistent.
    """
    inventory, inventory_s = NO_INVENTORY, -np.inf
    work, work_s, work_source = NO_WORK, -np.inf, ""
    telemetry: list[tuple[Telemetry, Batch]] = []
    measured: list[tuple[ServiceSignals, float]] = []
    gaps: list[Gap] = []
    for batch in batches:
        gaps.extend(batch.gaps)
        if batch.inventory is not None and batch.collected_s >= inventory_s:
            inventory, inventory_s = batch.inventory, batch.collected_s
        if batch.work is not None and batch.collected_s >= work_s:
            work, work_s, work_source = batch.work, batch.collected_s, batch.source
        if batch.telemetry is not None:
            telemetry.append((batch.telemetry, batch))
        if batch.services is not None:
            measured.append((batch.services, now_s - batch.collected_s))
    if inventory is NO_INVENTORY:  # placements have no nodes to refer to: the view is blind
        work = replace(work, placements=NO_WORK.placements)
    work, contained = contain(work, work_source, now_s)
    gaps.extend(contained)
    signals, unlike = _join_telemetry(telemetry, inventory, now_s)
    gaps.extend(unlike)
    services = _with_signals(work.services, measured)
    gaps.extend(_unmeasured(services, work_source))
    gpus, disbelieved = with_errors(inventory, batches, now_s)
    gaps.extend(disbelieved)
    names = replace(inventory.names, tenants=work.tenants)
    snapshot = ClusterSnapshot(
        names=names,
        nodes=inventory.nodes,
        gpus=gpus,
        instances=inventory.instances,
        workloads=work.workloads,
        placements=work.placements,
        services=services,
        queues=work.queues,
        telemetry=signals,
        inventory_age_s=now_s - inventory_s,
        work_age_s=now_s - work_s,
        members=work.members,
        advance=work.advance,
        ranks=work.ranks,
        latencies=_latencies(measured),
    )
    check_snapshot(snapshot)
    return snapshot, tuple(gaps)


def _with_signals(services: ServiceTable, found: Sequence[tuple[ServiceSignals, float]]) -> ServiceTable:
    """Services with the known measurements of their servers; a value is as old as its measurement."""
    if not found or not len(services.id):
        return services
    place = {str(name): row for row, name in enumerate(services.id.tolist())}
    columns = {name: getattr(services, name).copy() for name in MEASURED}
    age_s, wake_rps, wake_age_s = services.age_s.copy(), services.wake_rps.copy(), services.wake_age_s.copy()
    for signals, older_s in found:
        rows = np.array([place.get(str(name), -1) for name in signals.service.tolist()], np.int64)
        for name, column in columns.items():
            values = getattr(signals, name)
            known = (rows >= 0) & np.isfinite(values)
            column[rows[known]] = values[known]
        known = (rows >= 0) & np.isfinite(signals.rate_rps)
        age_s[rows[known]] = (signals.age_s + older_s)[known]
        seen = (rows >= 0) & np.isfinite(signals.gateway_rps)
        seen[seen] = ~np.isnan(wake_age_s[rows[seen]])  # its owner names the signal
        wake_rps[rows[seen]] = signals.gateway_rps[seen]
        wake_age_s[rows[seen]] = (signals.age_s + older_s)[seen]
    return replace(services, age_s=age_s, wake_rps=wake_rps, wake_age_s=wake_age_s, **columns)


def _latencies(found: Sequence[tuple[ServiceSignals, float]]) -> ReplicaLatency:
    """The latencies of replicas of all sources; of two for one replica the first counts."""
    tables = [(each.latencies, older_s) for each, older_s in found if len(each.latencies.id)]
    if not tables:
        return NO_LATENCIES
    columns = {
        each.name: np.concatenate([getattr(table, each.name) for table, _ in tables]) for each in fields(ReplicaLatency)
    }
    columns["age_s"] = np.concatenate([table.age_s + older_s for table, older_s in tables])
    first = np.sort(np.unique(columns["id"].astype(str), return_index=True)[1])
    return ReplicaLatency(**{name: column[first] for name, column in columns.items()})


def _unmeasured(services: ServiceTable, source: str) -> Iterator[Gap]:
    """Declared objectives of tokens without effect: of the other role alone, or without a measurement."""
    for service, other, role in unanswered(services):
        own = next(one for one in OBJECTIVES if one.not_of not in {None, role})
        reason = f"a pool of {role.name.lower()} does not answer for the {other.words}, and declares no other objective"
        yield Gap(source, service, other.objective, f"{reason}: nothing judges it; declare one for the {own.words}")
    for service, each, objective_s in unmeasured(services):
        reason = f"an objective of {objective_s:g} s for the {each.words} is declared, and no source has its p99"
        yield Gap(source, service, each.p99, f"{reason}, of enough requests ({each.metric}); it does not count as met")


def _join_telemetry(
    found: list[tuple[Telemetry, Batch]], inventory: Inventory, now_s: float
) -> tuple[SignalTable, list[Gap]]:
    """Signals in the row order of GPUs, then instances, from the best source of each entity (`_better_of`).

    The first source decides about signals and windows; a source with others is left out, with a gap.
    """
    if not found:
        return empty_signals(), []
    entities = np.concatenate([inventory.gpus.uuid, inventory.instances.id])
    sources = tuple(dict.fromkeys(batch.source for _, batch in found))
    tables = [_align(telemetry, entities, batch, sources, now_s) for telemetry, batch in found]
    best, gaps = tables[0], []
    for other, (_, batch) in zip(tables[1:], found[1:], strict=True):
        if other.signals == best.signals and other.windows_s == best.windows_s:
            best = _better_of(best, other)
            continue
        what = "windows" if other.windows_s != best.windows_s else "signals"
        reason = f"its {what} differ from those of {sources[0]}: its samples do not count; give both the same {what}"
        gaps.append(Gap(batch.source, "", "telemetry", reason))
    return _without_changing(best, inventory), gaps


def _without_changing(table: SignalTable, inventory: Inventory) -> SignalTable:
    """The signals, unknown for GPUs under a change of MIG geometry and for their instances."""
    changing = inventory.gpus.recut == Recut.CHANGING
    if not changing.any():
        return table
    gone = np.concatenate([changing, changing[inventory.instances.gpu]])
    return replace(
        table,
        mean=np.where(gone, np.float32(np.nan), table.mean),
        maximum=np.where(gone, np.float32(np.nan), table.maximum),
        samples=np.where(gone, 0, table.samples).astype(table.samples.dtype),
        age_s=np.where(gone, np.float32(np.inf), table.age_s),
        quality=np.where(gone, 0, table.quality).astype(table.quality.dtype),
    )


def _align(telemetry: Telemetry, entities: Texts, batch: Batch, sources: tuple[str, ...], now_s: float) -> SignalTable:
    """The columns of one source in the row order of `entities`, with the age of the batch added to every age."""
    older_s, number = max(now_s - batch.collected_s, 0.0), sources.index(batch.source)
    if len(telemetry.entity_ids) == len(entities) and bool((telemetry.entity_ids == entities).all()):
        age_s = telemetry.age_s if older_s == 0 else (telemetry.age_s + older_s).astype(np.float32)
        return SignalTable(
            telemetry.signals,
            telemetry.windows_s,
            batch.collected_s,
            telemetry.mean,
            telemetry.maximum,
            telemetry.samples,
            age_s,
            telemetry.quality,
            sources,
            np.full(len(entities), number, np.int8),
        )
    place = {str(name): row for row, name in enumerate(telemetry.entity_ids.tolist())}
    rows = np.array([place.get(str(name), -1) for name in entities.tolist()], np.int64)
    known = rows >= 0

    def pick(column: np.ndarray, missing: float) -> np.ndarray:
        out = np.full((*column.shape[:-1], len(entities)), missing, column.dtype)
        out[..., known] = column[..., rows[known]]
        return out

    return SignalTable(
        telemetry.signals,
        telemetry.windows_s,
        batch.collected_s,
        pick(telemetry.mean, np.nan),
        pick(telemetry.maximum, np.nan),
        pick(telemetry.samples, 0),
        (pick(telemetry.age_s, np.inf) + older_s).astype(np.float32),
        pick(telemetry.quality, 0),
        sources,
        np.where(known, number, -1).astype(np.int8),
    )


def _better_of(one: SignalTable, two: SignalTable) -> SignalTable:
    """For each entity, the table with recent samples, then the better counter, then the fresher sample."""
    recent = next((row for row, width_s in enumerate(one.windows_s) if width_s >= RECENT_S), len(one.windows_s) - 1)
    alive, other = one.samples[recent] > 0, two.samples[recent] > 0
    better = (two.quality > one.quality) | ((two.quality == one.quality) & (two.age_s < one.age_s))
    second = (other & ~alive) | ((other == alive) & better)

    def choose(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return np.where(second, b, a).astype(a.dtype)

    return SignalTable(
        one.signals,
        one.windows_s,
        min(one.collected_s, two.collected_s),
        choose(one.mean, two.mean),
        choose(one.maximum, two.maximum),
        choose(one.samples, two.samples),
        choose(one.age_s, two.age_s),
        choose(one.quality, two.quality),
        one.sources,
        choose(one.source, two.source),
    )
