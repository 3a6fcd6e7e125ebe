"""The smallest cluster for a target of waits under a policy, over seeds.

More nodes are assumed to help, so the number of nodes is found by doubling and halving. The answer is then checked: one
node less misses the target and one more meets it. If one more misses it, the search goes on above.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import inf, isfinite

from autopilot.app.compare.running import Record
from autopilot.core.model.units import format_duration
from autopilot.report.words import pick

Measure = Callable[[int], Sequence[float]]
"""The figure by seed with that many nodes; infinite if jobs do not finish."""


@dataclass(frozen=True, slots=True)
class Try:
    """One simulated size: the figure by seed."""

    nodes: int
    waits_s: tuple[float, ...]

    def meets(self, target_s: float) -> bool:
        """True if every seed meets the target."""
        return max(self.waits_s) <= target_s


@dataclass(frozen=True, slots=True)
class Sized:
    """The answer for one policy. `nodes` is None if not even the most nodes meet the target."""

    nodes: int | None
    tries: tuple[Try, ...]  # in the order of their runs
    checked: bool  # one more node meets the target too
    uneven: tuple[int, ...]  # sizes short of the target although a smaller one meets it


def wait_p90_s(record: Record) -> float:
    """The 90th percentile of queue waits; infinite if a job did not finish or none ran."""
    jobs = record["result"]["jobs"]
    wait_s = pick(jobs, "queue_wait_s_p90")
    return inf if wait_s is None or jobs["finished"] < jobs["submitted"] else wait_s


def smallest(measure: Measure, target_s: float, first: int, least: int, most: int) -> Sized:
    """Search between `least` and `most` nodes, from `first` on."""
    tries: dict[int, Try] = {}

    def good(nodes: int) -> bool:
        if nodes not in tries:
            tries[nodes] = Try(nodes, tuple(measure(nodes)))
        return tries[nodes].meets(target_s)

    low, high = _bracket(good, min(max(first, least), most), least, most)
    if high is None:
        return Sized(None, tuple(tries.values()), False, ())
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if good(middle) else (middle, high)
    uneven = []
    while high < most and not good(high + 1):  # it met the target by luck: look above
        uneven.append(high + 1)
        high += 2
        while high <= most and not good(high):
            high += 1
        if high > most:
            return Sized(None, tuple(tries.values()), False, tuple(uneven))
    return Sized(high, tuple(tries.values()), high < most, tuple(uneven))


def _bracket(good: Callable[[int], bool], first: int, least: int, most: int) -> tuple[int, int | None]:
    """(a size too small, a sufficient size): the first may be below `least`, the second None."""
    nodes = first
    if good(nodes):
        while nodes > least:
            smaller = max(nodes // 2, least)
            if not good(smaller):
                return smaller, nodes
            nodes = smaller
        return least - 1, nodes
    while nodes < most:
        larger = min(nodes * 2, most)
        if good(larger):
            return nodes, larger
        nodes = larger
    return nodes, None


def tries_table(sized: Mapping[str, Sized], target_s: float) -> list[list[str]]:
    """Rows of the simulated sizes: policy, nodes, the worst seed's wait, and `meets` or `misses`."""

    def words(wait_s: float) -> str:
        return format_duration(wait_s) if isfinite(wait_s) else "jobs left over"

    return [
        [policy, f"{each.nodes:,}", words(max(each.waits_s)), "meets" if each.meets(target_s) else "misses"]
        for policy, found in sized.items()
        for each in sorted(found.tries, key=lambda each: each.nodes)
    ]
