"""Change the MIG geometry of idle capacity for requests that wait, and ahead of those that the demand mix expects.

The choice is made in core/geometry, for each pool and GPU model: legal geometries only, few GPUs, and nothing in use
is destroyed. A free instance is worth the run time of the request that it serves, times its part of the GPU. A change
costs the capacity that it takes away for as long as it lasts. Requests that only a forecast expects count by their
chance within the time that a change takes and one review: later requests can be served by a later change.

Waiting gangs for which instances are being made are left alone: nothing is preempted for them meanwhile.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace

import numpy as np

from autopilot.core.geometry.cutting import Cut, Cuts, PoolState, Prices, Wishes, chances_of, choose_cuts
from autopilot.core.geometry.layouts import bits_of, placements_of, unpacked
from autopilot.core.geometry.pools import Books, Pool, pools_of, shares_of
from autopilot.core.hardware import mig
from autopilot.core.model.memory import RecutRecord
from autopilot.core.model.records import About, Code, Evidence, Geometry, Note
from autopilot.core.model.snapshot import F64, I64, Bools, Topology
from autopilot.core.planning.action import Action
from autopilot.core.planning.context import Context
from autopilot.core.planning.draft import Case, NoteCase, RecutDraft, Submit
from autopilot.core.tracking.recuts import changes_in_hour

NAME = "regeometry"
WAITING = Case(
    NAME,
    "recut",
    "waiting",
    words="cut {cut_from} into {cut_into} for {waiting:waiting request}; {expected} more expected within {within}; the "
    "idle capacity that changes is missing for {takes}",
)
EXPECTED = Case(
    NAME,
    "recut",
    "expected",
    words="cut {cut_from} into {cut_into} ahead: {expected:such request} expected within {within}, and none waits; the "
    "idle capacity that changes is missing for {takes}",
)
ENDED_EARLY = NoteCase(
    "recut_search_ended_early", "the search for MIG geometries of pool {subject} ended early, after {value:step}"
)
LEFT_OUT = NoteCase(
    "recut_gpu_left_out",
    "{gpus:GPU} of pool {subject} cannot be cut: instances have a profile that their model lacks, no known place, or "
    "overlap; check the MIG geometry that their nodes report",
)


@dataclass(slots=True)
class _Waiting:
    """Gangs that wait for instances and found none, in the order of service."""

    at: list[int]  # positions
    left: list[int]  # instances that each still needs


def propose(ctx: Context, submit: Submit) -> None:
    """Changes for each pool and model, those for what waits first."""
    waiting = _waiting(ctx)
    snapshot = ctx.observation.snapshot
    if not snapshot.gpus.mig.any() and not waiting.at:
        return
    work, names = snapshot.workloads, snapshot.names
    wanted = {names.profiles[int(work.mig_profile[ctx.pending[at]])] for at in waiting.at}
    mix = ctx.observation.forecasts.mix
    expected = {kind.profile for kind in mix.kinds if kind.profile} if mix is not None else set()
    for pool in pools_of(snapshot, _books(ctx), tuple(sorted(wanted | expected))):
        _plan_pool(ctx, pool, waiting, submit)


def _books(ctx: Context) -> Books:
    """The books of the tick. What this plan evicts is still in use."""
    whatif = ctx.whatif
    held = _held(ctx)
    return Books(
        whatif.instance_gpu,
        whatif.instance_profile,
        whatif.instance_start,
        whatif.instance_alive,
        (whatif.instance_used > 0) | held,
        whatif.gpu_used > 0,
    )


def _held(ctx: Context) -> Bools:
    """Instances that hold work now. Shape [instances]."""
    placed = ctx.observation.snapshot.placements.instance
    held = np.zeros(len(ctx.whatif.instance_gpu), np.bool_)
    held[placed[placed >= 0]] = True
    return held


def _waiting(ctx: Context) -> _Waiting:
    """Gangs of single instances, each with its own place, that no free instance serves."""
    work = ctx.observation.snapshot.workloads
    found = [
        at
        for at in ctx.waiting(frozenset({Code.MIG_GEOMETRY}))
        if (row := int(ctx.pending[at])) not in ctx.members
        and work.gpus_per_member[row] == 1
        and work.topology[row] == Topology.NONE
        and work.mig_profile[row] >= 0
    ]
    return _Waiting(found, [int(work.gpus[ctx.pending[at]]) for at in found])


# --- one pool ---------------------------------------------------------------------------------------


def _plan_pool(ctx: Context, pool: Pool, waiting: _Waiting, submit: Submit) -> None:
    rules = ctx.policy.regeometry
    scope = next((each for each in ("instance", "node") if np.isfinite(rules.seconds(each, pool.name))), "gpu")
    seconds = rules.seconds(scope, pool.name)
    if not np.isfinite(seconds):
        return
    left_out = int((~pool.sound).sum())
    if left_out:
        ctx.plan.note(Note(LEFT_OUT.code, About.POOL, pool.name, facts=(Evidence("gpus", left_out),)))
    state = _state(ctx, pool, scope)
    asks = _asks(ctx, pool, waiting)
    _serve(ctx, waiting, asks, state.coming.copy(), seconds)
    within_s = seconds + ctx.policy.review.batch_s
    chances, number = _expected(ctx, pool, within_s)
    switch_s = rules.seconds("gpu", pool.name) if scope == "instance" else float("inf")
    prices = Prices(seconds, switch_s, margin_ratio=rules.margin_ratio)
    begun = changes_in_hour(ctx.memory, pool.name, ctx.now_s) + ctx.plan.recuts.count(pool.name)
    most = max(min(rules.per_tick, rules.per_pool_hour - begun), 0)
    found = _choose(ctx, pool, state, waiting, asks, chances, prices, most)
    if not found.complete and len(found.changes) < most:
        ctx.plan.note(Note(ENDED_EARLY.code, About.POOL, pool.name, float(found.steps), "steps"))
    made = np.zeros(len(pool.layouts.profiles), np.int64)
    named: set[int] = set()
    for cut in found.changes:
        accepted = len(ctx.plan.recuts)
        draft = _draft(pool, cut, asks, number, within_s, seconds)
        if (
            submit(replace(draft, serves=_served(ctx, pool, cut, waiting, asks, named)))
            and len(ctx.plan.recuts) > accepted
        ):
            made += _counts(pool, cut.after) - _counts(pool, cut.after & cut.before)
    _serve(ctx, waiting, asks, made, seconds)


def _state(ctx: Context, pool: Pool, scope: str) -> PoolState:
    """The pool as the choice needs it: which GPUs may change now, and what is being made."""
    snapshot, rules, whatif = ctx.observation.snapshot, ctx.policy.regeometry, ctx.whatif
    uuids = snapshot.gpus.uuid[pool.rows].tolist()
    may = pool.sound & whatif.gpu_ok[pool.rows] & whatif.node_ok[snapshot.gpus.node[pool.rows]]
    starting = np.zeros(len(snapshot.gpus.uuid), np.bool_)  # a change would meet a start that is under way
    starting[whatif.instance_gpu[(whatif.instance_used > 0) & ~_held(ctx)]] = True
    may &= ~starting[pool.rows]
    whole = ~pool.in_mig & (whatif.gpu_used[pool.rows] == 0)
    may &= pool.in_mig | (whole & whatif.gpu_usable[pool.rows])
    if scope == "node":
        may &= _idle_nodes(ctx)[snapshot.gpus.node[pool.rows]]
    barred = np.full(len(pool.rows), -1, np.int64)
    coming = np.zeros(len(pool.layouts.profiles), np.int64)
    for place, record in _records(ctx, uuids):
        if record.state != "settled" or ctx.now_s < record.since_s + rules.dwell_s:
            may[place] = False
        if record.state == "changing":
            new = set(record.after or ()) - set(record.before or ())
            coming += _counts(
                pool, bits_of(pool.layouts.model, [cut for cut in new if cut[0] in pool.layouts.profiles])
            )
        elif ctx.now_s < record.since_s + rules.return_s and record.before is not None:
            known = [cut for cut in record.before if cut[0] in pool.layouts.profiles]
            barred[place] = bits_of(pool.layouts.model, known)
    free = np.where(whatif.gpu_ok[pool.rows], pool.free, 0)  # elsewhere nothing new starts
    return PoolState(pool.used, free, whole & may, may, barred, np.zeros(len(pool.rows), np.int64), coming)


def _records(ctx: Context, uuids: list[str]) -> list[tuple[int, RecutRecord]]:
    if not ctx.memory.recuts:
        return []
    place = {uuid: number for number, uuid in enumerate(uuids)}
    return [(place[uuid], record) for uuid, record in ctx.memory.recuts.items() if uuid in place]


def _idle_nodes(ctx: Context) -> Bools:
    """Nodes without any work. Shape [nodes]."""
    snapshot, whatif = ctx.observation.snapshot, ctx.whatif
    busy = np.zeros(len(snapshot.nodes.id), np.bool_)
    busy[snapshot.gpus.node[whatif.gpu_used > 0]] = True
    busy[snapshot.gpus.node[whatif.instance_gpu[whatif.instance_used > 0]]] = True
    return ~busy


# --- what is wanted ---------------------------------------------------------------------------------


def _asks(ctx: Context, pool: Pool, waiting: _Waiting) -> list[int]:
    """The profile of each waiting gang in this pool; -1 where the pool cannot serve it."""
    work, names = ctx.observation.snapshot.workloads, ctx.observation.snapshot.names
    found = []
    for at, left in zip(waiting.at, waiting.left, strict=True):
        row = int(ctx.pending[at])
        profile = mig.find_profile(pool.layouts.model, names.profiles[int(work.mig_profile[row])])
        allowed = not work.gpu_models[row] or int(work.gpu_models[row]) >> pool.model & 1
        known = left > 0 and allowed and profile is not None and profile.name in pool.layouts.profiles
        found.append(pool.layouts.profiles.index(profile.name) if known and profile is not None else -1)
    return found


def _serve(ctx: Context, waiting: _Waiting, asks: list[int], made: I64, seconds: float) -> None:
    """Give instances that are being made to gangs in order, and leave these gangs alone."""
    for number, profile in enumerate(asks):
        if profile >= 0 and 0 < waiting.left[number] <= made[profile]:
            made[profile] -= waiting.left[number]
            waiting.left[number] = 0
            asks[number] = -1
            ctx.plan.serve(waiting.at[number], seconds)


def _expected(ctx: Context, pool: Pool, within_s: float) -> tuple[F64, F64]:
    """Requests within `within_s` by the demand mix: [profiles, depth] chances, and [profiles] mean number."""
    rules, mix, profiles = ctx.policy.regeometry, ctx.observation.forecasts.mix, pool.layouts.profiles
    nothing = np.zeros((len(profiles), 0)), np.zeros(len(profiles))
    if not rules.ahead or mix is None or mix.reason or mix.watched_h < rules.watched_h or not len(mix.horizons_s):
        return nothing
    horizon = min(range(len(mix.horizons_s)), key=lambda each: abs(mix.horizons_s[each] - within_s))
    part = min(within_s / mix.horizons_s[horizon], 1.0)
    levels = tuple(level for level in mix.levels if level <= rules.level)
    counts, mean = np.zeros((len(profiles), len(levels))), np.zeros(len(profiles))
    model = ctx.observation.snapshot.names.gpu_models[pool.model]
    for row, kind in enumerate(mix.kinds):
        profile = mig.find_profile(pool.layouts.model, kind.profile) if kind.profile else None
        if profile is None or profile.name not in profiles or (kind.gpu_models and model not in kind.gpu_models):
            continue
        place = profiles.index(profile.name)
        counts[place] += mix.counts[row, horizon, : len(levels)] * kind.gpus * part
        mean[place] += mix.expected[row, horizon] * kind.gpus * part
    return (chances_of(levels, np.ceil(counts)), mean) if levels else nothing


def _worth_gpu_s(ctx: Context, pool: Pool, waiting: _Waiting, asks: list[int]) -> F64:
    """[profiles] GPU-seconds that serving one request is worth, up to the horizon."""
    life_s = np.full(len(pool.layouts.profiles), ctx.policy.regeometry.life_s)
    for profile in set(asks) - {-1}:
        runs_s = [
            float(ctx.run_low_s[at]) if ctx.known[at] else ctx.policy.regeometry.life_s
            for at, ask in zip(waiting.at, asks, strict=True)
            if ask == profile
        ]
        life_s[profile] = float(np.mean(runs_s))
    return np.asarray(np.minimum(life_s, ctx.policy.horizon_s) * shares_of(pool.layouts))


def _choose(
    ctx: Context,
    pool: Pool,
    state: PoolState,
    waiting: _Waiting,
    asks: list[int],
    chances: F64,
    prices: Prices,
    most: int,
) -> Cuts:
    """The changes; gangs that would get only a part of their instances are left out, the last first."""
    worth = _worth_gpu_s(ctx, pool, waiting, asks)
    free = unpacked(state.free, len(pool.layouts.of_bit)).sum(axis=0) @ pool.layouts.of_bit + state.coming
    steps, spent = ctx.policy.regeometry.steps, 0
    while True:
        pending = np.zeros(len(pool.layouts.profiles), np.int64)
        for profile, left in zip(asks, waiting.left, strict=True):
            if profile >= 0:
                pending[profile] += left
        wishes = Wishes(pending, chances, worth)
        found = choose_cuts(pool.layouts, state, wishes, prices, most=most, steps=max(steps - spent, 0))
        spent += found.steps
        room = free + sum(
            (_counts(pool, cut.after) - _counts(pool, cut.before) for cut in found.changes), np.zeros_like(free)
        )
        partial = _partial(waiting, asks, room)
        if partial < 0 or not found.changes:
            return replace(found, steps=spent)
        asks[partial] = -1


def _partial(waiting: _Waiting, asks: list[int], room: I64) -> int:
    """The last gang of several instances that finds room for some but not for all of them; -1: none."""
    left, found = room.copy(), -1
    for number, profile in enumerate(asks):
        if profile < 0:
            continue
        if waiting.left[number] <= left[profile]:
            left[profile] -= waiting.left[number]
        elif 0 < left[profile]:
            found = number
    return found


# --- one change -------------------------------------------------------------------------------------


def _counts(pool: Pool, bits: int) -> I64:
    """[profiles] instances in a bit set."""
    found = Counter(place.profile for place in placements_of(pool.layouts.model, bits))
    return np.array([found[name] for name in pool.layouts.profiles], np.int64)


def _served(
    ctx: Context, pool: Pool, cut: Cut, waiting: _Waiting, asks: list[int], named: set[int]
) -> tuple[tuple[int, float], ...]:
    """Waiting work (row) that the new instances of a cut serve, and the part of a GPU that each instance is.

    `named` are the gangs that earlier cuts serve; those of this one are added.
    """
    left, shares = _counts(pool, cut.after) - _counts(pool, cut.after & cut.before), shares_of(pool.layouts)
    found = []
    for each, profile in enumerate(asks):
        if profile >= 0 and each not in named and 0 < waiting.left[each] <= left[profile]:
            left[profile] -= waiting.left[each]
            named.add(each)
            found.append((int(ctx.pending[waiting.at[each]]), float(shares[profile])))
    return tuple(found)


def _draft(pool: Pool, cut: Cut, asks: list[int], mean: F64, within_s: float, seconds: float) -> RecutDraft:
    model, gpu = pool.layouts.model, int(pool.rows[cut.gpu])
    used = int(pool.used[cut.gpu])
    before: Geometry | None = None if cut.switches > 0 else _geometry(pool, used | cut.before)
    after: Geometry | None = None if cut.switches < 0 else _geometry(pool, used | cut.after)
    new = {place.profile for place in placements_of(model, cut.after & ~cut.before)}
    waits = sum(profile >= 0 and pool.layouts.profiles[profile] in new for profile in asks)
    expected = sum(float(mean[place]) for place, name in enumerate(pool.layouts.profiles) if name in new)
    gone = _words(pool, cut.before & ~cut.after) if cut.switches <= 0 else "a whole GPU"
    made = _words(pool, cut.after & ~cut.before) if cut.switches >= 0 else "a whole GPU"
    return RecutDraft(
        case=WAITING if waits else EXPECTED,
        gpu=gpu,
        pool=pool.name,
        before=before,
        after=after,
        benefit_gpu_s=cut.gain_gpu_s,
        cost_gpu_s=cut.price_gpu_s,
        evidence=(
            Evidence("cut_from", gone or "free slices"),
            Evidence("cut_into", made),
            Evidence("waiting", waits),
            Evidence("expected", round(expected, 3), "requests"),
            Evidence("within", round(within_s, 3), "s"),
            Evidence("takes", round(seconds, 3), "s"),
            Evidence("pool", pool.name),
            Evidence("scope", "gpu" if cut.switches else "instance"),
        ),
    )


def _geometry(pool: Pool, bits: int) -> Geometry:
    return tuple((place.profile, place.start) for place in placements_of(pool.layouts.model, bits))


def _words(pool: Pool, bits: int) -> str:
    """Instances in words: `2 x 1g.10gb and 3g.40gb`."""
    found = Counter(place.profile for place in placements_of(pool.layouts.model, bits))
    return " and ".join(name if count == 1 else f"{count} x {name}" for name, count in found.items())


ACTION = Action(
    NAME, "cut idle MIG capacity for other profiles", propose, (WAITING, EXPECTED), notes=(ENDED_EARLY, LEFT_OUT)
)
