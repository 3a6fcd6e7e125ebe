"""Which work may share a GPU by software under the rules, and the most SM activity that sharing could reach.

The rules: work that is latency-critical or does not state `share` never does (class); nor untrusted work (trust), work
wider than four GPUs (width), and work beside whose footprint even the smallest of those left exceeds `MOST_MEMORY` of
the GPU (memory). Of development work four share a GPU at most, of batch work two. The reasons are asked in this order.

The bound packs statically, without interference. On any GPU the footprints m (over `MOST_MEMORY`), the SM activities u
and the counts 1/k of those on it sum up to 1 at most each, and so does any mean of the three. So with weights a + b + c
= 1 work needs at least the part s = a m + b u + c / k of each of its GPUs; other work has s = 1. Its density is u / s,
and as for the bound without sharing (simulator/outcome/real_use.py)

    bound = least over the weights of: sum over densities of (density - next lower) x GPU-seconds served of work at or
            above the density, each piece with its width x s

Tenants are not kept apart, and a GPU may be divided into any parts: no schedule under the rules does more. It runs the
most active work first, as the bound without sharing does. Where work waits all day, two more figures keep the mix of
the work list instead, each kind with the same part of its demand up to the last arrival; a policy that prefers active
work may exceed them:

    packed = A x min(1, capacity / P), A = sum of u x GPU-seconds asked for,
             P = most over the weights of: sum of s x GPU-seconds asked for; unpacked is the same with s = 1
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from autopilot.core.model.objects import Share, Trust
from autopilot.core.model.snapshot import SloClass
from simulator.running.accounting import served_gpu_s
from simulator.world.sharing import Loads
from simulator.world.work import Jobs

MOST_MEMORY = 0.92
MOST_WIDTH = 4
MOST_ON_A_GPU = {Share.DEV: 4, Share.PAIR: 2}
DENSITY_STEP = 0.02
"""Densities are rounded up to it."""
WEIGHTS = (
    (1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (0.0, 0.0, 1.0), (0.5, 0.5, 0.0), (0.7, 0.3, 0.0), (0.5, 0.0, 0.5),
    (0.4, 0.3, 0.3),
)  # fmt: skip
"""Of memory, activity and count: those tried for the least bound."""


class Rule(StrEnum):
    """Whether work may share, or the first reason against it."""

    SHARES = "shares"
    CLASS = "class"
    TRUST = "trust"
    WIDTH = "width"
    MEMORY = "memory"


@dataclass(frozen=True, slots=True)
class Sharable:
    """What the rules say of one piece of work, and what it needs of a GPU."""

    rule: Rule
    memory: float = 1.0  # footprint over `MOST_MEMORY` of the GPU
    most: int = 1  # of its kind on a GPU

    def least_part(self, activity: float, weights: tuple[float, float, float]) -> float:
        """The least part of a GPU that it needs by these weights."""
        if self.rule is not Rule.SHARES:
            return 1.0
        return min(weights[0] * self.memory + weights[1] * activity + weights[2] / self.most, 1.0)


ALONE = Sharable(Rule.CLASS)


def sharable_work(jobs: Jobs, loads: Loads, gpu_model: str) -> list[Sharable]:
    """Of each job, on GPUs of a model."""
    room = loads.memory_mib(gpu_model) * MOST_MEMORY
    rules = [_rule(jobs, job) for job in range(len(jobs))]
    footprints = [
        loads.footprint_mib(job, gpu_model) / room if rule is Rule.SHARES else 1.0 for job, rule in enumerate(rules)
    ]
    least = min((each for each, rule in zip(footprints, rules, strict=True) if rule is Rule.SHARES), default=1.0)
    found = []
    for job, (rule, footprint) in enumerate(zip(rules, footprints, strict=True)):
        fits = rule is not Rule.SHARES or footprint + least <= 1.0
        most = MOST_ON_A_GPU.get(Share(jobs.share[job]), 1)
        found.append(Sharable(rule if fits else Rule.MEMORY, footprint, most))
    return found


def _rule(jobs: Jobs, job: int) -> Rule:
    shape = jobs.shape_of(job)
    if jobs.share[job] == Share.NEVER or jobs.slo_class[job] == SloClass.LATENCY_CRITICAL or not shape.whole:
        return Rule.CLASS
    if jobs.trust[job] == Trust.UNTRUSTED:
        return Rule.TRUST
    return Rule.WIDTH if shape.gpus > MOST_WIDTH else Rule.SHARES


@dataclass(frozen=True, slots=True)
class Piece:
    """Work as it would run if it started at its arrival."""

    from_s: float
    to_s: float
    gpus: float
    level: float
    sharable: Sharable = ALONE


def shared_bound(pieces: Sequence[Piece], gpus: float, until_s: float) -> float:
    """The most SM-active GPU-seconds within reach with shared GPUs."""
    asked = [each for each in pieces if each.level > 0 and each.gpus > 0]
    if not asked:
        return 0.0
    return min(_most(asked, weights, gpus, until_s) for weights in WEIGHTS)


def packed(pieces: Sequence[Piece], gpus: float, until_s: float, *, shares: bool = True) -> float:
    """SM-active GPU-seconds up to a time with the mix of all work, packed under the rules, or each piece alone."""
    asked = [(each, each.gpus * max(min(each.to_s, until_s) - each.from_s, 0.0)) for each in pieces]
    active = sum(each.level * gpu_s for each, gpu_s in asked)
    needed = max(
        sum((each.sharable.least_part(each.level, weights) if shares else 1.0) * gpu_s for each, gpu_s in asked)
        for weights in WEIGHTS
    )
    return active * min(1.0, gpus * until_s / needed) if needed > 0 else 0.0


def _most(pieces: Sequence[Piece], weights: tuple[float, float, float], gpus: float, until_s: float) -> float:
    part = np.array([max(each.sharable.least_part(each.level, weights), 1e-3) for each in pieces])
    begin_s, end_s, width, level = np.array([(p.from_s, p.to_s, p.gpus, p.level) for p in pieces], float).T
    density = np.ceil(level / part / DENSITY_STEP - 1e-9) * DENSITY_STEP
    found = 0.0
    steps = np.unique(density)
    for this, lower in zip(steps[::-1], [*steps[-2::-1], 0.0], strict=True):
        on = density >= this
        found += (this - lower) * served_gpu_s(begin_s[on], end_s[on], (width * part)[on], gpus, until_s)
    return float(min(found, gpus * until_s))
