"""New cuts for whole GPUs or nodes: if the engine stops all work there, a unit changes together or not at all.

The price of a unit is the capacity of all of it for the time of the change, even if only a part of it changes, plus the
cost of its drain. The gain is that of all changes of its GPUs. Each step takes the unit with the largest gain above its
price, of those that pay by the margin. Equal units are looked at once.

A GPU of a unit turns MIG mode on or off only if that pays for the GPU by itself, so that none does beside the others
for little.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from autopilot.core.geometry.cutting import Cut, PoolState, Prices, Wishes, choose_cuts
from autopilot.core.geometry.layouts import Layouts, unpacked
from autopilot.core.model.snapshot import F64, I64

KINDS = 16
"""Kinds of units that one step looks at, the first in the order of the units."""


@dataclass(frozen=True, slots=True)
class Unit:
    """GPUs that change together: their places in the pool, and the cost of the change."""

    places: tuple[int, ...]
    price_gpu_s: float


@dataclass(frozen=True, slots=True)
class UnitCuts:
    """The changes of one unit. The price of the unit is shared out by gain, so each change pays if the unit does."""

    unit: int  # place in the units
    cuts: tuple[Cut, ...]
    gain_gpu_s: float


@dataclass(frozen=True, slots=True)
class UnitsFound:
    """The changing units, best first. `complete` is False if a bound on steps ended the search early."""

    changes: tuple[UnitCuts, ...]
    steps: int
    complete: bool

    @property
    def cuts(self) -> tuple[Cut, ...]:
        """Every change of a GPU."""
        return tuple(cut for each in self.changes for cut in each.cuts)


def choose_units(
    layouts: Layouts,
    state: PoolState,
    wishes: Wishes,
    units: Sequence[Unit],
    prices: Prices,
    *,
    most: int,
    steps: int,
) -> UnitsFound:
    """Units with at most `most` changed GPUs. Only GPUs that may change by `state` do. Pure.

    Of `prices`, only the support of a change is read from `instance_s` (inf: not supported).
    """
    free, left, found, spent = state.free.copy(), dict(enumerate(units)), list[UnitCuts](), 0
    coming, whole = state.coming.copy(), state.whole.copy()
    changed: set[int] = set()
    while left and len(changed) < most:
        best: UnitCuts | None = None
        best_net_gpu_s = 0.0
        seen: set[tuple[object, ...]] = set()
        now = replace(state, free=free, coming=coming, whole=whole)
        for number, unit in left.items():
            kind = _kind(now, unit)
            if kind in seen:
                continue
            if len(seen) >= KINDS or spent >= steps:
                break
            seen.add(kind)
            cuts, used = cuts_of(layouts, now, wishes, unit, prices, most=most - len(changed), steps=steps - spent)
            spent += used
            gain_gpu_s = sum(cut.gain_gpu_s for cut in cuts)
            net_gpu_s = gain_gpu_s - unit.price_gpu_s
            if cuts and gain_gpu_s > unit.price_gpu_s * (1.0 + prices.margin_ratio) and net_gpu_s > best_net_gpu_s:
                best, best_net_gpu_s = UnitCuts(number, cuts, gain_gpu_s), net_gpu_s
        if best is None:
            return UnitsFound(tuple(found), spent, spent < steps)
        unit = left.pop(best.unit)
        width = len(layouts.of_bit)
        for cut in best.cuts:  # what it makes exists for those after it, and it changes no more
            changed.add(cut.gpu)
            after = unpacked(np.array([cut.after]), width)[0] @ layouts.of_bit
            coming = coming + after - unpacked(free[[cut.gpu]], width)[0] @ layouts.of_bit
            if cut.switches:  # one that a gang waits for is not free beside
                whole[cut.gpu] = cut.switches < 0 and not (
                    state.leaves_gpu_s is not None and state.leaves_gpu_s[cut.gpu] > 0
                )
        found.append(replace(best, cuts=_priced(best, unit.price_gpu_s)))
    return UnitsFound(tuple(found), spent, len(changed) < most)


def cuts_of(
    layouts: Layouts, state: PoolState, wishes: Wishes, unit: Unit, prices: Prices, *, most: int, steps: int
) -> tuple[tuple[Cut, ...], int]:
    """The changes of the GPUs of one unit, without a price, and the steps of the search."""
    may = np.zeros(len(state.may_change), np.bool_)
    may[list(unit.places)] = True
    free_of_charge = replace(prices, instance_s=0.0 if np.isfinite(prices.instance_s) else prices.instance_s)
    found = choose_cuts(
        layouts, replace(state, may_change=may & state.may_change), wishes, free_of_charge, most=most, steps=steps
    )
    return found.changes, found.steps


def _kind(state: PoolState, unit: Unit) -> tuple[object, ...]:
    """A key with one value for equal units."""
    at = list(unit.places)
    columns: tuple[I64 | F64, ...] = (state.used[at], state.free[at], state.barred[at])
    if state.leaves_gpu_s is not None:  # -1: it does not leave MIG mode
        columns = (*columns, np.nan_to_num(state.leaves_gpu_s[at], nan=-1.0))
    flags = (state.whole[at], state.may_change[at])
    rows = zip(*(each.tolist() for each in (*columns, *flags)), strict=True)
    return (unit.price_gpu_s, *sorted(rows))


def _priced(found: UnitCuts, price_gpu_s: float) -> tuple[Cut, ...]:
    """Its changes, each with its part of the price."""
    return tuple(
        replace(cut, price_gpu_s=price_gpu_s * cut.gain_gpu_s / found.gain_gpu_s if found.gain_gpu_s > 0 else 0.0)
        for cut in found.cuts
    )
