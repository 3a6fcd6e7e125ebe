"""Start waiting work on GPUs that software shares, and turn nodes to sharing for it.

Theory of operation. Work that may share gets a seat beside work that it trusts, where all keep their memory and most of
their rates (terms.py, seats.py): at its turn, where other work needs the whole GPUs (`seat_first`), or when it found
none. Where such work has no seats, and other work waits for whole GPUs, a node that came free is turned before it is
filled again (turning.py). Running work is never turned; it may move to a seat, as others move (seating.py).
"""

from __future__ import annotations

from math import inf, isfinite

import numpy as np

from autopilot.core.effects import admit
from autopilot.core.effects.action import Action
from autopilot.core.effects.admit import AdmitDraft
from autopilot.core.effects.draft import Case, NoteCase, Submit
from autopilot.core.model.codes import Code
from autopilot.core.model.modes import Effect
from autopilot.core.model.objects import SharingConfig
from autopilot.core.model.records import About, Evidence, Note
from autopilot.core.model.snapshot import Bools, Gate
from autopilot.core.planning.context import Context
from autopilot.core.planning.ordering.predicted_ends import review_start
from autopilot.core.quota.counting import KUEUE
from autopilot.core.sharing import set_sharing
from autopilot.core.sharing.follow_turns import being_turned, turns_under_way
from autopilot.core.sharing.seating import MOVE, move_to_seats
from autopilot.core.sharing.seats import Seat, find_seat
from autopilot.core.sharing.set_sharing import TurnDraft, turned
from autopilot.core.sharing.terms import Barred, Terms, terms_of
from autopilot.core.sharing.turning import Choice, ahead, choose

NAME = "share"
START = Case(
    NAME,
    admit.KIND,
    words="start on {where}{after}, on shares ({mechanism}) beside {neighbours:workload}, so that whole GPUs are "
    "left to other work. It is expected to keep {rate} of its rate alone, and the slowest of the others {slowest}",
)
ALONE = Case(
    NAME,
    admit.KIND,
    "alone",
    words="start on {where}{after}, alone on GPUs that are shared ({mechanism}), where it runs as on whole ones; these "
    "are left to other work",
)
TURN = Case(
    NAME,
    set_sharing.KIND,
    words="turn it to {config}: nothing is on it, and there is work for {seats:seat} on its {gpus:GPU}",
)
AHEAD = Case(
    NAME,
    set_sharing.KIND,
    "ahead",
    words="turn it to {config} ahead: nothing is on it, nothing waits, and work that may share comes at a rate of "
    "{seats:GPU} in 4 h beyond the shared GPUs that nobody is on; alone it runs on its {gpus:GPU} as fast as on whole "
    "ones",
)
BARRED = NoteCase("share_barred", "{subject} waits and does not share GPUs: {why}")
WAITS = frozenset(
    {
        Code.CAPACITY,
        Code.FRAGMENTED,
        Code.RESERVED,
        Code.RUNTIME_UNKNOWN,
        Code.KEPT,
        Code.QUOTA,
        Code.LIMIT,
        Code.FAIRNESS,
        Code.GUARANTEE,
    }
)
"""Reasons to wait that a share may end."""

MOST_TOLD = 20
"""Notes of a tick about waiting work that does not share, in the order of service."""


def propose(ctx: Context, submit: Submit) -> None:
    """Seats for what found no whole GPUs. (Nodes are turned at the start of the pass of admit_gang.)"""
    if not (ctx.observation.snapshot.nodes.replicas > 1).any():
        return
    terms = terms_of(ctx)
    if terms.may.any():
        _seat(ctx, terms, submit, keeps=False)
        _seat(ctx, terms, submit, keeps=True)  # idle GPUs without other takers
        move_to_seats(ctx, terms, submit)


def _seat(ctx: Context, terms: Terms, submit: Submit, *, keeps: bool) -> None:
    """Start work on seats, in the order of service."""
    told = 0
    for at in ctx.waiting(WAITS):
        row = int(ctx.pending[at])
        if not terms.may[row]:
            continue
        shape = ctx.shape(row, int(ctx.observation.snapshot.workloads.gpus[row]))
        seat = find_seat(ctx, terms, row, shape, keeps=keeps)
        if isinstance(seat, Seat) and _within_quota(ctx, at, seat):
            ctx.plan.decide(at, submit(_start(ctx, terms, at, seat)))
        elif isinstance(seat, Barred) and keeps and told < MOST_TOLD:
            told += 1
            name = str(ctx.observation.snapshot.workloads.id[row])
            facts = (Evidence("why", seat.why), Evidence(str(seat.code), round(seat.value, 4), seat.unit))
            ctx.plan.note(Note(BARRED.code, About.WORKLOAD, name, facts=facts))


