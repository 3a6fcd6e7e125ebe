"""The figures of a comparison: the median over the seeds with the range, and the differences, seed by seed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median

from autopilot.app.compare.cases import UNCHANGED, Case
from autopilot.app.compare.running import Record
from autopilot.core.model.units import counted, format_duration, format_gpu_s, format_ratio
from autopilot.metering.prices import Tariff
from autopilot.report.words import TO_LAST_ARRIVAL, count, pick

MONEY = "money"
RECORDED = "as recorded"
"""Column of the starts in the job file."""


@dataclass(frozen=True, slots=True)
class Figure:
    """One row: heading, place in a result, kind of number, and the better direction: more (1) or less (-1)."""

    title: str
    path: tuple[str, ...]
    kind: str
    better: int = 0


FIGURES: tuple[Figure, ...] = (
    Figure("real utilization until the last arrival", (*TO_LAST_ARRIVAL, "real_utilization_ratio"), "ratio", 1),
    Figure("useful utilization until the last arrival", (*TO_LAST_ARRIVAL, "useful_utilization_ratio"), "ratio", 1),
    Figure("total wait, mean", ("jobs", "total_wait_s_mean"), "time", -1),
    Figure("total wait, p50", ("jobs", "total_wait_s_p50"), "time", -1),
    Figure("total wait, p90", ("jobs", "total_wait_s_p90"), "time", -1),
    Figure("total wait, longest", ("jobs", "longest_wait_s"), "time", -1),
    Figure("queue wait, mean", ("jobs", "queue_wait_s_mean"), "time", -1),
    Figure("queue wait, p50", ("jobs", "queue_wait_s_p50"), "time", -1),
    Figure("queue wait, p90", ("jobs", "queue_wait_s_p90"), "time", -1),
    Figure("queue wait, p99", ("jobs", "queue_wait_s_p99"), "time", -1),
    Figure("JCT, mean", ("jobs", "jct_s_mean"), "time", -1),
    Figure("jobs finished", ("jobs", "finished"), "count", 1),
    Figure("allocated until the last arrival", (*TO_LAST_ARRIVAL, "allocation_ratio"), "ratio", 1),
    Figure("goodput (useful / allocated)", ("utilization", "goodput_ratio"), "ratio", 1),
    Figure("requests over their objective", ("slo", "violation_ratio"), "ratio", -1),
    Figure("preemptions", ("disruptions", "preemptions"), "count", -1),
    Figure("moves", ("disruptions", "migrations"), "count", -1),
    Figure("work lost", ("disruptions", "lost_gpu_s"), "gpu_time", -1),
    Figure("guarantee shortfall", ("guarantees", "owed_gpu_s"), "gpu_time", -1),
    Figure("makespan", ("makespan_s",), "time", -1),
    Figure("invariants violated", ("invariants", "violated"), "count", -1),
    Figure("cost of the cluster over the makespan", (MONEY, "cluster"), MONEY, -1),
    Figure("of it idle", (MONEY, "idle"), MONEY, -1),
    Figure("of it allocated without SM activity", (MONEY, "gap"), MONEY, -1),
    Figure("cost of a useful GPU-hour", (MONEY, "useful_hour"), MONEY, -1),
)
COMPARED = tuple(
    each
    for each in FIGURES
    if each.path in {(*TO_LAST_ARRIVAL, "real_utilization_ratio"), ("jobs", "total_wait_s_mean")}
    or each.path in {("slo", "violation_ratio"), (MONEY, "useful_hour")}
)
"""Figures compared in words."""
MOST_TENANTS = 10
"""Tenants with rows of their own: those with the most jobs. The JSON has all."""


@dataclass(frozen=True, slots=True)
class Spread:
    """A figure over the seeds: its median and its range; `by_seed`, None if it does not apply."""

    by_seed: tuple[float | None, ...]

    @property
    def known(self) -> list[float]:
        """The known values."""
        return [value for value in self.by_seed if value is not None]

    @property
    def middle(self) -> float | None:
        """The median; None without values."""
        return median(self.known) if self.known else None


@dataclass(frozen=True, slots=True)
class Group:
    """The policies on one cluster with one change; `rows` by figure, one spread for each policy."""

    cluster: str
    change: str
    policies: tuple[str, ...]
    rows: tuple[tuple[Figure, tuple[Spread, ...]], ...]

    @property
    def title(self) -> str:
        """`7x8`, or `7x8 with nodes=+4`."""
        return self.cluster if self.change == UNCHANGED else f"{self.cluster} with {self.change}"

    def spread(self, figure: Figure, policy: str) -> Spread | None:
        """One cell."""
        row = next((spreads for each, spreads in self.rows if each is figure), None)
        return row[self.policies.index(policy)] if row is not None and policy in self.policies else None


@dataclass(frozen=True, slots=True)
class Finding:
    """One difference in words; `better`: for the first name in it, None for neither."""

    words: str
    better: bool | None


def groups_of(cases: Sequence[Case], records: Sequence[Record], prices: Tariff | None) -> tuple[Group, ...]:
    """The groups in the order of the cases. A row absent from all runs is left out."""
    found: dict[tuple[str, str], dict[str, list[Mapping[str, object]]]] = {}
    for case, record in zip(cases, records, strict=True):
        result = {**record["result"], MONEY: money_of(record, prices) if prices is not None else {}}
        found.setdefault((case.cluster, case.change), {}).setdefault(case.policy, []).append(result)
    return tuple(
        Group(
            cluster,
            change,
            tuple(by_policy),
            tuple(row for row in _rows(by_policy) if any(spread.known for spread in row[1])),
        )
        for (cluster, change), by_policy in found.items()
    )


def with_recorded(
    groups: Sequence[Group], recorded: Mapping[tuple[str, str], Mapping[str, object]]
) -> tuple[Group, ...]:
    """The groups, those of `recorded` (by cluster and change) with the figures of the job file's own starts as the last
    column.
    """

    def beside(group: Group) -> Group:
        result = recorded.get((group.cluster, group.change))
        if result is None or not group.rows:
            return group
        seeds = len(group.rows[0][1][0].by_seed)
        rows = tuple((figure, (*row, Spread((pick(result, *figure.path),) * seeds))) for figure, row in group.rows)
        return replace(group, policies=(*group.policies, RECORDED), rows=rows)

    return tuple(beside(group) for group in groups)


def _rows(by_policy: Mapping[str, Sequence[Mapping[str, object]]]) -> Iterator[tuple[Figure, tuple[Spread, ...]]]:
    for figure in (*FIGURES, *_of_tenants(by_policy)):
        yield (
            figure,
            tuple(Spread(tuple(pick(result, *figure.path) for result in runs)) for runs in by_policy.values()),
        )


def _of_tenants(by_policy: Mapping[str, Sequence[Mapping[str, object]]]) -> Iterator[Figure]:
    """The waits of each tenant, if there are several."""
    jobs: Counter[str] = Counter()
    for runs in by_policy.values():
        for result in runs:
            tenants = result.get("tenants")
            if isinstance(tenants, Mapping):
                jobs.update({name: each["submitted"] for name, each in tenants.items()})
    for name, _ in jobs.most_common(MOST_TENANTS) if len(jobs) > 1 else ():
        for part in ("mean", "p90"):
            yield Figure(f"total wait of {name}, {part}", ("tenants", name, f"total_wait_s_{part}"), "time", -1)


def money_of(record: Record, prices: Tariff) -> dict[str, float | None]:
    """Cost of a run: every GPU of the cluster over the makespan, at list price, with its idle and inactive parts.

    Idle and inactive time are priced at the mean of the cluster's GPUs. Raises `InputError` for a model without price.
    """
    result = record["result"]
    makespan_s = pick(result, "makespan_s")
    hourly = sum(pool["gpus"] * prices.gpu_hour(pool["name"], pool["gpu_model"]) for pool in record["pools"])
    each = hourly / max(sum(pool["gpus"] for pool in record["pools"]), 1)
    allocated_s, idle_s, useful_s = (pick(result, "gpu_s", name) for name in ("allocated", "idle", "useful"))
    hardware = pick(result, "utilization", "hardware_ratio")
    cost = None if makespan_s is None else hourly * makespan_s / 3600
    return {
        "cluster": cost,
        "idle": None if idle_s is None else idle_s / 3600 * each,
        "gap": None if allocated_s is None or hardware is None else allocated_s * (1 - hardware) / 3600 * each,
        "useful_hour": cost / (useful_s / 3600) if useful_s and cost is not None else None,
    }


def heading(figure: Figure, currency: str) -> str:
    """The heading of a row; that of money names the currency."""
    return f"{figure.title}, {currency}" if figure.kind == MONEY else figure.title


def number_text(kind: str, value: float | None) -> str:
    """One number of a figure."""
    if kind == MONEY:
        return "-" if value is None else f"{value:,.2f}"
    show: Mapping[str, Callable[[float | None], str]] = {
        "ratio": format_ratio,
        "time": format_duration,
        "gpu_time": format_gpu_s,
    }
    return show.get(kind, count)(value)


def spread_text(figure: Figure, spread: Spread) -> str:
    """`31 min (28 min to 35 min)`; without the range if all seeds print the same."""
    middle = number_text(figure.kind, spread.middle)
    if not spread.known:
        return middle
    low, high = (number_text(figure.kind, value) for value in (min(spread.known), max(spread.known)))
    return middle if low == high == middle else f"{middle} ({low} to {high})"


def findings(groups: Sequence[Group], currency: str = "") -> tuple[Finding, ...]:
    """Differences: each policy from the first one on the same cluster, then each change from none."""
    found: list[Finding] = []
    for group in groups:
        for policy in (name for name in group.policies[1:] if name != RECORDED):
            words = f"{group.title}: {policy} instead of {group.policies[0]}"
            found += _differences(words, (group, policy), (group, group.policies[0]), currency)
    for group in groups:
        plain = next((each for each in groups if each.cluster == group.cluster and each.change == UNCHANGED), None)
        for policy in group.policies if plain is not None and plain is not group else ():
            words = f"{policy}: {group.title} instead of the unchanged cluster"
            found += _differences(words, (group, policy), (plain or group, policy), currency)
    return tuple(found)


def _differences(words: str, ours: tuple[Group, str], theirs: tuple[Group, str], currency: str) -> list[Finding]:
    """One sentence for each compared figure known to both."""
    found = []
    for figure in COMPARED:
        one, two = (group.spread(figure, policy) for group, policy in (ours, theirs))
        if one is None or two is None or one.middle is None or two.middle is None:
            continue
        pairs = [(a, b) for a, b in zip(one.by_seed, two.by_seed, strict=True) if a is not None and b is not None]
        differing = [(a, b) for a, b in pairs if number_text(figure.kind, a) != number_text(figure.kind, b)]
        better = sum((a - b) * figure.better > 0 for a, b in differing)
        worse = sum((a - b) * figure.better < 0 for a, b in differing)
        if not better and not worse:
            continue
        ours_text, theirs_text = (number_text(figure.kind, each.middle) for each in (one, two))
        values = f"{ours_text} instead of {theirs_text}" if ours_text != theirs_text else f"{ours_text}, as a median"
        verdict = f"better with {better}, worse with {worse} of {counted(len(pairs), 'seed')}"
        side = None if better == worse else better > worse
        found.append(Finding(f"{words}: {heading(figure, currency)} {values} ({verdict})", side))
    return found
