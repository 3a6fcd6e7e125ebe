"""The GPU-hours that shared GPUs could free at most: by the rule that admits sharers, with every profile exact.

    python -m benchmarks.sharing_room [--scenarios crowded,underdriven,hoarders-busy,demo-shared] [--seeds 2]

Programs are divided freely over GPUs, alone or together on GPUs shared by time slicing, where the shipped rule
(autopilot/core/sharing/colocation.py) admits them, tenants agree, and at most four development and two batch programs
are together. Work that shares needs longer by its predicted rate. The least GPU-hours that do the same work, as a
linear program, are subtracted from those of the work alone. All programs are taken to be present at the same time,
known from the start, and of one GPU, so no schedule frees more under this rule.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import combinations, combinations_with_replacement
from statistics import fmean

import numpy as np
from scipy.optimize import linprog
from scipy.sparse import coo_matrix

from autopilot.core.model.colocation import Mechanism
from autopilot.core.model.memory.profiles import LoneProfile
from autopilot.core.model.objects import Share, Trust
from autopilot.core.sharing.colocation import Prediction, Sharer, predicted_rates
from benchmarks.kit import ended, options
from benchmarks.sharing import SCENARIOS
from simulator.outcome.shareable import Rule, sharable_work
from simulator.scenarios.loader import load_scenario
from simulator.signals.programs import DrawnLoads, program_of
from simulator.specs.inventory import build_inventory
from simulator.world.work import jobs_from_trace

HEADING = ("scenario", "seeds", "asked GPU-h", "may share", "dev alone", "batch alone", "both", "and beside each other")
TRIED = 20_000
"""Sets of three and of four programs that are tried, drawn at random."""


@dataclass(slots=True)
class Program:
    """Work of one user, name and image: its GPU-hours, and what it does alone."""

    tenant: int
    trust: int
    share: int
    sharer: Sharer
    gpu_h: float = 0.0

    def agrees(self, other: Program) -> bool:
        """True if trust lets both share."""
        return self.tenant == other.tenant or self.trust == other.trust == Trust.ACROSS


@dataclass(frozen=True, slots=True)
class Room:
    """GPU-hours of one scenario and seed; the last four are those that sharing frees."""

    asked: float
    may_share: float
    dev: float
    batch: float
    both: float
    mixed: float


Together = tuple[tuple[int, ...], tuple[float, ...]]
"""Programs on one GPU, by row, and their rates."""


def room(scenario: str, seed: int) -> Room:
    """The room of one scenario."""
    found = load_scenario(scenario)
    inventory = build_inventory(found.cluster)
    jobs = jobs_from_trace(found.jobs(seed), inventory)
    loads, gpu_model = DrawnLoads(seed, jobs), inventory.names.gpu_models[0]
    programs: dict[str, Program] = {}
    asked = 0.0
    for job, what in enumerate(sharable_work(jobs, loads, gpu_model)):
        gpu_h = jobs.shape_of(job).gpus * jobs.duration_s[job] / 3600.0
        asked += gpu_h
        if what.rule is Rule.SHARES:
            name, true = program_of(jobs, job), loads.sharer(job)
            profile = LoneProfile(
                loads.footprint_mib(job, gpu_model), 1e6, 0.0, true.level, true.level, duty_ratio=true.busy
            )
            own = Program(jobs.tenant[job], jobs.trust[job], jobs.share[job], Sharer(name, profile))
            programs.setdefault(name, own).gpu_h += gpu_h
    rows, memory_mib = list(programs.values()), loads.memory_mib(gpu_model)

    def admitted(sets: Iterator[tuple[int, ...]]) -> list[Together]:
        kept = []
        for each in sets:
            if all(rows[a].agrees(rows[b]) for a, b in combinations(each, 2)):
                sharers = [rows[row].sharer for row in each]
                told = predicted_rates(sharers, Mechanism.TIME_SLICING, gpu_model, memory_mib)
                if isinstance(told, Prediction) and told.admitted:
                    kept.append((each, told.rates))
        return kept

    dev, batch = ([at for at, each in enumerate(rows) if each.share == kind] for kind in (Share.DEV, Share.PAIR))
    of_dev = admitted(_sets(rows, dev, seed))
    of_batch = admitted(combinations_with_replacement(batch, 2))
    beside = admitted((*some, one) for count in (1, 2) for some in combinations(dev, count) for one in batch)
    alone = [((at,), (1.0,)) for at in range(len(rows))]
    share = sum(each.gpu_h for each in rows)
    freed = [
        share - _least(rows, [*alone, *kinds])
        for kinds in (of_dev, of_batch, [*of_dev, *of_batch], [*of_dev, *of_batch, *beside])
    ]
    return Room(asked, share, *freed)


def _sets(rows: Sequence[Program], dev: Sequence[int], seed: int) -> Iterator[tuple[int, ...]]:
    """Pairs of development programs, and some sets of three and four of those that agree with one of them."""
    yield from combinations_with_replacement(dev, 2)
    rng = np.random.default_rng(seed)
    agree = {at: [other for other in dev if rows[at].agrees(rows[other])] for at in dev}
    for count in (3, 4):
        for _ in range(TRIED if dev else 0):
            yield tuple(sorted(rng.choice(agree[int(rng.choice(dev))], count).tolist()))


def _least(rows: Sequence[Program], together: Sequence[Together]) -> float:
    """The least GPU-hours for the work of all programs, as hours by set of programs."""
    if not rows:
        return 0.0
    row = np.array([at for each, _ in together for at in each])
    column = np.array([number for number, (each, _) in enumerate(together) for _ in each])
    rates = np.array([rate for _, each in together for rate in each])
    done = coo_matrix((-rates, (row, column)), (len(rows), len(together)))
    asked = np.array([-each.gpu_h for each in rows])
    found = linprog(np.ones(len(together)), A_ub=done, b_ub=asked, method="highs")  # type: ignore[call-overload]
    return float(found.fun)


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the means over the seeds."""
    given = options(__doc__, arguments, scenarios=",".join(SCENARIOS), seeds=2)
    lines, rows = [], []
    for name in given.scenarios.split(","):
        found = [room(name, seed) for seed in range(1, 2 if given.quick else given.seeds + 1)]
        rows += [{"scenario": name, "seed": seed, **asdict(each)} for seed, each in enumerate(found, 1)]
        means = [fmean(getattr(each, figure) for each in found) for figure in Room.__slots__]
        lines.append([name, f"{len(found)}", *(f"{value:,.0f}" for value in means)])
    return ended(given, HEADING, lines, {"rows": rows})


if __name__ == "__main__":
    raise SystemExit(main())
