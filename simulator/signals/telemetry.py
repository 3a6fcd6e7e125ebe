"""Telemetry of the simulated GPUs: what DCGM would have measured in any interval, computed on demand.

Every value is a function of (seed, GPU or instance, watch interval, occupant): noise comes from a hash of counters, not
from a stateful generator, so any scrape can be computed at any time, in any order, for any part of the fleet, with the
same result. `simulator.signals.dcgm_text` prints the same numbers as an exporter does.

Shapes: T slots (scrapes), E entities (GPUs first, then MIG instances, in the order of `Entities`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autopilot.core.hardware.dcgm import FIELDS, SIGNALS, Quality
from autopilot.core.model.errors import InputError, invariant
from simulator.signals.behaviours import BEHAVIOURS, SIGNAL_NOISE, Pattern
from simulator.signals.noise import BLOCK, GOLDEN, JOB, as_counter, mixed, stream_key, uniform
from simulator.signals.telemetry_entities import Entities, GpuState, TelemetryFaults

Bools = NDArray[np.bool_]
F32 = NDArray[np.float32]
F64 = NDArray[np.float64]
I8 = NDArray[np.int8]
I64 = NDArray[np.int64]
U64 = NDArray[np.uint64]

SIMULATED = (
    "sm_active_ratio",
    "sm_occupancy_ratio",
    "tensor_active_ratio",
    "dram_active_ratio",
    "nvlink_bytes_s",
    "pcie_bytes_s",
    "fb_used_mib",
    "power_w",
    "duty_ratio",
)
"""Signals that the simulated GPUs have; their exporters leave out all others."""
SM, OCCUPANCY, TENSOR, DRAM, NVLINK, PCIE, MEMORY, POWER, DUTY = map(SIGNALS.index, SIMULATED)

CLOCK = SIGNALS.index("sm_clock_mhz")
"""Of GPUs that the world states it for, without the text of an exporter."""

METRICS = (1002, 1003, 1001, 1004, 1005, 1011, 1012, 1009, 1010, 203, 252, 251, 253, 155, 230, 395)
"""DCGM field ids that a simulated exporter prints, in the order of `TelemetryGenerator.metrics`."""

_ROW = {field: row for row, field in enumerate(METRICS)}
_STEPS = {"nvlink_bytes_s": 1.0, "pcie_bytes_s": 1.0, "fb_used_mib": 1.0, "power_w": 1e3}
_DECIMALS = np.array([_STEPS.get(name, 1e6) for name in SIGNALS])[:, None, None]  # as exporters print
_PROFILED = [SM, OCCUPANCY, TENSOR, DRAM, NVLINK, PCIE]  # by PROF fields, which may be blank
_RESERVED_RATIO = 0.0065  # of the board's memory, held by driver and firmware; assumed
_PCIE_RX_SHARE = 0.9  # host to device; h100_telemetry_runs, runs t13 and i4
_LANES = [1, 2, 2, 3]  # of the noise: tensor; DRAM and links together; power
_SIGNAL_NOISE = np.array(SIGNAL_NOISE)[:, None, None]
_SQRT12 = 12**0.5  # a uniform variable of width 1 has deviation 1 / sqrt(12)
_SM_NOISE = 5.35  # 1 / deviation of the mean of one interpolated and one free uniform variable
_SLOW = 8  # watch intervals over which a job's slow drift wanders
_LONG_AGO_S = -1e7

NO_FAULTS = TelemetryFaults()


def _behaviour_table() -> F64:
    rows = [
        [
            float(b.fixed_level is None),
            b.fixed_level or 0.0,
            b.occupancy_per_sm,
            b.tensor_per_sm,
            b.dram_base,
            b.dram_per_sm,
            b.nvlink_per_sm,
            b.nvlink_swing,
            b.pcie_base,
            b.pcie_per_sm,
            b.busy_base,
            b.busy_exponent,
            b.power_per_sm,
            *b.memory_ratio,
            b.jitter * _SM_NOISE,
            b.noise * _SQRT12,
            b.period_s,
            b.duty,
            b.gain,
            float(b.pattern == Pattern.BURST),
            float(archetype != 0),
        ]
        for archetype, b in BEHAVIOURS.items()
    ]
    invariant(list(BEHAVIOURS) == list(range(len(BEHAVIOURS))), "BEHAVIOURS is not in the order of Archetype")
    return np.array(rows).T.copy()


_TABLE = _behaviour_table()
_BURSTY = np.array([b.pattern == Pattern.BURST for b in BEHAVIOURS.values()])


@dataclass(frozen=True, slots=True)
class TelemetryGenerator:
    """Samples of every entity at every scrape slot.

    Slot i is scraped at `i * scrape_interval_s` and known to the collector `delay_s` later; its values are means over
    the last whole watch interval before, as DCGM's are (two scrapes within one watch interval read the same). The
    generator knows the present occupant only: the part of an interval before `since_s` reads as idle, and so does a
    stuck exporter whose occupant came after it got stuck.
    """

    seed: int
    scrape_interval_s: float = 30.0
    watch_interval_s: float = 30.0
    delay_s: float = 0.0
    faults: TelemetryFaults = NO_FAULTS

    def __post_init__(self) -> None:
        """Raise `InputError` for invalid intervals."""
        for name in ("scrape_interval_s", "watch_interval_s"):
            if not 0.0 < getattr(self, name) < float("inf"):
                raise InputError(f"telemetry: {name} is {getattr(self, name)}; give seconds above 0")
        if not 0.0 <= self.delay_s < float("inf"):
            raise InputError(f"telemetry: delay_s is {self.delay_s}; give 0 s or more")

    def slot_time_s(self, slot: int) -> float:
        """When slot `slot` is scraped."""
        return slot * self.scrape_interval_s

    def known_slot(self, now_s: float) -> int:
        """The newest slot whose values have arrived by `now_s`."""
        return int((now_s - self.delay_s) // self.scrape_interval_s)

    def sample(self, slot: int, entities: Entities, state: GpuState) -> tuple[F32, I8]:
        """`values` at one slot: [signals, entities] and [entities]."""
        values, quality = self.values(np.array([slot]), entities, state)
        return values[:, 0], quality[0]

    def values(self, slots: NDArray[np.integer], entities: Entities, state: GpuState) -> tuple[F32, NDArray[np.int8]]:
        """The values that a collector derives from the scrapes at `slots`, without the text between.

        Signals [signals, slots, entities], NaN for unknown, and the dcgm.Quality of the SM activity [slots, entities].
        As in collectors, SM activity falls back on what the exporter has (SM_ACTIVE, GR_ENGINE_ACTIVE, GPU_UTIL),
        board-level values belong to the GPU and not to its instances, and a partitioned GPU that is not reported itself
        has its instances' ratios by share and the sum of their memory.
        """
        listed = self.counters(entities)
        plain = self._never_blank(entities) and not entities.instance.any() and bool((listed == 3).all())
        out, alive, util = self._measure(np.asarray(slots, np.int64), entities, state)
        if plain:
            out[DUTY] = util[0]
            quality = np.where(np.isnan(out[SM]), np.int8(0), np.int8(3))
            return out.astype(np.float32), quality
        weak, bare = listed < int(Quality.SM_ACTIVE), listed < int(Quality.GR_ENGINE)
        out[SM, :, weak] = out[OCCUPANCY, :, weak] = out[NVLINK, :, weak] = np.nan
        out[TENSOR, :, bare] = out[DRAM, :, bare] = out[PCIE, :, bare] = util[0, :, bare] = np.nan
        out[DUTY] = util[0]
        quality = np.full(alive.shape, Quality.SM_ACTIVE, np.int8)
        for grade, other in ((Quality.GR_ENGINE, util[0]), (Quality.GPU_UTIL, util[1] * FIELDS[203].scale)):
            missing = np.isnan(out[SM])
            out[SM][missing], quality[missing] = other[missing], grade
        quality[np.isnan(out[SM])] = Quality.NONE
        values = out.astype(np.float32)
        if entities.instance.any():
            _give_to_boards(values, quality, entities, alive)
        return values, quality

    def metrics(self, slots: NDArray[np.integer], entities: Entities, state: GpuState) -> F64:
        """The values that exporters print at `slots`, [METRICS, slots, entities]; NaN: no value.

        Fields that a node's counters file lacks are included here; the printer omits them.
        """
        out, alive, util = self._measure(np.asarray(slots, np.int64), entities, state)
        result = np.empty((len(METRICS), *out.shape[1:]))
        half = np.ceil(out[NVLINK] / 2)
        to_device = np.floor(out[PCIE] * _PCIE_RX_SHARE)
        reserved = np.rint(entities.memory_mib * _RESERVED_RATIO)
        columns = {
            1002: out[SM],
            1003: out[OCCUPANCY],
            1001: util[0],
            1004: out[TENSOR],
            1005: out[DRAM],
            1011: half,
            1012: out[NVLINK] - half,
            1009: out[PCIE] - to_device,
            1010: to_device,
            203: util[1],
            252: out[MEMORY],
            251: entities.memory_mib - reserved - out[MEMORY],
            253: np.where(alive, reserved, np.nan),
            155: out[POWER],
            230: np.where(alive, 0.0, np.nan),
            395: np.where(alive, 0.0, np.nan),
        }
        for field, column in columns.items():
            result[_ROW[field]] = column
        return result

    def counters(self, entities: Entities) -> I8:
        """The best counter of SM activity in the counters file of each entity's node, [entities]."""
        faults = self.faults
        if faults.gr_engine_only_ratio == faults.gpu_util_only_ratio == 0.0:
            return np.full(len(entities.id), Quality.SM_ACTIVE, np.int8)
        chance = self._chance("counters", entities.node, 0)
        gr_engine = chance < faults.gpu_util_only_ratio + faults.gr_engine_only_ratio
        best = np.where(gr_engine, Quality.GR_ENGINE, Quality.SM_ACTIVE)
        return np.where(chance < faults.gpu_util_only_ratio, Quality.GPU_UTIL, best).astype(np.int8)

    def lost(self, slots: I64 | NDArray[np.integer], nodes: NDArray[np.integer]) -> Bools:
        """Scrapes that fail, [slots, nodes]: single ones, and stretches in which a node is silent."""
        slots, faults = np.asarray(slots, np.int64)[:, None], self.faults
        lost = np.zeros((len(slots), len(nodes)), bool)
        if faults.lost_scrape_ratio:
            lost |= self._chance("lost", nodes, slots) < faults.lost_scrape_ratio
        if faults.outage_ratio:
            stretch = slots * self.scrape_interval_s // faults.outage_s
            lost |= self._chance("outage", nodes, stretch) < faults.outage_ratio
        return lost

    # --- inside ---------------------------------------------------------------------------------

    def _chance(self, purpose: str, rows: NDArray[Any], counter: NDArray[Any] | int) -> F64:
        """Uniform [0, 1) by (seed, purpose, row, counter), broadcast; mixed twice, as both count up."""
        base = mixed(as_counter(rows) * GOLDEN + stream_key(self.seed, purpose))
        return uniform(mixed(base + as_counter(np.asarray(counter)) * JOB))

    def _ticks(self, slots: I64, entities: Entities) -> I64:
        """Number of the last whole watch interval before each slot, [slots, 1] or [slots, entities]."""
        time_s = slots[:, None] * self.scrape_interval_s
        if self.faults.stuck_ratio:
            stretch = time_s // self.faults.stuck_s
            stuck = self._chance("stuck", entities.node, stretch) < self.faults.stuck_ratio
            time_s = np.where(stuck, stretch * self.faults.stuck_s, time_s)
        return np.asarray(np.floor(time_s / self.watch_interval_s + 1e-9).astype(np.int64))

    def _never_blank(self, entities: Entities) -> bool:
        return not (self.faults.blank_ratio or (entities.since_s > -np.inf).any())

    def _measure(self, slots: I64, entities: Entities, state: GpuState) -> tuple[F64, Bools, F64]:
        """Printed signals [signals, T, E] without the duty, which entities are reported [T, E], and engine ratio and
        util percent [2, T, E].
        """
        ticks = self._ticks(slots, entities)
        out, busy = self._physics(ticks, entities, state)
        if entities.instance.any():
            self._share_boards(out, busy, entities)
        out *= _DECIMALS
        np.rint(out, out=out)
        out /= _DECIMALS
        percent = np.where(entities.instance | entities.cut, np.nan, np.rint(busy * 100.0))
        util = np.stack([np.rint(busy * 1e6) / 1e6, percent])
        alive = self._hide(slots, ticks, entities, out, util)
        return out, alive, util

    def _physics(self, ticks: I64, entities: Entities, state: GpuState) -> tuple[F64, F64]:
        """Signals of every entity as if it were a whole board, and the engine's busy ratio."""
        (
            varies,
            fixed,
            occupancy1,
            tensor1,
            dram0,
            dram1,
            nvlink1,
            swing,
            pcie0,
            pcie1,
            busy0,
            busy_exponent,
            power1,
            memory0,
            memory1,
            jitter,
            noise,
            period_s,
            duty,
            gain,
            bursty,
            held,
        ) = _TABLE.take(state.archetype, axis=1)
        watch_s = self.watch_interval_s
        level = fixed + varies * state.level
        job, job_share = self._job_keys(entities, state)
        age_s = ticks * watch_s - np.maximum(state.since_s, _LONG_AGO_S)
        here = np.minimum(np.maximum(age_s / watch_s, 0.0), 1.0)  # part of the interval
        periods = age_s / period_s + job_share
        lanes, slow, burst = self._noise(ticks, entities.key, job, job_share, periods, state.archetype)

        high = np.minimum(level * gain, 1.0)
        low = np.maximum(level - duty * high, 0.0) / (1.0 - duty)
        step_of = watch_s / period_s
        part = (_time_high(periods, duty) - _time_high(periods - step_of, duty)) / step_of
        if burst is not None:
            part = np.where(bursty > 0, burst < duty, part)
        base = low + (high - low) * part
        # the draw lies in [-1, 1): bounded by base and by 1 - base, it does not change the mean
        sm = base + np.minimum(0.5 * jitter * base, 1.0 - base) * (slow + lanes[0])
        sm = np.clip(sm, 0.0, 1.0) * here  # except for rounding

        wobble = 1.0 + lanes[_LANES] * (_SIGNAL_NOISE * noise)
        out = np.full((len(SIGNALS), *sm.shape), np.nan)
        out[SM] = sm
        out[OCCUPANCY] = occupancy1 * sm
        out[TENSOR] = np.minimum(tensor1 * sm * wobble[0], 1.0)
        out[DRAM] = np.minimum((dram0 + dram1 * sm) * wobble[1], 0.85)  # the practical maximum is near 0.8
        wide = nvlink1 * (state.gpus > 1)
        out[NVLINK] = np.maximum(wide * level * (1.0 - swing) * here + wide * swing * sm, 0.0) * wobble[2]
        out[PCIE] = (pcie0 * here + pcie1 * sm) * wobble[2]
        usable = entities.memory_mib * (1.0 - 2 * _RESERVED_RATIO)
        memory = (memory0 + (memory1 - memory0) * job_share) * (here > 0.0)
        memory = np.where(np.isnan(state.memory_mib), memory * usable, state.memory_mib * (here > 0.0))
        out[MEMORY] = np.maximum(memory, _TABLE[13, 0] * usable)
        # boards of one model differ by a few percent (h100_telemetry_runs: 2 of 120 W when idle)
        own = 0.97 + 0.06 * uniform(entities.key)
        loaded_w, busy_w = (entities.loaded_w - entities.idle_w) * held, power1 * entities.limit_w
        watts = (entities.idle_w + loaded_w * here + busy_w * sm) * wobble[3]
        out[POWER] = np.minimum(watts * own, entities.limit_w)
        out[CLOCK] = state.clock_mhz
        busy = np.minimum(busy0 * here + 1.0 - (1.0 - sm) ** busy_exponent, 1.0)
        return out, busy

    def _job_keys(self, entities: Entities, state: GpuState) -> tuple[U64, F64]:
        """A key that all GPUs of a job share (its own for each GPU without one), and a uniform draw from it."""
        code = as_counter(state.job_code) * JOB
        job = mixed(np.where(state.job_code < 0, entities.key, code) + stream_key(self.seed, "jobs"))
        return job, uniform(job)

    def _noise(
        self, ticks: I64, key: U64, job: U64, job_share: F64, periods: F64, archetype: I8
    ) -> tuple[F64, F64, F64 | None]:
        """Uniform noise: four lanes in [-.5, .5) by entity, a slow drift by job, and a draw by period."""
        shape = np.broadcast_shapes(ticks.shape, np.shape(periods))
        bursts = bool(_BURSTY[archetype].any())
        counters = np.empty((4 if bursts else 3, *shape), np.uint64)
        drift = ticks / _SLOW + job_share
        knot = np.floor(drift)
        counters[0] = key + stream_key(self.seed, "noise") + as_counter(ticks) * GOLDEN
        counters[1] = job + as_counter(knot) * GOLDEN
        counters[2] = counters[1] + GOLDEN
        if bursts:
            counters[3] = job + as_counter(np.floor(periods)) * BLOCK
        bits = mixed(counters)
        lanes = bits[0].view(np.uint16).reshape(*shape, 4).transpose(2, 0, 1) * 2.0**-16
        lanes -= 0.5
        ends = uniform(bits[1:])
        slow = ends[0] + (drift - knot) * (ends[1] - ends[0]) - 0.5
        return lanes, slow, ends[2] if bursts else None

    def _share_boards(self, out: F64, busy: F64, entities: Entities) -> None:
        """Turn entities that are parts of one board into the board's values. Changes both arrays.

        PROF values of an instance stay normalised to the instance; board-level values of a partitioned GPU are the sum
        over its instances, repeated on each of them or missing.
        """
        rows = np.flatnonzero(entities.instance)
        parent, cut = entities.parent[rows], np.flatnonzero(entities.cut)
        idle_w = entities.idle_w[:, None].T
        parts = out[:, :, rows] * entities.share[rows]
        parts[POWER] = (out[POWER][:, rows] - idle_w[:, rows]) * entities.share[rows]
        parts[MEMORY] = out[MEMORY][:, rows]
        out[:, :, cut] = 0.0
        out[POWER][:, cut] = idle_w[:, cut]
        np.add.at(np.moveaxis(out, -1, 0), parent, np.moveaxis(parts, -1, 0))
        busy[:, cut] = 0.0
        np.maximum.at(busy.T, parent, busy[:, rows].T)
        out[POWER] = np.minimum(out[POWER], entities.limit_w)
        for signal in (NVLINK, PCIE, POWER):
            out[signal][:, rows] = out[signal][:, parent] if self.faults.mig_board_repeat else np.nan

    def _hide(self, slots: I64, ticks: I64, entities: Entities, out: F64, util: F64) -> Bools:
        """Blank unknown values in `out` and `util`; returns which entities are reported, [T, E]."""
        faults, watch_s = self.faults, self.watch_interval_s
        shape = out.shape[1:]
        alive = np.ones(shape, bool)
        if faults.lost_scrape_ratio or faults.outage_ratio:
            alive &= ~self.lost(slots, entities.node)
        if entities.cut.any() and not faults.mig_parent:
            alive &= ~entities.cut
        blank = np.zeros(shape, bool)
        if (entities.since_s > -np.inf).any():
            age_s = ticks * watch_s - entities.since_s
            alive &= age_s >= 0.0
            if faults.first_interval_blank:
                blank |= age_s < watch_s
        if faults.blank_ratio:
            blank |= self._chance("blank", entities.key.view(np.int64), ticks) < faults.blank_ratio
        if blank.any():
            for signal in _PROFILED:
                out[signal][blank] = np.nan
        if not alive.all():
            out[:, ~alive] = np.nan
        util[0, blank] = np.nan
        util[:, ~alive] = np.nan
        return alive


