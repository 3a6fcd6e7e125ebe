"""The verdict on idle work against the truth of the generator, and on real telemetry.

A unit is a workload and a day with at least 6 h of fresh samples. Its truth is the longest stretch in which its owner
did nothing on any of its GPUs: a unit is hoarding from twice the window on, and not hoarding below the window; between
the two either answer is right, and the unit is left out. The verdict on a unit is whether the shipped verdict
(autopilot/core/idle/verdict.py) called it idle at any look of the day, one each five minutes.

Each seed is a day of 32 nodes of eight GPUs, half of them A100 and half H100, scraped each 30 s, with lost scrapes and
exporters that are silent for an hour. Thresholds were set on seeds 1-8; the table has seeds 101-120.

    python -m benchmarks hoarding [--quick]
    python -m benchmarks.hoarding [--first 101] [--seeds 20] [--json OUT]
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autopilot.core.hardware.dcgm import SIGNALS
from autopilot.core.hardware.idle_power import loaded_idle_w
from autopilot.core.idle.verdict import Activity, Window, combine, judge
from autopilot.core.model.policy import Policy
from autopilot.core.model.policy_idle import Idle
from benchmarks.kit import data_folder, judged, options, table, write_json
from simulator.signals.behaviours import BEHAVIOURS, LEVEL_POINTS, Archetype, absent_look, effective_level
from simulator.signals.owners import absences
from simulator.signals.telemetry import TelemetryGenerator
from simulator.signals.telemetry_entities import Entities, GpuState, TelemetryFaults, entities_of
from simulator.specs.clusterfile import ClusterSpec, shape_cluster
from simulator.specs.inventory import build_inventory

Bools = NDArray[np.bool_]
F64 = NDArray[np.float64]

NODES, PER_NODE = 32, 8
SCRAPE_S, LOOK_S, WINDOW_S, DAY_S = 30.0, 300.0, 1800.0, 86_400.0
SLOTS, LOOK = int(DAY_S / SCRAPE_S), int(LOOK_S / SCRAPE_S)
LOOKS, SPAN = SLOTS // LOOK, int(WINDOW_S / LOOK_S)
FRESH_SLOTS = int(6 * 3600 / SCRAPE_S)
FAULTS = TelemetryFaults(lost_scrape_ratio=0.02, outage_ratio=0.02, outage_s=3600.0)

A = Archetype
FLEET: tuple[tuple[str, Archetype, int, int], ...] = (
    # kind, archetype, workloads, GPUs of each
    ("hoarder", A.HOARDER, 10, 1),
    ("hoarder, gang", A.HOARDER, 2, 4),
    ("keep-alive kernel", A.KEEP_ALIVE, 12, 1),
    ("warm standby", A.WARM_STANDBY, 12, 1),
    ("intermittent owner", A.INTERMITTENT, 28, 1),
    ("intermittent owner, gang", A.INTERMITTENT, 4, 4),
    ("idle part of a gang", A.COMPUTE_TRAINING, 3, 8),
    ("shared GPU", A.HOARDER, 12, 1),
    ("memory-bound decoder", A.DECODE, 12, 1),
    ("memory-bound, low load", A.TRICKLE_DECODE, 16, 1),
    ("data loading", A.DATA_LOADING, 8, 2),
    ("light inference", A.LIGHT_INFERENCE, 12, 1),
    ("sparse service", A.SPARSE_SERVICE, 16, 1),
    ("notebook", A.NOTEBOOK, 16, 1),
    ("starved training", A.STARVED_TRAINING, 4, 2),
    ("training, with saves", A.COMMUNICATION_TRAINING, 2, 8),
    ("spinning collective", A.HUNG, 1, 8),
)
NEVER = ("memory-bound decoder", "memory-bound, low load", "data loading")


@dataclass(frozen=True, slots=True)
class Day:
    """One seed: telemetry, what runs where, and the truth. E entities, W workloads, T slots."""

    kinds: tuple[str, ...]  # [W]
    work: NDArray[np.int32]  # [placements]
    gpu: NDArray[np.int32]  # [placements]
    shared: Bools  # [E]
    idle: Bools  # [T, W]: its owner does nothing on it
    values: NDArray[np.float32]  # [signals, T, E]
    quality: NDArray[np.int8]  # [T, E]
    idle_w: F64  # [E]


@dataclass(slots=True)
class Score:
    """Counts over units."""

    right: int = 0
    wrong: int = 0
    missed: int = 0
    between: int = 0
    late: int = 0
    unseen: int = 0
    stretches: int = 0
    delays_s: list[float] = field(default_factory=list)


def draw_day(seed: int) -> Day:
    """The fleet of one seed."""
    rng = np.random.default_rng(seed)
    inventory = build_inventory(_spec())
    entities = entities_of(inventory)
    count = len(entities.id)
    slots = np.arange(SLOTS)
    state = GpuState(
        np.full(count, -1, np.int32),
        np.zeros((SLOTS, count), np.int8),
        np.zeros((SLOTS, count), np.float32),
        np.full((SLOTS, count), -np.inf),
        np.ones(count, np.int32),
    )
    free = rng.permutation(count).tolist()
    kinds: list[str] = []
    work, gpu = [], []
    shared = np.zeros(count, bool)
    away: list[Bools] = []
    for kind, archetype, number, width in FLEET:
        for _ in range(number):
            row, mine = len(kinds), [free.pop() for _ in range(width)]
            kinds.append(kind)
            work += [row] * width
            gpu += mine
            level = float(np.interp(rng.random(), LEVEL_POINTS, BEHAVIOURS[archetype].levels))
            gone = np.full(SLOTS, archetype in {A.HOARDER, A.KEEP_ALIVE, A.WARM_STANDBY})
            state.job_code[mine], state.gpus[mine] = 1000 * seed + row, width
            state.archetype[:, mine], state.level[:, mine] = archetype, level
            if archetype == A.INTERMITTENT:
                gone = _away(seed, row, slots * SCRAPE_S)
                look, quiet = absent_look(seed, f"w-{row}")
                state.archetype[np.ix_(gone, mine)], state.level[np.ix_(gone, mine)] = look, quiet
            if kind == "idle part of a gang":
                state.archetype[:, mine[2:]] = A.HOARDER
            if kind == "training, with saves":
                saving = slots % 120 < 4
                state.archetype[np.ix_(saving, mine)] = A.CHECKPOINTING
            if kind == "shared GPU":  # a second workload, idle or not, on the same GPU
                shared[mine] = True
                busy = bool(rng.random() < 0.5)
                kinds.append(f"{kind}, {'busy' if busy else 'idle'} neighbour")
                kinds[row] = kinds[-1]
                work.append(row + 1)
                gpu += mine
                if busy:  # two workloads on one GPU show as their sum
                    state.archetype[:, mine] = A.LIGHT_INFERENCE
                    state.level[:, mine] = 0.05
                away.append(gone)
                gone = np.full(SLOTS, not busy)
            away.append(gone)
    idle = np.stack(away, axis=1)
    generator = TelemetryGenerator(seed, SCRAPE_S, faults=FAULTS)
    _bursts(idle, kinds, np.array(work), np.array(gpu), entities, state, replace(generator, faults=TelemetryFaults()))
    values, quality = generator.values(slots, entities, state)
    models = [inventory.names.gpu_models[code] for code in inventory.nodes.gpu_model[inventory.gpus.node]]
    idle_w = np.array([loaded_idle_w(model) for model in models])
    return Day(tuple(kinds), np.array(work, np.int32), np.array(gpu, np.int32), shared, idle, values, quality, idle_w)


def _spec() -> ClusterSpec:
    pool = shape_cluster(NODES // 2, PER_NODE).pools[0]
    pools = (replace(pool, name="h", gpu_model="H100-80GB"), replace(pool, name="a", gpu_model="A100-80GB"))
    return ClusterSpec("hoarding", pools, ())


def _away(seed: int, row: int, at_s: NDArray[np.floating[Any]]) -> Bools:
    """When the owner of a workload is away, by slot. The day begins at a random hour of its life."""
    begin_s = float(np.random.default_rng((seed, row)).uniform(0.0, 2 * DAY_S))
    gone = np.zeros(len(at_s), bool)
    for from_s, to_s in absences(seed, f"w-{row}", begin_s + DAY_S):
        gone |= (at_s + begin_s >= from_s) & (at_s + begin_s < to_s)
    return gone


def _bursts(
    idle: Bools,
    kinds: Sequence[str],
    work: NDArray[Any],
    gpu: NDArray[Any],
    entities: Entities,
    state: GpuState,
    clean: TelemetryGenerator,
) -> None:
    """The truth of notebooks: a stretch without a burst is idle. Changes `idle`."""
    rows = [row for row, kind in enumerate(kinds) if kind == "notebook"]
    values, _ = clean.values(np.arange(SLOTS), entities, state)
    for row in rows:
        mine = int(gpu[work == row][0])
        level = float(effective_level(state.archetype[0, mine], state.level[0, mine]))
        idle[:, row] = values[0, :, mine] < level


def looks(day: Day, rules: Idle, freshest_s: float) -> tuple[NDArray[np.int8], Bools]:
    """The verdict on each workload at each look, [LOOKS, W], and which looks had a blackout, [LOOKS, W]."""
    signals, _, count = day.values.shape
    blocks = day.values.reshape(signals, LOOKS, LOOK, count)
    there = ~np.isnan(blocks)
    total, number = np.where(there, blocks, 0.0).sum(2, dtype=np.float64), there.sum(2)
    high = np.where(there, blocks, -np.inf).max(2)
    quality = day.quality.reshape(LOOKS, LOOK, count)
    quality = np.where(there[0], quality, 9).min(1)
    last = _last_slot(there[0].reshape(SLOTS, count))
    found = np.zeros((LOOKS, len(day.kinds)), np.int8)
    dark = np.zeros((LOOKS, len(day.kinds)), bool)
    for look in range(SPAN - 1, LOOKS):
        part = slice(look - SPAN + 1, look + 1)
        samples = number[:, part].sum(1)
        with np.errstate(invalid="ignore"):
            mean = (total[:, part].sum(1) / np.where(samples, samples, np.nan)).astype(np.float32)
        top = high[:, part].max(1)
        end = (look + 1) * LOOK - 1
        window = Window(
            dict(zip(SIGNALS, mean, strict=True)),
            dict(zip(SIGNALS, np.where(np.isinf(top), np.nan, top).astype(np.float32), strict=True)),
            samples[0].astype(np.int32),
            np.full(count, WINDOW_S / SCRAPE_S),
            ((end - last[end]) * SCRAPE_S).astype(np.float32),
            quality[part].min(0).astype(np.int8),
            day.idle_w,
        )
        code = judge(window, rules, freshest_s)[day.gpu]
        code[day.shared[day.gpu] & (code == Activity.IDLE)] = Activity.ESTIMATED
        found[look] = combine(code, day.work, len(day.kinds))
        seen = samples[0] >= rules.covered_ratio * WINDOW_S / SCRAPE_S
        dark[look, day.work[~seen[day.gpu]]] = True
    return found, dark


def _last_slot(seen: Bools) -> NDArray[np.int64]:
    """The newest slot with a sample up to each slot; far in the past before the first. Shape [T, E]."""
    at = np.where(seen, np.arange(len(seen))[:, None], -SLOTS)
    return np.asarray(np.maximum.accumulate(at, axis=0))


def stretches(idle: Bools) -> list[tuple[int, int]]:
    """(first slot, slot after the last) of each stretch in which a column is true."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], idle, [False]]).astype(np.int8)))
    return list(zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True))


