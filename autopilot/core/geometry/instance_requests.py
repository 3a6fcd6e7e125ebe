"""Requests for MIG instances: waiting ones, in the order of service, and those expected by the demand mix.

A waiting replica called for by a forecast alone counts by the chance that its load needs it.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np

from autopilot.core.geometry.cutting import chances_of
from autopilot.core.geometry.layouts import placements_of
from autopilot.core.geometry.pools import Pool, shares_of
from autopilot.core.hardware import mig
from autopilot.core.model.forecast import ExpectedMix
from autopilot.core.model.records import Code
from autopilot.core.model.snapshot import F64, I64, Topology
from autopilot.core.planning.context import Context
from autopilot.core.planning.foreseen_replicas import chances_needed
from autopilot.core.planning.plan_state import CODE_INDEX

MOST_CHANCE = 1.0 - 1e-9
"""A replica that is only foreseen is never sure: GPUs are drained for what is needed alone."""


@dataclass(slots=True)
class Waiting:
    """Gangs waiting for instances without having found any, in the order of service. Foreseen replicas come last."""

    at: list[int]  # positions
    left: list[int]  # instances that each still needs
    chance: list[float]  # that it needs them: 1, or less for a replica that only a forecast calls for

    def needs(self, profiles: int, asks: list[int]) -> I64:
        """[profiles] instances needed for sure. `asks`: the profile of each gang, -1 for none."""
        pending = np.zeros(profiles, np.int64)
        for profile, left, chance in zip(asks, self.left, self.chance, strict=True):
            if profile >= 0 and chance >= 1.0:
                pending[profile] += left
        return pending

    def foreseen(self, chances: F64, asks: list[int]) -> F64:
        """[profiles, depth] these chances of requests for at least 1, 2, ... more, with the foreseen replicas."""
        more: dict[int, list[float]] = {}
        for profile, left, chance in zip(asks, self.left, self.chance, strict=True):
            if profile >= 0 and chance < 1.0:
                more.setdefault(profile, []).extend([chance] * left)
        if not more:
            return chances
        every = [sorted([*row, *more.get(profile, ())], reverse=True) for profile, row in enumerate(chances.tolist())]
        depth = max(map(len, every))
        return np.array([row + [0.0] * (depth - len(row)) for row in every])


def waiting_for_instances(ctx: Context) -> Waiting:
    """Gangs of single instances, each with its own place, without a free instance for them."""
    work = ctx.observation.snapshot.workloads
    waiting = dict.fromkeys(ctx.waiting(frozenset({Code.MIG_GEOMETRY})), 1.0)
    if ctx.policy.regeometry.ahead:
        left, missed = ctx.plan.undecided(), CODE_INDEX[Code.MIG_GEOMETRY]
        chances = chances_needed(ctx, left[ctx.pending_table.may_ask[left]].tolist())
        waiting |= {at: min(one, MOST_CHANCE) for at, (_, one) in chances.items() if ctx.plan.code[at] == missed}
    found = [
        at
        for at in waiting
        if (row := int(ctx.pending[at])) not in ctx.members
        and work.gpus_per_member[row] == 1
        and work.topology[row] == Topology.NONE
        and work.mig_profile[row] >= 0
    ]
    return Waiting(found, [int(work.gpus[ctx.pending[at]]) for at in found], [waiting[at] for at in found])


def counts_in(pool: Pool, bits: int) -> I64:
    """[profiles] instances in a bit set."""
    found = Counter(place.profile for place in placements_of(pool.layouts.model, bits))
    return np.array([found[name] for name in pool.layouts.profiles], np.int64)


def asks_of(ctx: Context, pool: Pool, waiting: Waiting) -> list[int]:
    """The profile of each waiting gang in this pool; -1 if the pool cannot serve it."""
    work, names = ctx.observation.snapshot.workloads, ctx.observation.snapshot.names
    found = []
    for at, left in zip(waiting.at, waiting.left, strict=True):
        row = int(ctx.pending[at])
        profile = mig.find_profile(pool.layouts.model, names.profiles[int(work.mig_profile[row])])
        allowed = not work.gpu_models[row] or int(work.gpu_models[row]) >> pool.model & 1
        known = left > 0 and allowed and profile is not None and profile.name in pool.layouts.profiles
        found.append(pool.layouts.profiles.index(profile.name) if known and profile is not None else -1)
    return found


def serve(ctx: Context, waiting: Waiting, asks: list[int], made: I64, seconds: float) -> None:
    """Give instances being made to gangs in order, and leave these gangs alone."""
    for number, profile in enumerate(asks):
        if profile >= 0 and 0 < waiting.left[number] <= made[profile]:
            made[profile] -= waiting.left[number]
            waiting.left[number] = 0
            asks[number] = -1
            ctx.plan.serve(waiting.at[number], seconds)


def mix_within(ctx: Context, within_s: float) -> tuple[ExpectedMix, int, float, tuple[float, ...]] | None:
    """The demand mix, its horizon (column) nearest to `within_s`, the part of that time, and the levels that count.

    None if nothing is cut ahead, or the mix has too little data behind it.
    """
    rules, mix = ctx.policy.regeometry, ctx.observation.forecasts.mix
    if not rules.ahead or mix is None or mix.reason or mix.watched_h < rules.watched_h or not len(mix.horizons_s):
        return None
    horizon = min(range(len(mix.horizons_s)), key=lambda each: abs(mix.horizons_s[each] - within_s))
    levels = tuple(level for level in mix.levels if level <= rules.level)
    return (mix, horizon, min(within_s / mix.horizons_s[horizon], 1.0), levels) if levels else None


def expected_requests(ctx: Context, pool: Pool, within_s: float) -> tuple[F64, F64]:
    """Requests within `within_s` by the demand mix: [profiles, depth] chances, and [profiles] mean number."""
    profiles, found = pool.layouts.profiles, mix_within(ctx, within_s)
    if found is None:
        return np.zeros((len(profiles), 0)), np.zeros(len(profiles))
    mix, horizon, part, levels = found
    counts, mean = np.zeros((len(profiles), len(levels))), np.zeros(len(profiles))
    model = ctx.observation.snapshot.names.gpu_models[pool.model]
    for row, kind in enumerate(mix.kinds):
        profile = mig.find_profile(pool.layouts.model, kind.profile) if kind.profile else None
        if profile is None or profile.name not in profiles or (kind.gpu_models and model not in kind.gpu_models):
            continue
        place = profiles.index(profile.name)
        counts[place] += mix.counts[row, horizon, : len(levels)] * kind.gpus * part
        mean[place] += mix.expected[row, horizon] * kind.gpus * part
    return chances_of(levels, np.ceil(counts)), mean


def worth_gpu_s(ctx: Context, pool: Pool, waiting: Waiting, asks: list[int]) -> F64:
    """[profiles] worth of serving one request, in GPU-seconds, up to the horizon."""
    life_s = np.full(len(pool.layouts.profiles), ctx.policy.regeometry.life_s)
    for profile in set(asks) - {-1}:
        runs_s = [
            float(ctx.run_low_s[at]) if ctx.known[at] else ctx.policy.regeometry.life_s
            for at, ask in zip(waiting.at, asks, strict=True)
            if ask == profile
        ]
        life_s[profile] = float(np.mean(runs_s))
    return np.asarray(np.minimum(life_s, ctx.policy.horizon_s) * shares_of(pool.layouts))


def partly_served(waiting: Waiting, asks: list[int], room: I64) -> int:
    """The last gang of several instances with room for some but not for all of them; -1: none."""
    left, found = room.copy(), -1
    for number, profile in enumerate(asks):
        if profile < 0:
            continue
        if waiting.left[number] <= left[profile]:
            left[profile] -= waiting.left[number]
        elif 0 < left[profile]:
            found = number
    return found
