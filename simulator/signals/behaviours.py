"""What runs on a GPU, as DCGM would see it: archetypes, their constants, and how a job gets one.

Each `Behaviour` says how high a job's mean SM activity is (`levels`), how the other signals follow from
it, and how it moves in time. Where the constants come from:

- [h100] relations between the signals: five labelled runs on 8 x H100 SXM5 (data set h100_telemetry_runs),
- [acme] distribution of the levels and shares of the archetypes: fleet-wide SM activity of two A100
  clusters (data set acme_util_cdf; Seren, the mixed one),
- [gentd26] burstiness: duty cycle of the pods of a production image service,
- [dcgm] how operators know the archetype from its DCGM fields,
- [assumed] no public measurement known to us; the figure is a stated guess.

`python scripts/fit_telemetry.py` prints the fitted ones again. SM activity, occupancy, GPU util at rest and
idle power then follow Seren's quantiles; board power in the middle does not: it is linear in SM activity as in
the H100 runs, while half of Seren's A100s draw under 100 W of 400 (median of a simulated fleet: about 290 W).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import lru_cache
from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

from autopilot.core.hardware.mig import find_gpu_model
from autopilot.core.model.errors import invariant

F32 = NDArray[np.float32]
F64 = NDArray[np.float64]
I8 = NDArray[np.int8]
U64 = NDArray[np.uint64]

LEVEL_POINTS = (0.0, 0.1, 0.25, 0.5, 0.75, 0.9, 1.0)
"""Probabilities at which `Behaviour.levels` is given; linear between them."""


class Archetype(IntEnum):
    """The activity of a GPU. `IDLE` and `ROGUE` have no owner."""

    IDLE = 0  # not allocated
    COMPUTE_TRAINING = 1
    COMMUNICATION_TRAINING = 2
    SMALL_TRAINING = 3
    STARVED_TRAINING = 4  # waits for its input
    DECODE = 5  # memory-bound: SMs low to middling, DRAM high
    PREFILL = 6
    LIGHT_INFERENCE = 7
    NOTEBOOK = 8
    HOARDER = 9  # memory held, no work
    HUNG = 10  # a collective that spins indefinitely
    STARTING = 11  # image pull, model load
    CHECKPOINTING = 12
    ROGUE = 13  # busy without an allocation
    KEEP_ALIVE = 14  # hoarding behind a small kernel that runs all the time
    WARM_STANDBY = 15  # a loaded model that only answers health probes
    TRICKLE_DECODE = 16  # memory-bound decoding at low load: SMs nearly idle, DRAM not
    DATA_LOADING = 17  # long phases of loading between phases of training
    SPARSE_SERVICE = 18  # a service with a request each few minutes
    INTERMITTENT = 19  # interactive work while its owner is there; simulator/signals/owners.py says when


class Pattern(IntEnum):
    """How SM activity moves around its level."""

    STEADY = 0
    STEP = 1  # high for `duty` of each period, low for the rest
    BURST = 2  # as STEP, but each period is high or low by chance


@dataclass(frozen=True, slots=True)
class Behaviour:
    """Constants of one archetype. Rates of links are bytes/s, sums of both directions, for a whole GPU.

    A signal is `base + per_sm x SM activity`, limited by its physical maximum; the engine is busy for
    `base + 1 - (1 - SM activity) ** busy_exponent` of the time. NVLink follows SM activity
    when `nvlink_swing` is 1 and moves against it when -1. Power is the board's loaded-but-idle power (the
    idle power for `IDLE`) plus `power_per_sm` x its limit x SM activity. `fixed_level` overrules a job's
    own level while it is in this state.
    """

    levels: tuple[float, ...] = (0.0,) * 7
    fixed_level: float | None = None
    occupancy_per_sm: float = 0.279  # [acme] fleet-wide, medians paired by rank
    tensor_per_sm: float = 0.0
    dram_base: float = 6.1e-6  # [h100] b1
    dram_per_sm: float = 0.0
    nvlink_per_sm: float = 0.0
    nvlink_swing: float = 1.0
    pcie_base: float = 1.32e6  # [h100] b1: loaded, idle
    pcie_per_sm: float = 0.0
    busy_base: float = 0.0
    busy_exponent: float = 5.0
    power_per_sm: float = 0.0
    memory_ratio: tuple[float, float] = (0.0, 0.0)  # of the board's or instance's memory, by job
    jitter: float = 0.005  # standard deviation over mean of a 30 s sample
    noise: float = 1.0  # scale of the other signals' noise, SIGNAL_NOISE
    pattern: Pattern = Pattern.STEADY
    period_s: float = 300.0
    duty: float = 0.5
    gain: float = 1.0  # high phase over level


# [h100] relative noise of tensor, DRAM, links and power about their relation to SM activity: medians of the
# four working runs, 30 s means
SIGNAL_NOISE = (0.007, 0.0075, 0.01, 0.005)

# [acme] SM activity inside the band of each kind of training: quantiles at LEVEL_POINTS
_COMPUTE = (0.6, 0.646, 0.697, 0.765, 0.809, 0.862, 1.0)
_SMALL = (0.306, 0.424, 0.479, 0.584, 0.681, 0.725, 0.749)
_COMMUNICATION = (0.354, 0.422, 0.451, 0.513, 0.583, 0.627, 0.65)
_STARVED = (0.023, 0.077, 0.15, 0.227, 0.32, 0.374, 0.398)
# [gentd26] mean duty of a pod x SM activity per busy time of an inference GPU
_BURSTY = (0.0001, 0.0013, 0.0183, 0.02, 0.0217, 0.0404, 0.0964)

_SMALL_TRAINING = Behaviour(
    # [h100] t2
    levels=_SMALL, tensor_per_sm=0.303, dram_per_sm=0.507, nvlink_per_sm=2.72e10, pcie_per_sm=1.36e8,
    busy_exponent=1.86, power_per_sm=0.957, memory_ratio=(0.10, 0.55), jitter=0.026, noise=4.0,
)  # fmt: skip

BEHAVIOURS: dict[Archetype, Behaviour] = {
    Archetype.IDLE: Behaviour(
        fixed_level=0.0, memory_ratio=(5e-5, 5e-5), pcie_base=0.0, dram_base=1e-6,
    ),
    Archetype.COMPUTE_TRAINING: Behaviour(
        # [h100] t3; memory [h100] 70.5 GiB of 80, lower end [acme] median of fb_used
        levels=_COMPUTE, tensor_per_sm=0.664, dram_per_sm=0.421, nvlink_per_sm=3.37e9, pcie_per_sm=4.1e7,
        busy_exponent=4.99, power_per_sm=0.927, memory_ratio=(0.45, 0.95),
    ),
    Archetype.COMMUNICATION_TRAINING: Behaviour(
        # [h100] t13; the step (waiting for others in a slow phase, links busy then) is [assumed]
        levels=_COMMUNICATION, tensor_per_sm=0.235, dram_per_sm=0.701, nvlink_per_sm=2.216e11,
        nvlink_swing=-1.0, pcie_per_sm=5.52e9, busy_exponent=8.63, power_per_sm=0.942, memory_ratio=(0.35, 0.95),
        pattern=Pattern.STEP, period_s=240.0, duty=0.6, gain=1.2,
    ),
    Archetype.SMALL_TRAINING: _SMALL_TRAINING,
    Archetype.STARVED_TRAINING: Behaviour(
        # relations [h100] t2; stalls of minutes [assumed]
        levels=_STARVED, tensor_per_sm=0.303, dram_per_sm=0.507, nvlink_per_sm=2.72e10, pcie_base=2e8,
        pcie_per_sm=1.36e8, busy_exponent=1.86, power_per_sm=0.957, memory_ratio=(0.2, 0.8), jitter=0.05, noise=4.0,
        pattern=Pattern.STEP, period_s=180.0, duty=0.4, gain=2.2,
    ),
    Archetype.DECODE: Behaviour(
        # [dcgm] SMs low to middling with DRAM high; the slopes, and the power of busy memory, [assumed]
        levels=(0.15, 0.18, 0.22, 0.27, 0.33, 0.42, 0.5), occupancy_per_sm=0.35, tensor_per_sm=0.156,
        dram_per_sm=2.3, pcie_per_sm=1.36e9, busy_exponent=9.5, power_per_sm=1.2, memory_ratio=(0.85, 0.95),
        jitter=0.05, noise=4.0,
    ),
    Archetype.PREFILL: Behaviour(
        # dense compute as [h100] t3, with the PCIe traffic of inference; levels [assumed]
        levels=(0.45, 0.5, 0.56, 0.64, 0.72, 0.79, 0.85), tensor_per_sm=0.6, dram_per_sm=0.421, pcie_per_sm=1.36e9,
        busy_exponent=4.99, power_per_sm=0.927, memory_ratio=(0.8, 0.95), jitter=0.08, noise=4.0,
    ),
    Archetype.LIGHT_INFERENCE: Behaviour(
        # [h100] i4; levels from [gentd26]'s busiest pods up to i4's own [assumed]
        levels=(0.02, 0.04, 0.08, 0.14, 0.2, 0.24, 0.3), tensor_per_sm=0.155, dram_per_sm=0.623, pcie_per_sm=1.36e9,
        busy_exponent=4.31, power_per_sm=0.524, memory_ratio=(0.23, 0.9), jitter=0.15, noise=4.0,
    ),
    Archetype.NOTEBOOK: Behaviour(
        # bursts and their duty [gentd26]; relations [h100] i4
        levels=_BURSTY, tensor_per_sm=0.155, dram_per_sm=0.623, pcie_per_sm=1.36e9, busy_exponent=4.31,
        power_per_sm=0.524, memory_ratio=(0.05, 0.4), jitter=0.1, noise=4.0,
        pattern=Pattern.BURST, period_s=300.0, duty=0.3, gain=3.3,
    ),
    Archetype.HOARDER: Behaviour(
        # [h100] b1: model loaded, not one cycle; memory [acme] fb_used held while gpu_util is 0
        fixed_level=0.0, memory_ratio=(0.15, 0.9),
    ),
    Archetype.HUNG: Behaviour(
        # [dcgm] SMs ~1, tensor ~0, NVLink ~0, flat power; the power of a spin-wait [assumed]
        fixed_level=0.995, occupancy_per_sm=0.06, dram_per_sm=0.002, power_per_sm=0.25,
        memory_ratio=(0.45, 0.95), jitter=0.001, noise=0.1,
    ),
    Archetype.STARTING: Behaviour(
        # [h100] loading phases of b1 and i4
        fixed_level=0.0, dram_base=2.5e-4, pcie_base=8.5e8, busy_base=0.02, memory_ratio=(0.1, 0.5), noise=8.0,
    ),
    Archetype.CHECKPOINTING: Behaviour(
        # loaded board as [h100] b1, copying out; the rate [assumed]
        fixed_level=0.01, dram_per_sm=2.0, pcie_base=3e9, busy_base=0.05, memory_ratio=(0.45, 0.95), noise=8.0,
    ),
    Archetype.ROGUE: _SMALL_TRAINING,
    Archetype.KEEP_ALIVE: Behaviour(
        # a small kernel on a few SMs, 1-3 %; that it makes little memory traffic and heat [assumed]
        levels=(0.01, 0.012, 0.015, 0.02, 0.025, 0.028, 0.03), dram_per_sm=0.05, busy_exponent=150.0,
        power_per_sm=0.3, memory_ratio=(0.15, 0.9), jitter=0.02,
    ),
    Archetype.WARM_STANDBY: Behaviour(
        # relations [h100] i4; one probe of some 100 ms each five minutes [assumed]
        levels=(0.00002, 0.00004, 0.00006, 0.0001, 0.00015, 0.00022, 0.0003), tensor_per_sm=0.155, dram_per_sm=0.623,
        pcie_per_sm=1.36e9, busy_exponent=4.31, power_per_sm=0.524, memory_ratio=(0.23, 0.9), jitter=0.1, noise=4.0,
        pattern=Pattern.STEP, period_s=300.0, duty=0.1, gain=10.0,
    ),
    Archetype.TRICKLE_DECODE: Behaviour(
        # as DECODE at a twentieth of its load: every token still reads the whole model [assumed]
        levels=(0.004, 0.006, 0.01, 0.015, 0.022, 0.035, 0.05), occupancy_per_sm=0.35, tensor_per_sm=0.05,
        dram_per_sm=6.0, pcie_per_sm=1.36e9, busy_exponent=30.0, power_per_sm=1.5, memory_ratio=(0.85, 0.95),
        jitter=0.1, noise=4.0,
    ),
    Archetype.DATA_LOADING: Behaviour(
        # relations [h100] t2; phases of half an hour in which batches are only staged on the device [assumed]
        levels=(0.05, 0.08, 0.12, 0.16, 0.2, 0.24, 0.28), tensor_per_sm=0.303, dram_base=1e-4, dram_per_sm=0.507,
        nvlink_per_sm=2.72e10, pcie_base=2e8, pcie_per_sm=1.36e8, busy_exponent=1.86, power_per_sm=0.957,
        memory_ratio=(0.2, 0.8), jitter=0.05, noise=4.0, pattern=Pattern.STEP, period_s=2400.0, duty=0.3, gain=3.33,
    ),
    Archetype.SPARSE_SERVICE: Behaviour(
        # relations [h100] i4; a second or more of work each five minutes [assumed]
        levels=(0.0003, 0.0006, 0.001, 0.002, 0.004, 0.008, 0.015), tensor_per_sm=0.155, dram_per_sm=0.623,
        pcie_per_sm=1.36e9, busy_exponent=4.31, power_per_sm=0.524, memory_ratio=(0.23, 0.9), jitter=0.1, noise=4.0,
        pattern=Pattern.STEP, period_s=300.0, duty=0.1, gain=10.0,
    ),
    Archetype.INTERMITTENT: Behaviour(
        # work between short gaps [gentd26]: 179 s of 483 s; relations [h100] i4; levels [assumed]
        levels=(0.004, 0.01, 0.02, 0.05, 0.1, 0.2, 0.3), tensor_per_sm=0.155, dram_per_sm=0.623, pcie_per_sm=1.36e9,
        busy_exponent=4.31, power_per_sm=0.524, memory_ratio=(0.05, 0.6), jitter=0.1, noise=4.0,
        pattern=Pattern.STEP, period_s=480.0, duty=0.37, gain=2.7,
    ),
}  # fmt: skip

# Shares of allocated GPU time by kind of work.
# training: [acme] non-negative least squares on Seren's SM activity; hoarders = P(memory held) - P(GPU util
# > 0); half of the other idle fraction (.026) goes to notebooks, half to starved jobs; hung [assumed].
_TRAINING = {
    Archetype.COMPUTE_TRAINING: 0.474,
    Archetype.SMALL_TRAINING: 0.131,
    Archetype.COMMUNICATION_TRAINING: 0.192,
    Archetype.STARVED_TRAINING: 0.109,
    Archetype.HOARDER: 0.078,
    Archetype.NOTEBOOK: 0.013,
    Archetype.HUNG: 0.003,
}
MIXES: dict[str, dict[Archetype, float]] = {
    "training": _TRAINING,
    # [assumed]: no public data set gives SM activity by inference job
    "inference": {
        Archetype.DECODE: 0.40,
        Archetype.PREFILL: 0.15,
        Archetype.LIGHT_INFERENCE: 0.40,
        Archetype.HOARDER: 0.05,
    },
    # [assumed]
    "interactive": {Archetype.NOTEBOOK: 0.75, Archetype.HOARDER: 0.15, Archetype.SMALL_TRAINING: 0.10},
    # no hints on the job: the mix of Seren's fleet
    "unknown": _TRAINING,
}

_HINTS = (  # first match wins; looked up in the kind, then in the name
    ("interactive", ("notebook", "jupyter", "interactive", "devbox", "debug", "ide")),
    ("inference", ("infer", "serv", "deploy", "replica", "decode", "prefill", "llm-api", "generat")),
    ("training", ("train", "tune", "sft", "rlhf", "batch", "gang", "mpi")),
)
_NAMED = (  # a name that identifies the archetype
    ("hoard", Archetype.HOARDER),
    ("decode", Archetype.DECODE),
    ("prefill", Archetype.PREFILL),
    ("notebook", Archetype.NOTEBOOK),
    ("jupyter", Archetype.NOTEBOOK),
)


KINDS = {
    "intermittent": Archetype.INTERMITTENT,
    "keep-alive": Archetype.KEEP_ALIVE,
    "warm-standby": Archetype.WARM_STANDBY,
    "sparse-service": Archetype.SPARSE_SERVICE,
    "trickle-decode": Archetype.TRICKLE_DECODE,
    "data-loading": Archetype.DATA_LOADING,
    "hoarder": Archetype.HOARDER,
    "compute-training": Archetype.COMPUTE_TRAINING,
    "communication-training": Archetype.COMMUNICATION_TRAINING,
    "small-training": Archetype.SMALL_TRAINING,
    "starved-training": Archetype.STARVED_TRAINING,
}
"""Kinds of jobs that are exactly one archetype: the truth of a scenario, which no snapshot shows."""

ABSENT = (Archetype.HOARDER, Archetype.HOARDER, Archetype.HOARDER, Archetype.WARM_STANDBY, Archetype.KEEP_ALIVE)
"""What a GPU looks like while its owner is away, drawn uniformly by job. The shares are [assumed]."""


def absent_look(seed: int, job_id: str) -> tuple[int, float]:
    """(archetype, level) of the GPUs of a job while its owner is away."""
    bits = np.frombuffer(blake2b(f"away/{seed}/{job_id}".encode(), digest_size=16).digest(), "<u8")
    share = bits.astype(np.float64) * 2.0**-64
    look = ABSENT[min(int(share[0] * len(ABSENT)), len(ABSENT) - 1)]
    return int(look), float(np.interp(share[1], LEVEL_POINTS, BEHAVIOURS[look].levels))


def mix_of(kind: str = "", slo_class: str = "", name: str = "") -> str:
    """The key of `MIXES` for the hints of a job; "unknown" without usable hints."""
    for text in (kind.lower(), name.lower()):
        for mix, words in _HINTS:
            if any(word in text for word in words):
                return mix
    return {"latency-critical": "inference", "interactive": "interactive"}.get(slo_class, "unknown")


@lru_cache(maxsize=1 << 16)
def _hinted(kind: str, slo_class: str, name: str) -> Archetype | str:
    """The archetype that the hints name, else the mix that they indicate."""
    if kind in KINDS:
        return KINDS[kind]
    named = next((a for word, a in _NAMED if word in name.lower() or word in kind.lower()), None)
    return mix_of(kind, slo_class, name) if named is None else named


def draw_jobs(
    seed: int,
    job_ids: Sequence[str],
    kinds: Sequence[str] | None = None,
    slo_classes: Sequence[str] | None = None,
    names: Sequence[str] | None = None,
) -> tuple[I8, F32]:
    """Archetype and mean SM activity of each job, a function of (seed, job id, hints) alone.

    Returns two arrays of shape [jobs]. The columns of hints, where given, have one entry a job ("" if
    unknown): `kinds` and `names` as the trace has them, `slo_classes` from snapshot.SLO_CLASS_NAMES.
    """
    blank = [""] * len(job_ids)
    hints = list(zip(kinds or blank, slo_classes or blank, names or blank, strict=True))
    invariant(len(hints) == len(job_ids), "hints of jobs differ in length from their ids")
    digests = b"".join(blake2b(f"{seed}/{job}".encode(), digest_size=16).digest() for job in job_ids)
    uniform = np.frombuffer(digests, "<u8").astype(np.float64).reshape(-1, 2) * 2.0**-64
    archetypes = np.zeros(len(job_ids), np.int8)
    groups: dict[str, list[int]] = {}
    for row, (kind, slo_class, name) in enumerate(hints):
        hinted = _hinted(kind, slo_class, name)
        if isinstance(hinted, Archetype):
            archetypes[row] = hinted
        else:
            groups.setdefault(hinted, []).append(row)
    for mix, rows in groups.items():
        members = np.array(list(MIXES[mix]), np.int8)
        edges = np.cumsum(list(MIXES[mix].values()))
        pick = np.searchsorted(edges, uniform[rows, 0] * edges[-1], side="right")
        archetypes[rows] = members[np.minimum(pick, len(members) - 1)]
    levels = np.zeros(len(job_ids))
    for archetype, behaviour in BEHAVIOURS.items():
        rows_of = np.flatnonzero(archetypes == archetype)
        levels[rows_of] = np.interp(uniform[rows_of, 1], LEVEL_POINTS, behaviour.levels)
    return archetypes, effective_level(archetypes, levels).astype(np.float32)


_SCALE = np.array([0.0 if b.fixed_level is not None else 1.0 for b in BEHAVIOURS.values()])
_FIXED = np.array([b.fixed_level or 0.0 for b in BEHAVIOURS.values()])


def effective_level(archetype: NDArray[np.integer], level: NDArray[np.floating]) -> F64:
    """Mean SM activity in the present state: the job's own level, or the level of a state that has one."""
    return np.asarray(_FIXED[archetype] + _SCALE[archetype] * level)