def score_day(day: Day, found: NDArray[np.int8], dark: Bools, scores: dict[str, Score]) -> int:
    """Add the units of a day to `scores`; returns the verdicts that were given in a blackout."""
    fresh = ~np.isnan(day.values[0])
    weak = [kind.startswith("shared") for kind in day.kinds]
    for row, kind in enumerate(day.kinds):
        if fresh[:, day.gpu[day.work == row]].all(1).sum() < FRESH_SLOTS:
            continue
        score = scores.setdefault(kind, Score())
        bar = Activity.ESTIMATED if weak[row] else Activity.IDLE
        called = found[:, row] >= bar
        parts = stretches(day.idle[:, row])
        longest_s = max((to - begin for begin, to in parts), default=0) * SCRAPE_S
        if longest_s >= 2 * WINDOW_S:
            score.right += bool(called.any())
            score.missed += not called.any()
        elif longest_s < WINDOW_S:
            score.wrong += bool(called.any())
        else:
            score.between += 1
        for begin, to in parts if called.any() else ():
            if (to - begin) * SCRAPE_S < 2 * WINDOW_S or dark[begin // LOOK : to // LOOK, row].any():
                continue
            after = np.flatnonzero(called[begin // LOOK : to // LOOK])
            delay_s = (after[0] + 1) * LOOK_S if len(after) else np.inf
            score.stretches += 1
            score.unseen += not len(after)
            score.late += len(after) > 0 and delay_s > 2 * WINDOW_S
            score.delays_s.append(delay_s)
    return int(((found >= Activity.ESTIMATED) & dark).sum())


def real_runs(rules: Idle) -> list[tuple[str, int, int]]:
    """(run, looks in its steady phase, of them idle) of h100_telemetry_runs, with a window of 2 min."""
    import pandas as pd

    path = data_folder() / "h100_telemetry_runs" / "gpu_1s.parquet"
    if not path.exists():
        return []
    frame: Any = pd.read_parquet(path)
    frame["nvlink"] = frame.nvlink_tx_bytes_s + frame.nvlink_rx_bytes_s
    frame["pcie"] = frame.pcie_tx_bytes_s + frame.pcie_rx_bytes_s
    names = {
        "sm_active_ratio": "sm_active",
        "tensor_active_ratio": "tensor_active",
        "dram_active_ratio": "dram_active",
        "nvlink_bytes_s": "nvlink",
        "pcie_bytes_s": "pcie",
        "fb_used_mib": "mem_used_mib",
        "power_w": "power_w",
    }
    found: dict[str, list[int]] = {}
    for (run, _), part in frame[frame.phase == "steady"].groupby(["run", "gpu"]):
        columns = np.array([part[name] for name in names.values()], np.float32)
        at_s = part.t_s.to_numpy(float)
        for end_s in np.arange(at_s[0] + 120.0, at_s[-1] + 1.0, 10.0).tolist():
            mine = columns[:, (at_s > end_s - 120.0) & (at_s <= end_s)]
            window = Window(
                dict(zip(names, mine.mean(1)[:, None], strict=True)),
                dict(zip(names, mine.max(1)[:, None], strict=True)),
                np.array([mine.shape[1]], np.int32),
                np.array([120.0]),
                np.zeros(1, np.float32),
                np.full(1, 3, np.int8),
                np.array([loaded_idle_w("H100")]),
            )
            found.setdefault(str(run), []).append(int(judge(window, rules, 180.0)[0]))
    return [(run, len(codes), sum(code == Activity.IDLE for code in codes)) for run, codes in sorted(found.items())]


def real_pods(rules: Idle) -> tuple[int, int, int]:
    """(pods of gentd26, those with a weak verdict at some look, looks with a full verdict: none)."""
    import pandas as pd

    path = data_folder() / "gentd26" / "gpu_util.parquet"
    if not path.exists():
        return 0, 0, 0
    pods, weak, full = 0, 0, 0
    for _, part in pd.read_parquet(path).groupby("pod"):
        util = part.gpu_util.to_numpy(float) / 100.0
        memory = part.mem_used_mib.to_numpy(float)
        size = int(WINDOW_S / 57.0)
        if len(util) < size:
            continue
        windows = np.lib.stride_tricks.sliding_window_view(util, size)[:: int(LOOK_S / 57.0)]
        used = np.lib.stride_tricks.sliding_window_view(memory, size)[:: int(LOOK_S / 57.0)]
        known = {"sm_active_ratio": windows, "fb_used_mib": used}
        mean = {name: values.mean(1).astype(np.float32) for name, values in known.items()}
        high = {name: values.max(1).astype(np.float32) for name, values in known.items()}
        samples = np.isfinite(windows).sum(1).astype(np.int32)
        count = len(windows)
        ages, grade = np.zeros(count, np.float32), np.ones(count, np.int8)
        codes = judge(
            Window(mean, high, samples, np.full(count, float(size)), ages, grade, np.full(count, np.nan)), rules, 180.0
        )
        pods += 1
        weak += bool((codes == Activity.ESTIMATED).any())
        full += int((codes == Activity.IDLE).sum())
    return pods, weak, full


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table; 1 when a figure misses its goal."""
    given = options(__doc__ or "", arguments, first=101, seeds=20)
    policy = Policy()
    rules, freshest_s = policy.idle, policy.freshness.telemetry_s
    scores: dict[str, Score] = {}
    in_the_dark = 0
    for seed in range(given.first, given.first + (2 if given.quick else given.seeds)):
        day = draw_day(seed)
        in_the_dark += score_day(day, *looks(day, rules, freshest_s), scores)
    rows = []
    for kind, score in scores.items():
        delays = np.array(score.delays_s or [np.nan])
        rows.append(
            [
                kind,
                str(score.right + score.missed),
                str(score.right),
                str(score.wrong),
                str(score.between),
                f"{np.median(delays) / 60:.0f}" if score.delays_s else "",
                f"{score.late}, {score.unseen} of {score.stretches}" if score.stretches else "",
            ]
        )
    table(["kind", "hoarding", "found", "wrong", "left out", "found after min", "stretches late, not found"], rows)
    strong = [score for kind, score in scores.items() if not kind.startswith("shared")]
    right, wrong = sum(score.right for score in strong), sum(score.wrong for score in strong)
    missed = sum(score.missed for score in strong)
    precision, recall = right / max(right + wrong, 1), right / max(right + missed, 1)
    late = int(sum(score.late for score in strong))
    unseen, parts = sum(score.unseen for score in strong), sum(score.stretches for score in strong)
    in_time = 1.0 - (late + unseen) / max(parts, 1)
    never = sum(scores[kind].wrong for kind in NEVER)
    print(f"\nprecision {judged(precision, 0.98, least=True, digits=3)}")
    print(f"recall {judged(recall, 0.90, least=True, digits=3)}")
    print(f"stretches found within twice the window, blackouts left out: {judged(in_time, 0.90, least=True, digits=3)}")
    print(f"  of {parts}: {late} later, {unseen} not at all")
    print(f"verdicts on memory-bound decoders and data loading: {never}; in a blackout: {in_the_dark}")
    runs, pods = real_runs(rules), real_pods(rules)
    for run, count, idle in runs:
        print(f"h100_telemetry_runs {run}: idle at {idle} of {count} looks of its steady phase, window 2 min")
    print(f"gentd26: of {pods[0]} pods, {pods[1]} are estimated idle at some look; full verdicts: {pods[2]}")
    right_runs = all(idle == (count if run == "b1" else 0) for run, count, idle in runs)
    write_json(
        given.json,
        {
            "precision": precision,
            "recall": recall,
            "found_in_time": in_time,
            "never": never,
            "in_blackout": in_the_dark,
            "kinds": {kind: [score.right, score.missed, score.wrong, score.between] for kind, score in scores.items()},
            "real_runs": {run: [count, idle] for run, count, idle in runs},
            "real_pods": list(pods),
        },
    )
    kept = precision >= 0.98 and recall >= 0.9 and in_time >= 0.9 and not (never or in_the_dark or pods[2])
    return int(not (kept and right_runs))


if __name__ == "__main__":
    raise SystemExit(main())
