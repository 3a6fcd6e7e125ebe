"""Generated days of training gangs, healthy ones and ones with a slow member; the truth is kept apart.

A gang has stages times ranks, with one GPU a rank and eight GPUs a node. Healthy ranks differ as the real ones of
simulator/signals/rank_times.py do, by a factor of one to three more. Made hard by: last stages that compute more,
stages with and without a number, first ranks with work of their own, pauses of single ranks, minutes of slow storage
at one rank, clocks and throttling without any slowness, silent nodes, members without telemetry, gangs that end within
the day. A slow rank begins with the gang or later, and lasts.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from autopilot.core.model.snapshot import F64, I32, Bools, Texts
from models.members import Gangs, Members
from simulator.signals.rank_times import (
    BUSY_SHARE,
    BY_CLOCK,
    CAUSE_CHANCES,
    CAUSES,
    LAST_STAGE,
    RANK_SD,
    STEP_SD,
    Cause,
    drawn_ratios,
)

MINUTES = 1440
LEAST_RUN, LEAST_SLOW = 240, 60  # minutes of a gang, and of a slow rank
CLOCK_MHZ, WIDTH = 1755.0, 16.0
SIGNAL_SD = 0.01
WILDEST = 3.0
"""The most by which ranks of a gang differ more than those of the real jobs."""


@dataclass(frozen=True, slots=True)
class Slow:
    """The truth about one slow rank."""

    uid: str
    node: str
    gpu: str
    ratio: float
    cause: Cause
    reported: bool  # its program reports the time of a step
    begin: int  # minutes
    end: int
    lost_ratio: float  # part of the time that its gang loses
    gpus: int


@dataclass(frozen=True, slots=True)
class Day:
    """Minutes of gangs, and who was slow in them."""

    gangs: tuple[Minutes, ...]
    slow: tuple[Slow, ...]

    def at(self, minute: int) -> Members | None:
        """The members of the gangs that run in a minute; None while none runs."""
        parts = [each.at(minute) for each in self.gangs if each.begin <= minute < each.end]
        return joined(parts) if parts else None


@dataclass(frozen=True, slots=True)
class Minutes:
    """One gang: its members, and what they show [minutes of the day, members]."""

    members: Members
    begin: int
    end: int
    busy_s: F64
    tensor: F64
    sm: F64
    clock_mhz: F64
    thermal: F64
    brake: F64
    steps_per_s: F64  # [minutes]

    def at(self, minute: int) -> Members:
        """Its members in a minute."""
        row = minute - self.begin
        gangs = replace(self.members.gangs, steps_per_s=self.steps_per_s[row : row + 1])
        return replace(
            self.members,
            gangs=gangs,
            busy_s=self.busy_s[row],
            tensor=self.tensor[row],
            sm=self.sm[row],
            clock_mhz=self.clock_mhz[row],
            thermal=self.thermal[row],
            brake=self.brake[row],
        )


def joined(parts: list[Members]) -> Members:
    """Members of several gangs in one table."""
    names = [each for each in Members.__dataclass_fields__ if each not in ("gangs", "gang")]
    gangs = Gangs(*(np.concatenate([getattr(p.gangs, f) for p in parts]) for f in Gangs.__dataclass_fields__))
    code = np.repeat(np.arange(len(parts)), [len(each.gang) for each in parts])
    return Members(gangs, code, *(np.concatenate([getattr(each, name) for each in parts]) for name in names))


def day_of(seed: int, gangs: int, slow_share: float, reported_share: float = 0.75) -> Day:
    """A day of `gangs` gangs; `slow_share` of them have a slow rank, `reported_share` report the time of a step."""
    rng = np.random.default_rng([seed, gangs, round(100 * slow_share)])
    made = [_gang(rng, f"{seed}-{number}", rng.random() < slow_share, reported_share) for number in range(gangs)]
    return Day(tuple(each for each, _ in made), tuple(each for _, each in made if each is not None))


@dataclass(frozen=True, slots=True)
class _Drawn:
    """What a gang is: its names, its stages, and which rank is slow when."""

    name: str
    begin: int
    stage: I32
    own: F64  # work of a rank in a step, over that of the mean
    at: int  # the slow rank
    cause: Cause
    slow: Bools  # [minutes, members]
    ratio: float
    reported: bool
    numbered: bool

    @property
    def shape(self) -> tuple[int, int]:
        """Minutes and members."""
        return self.slow.shape[0], self.slow.shape[1]

    @property
    def nodes(self) -> Texts:
        """Eight members a node."""
        return np.array([f"n-{self.name}-{rank // 8}" for rank in range(len(self.own))], object)

    @property
    def gpus(self) -> Texts:
        """A GPU each."""
        return np.array([f"GPU-{self.name}-{rank}" for rank in range(len(self.own))], object)


def _gang(rng: np.random.Generator, name: str, has_slow: bool, reported_share: float) -> tuple[Minutes, Slow | None]:
    stages, ranks = int(rng.choice([1, 1, 2, 4, 8])), int(rng.choice([2, 4, 4, 8, 16]))
    size, run = stages * ranks, int(rng.integers(LEAST_RUN, MINUTES + 1))
    begin, wild = int(rng.integers(0, MINUTES - run + 1)), rng.uniform(1.0, WILDEST)
    reported, numbered = rng.random() < reported_share, stages == 1 or rng.random() < 0.8
    work = np.exp(rng.normal(0.0, 0.03, stages))
    work[-1] *= rng.uniform(*LAST_STAGE) if stages > 1 else 1.0
    stage = np.repeat(np.arange(stages, dtype=np.int32), ranks)
    own = work[stage] * np.exp(rng.normal(0.0, wild * RANK_SD, size))
    own[0] *= np.exp(rng.uniform(0.01, 0.04) * (rng.random() < 0.25))
    slow, at, ratio, cause, first, last = np.zeros((run, size), np.bool_), 0, 1.0, Cause.HOST, 0, 0
    if has_slow:
        at, cause = int(rng.integers(size)), CAUSES[int(rng.choice(len(CAUSES), p=CAUSE_CHANCES))]
        first = 0 if rng.random() < 0.3 else int(rng.integers(0, run - LEAST_SLOW))
        last = min(run, first + max(int(rng.exponential(360.0)), LEAST_SLOW))
        slow[first:last, at], ratio = True, float(drawn_ratios(rng, 1)[0])
    drawn = _Drawn(name, begin, stage, own, at, cause, slow, ratio, reported, numbered)
    step_s, share = float(np.exp(rng.uniform(0.0, np.log(60.0)))), rng.uniform(*BUSY_SHARE)
    if stages == 1:
        share = rng.uniform(0.6, 0.9)  # no bubbles [assumed]
    busy = own * np.exp(rng.normal(0.0, wild * STEP_SD / max(60.0 / step_s, 1.0) ** 0.5, (run, size))) * step_s * share
    _disturb(rng, busy)
    busy[slow] *= ratio
    # a step lasts as long as its slowest rank computes, and as the gang communicates
    healthy_s = float((step_s * share * own).max())
    rest_s = healthy_s * (1.0 / share - 1.0)
    minutes = _shown(rng, drawn, busy, busy.max(axis=1) + rest_s)
    if not has_slow:
        return minutes, None
    lost = max(1.0 - (healthy_s + rest_s) / (float(own[at]) * ratio * step_s * share + rest_s), 0.0)
    node, gpu = str(drawn.nodes[at]), str(drawn.gpus[at])
    return minutes, Slow(name, node, gpu, ratio, cause, reported, begin + first, begin + last, lost, size)


def _disturb(rng: np.random.Generator, minutes: F64) -> None:
    """Pauses of single ranks, and some minutes of slow storage at one rank: neither is a straggler."""
    run, size = minutes.shape
    for row in np.flatnonzero(rng.random(run) < 0.05).tolist():
        minutes[row, rng.integers(size)] *= rng.uniform(1.1, 1.5)
    for _ in range(rng.poisson(0.7)):
        row, length = int(rng.integers(run)), int(rng.integers(3, 8))
        minutes[row : row + length, rng.integers(size)] *= rng.uniform(1.1, 1.5)


def _shown(rng: np.random.Generator, drawn: _Drawn, busy_s: F64, step_s: F64) -> Minutes:
    """What the members of a gang show."""
    (run, size), cause = drawn.shape, drawn.cause
    # the tensor cores do the same work in a step; a GPU with slower clocks needs more of its cycles for it
    by_clock = np.where(drawn.slow & (cause in BY_CLOCK), drawn.ratio, 1.0)
    base = drawn.own * by_clock * (step_s.min() / step_s)[:, None]
    tensor = rng.uniform(0.2, 0.55) * base * (1.0 + rng.normal(0.0, SIGNAL_SD, (run, size)))
    sm = (0.15 + 0.6 * base) * (1.0 + rng.normal(0.0, SIGNAL_SD, (run, size)))
    clock = CLOCK_MHZ * (1.0 + rng.normal(0.0, 0.004, size)) / by_clock
    thermal = np.where(drawn.slow & (cause is Cause.THERMAL), rng.uniform(0.3, 1.0), 0.0)
    brake = np.where(drawn.slow & (cause is Cause.POWER_BRAKE), rng.uniform(0.3, 1.0), 0.0)
    if rng.random() < 0.05:  # throttled, and not slow
        thermal[:, rng.integers(size)] = 0.4
    width, remap = np.full(size, WIDTH), np.zeros(size, np.int8)
    if drawn.slow.any() and cause is Cause.PCIE:
        width[drawn.at] = WIDTH / 2
    if (drawn.slow.any() and cause is Cause.REMAP) or rng.random() < 0.01:
        remap[drawn.at] = 1
    _hide(rng, drawn.nodes, tensor, sm, clock, thermal, brake)
    busy = busy_s if drawn.reported else np.full((run, size), np.nan)
    pace = 1.0 / step_s if drawn.reported else np.full(run, np.nan)
    gangs = Gangs(
        np.array([f"team/{drawn.name}"], object),
        np.array([drawn.name], object),
        np.zeros(1, np.int32),
        np.array([size], np.int32),
        pace[:1],
    )
    members = Members(
        gangs=gangs,
        gang=np.zeros(size, np.int64),
        node=drawn.nodes,
        gpu=drawn.gpus,
        rank=np.arange(size, dtype=np.int32),
        stage=drawn.stage if drawn.numbered else np.full(size, -1, np.int32),
        busy_s=busy[0],
        tensor=tensor[0],
        sm=sm[0],
        clock_mhz=clock[0],
        thermal=thermal[0],
        brake=brake[0],
        pcie_width=width,
        xid=np.zeros(size, np.int32),
        remap=remap,
    )
    return Minutes(members, drawn.begin, drawn.begin + run, busy, tensor, sm, clock, thermal, brake, pace)


def _hide(rng: np.random.Generator, node: Texts, *signals: F64) -> None:
    """Nodes that are silent for some minutes, and now and then a member without telemetry."""
    run, size = signals[0].shape
    hidden: Bools = np.zeros((run, size), np.bool_)
    for _ in range(rng.poisson(1.0)):
        row, length = int(rng.integers(run)), int(rng.integers(3, 31))
        hidden[row : row + length, node == node[rng.integers(size)]] = True
    if rng.random() < 0.05:
        hidden[:, rng.integers(size)] = True
    for each in signals:
        each[hidden] = np.nan