def seat_first(ctx: Context, at: int, submit: Submit) -> bool:
    """Start the gang at `at` on a seat in place of whole GPUs, where these serve other work, or can be offered back.

    True once it stands. Only where the action acts by itself: a recommendation keeps no work waiting.
    """
    row = int(ctx.pending[at])
    if not ctx.once(_Open, lambda: _Open(_open(ctx))):
        return False
    terms = terms_of(ctx)
    open_gate = ctx.observation.snapshot.workloads.gate[row] == Gate.OPEN and ctx.pending_table.may_ask[at]
    if not terms.may[row] or not open_gate or short_gpus(ctx) <= 0:
        return False
    seat = find_seat(ctx, terms, row, ctx.shape(row, int(ctx.observation.snapshot.workloads.gpus[row])))
    if not isinstance(seat, Seat) or not _within_quota(ctx, at, seat):
        return False
    return ctx.plan.decide(at, submit(_start(ctx, terms, at, seat)))


class _Open(list[bool]):
    """Not empty where seats may come before whole GPUs in this tick: asked for each gang that waits."""


def _open(ctx: Context) -> list[bool]:
    acts = ctx.policy.modes.auto(Effect.SHARE) and bool((ctx.observation.snapshot.nodes.replicas > 1).any())
    return [True] if acts else []


def short_gpus(ctx: Context) -> float:
    """Whole GPUs that are missing for what waits by now; infinite where unneeded nodes are offered back."""
    asked = ctx.observation.snapshot.workloads.gpus[ctx.pending[_asks(ctx)]].sum()
    return inf if _offers_back(ctx) else float(asked - ctx.whatif.node_free.sum())


def _offers_back(ctx: Context) -> bool:
    return bool(ctx.policy.capacity.pools) and ctx.policy.modes.on(Effect.OFFER)


def _asks(ctx: Context) -> Bools:
    """Gangs that wait for a start and may have one. Shape [pending]."""
    return np.asarray(~ctx.plan.taken & ~ctx.ahead & ctx.pending_table.may_ask)


def _within_quota(ctx: Context, at: int, seat: Seat) -> bool:
    """Whether quota lets the gang start on shares. Rule sets of Kueue count each of them as a GPU."""
    row, gpus = int(ctx.pending[at]), len(seat.fit.layout)
    part = 1.0 if ctx.policy.rules in KUEUE else 1.0 / seat.way.replicas
    return ctx.quota.may_start(row, gpus, part) is None


def _start(ctx: Context, terms: Terms, at: int, seat: Seat) -> AdmitDraft:
    """The proposal to start on a seat. Its cost is what the work beside it loses."""
    row, gpus = int(ctx.pending[at]), len(seat.fit.layout)
    run_s = min(float(ctx.run_low_s[at]), ctx.policy.horizon_s)
    slowest, cost = 1.0, 0.0
    facts: list[Evidence] = []
    for beside, found in zip(seat.beside, seat.predictions, strict=True):
        before = terms.rates(beside, seat.way) if beside else None
        for place, other in enumerate(beside):
            slowest = min(slowest, found.rates[place])
            lost = max(getattr(before, "rates", found.rates)[place] - found.rates[place], 0.0)
            cost += lost * max(min(float(ctx.end_s[other]) - ctx.now_s, run_s), 0.0)
    if seat.neighbours:
        shared = [each for each in seat.predictions if isfinite(each.memory_ratio)]  # not where it is alone
        facts = [
            Evidence("neighbours", len(seat.neighbours)),
            Evidence("rate", round(seat.rate, 4), "of its rate alone, estimated"),
            Evidence("slowest", round(slowest, 4), "of its rate alone, estimated"),
            Evidence("memory", round(max(each.memory_ratio for each in shared), 4), "of GPU memory, peaks"),
        ]
    return AdmitDraft(
        case=START if seat.neighbours else ALONE,
        row=row,
        fit=seat.fit,
        benefit_gpu_s=gpus * seat.rate * run_s,
        cost_gpu_s=round(cost, 3),
        evidence=(
            Evidence("gpus", gpus, "shares, each of another GPU"),
            Evidence("mechanism", set_sharing.sharing_words(seat.way.sharing, seat.way.replicas)),
            *facts,
            Evidence("run_time", round(run_s, 3) if isfinite(run_s) else "unknown", "s"),
        ),
    )


