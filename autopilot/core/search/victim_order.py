"""Choices in victim order: the shortest sufficient beginning, and the needless part of a choice."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from autopilot.core.quota.rules.base import Allowed, RankedTarget, Target

WIDEST = 8
"""Wide gangs that are tried as the last victim of lenders with little to spare."""

TRIALS = 64
"""Beginnings of the victim order that are tried one by one where quotas allow some and not others."""


def in_order(ranked_targets: Sequence[RankedTarget], enough: Callable[[Sequence[Target]], bool]) -> list[int] | None:
    """The shortest sufficient beginning of the candidates, by doubling and halving: more candidates rarely fit worse.

    Quotas may allow some and not more. Then the first beginnings are tried one by one, longer ones by doubling.
    """

    def so_far(count: int) -> bool:
        return enough(taken(ranked_targets, range(count)))

    high = 1
    while high < len(ranked_targets) and not so_far(high):
        high *= 2
    high = min(high, len(ranked_targets))
    if not so_far(high):
        counts = [count for count in range(1, len(ranked_targets)) if count <= TRIALS or count.bit_count() == 1]
        found = next((count for count in counts if so_far(count)), None)
        return None if found is None else list(range(found))
    low = high // 2 + 1
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if so_far(middle) else (middle + 1, high)
    return list(range(high))


def one_wide(
    ranked_targets: Sequence[RankedTarget], allowed: Allowed, enough: Callable[[Sequence[Target]], bool]
) -> list[int] | None:
    """One of the widest gangs, with others in victim order as far as quotas allow; the cheapest such choice.

    Rules count the widest gang last, so a lender may give one gang beyond its spare GPUs, after others within them.
    """
    found: list[list[int]] = []
    for wide in sorted(range(len(ranked_targets)), key=lambda place: (-ranked_targets[place].target.gpus, place))[
        :WIDEST
    ]:
        kept = [wide]
        for place in [wide, *range(len(ranked_targets))]:
            more = sorted({*kept, place})
            kept = more if allowed(taken(ranked_targets, more)) else kept
            if enough(taken(ranked_targets, kept)):
                found.append(without_needless(ranked_targets, kept, enough))
                break
    ranks = sorted({ranked_target.rank for ranked_target in ranked_targets}, reverse=True)

    def cost(places: Sequence[int]) -> list[float]:
        return [
            sum(
                ranked_targets[each].price_gpu_s + ranked_targets[each].target.gpus
                for each in places
                if ranked_targets[each].rank == rank
            )
            for rank in ranks
        ]

    return min(found, key=cost, default=None)


def without_needless(
    ranked_targets: Sequence[RankedTarget], chosen: Sequence[int], enough: Callable[[Sequence[Target]], bool]
) -> list[int]:
    """The choice without needless victims: the dearest of the highest rank is dropped first.

    At equal cost, members go before whole gangs. Many are dropped at a time while that succeeds, else one by one.
    """

    def dearest(place: int) -> tuple[int, float, bool]:
        return (-ranked_targets[place].rank, -ranked_targets[place].price_gpu_s, not ranked_targets[place].target.whole)

    asked, kept = sorted(chosen, key=dearest), list[int]()
    count = max(len(asked) // 4, 1)
    while asked:
        if enough(taken(ranked_targets, sorted([*kept, *asked[count:]]))):
            asked, count = asked[count:], 2 * count
        elif count > 1:
            count //= 2
        else:
            kept.append(asked.pop(0))
    return sorted(kept)


def taken(ranked_targets: Sequence[RankedTarget], places: Iterable[int]) -> tuple[Target, ...]:
    """The candidates at these places, one target for each gang: the members together, or the whole gang."""
    targets: dict[int, Target] = {}
    for place in places:
        target = ranked_targets[place].target
        before = targets.get(target.row)
        if before is None or target.whole:
            targets[target.row] = target
        elif not before.whole:
            targets[target.row] = Target(target.row, before.gpus + target.gpus, whole=False)
    return tuple(targets.values())
