"""Measured use by workload: the windows of its GPUs and instances as one row.

`usage_of` is a pure function of the observation's snapshot and time. The observation does not carry the table and the
journal does not store it: the reader recomputes it, bit for bit, from what is stored already. Actions and guards ask
`Context.usage`, which computes it at most once in a tick, and only in ticks that ask.

Ratios are means over the parts that are measured, weighted by their size. Bytes/s, power, energy and memory are sums;
parts that are not measured count like the mean of the others, and the value is then marked estimated. So is every
value of a window that begins before the workload held its GPUs. Energy is the mean power x the time in the window for
which it held them. Nothing measured is NaN. Use of assumed GPUs (`PlacementTable.assumed`) is NaN too.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from autopilot.core.hardware.dcgm import SIGNALS
from autopilot.core.intake.usage.parts import GPU_UNITS, Parts, activity, attributed, gathered, parts_of, plausible
from autopilot.core.model.snapshot import F32, F64, I8, I32, I64, Bools, ClusterSnapshot

Rows = NDArray[np.integer]


@dataclass(frozen=True, slots=True)
class UsageTable:
    """One column per workload, in the rows of WorkloadTable; NaN, 0 or False where it holds nothing.

    `mean` [signals, windows, workloads] follows dcgm.SIGNALS; it is a sum where the signal is no ratio.
    """

    windows_s: tuple[float, ...]
    mean: F64
    energy_j: F64  # [windows, workloads]
    age_s: F32  # of its oldest part; inf where a part was never measured
    samples: I32  # fresh samples of SM activity, the least of its parts; [windows, workloads]
    measured_ratio: F64  # share of what it holds with known SM activity; [windows, workloads]
    estimated: Bools  # divided from a shared GPU, extrapolated, or from a window that is not `covered`; as `mean`
    covered: Bools  # it has held its GPUs during the whole window; [windows, workloads]
    quality: I8  # dcgm.Quality, the worst of its parts
    held_units: I64  # in 1/28,000 GPU
    measured_units: I64  # [windows, workloads]
    active_units: I64  # SM activity x units, in 1/FINE of a unit; [windows, workloads]
    faults: I32  # signals of its parts that were left out because a value is not plausible

    @property
    def held_gpus(self) -> F64:
        """GPUs that each workload holds; shares and instances are their part."""
        return self.held_units / GPU_UNITS

    def of(self, signal: str, window_s: float) -> F64:
        """One signal, or `energy_j`, over one window; NaN where that is not collected. Shape [workloads]."""
        if window_s not in self.windows_s:
            return np.full(len(self.held_units), np.nan)
        column: F64 = self.values(signal)[self.windows_s.index(window_s)]
        return column

    def values(self, signal: str) -> F64:
        """One signal, or `energy_j`, over every window. Shape [windows, workloads]."""
        column: F64 = self.energy_j if signal == "energy_j" else self.mean[SIGNALS.index(signal)]
        return column

    def estimates(self, signal: str) -> Bools:
        """Which of `values` are estimated; the energy is where the power is. Shape [windows, workloads]."""
        column: Bools = self.estimated[SIGNALS.index("power_w" if signal == "energy_j" else signal)]
        return column


def usage_of(snapshot: ClusterSnapshot, now_s: float) -> UsageTable:
    """The measured use of every workload that holds GPUs at `now_s`."""
    parts = attributed(_by_workload(parts_of(snapshot)))
    rows, first = np.unique(parts.workload, return_index=True)
    out = _empty(snapshot)
    if len(rows):
        start_s, windows_s = snapshot.workloads.start_s[rows], np.array(out.windows_s)
        out.held_units[rows] = np.add.reduceat(parts.units, first)
        out.covered[:, rows] = now_s - start_s >= windows_s[:, None]
        _fill_counts(out, snapshot, parts, rows, first)
        _fill_signals(out, snapshot, parts, rows, first)
        power_w = out.mean[SIGNALS.index("power_w")][:, rows]
        out.energy_j[:, rows] = power_w * np.fmin(np.fmax(now_s - start_s, 0.0), windows_s[:, None])
    return out


def _by_workload(parts: Parts) -> Parts:
    """The parts sorted by workload; the same object where they are."""
    if (parts.workload[1:] >= parts.workload[:-1]).all():
        return parts
    order = np.argsort(parts.workload, kind="stable")
    return Parts(*(column[order] for column in (getattr(parts, name) for name in Parts.__slots__)))


def _empty(snapshot: ClusterSnapshot) -> UsageTable:
    """A table in which no workload holds anything."""
    windows_s, count = snapshot.telemetry.windows_s, len(snapshot.workloads.id)
    windows, full = (len(windows_s), count), (len(SIGNALS), len(windows_s), count)
    return UsageTable(
        windows_s=windows_s,
        mean=np.full(full, np.nan),
        energy_j=np.full(windows, np.nan),
        age_s=np.full(count, np.inf, np.float32),
        samples=np.zeros(windows, np.int32),
        measured_ratio=np.zeros(windows),
        estimated=np.zeros(full, np.bool_),
        covered=np.zeros(windows, np.bool_),
        quality=np.zeros(count, np.int8),
        held_units=np.zeros(count, np.int64),
        measured_units=np.zeros(windows, np.int64),
        active_units=np.zeros(windows, np.int64),
        faults=np.zeros(count, np.int32),
    )


def _fill_counts(out: UsageTable, snapshot: ClusterSnapshot, parts: Parts, rows: Rows, first: Rows) -> None:
    """Fill ages, samples, quality and the exact sums of `rows`, whose parts begin at `first`."""
    telemetry = snapshot.telemetry
    if len(telemetry.age_s):
        there = parts.entity < len(telemetry.age_s)
        at = np.where(there, parts.entity, 0)
        out.age_s[rows] = np.maximum.reduceat(np.where(there, telemetry.age_s[at], np.float32(np.inf)), first)
        out.quality[rows] = np.minimum.reduceat(np.where(there, telemetry.quality[at], 0), first)
        out.samples[:, rows] = np.minimum.reduceat(np.where(there, telemetry.samples[:, at], 0), first, axis=1)
    measured, active = activity(telemetry, parts)
    out.measured_units[:, rows] = np.add.reduceat(measured, first, axis=1)
    out.active_units[:, rows] = np.add.reduceat(active, first, axis=1)
    out.measured_ratio[:, rows] = out.measured_units[:, rows] / np.maximum(out.held_units[rows], 1)


def _fill_signals(out: UsageTable, snapshot: ClusterSnapshot, parts: Parts, rows: Rows, first: Rows) -> None:
    """Fill the windows of every signal of `rows`, whose parts begin at `first`."""
    telemetry, held_units = snapshot.telemetry, out.held_units[rows]
    shared = np.logical_or.reduceat(parts.shared, first)
    cut = np.logical_or.reduceat(parts.instance, first)
    size = parts.units.astype(np.float64)
    memory_size = np.where(parts.instance, float(GPU_UNITS), size)  # the memory of an instance is its own
    for signal, name in enumerate(SIGNALS):
        if name not in telemetry.signals:
            continue
        mean = gathered(telemetry.means(name), name, parts)
        known = plausible(name, mean)
        ratio, complete = name.endswith("_ratio"), bool(known.all())
        units = held_units[None, :]
        if not complete:
            wrong = (~known & ~np.isnan(mean)).any(axis=0)
            out.faults[rows] += np.add.reduceat(wrong.astype(np.int32), first)
            mean = np.where(known, mean, np.float32(0.0))
            units = np.add.reduceat(np.where(known, parts.units, 0), first, axis=1)
        with np.errstate(invalid="ignore", divide="ignore"):
            value = np.add.reduceat(mean * (memory_size if name == "fb_used_mib" else size), first, axis=1) / units
        out.mean[signal][:, rows] = np.minimum(value, 1.0) if ratio else value * (held_units / GPU_UNITS)
        divided = shared | cut if name == "power_w" else shared
        guessed = divided | ~out.covered[:, rows] | ((units < held_units) & (not ratio))
        out.estimated[signal][:, rows] = (units > 0) & guessed


def extremes(snapshot: ClusterSnapshot, signal: str, window_s: float) -> tuple[F32, F32]:
    """The lowest mean and the highest sample of one signal among the parts of each workload, both [workloads].

    An idle GPU inside a busy gang shows in the lowest mean, a short burst in the highest sample. NaN: not measured.
    """
    count, telemetry = len(snapshot.workloads.id), snapshot.telemetry
    low, high = np.full(count, np.nan, np.float32), np.full(count, np.nan, np.float32)
    parts = attributed(_by_workload(parts_of(snapshot)))
    rows, first = np.unique(parts.workload, return_index=True)
    if len(rows) and signal in telemetry.signals and window_s in telemetry.windows_s:
        at = telemetry.windows_s.index(window_s)
        for out, table, reduce in ((low, telemetry.means, np.fmin), (high, telemetry.maxima, np.fmax)):
            values = gathered(table(signal)[at], signal, parts)
            out[rows] = reduce.reduceat(np.where(plausible(signal, values), values, np.float32(np.nan)), first)
    return low, high
