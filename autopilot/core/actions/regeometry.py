"""Change the MIG geometry of idle capacity for requests that wait, and ahead of those that the demand mix expects.

The choice is made in core/geometry, for each pool and GPU model: legal geometries only, few GPUs, and nothing in use
is destroyed. What changes together is the scope of the pool's engine: idle instances, a GPU, or a node. A free instance
is worth the run time of the request that it serves, times its part of the GPU. A change costs the capacity that it
takes away for as long as it lasts. Requests that only a forecast expects count by their chance within the time that a
change takes and one review: later requests can be served by a later change. A replica that waits and that only a
forecast calls for counts by the chance that its load needs it.

Where requests still wait, one GPU or node of a pool is drained at a time: nothing new starts there, and its work ends
or moves (core/preemption/draining.py). Once it is idle it is cut like any other.

Waiting gangs for which instances are being made are left alone: nothing is preempted for them meanwhile.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from math import inf

import numpy as np

from autopilot.core.geometry.cutting import Cut, Cuts, Prices, Wishes, choose_cuts
from autopilot.core.geometry.layouts import placements_of, unpacked
from autopilot.core.geometry.pools import Pool, pools_of, shares_of
from autopilot.core.geometry.units import Unit, choose_units, cuts_of
from autopilot.core.model.objects import PlannedCut
from autopilot.core.model.operations import StopReason
from autopilot.core.model.records import About, Evidence, Geometry, Note
from autopilot.core.model.snapshot import F64
from autopilot.core.model.units import counted
from autopilot.core.planning.action import Action
from autopilot.core.planning.context import Context
from autopilot.core.planning.cuttable import Seen, as_if_idle, bits_in, books_of, idle_gpus, look_at, node_rows
from autopilot.core.planning.draft import Case, DrainDraft, NoteCase, RecutDraft, Submit
from autopilot.core.planning.instance_requests import (
    Waiting,
    asks_of,
    counts_in,
    expected_requests,
    partly_served,
    serve,
    waiting_for_instances,
    worth_gpu_s,
)
from autopilot.core.preemption.draining import drain_of
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
WAITING_WHOLE = Case(
    NAME,
    "recut",
    "waiting_whole",
    words="cut {cut_from} into {cut_into} for {waiting:waiting request}; {expected} more expected within {within}; "
    "{missing}, on which nothing runs, is missing for {takes}",
)
EXPECTED_WHOLE = Case(
    NAME,
    "recut",
    "expected_whole",
    words="cut {cut_from} into {cut_into} ahead: {expected:such request} expected within {within}, and none waits; "
    "{missing}, on which nothing runs, is missing for {takes}",
)
FORESEEN = Case(
    NAME,
    "recut",
    "foreseen",
    words="cut {cut_from} into {cut_into} for {foreseen:waiting replica} that a forecast calls for (needed with "
    "probability {chance_needed}); {expected} more expected within {within}; {missing} is missing for {takes}",
)
CASES = {
    (False, True): WAITING,
    (False, False): EXPECTED,
    (True, True): WAITING_WHOLE,
    (True, False): EXPECTED_WHOLE,
}
"""By whether a GPU or node changes as a whole, and whether a request waits for it."""

_DRAIN = (
    "drain it so that it can be cut into {cut_into} for {waiting:waiting request}: {moving:gang moves|gangs move} "
    "elsewhere, {ending:gang ends|gangs end} by itself within {ready_in}; nothing new starts there, and after that "
    "{missing:GPU is|GPUs are} missing for {takes}"
)
DRAIN_GPU = Case(NAME, "drain", "gpu", words=_DRAIN, takes=StopReason.DRAIN)
DRAIN_NODE = Case(NAME, "drain", "node", words=_DRAIN, takes=StopReason.DRAIN)
DRAINS = 8
"""Units in use that are looked at in a tick, those with least in use first."""

STEPS_OF_CUTS = 30
"""Steps of the search for geometries that cost as much as one step of a search for victims."""

ENDED_EARLY = NoteCase(
    "recut_search_ended_early", "the search for MIG geometries of pool {subject} ended early, after {value:step}"
)
LEFT_OUT = NoteCase(
    "recut_gpu_left_out",
    "{gpus:GPU} of pool {subject} cannot be cut: instances have a profile that their model lacks, no known place, or "
    "overlap; check the MIG geometry that their nodes report",
)


def propose(ctx: Context, submit: Submit) -> None:
    """Changes for each pool and model, those for what waits first."""
    waiting = waiting_for_instances(ctx)
    snapshot = ctx.observation.snapshot
    if not snapshot.gpus.mig.any() and not waiting.at:
        return
    work, names = snapshot.workloads, snapshot.names
    wanted = {names.profiles[int(work.mig_profile[ctx.pending[at]])] for at in waiting.at}
    mix = ctx.observation.forecasts.mix
    expected = {kind.profile for kind in mix.kinds if kind.profile} if mix is not None else set()
    for pool in pools_of(snapshot, books_of(ctx), tuple(sorted(wanted | expected))):
        scope = ctx.policy.regeometry.scope(pool.name)
        if scope:
            _plan_pool(ctx, pool, scope, waiting, submit)


def _plan_pool(ctx: Context, pool: Pool, scope: str, waiting: Waiting, submit: Submit) -> None:
    rules = ctx.policy.regeometry
    seconds = rules.seconds(scope, pool.name)
    left_out = int((~pool.sound).sum())
    if left_out:
        ctx.plan.note(Note(LEFT_OUT.code, About.POOL, pool.name, facts=(Evidence("gpus", left_out),)))
    seen = look_at(ctx, pool, scope)
    asks = asks_of(ctx, pool, waiting)
    if seconds > ctx.policy.room.delay_s:  # too late for what is only foreseen
        asks = [ask if chance >= 1.0 else -1 for ask, chance in zip(asks, waiting.chance, strict=True)]
    serve(ctx, waiting, asks, seen.state.coming.copy(), seconds)
    within_s = seconds + ctx.policy.review.batch_s
    chances, number = expected_requests(ctx, pool, within_s)
    begun = changes_in_hour(ctx.memory, pool.name, ctx.now_s) + ctx.plan.recuts.count(pool.name)
    most = max(min(rules.per_tick, rules.per_pool_hour - begun), 0)
    found = _choose(ctx, pool, seen, waiting, asks, chances, most)
    if not found.complete and len(found.changes) < most:
        ctx.plan.note(Note(ENDED_EARLY.code, About.POOL, pool.name, float(found.steps), "steps"))
    made = np.zeros(len(pool.layouts.profiles), np.int64)
    named: set[int] = set()
    for cut in found.changes:
        accepted = len(ctx.plan.recuts)
        draft = _draft(ctx, pool, scope, cut, waiting, asks, number, within_s)
        if (
            submit(replace(draft, serves=_served(ctx, pool, cut, waiting, asks, named)))
            and len(ctx.plan.recuts) > accepted
        ):
            made += counts_in(pool, cut.after) - counts_in(pool, cut.after & cut.before)
    serve(ctx, waiting, asks, made, seconds)
    _let_go(ctx, pool, seen, {cut.gpu for cut in found.changes})
    if most > len(found.changes) and not seen.draining and rules.drain_s > 0:
        _drain(ctx, pool, waiting, asks, most, submit)


def _choose(ctx: Context, pool: Pool, seen: Seen, waiting: Waiting, asks: list[int], chances: F64, most: int) -> Cuts:
    """The changes; gangs that would get only a part of their instances are left out, the last first."""
    rules, state, layouts = ctx.policy.regeometry, seen.state, pool.layouts
    seconds = rules.seconds(seen.scope, pool.name)
    switch_s = rules.seconds("gpu", pool.name) if seen.scope == "instance" else inf
    prices = Prices(seconds, switch_s, margin_ratio=rules.margin_ratio)
    worth = worth_gpu_s(ctx, pool, waiting, asks)
    free = unpacked(state.free, len(layouts.of_bit)).sum(axis=0) @ layouts.of_bit + state.coming
    spent = 0
    while True:
        pending = waiting.needs(len(layouts.profiles), asks)
        wishes, steps = Wishes(pending, waiting.foreseen(chances, asks), worth), max(rules.steps - spent, 0)
        if seen.scope == "instance":
            found = choose_cuts(layouts, state, wishes, prices, most=most, steps=steps)
        else:
            units = [Unit(each, _missing_gpus(ctx, pool, seen.scope, each) * seconds) for each in seen.idle]
            whole = choose_units(layouts, state, wishes, units, prices, most=most, steps=steps)
            found = Cuts(whole.cuts, whole.steps, whole.complete)
        spent += found.steps
        room = free + sum(
            (counts_in(pool, cut.after) - counts_in(pool, cut.before) for cut in found.changes), np.zeros_like(free)
        )
        partial = partly_served(waiting, asks, room)
        if partial < 0 or not found.changes:
            return replace(found, steps=spent)
        asks[partial] = -1


def _missing_gpus(ctx: Context, pool: Pool, scope: str, places: tuple[int, ...]) -> int:
    """GPUs that are missing while a unit changes."""
    if scope == "gpu":
        return 1
    snapshot = ctx.observation.snapshot
    return int(snapshot.nodes.gpus[snapshot.gpus.node[pool.rows[places[0]]]])


# --- draining ---------------------------------------------------------------------------------------


def _let_go(ctx: Context, pool: Pool, seen: Seen, changed: set[int]) -> None:
    """End the drain of units that are idle, and that no change needs any more."""
    for unit in seen.drained:
        if changed.isdisjoint(unit):
            ctx.plan.let_go(str(ctx.observation.snapshot.gpus.uuid[pool.rows[place]]) for place in unit)


def _drain(ctx: Context, pool: Pool, waiting: Waiting, asks: list[int], most: int, submit: Submit) -> None:
    """Drain the unit that serves what still waits at the least price, if that pays."""
    rules = ctx.policy.regeometry
    scope = rules.drained(pool.name)
    pending = waiting.needs(len(pool.layouts.profiles), asks)
    if not scope or not pending.any():
        return
    wishes = Wishes(pending, np.zeros((len(pending), 0)), worth_gpu_s(ctx, pool, waiting, asks))
    best: tuple[float, DrainDraft] | None = None
    for unit in look_at(ctx, pool, scope).busy[:DRAINS]:
        found = _drained(ctx, pool, scope, unit, wishes, most)
        if found is not None and (best is None or found[0] > best[0]):
            best = found
    if best is None:
        return
    draft = best[1]
    if submit(draft) and draft.uuids <= ctx.plan.drained:
        made = sum((counts_in(pool, bits_in(pool, cut.after or ())) for cut in draft.cuts), np.zeros_like(pending))
        serve(ctx, waiting, asks, made, rules.seconds(scope, pool.name) + draft.until_s - ctx.now_s)


def _drained(
    ctx: Context, pool: Pool, scope: str, places: tuple[int, ...], wishes: Wishes, most: int
) -> tuple[float, DrainDraft] | None:
    """The drain of one unit with its gain above its price; None where it does not pay."""
    rules, snapshot, layouts = ctx.policy.regeometry, ctx.observation.snapshot, pool.layouts
    rows = pool.rows[list(places)] if scope == "gpu" else node_rows(ctx, int(pool.rows[places[0]]))
    drain = drain_of(ctx, rows, rules.drain_s)
    if drain is None:
        return None
    seen = as_if_idle(ctx, pool, scope, places, [move.row for move in drain.moves])
    seconds = rules.seconds(scope, pool.name)
    prices = Prices(seconds, margin_ratio=rules.margin_ratio)
    cuts, steps = cuts_of(layouts, seen, wishes, Unit(places, 0.0), prices, most=most, steps=rules.steps)
    ctx.plan.spend(steps // STEPS_OF_CUTS)
    missing = _missing_gpus(ctx, pool, scope, places)
    held_gpu_s = idle_gpus(ctx, rows) * (drain.ready_s - ctx.now_s)
    price_gpu_s = missing * seconds + held_gpu_s + drain.cost_gpu_s
    gain_gpu_s = sum(cut.gain_gpu_s for cut in cuts)
    if not cuts or gain_gpu_s <= price_gpu_s * (1.0 + rules.margin_ratio):
        return None
    gpu = int(rows[0])
    planned = tuple(
        PlannedCut(str(snapshot.gpus.uuid[pool.rows[cut.gpu]]), _before(pool, cut), _after(pool, cut, used=0))
        for cut in cuts
    )
    new = Counter(place.profile for cut in cuts for place in placements_of(layouts.model, cut.after & ~cut.before))
    draft = DrainDraft(
        case=DRAIN_NODE if scope == "node" else DRAIN_GPU,
        gpu=gpu,
        rows=tuple(rows.tolist()),
        uuids=frozenset(snapshot.gpus.uuid[rows].tolist()),
        node=int(snapshot.gpus.node[gpu]),
        pool=pool.name,
        scope=scope,
        cuts=planned,
        until_s=ctx.now_s + rules.drain_s + ctx.policy.preemption.grace_s,
        moves=drain.moves,
        benefit_gpu_s=gain_gpu_s,
        cost_gpu_s=price_gpu_s,
        evidence=(
            Evidence("cut_into", in_words(new)),
            Evidence("waiting", int(wishes.pending.sum())),
            Evidence("moving", len(drain.moves)),
            Evidence("ending", len(drain.ends)),
            Evidence("ready_in", round(drain.ready_s - ctx.now_s, 3), "s"),
            Evidence("takes", round(seconds, 3), "s"),
            Evidence("missing", missing, "GPUs"),
            Evidence("pool", pool.name),
            Evidence("scope", scope),
        ),
    )
    return gain_gpu_s - price_gpu_s, draft


# --- one change -------------------------------------------------------------------------------------


def _served(
    ctx: Context, pool: Pool, cut: Cut, waiting: Waiting, asks: list[int], named: set[int]
) -> tuple[tuple[int, float], ...]:
    """Waiting work (row) that the new instances of a cut serve, and the part of a GPU that each instance is.

    `named` are the gangs that earlier cuts serve; those of this one are added.
    """
    left, shares = counts_in(pool, cut.after) - counts_in(pool, cut.after & cut.before), shares_of(pool.layouts)
    found = []
    for each, profile in enumerate(asks):
        if profile >= 0 and each not in named and 0 < waiting.left[each] <= left[profile]:
            left[profile] -= waiting.left[each]
            named.add(each)
            found.append((int(ctx.pending[waiting.at[each]]), float(shares[profile])))
    return tuple(found)


def _draft(
    ctx: Context, pool: Pool, scope: str, cut: Cut, waiting: Waiting, asks: list[int], mean: F64, within_s: float
) -> RecutDraft:
    model, gpu = pool.layouts.model, int(pool.rows[cut.gpu])
    seconds = within_s - ctx.policy.review.batch_s
    new = {place.profile for place in placements_of(model, cut.after & ~cut.before)}
    chances = [
        chance
        for profile, chance in zip(asks, waiting.chance, strict=True)
        if profile >= 0 and pool.layouts.profiles[profile] in new
    ]
    waits = sum(chance >= 1.0 for chance in chances)
    foreseen = [chance for chance in chances if chance < 1.0]
    expected = sum(float(mean[place]) for place, name in enumerate(pool.layouts.profiles) if name in new)
    gone = _words(pool, cut.before & ~cut.after) if cut.switches <= 0 else "a whole GPU"
    made = _words(pool, cut.after & ~cut.before) if cut.switches >= 0 else "a whole GPU"
    missing: tuple[Evidence, ...] = ()
    if scope != "instance":
        node = str(ctx.observation.snapshot.nodes.id[ctx.observation.snapshot.gpus.node[gpu]])
        gpus = _missing_gpus(ctx, pool, scope, (cut.gpu,))
        missing = (Evidence("missing", "the GPU" if scope == "gpu" else f"node {node} with {counted(gpus, 'GPU')}"),)
    elif foreseen and not waits:
        missing = (Evidence("missing", "the idle capacity that changes"),)
    if foreseen:
        chance = Evidence("chance_needed", round(max(foreseen), 3))
        missing = (Evidence("foreseen", len(foreseen), "replicas"), chance, *missing)
    return RecutDraft(
        case=FORESEEN if foreseen and not waits else CASES[scope != "instance", waits > 0],
        gpu=gpu,
        pool=pool.name,
        scope=scope,
        before=_before(pool, cut),
        after=_after(pool, cut, used=int(pool.used[cut.gpu])),
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
            Evidence("scope", "gpu" if cut.switches and scope == "instance" else scope),
            *missing,
        ),
    )


def _before(pool: Pool, cut: Cut) -> Geometry | None:
    return None if cut.switches > 0 else _geometry(pool, int(pool.used[cut.gpu]) | cut.before)


def _after(pool: Pool, cut: Cut, *, used: int) -> Geometry | None:
    return None if cut.switches < 0 else _geometry(pool, used | cut.after)


def _geometry(pool: Pool, bits: int) -> Geometry:
    return tuple((place.profile, place.start) for place in placements_of(pool.layouts.model, bits))


def _words(pool: Pool, bits: int) -> str:
    """Instances in words: `2 x 1g.10gb and 3g.40gb`."""
    return in_words(Counter(place.profile for place in placements_of(pool.layouts.model, bits)))


def in_words(counts: Mapping[str, int]) -> str:
    """Instances by profile in words."""
    return " and ".join(name if count == 1 else f"{count} x {name}" for name, count in counts.items())


ACTION = Action(
    NAME,
    "cut idle MIG capacity for other profiles",
    propose,
    (*CASES.values(), FORESEEN, DRAIN_GPU, DRAIN_NODE),
    notes=(ENDED_EARLY, LEFT_OUT),
)
