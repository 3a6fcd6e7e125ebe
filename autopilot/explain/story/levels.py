"""The queue tree above a gang in words: the use and shortfall of each level, and the levels with too little left."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from math import inf, isfinite

from autopilot.core.model.records import Code
from autopilot.core.model.snapshot import Displace
from autopilot.core.model.units import counted, number
from autopilot.core.planning.context import Context
from autopilot.core.quota.ledger import ALL, EPSILON, QuotaLedger
from autopilot.core.quota.rules.base import Claim
from autopilot.core.quota.rules.cohort import cohort_tree

SHOWN_RIVALS = 4
"""Named queues beside its own, the most over-served first."""


def has_tree(ctx: Context) -> bool:
    """True if the queues are worth a line: several of them, or a limit or guarantee on the only one."""
    ledger = ctx.quota.ledger
    bounded = any(isfinite(limit) for limits in ledger.limit for limit in limits) or any(ledger.guarantee[ALL])
    return len(ledger.parent) > 2 or bounded


def name_of(ctx: Context, queue: int) -> str:
    """A queue by its name."""
    return str(ctx.observation.snapshot.queues.id[queue])


def levels_of(ledger: QuotaLedger, queue: int) -> tuple[int, ...]:
    """The queue and all above it; the root only if it has a limit."""
    return (*ledger.paths[queue], 0) if isfinite(ledger.limit[ALL][0]) else ledger.paths[queue]


def short_levels(ctx: Context, claim: Claim, code: Code) -> tuple[int, ...]:
    """Levels of its path with too little left of the quantity behind `code`, lowest first."""
    ledger = ctx.quota.ledger
    if code == Code.LIMIT:
        return tuple(
            each for each in (*ledger.paths[claim.queue], 0) if ledger.over_limit(each, claim.gpus, claim.kinds)
        )
    if code == Code.GUARANTEE:
        return _over(ledger, claim, ledger.sheltered, ledger.guarantee)
    if code == Code.FAIRNESS and not cohorts(ctx):
        return _over(ledger, claim, ledger.use, ledger.fair)
    if code in {Code.QUOTA, Code.KEPT} and cohorts(ctx) and ledger.paths[claim.queue]:
        return _short_in_cohort(ledger, claim)
    return ()


def _over(
    ledger: QuotaLedger, claim: Claim, held: Sequence[Sequence[float]], allowed: Sequence[Sequence[float]]
) -> tuple[int, ...]:
    """Levels with more held, the gang included, than allowed, in some kind."""
    return tuple(
        each
        for each in ledger.paths[claim.queue]
        if any(held[kind][each] + claim.gpus > allowed[kind][each] + EPSILON for kind in claim.kinds)
    )


def _short_in_cohort(ledger: QuotaLedger, claim: Claim) -> tuple[int, ...]:
    """Levels without room for the gang in their quota and borrow limit, beside their present use."""
    path = ledger.paths[claim.queue]
    short = set()
    for kind in claim.kinds:
        tree = cohort_tree(ledger, kind, path[-1])
        for queue in path:
            borrow = 0.0 if queue == path[-1] else tree.borrow[queue]
            if claim.gpus > tree.quota[queue] + borrow - tree.used[queue] + EPSILON:
                short.add(queue)
    return tuple(queue for queue in path if queue in short)


def cohorts(ctx: Context) -> bool:
    """True under rule sets with lending inside a cohort."""
    return str(ctx.policy.rules).startswith("cohort")


def quota_lines(
    ctx: Context, queue: int, kinds: Sequence[int], use_before: Sequence[Sequence[float]], short: Collection[int] = ()
) -> list[str]:
    """One line a level, from its queue upwards: use, guarantee, limit, fair share in GPUs; `short` ones are marked."""
    lines = []
    for kind in kinds:
        for each in levels_of(ctx.quota.ledger, queue):
            mark = "  <- leaves it too little" if each in short else ""
            lines.append(f"queue {name_of(ctx, each)}{_model(ctx, kind)}: {_level(ctx, kind, each, use_before)}{mark}")
    return lines


def _model(ctx: Context, kind: int) -> str:
    """GPU model of a kind; empty for all."""
    kinds = ctx.quota.ledger.kind_of_model
    return "" if kind == ALL else f" ({ctx.observation.snapshot.names.gpu_models[kinds.index(kind)]})"


def _level(ctx: Context, kind: int, queue: int, use_before: Sequence[Sequence[float]]) -> str:
    ledger = ctx.quota.ledger
    use, before = ledger.use[kind][queue], use_before[kind][queue]
    kept = " or kept for who waits" if ctx.quota.rules.keeps is not None else ""
    given = f" ({before:g} before this tick; the rest starts{kept})" if use > before + EPSILON else ""
    given = f" ({before:g} before this tick)" if use < before - EPSILON else given
    parts = [f"uses {counted(use, 'GPU')}{given}", f"guarantee {number(ledger.guarantee[kind][queue])}"]
    if kind == ALL or isfinite(ledger.limit[kind][queue]):
        parts.append(f"limit {_bound(ledger.limit[kind][queue])}")
    if cohorts(ctx):
        parts += _cohort_parts(ledger, kind, queue)
    else:
        parts.append(f"fair share {number(round(ledger.fair[kind][queue], 2))}")
    if ledger.guarantee_binds and ledger.sheltered[kind][queue] > EPSILON:
        parts.append(f"{number(ledger.sheltered[kind][queue])} of its use may not be preempted")
    return ", ".join(parts)


def _cohort_parts(ledger: QuotaLedger, kind: int, queue: int) -> list[str]:
    """Quota of a level of a cohort, lent quota included; its borrow limit; the amount borrowed."""
    if not queue:
        return []
    tree = cohort_tree(ledger, kind, ledger.paths[queue][-1])
    parts = [f"quota with what is lent from below {number(tree.quota[queue])}"]
    if queue != ledger.paths[queue][-1]:
        bound = tree.borrow[queue]
        parts.append(f"may borrow {'without limit' if bound == inf else number(bound)}")
        parts.append(f"borrows {number(tree.over(queue))}")
    return parts


def _bound(value: float) -> str:
    return "none" if value == inf else number(value)


def rival_lines(ctx: Context, claim: Claim) -> list[str]:
    """The queues beside its path with the highest saturation: possible lenders, if they were above their share."""
    ledger = ctx.quota.ledger
    path = {*ledger.paths[claim.queue], 0}
    beside = [child for parent in path for child in ledger.children[parent] if child not in path]
    used = [queue for queue in beside if ledger.use[ALL][queue] > EPSILON]
    used.sort(key=lambda queue: (-ledger.saturation(queue, 0.0, (ALL,)), queue))
    lines = []
    for queue in used[:SHOWN_RIVALS]:
        use, fair, owed = (column[ALL][queue] for column in (ledger.use, ledger.fair, ledger.guarantee))
        above, part = (use - owed, "guarantee") if cohorts(ctx) else (use - fair, "fair share")
        says = f"{number(round(above, 2))} above its {part}" if above > EPSILON else f"within its {part}"
        lines.append(
            f"queue {name_of(ctx, queue)} beside it: uses {counted(use, 'GPU')}, guarantee {number(owed)}, "
            + ("" if cohorts(ctx) else f"fair share {number(round(fair, 2))}, ")
            + says
        )
    if len(used) > SHOWN_RIVALS:
        lines.append(f"and {len(used) - SHOWN_RIVALS} more queues beside it, less over-served than these")
    return lines


def settings_line(ctx: Context, queue: int) -> str:
    """Displacement settings of a queue (cohort rules)."""
    queues = ctx.quota.ledger.queues

    def how(column: Sequence[int]) -> str:
        return Displace(int(column[queue])).name.lower().replace("_", " ")

    return (
        f"queue {name_of(ctx, queue)} may displace, inside the queue: {how(queues.within_queue.tolist())}; in "
        f"queues that "
        f"borrow: {how(queues.reclaim.tolist())}; while it borrows itself: {how(queues.while_borrowing.tolist())}"
    )
