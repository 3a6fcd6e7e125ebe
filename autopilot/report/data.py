"""Data of a report: frozen records, and the two functions for resampling long series for plots."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from autopilot.core.model.errors import invariant

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

SERIES_POINTS = 600
HEAT_NODES = 120
HEAT_TIMES = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """The cluster over time, by bins of equal width: `t_s[i]` is the start of bin i. NaN is unknown."""

    t_s: Floats
    allocation_ratio: Floats
    """allocated / capacity"""
    hardware_ratio: Floats
    """SM_ACTIVE-weighted / allocated"""
    pending_gpus: Floats
    """GPUs requested by pending work"""
    stranded_gpus: Floats
    """free GPUs out of reach for pending work"""

    def __post_init__(self) -> None:
        """Check that all columns have one length."""
        columns = (self.allocation_ratio, self.hardware_ratio, self.pending_gpus, self.stranded_gpus)
        invariant(all(c.shape == self.t_s.shape for c in columns), "Series: columns of unequal length")


@dataclass(frozen=True, slots=True, kw_only=True)
class Heat:
    """The allocated share of each node (or group of neighbouring nodes) in each interval."""

    t_edges_s: Floats
    """[times + 1], ascending"""
    node_ids: tuple[str, ...]
    """[nodes]"""
    busy_ratio: Floats
    """[nodes, times]; NaN if the node was absent"""

    def __post_init__(self) -> None:
        """Check that labels and values have matching shapes."""
        shape = (len(self.node_ids), max(len(self.t_edges_s) - 1, 0))
        invariant(self.busy_ratio.shape == shape, f"Heat: busy_ratio is {self.busy_ratio.shape}, labels {shape}")


NO_SERIES = Series(
    t_s=np.zeros(0),
    allocation_ratio=np.zeros(0),
    hardware_ratio=np.zeros(0),
    pending_gpus=np.zeros(0),
    stranded_gpus=np.zeros(0),
)
NO_HEAT = Heat(t_edges_s=np.zeros(1), node_ids=(), busy_ratio=np.zeros((0, 0)))
"""For a run without plots."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceSeries:
    """One service over time; `objective_s` None: it has no objective. NaN is unknown."""

    name: str
    t_s: Floats
    p99_s: Floats
    objective_s: float | None
    rate_rps: Floats
    replicas: Floats
    late: Floats | None = None
    """late requests (over the objective) completed in each step; None: not counted"""
    foreseen_rps: Floats | None = None
    """the upper bound forecast at that time for the following steps; None: no forecast of its demand"""
    foreseen: str = ""
    """its probability and lead time, as text"""

    def __post_init__(self) -> None:
        """Check that all columns have one length."""
        columns = [self.p99_s, self.rate_rps, self.replicas]
        columns += [column for column in (self.late, self.foreseen_rps) if column is not None]
        invariant(all(c.shape == self.t_s.shape for c in columns), f"{self.name}: columns of unequal length")


