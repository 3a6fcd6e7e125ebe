"""The gangs to take so that members of one size fit on nodes: the least cost, within a counted number of steps.

Theory of operation. The search is branch and bound on the relaxation (relaxation.py), the least bound first. If nodes
disagree on a gang, the search goes on twice: with that gang taken, and with that gang left. Choices forbidden by quotas
are split in the same way. Nothing here knows of ranks or queues. Costs are integers of any size, so that one number can
hold a cost for each rank, the highest first.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from heapq import heappop, heappush

from autopilot.core.search.relaxation import Candidate, Demand, Levels, Region, Relaxation, State

Spans = Mapping[int, tuple[int, int]]
"""Lowest and highest level, by candidate."""


class Clearing:
    """One search. `allowed(levels)`: may these be taken together? It gets the levels by candidate, above 0.

    `allowed` may refuse for two reasons. Too little is taken: `owed` is the missing GPUs, from candidates that pay. Or
    too much is taken: then every superset counts as refused too. If a candidate is refused by itself although nothing
    is owed, the search ends, and `lonely` are those candidates.
    """

    def __init__(
        self,
        candidates: Sequence[Candidate],
        regions: Sequence[Region],
        demand: Demand,
        allowed: Callable[[Mapping[int, int]], bool],
        owed: int = 0,
    ) -> None:
        self.candidates, self.regions, self.demand, self.allowed = candidates, regions, demand, allowed
        self.owed = owed
        self.relaxation = Relaxation(candidates, regions, demand)
        self.best: Levels | None = None
        self.best_cost = 0
        self.first_at = 0  # steps that the first answer took
        self.bound_by_quota = False  # something was forbidden
        self.lonely: frozenset[int] = frozenset()

    @property
    def steps(self) -> int:
        """Work so far, in rounds of the inner loops."""
        return self.relaxation.steps

    def solve(self, steps: int, patience: int) -> Levels | None:
        """The cheapest allowed levels with room for the demand; None without any.

        Exact unless it ends after `steps` with an answer, as many after a later first answer, or after `patience`.
        """
        children = self.relaxation.roots(self.owed)
        heap: list[tuple[int, int, State]] = []
        count = 0
        while True:
            for child in children:
                if self.relaxation.relax(child) and not self._hopeless(child.bound):
                    heappush(heap, (child.bound, count, child))
                    count += 1
            limit = patience if self.best is None else self._content_after(steps, patience)
            if not heap or self.lonely or self.steps > limit or self._hopeless(heap[0][0]):
                return self.best
            children = self._expand(heappop(heap)[2])

    def _content_after(self, steps: int, patience: int) -> int:
        """Steps after which the best answer is accepted: after a late first answer, as many again for a better one."""
        return steps if self.first_at <= steps else min(self.first_at + steps, patience)

    def _hopeless(self, bound: int) -> bool:
        return self.best is not None and bound >= self.best_cost

    def _may(self, taken: Mapping[int, int]) -> bool:
        """`allowed`, and its steps."""
        self.relaxation.steps += 10 + 5 * len(taken)
        return self.allowed(taken)

    def _levels(self, state: State) -> Levels:
        """The highest level picked of each candidate by any node of a state."""
        levels = list(state.low)
        for index, picked in state.picked.items():
            levels[index] = max(picked.values())
        return tuple(levels)

    def _expand(self, state: State) -> list[State]:
        """Children of a state: none if the picks of its nodes are an answer."""
        found, low, high = self._levels(state), state.low, state.high
        torn = self._torn(state, found)
        if torn is None:
            return [] if self._offer(found) else self._without(state, found)
        self._offer(self._lean(state, found))
        return [
            self._child(state, {torn: (found[torn], high[torn])}),
            self._child(state, {torn: (low[torn], found[torn] - 1)}),
        ]

    def _torn(self, state: State, found: Levels) -> int | None:
        """The candidate most underpaid by nodes that disagree on it; None if all nodes agree."""
        torn, most = None, 0
        for index, picked in state.picked.items():
            shares, costs = self.relaxation.shares[state.region][index], self.candidates[index].costs
            low = state.low[index]
            paid = sum(shares[level][node] - shares[low].get(node, 0) for node, level in picked.items())
            short = costs[found[index]] - costs[low] - paid
            if short > most:
                torn, most = index, short
        return torn

    def _offer(self, levels: Levels) -> bool:
        """Keep levels with room if they are allowed and the cheapest so far; True if they are allowed."""
        if not self._may({index: level for index, level in enumerate(levels) if level}):
            return False
        cost = sum(each.costs[level] for each, level in zip(self.candidates, levels, strict=True))
        if not self._hopeless(cost):
            self.first_at = self.steps if self.best is None else self.first_at
            self.best, self.best_cost = levels, cost
        return True

    def _without(self, state: State, found: Levels) -> list[State]:
        """The state without `found`, a forbidden choice with room: parts without overlap."""
        if not self.bound_by_quota and not self.owed:
            alone = [index for index in range(len(found)) if not self._may({index: 1})]
            self.lonely = frozenset(alone if self._may({}) else range(len(found)))
        self.bound_by_quota = True
        children: list[State] = []
        spans: dict[int, tuple[int, int]] = {}
        for index in self._conflict(state, found):
            children.append(self._child(state, {**spans, index: (state.low[index], found[index] - 1)}))
            spans[index] = (found[index], state.high[index])
        return children

    def _conflict(self, state: State, found: Levels) -> list[int]:
        """Few candidates of a forbidden choice that are forbidden beside the certain ones, the widest first.

        Candidates that pay the owed GPUs are spared last: without them the choice is forbidden anyway.
        """
        kept = {index: level for index, level in enumerate(found) if level}
        asked = [index for index in kept if found[index] > state.low[index]]
        pays = {index for index in asked if state.owed and self.candidates[index].pays[-1]}
        needed: list[int] = []
        for index in sorted(
            asked, key=lambda each: (each in pays, sum(self.candidates[each].frees[found[each]].values()))
        ):
            level = kept.pop(index)
            if state.low[index]:
                kept[index] = state.low[index]
            if self._may(kept):
                kept[index] = level
                needed.append(index)
        return needed[::-1]

    def _child(self, state: State, spans: Spans) -> State:
        """A part of a state: other lowest and highest levels of some candidates."""
        low, high, curves = list(state.low), list(state.high), dict(state.curves)
        self.relaxation.steps += len(curves) + len(low)
        for index, span in spans.items():
            low[index], high[index] = span
        changed = [*spans]
        if self.bound_by_quota and not state.owed and tuple(low) != state.low:
            changed += self._forbid(low, high)
        child = State(state.region, state.owed, tuple(low), tuple(high), curves)
        frees = self.relaxation.frees[state.region]
        for node in dict.fromkeys(node for index in changed for node in frees[index][-1]):
            curves[node] = self.relaxation.curve(child, node)
        return child

    def _forbid(self, low: list[int], high: list[int]) -> list[int]:
        """Lower the highest level of each candidate to the allowed one beside `low`; the candidates so lowered."""
        sure = {index: level for index, level in enumerate(low) if level}
        lowered = []
        for index in range(len(high)):
            most = high[index]
            while most > low[index] and not self._may({**sure, index: most}):
                most -= 1
            if most < high[index]:
                high[index] = most
                lowered.append(index)
        return lowered

    def _lean(self, state: State, levels: Levels) -> Levels:
        """Levels with room, without needless ones: the dearest is put back first."""
        kept, free = list(levels), dict(self.regions[state.region].free)
        for index, level in enumerate(levels):
            self._add(free, index, 0, level)
        taken = [index for index, level in enumerate(levels) if level > state.low[index]]
        for index in sorted(taken, key=lambda each: -self.candidates[each].costs[levels[each]]):
            for level in range(state.low[index], kept[index]):
                self._add(free, index, kept[index], level)
                if self._holds(state.region, free):
                    kept[index] = level
                    break
                self._add(free, index, level, kept[index])
        return tuple(kept)

    def _add(self, free: dict[int, int], index: int, before: int, after: int) -> None:
        """Bring `free` up to date for a candidate that goes from one level to another."""
        for sign, level in ((-1, before), (1, after)):
            for node, gpus in self.candidates[index].frees[level].items():
                if node in free:
                    free[node] += sign * gpus

    def _holds(self, region: int, free: Mapping[int, int]) -> bool:
        """Do all members and the tail fit on `free` GPUs by node?"""
        self.relaxation.steps += 2 * len(free)
        missing = self.demand.members - self.regions[region].members
        beside = self.demand.tail == 0 or self.regions[region].beside
        for gpus in free.values():
            members, tail = self.demand.on(gpus)
            missing -= members
            beside |= tail
        return missing < 0 or (missing == 0 and beside)
