"""Change the MIG geometry of idle capacity for waiting requests, and ahead of those expected by the demand mix.

Theory of operation. The choice is made in core/geometry, for each pool and GPU model: legal geometries only, few GPUs,
and nothing in use is destroyed. The scope of the pool's engine changes together: idle instances, a GPU, or a node. A
free instance is worth the run time of the request that it serves, times its part of the GPU. A change costs the
capacity taken away for as long as it lasts. Requests expected by a forecast alone count by their chance within the time
of a change and one review: later requests can be served by a later change. A waiting replica called for by a forecast
alone counts by the chance that its load needs it.

If the policy states the scopes `instance` and `gpu` for a pool, or the scope `node` alone, idle GPUs also turn MIG mode
on, and off again for gangs of whole GPUs (core/geometry/whole_gpus.py).

If requests still wait, one GPU or node of a pool is drained at a time: nothing new starts there, and its work ends or
moves (core/geometry/draining.py). Once it is idle it is cut like any other.

Waiting gangs with instances in the making are left alone: nothing is preempted for them meanwhile.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from math import isfinite

import numpy as np

from autopilot.core.effects.action import Action
from autopilot.core.effects.draft import Case, NoteCase, Submit
from autopilot.core.geometry import drain
from autopilot.core.geometry.cuttable import Seen, as_if_idle, bits_in, books_of, idle_gpus, look_at, node_rows
from autopilot.core.geometry.cutting import Cuts, Prices, Wishes, choose_cuts
from autopilot.core.geometry.drain import DrainDraft
from autopilot.core.geometry.draining import drain_of
from autopilot.core.geometry.follow import changes_in_hour
from autopilot.core.geometry.instance_requests import (
    Waiting,
    asks_of,
    counts_in,
    expected_requests,
    partly_served,
    serve,
    waiting_for_instances,
    worth_gpu_s,
)
from autopilot.core.geometry.layouts import placements_of, unpacked
from autopilot.core.geometry.pools import Pool, pools_of
from autopilot.core.geometry.recut_drafts import (
    CASES,
    FORESEEN,
    LEAVE_EXPECTED,
    LEAVE_WAITING,
    NAME,
    before_of,
    cut_draft,
    geometry,
    in_words,
    leave_draft,
    missing_gpus,
    served,
    switch_s_of,
)
from autopilot.core.geometry.units import Unit, choose_units, cuts_of
from autopilot.core.geometry.whole_gpus import (
    NO_NEEDS,
    WholeGang,
    WholeNeeds,
    made_whole,
    partly_whole,
    whole_needs,
    with_needs,
)
from autopilot.core.model.objects import PlannedCut
from autopilot.core.model.records import About, Evidence, Note
from autopilot.core.model.snapshot import F64
from autopilot.core.model.stops import StopReason
from autopilot.core.planning.context import Context

_DRAIN = (
    "drain it so that it can be cut into {cut_into} for {waiting:waiting request}: {moving:gang moves|gangs move} "
    "elsewhere, {ending:gang ends|gangs end} by itself within {ready_in}; nothing new starts there, and after that "
    "{missing:GPU is|GPUs are} missing for {takes}"
)
DRAIN_GPU = Case(NAME, drain.KIND, "gpu", words=_DRAIN, takes=StopReason.DRAIN)
DRAIN_NODE = Case(NAME, drain.KIND, "node", words=_DRAIN, takes=StopReason.DRAIN)
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
    """Changes for each pool and model, those for waiting requests first."""
    waiting = waiting_for_instances(ctx)
    snapshot = ctx.observation.snapshot
    if not snapshot.gpus.mig.any() and not waiting.at:
        return
    work, names = snapshot.workloads, snapshot.names
    wanted = {names.profiles[int(work.mig_profile[ctx.pending[at]])] for at in waiting.at}
    mix = ctx.observation.forecasts.mix
    expected = {kind.profile for kind in mix.kinds if kind.profile} if mix is not None else set()
    for pool in pools_of(snapshot, books_of(ctx), tuple(sorted(wanted | expected))):
        if pool.scope:
            _plan_pool(ctx, pool, pool.scope, waiting, submit)


def _plan_pool(ctx: Context, pool: Pool, scope: str, waiting: Waiting, submit: Submit) -> None:
    rules = ctx.policy.regeometry
    seconds, switch_s = rules.change_s, switch_s_of(ctx, pool, scope)
    left_out = int((~pool.sound).sum())
    if left_out:
        ctx.plan.note(Note(LEFT_OUT.code, About.POOL, pool.name, facts=(Evidence("gpus", left_out),)))
    seen = look_at(ctx, pool, scope)
    asks = asks_of(ctx, pool, waiting)
    if seconds > ctx.policy.room.delay_s:  # too late for what is only foreseen
        asks = [ask if chance >= 1.0 else -1 for ask, chance in zip(asks, waiting.chance, strict=True)]
    serve(ctx, waiting, asks, seen.state.coming.copy(), seconds)
    within_s = seconds + ctx.policy.review.batch_s
    expected = expected_requests(ctx, pool, within_s)
    begun = changes_in_hour(ctx.memory, pool.name, ctx.now_s) + ctx.plan.recuts.count(pool.name)
    most = max(min(rules.per_tick, rules.per_pool_hour - begun), 0)
    needs = whole_needs(ctx, pool, seen, switch_s, most) if isfinite(switch_s) else NO_NEEDS
    found, gangs = _choose(ctx, pool, seen, waiting, asks, expected[0], needs, most)
    if not found.complete and len(found.changes) < most:
        ctx.plan.note(Note(ENDED_EARLY.code, About.POOL, pool.name, float(found.steps), "steps"))
    made = np.zeros(len(pool.layouts.profiles), np.int64)
    named: set[int] = set()
    whole: set[int] = set()  # places that leave MIG mode
    for cut in found.changes:
        accepted = len(ctx.plan.recuts)
        if cut.switches < 0:
            draft = leave_draft(ctx, pool, scope, cut, gangs, needs.expected, switch_s)
        else:
            draft = cut_draft(ctx, pool, scope, cut, waiting, asks, expected[1], within_s)
            draft = replace(draft, serves=served(ctx, pool, cut, waiting, asks, named))
        if submit(draft) and len(ctx.plan.recuts) > accepted:
            whole |= {cut.gpu} if cut.switches < 0 else set()
            made += counts_in(pool, cut.after) - counts_in(pool, cut.after & cut.before)
    serve(ctx, waiting, asks, made, seconds)
    for gang in gangs:
        if gang.places <= whole:
            ctx.plan.serve(gang.at, switch_s, made_whole(ctx, pool, gang))
    _let_go(ctx, pool, seen, {cut.gpu for cut in found.changes})
    if most > len(found.changes) and not seen.draining and rules.drain_s > 0:
        _drain(ctx, pool, waiting, asks, most, submit)


def _choose(
    ctx: Context,
    pool: Pool,
    seen: Seen,
    waiting: Waiting,
    asks: list[int],
    chances: F64,
    needs: WholeNeeds,
    most: int,
) -> tuple[Cuts, list[WholeGang]]:
    """The changes, and the gangs that get whole GPUs.

    Gangs that would get only a part of their instances or GPUs are left out, the last first.
    """
    rules, state, layouts = ctx.policy.regeometry, seen.state, pool.layouts
    seconds, switch_s = rules.change_s, switch_s_of(ctx, pool, seen.scope)
    prices = Prices(seconds, switch_s, margin_ratio=rules.margin_ratio)
    whole_gpu_s = needs.chances * min(rules.life_s, ctx.policy.horizon_s)
    gangs = list(needs.gangs)
    worth = worth_gpu_s(ctx, pool, waiting, asks)
    free = unpacked(state.free, len(layouts.of_bit)).sum(axis=0) @ layouts.of_bit + state.coming
    spent = 0
    while True:
        pending, wanted = waiting.needs(len(layouts.profiles), asks), waiting.foreseen(chances, asks)
        wishes, steps = Wishes(pending, wanted, worth, whole_gpu_s), max(rules.steps - spent, 0)
        state = with_needs(seen.state, seen, needs, gangs) if isfinite(switch_s) else seen.state
        if seen.scope == "instance":
            found = choose_cuts(layouts, state, wishes, prices, most=most, steps=steps)
        else:
            units = [Unit(each, missing_gpus(ctx, pool, seen.scope, each) * seconds) for each in seen.idle]
            whole = choose_units(layouts, state, wishes, units, prices, most=most, steps=steps)
            found = Cuts(whole.cuts, whole.steps, whole.complete)
        spent += found.steps
        room = free + sum(
            (counts_in(pool, cut.after) - counts_in(pool, cut.before) for cut in found.changes), np.zeros_like(free)
        )
        partial, partial_gang = partly_served(waiting, asks, room), partly_whole(gangs, found.changes)
        if (partial < 0 and partial_gang < 0) or not found.changes:
            return replace(found, steps=spent), gangs
        if partial >= 0:
            asks[partial] = -1
        if partial_gang >= 0:
            gangs.pop(partial_gang)


# --- draining ---------------------------------------------------------------------------------------


def _let_go(ctx: Context, pool: Pool, seen: Seen, changed: set[int]) -> None:
    """End the drain of idle units no longer needed by any change."""
    for unit in seen.drained:
        if changed.isdisjoint(unit):
            ctx.plan.let_go(str(ctx.observation.snapshot.gpus.uuid[pool.rows[place]]) for place in unit)


def _drain(ctx: Context, pool: Pool, waiting: Waiting, asks: list[int], most: int, submit: Submit) -> None:
    """Drain the unit that serves the still waiting requests at the least price, if that pays."""
    rules = ctx.policy.regeometry
    scope = pool.drained
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
        serve(ctx, waiting, asks, made, rules.change_s + draft.until_s - ctx.now_s)


def _drained(
    ctx: Context, pool: Pool, scope: str, places: tuple[int, ...], wishes: Wishes, most: int
) -> tuple[float, DrainDraft] | None:
    """The drain of one unit with its gain above its price; None if it does not pay."""
    rules, snapshot, layouts = ctx.policy.regeometry, ctx.observation.snapshot, pool.layouts
    rows = pool.rows[list(places)] if scope == "gpu" else node_rows(ctx, int(pool.rows[places[0]]))
    drain = drain_of(ctx, rows, rules.drain_s)
    if drain is None:
        return None
    seen = as_if_idle(ctx, pool, scope, places, [move.row for move in drain.moves])
    seconds = rules.change_s
    prices = Prices(seconds, margin_ratio=rules.margin_ratio)
    cuts, steps = cuts_of(layouts, seen, wishes, Unit(places, 0.0), prices, most=most, steps=rules.steps)
    ctx.plan.spend(steps // STEPS_OF_CUTS)
    missing = missing_gpus(ctx, pool, scope, places)
    held_gpu_s = idle_gpus(ctx, rows) * (drain.ready_s - ctx.now_s)
    price_gpu_s = missing * seconds + held_gpu_s + drain.cost_gpu_s
    gain_gpu_s = sum(cut.gain_gpu_s for cut in cuts)
    if not cuts or gain_gpu_s <= price_gpu_s * (1.0 + rules.margin_ratio):
        return None
    gpu, node = int(rows[0]), int(snapshot.gpus.node[rows[0]])
    planned = tuple(
        PlannedCut(str(snapshot.gpus.uuid[pool.rows[cut.gpu]]), before_of(pool, cut), geometry(pool, cut.after))
        for cut in cuts
    )
    new = Counter(place.profile for cut in cuts for place in placements_of(layouts.model, cut.after & ~cut.before))
    draft = DrainDraft(
        case=DRAIN_NODE if scope == "node" else DRAIN_GPU,
        row=node if scope == "node" else gpu,
        rows=tuple(rows.tolist()),
        uuids=frozenset(snapshot.gpus.uuid[rows].tolist()),
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


ACTION = Action(
    NAME,
    "cut idle MIG capacity for other profiles",
    propose,
    (*CASES.values(), FORESEEN, LEAVE_WAITING, LEAVE_EXPECTED, DRAIN_GPU, DRAIN_NODE),
    notes=(ENDED_EARLY, LEFT_OUT),
)