def _give_to_boards(values: F32, quality: I8, entities: Entities, alive: Bools) -> None:
    """Move board-level values of instances to their GPU, and derive its ratios from theirs where it has none.

    Weights are shares of compute slices; an instance of unknown value makes its board's unknown, one that is not
    reported does no work. Changes `values` [signals, T, E] and `quality` [T, E].
    """
    rows = np.flatnonzero(entities.instance)
    parent, here = entities.parent[rows], alive[:, rows]
    cut = np.zeros(quality.shape, bool)
    np.logical_or.at(cut.T, parent, here.T)
    for signal in (NVLINK, PCIE, POWER):
        np.fmax.at(values[signal].T, parent, values[signal][:, rows].T)
        values[signal][:, rows] = np.nan
    for signal in (SM, OCCUPANCY, TENSOR, DRAM, MEMORY, DUTY):
        share = 1.0 if signal == MEMORY else entities.share[rows]
        whole = np.zeros(quality.shape)
        np.add.at(whole.T, parent, np.where(here, values[signal][:, rows] * share, 0.0).T)
        if signal != MEMORY:
            whole = np.minimum(whole, 1.0)
        missing = cut & np.isnan(values[signal])
        values[signal][missing] = whole[missing]
        if signal == SM:
            grade = np.full(quality.shape, Quality.SM_ACTIVE, np.int8)
            np.minimum.at(grade.T, parent, np.where(here, quality[:, rows], Quality.SM_ACTIVE).astype(np.int8).T)
            quality[missing] = np.where(np.isnan(whole), np.int8(Quality.NONE), grade)[missing]


def _time_high(periods: F64, duty: F64) -> F64:
    """Integral from 0 of a wave that is 1 for the first `duty` of each period, in periods."""
    whole = np.floor(periods)
    return np.asarray(whole * duty + np.minimum(periods - whole, duty))
