"""One tick of 50,000 GPUs of which a fifth are cut, beside the same size without MIG.

A fifth of the nodes have all their GPUs in MIG mode, cut into one geometry; nine tenths of the instances are held.
2,000 requests for MIG instances and 3,000 gangs wait, and every action is on. The ratio is that of the CPU seconds of a
whole tick (everything new) to those of 5,000 gangs on 50,000 GPUs without MIG, under the policy `autopilot`, in the
same run.

    python -m benchmarks tick_cut [--quick] [--rounds 3] [--json OUT]
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from statistics import median
from typing import Any

import numpy as np

from autopilot.core.decision.reconciler import reconcile
from autopilot.core.intake.assemble import assemble
from autopilot.core.intake.signals import measure
from autopilot.core.model.memory import ControllerMemory, Step
from autopilot.core.model.policy import Mode, Modes, Policy
from autopilot.core.model.records import Observation
from autopilot.core.model.snapshot import InstanceTable, State, make
from autopilot.core.placement.whatif import WhatIf
from autopilot.settings import shipped_policy
from benchmarks.kit import ended, judged, options
from benchmarks.tick import NOW_S, PARTS, Fleet, build_fleet, learned, timed
from models.expected_mix import MixForecaster

NODES, GANGS, TENANTS = 6250, 5000, 300
MIG_REQUESTS, CUT_RATIO, HELD_RATIO, GOAL_RATIO = 2000, 0.2, 0.9, 1.6
GEOMETRY = (("3g.40gb", 0), ("2g.20gb", 4), ("1g.10gb", 6))
PROFILES = ("1g.10gb", "2g.20gb", "3g.40gb")
ASKED = (0.1, 0.2, 0.7)
"""Of the requests, by profile: more large instances than are idle."""


def cut_fleet(seed: int) -> Fleet:
    """The fleet with the last fifth of its nodes cut, and 2,000 of the waiting gangs asking for instances."""
    fleet = build_fleet(NODES, GANGS, TENANTS, seed, distinct=False)
    rng, gpus = np.random.default_rng(seed), fleet.inventory.gpus
    mig = gpus.node >= int(NODES * (1.0 - CUT_RATIO))
    rows = np.repeat(np.flatnonzero(mig), len(GEOMETRY))
    count = len(rows)
    number = np.tile(np.arange(len(GEOMETRY)), count // len(GEOMETRY))
    profile = np.array([PROFILES.index(name) for name, _ in GEOMETRY])[number]
    instances: InstanceTable = make(
        InstanceTable,
        id=[f"{gpus.uuid[gpu]}/{7 + k}" for gpu, k in zip(rows.tolist(), number.tolist(), strict=True)],
        gpu=rows,
        profile=profile,
        start=np.array([start for _, start in GEOMETRY])[number],
        gi_id=7 + number,
    )
    held, work = fleet.placements, fleet.workloads
    stays = ~mig[held.gpu]  # what ran on these GPUs is not there
    whole = np.unique(held.workload[~stays])
    taken = np.flatnonzero(rng.random(count) < HELD_RATIO)
    pending = np.flatnonzero(work.state == State.PENDING)[:MIG_REQUESTS]
    holders = whole[: len(taken)]
    taken = taken[: len(holders)]
    asks, state = work.mig_profile.copy(), work.state.copy()
    asks[pending], asks[holders] = rng.choice(len(PROFILES), len(pending), p=ASKED), profile[taken]
    state[whole[len(holders) :]] = State.SUCCEEDED
    ones = np.concatenate([pending, holders])
    columns: dict[str, Any] = {name: getattr(work, name).copy() for name in ("gpus", "min_gpus", "gpus_per_member")}
    for column in columns.values():
        column[ones] = 1
    models = work.gpu_models.copy()
    models[ones] = 2
    keep = stays & ~np.isin(held.workload, whole)
    workload = np.concatenate([held.workload[keep], holders]).astype(np.int32)
    gpu = np.concatenate([held.gpu[keep], rows[taken]]).astype(np.int32)
    order = np.argsort(workload, kind="stable")
    instance = np.concatenate([np.full(int(keep.sum()), -1), taken]).astype(np.int32)
    milli = np.where(instance < 0, 1000, 0).astype(np.int32)
    rank = np.zeros(len(order), np.int32)
    placed = type(held)(
        workload[order],
        gpus.node[gpu[order]],
        gpu[order],
        instance[order],
        milli[order],
        np.zeros(len(order), np.bool_),
        rank,
        np.zeros(len(order), np.bool_),
    )
    names = replace(fleet.inventory.names, profiles=PROFILES)
    inventory = replace(fleet.inventory, names=names, gpus=replace(gpus, mig=mig), instances=instances)
    workloads = replace(work, mig_profile=asks, state=state, gpu_models=models, **columns)
    return replace(fleet, inventory=inventory, workloads=workloads, placements=placed)


@dataclass(frozen=True, slots=True)
class Tick:
    """What one tick cost and did."""

    cpu_s: float
    parts_s: dict[str, float]
    kinds: dict[str, int]


def one_tick(fleet: Fleet, policy: Policy, seed: int) -> Tick:
    """The first tick: everything is new."""
    spent: dict[str, float] = {}
    batches, forecaster, mix = fleet.batches(NOW_S), learned(fleet, seed), MixForecaster()
    snapshot, gaps = timed(spent, "assemble", lambda: assemble(batches, NOW_S))
    signals = timed(spent, "measure", lambda: measure(snapshot, WhatIf(snapshot)))
    forecaster.update(NOW_S, snapshot)
    mix.update(NOW_S, snapshot)
    forecasts = timed(
        spent,
        "forecast",
        lambda: replace(forecaster.forecast(NOW_S, snapshot), mix=mix.forecast(NOW_S, snapshot).mix),
    )
    observation = Observation(0, NOW_S, snapshot, signals, forecasts, (), (), gaps)
    step: Step = timed(spent, "reconcile", lambda: reconcile(ControllerMemory(), observation, policy))
    kinds: dict[str, int] = {}
    for proposal in step.decision.plan.proposals:
        kinds[proposal.kind] = kinds.get(proposal.kind, 0) + 1
    return Tick(sum(spent.values()), spent, kinds)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print the table, write the JSON; 1 when the ratio is missed."""
    given = options(__doc__, arguments, rounds=3, seed=1)
    autopilot = shipped_policy("autopilot")
    everything = replace(autopilot, modes=Modes(*[Mode.AUTO] * len(fields(Modes))))
    found: dict[str, list[Tick]] = {"without MIG": [], "a fifth cut": []}
    for number in range(1 if given.quick else given.rounds):
        seed = given.seed + number
        plain = build_fleet(NODES, GANGS, TENANTS, seed, distinct=False)
        found["without MIG"].append(one_tick(plain, autopilot, seed))
        found["a fifth cut"].append(one_tick(cut_fleet(seed), everything, seed))
    rows = [
        [
            name,
            *(f"{1e3 * median(each.parts_s[part] for each in ticks):.0f}" for part in PARTS),
            f"{1e3 * median(each.cpu_s for each in ticks):.0f}",
            " ".join(f"{kind} {count}" for kind, count in sorted(ticks[0].kinds.items())),
        ]
        for name, ticks in found.items()
    ]
    ratio = median(
        cut.cpu_s / plain.cpu_s for cut, plain in zip(found["a fifth cut"], found["without MIG"], strict=True)
    )
    rows.append(["ratio, median", *[""] * len(PARTS), judged(ratio, GOAL_RATIO), ""])
    heading = ("cluster of 50,000 GPUs, CPU ms", *PARTS, "whole", "proposals")
    return ended(given, heading, rows, {"ratio": ratio, "goal": GOAL_RATIO})


if __name__ == "__main__":
    raise SystemExit(main())
