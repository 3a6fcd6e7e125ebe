"""The tables of the page as HTML; every text from the data passes through `text`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from autopilot.core.model.units import format_duration, format_gpu_s, format_ratio
from autopilot.core.placement.fragmentation.measure import CAUSES
from autopilot.report.data import PolicyRun, ReportData
from autopilot.report.markup import box, pairs, table, text
from autopilot.report.words import (
    TO_LAST_ARRIVAL,
    count,
    ordered,
    pick,
    pick_list,
    useful_share,
)

MOST_TENANTS = 60
RECORDED = "as recorded"
"""Column of the starts in the job file."""


# --- key figures ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Figure:
    """One row of the key figures. `better`: +1 more is better, -1 less is better, 0 neither."""

    name: str
    hint: str
    value: Callable[[Mapping[str, object]], float | None]
    show: Callable[[float | None], str]
    better: int


def _at(*path: str) -> Callable[[Mapping[str, object]], float | None]:
    return lambda result: pick(result, *path)


def _decimal(value: float | None) -> str:
    return "-" if value is None else f"{value:,.2f}"


FIGURES = (
    Figure("JCT", "mean, submit to end", _at("jobs", "jct_s_mean"), format_duration, -1),
    Figure("Total wait", "mean, JCT minus run time", _at("jobs", "total_wait_s_mean"), format_duration, -1),
    Figure("Longest wait", "of one job, total", _at("jobs", "longest_wait_s"), format_duration, -1),
    Figure("Queue wait p50", "half start within", _at("jobs", "queue_wait_s_p50"), format_duration, -1),
    Figure("Queue wait p99", "99 % start within", _at("jobs", "queue_wait_s_p99"), format_duration, -1),
    Figure("SLO violations", "requests over objective", _at("slo", "violation_ratio"), format_ratio, -1),
    Figure("Slowdown", "worst tenant", _at("jobs", "slowdown_worst"), _decimal, -1),
    Figure("Preemptions", "running work paused", _at("disruptions", "preemptions"), count, -1),
    Figure("Moves", "stopped to run elsewhere", _at("disruptions", "migrations"), count, -1),
    Figure("Evictions", "of one job, mean", _at("disruptions", "evictions_per_job_mean"), _decimal, -1),
    Figure("Most evictions", "of one job", _at("disruptions", "evictions_per_job_max"), count, -1),
    Figure("Guarantee shortfall", "while work waited inside", _at("guarantees", "owed_gpu_s"), format_gpu_s, -1),
    Figure("Longest guarantee shortfall", "of one queue", _at("guarantees", "longest_owed_s"), format_duration, -1),
    Figure("Work lost", "done twice", _at("disruptions", "lost_gpu_s"), format_gpu_s, -1),
    Figure("Submitted", "jobs", _at("jobs", "submitted"), count, 0),
    Figure("Finished", "jobs", _at("jobs", "finished"), count, 0),
    Figure(
        "Real utilization",
        "SM active, of capacity, until the last arrival",
        _at(*TO_LAST_ARRIVAL, "real_utilization_ratio"),
        format_ratio,
        1,
    ),
    Figure(
        "Useful utilization",
        "lone SM activity x relative progress, of capacity, until the last arrival",
        _at(*TO_LAST_ARRIVAL, "useful_utilization_ratio"),
        format_ratio,
        1,
    ),
    Figure(
        "Real over makespan", "SM active, of capacity", _at("utilization", "real_utilization_ratio"), format_ratio, 1
    ),
    Figure(
        "Allocated",
        "allocation, of capacity, until the last arrival",
        _at(*TO_LAST_ARRIVAL, "allocation_ratio"),
        format_ratio,
        1,
    ),
    Figure(
        "Allocated over makespan", "allocation, of capacity", _at("utilization", "allocation_ratio"), format_ratio, 1
    ),
    Figure("Hardware", "SM active, of the allocated", _at("utilization", "hardware_ratio"), format_ratio, 1),
    Figure("Goodput", "useful, of the allocated", _at("utilization", "goodput_ratio"), format_ratio, 1),
    Figure("Useful share", "of the utilization bound", useful_share, format_ratio, 1),
    Figure("Broken invariants", "found by the checkers", _at("invariants", "violated"), count, 0),
)


def key_figures(data: ReportData) -> str:
    """One row per figure, one column per policy; the best of each row is marked, a row of dashes is omitted."""
    runs = ordered(data)
    beside = [(run.name, run.result) for run in runs] + ([(RECORDED, data.recorded)] if data.recorded else [])
    head = "<tr><th scope=col>Figure</th>" + "".join(f"<th scope=col>{text(name)}</th>" for name, _ in beside)
    rows = []
    for figure in FIGURES:
        values = [figure.value(result) for _, result in beside]
        if all(value is None for value in values):
            continue
        best = _best(figure, runs)
        cells = "".join(_cell(figure.show(value), best) for value in values)
        rows.append(f"<tr><th scope=row>{text(figure.name)}<small>{text(figure.hint)}</small></th>{cells}</tr>")
    return box("Figures by policy", table(f"{head}</tr>", rows, "figures")) if rows else ""


def _best(figure: Figure, runs: Sequence[PolicyRun]) -> str:
    """The best displayed value of a figure; empty if none is better than the rest."""
    values = [v for run in runs if (v := figure.value(run.result)) is not None]
    shown = {figure.show(v) for v in values}
    if not figure.better or len(shown) < 2:
        return ""
    return figure.show(max(values) if figure.better > 0 else min(values))


def _cell(shown: str, best: str) -> str:
    return f'<td class="best">{text(shown)}</td>' if best and shown == best else f"<td>{text(shown)}</td>"


# --- single jobs ------------------------------------------------------------------------------------

JOB_COLUMNS: tuple[tuple[str, str, Callable[[float | None], str]], ...] = (
    ("worse_by_s", "Later by", format_duration),
    ("reference_total_wait_s", "Wait there", format_duration),
    ("gpus", "GPUs", count),
    ("queue_wait_s", "Queue wait", format_duration),
    ("total_wait_s", "Total wait", format_duration),
    ("evictions", "Evictions", count),
    ("moves", "Of them moves", count),
    ("lost_gpu_s", "Work lost", format_gpu_s),
)


def fared(data: ReportData) -> str:
    """For each policy compared with the baseline its later finished jobs, and of the subject also the longest waiting
    ones; empty without jobs.
    """
    runs = ordered(data)
    found = [(run.name, _jobs(f"Jobs of {run.name}", _single(run, longest=run is runs[0]))) for run in runs]
    return "".join(f"<h3>{text(name)}</h3>{table}" for name, table in found if table)


def _single(run: PolicyRun, *, longest: bool) -> list[Mapping[str, object]]:
    """Each job once: the latest beside the baseline first, then the longest waiting ones."""
    rows = [*pick_list(run.result, "fared_worse", "jobs")]
    rows += pick_list(run.result, "jobs", "longest_waits") if longest else ()
    found: dict[object, Mapping[str, object]] = {}
    for row in rows:
        if isinstance(row, Mapping):
            found.setdefault(row.get("job_id"), row)
    return list(found.values())


def _jobs(label: str, rows: Sequence[Mapping[str, object]]) -> str:
    """A table of jobs of a result, without columns of zeros; empty without jobs."""
    columns = [each for each in JOB_COLUMNS if any(pick(row, each[0]) for row in rows)]
    cells = [
        (str(row.get("job_id")), str(row.get("tenant")), *(show(pick(row, key)) for key, _, show in columns))
        for row in rows
    ]
    return pairs(label, ("Job", "Tenant", *(name for _, name, _ in columns)), cells) if rows else ""


# --- reservations, tenants --------------------------------------------------------------------------


def reservations(data: ReportData) -> str:
    """Reservations made, kept, late and released by policy; empty if no policy made any."""
    rows = []
    for run in ordered(data):
        made, kept, late, released = (
            pick(run.result, "reservations", key) for key in ("made", "kept", "late", "released")
        )
        if not made:
            continue
        share = kept / made if kept is not None and made else None
        cells = "".join(f"<td>{c}</td>" for c in map(count, (made, kept, late, released)))
        rows.append(f"<tr><th scope=row>{text(run.name)}</th>{cells}<td>{format_ratio(share)}</td></tr>")
    if not rows:
        return ""
    names = ("Policy", "Made", "Kept", "Late", "Released", "Kept share")
    head = "".join(f"<th scope=col>{name}</th>" for name in names)
    return box("Reservations by policy", table(f"<tr>{head}</tr>", rows))


TENANT_FIGURES: tuple[tuple[str, str, Callable[[float | None], str]], ...] = (
    ("finished", "Finished", count),
    ("queue_wait_s_mean", "Queue wait", format_duration),
    ("total_wait_s_mean", "Total wait", format_duration),
    ("slowdown", "Slowdown", _decimal),
)


def tenants(data: ReportData) -> str:
    """Tenants by jobs submitted, with the same figures for each policy; empty without tenants."""
    runs = ordered(data)
    blocks = [_tenants_of(run) for run in runs]
    submitted = {n: pick(b[n], "submitted") or 0.0 for b in reversed(blocks) for n in b}
    names = sorted((name for name in submitted if submitted[name]), key=lambda name: (-submitted[name], name))
    if not names:
        return ""
    figures = [
        figure
        for figure in TENANT_FIGURES
        if any(pick(block.get(name, {}), figure[0]) is not None for block in blocks for name in names)
    ]
    head = "<tr><th scope=col rowspan=2>Tenant</th><th scope=col rowspan=2>Jobs</th>" + "".join(
        f'<th scope=colgroup class="group" colspan={len(figures)}>{text(run.name)}</th>' for run in runs
    )
    sub = "".join(f"<th scope=col>{name}</th>" for name in [f[1] for f in figures] * len(runs))
    rows = []
    for name in names[:MOST_TENANTS]:
        cells = [
            f"<td>{text(show(pick(block.get(name, {}), key)))}</td>" for block in blocks for key, _, show in figures
        ]
        rows.append(f"<tr><th scope=row>{text(name)}</th><td>{count(submitted[name])}</td>{''.join(cells)}</tr>")
    more = f"<p>The {MOST_TENANTS} with most jobs, of {len(names):,}.</p>" if len(names) > MOST_TENANTS else ""
    return more + box("Tenants by policy", table(f"{head}</tr><tr>{sub}</tr>", rows, "tenants"))


CAPACITY_CAUSES: tuple[tuple[str, str, str | None], ...] = (
    ("active_gpu_s", "SM active", "bound_active_gpu_s"),
    ("low_activity_gpu_s", "running, SMs not active", "bound_low_activity_gpu_s"),
    ("low_shares_gpu_s", "— under-driven, could be shared under the rules", None),
    ("low_memory_gpu_s", "— under-driven, not under the rules: memory", None),
    ("low_trust_gpu_s", "— under-driven, not under the rules: trust", None),
    ("low_width_gpu_s", "— under-driven, not under the rules: width", None),
    ("low_class_gpu_s", "— under-driven, not under the rules: class", None),
    ("start_up_gpu_s", "starting up", ""),
    ("away_guaranteed_gpu_s", "owner away, within the guarantee", ""),
    ("away_borrowed_gpu_s", "owner away, borrowed", ""),
    ("free_wanted_gpu_s", "free while work waited", ""),
    ("free_gpu_s", "free without demand", "bound_free_gpu_s"),
    ("useful_gpu_s", "useful of the SM-active", None),
    ("bound_shared_gpu_s", "SM active within reach with shared GPUs", None),
    ("packed_gpu_s", "— with the mix of all work, packed under the rules", None),
    ("unpacked_gpu_s", "— with the mix of all work, each alone", None),
)
"""Key in `real_use` of a result, words, and the key of the same part under the bound ("": the bound has none of it;
None: not asked). Rows that begin with a dash are parts of the row above them.
"""


def capacity_use(data: ReportData) -> str:
    """Use of the capacity until the last arrival, by cause, with the bound beside it; empty if unknown."""
    runs = [(run, found) for run in ordered(data) if isinstance(found := run.result.get("real_use"), Mapping)]
    if not runs:
        return ""
    head = "<tr><th scope=col>Until the last arrival</th>" + "".join(
        f"<th scope=col>{text(run.name)}</th><th scope=col>its bound</th>" for run, _ in runs
    )
    rows = []
    for key, words, bound_key in CAPACITY_CAUSES:
        if not any(pick(found, key) for _, found in runs):
            continue
        cells = ""
        for _, found in runs:
            whole = pick(found, "capacity_gpu_s") or 0.0
            bound = pick(found, bound_key) if bound_key else None if bound_key is None else 0.0
            shares = [value / whole if whole and value is not None else None for value in (pick(found, key), bound)]
            cells += "".join(f"<td>{text(format_ratio(share))}</td>" for share in shares)
        rows.append(f"<tr><th scope=row>{text(words)}</th>{cells}</tr>")
    return box("Capacity by cause", table(f"{head}</tr>", rows, "tenants"))


USE_LEVELS = (
    ("tenant", "Tenant"),
    ("queue", "Queue"),
    ("pool", "Pool"),
    ("service", "Service"),
    ("workload", "Workload"),
)
USE_FIGURES: tuple[tuple[str, str, Callable[[float | None], str]], ...] = (
    ("held_gpu_s", "Held", format_gpu_s),
    ("allocation_ratio", "Allocation", format_ratio),
    ("hardware_ratio", "Hardware", format_ratio),
    ("real_utilization_ratio", "Real", format_ratio),
    ("gap_gpu_s", "Gap", format_gpu_s),
)


def use(data: ReportData) -> str:
    """Use of the held GPUs by each group of each level; tenants only if they are not the queues. Empty if not
    measured.
    """
    runs = ordered(data)
    queues = [_use_block(run, "queue") for run in runs]
    levels = [
        (level, name)
        for level, name in USE_LEVELS
        if level != "tenant" or any(_use_block(run, level) != found for run, found in zip(runs, queues, strict=True))
    ]
    return "".join(_use_of(level, name, runs) for level, name in levels)


def fragmentation(data: ReportData) -> str:
    """The mean fragmentation index of each pool and its parts by cause; empty if not measured."""
    rows = []
    for run in ordered(data):
        for pool, found in _pools_of(run).items():
            causes = found.get("index_by_cause")
            parts = [pick(causes, cause) if isinstance(causes, Mapping) else None for cause in CAUSES]
            values = [pick(found, "index_ratio"), pick(found, "index_ratio_max"), *parts]
            cells = "".join(f"<td>{'-' if value is None else f'{value:.3f}'}</td>" for value in values)
            free = pick(found, "free_gpus")
            shown = "-" if free is None else f"{free:,.1f}"
            rows.append(f"<tr><th scope=row>{text(run.name)}</th><td>{text(pool)}</td><td>{shown}</td>{cells}</tr>")
    if not rows:
        return ""
    names = ("policy", "pool", "free GPUs", "index", "highest", *(cause.replace("_", " ") for cause in CAUSES))
    head = "<tr>" + "".join(f"<th scope=col>{text(name)}</th>" for name in names) + "</tr>"
    return box("Fragmentation index by pool and cause", table(head, rows, "tenants"))


def _pools_of(run: PolicyRun) -> dict[str, Mapping[str, object]]:
    block = run.result.get("fragmentation")
    pools = block.get("pools") if isinstance(block, Mapping) else None
    if not isinstance(pools, Mapping):
        return {}
    return {str(name): found for name, found in pools.items() if isinstance(found, Mapping)}


def _use_of(level: str, title: str, runs: Sequence[PolicyRun]) -> str:
    """One level: a row for each group, the largest gap of the first policy first."""
    found = [(run, block) for run in runs if (block := _use_block(run, level))]
    gaps: dict[str, float] = {}
    for _, block in found:
        for name, row in block.items():
            gaps.setdefault(name, pick(row, "gap_gpu_s") or 0.0)
    names = sorted(gaps, key=lambda name: (-gaps[name], name))
    if not names:
        return ""
    head = f"<tr><th scope=col rowspan=2>{title}</th>" + "".join(
        f'<th scope=colgroup class="group" colspan={len(USE_FIGURES)}>{text(run.name)}</th>' for run, _ in found
    )
    sub = "".join(f"<th scope=col>{name}</th>" for name in [each[1] for each in USE_FIGURES] * len(found))
    rows = []
    for name in names[:MOST_TENANTS]:
        cells = [
            f"<td>{text(show(pick(block.get(name, {}), key)))}</td>"
            for _, block in found
            for key, _, show in USE_FIGURES
        ]
        rows.append(f"<tr><th scope=row>{text(name)}</th>{''.join(cells)}</tr>")
    more = f"<p>The {MOST_TENANTS} with the largest gap, of {len(names):,}.</p>" if len(names) > MOST_TENANTS else ""
    return more + box(f"Use by {level}", table(f"{head}</tr><tr>{sub}</tr>", rows, "tenants"))


def _use_block(run: PolicyRun, level: str) -> dict[str, Mapping[str, object]]:
    levels = run.result.get("use")
    block = levels.get(level) if isinstance(levels, Mapping) else None
    if not isinstance(block, Mapping):
        return {}
    return {str(name): row for name, row in block.items() if isinstance(row, Mapping)}


def _tenants_of(run: PolicyRun) -> dict[str, Mapping[str, object]]:
    block = run.result.get("tenants")
    if not isinstance(block, Mapping):
        return {}
    return {str(name): value for name, value in block.items() if isinstance(value, Mapping)}
