"""The simulator from Python, for notebooks and scripts: load, register, simulate, compare, to_pandas.

    from autopilot import api

    day = api.load("demo")                                    # a scenario, a job file or a journal
    run = api.simulate(day, policy="fifo-skip")
    more = api.compare(day, policies=["fifo-skip", "autopilot"], seeds=3, changes=["nodes=+4"])
    api.to_pandas(more)

`register` adds a scheduling policy of your own (`Policy`) to the shipped ones; docs/research.md has a tutorial.

Every function raises `autopilot.core.model.errors.InputError` for unusable input, with one message naming the value and
the fix. docs/python-api.md has examples.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autopilot.app.compare.cases import Case, Comparison, check, parse_seeds
from autopilot.app.compare.from_journal import from_journal
from autopilot.app.compare.running import Kept, Record, record_of, run, run_all
from autopilot.app.compare.summary import Finding, Group, findings, groups_of
from autopilot.app.options import SimulateOptions
from autopilot.core.model.errors import InputError
from autopilot.files import state_folder
from autopilot.metering.prices import Prices, Tariff, flat_prices, load_prices
from autopilot.settings import policy_names
from simulator.plugins import registry
from simulator.plugins.policy import Job, Node, Policy, Refused, Running, View
from simulator.scenarios import scenario_names

if TYPE_CHECKING:
    import pandas as pd

__all__ = [
    "Compared",
    "Input",
    "Job",
    "Node",
    "Policy",
    "Refused",
    "Running",
    "Simulated",
    "View",
    "compare",
    "load",
    "register",
    "simulate",
    "to_pandas",
]


@dataclass(frozen=True, slots=True)
class Input:
    """Jobs, cluster and settings, as `load` found them."""

    options: SimulateOptions
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Simulated:
    """One run. `result` is the block of a policy from `autopilot simulate --json`.

    `jobs` has a row for each job, with the columns of `--jobs-out`: the times of its submission, start and end, its
    wait, its GPUs and nodes, and the number of its stops.
    """

    policy: str
    seed: int
    result: dict[str, Any] = field(repr=False)
    jobs: pd.DataFrame = field(repr=False, compare=False)


@dataclass(frozen=True, slots=True)
class Compared:
    """All runs of a comparison, their medians by group, and the differences."""

    cases: tuple[Case, ...] = field(repr=False)
    records: tuple[Record, ...] = field(repr=False)
    groups: tuple[Group, ...] = field(repr=False)
    findings: tuple[Finding, ...]


def load(source: str | Path, *, cluster: str | Path | None = None, **settings: Any) -> Input:
    """A scenario (by name or file), a job file, or a recorded journal.

    A job file needs a `cluster`: a shape (`7x8`) or a cluster file. `settings` are those of the command line:
    `physics`, `durations`, `telemetry`, `jitter_ratio`, `tenants`, `columns`, `limits`, `seed`, `slurm`.
    """
    given = {"cluster": None if cluster is None else str(cluster), "series": False, **settings}
    path = Path(source)
    if path.suffix == ".journal":
        found = from_journal(path, state_folder() / "compare" / "recorded")
        given["cluster"] = given["cluster"] or str(found.cluster)
        given.setdefault("physics", found.physics or None)
        return Input(SimulateOptions(jobs=found.jobs, **given), found.notes)
    if str(source) in scenario_names() or path.suffix in {".yaml", ".yml"}:
        return Input(SimulateOptions(scenario=str(source), **given))
    return Input(SimulateOptions(jobs=path, **given))


def register(name: str, make: Callable[[], Policy]) -> None:
    """Use a policy of yours by `name`, in this process and in the workers of `compare`.

    `make` is its class, or a function without arguments that makes one; each run makes a new one. A later policy of the
    same name replaces the first. Raises `InputError` for the name of a shipped policy or a baseline.
    """
    if name in policy_names():
        raise InputError(f"register: {name!r} is a shipped policy; choose another name")
    registry.register(name, make)


def simulate(
    what: Input,
    policy: str = "autopilot",
    *,
    seed: int | None = None,
    changes: Sequence[str] = (),
    policy_set: Sequence[str] = (),
) -> Simulated:
    """Run one policy. `changes` are those of `--set`, for example `nodes=+4`, `policy_set` those of `--policy-set`."""
    options = replace(
        what.options,
        policies=(policy,),
        changes=tuple(changes),
        policy_set=tuple(policy_set),
        seed=what.options.seed if seed is None else seed,
        series=False,
    )
    case = check(Comparison(base=options, policies=(policy,), changes=(), seeds=(options.seed or 0,)))
    options = options if options.seed is not None else replace(options, seed=next(iter(case.worlds.values())).seed)
    outcome = run(options)
    return Simulated(policy, options.seed or 0, record_of(outcome)["result"], outcome.job_frames()[0])


def compare(
    what: Input,
    *,
    policies: Sequence[str] = (),
    seeds: int | Sequence[int] = 3,
    clusters: Sequence[str | Path] = (),
    changes: Sequence[str] = (),
    workers: int | None = None,
    dask: str | None = None,
    results: Path | str | None = None,
    prices: float | Path | Prices | None = None,
    progress: Callable[[int, int, str], None] | None = None,
) -> Compared:
    """Run policies, clusters and changes over seeds, as `autopilot compare` does; finished runs are kept and reused.

    Each of `changes` is one variation beside the unchanged cluster; changes joined by commas apply together. `prices`
    is the price of a GPU-hour, a price file, or `Prices`, as valid now. `workers` is the number of processes, `dask`
    the address of a Dask scheduler whose workers run it in their place. `progress` gets (runs done, runs in total, the
    last one).
    """
    comparison = Comparison(
        base=what.options,
        policies=tuple(policies),
        seeds=parse_seeds(str(seeds)) if isinstance(seeds, int) else tuple(seeds),
        clusters=tuple(map(str, clusters)) or (None,),
        changes=tuple(tuple(part.strip() for part in each.split(",")) for each in changes),
    )
    priced = _prices(prices)
    checked = check(comparison)
    kept = Kept(Path(results) if results is not None else state_folder() / "compare" / "runs")
    records = run_all(checked.cases, kept, workers, progress, dask)
    groups = groups_of(checked.cases, records, priced)
    return Compared(
        checked.cases, tuple(records), groups, findings(groups, priced.currency if priced is not None else "")
    )


def _prices(prices: float | Path | Prices | None) -> Tariff | None:
    if prices is None:
        return None
    if isinstance(prices, Prices):
        return prices.at(None)
    return (load_prices(prices) if isinstance(prices, Path) else flat_prices(prices)).at(None)


def to_pandas(what: Simulated | Compared) -> pd.DataFrame:
    """A table: of a comparison one row for each run and figure, of one run one row for each figure of its result."""
    import pandas as pd

    if isinstance(what, Simulated):
        return pd.DataFrame(sorted(_flat(what.result).items()), columns=["figure", "value"])
    rows = [
        {
            "cluster": group.cluster,
            "change": group.change,
            "policy": policy,
            "seed": case.seed,
            "figure": figure.title,
            "value": spreads[at].by_seed[number],
        }
        for group in what.groups
        for at, policy in enumerate(group.policies)
        for number, case in enumerate(
            case
            for case in what.cases
            if (case.cluster, case.change, case.policy) == (group.cluster, group.change, policy)
        )
        for figure, spreads in group.rows
    ]
    return pd.DataFrame(rows)


def _flat(result: dict[str, Any], path: str = "") -> dict[str, float]:
    """The numbers of a nested result by their path."""
    found: dict[str, float] = {}
    for name, value in result.items():
        if isinstance(value, dict):
            found |= _flat(value, f"{path}{name}.")
        elif isinstance(value, int | float) and not isinstance(value, bool):
            found[f"{path}{name}"] = value
    return found
