"""The work of `size`: search, then print the runs and the answer for each policy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import isfinite
from pathlib import Path
from typing import Any

from autopilot.app.commands.json_out import write_json
from autopilot.app.commands.planner_commands import Desk, run_kept
from autopilot.app.commands.run_commands import err, out, print_rows
from autopilot.app.compare.cases import Comparison, check
from autopilot.app.compare.sizing import Sized, smallest, tries_table, wait_p90_s
from autopilot.app.runs.changes import changed
from autopilot.core.model.errors import InputError, unknown_name
from autopilot.core.model.units import counted, format_duration, parse_duration_s
from simulator.specs.clusterfile import MOST_NODES, ClusterSpec, PoolSpec

SCHEMA = "gpu-autopilot/size/1"


@dataclass(frozen=True, slots=True)
class Target:
    """The question: the wait, and the pool with its bounds of the search in nodes."""

    wait_p90: str
    pool: str | None
    least: int
    most: int


def run_size(comparison: Comparison, target: Target, desk: Desk, json_out: Path | None) -> None:
    """Search for each policy, and show all runs."""
    target_s = parse_duration_s(target.wait_p90, "--wait-p90")
    if not 1 <= target.least <= target.most <= MOST_NODES:
        raise InputError(f"--from, --to: {target.least:,} to {target.most:,} is not allowed; write 1 to {MOST_NODES:,}")
    prices = desk.prices()
    checked = check(comparison)
    spec = next(iter(checked.worlds.values())).spec
    pool = _pool(spec, target.pool)
    least = _least(spec, pool, target)
    found: dict[str, Sized] = {}
    for policy in checked.policies:

        def measure(nodes: int, policy: str = policy) -> Sequence[float]:
            change = (f"nodes.{pool.name}={nodes}",)
            cases = [
                replace(case, options=replace(case.options, changes=change), change=change[0])
                for case in checked.cases
                if case.policy == policy
            ]
            return [wait_p90_s(record) for record in run_kept(cases, desk)]

        found[policy] = smallest(measure, target_s, pool.nodes, least, target.most)
    hourly = prices.gpu_hour(pool.name, pool.gpu_model) * pool.gpus_per_node if prices is not None else None
    if json_out is not None:
        write_json(json_out, _document(found, target_s, pool, hourly, comparison.seeds))
        if json_out == Path("-"):
            return
    seeds = counted(len(comparison.seeds), "seed")
    out.print(f"90 % of the jobs start within {format_duration(target_s)}, with each of {seeds}; pool {pool.name}")
    rows = tries_table(found, target_s)
    print_rows(["policy", "nodes", "p90 wait, worst seed", ""], rows)
    for policy, sized in found.items():
        out.print(f"{policy}: {_words(sized, pool, target, hourly, prices.currency if prices else '')}")


def _pool(spec: ClusterSpec, name: str | None) -> PoolSpec:
    """The pool of the search."""
    by_name = {pool.name: pool for pool in spec.pools}
    if name is None and len(by_name) > 1:
        raise InputError(f"--pool: the cluster has several pools; name one of {', '.join(by_name)}")
    if name is not None and name not in by_name:
        raise InputError(f"--pool: {name!r}: no such pool; {unknown_name(name, by_name)}")
    return by_name[name] if name is not None else spec.pools[0]


def _least(spec: ClusterSpec, pool: PoolSpec, target: Target) -> int:
    """The least nodes sufficient for the guarantees and reservations of the cluster file."""

    def holds(nodes: int) -> bool:
        try:
            changed(spec, [f"nodes.{pool.name}={nodes}"])
        except InputError:
            return False
        return True

    low, high = target.least, max(pool.nodes, target.least)
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle + 1, high)
    if low > target.most:
        raise InputError(f"--to: {target.most:,} is not allowed; the guarantees need {low:,} nodes of pool {pool.name}")
    if low > target.least:
        err.print(f"autopilot: from {low:,} nodes on: with less, the guarantees exceed the cluster")
    return low


def _words(sized: Sized, pool: PoolSpec, target: Target, hourly: float | None, currency: str) -> str:
    """The answer for one policy."""
    if sized.nodes is None:
        return f"{counted(target.most, 'node is|nodes are')} not enough; raise --to, or the target"
    words = f"{counted(sized.nodes, 'node')} ({counted(sized.nodes * pool.gpus_per_node, 'GPU')})"
    if hourly is not None:
        words += f", {sized.nodes * hourly:,.2f} {currency} an hour"
    less = sized.nodes - 1
    if less >= target.least:
        words += f"; {counted(less, 'node misses|nodes miss')} the target"
    if sized.uneven:
        words += f". More nodes do not always help: {', '.join(map(str, sized.uneven))} miss it too"
    elif sized.checked:
        words += f", {sized.nodes + 1:,} meet it"
    return words


def _document(
    found: dict[str, Sized], target_s: float, pool: PoolSpec, hourly: float | None, seeds: Sequence[int]
) -> dict[str, Any]:
    """The answer as JSON; a wait is null if jobs were left over."""
    return {
        "schema": SCHEMA,
        "target_wait_p90_s": target_s,
        "pool": pool.name,
        "gpus_per_node": pool.gpus_per_node,
        "seeds": list(seeds),
        "policies": {
            policy: {
                "nodes": sized.nodes,
                "cost_per_hour": None if hourly is None or sized.nodes is None else hourly * sized.nodes,
                "one_more_meets": sized.checked,
                "misses_above": list(sized.uneven),
                "tries": [
                    {"nodes": each.nodes, "wait_p90_s": [w if isfinite(w) else None for w in each.waits_s]}
                    for each in sized.tries
                ],
            }
            for policy, sized in found.items()
        },
    }
