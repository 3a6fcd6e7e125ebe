"""New cuts for the GPUs of a pool: the changes with a gain above their price, one GPU after the other.

The worth of a free instance depends on the number of free ones of its profile: pending requests use the first ones.
Each further one counts with the probability of its use by expected requests. The value of a pool is the sum over
profiles. A change replaces the free instances of one GPU by those of another legal geometry around its instances in
use. Each step takes the change with the largest gain among those that pay, so that few GPUs change. Ties go to the most
used GPU, so that others stay empty, then to a GPU unwanted as a whole one by any gang, then to the cheapest change,
then to the lowest row. Values are concave in the number of instances: a later step never gains more than an earlier one
of its kind.

An instance in use is never destroyed. If moves are priced, the work of an instance may first move to a free instance of
the same profile on another GPU.

Equal GPUs are looked at once, and every look is a counted step.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import combinations

import numpy as np

from autopilot.core.geometry.layouts import Layouts, unpacked
from autopilot.core.model.snapshot import F64, I64, Bools

STEPS = 2_000_000
"""Steps of one plan: pairs of a kind of GPU and a geometry that were compared. Some 30 ns each."""

MOVES_PER_CUT = 2
"""Most instances that are moved off one GPU for a change."""

MOVE_KINDS = 256
"""Kinds of GPUs whose instances may be moved, those with the least in use first."""

EPSILON_GPU_S = 1e-9


@dataclass(frozen=True, slots=True)
class PoolState:
    """The GPUs of one model in one pool. Bit sets as in `layouts`; all columns are [gpus].

    `whole`: not in MIG mode and free. `may_change`: may be cut now. `barred`: bit set of the geometry that the GPU left
    a short time ago and does not return to; -1: none. `movable`: instances in use with movable work. `coming`
    [profiles]: instances added by changes under way. `leaves_gpu_s`: worth of an idle GPU in MIG mode as a whole one to
    the gangs waiting for it; NaN: it does not leave MIG mode. None: 0 for all.
    """

    used: I64
    free: I64
    whole: Bools
    may_change: Bools
    barred: I64
    movable: I64
    coming: I64
    leaves_gpu_s: F64 | None = None


@dataclass(frozen=True, slots=True)
class Wishes:
    """Wanted instances and whole GPUs, by profile.

    `pending` [profiles]: requested instances. `chances` [profiles, depth]: the chance of requests for at least 1, 2,
    ... more within the time that counts. `worth_gpu_s` [profiles] is the value of serving one. `whole_gpu_s` is the
    expected value of each further free whole GPU, [depth]; the gain of waiting gangs is in `PoolState.leaves_gpu_s`.
    """

    pending: I64
    chances: F64
    worth_gpu_s: F64
    whole_gpu_s: F64 = field(default_factory=lambda: np.zeros(0))


@dataclass(frozen=True, slots=True)
class Prices:
    """The cost of a change; inf: not supported.

    `instance_s`, `switch_s`: seconds without the changing capacity, for instances and for turning MIG mode on or off.
    `move_s`: seconds lost by moved work. The gain must exceed the price by `margin_ratio`.
    """

    instance_s: float
    switch_s: float = float("inf")
    move_s: float = float("inf")
    margin_ratio: float = 0.0


@dataclass(frozen=True, slots=True)
class Cut:
    """One change: the row of the GPU, its free instances before and after, and instances that move off it (bit sets).

    `switches`: 1 turns MIG mode on, -1 off.
    """

    gpu: int
    before: int
    after: int
    moved: int
    switches: int
    gain_gpu_s: float
    price_gpu_s: float


@dataclass(frozen=True, slots=True)
class Cuts:
    """The changes, best first. `complete` is False if a bound on steps or changes ended the search early."""

    changes: tuple[Cut, ...]
    steps: int
    complete: bool


@dataclass(frozen=True, slots=True)
class _Options:
    """Pairs of a kind of GPU and a possible result; columns are [pairs] or [pairs, profiles]."""

    kind: I64
    after: I64  # free instances afterwards, as bits
    moved: I64  # instances that move off, as bits
    switches: I64
    more: I64  # change of the free instances of the pool
    needs: I64  # free instances that other GPUs must have
    price_gpu_s: F64
    leaves_gpu_s: F64  # what the GPU is worth as a whole one to gangs that wait
    whole: I64  # change of the free whole GPUs that no gang waits for


def worth_table(wishes: Wishes) -> F64:
    """[profiles, depth + 1] value of that many free instances of a profile."""
    known = wishes.chances.shape[1]
    place = np.arange(int(wishes.pending.max(initial=0)) + known)[None, :] - wishes.pending[:, None]
    each = np.where(place < 0, 1.0, 0.0)
    rows, columns = np.nonzero((place >= 0) & (place < known))
    each[rows, columns] = wishes.chances[rows, place[rows, columns]]
    table = np.zeros((each.shape[0], each.shape[1] + 1))
    np.cumsum(each * wishes.worth_gpu_s[:, None], axis=1, out=table[:, 1:])
    return table


def chances_of(levels: tuple[float, ...], counts: F64) -> F64:
    """[kinds, depth] chance of at least 1, 2, ... arrivals. `counts` [kinds, levels] are quantiles of their number.

    Between two quantiles the chance is linear. Beyond the highest level it is 0: nothing is cut for less likely demand.
    A row with NaN expects nothing.
    """
    counts = np.where(np.isnan(counts).any(axis=1, keepdims=True), 0.0, counts)
    number = np.arange(1, int(counts.max(initial=0.0)) + 1)
    chances = np.zeros((len(counts), len(number)))
    tail = np.concatenate([[1.0], 1.0 - np.asarray(levels)])
    for row, known in enumerate(counts):
        places = np.concatenate([[0.0], known])
        chances[row] = np.where(number <= places[-1], np.interp(number, places, tail), 0.0)
    return chances


def choose_cuts(
    layouts: Layouts, state: PoolState, wishes: Wishes, prices: Prices, *, most: int, steps: int = STEPS
) -> Cuts:
    """At most `most` changes, each of another GPU. Pure; equal input gives equal output."""
    rows = np.flatnonzero(state.may_change)
    if not len(rows) or not most:
        return Cuts((), 0, True)
    kinds, leaves_gpu_s, kind_of = _kinds(state, rows)
    members = [rows[kind_of == kind].tolist() for kind in range(len(kinds))]
    options = _options(layouts, kinds, leaves_gpu_s, prices)
    busy = unpacked(kinds[:, 0], len(layouts.of_bit)) @ layouts.share
    table = worth_table(wishes)
    whole_table = np.concatenate([[0.0], np.cumsum(wishes.whole_gpu_s)])
    have = unpacked(state.free, len(layouts.of_bit)).sum(axis=0) @ layouts.of_bit + state.coming
    whole = int(state.whole.sum())
    bound = options.price_gpu_s * (1.0 + prices.margin_ratio) + EPSILON_GPU_S
    found: list[Cut] = []
    spent = 0
    while len(found) < most and spent + len(options.kind) <= steps:
        spent += len(options.kind)
        gain = _gain(table, have, options.more) + _gain_whole(whole_table, whole, options.whole) + options.leaves_gpu_s
        left = np.array([len(each) for each in members])[options.kind] > 0
        pays = left & (gain > bound) & (options.needs <= have).all(axis=1)
        if not pays.any():
            return Cuts(tuple(found), spent, True)
        equal = np.flatnonzero(pays & (gain >= gain[pays].max() - EPSILON_GPU_S))
        kind = options.kind[equal]
        first = np.array([members[each][0] for each in kind.tolist()])
        asked = np.where(options.switches[equal] < 0, 0.0, np.nan_to_num(leaves_gpu_s[kind]))
        pair = int(equal[np.lexsort((first, options.price_gpu_s[equal], asked, -busy[kind]))[0]])
        gpu = int(members[int(options.kind[pair])].pop(0))
        used, before = int(state.used[gpu]), int(state.free[gpu])
        again = (used & ~int(options.moved[pair])) | int(options.after[pair])
        if options.switches[pair] >= 0 and int(state.barred[gpu]) == again:
            continue  # it would return to what it left: this GPU stays as it is
        have = have + options.more[pair]
        whole += int(options.whole[pair])
        found.append(
            Cut(
                gpu,
                before,
                int(options.after[pair]),
                int(options.moved[pair]),
                int(options.switches[pair]),
                float(gain[pair]),
                float(options.price_gpu_s[pair]),
            )
        )
    return Cuts(tuple(found), spent, False)


def _kinds(state: PoolState, rows: I64) -> tuple[I64, F64, I64]:
    """[kinds, 4] used, free, whole and movable of unequal GPUs, their worth as whole ones, the kind of each row."""
    whole = state.whole[rows].astype(np.int64)
    leaves_gpu_s = np.zeros(len(rows)) if state.leaves_gpu_s is None else state.leaves_gpu_s[rows]
    values, value_of = np.unique(leaves_gpu_s, return_inverse=True)
    columns = [state.used[rows], state.free[rows], whole, state.movable[rows] & state.used[rows], value_of]
    kinds, kind_of = np.unique(np.stack(columns, axis=1), axis=0, return_inverse=True)
    return kinds[:, :4], values[kinds[:, 4]], kind_of.reshape(-1)


def _options(layouts: Layouts, kinds: I64, leaves_gpu_s: F64, prices: Prices) -> _Options:
    width = len(layouts.of_bit)
    states = [np.stack([np.arange(len(kinds)), np.zeros(len(kinds), np.int64)], axis=1)]
    if np.isfinite(prices.move_s):
        states.append(_drained(layouts, kinds))
    kind, moved = np.concatenate(states).T
    used = kinds[kind, 0] & ~moved
    state, layout = np.nonzero((layouts.bits & used[:, None]) == used[:, None])
    kind, moved, used, after = kind[state], moved[state], used[state], layouts.bits[layout] & ~used[state]
    switches = kinds[kind, 2]
    if np.isfinite(prices.switch_s):  # an empty GPU may also leave MIG mode
        empty = np.flatnonzero((kinds[:, 0] == 0) & (kinds[:, 2] == 0) & ~np.isnan(leaves_gpu_s))
        kind, after = np.concatenate([kind, empty]), np.concatenate([after, np.zeros(len(empty), np.int64)])
        moved = np.concatenate([moved, np.zeros(len(empty), np.int64)])
        switches = np.concatenate([switches, np.full(len(empty), -1)])
    seconds = np.where(switches != 0, prices.switch_s, prices.instance_s)
    keep = np.flatnonzero(np.isfinite(seconds) & ((after != kinds[kind, 1]) | (switches != 0)))
    kind, after, moved, switches, seconds = kind[keep], after[keep], moved[keep], switches[keep], seconds[keep]
    free = kinds[kind, 1]
    lost, new = unpacked(free & ~after, width), unpacked(after & ~free, width)
    leaves = unpacked(moved, width)
    changed = np.where(switches != 0, 1.0, np.maximum(lost @ layouts.share, new @ layouts.share))
    price = changed * seconds
    if np.isfinite(prices.move_s):
        price = price + (leaves @ layouts.share) * prices.move_s
    goes = leaves @ layouts.of_bit
    own = unpacked(free, width) @ layouts.of_bit
    more = unpacked(after, width) @ layouts.of_bit - own - goes
    needs = np.where(goes > 0, goes + own, -1)
    asked = np.where(switches < 0, leaves_gpu_s[kind], 0.0)
    return _Options(kind, after, moved, switches, more, needs, price, asked, np.where(asked > 0, 0, -switches))


def _drained(layouts: Layouts, kinds: I64) -> I64:
    """[drained, 2] kind and the instances moving off: up to `MOVES_PER_CUT` of the movable ones."""
    share = unpacked(kinds[:, 0], len(layouts.of_bit)) @ layouts.share
    found = []
    for kind in np.argsort(share, kind="stable")[:MOVE_KINDS].tolist():
        bits = [1 << bit for bit in range(len(layouts.of_bit)) if int(kinds[kind, 3]) >> bit & 1]
        for count in range(1, MOVES_PER_CUT + 1):
            found += [(kind, sum(chosen)) for chosen in combinations(bits, count)]
    return np.array(found, np.int64).reshape(-1, 2)


def _gain(table: F64, have: I64, more: I64) -> F64:
    """[pairs] value of the pool afterwards, less its present value."""
    depth, rows = table.shape[1] - 1, np.arange(len(have))
    after = np.clip(have + more, 0, depth)
    return np.asarray(table[rows, after].sum(axis=1) - table[rows, np.clip(have, 0, depth)].sum())


def _gain_whole(table: F64, have: int, more: I64) -> F64:
    """[pairs] expected value of the free whole GPUs afterwards, less their present one."""
    depth = len(table) - 1
    return np.asarray(table[np.clip(have + more, 0, depth)] - table[min(have, depth)])
