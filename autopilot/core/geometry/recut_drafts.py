"""Proposals to change MIG geometry, with their words and evidence."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from math import inf

from autopilot.core.effects.draft import Case
from autopilot.core.geometry import recut
from autopilot.core.geometry.cutting import Cut
from autopilot.core.geometry.instance_requests import Waiting, counts_in
from autopilot.core.geometry.layouts import placements_of
from autopilot.core.geometry.pools import Pool, shares_of
from autopilot.core.geometry.recut import RecutDraft, recut_of
from autopilot.core.geometry.whole_gpus import WholeGang
from autopilot.core.model.records import Evidence, Geometry
from autopilot.core.model.snapshot import F64
from autopilot.core.model.units import counted
from autopilot.core.planning.context import Context

NAME = "regeometry"
WAITING = Case(
    NAME,
    recut.KIND,
    "waiting",
    words="cut {cut_from} into {cut_into} for {waiting:waiting request}; {expected} more expected within {within}; the "
    "idle capacity that changes is missing for {takes}",
)
EXPECTED = Case(
    NAME,
    recut.KIND,
    "expected",
    words="cut {cut_from} into {cut_into} ahead: {expected:such request} expected within {within}, and none waits; the "
    "idle capacity that changes is missing for {takes}",
)
WAITING_WHOLE = Case(
    NAME,
    recut.KIND,
    "waiting_whole",
    words="cut {cut_from} into {cut_into} for {waiting:waiting request}; {expected} more expected within {within}; "
    "{missing}, on which nothing runs, is missing for {takes}",
)
EXPECTED_WHOLE = Case(
    NAME,
    recut.KIND,
    "expected_whole",
    words="cut {cut_from} into {cut_into} ahead: {expected:such request} expected within {within}, and none waits; "
    "{missing}, on which nothing runs, is missing for {takes}",
)
FORESEEN = Case(
    NAME,
    recut.KIND,
    "foreseen",
    words="cut {cut_from} into {cut_into} for {foreseen:waiting replica} that a forecast calls for (needed with "
    "probability {chance_needed}); {expected} more expected within {within}; {missing} is missing for {takes}",
)
LEAVE_WAITING = Case(
    NAME,
    recut.KIND,
    "leave_waiting",
    words="turn MIG mode off ({cut_from} go, nothing runs there) for {waiting:waiting gang} of whole GPUs; {missing} "
    "is missing for {takes}",
)
LEAVE_EXPECTED = Case(
    NAME,
    recut.KIND,
    "leave_expected",
    words="turn MIG mode off ({cut_from} go, nothing runs there) ahead: requests for {expected:whole GPU} expected "
    "within {within}, more than are free; {missing} is missing for {takes}",
)
CASES = {
    (False, True): WAITING,
    (False, False): EXPECTED,
    (True, True): WAITING_WHOLE,
    (True, False): EXPECTED_WHOLE,
}
"""By whether a GPU or node changes as a whole, and whether a request waits for it."""


def switch_s_of(ctx: Context, pool: Pool, scope: str) -> float:
    """Time for a GPU to turn MIG mode on or off (s); inf if that is not supported.

    If idle instances change by themselves, that is the time of a whole GPU. An engine that changes whole nodes turns
    the mode like any other geometry.
    """
    turns = scope == "node" or (scope == "instance" and pool.has("gpu"))
    return ctx.policy.regeometry.change_s if turns else inf


def missing_gpus(ctx: Context, pool: Pool, scope: str, places: tuple[int, ...]) -> int:
    """GPUs missing while a unit changes."""
    if scope == "gpu":
        return 1
    snapshot = ctx.observation.snapshot
    return int(snapshot.nodes.gpus[snapshot.gpus.node[pool.rows[places[0]]]])


def _missing(ctx: Context, pool: Pool, scope: str, cut: Cut) -> Evidence:
    """The capacity missing while a GPU changes as a whole, or with its node."""
    if scope != "node":
        return Evidence("missing", "the GPU")
    snapshot = ctx.observation.snapshot
    node = str(snapshot.nodes.id[snapshot.gpus.node[pool.rows[cut.gpu]]])
    return Evidence("missing", f"node {node} with {counted(missing_gpus(ctx, pool, scope, (cut.gpu,)), 'GPU')}")


def served(
    ctx: Context, pool: Pool, cut: Cut, waiting: Waiting, asks: list[int], named: set[int]
) -> tuple[tuple[int, float], ...]:
    """Waiting work (row) served by the new instances of a cut, and each instance's part of a GPU.

    `named` are the gangs served by earlier cuts; those of this one are added.
    """
    left, shares = counts_in(pool, cut.after) - counts_in(pool, cut.after & cut.before), shares_of(pool.layouts)
    found = []
    for each, profile in enumerate(asks):
        if profile >= 0 and each not in named and 0 < waiting.left[each] <= left[profile]:
            left[profile] -= waiting.left[each]
            named.add(each)
            found.append((int(ctx.pending[waiting.at[each]]), float(shares[profile])))
    return tuple(found)


def cut_draft(
    ctx: Context, pool: Pool, scope: str, cut: Cut, waiting: Waiting, asks: list[int], mean: F64, within_s: float
) -> RecutDraft:
    """A GPU cut anew, or turning MIG mode on. `mean` [profiles]: requests expected `within_s`."""
    model, gpu = pool.layouts.model, int(pool.rows[cut.gpu])
    seconds = switch_s_of(ctx, pool, scope) if cut.switches else within_s - ctx.policy.review.batch_s
    new = {place.profile for place in placements_of(model, cut.after & ~cut.before)}
    chances = [
        chance
        for profile, chance in zip(asks, waiting.chance, strict=True)
        if profile >= 0 and pool.layouts.profiles[profile] in new
    ]
    waits = sum(chance >= 1.0 for chance in chances)
    foreseen = [chance for chance in chances if chance < 1.0]
    expected = sum(float(mean[place]) for place, name in enumerate(pool.layouts.profiles) if name in new)
    gone = words_of(pool, cut.before & ~cut.after) if not cut.switches else "a whole GPU"
    missing: tuple[Evidence, ...] = ()
    if scope != "instance":
        missing = (_missing(ctx, pool, scope, cut),)
    elif foreseen and not waits:
        missing = (Evidence("missing", "the idle capacity that changes"),)
    if foreseen:
        chance = Evidence("chance_needed", round(max(foreseen), 3))
        missing = (Evidence("foreseen", len(foreseen), "replicas"), chance, *missing)
    after = geometry(pool, int(pool.used[cut.gpu]) | cut.after)
    return RecutDraft(
        case=FORESEEN if foreseen and not waits else CASES[scope != "instance", waits > 0],
        verb=recut_of(ctx, gpu, pool.name, scope, before=before_of(pool, cut), after=after),
        row=gpu,
        benefit_gpu_s=cut.gain_gpu_s,
        cost_gpu_s=cut.price_gpu_s,
        evidence=(
            Evidence("cut_from", gone or "free slices"),
            Evidence("cut_into", words_of(pool, cut.after & ~cut.before)),
            Evidence("waiting", waits),
            Evidence("expected", round(expected, 3), "requests"),
            Evidence("within", round(within_s, 3), "s"),
            Evidence("takes", round(seconds, 3), "s"),
            Evidence("pool", pool.name),
            Evidence("scope", "gpu" if cut.switches and scope == "instance" else scope),
            *missing,
        ),
    )


def leave_draft(
    ctx: Context, pool: Pool, scope: str, cut: Cut, gangs: Sequence[WholeGang], expected: float, switch_s: float
) -> RecutDraft:
    """A GPU that leaves MIG mode. The first GPU of a gang has the gang in `serves`."""
    mine = [gang for gang in gangs if cut.gpu in gang.places]
    gpu, within_s = int(pool.rows[cut.gpu]), switch_s + ctx.policy.review.batch_s
    return RecutDraft(
        case=LEAVE_WAITING if mine else LEAVE_EXPECTED,
        verb=recut_of(ctx, gpu, pool.name, scope, before=before_of(pool, cut), after=None),
        row=gpu,
        benefit_gpu_s=cut.gain_gpu_s,
        cost_gpu_s=cut.price_gpu_s,
        serves=tuple((int(ctx.pending[gang.at]), 1.0) for gang in mine if cut.gpu == min(gang.places)),
        evidence=(
            Evidence("cut_from", words_of(pool, cut.before) or "free slices"),
            Evidence("waiting", len(mine)),
            Evidence("expected", round(expected, 3), "GPUs"),
            Evidence("within", round(within_s, 3), "s"),
            Evidence("takes", round(switch_s, 3), "s"),
            Evidence("pool", pool.name),
            Evidence("scope", "gpu" if scope == "instance" else scope),
            _missing(ctx, pool, scope, cut),
        ),
    )


def before_of(pool: Pool, cut: Cut) -> Geometry | None:
    """The geometry of a GPU before a change; None: not in MIG mode."""
    return None if cut.switches > 0 else geometry(pool, int(pool.used[cut.gpu]) | cut.before)


def geometry(pool: Pool, bits: int) -> Geometry:
    """A bit set as (profile, start)."""
    return tuple((place.profile, place.start) for place in placements_of(pool.layouts.model, bits))


def words_of(pool: Pool, bits: int) -> str:
    """Instances in words: `2 x 1g.10gb and 3g.40gb`."""
    return in_words(Counter(place.profile for place in placements_of(pool.layouts.model, bits)))


def in_words(counts: Mapping[str, int]) -> str:
    """Instances by profile in words."""
    return " and ".join(name if count == 1 else f"{count} x {name}" for name, count in counts.items())