def sm_active_gpu_s(
    archetype: NDArray[np.integer],
    level: NDArray[np.floating],
    since_s: NDArray[np.floating],
    from_s: float,
    to_s: float,
    share: NDArray[np.floating] | float = 1.0,
) -> F64:
    """Expected SM-active GPU-seconds of entities within [from_s, to_s], shape [entities].

    Mean level x time in this state x share of a GPU (compute share of a MIG instance). Patterns and noise
    keep that mean (over whole periods), so samples of the generator average to it.
    """
    time_s = np.maximum(to_s - np.maximum(since_s, from_s), 0.0)
    return np.asarray(effective_level(archetype, level) * time_s * share)


@dataclass(frozen=True, slots=True)
class Board:
    """A GPU board: power limit from the vendor's data sheet, idle and loaded-but-idle power, memory."""

    product: str
    memory_mib: int
    limit_w: float
    idle_w: float
    loaded_w: float


def _board(product: str, memory_gib: float, limit_w: float, idle: float = 0.159, loaded: float = 0.241) -> Board:
    return Board(product, int(memory_gib * 1024), limit_w, round(idle * limit_w, 1), round(loaded * limit_w, 1))


# Idle and loaded-but-idle: A100 [acme] 63.5 W and 96.5 W of 400 W (lower half of unallocated GPUs; the
# plateau of loaded ones), H100 [h100] 74 W and 120 W of 700 W. Others use the ratios of their
# generation [assumed]. The longest key that is part of a GPU model's name is used.
BOARDS: dict[str, Board] = {
    "P100": _board("Tesla P100-PCIE-16GB", 16, 250),
    "V100": _board("Tesla V100-SXM2-32GB", 32, 300),
    "T4": _board("Tesla T4", 15, 70),
    "A10": _board("NVIDIA A10", 22.5, 150),
    "A30": _board("NVIDIA A30", 24, 165),
    "A100": _board("NVIDIA A100-SXM4-80GB", 80, 400),
    "A100-40": _board("NVIDIA A100-SXM4-40GB", 40, 400),
    "L40": _board("NVIDIA L40S", 45, 350),
    "H20": _board("NVIDIA H20", 96, 400, 0.106, 0.171),
    "H100": _board("NVIDIA H100 80GB HBM3", 80, 700, 0.106, 0.171),
    "H200": _board("NVIDIA H200", 141, 700, 0.106, 0.171),
    "B200": _board("NVIDIA B200", 180, 1000, 0.106, 0.171),
    "B300": _board("NVIDIA B300", 270, 1200, 0.106, 0.171),
}


def board_of(gpu_model: str) -> Board:
    """The board of a GPU model name; an unknown name is an A100-like board of its own name.

    Memory comes from the MIG facts where they cover the model.
    """
    keys = [key for key in BOARDS if key in gpu_model.upper()]
    board = BOARDS[max(keys, key=len)] if keys else _board(gpu_model or "GPU", 80, 400)
    facts = find_gpu_model(gpu_model)
    if facts is not None and facts.memory_gb * 1024 != board.memory_mib:
        board = Board(board.product, facts.memory_gb * 1024, board.limit_w, board.idle_w, board.loaded_w)
    return board