# --- nodes ------------------------------------------------------------------------------------------


def turn_first(ctx: Context, submit: Submit) -> None:
    """Turn an empty node before it is filled again."""
    nodes = ctx.observation.snapshot.nodes
    if not ctx.policy.modes.on(Effect.SHARE) or not nodes.sharing_offers.any():
        return
    wanted = short_gpus(ctx) > 0
    looked = review_start(ctx.memory.now_s, ctx.policy) >= ctx.review_now_s
    if not wanted and (looked or _asks(ctx).any()):
        return  # ahead of any need, one look in a review period does
    empty_nodes = _candidates(ctx, ctx.policy.sharing.dwell_s)
    terms = terms_of(ctx)
    if not empty_nodes or not terms.may.any():
        return
    waiting = np.flatnonzero(_asks(ctx)).tolist()
    coming = _coming(ctx)
    for _ in range(len(empty_nodes)):
        left = [node for node in empty_nodes if node not in coming]
        found = choose(ctx, terms, left, waiting, coming) if wanted else ahead(ctx, terms, left, coming)
        if found is None or not submit(_turn(ctx, found, TURN if wanted else AHEAD)):
            return
        coming[found.node] = found.packing.config


def _turn(ctx: Context, found: Choice, case: Case) -> TurnDraft:
    packing, config = found.packing, found.packing.config
    return TurnDraft(
        case=case,
        verb=turned(found.node, config, ctx.observation.snapshot),
        row=found.node,
        benefit_gpu_s=found.benefit_gpu_s,
        cost_gpu_s=found.cost_gpu_s,
        evidence=(
            Evidence("config", config.key),
            Evidence("seats", packing.gpus, "GPUs requested by work that may share there"),
            Evidence("gpus", int(ctx.observation.snapshot.nodes.gpus[found.node]), "GPUs of the node"),
            Evidence("rate", round(packing.rate, 4), "of the rates alone, a mean, estimated"),
            Evidence("gain", round(found.gain_gpus, 3), "GPUs left to other work"),
        ),
    )


def _coming(ctx: Context) -> dict[int, SharingConfig]:
    """The nodes (rows) that are being turned, and to what."""
    snapshot = ctx.observation.snapshot
    rows = {str(uid): row for row, uid in enumerate(snapshot.nodes.id.tolist())}
    keys = {config.key: config for config in snapshot.names.sharing_configs}
    return {rows[uid]: keys[key] for uid, key in turns_under_way(ctx.memory).items() if uid in rows and key in keys}


def _candidates(ctx: Context, dwell_s: float) -> list[int]:
    """Empty nodes that may be turned to sharing, in the order of the table."""
    snapshot, memory = ctx.observation.snapshot, ctx.memory.sharing
    nodes = snapshot.nodes
    may = (nodes.sharing_offers != 0) & (nodes.replicas <= 1) & ctx.whatif.node_ok & (nodes.gpus > 0) & ~in_use(ctx)
    may[snapshot.gpus.node[snapshot.gpus.mig | ~ctx.whatif.gpu_ok]] = False
    for held in ctx.plan.held:
        may[held.nodes] = False
    turning = being_turned(ctx.memory)
    return [
        row
        for row in np.flatnonzero(may).tolist()
        if (uid := str(nodes.id[row])) not in turning and ctx.now_s >= memory.turned_s.get(uid, -np.inf) + dwell_s
    ]


def in_use(ctx: Context) -> Bools:
    """Nodes with work on them, now or by the plan. Shape [nodes]."""
    snapshot = ctx.observation.snapshot
    used = np.zeros(len(snapshot.nodes.id), np.bool_)
    used[snapshot.placements.node] = True
    for layout in ctx.whatif.layouts.values():
        used[snapshot.gpus.node[layout.gpu]] = True
    return used


def timers(ctx: Context) -> list[float]:
    """The next review, where nodes can be turned."""
    offers = ctx.policy.modes.on(Effect.SHARE) and ctx.observation.snapshot.nodes.sharing_offers.any()
    return [ctx.review_now_s + ctx.policy.review.batch_s] if offers else []


ACTION = Action(
    NAME,
    "start work on shared GPUs, and turn nodes for it",
    propose,
    (START, ALONE, MOVE, TURN, AHEAD),
    notes=(BARRED,),
    timers=timers,
)