@dataclass(frozen=True, slots=True, kw_only=True)
class DecisionRow:
    """One proposal with its verdict and reason, as text."""

    at: str
    """time as text"""
    id: str
    action: str
    workload: str
    tenant: str
    gpus: int
    answer: str
    """accepted | recommended | needs_approval | refused"""
    why: str
    benefit_gpu_s: float
    lost_gpu_s: float = 0.0
    """expected loss of the victims"""
    really_lost_gpu_s: float = math.nan
    """their actual loss; NaN: not known"""
    refusals: tuple[tuple[str, str, str], ...] = ()
    """(guard, code, text) of each refusing guard"""
    case: tuple[str, ...] = ()
    """all details, as `autopilot explain` prints them"""


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyRun:
    """One policy's run: its block of the JSON result and the additional data for plots."""

    name: str
    result: Mapping[str, object]
    series: Series
    waits_s: Floats
    """first start - submit, one per job; NaN if a job never started"""
    heat: Heat
    services: tuple[ServiceSeries, ...] = ()
    decisions: tuple[DecisionRow, ...] = ()
    policy_diff: tuple[tuple[str, str, str], ...] = ()
    """(field, shipped value, value of this run)"""
    waited_gpu_s: Mapping[tuple[str, str], float] = field(default_factory=dict)
    """by queue and reason code: GPUs requested by waiting work x time"""
    policy: Mapping[str, str] = field(default_factory=dict)
    """policy field -> its value, as a policy file has it; empty for a baseline"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportData:
    """Contents of the page."""

    title: str
    seed: int
    physics: str
    durations: str
    telemetry: str
    cluster: Mapping[str, int]
    """nodes, gpus"""
    assumed: Mapping[str, object] = field(default_factory=dict)
    """column -> rows with a filled-in value"""
    command: str = ""
    version: str = ""
    written: str = ""
    """time of writing, as text; "" omits it"""
    digest: str = ""
    """digest of all input: the same digest and version give the same figures"""
    notes: tuple[str, ...] = ()
    policies: tuple[PolicyRun, ...] = ()
    recorded: Mapping[str, object] = field(default_factory=dict)
    """figures of the starts in the job file, as of a policy; empty: it has none"""
    reproduction: Mapping[str, object] = field(default_factory=dict)
    """agreement of baselines with the starts of the job file, as in the JSON; empty: it has none"""


def resample(t: Floats, v: Floats, until: float, points: int = SERIES_POINTS) -> tuple[Floats, Floats]:
    """Time-weighted means of a step function over `points` bins of equal width between 0 and `until`.

    `v[i]` holds from `t[i]` (ascending) to `t[i + 1]`, the last to `until`; before `t[0]` and at NaN the function is
    unknown and has no weight. Returns the starts of the bins and their means, NaN for a bin without known values. The
    bins depend on `until` and `points` alone, so functions with different steps share one axis.
    """
    if not (math.isfinite(until) and until > 0) or len(t) == 0:
        return np.zeros(0), np.zeros(0)
    edges = np.linspace(0.0, until, points + 1)
    time, value = np.asarray(t, dtype=float), np.asarray(v, dtype=float)
    known = ~np.isnan(value)
    if not known.any():
        return edges[:-1], np.full(points, np.nan)
    ends = np.append(time, max(until, float(time[-1])))
    lasts_s = np.diff(ends)
    area = np.append(0.0, np.cumsum(np.where(known, value, 0.0) * lasts_s))
    weight = np.append(0.0, np.cumsum(np.where(known, lasts_s, 0.0)))
    bin_area, bin_weight = np.diff(np.interp(edges, ends, area)), np.diff(np.interp(edges, ends, weight))
    with np.errstate(divide="ignore", invalid="ignore"):
        mean = bin_area / bin_weight
    # differences of long sums leave rounding errors, visible as a ratio of 1.0000000002 or a bin without weight
    mean[bin_weight <= 1e-9 * (until / points)] = np.nan
    return edges[:-1], np.clip(mean, float(value[known].min()), float(value[known].max()))


def heat_of_intervals(
    node: Ints,
    start_s: Floats,
    end_s: Floats,
    gpus: Floats,
    node_ids: tuple[str, ...],
    node_gpus: Floats,
    until_s: float,
) -> Heat:
    """Heat map of allocations: interval i held `gpus[i]` GPUs of node number `node[i]` in [start_s, end_s).

    `node_gpus` is the capacity of each node. The result has at most 120 groups of neighbouring nodes by 300 intervals;
    a group without GPUs is NaN. Time and memory grow with intervals + cells.
    """
    if not (math.isfinite(until_s) and until_s > 0) or not node_ids:
        return Heat(t_edges_s=np.zeros(1), node_ids=node_ids, busy_ratio=np.zeros((len(node_ids), 0)))
    group, labels = _groups(node_ids, HEAT_NODES)
    edges = np.linspace(0.0, until_s, HEAT_TIMES + 1)
    slope, offset = np.zeros((len(labels), len(edges) + 1)), np.zeros((len(labels), len(edges) + 1))
    row = group[np.asarray(node, dtype=int)]
    for times, sign in ((start_s, 1.0), (end_s, -1.0)):
        # GPU-seconds up to an edge e = sum over events before e of +-gpus * (e - time)
        time = np.asarray(times, dtype=float)
        column = np.searchsorted(edges, time, side="left")
        np.add.at(slope, (row, column), sign * gpus)
        np.add.at(offset, (row, column), sign * gpus * time)
    held_gpu_s = np.cumsum(slope, axis=1)[:, :-1] * edges - np.cumsum(offset, axis=1)[:, :-1]
    capacity = np.bincount(group, weights=node_gpus, minlength=len(labels)).astype(float)
    capacity[capacity <= 0] = np.nan
    busy = np.diff(held_gpu_s, axis=1) / (capacity[:, None] * np.diff(edges))
    return Heat(t_edges_s=edges, node_ids=labels, busy_ratio=np.clip(busy, 0.0, 1.0))


def shrink_heat(heat: Heat) -> Heat:
    """The same map with at most 120 rows and 300 columns: means of neighbouring cells, without unknown ones."""
    nodes, times = heat.busy_ratio.shape
    if nodes <= HEAT_NODES and times <= HEAT_TIMES:
        return heat
    rows, labels = _groups(heat.node_ids, HEAT_NODES)
    columns = np.arange(times) * min(times, HEAT_TIMES) // times
    width_s = np.diff(heat.t_edges_s)
    known = ~np.isnan(heat.busy_ratio)
    shape = (len(labels), int(columns[-1]) + 1)
    area, weight = np.zeros(shape), np.zeros(shape)
    at = (rows[:, None], columns[None, :])
    np.add.at(area, at, np.where(known, heat.busy_ratio, 0.0) * width_s)
    np.add.at(weight, at, known * width_s)
    with np.errstate(divide="ignore", invalid="ignore"):
        busy = area / weight
    firsts = np.searchsorted(columns, np.arange(shape[1]))
    edges = np.append(heat.t_edges_s[firsts], heat.t_edges_s[-1])
    return Heat(t_edges_s=edges, node_ids=labels, busy_ratio=busy)


def _groups(names: tuple[str, ...], most: int) -> tuple[Ints, tuple[str, ...]]:
    """Group number of each name, neighbours together, and a label per group."""
    count = len(names)
    group = np.arange(count) * min(count, most) // max(count, 1)
    if count <= most:
        return group, names
    firsts = np.searchsorted(group, np.arange(most))
    lasts = np.append(firsts[1:], count) - 1
    return group, tuple(f"{names[a]} to {names[b]}" for a, b in zip(firsts, lasts, strict=True))
